-- What is kept of spans, model calls and bodies, by the day on which their rollout was created.

-- name: retention_partitions
-- Every day's tables with their bytes, indexes included; the default partition of each table has no day.
select parent.relname as parent, child.relname as name, coalesce(pg_total_relation_size(child.oid), 0) as size_bytes,
       to_date(substring(child.relname from '_(\d{8})$'), 'YYYYMMDD') as day
from pg_partitioned_table p
join pg_class parent on parent.oid = p.partrelid and parent.relnamespace = current_schema::regnamespace
join pg_inherits i on i.inhparent = parent.oid
join pg_class child on child.oid = i.inhrelid
order by parent.relname, child.relname

-- name: retention_needed
-- Days that something still needs: rollouts that have not ended, open steps of runs that are not finished, and what a
-- replay has still to train on.
select day, min(holder) as holder from (
    select day, coalesce(case when kind <> 'external' then 'run ' || run end, 'rollout ' || rollout_id) as holder
    from rollouts
    where status in ('queuing', 'preparing', 'running', 'requeuing')
    union all
    select r.day, 'step ' || s.step || ' of run ' || s.run
    from runs u
    join steps s on s.run = u.run and s.status <> 'recorded'
    join rollouts r on r.run = rollouts_of_v1(s.run) and r.kind = 'train' and r.step = s.step
    where u.status <> 'finished'
    union all
    select r.day, 'replay ' || u.run from runs u
    join rollouts r on r.run = u.parent_run and r.kind = 'train' and r.step > u.parent_step and r.step <= u.total_steps
    where u.replays and u.status <> 'finished'
      and not exists (select from steps s where s.run = u.run and s.step = r.step and s.status = 'recorded')
) needed group by day

-- name: retention_today
select (now() at time zone 'utc')::date

-- name: retention_audit
insert into audit (actor, action, after) values ('retention', 'drop_day', $1)
