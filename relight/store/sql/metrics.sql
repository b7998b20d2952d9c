-- Figures of all processes for /metrics. Every service gives the same answer, so dashboards take the maximum.

-- name: metrics_open_rollouts
select kind, status, count(*) as number, greatest(extract(epoch from now() - min(created_at)), 0)::float8 as oldest_seconds
from rollouts where status in ('queuing', 'preparing', 'running', 'requeuing') group by kind, status

-- name: metrics_ended_rollouts
-- Rollouts of steps, of evaluations and from outside, without preflights. $1: bounds of the buckets of their seconds.
select status, coalesce(mode, '') as mode, width_bucket(seconds, $1::float8[]) as bucket, count(*) as number,
       sum(seconds)::float8 as seconds
from (
    select status, mode, greatest(extract(epoch from ended_at - created_at), 0)::float8 as seconds
    from rollouts
    where status in ('succeeded', 'failed', 'cancelled') and ended_at is not null and kind <> 'preflight'
) ended
group by 1, 2, 3

-- name: metrics_attempts
select status, coalesce(failure_class, '') as failure_class, count(*) as number from attempts group by 1, 2

-- name: metrics_failures
-- Rollouts that failed or were cancelled, by kind.
select kind, coalesce(failure_class, status) as failure_class, count(*) as number
from rollouts where status in ('failed', 'cancelled') group by 1, 2

-- name: metrics_quarantined
select count(*) as number from rollouts where status = 'failed' and failure_class = 'infrastructure' and deaths >= 5

-- name: metrics_warnings
select u.run, w.name, 1 as number from runs u cross join lateral jsonb_object_keys(u.warnings) as w (name)
where u.status = 'running'

-- name: metrics_outbox
select count(*) as number, greatest(extract(epoch from now() - min(created_at)), 0)::float8 as oldest_seconds
from outbox where started_at is null

-- name: metrics_runs
select status, count(*) as number from runs group by status

-- name: metrics_running
-- Progress of runs that are under way or interrupted.
select u.run, u.paused, u.total_steps,
       coalesce((select max(step) from steps s where s.run = u.run and s.status = 'recorded'), 0) as step
from runs u where u.status in ('running', 'interrupted')

-- name: metrics_versions
-- The newest version of each policy of these runs.
select run, policy, max(version) as version
from policy_versions join runs using (run) where status in ('running', 'interrupted') group by run, policy

-- name: metrics_engines
select engine_id, run, policy, state, coalesce(version, -1) as version from engines

-- name: metrics_workers
-- Processes that reported in the last minute.
select kind, count(*) as number from workers where last_heartbeat > now() - interval '60 s' group by kind

-- name: metrics_stored
-- Bytes of what retention may drop, indexes included.
select parent.relname as part, sum(coalesce(pg_total_relation_size(i.inhrelid), 0))::float8 as size_bytes
from pg_partitioned_table p
join pg_class parent on parent.oid = p.partrelid and parent.relnamespace = current_schema::regnamespace
join pg_inherits i on i.inhparent = parent.oid
group by parent.relname
