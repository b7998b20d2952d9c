-- name: lock_run
-- The run's row, held until the transaction ends.
select * from runs where run = $1 for update

-- name: get_run
select * from runs where run = $1

-- name: insert_run
insert into runs (run, file, driver, total_steps, train_dataset, eval_dataset, resources_id,
                  resources_version, phase, temporal_address, temporal_namespace)
values ($1, $2, $3, $4, $5, $6, $7, $8, 'starting', $9, $10)

-- name: set_parent
update runs set parent_run = $2, parent_step = $3, replays = $4, resources_id = $5,
    resources_version = $6 where run = $1

-- name: take_over_run
-- Another workflow drives from here on: an older epoch's writes are refused.
update runs set epoch = epoch + 1, driver = $2, status = 'running', error = null, finished_at = null, phase = 'starting',
    cancel_requested = null, drive_again_at = null, temporal_address = $3, temporal_namespace = $4
where run = $1 returning epoch

-- name: requeue_cancelled
-- Rollouts that ended with their run are opened again; those that were cancelled individually, or came from outside,
-- are not.
update rollouts set status = 'requeuing', failure_class = null, failure = null, ended_at = null
where run = $1 and kind <> 'external' and status = 'cancelled' and final_attempt is null and failure = $2

-- name: requeue_cancelled_batch
-- The same for those that ended with a batch which a client ended, and which begins anew.
update rollouts set status = 'requeuing', failure_class = null, failure = null, ended_at = null
where run = $1 and kind = $2 and step = $3 and batch = $4 and status = 'cancelled' and final_attempt is null and failure = $5

-- name: cancel_open_rollouts
update rollouts set status = 'cancelled', failure_class = 'cancelled', failure = $2, ended_at = now()
where run = $1 and status not in ('succeeded', 'failed', 'cancelled')
returning rollout_id

-- name: cancel_open_inspections
update rollouts set status = 'cancelled', failure_class = 'cancelled', failure = $2, ended_at = now()
where run = $1 and kind = 'inspect' and status not in ('succeeded', 'failed', 'cancelled')
returning rollout_id

-- name: end_outside_rollouts
select end_outside_rollouts_v1($1, $2)

-- name: insert_dataset
insert into datasets (dataset_id, source, row_count) values ($1, $2, $3) on conflict do nothing

-- name: insert_tasks
insert into tasks (dataset_id, position, task)
select $1, ordinality - 1, task::jsonb
from unnest($2::text[]) with ordinality as rows (task, ordinality)
on conflict do nothing

-- name: get_dataset
select dataset_id, row_count from datasets where dataset_id = $1

-- name: insert_resources
-- Resources that a client stored under this id stay as an older version.
insert into resources (resources_id, resources) values ($1, $2)
on conflict (resources_id) do update
set resources = excluded.resources, version = resources.version + 1, update_time = clock_timestamp()
returning version

-- name: get_resources
select resources_id, version, resources from resources where resources_id = $1

-- name: last_recorded_step
-- 0 where no step is recorded yet; the evaluation of the given model is step 0 as well.
select coalesce(max(step), 0) from steps where run = $1 and status = 'recorded'

-- name: evaluations_of_run
select step, value from metrics where run = $1 and name = 'eval/score' order by step

-- name: newest_evaluation
-- Also where all of its rollouts failed, so that it has no reward.
select max(step) from metrics where run = $1 and name = 'eval/failed'

-- name: set_waiting
-- A run that stops waiting returns to the phase in which it began to wait.
update runs
set waiting_for = $2, phase = case when $2::text is not null then 'waiting' when phase = 'waiting' then $3 else phase end
where run = $1 and waiting_for is distinct from $2

-- name: set_phase
update runs set phase = $2, waiting_for = null where run = $1 and (phase is distinct from $2 or waiting_for is not null)

-- name: finish_run
update runs
set status = $2, error = $3, phase = 'finished', waiting_for = null, paused = false, finished_at = now(),
    cancel_requested = case when $2 = 'cancelled' then coalesce(cancel_requested, now()) end, drive_again_at = null
where run = $1

-- name: set_paused
update runs set paused = $2, pause_reason = $3 where run = $1

-- name: request_cancel
update runs set cancel_requested = now(), phase = 'cancelling', waiting_for = null, drive_again_at = null where run = $1

-- name: set_stop
update runs set stop_after_step = $2 where run = $1

-- name: set_hyperparameters
update runs set hyperparameters = $2 where run = $1

-- name: set_run_concurrency
update runs set concurrency = $2 where run = $1

-- name: set_run_resources
update runs set resources_id = $2, resources_version = $3 where run = $1

-- name: audit_of_request
-- What was done before for a request. A resume that came over HTTP may have been done by a workflow that drives the run
-- again: the row of that one's epoch says so, unless there was a pause, which is lifted by itself.
select before, after, effective_step, refused, id from audit where request_key = $1
union all
select a.before, a.after, a.effective_step, a.refused, a.id
from commands c join audit a on a.run = c.run
where $1 = 'update/' || c.command_id and c.command_id = substr($1, 8)
  and c.action = 'resume' and a.action = 'resume' and a.request_key like 'epoch/%' and a.created_at >= c.created_at
  and a.before -> 'paused' is null
order by id limit 1

-- name: insert_audit
insert into audit (run, rollout_id, actor, action, before, after, effective_step, refused, request_key)
values ($1, $2, $3, $4, $5, $6, $7, $8, $9)
on conflict (request_key) do nothing

-- name: watched_runs
-- Runs that should have a workflow, a new one with time to show up in Temporal, and those that may need another one.
select * from runs
where (status = 'running' and created_at < now() - interval '10 seconds')
   or (status in ('running', 'interrupted') and cancel_requested is not null)
   or (status = 'interrupted' and drive_again_at <= now())

-- name: interrupt_run
-- No workflow drives the run. $4: it lost its driver by no client's hand, and is driven again after $5, in seconds, by
-- how often that was done within the hour; so often at most.
with past as (
    select count(*)::int as number, min(created_at) + interval '1 hour' as free from audit
    where run = $1 and action = 'drive_again' and created_at > now() - interval '1 hour'
), interrupted as (
    update runs set status = 'interrupted', error = $3, phase = 'interrupted', waiting_for = null,
        drive_again_at = case when $4 and number < cardinality($5::float8[])
                              then now() + make_interval(secs => ($5::float8[])[number + 1])
                              when $4 then free end
    from past
    where run = $1 and epoch = $2 and status in ('running', 'interrupted') and cancel_requested is null
    returning run, epoch, drive_again_at
)
insert into audit (run, actor, action, before, after)
select run, 'relight', 'interrupt', '"running"',
       jsonb_build_object('status', 'interrupted', 'epoch', epoch, 'reason', $3::text, 'drive_again_at', drive_again_at)
from interrupted
returning run

-- name: drive_again
-- Null where another orchestrator does it, or it was done $3 times within the hour. Should the new workflow be lost
-- before it has begun, the next one follows.
with due as (
    update runs set drive_again_at = now() + interval '1 hour' / $3::int
    where run = $1 and epoch = $2 and status = 'interrupted' and drive_again_at <= now() and cancel_requested is null
      and (select count(*) from audit
           where run = $1 and action = 'drive_again' and created_at > now() - interval '1 hour') < $3::int
    returning run, epoch
)
insert into audit (run, actor, action, before, after)
select run, 'relight', 'drive_again', '"interrupted"', jsonb_build_object('epoch', epoch) from due
returning run

-- name: audit_unasked_cancel
-- A cancel that came from Temporal itself, or from its command line, has no actor.
insert into audit (run, actor, action, before, after, request_key)
select $1, 'temporal', 'cancel', '"running"', jsonb_build_object('status', 'cancelled', 'epoch', $2::int),
       format('cancel/%s/%s', $1::text, $2::int)
where not exists (
    select from audit where run = $1 and action = 'cancel' and refused is null and (after ->> 'epoch')::int = $2)
on conflict (request_key) do nothing

-- name: all_open_batches
-- Batches that are not closed, of steps and evaluations alike.
select distinct kind, step, batch from rollouts
where run = $1 and final_attempt is null and kind in ('train', 'eval')
order by kind, step, batch

-- name: open_batches
select distinct step, batch from rollouts
where run = $1 and kind = 'train' and final_attempt is null
order by step, batch

-- name: set_total_steps
update runs set total_steps = $2 where run = $1
