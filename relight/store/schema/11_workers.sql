-- Workers: Relight's own processes, and those of external runners.

create table workers (
    worker_id       text primary key,
    kind            text not null,                    -- runner, orchestrator, gateway, gpu-worker, store; external
    host            text not null,
    pid             int,
    version         text,
    serves          text[] not null default '{}',     -- agents
    queues          text[] not null default '{}',     -- Temporal task queues that it polls
    status          text not null default 'idle',
    doing           text[] not null default '{}',     -- what it works on, newest last
    rollout_id      text,
    attempt_id      text,
    memory_bytes    bigint,                           -- resident, with its child processes
    gpus            jsonb not null default '[]',      -- [{name, memory_bytes}]
    heartbeat_stats jsonb default '{}',
    heartbeat_at    timestamptz,                      -- of the last statistics that it sent
    last_heartbeat  timestamptz not null default now(),
    dequeued_at     timestamptz,
    busy_at         timestamptz,
    idle_at         timestamptz,
    started_at      timestamptz not null default now()
);

-- Workers as they are read: what one of Relight's processes reported last is not shown after a silence of 60 s.
create view reported_workers as
select worker_id, kind, host, pid, serves, case when silent then 'unknown' else status end as status, heartbeat_stats,
       last_heartbeat, started_at, heartbeat_at, dequeued_at, busy_at, idle_at,
       case when not silent then rollout_id end as rollout_id, case when not silent then attempt_id end as attempt_id,
       version, queues, case when silent then '{}' else doing end as doing, memory_bytes, gpus
from (select *, kind <> 'external' and last_heartbeat < now() - interval '60 s' as silent from workers) reported;

-- Update workers of external runners: [{worker_id, status, rollout_id, attempt_id, dequeued}]; a worker's last event
-- counts.
create function sync_workers_v1(p_events jsonb) returns void language sql as $$
    insert into workers as w (worker_id, kind, host, status, heartbeat_stats, dequeued_at, busy_at, idle_at,
                              rollout_id, attempt_id)
    select worker_id, 'external', '', status, null, case when dequeued then clock_timestamp() end,
           case when status = 'busy' then clock_timestamp() end, case when status <> 'busy' then clock_timestamp() end,
           case when status = 'busy' then rollout_id end, case when status = 'busy' then attempt_id end
    from (
        select distinct on (worker_id) *
        from rows from (jsonb_to_recordset(p_events) as
            (worker_id text, status text, rollout_id text, attempt_id text, dequeued boolean)) with ordinality as e
                (worker_id, status, rollout_id, attempt_id, dequeued, n)
        where worker_id is not null order by worker_id, n desc
    ) event
    on conflict (worker_id) do update set
        status = excluded.status, last_heartbeat = clock_timestamp(),
        dequeued_at = coalesce(excluded.dequeued_at, w.dequeued_at),
        busy_at = case when excluded.status = 'busy'
            and (w.status, w.attempt_id) is distinct from ('busy', excluded.attempt_id)
            then excluded.busy_at else w.busy_at end,
        idle_at = case when excluded.status <> 'busy' and w.status <> excluded.status
            then excluded.idle_at else w.idle_at end,
        rollout_id = excluded.rollout_id, attempt_id = excluded.attempt_id
$$;

-- The event for the worker of an attempt, by the attempt's status.
create function worker_event_v1(a attempts, p_dequeued boolean default false) returns jsonb language sql stable as $$
    select jsonb_build_object(
        'worker_id', a.worker_id, 'rollout_id', a.rollout_id, 'attempt_id', a.attempt_id, 'dequeued', p_dequeued,
        'status', case when a.status in ('succeeded', 'failed') then 'idle'
                       when a.status in ('timeout', 'unresponsive') then 'unknown' else 'busy' end)
$$;

-- The same after attempts ended: a worker that is at another attempt by now is not freed.
create function sync_ended_workers_v1(p_events jsonb) returns void language sql as $$
    select sync_workers_v1(coalesce(jsonb_agg(e), '[]')) from jsonb_array_elements(p_events) e
    where e ->> 'status' = 'busy' or not exists (
        select from workers w where w.worker_id = e ->> 'worker_id' and w.attempt_id <> e ->> 'attempt_id')
$$;
