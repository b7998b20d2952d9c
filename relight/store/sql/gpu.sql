-- GPU hosts and their engines.

-- name: upsert_host
insert into gpu_hosts (host, task_queue) values ($1, $2)
on conflict (host) do update set task_queue = excluded.task_queue, heartbeat = now()

-- name: lock_host
select h.*, r.status as run_status from gpu_hosts h left join runs r on r.run = h.run where h.host = $1 for update of h

-- name: host_of_run
-- Another host that serves the run and has reported recently.
select host, task_queue from gpu_hosts
where run = $1 and host <> $2 and heartbeat > now() - make_interval(secs => $3)
order by heartbeat desc limit 1

-- name: hosts_lost_with_run
-- Hosts that served the run and do not report.
select host from gpu_hosts where run = $1 and host <> $2 and heartbeat <= now() - make_interval(secs => $3)

-- name: lost_runs
-- Runs of which no host reports.
select r.run, r.epoch from runs r
where r.status = 'running' and r.cancel_requested is null and exists (select from gpu_hosts h where h.run = r.run)
  and not exists (
    select from gpu_hosts h where h.run = r.run and (h.host = $1 or h.heartbeat > now() - make_interval(secs => $2)))
order by r.created_at

-- name: free_lost_host
-- Null if it has reported meanwhile. Its engines get no more calls; if it comes back, it serves no run.
with lost as (
    update gpu_hosts set run = null, epoch = null, state = 'lost', detail = $3
    where host = $1 and run = $2 and heartbeat <= now() - make_interval(secs => $4)
    returning host
), silenced as (
    update engines set state = 'dead', updated_at = now() from lost where engines.host = lost.host
)
select host from lost

-- name: assign_host
update gpu_hosts set run = $2, epoch = $3, state = $4, detail = null where host = $1

-- name: set_host_state
update gpu_hosts set state = $2, detail = $3, heartbeat = now() where host = $1

-- name: heartbeat_host
-- `over`: its run ended longer ago than a release takes to arrive.
update gpu_hosts h set heartbeat = now() where host = $1
returning run, epoch, exists (select from runs r where r.run = h.run and r.status = 'running') as serves,
    exists (select from runs r where r.run = h.run and r.status in ('finished', 'failed', 'cancelled')
            and r.finished_at < now() - interval '3 minutes') as over

-- name: end_engines_of_host
-- Those of a GPU worker that was killed: their processes ended with it.
update engines set state = 'stopped', updated_at = now()
where host = $1 and state in ('starting', 'ready', 'loading')

-- name: upsert_engine
insert into engines (engine_id, host, run, policy, url, model, state, pid)
values ($1, $2, $3, $4, $5, $6, 'starting', $7)
on conflict (engine_id) do update
set host = $2, run = $3, policy = $4, url = $5, model = $6, state = 'starting', version = null, pid = $7,
    updated_at = now(), fence = case when (engines.run, engines.policy) = ($3, $4) then engines.fence else 0 end

-- name: set_engine_state
update engines set state = $2, updated_at = now() where engine_id = $1

-- name: engine_loaded
-- The engine acknowledges a version: what it samples after this is of that version.
with loaded as (
    update engines set state = 'ready', version = $2, load = load + 1, fence = $3, updated_at = now()
    where engine_id = $1 and fence <= $3
    returning engine_id, run, policy, load
)
insert into engine_loads (engine_id, load, run, policy, version) select engine_id, load, run, policy, $2 from loaded
returning load
