-- Invariants of runs, steps, versions and the ledger: `relight store check`. Each returns no row if the invariant holds.
-- The comment under a name states the invariant; a row of the result breaks it.

-- name: check_ledger_repeats
-- No attempt is consumed by two steps of a policy, in whatever run but a replay.
select l.policy, l.attempt_id, array_agg(l.run || ' step ' || l.step order by l.run, l.step) as consumed_by
from step_rollouts l join runs u on u.run = l.run and not u.replays
group by l.policy, l.attempt_id having count(*) > 1

-- name: check_ledger_final_attempt
-- What a step consumed is the attempt that counts for its rollout.
select l.run, l.step, l.rollout_id, l.attempt_id, r.final_attempt
from step_rollouts l join rollouts r using (rollout_id)
where r.final_attempt is distinct from l.attempt_id

-- name: check_ledger_owner
-- A consumed attempt is one of its rollout's.
select l.run, l.step, l.rollout_id, l.attempt_id
from step_rollouts l left join attempts a using (attempt_id)
where a.rollout_id is distinct from l.rollout_id

-- name: check_ledger_ended_well
-- A consumed attempt ended well, or as a failure class that the step's plan gives a reward.
select l.run, l.step, l.rollout_id, l.attempt_id, a.status, a.failure_class
from step_rollouts l
join attempts a using (attempt_id)
left join steps s on s.run = l.run and s.step = l.step
where a.ended_at is null
   or a.status <> 'succeeded' and not coalesce(s.plan -> 'failures' -> 'rewards' ? a.failure_class, false)

-- name: check_ledger_reward
-- The ledger's reward is the one on record of the grader that it names.
select l.run, l.step, l.attempt_id, l.grader, l.reward, w.value as recorded
from step_rollouts l
join attempts a on a.attempt_id = l.attempt_id and a.status = 'succeeded'
left join rewards w on w.attempt_id = l.attempt_id and w.grader = l.grader and w.is_primary
where w.value is distinct from l.reward

-- name: check_ledger_place
-- A step consumes its own run's training rollouts of that very step; a replay consumes its parent's.
select l.run, l.step, l.rollout_id, r.run as planned_in, r.kind, r.step as planned_for
from step_rollouts l join rollouts r using (rollout_id)
where (r.run, r.kind, r.step) is distinct from (rollouts_of_v1(l.run), 'train', l.step)

-- name: check_ledger_first
-- A step that consumed attempts has its batch's hash, before its weights change.
select l.run, l.step, s.status, s.batch_hash, count(*) as consumed
from step_rollouts l left join steps s on s.run = l.run and s.step = l.step
where s.status is null or s.status not in ('ledgered', 'recorded') or s.batch_hash is null
group by l.run, l.step, s.status, s.batch_hash

-- name: check_ledger_missing
-- A recorded step consumed attempts, or is marked as unchanged.
select s.run, s.step, s.status
from steps s
where s.step > 0 and s.status = 'recorded' and not s.unchanged
  and not exists (select from step_rollouts l where l.run = s.run and l.step = s.step)

-- name: check_rows_ledgered
-- A training row is of an attempt that its step consumed for the same policy.
select t.run, t.policy, t.step, t.row_number, t.rollout_id, t.attempt_id
from training_rows t
where not exists (
    select from step_rollouts l
    where l.run = t.run and l.policy = t.policy and l.step = t.step
      and l.rollout_id = t.rollout_id and l.attempt_id = t.attempt_id)

-- name: check_rows_numbered
-- A step's training rows of a policy are numbered from 0 without gaps.
select run, policy, step, count(*) as number_of_rows, min(row_number) as first, max(row_number) as last
from training_rows group by run, policy, step
having min(row_number) <> 0 or max(row_number) <> count(*) - 1

-- name: check_rows_shape
-- Mask and logprobs of a training row are as long as its response, and both advantage and weight are numbers.
select run, policy, step, row_number, cardinality(response_ids) as tokens, cardinality(mask) as mask,
       cardinality(sampled_logprobs) as sampled, cardinality(trainer_logprobs) as trainer, advantage, weight
from training_rows
where cardinality(mask) <> cardinality(response_ids) or cardinality(sampled_logprobs) <> cardinality(response_ids)
   or cardinality(trainer_logprobs) <> cardinality(response_ids)
   or (array[advantage, weight] && array['NaN', 'Infinity', '-Infinity']::float8[])

-- name: check_rows_delivered
-- Training rows are made of calls whose answer the agent received.
select distinct t.run, t.step, t.attempt_id, g.call_number, g.delivered
from training_rows t
join rollouts r using (rollout_id)
join generations g on g.day = r.day and g.attempt_id = t.attempt_id and g.call_number = any (t.calls)
where g.delivered <> 'yes'

-- name: check_rows_model
-- Training rows of a policy are made of calls that it answered.
select distinct t.run, t.policy, t.step, t.attempt_id, g.call_number, g.model
from training_rows t
join rollouts r using (rollout_id)
join generations g on g.day = r.day and g.attempt_id = t.attempt_id and g.call_number = any (t.calls)
where g.model is distinct from t.policy

-- name: check_step_gaps
-- A run's steps follow one another without gaps.
select s.run, s.step from steps s
where s.step > (select min(step) from steps f where f.run = s.run and f.step > 0)
  and not exists (select from steps b where b.run = s.run and b.step = s.step - 1)

-- name: check_step_order
-- A step is ledgered only after the step before it is recorded.
select s.run, s.step, s.status, b.status as step_before
from steps s join steps b on b.run = s.run and b.step = s.step - 1
where s.step > 1 and s.status in ('ledgered', 'recorded') and b.status <> 'recorded'

-- name: check_step_closed
-- A step is sampled only when each of its rollouts has an attempt that counts.
select r.run, r.step, s.status, count(*) as open_rollouts
from rollouts r join steps s on s.run = r.run and s.step = r.step
where r.kind = 'train' and r.final_attempt is null and s.status <> 'planned'
group by r.run, r.step, s.status

-- name: check_step_planned
-- A run's training rollouts are of a step that is planned, and in one of its batches.
select r.run, r.step, r.rollout_id, r.batch, s.batches
from rollouts r left join steps s on s.run = r.run and s.step = r.step
where r.kind = 'train' and (s.step is null or r.batch is null or r.batch not between 0 and s.batches - 1)

-- name: check_step_version
-- A recorded step has made a version of each policy of its run.
select s.run, p.policy, s.step
from steps s left join (select distinct run, policy from policy_versions) p on p.run = s.run
where s.step > 0 and s.status = 'recorded'
  and not exists (select from policy_versions v where v.run = s.run and v.policy = p.policy and v.version = s.step)

-- name: check_version_step
-- A policy version comes out of a step whose ledger is written.
select v.run, v.policy, v.version, s.status
from policy_versions v
join runs u on u.run = v.run
left join steps s on s.run = v.run and s.step = v.version
where v.version > coalesce(u.parent_step, 0) and coalesce(s.status not in ('ledgered', 'recorded'), true)

-- name: check_version_gaps
-- The versions of a run's policy follow one another without gaps; a fork's, from the version that it started from.
select v.run, v.policy, v.version from policy_versions v join runs u on u.run = v.run
where v.version > greatest(u.parent_step, (
    select min(version) from policy_versions f where f.run = v.run and f.policy = v.policy))
  and not exists (
    select from policy_versions b where b.run = v.run and b.policy = v.policy and b.version = v.version - 1)

-- name: check_version_files
-- A published version names its export and the hash of its weights; a checkpoint says when it was complete.
select run, policy, version, weights_hash, export_path, checkpoint_path, checkpointed_at from policy_versions
where weights_hash = '' or export_path = '' or checkpoint_path = '' or checkpoint_path <> '' and checkpointed_at is null

-- name: check_version_fences
-- Later versions of a policy were made under later leases.
select v.run, v.policy, v.version, v.fence, b.fence as fence_before
from policy_versions v join policy_versions b on b.run = v.run and b.policy = v.policy and b.version = v.version - 1
where v.fence < b.fence

-- name: check_engine_version
-- An engine that takes calls holds a published version of its policy.
select e.engine_id, e.run, e.policy, e.state, e.version from engines e
where e.state = 'ready' and not exists (
    select from policy_versions v where v.run = e.run and v.policy = e.policy and v.version = e.version)

-- name: check_engine_loads
-- What an engine acknowledged was published.
select e.engine_id, e.load, e.run, e.policy, e.version from engine_loads e
where not exists (
    select from policy_versions v where v.run = e.run and v.policy = e.policy and v.version = e.version)

-- name: check_run_ended
-- A run has an end time exactly if it has ended.
select run, status, finished_at from runs
where (status in ('finished', 'failed', 'cancelled')) <> (finished_at is not null) and status <> 'interrupted'

-- name: check_run_finished
-- A finished run leaves no step unrecorded and no rollout of a plan open.
select u.run, s.step, s.status, null as rollout_id
from runs u join steps s on s.run = u.run and s.status <> 'recorded' where u.status = 'finished'
union all
select u.run, r.step, r.status, r.rollout_id
from runs u join rollouts r on r.run = u.run and r.kind in ('train', 'eval') and r.final_attempt is null
where u.status = 'finished'

-- name: check_run_data
-- The data sets of runs are complete.
select u.run, d.dataset_id, d.row_count, (select count(*) from tasks t where t.dataset_id = d.dataset_id) as stored
from runs u
left join datasets d on d.dataset_id in (u.train_dataset, u.eval_dataset)
where d.row_count is distinct from (select count(*) from tasks t where t.dataset_id = d.dataset_id)

-- name: check_metrics_finite
-- Metrics are finite numbers.
select run, step, name, value from metrics where value in ('NaN', 'Infinity', '-Infinity')
