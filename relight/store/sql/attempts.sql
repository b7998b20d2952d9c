-- Opening, finishing and keeping attempts alive. The rules are functions, in schema/07_attempts.sql.

-- name: open_attempt
-- `policy`: its model calls are served by the engines of its run.
with opened as materialized (
    select open_attempt_v1($1, $2, $3, $4, $5, $6) as answer
)
select answer, run_has_engines_v1(answer #>> '{attempt,run}') as policy from opened

-- name: finish_attempt
select finish_attempt_v1($1)

-- name: await_grading
select await_grading_v1($1)

-- name: transcript
select r.day, coalesce(t.task, r.input) as task, a.output,
       case when a.ended_at is not null then outcome_v1(a) end as outcome
from attempts a
join rollouts r using (rollout_id)
left join tasks t on t.dataset_id = r.dataset_id and t.position = r.position
where a.attempt_id = $1

-- name: heartbeat
update attempts set last_heartbeat = clock_timestamp(), worker_id = $3
where attempt_id = $1 and fence = $2 and (ended_at is null) is true  -- by the key, see schema/07_attempts.sql
returning attempt_id

-- name: rollout_of_attempt
select rollout_id from attempts where attempt_id = $1

-- name: pin_of_attempt
select rollout_id, r.resources_id, r.resources_version, run_has_engines_v1(r.run) as policy
from attempts join rollouts r using (rollout_id)
where attempt_id = $1

-- name: call_context
-- Everything that the gateway needs to serve an attempt's calls. `run`: whose engines serve them.
select a.token_hash, a.try_number, may_call_v1(r, a) as alive,
       case when run_has_engines_v1(r.run) then r.run end as run, r.day,
       coalesce(r.seed_base, r.rollout_id) as seed_base, r.min_version, r.max_version,
       sampling_v1(r) as sampling,
       (select jsonb_build_object('algorithm', x.numbers -> 'algorithm', 'verl', x.numbers -> 'verl')
        from (select coalesce((select plan from steps s where s.run = r.run and s.step = r.step),
                              (select file from runs where run = r.run)) as numbers) x) as numbers,
       coalesce((select (file ->> 'engine_wait_seconds')::double precision from runs where run = r.run), 300)
           as engine_wait_seconds,
       coalesce((select file -> 'upstreams' from runs where run = r.run), '[]') as upstreams,
       coalesce((select file -> 'models' from runs where run = r.run), '{}') as models,
       coalesce((select resources from resource_versions v
                 where v.resources_id = r.resources_id and v.version = r.resources_version), '{}') as resources,
       (select coalesce(max(call_number), 0) + 1 from generations g where g.day = r.day and g.attempt_id = a.attempt_id)
           as next_call_number
from attempts a join rollouts r using (rollout_id)
where a.attempt_id = $1 and a.rollout_id = $2

-- name: attempts_that_may_call
-- Those of these attempts whose token is valid for model calls.
select attempt_id from attempts a join rollouts r using (rollout_id)
where attempt_id = any ($1::text[]) and may_call_v1(r, a)

-- name: attempt_key
-- The key from which tokens are derived, created once.
with made as (
    insert into secrets (name, value) values ('attempt_key', $1) on conflict do nothing returning value
)
select value from made union all select value from secrets where name = 'attempt_key' limit 1
