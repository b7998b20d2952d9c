-- The rollout store as external algorithms and runners use it. The rules are functions, in schema/12_queue.sql
-- and schema/13_external_rollouts.sql.

-- name: enqueue_rollouts
select enqueue_rollouts_v1($1)

-- name: dequeue_rollouts
select dequeue_rollouts_v1($1)

-- name: start_rollout
select start_rollout_v1($1, $2, $3, $4, $5)

-- name: start_attempt
select start_attempt_v1($1, $2, $3, $4)

-- name: update_attempts
select update_attempts_v1($1)

-- name: update_rollout
select update_rollout_v1($1, $2)

-- name: get_lightning_rollout
select get_rollout_v1($1)

-- name: get_latest_attempt
select attempt_json_v1(a) from attempts a where rollout_id = $1 order by sequence_id desc limit 1

-- name: take_sequence_ids
select take_sequence_ids_v1($1, $2)

-- name: rollouts_by_id
-- Those of $1 that are known; with the rollout where it has ended.
select r.rollout_id, case when is_over_v1(r.status) then attempted_json_v1(r, a) end as rollout
from rollouts r left join attempts a on a.rollout_id = r.rollout_id and a.sequence_id = r.attempts
where r.rollout_id = any ($1::text[])

-- name: not_open
-- Those of $1 that have ended or are unknown.
select id from unnest($1::text[]) id left join rollouts r on r.rollout_id = id
where r.rollout_id is null or is_over_v1(r.status)

-- name: cancel_any_rollout
select cancel_rollout_v1($1, $2)

-- name: delete_rollout
select delete_rollout_v1($1)

-- name: add_lightning_resources
-- Nothing where there are resources of that id.
insert into resources (resources_id, resources, create_time, update_time)
values ($1, $2, statement_timestamp(), statement_timestamp())
on conflict do nothing
returning *

-- name: update_lightning_resources
insert into resources (resources_id, resources, create_time, update_time)
values ($1, $2, statement_timestamp(), statement_timestamp())
on conflict (resources_id) do update
set resources = excluded.resources, version = resources.version + 1, update_time = clock_timestamp()
returning *

-- name: get_lightning_resources
-- The newest version, or $2.
select * from resource_versions where resources_id = $1 and ($2::int is null or version = $2)
order by version desc limit 1

-- name: newest_resources_version
select version from resources where resources_id = $1

-- name: get_latest_resources
select * from resources order by update_time desc, sequence desc limit 1

-- name: unknown_resources
select id as resources_id from unnest($1::text[]) id
where not exists (select from resources where resources_id = id) limit 1

-- name: lightning_worker
select * from reported_workers where worker_id = $1

-- name: worker_heartbeat
insert into workers (worker_id, kind, host, status, heartbeat_stats, heartbeat_at)
values ($1, 'external', '', 'unknown', $2, clock_timestamp())
on conflict (worker_id) do update
set heartbeat_stats = coalesce(excluded.heartbeat_stats, workers.heartbeat_stats), heartbeat_at = excluded.heartbeat_at, last_heartbeat = clock_timestamp()
returning *

-- name: lightning_statistics
select (select count(*) from rollouts) as total_rollouts, (select count(*) from attempts) as total_attempts,
       (select count(*) from spans) as total_spans, (select count(*) from resources) as total_resources,
       (select count(*) from workers) as total_workers

-- name: unknown_attempts
select rollout_id, attempt_id from unnest($1::text[], $2::text[]) as x(rollout_id, attempt_id)
where not exists (select from attempts a where a.attempt_id = x.attempt_id and a.rollout_id = x.rollout_id) limit 1

-- name: sweep
-- null: another process holds the sweeper's lease.
select sweep_v1($1, $2, $3)

-- name: drop_old_keys
delete from idempotency_keys where (scope, key) in (
    select scope, key from idempotency_keys where created_at < now() - make_interval(secs => $1) limit 10000)

-- name: claim_outbox
-- Workflows to start, oldest first. The caller holds them until it commits.
select o.id, o.workflow_type, o.workflow_id, o.task_queue, o.input, r.run, r.step, r.mode, r.position, r.inspects
from outbox o left join rollouts r on r.rollout_id = o.input ->> 'rollout_id'
where o.started_at is null order by o.id limit $1 for update of o skip locked

-- name: outbox_started
update outbox set started_at = clock_timestamp(), checked_at = clock_timestamp() where id = any ($1::bigint[])

-- name: claim_unfinished_outbox
-- Started a while ago, with a rollout that has not ended: Temporal may have lost the workflow.
with late as (
    select o.id, r.run, r.step, r.mode, r.position, r.inspects from outbox o join rollouts r on o.workflow_id = workflow_of_v1(r.rollout_id)
    where r.status in ('queuing', 'preparing', 'running', 'requeuing') and r.kind in ('external', 'inspect')
      and r.dispatched_by = 'workflow' and o.started_at is not null and o.workflow_type <> 'cancel'
      and coalesce(o.checked_at, o.started_at) < now() - make_interval(secs => $1)
    order by o.checked_at limit $2 for update of o skip locked
)
update outbox o set checked_at = clock_timestamp() from late where o.id = late.id
returning o.id, o.workflow_type, o.workflow_id, o.task_queue, o.input,
          late.run, late.step, late.mode, late.position, late.inspects

-- name: fail_undispatched
-- Temporal will never take its workflow.
update rollouts set status = 'failed', failure_class = 'infrastructure', failure = $2, ended_at = clock_timestamp()
where rollout_id = $1 and status in ('queuing', 'preparing', 'running', 'requeuing')
