-- name: lock_step
select * from steps where run = $1 and step = $2 for update

-- name: last_planned_step
select step, plan from steps where run = $1 and step > 0 order by step desc limit 1

-- name: insert_step
insert into steps (run, step, status, plan, resources_id, resources_version, batches)
values ($1, $2, $3, $4, $5, $6, $7)
on conflict (run, step) do nothing returning *

-- name: insert_replayed_step
-- A step whose rollouts are its parent's: there is nothing to sample.
insert into steps (run, step, status, plan, resources_id, resources_version, batches, sampled_at)
values ($1, $2, 'sampled', $3, $4, $5, 0, now())
on conflict (run, step) do nothing returning *

-- name: insert_rollouts
-- One row for each rollout: parallel arrays of group, index, position and batch.
insert into rollouts (rollout_id, run, step, kind, batch, group_number, index_in_group, fill_up, dataset_id, position,
                      mode, resources_id, resources_version, config, seed_base, min_version, max_version)
select id, $2, $3, $4, batch, group_number, index_in_group, $5, $6, position, $7, $8, $9, $10,
       $11 || group_number || '/' || index_in_group, $12, $12
from unnest($1::text[], $13::int[], $14::int[], $15::int[], $16::int[])
    as places (id, group_number, index_in_group, position, batch)
on conflict do nothing

-- name: count_rollouts
select count(*) from rollouts where run = $1 and kind = $2 and step = $3

-- name: count_batches
select coalesce(max(batch) + 1, 0) from rollouts where run = $1 and kind = $2 and step = $3

-- name: close_lost
-- Open rollouts whose workflow ended without a result.
update rollouts
set status = 'failed', failure_class = 'infrastructure', failure = 'its workflow ended without a result', ended_at = now()
where run = $1 and kind = $2 and step = $3 and batch = $4
  and (group_number, index_in_group) in (select * from unnest($5::int[], $6::int[]))
  and status not in ('succeeded', 'failed', 'cancelled')
returning rollout_id

-- name: close_attempts_of
update attempts
set status = 'failed', failure_class = $2, message = $3, ended_at = now()
where rollout_id = any ($1::text[]) and ended_at is null

-- name: rollouts_left
-- What is left to run in a batch, with the number of the next try: tries that the platform failed don't count.
select group_number, index_in_group, position,
       coalesce((select max(a.try_number) from attempts a
                 where a.rollout_id = r.rollout_id and a.ended_at is not null
                   and a.failure_class is distinct from 'infrastructure'), 0) + 1 as next_try
from rollouts r
where run = $1 and kind = $2 and step = $3 and batch = $4 and status not in ('succeeded', 'failed', 'cancelled')
order by group_number, index_in_group

-- name: short_groups
-- Groups of a batch that lost members to the platform and may be filled up once more.
select group_number, min(position) as position, min(dataset_id) as dataset_id, max(index_in_group) as last_index,
       max(fill_up) as rounds, min(config::text)::jsonb as config, min(resources_id) as resources_id,
       min(resources_version) as resources_version,
       $5::int - count(*) filter (
           where failure_class is null or failure_class not in ('infrastructure', 'engine_error', 'grader_error')
       ) as lacking
from rollouts
where run = $1 and kind = $2 and step = $3 and batch = $4
group by group_number
having $5::int > count(*) filter (
           where failure_class is null or failure_class not in ('infrastructure', 'engine_error', 'grader_error'))
   and max(fill_up) < $6
order by group_number

-- name: close_batch
-- Writes which attempt of each rollout counts: the one that succeeded, else the last.
update rollouts r
set final_attempt = coalesce((
    select attempt_id from attempts a where a.rollout_id = r.rollout_id
    order by (a.status = 'succeeded') desc, a.sequence_id desc limit 1), 'none')
where run = $1 and kind = $2 and step = $3 and batch = $4 and final_attempt is null

-- name: batch_counts
select count(*) filter (where status = 'succeeded') as succeeded,
       count(*) filter (where status <> 'succeeded') as failed,
       coalesce(sum(greatest(attempts - 1, 0)), 0)::int as retried,
       count(*) filter (where final_attempt is null) as open,
       count(*) as total
from rollouts where run = $1 and kind = $2 and step = $3 and batch = $4

-- name: batch_failures
select failure_class, count(*) as number from rollouts
where run = $1 and kind = $2 and step = $3 and batch = $4 and failure_class is not null
group by failure_class

-- name: step_sampled
-- The step's rollouts are complete once every batch is closed.
update steps set status = 'sampled', sampled_at = now()
where run = $1 and step = $2 and status = 'planned'
  and not exists (select from rollouts where run = $1 and kind = 'train' and step = $2 and final_attempt is null)
returning step

-- name: evaluation_figures
-- Of the whole evaluation (source null), and of each data source that its tasks name, in so many characters that
-- a metric's name takes them.
-- $3: rewards by failure class, 0 for the others; $4: the reward with which a sample passes;
-- one without a reward has failed.
with ended as (
    select r.group_number, nullif(left(t.task ->> 'data_source', 200), '') as source, r.reward, r.status, r.created_at,
           r.ended_at,
           coalesce(r.reward, ($3::jsonb ->> r.failure_class)::float8, 0) as value
    from rollouts r left join tasks t on t.dataset_id = r.dataset_id and t.position = r.position
    where r.run = $1 and r.kind = 'eval' and r.step = $2
), by_task as (
    select source, group_number, count(*) as samples, sum(value) as value, sum(reward) as reward,
           count(reward) as rewarded, count(*) filter (where status <> 'succeeded') as failed,
           case when count(*) > 1 then stddev_pop(value) end as spread, coalesce(bool_or(reward >= $4), false) as passed,
           min(created_at) as created_at, max(ended_at) as ended_at
    from ended group by source, group_number
)
select source, count(*) as tasks, max(samples) as samples, sum(value) / sum(samples) as score,
       sum(reward) / nullif(sum(rewarded), 0) as reward, sum(rewarded)::int as rewarded, sum(failed)::int as failed,
       avg(spread) as spread, avg(passed::int)::float8 as pass_at_k,
       greatest(extract(epoch from max(ended_at) - min(created_at)), 0)::float8 as seconds
from by_task
group by grouping sets ((), (source))
having grouping(source) = 1 or source is not null
order by grouping(source) desc, source

-- name: insert_metric
insert into metrics (run, step, name, value) values ($1, $2, $3, $4) on conflict do nothing

-- name: cancel_rollout
update rollouts set status = 'cancelled', failure_class = 'cancelled', failure = $2, ended_at = now()
where rollout_id = $1 and status not in ('succeeded', 'failed', 'cancelled')
returning rollout_id

-- name: get_rollout_outcome
select rollout_id, status, failure_class, failure, reward, final_attempt, run, kind, step, batch, attempts, inspects
from rollouts where rollout_id = $1

-- name: requeue_rollout
update rollouts set status = 'requeuing', failure_class = null, failure = null, reward = null, ended_at = null
where rollout_id = $1 and status in ('failed', 'cancelled') and final_attempt is null
returning rollout_id

-- name: insert_inspection
-- A rollout of its own with the same task, resources, configuration and seeds, served by whatever version there is.
insert into rollouts (rollout_id, inspects, run, step, kind, dataset_id, position, input, mode, resources_id,
                      resources_version, config, seed_base)
select $1 || '.inspect-' || (select count(*) + 1 from rollouts where inspects = $1), $1, run, step, 'inspect',
       dataset_id, position, input, mode, resources_id, resources_version, config, seed_base
from rollouts where rollout_id = $1
returning rollout_id, config

-- name: insert_order
insert into outbox (workflow_type, workflow_id, task_queue, input) values ($1, $2, $3, $4)

-- name: requeue_failed
-- All that failed in batches that are open; $2 names one failure class, or null for all. Returns what they were.
with failed as (
    select rollout_id, step, failure_class from rollouts
    where run = $1 and status = 'failed' and final_attempt is null and kind not in ('inspect', 'external')
      and ($2::text is null or failure_class = $2)
    for update
)
update rollouts r
set status = 'requeuing', failure_class = null, failure = null, reward = null, ended_at = null
from failed where r.rollout_id = failed.rollout_id
returning r.rollout_id, failed.step, failed.failure_class
