-- name: candidates
-- The rollouts of a step with the attempt that counts, and the reward by the run's own grader only.
-- $3: rewards by failure class; a failure of another class has none.
select r.rollout_id, r.final_attempt as attempt_id, r.group_number as "group", r.failure_class,
       case when r.failure_class is null then w.value else ($3::jsonb ->> r.failure_class)::float8 end as reward,
       coalesce(w.grader, 'agent') as grader
from rollouts r
left join rewards w on w.attempt_id = r.final_attempt and w.is_primary
     and w.grader = coalesce((select file ->> 'grader' from runs where run = $1), 'agent')
where r.run = rollouts_of_v1($1) and r.kind = 'train' and r.step = $2 and r.final_attempt is not null
order by r.group_number, r.index_in_group

-- name: delivered_generations
-- What the policy wrote in these attempts and the agent received, in order, where it came with token ids and logprobs.
select attempt_id, call_number, choice, prompt_token_ids as prompt_ids, token_ids, logprobs,
       case jsonb_typeof(sampling -> 'temperature') when 'number' then (sampling -> 'temperature')::float8 end
           as temperature
from generations
where day = any ($1::date[]) and attempt_id = any ($2::text[]) and delivered = 'yes' and model = $3
  and cardinality(prompt_token_ids) > 0 and cardinality(token_ids) > 0 and cardinality(logprobs) > 0
order by attempt_id, call_number, choice

-- name: generations_left_out
-- Answers of the policy that can't train. One that its agent cut off before the first token has nothing to train on.
select count(*) from generations
where day = any ($1::date[]) and attempt_id = any ($2::text[]) and delivered = 'yes' and model = $3
  and (complete or cardinality(token_ids) > 0)
  and 0 in (coalesce(cardinality(prompt_token_ids), 0), coalesce(cardinality(token_ids), 0),
            coalesce(cardinality(logprobs), 0))

-- name: days_of_step
select distinct day from rollouts where run = rollouts_of_v1($1) and kind = 'train' and step = $2

-- name: insert_step_rollouts
insert into step_rollouts (run, policy, step, rollout_id, attempt_id, group_number, reward, grader, advantage)
select $1, $2, $3, * from unnest($4::text[], $5::text[], $6::int[], $7::float8[], $8::text[], $9::float8[])

-- name: insert_training_row
insert into training_rows (run, policy, step, row_number, rollout_id, attempt_id, calls, prompt_ids, response_ids, mask,
                           advantage, weight, sampled_logprobs, temperature, group_number)
values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15)

-- name: training_rows_of
select row_number, rollout_id, attempt_id, calls, prompt_ids, response_ids, mask, advantage, weight, sampled_logprobs,
       temperature, group_number as "group"
from training_rows where run = $1 and policy = $2 and step = $3 order by row_number

-- name: set_trainer_logprobs
update training_rows set trainer_logprobs = $5 where run = $1 and policy = $2 and step = $3 and row_number = $4

-- name: step_ledgered
update steps set status = 'ledgered', batch_hash = $3, ledgered_at = now(), metrics = metrics || $4::jsonb
where run = $1 and step = $2 and status in ('planned', 'sampled')

-- name: step_recorded
-- No duration is negative, even if the clock was set back meanwhile.
update steps
set status = 'recorded', recorded_at = now(), metrics = metrics || $3::jsonb, seconds = seconds || $4::jsonb
where run = $1 and step = $2 and status = 'ledgered'
returning metrics, greatest(extract(epoch from sampled_at - planned_at), 0)::float8 as sampling,
          greatest(extract(epoch from recorded_at - planned_at), 0)::float8 as total

-- name: step_trained
update steps set metrics = metrics || $3::jsonb, unchanged = $4 where run = $1 and step = $2 and status = 'ledgered'

-- name: add_step_seconds
update steps set seconds = seconds || $3::jsonb where run = $1 and step = $2

-- name: get_step
select * from steps where run = $1 and step = $2

-- name: get_version
select * from policy_versions where run = $1 and policy = $2 and version = $3

-- name: newest_version
select * from policy_versions where run = $1 and policy = $2 order by version desc limit 1

-- name: newest_checkpoint
-- The newest full checkpoint up to a version; version 0 counts, it is the given model.
select * from policy_versions
where run = $1 and policy = $2 and version <= $3 and (checkpoint_path is not null or version = 0)
order by version desc limit 1

-- name: insert_version
insert into policy_versions (run, policy, version, fence, weights_hash, export_path, checkpoint_path, checkpointed_at)
values ($1, $2, $3, $4, $5, $6, $7, case when $7::text is null then null else now() end)
on conflict (run, policy, version) do nothing

-- name: fork_version
-- Counts a run that starts from a version, so that the version stays.
update policy_versions set forks = forks + 1
where run = $1 and policy = $2 and version = $3 and checkpoint_path is not null
returning *

-- name: checkpointed_versions
select version from policy_versions where run = $1 and policy = $2 and checkpoint_path is not null order by version

-- name: describe_files
update policy_versions
set export_digest = $4, checkpoint_digest = coalesce($5, checkpoint_digest), export_bytes = $6,
    checkpoint_bytes = greatest($7, checkpoint_bytes)
where run = $1 and policy = $2 and version = $3

-- name: replace_export
update policy_versions set weights_hash = $4, export_path = $5 where run = $1 and policy = $2 and version = $3

-- name: stored_versions
-- Versions of which something is stored, with the held-out score of those that were evaluated.
select v.version, v.forks, v.fence, case when v.export_deleted_at is null then v.export_path end as export_path,
       v.checkpoint_path, m.value as score
from policy_versions v left join metrics m on m.run = v.run and m.step = v.version and m.name = 'eval/score'
where v.run = $1 and v.policy = $2 and v.version > 0 and (v.export_deleted_at is null or v.checkpoint_path is not null)
order by v.version

-- name: forget_checkpoint
-- Null if a run was forked from it meanwhile: then its files are kept.
update policy_versions set checkpoint_path = null, checkpoint_deleted_at = now()
where run = $1 and policy = $2 and version = $3 and forks = 0
returning version

-- name: forget_export
update policy_versions set export_deleted_at = now() where run = $1 and policy = $2 and version = $3 and forks = 0
returning version

-- name: release_fork
-- A descendant does not need the version that it started from any more.
update policy_versions set forks = greatest(forks - 1, 0) where run = $1 and policy = $2 and version = $3

-- name: lineage
-- A run and its ancestors, nearest first; each made the versions after `after`.
with recursive line as (
    select run, parent_run, coalesce(parent_step, 0) as after, 0 as depth from runs where run = $1
    union all
    select r.run, r.parent_run, coalesce(r.parent_step, 0), l.depth + 1
    from line l join runs r on r.run = l.parent_run where l.after > 0
)
select run, after from line order by depth

-- name: take_lease
-- A new fence each time; a holder that is alive keeps others out until the lease ends.
insert into leases as held (name, policy, fence, holder, expires_at)
values ($1, $2, nextval('fences'), $3, now() + make_interval(secs => $4))
on conflict (name, policy) do update
set fence = nextval('fences'), holder = excluded.holder, expires_at = excluded.expires_at
where held.expires_at < now() or held.holder = excluded.holder
returning fence

-- name: renew_lease
update leases set expires_at = now() + make_interval(secs => $5)
where name = $1 and policy = $2 and holder = $3 and fence = $4
returning fence

-- name: release_lease
delete from leases where name = $1 and policy = $2 and holder = $3 and fence = $4

-- name: lock_lease
-- Held while a version is recorded, so that a lease that was lost meanwhile records nothing.
select fence, holder, expires_at > now() as alive from leases where name = $1 and policy = $2 for update

-- name: insert_metrics
insert into metrics (run, step, name, value)
select $1, $2, name, value from unnest($3::text[], $4::float8[]) as rows (name, value)
on conflict (run, step, name) do update set value = excluded.value
