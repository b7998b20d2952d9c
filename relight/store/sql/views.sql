-- name: view_runs
-- Newest first; $1 names one run, or null for all.
select r.*, r.file->>'agent' as agent, coalesce(r.file->'algorithm'->>'name', 'grpo') as algorithm,
       coalesce(s.step, 0) as step, s.reward, e.value as held_out, b.stored_bytes
from runs r
left join lateral (select coalesce(sum(case when export_deleted_at is null then export_bytes else 0 end
                                       + case when checkpoint_path is not null then checkpoint_bytes else 0 end), 0
                                  )::bigint as stored_bytes
                   from policy_versions where run = r.run and version > coalesce(r.parent_step, 0)) b on true
left join lateral (select step, (metrics->>'reward_mean')::float8 as reward from steps
                   where run = r.run and step > 0 and status = 'recorded' order by step desc limit 1) s on true
left join lateral (select value from metrics where run = r.run and name = 'eval/score' order by step desc limit 1) e on true
where $1::text is null or r.run = $1
order by r.created_at desc, r.run
limit $2

-- name: view_evaluations
select step, name, value from metrics
where run = $1 and name like 'eval/%'
order by step

-- name: view_rewards_by_step
-- Mean over the real rewards of each recorded step.
select step, (metrics->>'reward_mean')::float8 as reward from steps
where run = $1 and step > 0 and status = 'recorded' and metrics ? 'reward_mean' order by step

-- name: view_steps
-- Training steps after $2, oldest first; $3: only open (false) or recorded (true) ones, null for all.
select *, (metrics->>'reward_mean')::float8 as reward
from steps
where run = $1 and step > $2 and ($3::boolean is null or (status = 'recorded') = $3)
order by step
limit $4

-- name: view_counts
-- Numbers of the rollouts of steps $3 to $4 by status.
select step, status, failure_class, count(*) as number, sum(greatest(attempts - 1, 0)) as retried,
       sum(reward) as reward_sum, count(reward) as rewarded
from rollouts
where run = $1 and kind = $2 and step between $3 and $4
group by step, status, failure_class

-- name: view_open_evaluation
-- The newest version whose held-out rollouts are planned and whose result is not recorded.
select max(o.step) as version from rollouts o
where o.run = $1 and o.kind = 'eval'
  and not exists (select from metrics m where m.run = o.run and m.step = o.step and m.name like 'eval/%')

-- name: view_version_marks
select max(version) as published, max(version) filter (where checkpoint_path is not null) as checkpointed,
       coalesce(array_agg(version order by version) filter (where checkpoint_path is not null), '{}') as checkpoints
from policy_versions where run = $1 and policy = $2

-- name: view_versions
select policy, version, weights_hash, export_path, checkpoint_path, published_at, checkpointed_at, export_bytes,
       checkpoint_bytes, export_deleted_at, checkpoint_deleted_at
from policy_versions where run = $1 order by policy, version

-- name: view_engines
-- $1 names a run, or null for all. One that has ended shows the version that it held last.
select engine_id, host, run, policy, state, load, pid, updated_at,
       case when state in ('dead', 'stopped') then coalesce(version, (
           select l.version from engine_loads l
           where l.engine_id = e.engine_id and l.run = e.run and l.policy = e.policy
           order by load desc limit 1)) else version end as version
from engines e where $1::text is null or run = $1 order by engine_id

-- name: view_gpu_hosts
select host, run, task_queue, state, detail, heartbeat from gpu_hosts where $1::text is null or run = $1 order by host

-- name: view_workers
-- Without processes of the platform that stopped reporting long ago.
select worker_id, kind, host, pid, serves, status, doing, rollout_id, attempt_id, version, queues, memory_bytes, gpus,
       last_heartbeat, started_at,
       greatest(extract(epoch from now() - last_heartbeat), 0)::float8 as seconds_ago
from reported_workers
where kind = 'external' or last_heartbeat >= now() - make_interval(secs => $1)
order by kind, started_at, worker_id

-- name: view_rollouts
-- A page by id: a run's own ids sort by step, group and index.
select rollout_id, run, step, kind, batch, group_number, index_in_group, fill_up, status, failure_class, failure,
       reward, attempts, deaths, final_attempt, inspects, created_at, ended_at
from rollouts
where run = $1 and ($2::int is null or step = $2) and ($3::text is null or kind = $3)
  and ($4::text is null or status = $4) and ($5::text is null or failure_class = $5)
  and ($6::text is null or rollout_id > $6)
order by rollout_id
limit $7

-- name: view_rollout
select o.*, coalesce(o.input, t.task) as task
from rollouts o left join tasks t on t.dataset_id = o.dataset_id and t.position = o.position
where o.rollout_id = $1

-- name: view_inspections
select rollout_id from rollouts where inspects = $1 order by created_at, rollout_id

-- name: view_attempts
select a.*, (select count(distinct g.call_number) from generations g
             where g.day = $2 and g.attempt_id = a.attempt_id) as generations
from attempts a where a.rollout_id = $1 order by a.sequence_id

-- name: view_rewards
select attempt_id, grader, dimension, is_primary as primary, value, feedback, created_at from rewards
where rollout_id = $1 order by created_at, attempt_id, grader, is_primary desc, dimension

-- name: view_generations
-- $3: with the bodies of request and response.
select g.attempt_id, g.call_number, g.choice, g.sequence_id, g.response_id, g.route, g.sampling, g.seed, g.engine_id,
       g.model, g.version_start, g.version_end, g.finish_reason, g.complete, g.delivered, g.seconds, g.created_at,
       cardinality(g.prompt_token_ids) as prompt_tokens, cardinality(g.token_ids) as response_tokens,
       q.body as request, p.body as response
from generations g
join attempts a on a.attempt_id = g.attempt_id
left join bodies q on $3 and q.day = g.day and q.hash = g.request
left join bodies p on $3 and p.day = g.day and p.hash = g.response
where g.day = $2 and a.rollout_id = $1
order by a.sequence_id, g.call_number, g.choice

-- name: view_audit
select id, rollout_id, actor, action, before, after, effective_step, refused, created_at
from audit where run = $1 and id > $2 order by id limit $3
