-- name: lock_run
-- The run's row, held until the transaction ends.
select * from runs where run = $1 for update

-- name: get_run
select * from runs where run = $1

-- name: insert_run
insert into runs (run, file, file_hash, driver, total_steps, train_dataset, eval_dataset, resources_id, phase)
values ($1, $2, $3, $4, $5, $6, $7, $8, 'starting')

-- name: set_parent
update runs set parent_run = $2, parent_step = $3, replays = $4, resources_id = $5 where run = $1

-- name: take_over_run
-- Somebody else drives from here on: an older epoch's writes are refused.
update runs set epoch = epoch + 1, driver = $2, status = 'running', error = null, finished_at = null, phase = 'starting'
where run = $1 returning epoch

-- name: requeue_cancelled
-- Rollouts that ended with their run are open again; those that somebody cancelled by themselves are not.
update rollouts set status = 'requeuing', failure_class = null, failure = null, ended_at = null
where run = $1 and status = 'cancelled' and counted is null and failure = $2

-- name: requeue_cancelled_batch
-- The same for those that ended with a batch which somebody ended, and which begins anew.
update rollouts set status = 'requeuing', failure_class = null, failure = null, ended_at = null
where run = $1 and kind = $2 and step = $3 and batch = $4 and status = 'cancelled' and counted is null and failure = $5

-- name: cancel_open_rollouts
update rollouts set status = 'cancelled', failure_class = 'cancelled', failure = $2, ended_at = now()
where run = $1 and status not in ('succeeded', 'failed', 'cancelled')
returning rollout_id

-- name: cancel_open_inspections
update rollouts set status = 'cancelled', failure_class = 'cancelled', failure = $2, ended_at = now()
where run = $1 and kind = 'inspect' and status not in ('succeeded', 'failed', 'cancelled')
returning rollout_id

-- name: insert_dataset
insert into datasets (dataset_id, source, row_count) values ($1, $2, $3) on conflict do nothing

-- name: insert_tasks
insert into tasks (dataset_id, position, task)
select $1, ordinality - 1, task
from unnest($2::jsonb[]) with ordinality as rows (task, ordinality)
on conflict do nothing

-- name: get_dataset
select dataset_id, row_count from datasets where dataset_id = $1

-- name: insert_resources
insert into resources (resources_id, resources) values ($1, $2) on conflict do nothing

-- name: get_resources
select resources_id, resources from resources where resources_id = $1

-- name: last_recorded_step
-- 0 where no step is recorded yet; the evaluation of the given model is step 0 as well.
select coalesce(max(step), 0) from steps where run = $1 and status = 'recorded'

-- name: evaluations_of_run
select step, value from metrics where run = $1 and name = 'eval/reward' order by step

-- name: set_waiting
-- A run that waits no longer is back in the phase that it asked from.
update runs
set waiting_for = $2, phase = case when $2::text is not null then 'waiting' when phase = 'waiting' then $3 else phase end
where run = $1 and waiting_for is distinct from $2

-- name: set_phase
update runs set phase = $2, waiting_for = null where run = $1 and (phase is distinct from $2 or waiting_for is not null)

-- name: finish_run
update runs
set status = $2, error = $3, phase = 'finished', waiting_for = null, paused = false, finished_at = now()
where run = $1 and status = 'running'

-- name: set_paused
update runs set paused = $2, pause_reason = $3 where run = $1

-- name: set_stop
update runs set stop_after_step = $2 where run = $1

-- name: set_hyperparameters
update runs set hyperparameters = $2 where run = $1

-- name: set_run_concurrency
update runs set concurrency = $2 where run = $1

-- name: set_run_resources
update runs set resources_id = $2 where run = $1

-- name: audit_of_request
select * from audit where request_key = $1

-- name: insert_audit
insert into audit (run, rollout_id, actor, action, before, after, effective_step, refused, request_key)
values ($1, $2, $3, $4, $5, $6, $7, $8, $9)
on conflict (request_key) do nothing

-- name: running_runs
-- Runs that should have a driver; a new one is given time to show up in Temporal.
select run, epoch from runs where status = 'running' and created_at < now() - interval '10 seconds'

-- name: interrupt_run
with interrupted as (
    update runs set status = 'interrupted', error = $3, phase = 'interrupted', waiting_for = null
    where run = $1 and epoch = $2 and status = 'running'
    returning run, epoch
)
insert into audit (run, actor, action, before, after)
select run, 'relight', 'interrupt', '"running"', jsonb_build_object('status', 'interrupted', 'epoch', epoch)
from interrupted
returning run

-- name: audit_unasked_cancel
-- A cancel that came from Temporal itself, or from its command line, has nobody's name on it.
insert into audit (run, actor, action, before, after, request_key)
select $1, 'temporal', 'cancel', '"running"', jsonb_build_object('status', 'cancelled', 'epoch', $2::int),
       format('cancel/%s/%s', $1::text, $2::int)
where not exists (
    select from audit where run = $1 and action = 'cancel' and refused is null and (after ->> 'epoch')::int = $2)
on conflict (request_key) do nothing

-- name: all_open_batches
-- Batches that are not closed, of steps and evaluations alike.
select distinct kind, step, batch from rollouts
where run = $1 and counted is null and kind in ('train', 'eval')
order by kind, step, batch

-- name: open_batches
select distinct step, batch from rollouts
where run = $1 and kind = 'train' and counted is null
order by step, batch

-- name: set_total_steps
update runs set total_steps = $2 where run = $1
