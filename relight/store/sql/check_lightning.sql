-- Invariants of the queue: `relight store check`. Each returns no row if the invariant holds.

-- name: check_rollouts_queue
-- A rollout is in the queue exactly while it waits to be claimed.
select rollout_id, status, dispatched_by, queue_order from rollouts
where (queue_order is not null) <> (dispatched_by = 'queue' and status in ('queuing', 'requeuing'))

-- name: check_rollouts_dispatched
-- What a run plans is dispatched by a workflow.
select rollout_id, run, kind from rollouts where dispatched_by = 'queue' and kind <> 'external'

-- name: check_rollouts_outside
-- A rollout from outside is in no step of its run, is not counted, and is over once its run is.
select r.rollout_id, r.run, r.step, r.batch, r.final_attempt, r.status, u.status as run_status
from rollouts r left join runs u using (run)
where r.kind = 'external' and (
    (r.step, r.batch, r.group_number, r.min_version, r.max_version, r.final_attempt) is distinct from
        (null::int, null::int, null::int, null::int, null::int, null::text)
    or u.status in ('finished', 'failed', 'cancelled') and not is_over_v1(r.status))
