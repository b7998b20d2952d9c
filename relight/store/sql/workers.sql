-- Processes that report, and engines that take calls.

-- name: register_worker
-- Its current attempt is that of its rollout, if it has opened one.
insert into workers as w (worker_id, kind, host, pid, serves, heartbeat_stats, status, doing, rollout_id, version, queues,
                          memory_bytes, gpus, attempt_id, dequeued_at, busy_at, idle_at)
select $1, $2, $3, $4::int, $5::text[], $6::jsonb, $7::text, $8::text[], $9::text, $10::text, $11::text[], $12::bigint,
       $13::jsonb, a.attempt_id, a.started_at,
       case when $7 = 'busy' then now() end, case when $7 <> 'busy' then now() end
from (values (1)) one
left join lateral (select attempt_id, started_at from attempts
                   where rollout_id = $9 and worker_id = $1 and ended_at is null order by sequence_id desc limit 1) a on true
on conflict (worker_id) do update set kind = excluded.kind, host = excluded.host, pid = excluded.pid,
    serves = excluded.serves, heartbeat_stats = excluded.heartbeat_stats, last_heartbeat = now(),
    status = excluded.status, doing = excluded.doing, rollout_id = excluded.rollout_id, version = excluded.version,
    queues = excluded.queues, memory_bytes = excluded.memory_bytes, gpus = excluded.gpus,
    attempt_id = excluded.attempt_id, dequeued_at = coalesce(excluded.dequeued_at, w.dequeued_at),
    busy_at = case when w.status = 'busy' then w.busy_at else coalesce(excluded.busy_at, w.busy_at) end,
    idle_at = case when w.status = excluded.status then w.idle_at else coalesce(excluded.idle_at, w.idle_at) end

-- name: drop_gone_workers
delete from workers where kind <> 'external' and last_heartbeat < now() - make_interval(secs => $1)

-- name: ready_engines
select engine_id, run, policy, url, model, version from engines
where run = $1 and state = 'ready' and version is not null
order by engine_id
