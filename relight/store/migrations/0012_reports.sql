-- What the processes of the platform say about themselves, each in its own report (register_worker).

alter table workers
    add column version      text,
    add column queues       text[] not null default '{}',     -- Temporal's, that it polls
    add column doing        text[] not null default '{}',     -- what it is at, newest last
    add column memory_bytes bigint,                           -- resident, its children's too
    add column gpus         jsonb not null default '[]';      -- [{name, memory_bytes}]

-- Workers as they are read: what one of the platform's processes said last is no longer so when it has been silent.
create view reported_workers as
select worker_id, kind, host, pid, serves, case when silent then 'unknown' else status end as status, heartbeat_stats,
       last_heartbeat, started_at, heartbeat_at, dequeued_at, busy_at, idle_at,
       case when not silent then rollout_id end as rollout_id, case when not silent then attempt_id end as attempt_id,
       version, queues, case when silent then '{}' else doing end as doing, memory_bytes, gpus
from (select *, kind <> 'external' and last_heartbeat < now() - interval '60 s' as silent from workers) said;
