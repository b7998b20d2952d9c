-- Invariants of rollouts, attempts, model calls and spans: `relight store check`. Each returns no row if it holds.
-- Statuses of rollouts that no run planned (`external`) are set by their owner, so some rules leave these out. Rollouts
-- of kind `algorithm` are the record of an algorithm's own calls: they have no task and no reward.

-- name: check_attempts_open
-- A rollout has at most one open attempt.
select rollout_id, array_agg(attempt_id order by sequence_id) as open_attempts
from attempts where ended_at is null group by rollout_id having count(*) > 1

-- name: check_attempts_newest
-- An open attempt is its rollout's newest.
select a.rollout_id, a.attempt_id, a.sequence_id from attempts a
where a.ended_at is null and exists (
    select from attempts n where n.rollout_id = a.rollout_id and n.sequence_id > a.sequence_id)

-- name: check_attempts_owner
-- An attempt belongs to a rollout.
select a.attempt_id, a.rollout_id from attempts a
where not exists (select from rollouts r where r.rollout_id = a.rollout_id)

-- name: check_attempts_numbered
-- A rollout's attempts are numbered from 1 without gaps, and counted.
select r.rollout_id, r.attempts as counted, count(a.attempt_id) as found, max(a.sequence_id) as last
from rollouts r left join attempts a using (rollout_id)
group by r.rollout_id
having r.attempts <> count(a.attempt_id) or coalesce(max(a.sequence_id), 0) <> count(a.attempt_id)

-- name: check_attempts_fences
-- A newer attempt has a newer fence.
select a.rollout_id, a.attempt_id, a.fence, n.attempt_id as newer, n.fence as newer_fence
from attempts a join attempts n on n.rollout_id = a.rollout_id and n.sequence_id = a.sequence_id + 1
where n.fence <= a.fence

-- name: check_attempts_tokens
-- No two attempts share a token.
select token_hash, array_agg(attempt_id) as attempts from attempts
where token_hash <> '' group by token_hash having count(*) > 1

-- name: check_attempts_ended
-- An attempt has a final status exactly when it has ended.
select a.attempt_id, r.kind, a.status, a.ended_at
from attempts a join rollouts r using (rollout_id)
where a.ended_at is not null and a.status in ('preparing', 'running')
   or a.ended_at is null and (a.status in ('succeeded', 'failed')
                              or r.kind <> 'external' and a.status in ('timeout', 'unresponsive'))

-- name: check_attempts_class
-- An attempt of a plan has a failure class exactly when it failed.
select a.attempt_id, a.status, a.failure_class
from attempts a join rollouts r using (rollout_id)
where r.kind <> 'external' and a.ended_at is not null and (a.status = 'succeeded') = (a.failure_class is not null)

-- name: check_attempts_reward
-- An attempt of a plan that ended well has a reward, and it is on record.
select a.attempt_id, a.reward from attempts a join rollouts r using (rollout_id)
where r.kind not in ('external', 'algorithm') and a.status = 'succeeded'
  and not exists (select from rewards w where w.attempt_id = a.attempt_id and w.value = a.reward and w.is_primary)

-- name: check_rewards_finite
-- Rewards are finite numbers, in every table.
select place, id, value from (
    select 'rollouts' as place, rollout_id as id, reward as value from rollouts
    union all select 'attempts', attempt_id, reward from attempts
    union all select 'rewards', attempt_id, value from rewards
    union all select 'step_rollouts', attempt_id, reward from step_rollouts
    union all select 'step_rollouts', attempt_id, advantage from step_rollouts
) found where value in ('NaN', 'Infinity', '-Infinity')

-- name: check_rewards_owner
-- A reward is of an attempt of its rollout.
select w.rollout_id, w.attempt_id, w.grader
from rewards w left join attempts a using (attempt_id)
where a.rollout_id is distinct from w.rollout_id

-- name: check_rollouts_ended
-- A rollout has an end exactly when its status is final.
select rollout_id, status, ended_at from rollouts
where (status in ('succeeded', 'failed', 'cancelled')) <> (ended_at is not null)

-- name: check_rollouts_over
-- A rollout of a plan that is over has no attempt that was open before it ended.
select r.rollout_id, r.status, a.attempt_id
from rollouts r join attempts a using (rollout_id)
where r.kind <> 'external' and r.status in ('succeeded', 'failed', 'cancelled') and a.ended_at is null
  and a.started_at < r.ended_at

-- name: check_rollouts_under_way
-- A rollout of a plan that is under way has an open attempt, one that is queued has had none.
select r.rollout_id, r.status, r.attempts from rollouts r
where r.kind <> 'external' and (
    r.status in ('preparing', 'running') and not exists (
        select from attempts a where a.rollout_id = r.rollout_id and a.ended_at is null)
    or r.status = 'queuing' and exists (select from attempts a where a.rollout_id = r.rollout_id))

-- name: check_rollouts_succeeded
-- A rollout of a plan that succeeded has an attempt that ended well, with the same reward.
select r.rollout_id, r.reward from rollouts r
where r.kind <> 'external' and r.status = 'succeeded' and not exists (
    select from attempts a
    where a.rollout_id = r.rollout_id and a.status = 'succeeded' and a.reward is not distinct from r.reward)

-- name: check_rollouts_class
-- A rollout of a plan says why it failed, and only then.
select rollout_id, status, failure_class from rollouts
where kind <> 'external' and (status in ('failed', 'cancelled')) <> (failure_class is not null)

-- name: check_rollouts_final_attempt
-- The attempt that counts is one of the rollout's, and has ended.
select r.rollout_id, r.final_attempt, a.status
from rollouts r left join attempts a on a.attempt_id = r.final_attempt and a.rollout_id = r.rollout_id
where r.final_attempt is not null and r.final_attempt <> 'none' and a.ended_at is null

-- name: check_rollouts_without_attempt
-- `final_attempt` is `none` only if no attempt had begun by the end of the rollout.
select r.rollout_id, a.attempt_id from rollouts r join attempts a using (rollout_id)
where r.final_attempt = 'none' and a.started_at < r.ended_at

-- name: check_rollouts_task
-- The task of a planned rollout is in the store, and so are its resources.
select r.rollout_id, r.dataset_id, r.position, r.resources_id from rollouts r
where r.kind not in ('external', 'algorithm') and (
    not exists (select from tasks t where t.dataset_id = r.dataset_id and t.position = r.position)
    or r.resources_id is not null and not exists (
        select from resource_versions v where v.resources_id = r.resources_id and v.version = r.resources_version))

-- name: check_generations_owner
-- A model call belongs to an attempt of its rollout, and is stored under that rollout's day.
select g.day, g.rollout_id, g.attempt_id, g.call_number, g.choice
from generations g
left join attempts a using (attempt_id)
left join rollouts r on r.rollout_id = a.rollout_id
where (a.rollout_id, r.day) is distinct from (g.rollout_id, g.day)

-- name: check_generations_bodies
-- Request and answer are stored for every model call.
select g.day, g.attempt_id, g.call_number, g.choice from generations g
where not exists (select from bodies b where b.day = g.day and b.hash = g.request)
   or not exists (select from bodies b where b.day = g.day and b.hash = g.response)

-- name: check_generations_tokens
-- A call's sampled tokens and their logprobs are equally many.
select day, attempt_id, call_number, choice, cardinality(token_ids) as tokens, cardinality(logprobs) as logprobs
from generations where cardinality(token_ids) <> cardinality(logprobs)

-- name: check_generations_versions
-- The policy version of a call is one that was published to an engine, and never falls while the call lasts.
select g.day, g.attempt_id, g.call_number, g.engine_id, g.version_start, g.version_end
from generations g
where g.version_end < g.version_start
   or g.version_end is not null and not exists (
       select from engine_loads e where e.engine_id = g.engine_id and e.version = g.version_end)

-- name: check_generations_settled
-- Whether an answer arrived is decided once its attempt has ended by itself.
select g.day, g.attempt_id, g.call_number
from generations g join attempts a using (attempt_id)
where g.delivered = 'unknown' and a.ended_at is not null
  and coalesce(a.failure_class, '') not in ('infrastructure', 'cancelled')

-- name: check_failures_owner
-- A call that the platform failed belongs to an attempt, and is stored under its rollout's day.
select f.day, f.attempt_id, f.call_number
from call_failures f
left join attempts a using (attempt_id)
left join rollouts r on r.rollout_id = a.rollout_id
where r.day is distinct from f.day

-- name: check_spans_owner
-- A span belongs to an attempt of its rollout, and is stored under that rollout's day.
select s.day, s.rollout_id, s.attempt_id, s.span_id
from spans s
left join attempts a using (attempt_id)
left join rollouts r on r.rollout_id = a.rollout_id
where (a.rollout_id, r.day) is distinct from (s.rollout_id, s.day)

-- name: check_sequence
-- A rollout's next span or model call gets a number above all that were given.
select r.rollout_id, r.next_sequence, found.last
from rollouts r
join (
    select rollout_id, max(sequence_id) as last
    from (select rollout_id, sequence_id from spans union all select rollout_id, sequence_id from generations) numbered
    group by rollout_id
) found using (rollout_id)
where found.last >= r.next_sequence

-- name: check_sequence_repeats
-- No two spans or model calls of a planned rollout share a number.
select n.rollout_id, n.sequence_id, count(*) as times
from (
    select rollout_id, sequence_id from spans union all
    select rollout_id, sequence_id from generations where sequence_id is not null
) n
join rollouts r on r.rollout_id = n.rollout_id and r.kind <> 'external'
group by n.rollout_id, n.sequence_id having count(*) > 1

-- name: check_spans_bodies
-- The bodies that a span refers to are stored.
select s.day, s.rollout_id, s.attempt_id, s.span_id, digest #>> '{}' as body
from spans s cross join lateral jsonb_path_query(s.bodies, 'strict $.** ? (@.type() == "string")') as digest
where s.bodies is not null
  and not exists (select from bodies b where b.day = s.day and b.hash = decode(digest #>> '{}', 'hex'))

-- name: check_outbox_once
-- A workflow that has not been started is in the outbox once.
select workflow_id, count(*) as entries from outbox where started_at is null group by workflow_id having count(*) > 1

-- name: check_outbox_rollout
-- A rollout's workflow in the outbox is of a rollout that exists.
select o.id, o.workflow_id from outbox o
where o.workflow_type = 'RolloutWorkflow' and o.started_at is null and o.workflow_id like 'rollout/%'
  and not exists (select from rollouts r where workflow_of_v1(r.rollout_id) = o.workflow_id)

-- name: check_leases_fences
-- No two leases have the same fence.
select fence, array_agg(name || ' of ' || policy) as leases from leases group by fence having count(*) > 1
