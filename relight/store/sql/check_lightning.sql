-- Invariants of the queue: `relight store check`. Each returns no row when all is well.

-- name: check_rollouts_queue
-- A rollout stands in the queue exactly while it waits there to be claimed.
select rollout_id, status, dispatched_by, queue_order from rollouts
where (queue_order is not null) <> (dispatched_by = 'queue' and status in ('queuing', 'requeuing'))

-- name: check_rollouts_dispatched
-- What a run plans is dispatched by a workflow.
select rollout_id, run, kind from rollouts where dispatched_by = 'queue' and (kind <> 'external' or run is not null)
