-- Processes that say that they are there, and engines that take calls.

-- name: register_worker
insert into workers (worker_id, kind, host, pid, serves, heartbeat_stats) values ($1, $2, $3, $4, $5, $6)
on conflict (worker_id) do update set kind = excluded.kind, host = excluded.host, pid = excluded.pid,
    serves = excluded.serves, heartbeat_stats = excluded.heartbeat_stats, last_heartbeat = now()

-- name: ready_engines
select engine_id, run, url, model, version, load from engines
where run = $1 and state = 'ready' and version is not null
order by engine_id
