-- Model calls as the gateway saw them.

-- name: enter_generations
select * from enter_generations_v1($1, $2)

-- name: taken_calls
-- Call numbers that are recorded already.
select distinct g.attempt_id, g.call_number, g.request_hash from generations g
where g.day = any ($1::date[])
  and (g.attempt_id, g.call_number) in (select * from unnest($2::text[], $3::int[]))

-- name: next_call_number
select coalesce(max(call_number), 0) + 1 from generations where day = $1 and attempt_id = $2

-- name: add_body
insert into bodies (day, hash, body) values ($1, $2, $3) on conflict do nothing

-- name: add_generation
insert into generations (
    day, rollout_id, attempt_id, call_number, choice, request_hash, route, request, response, prompt_token_ids,
    token_ids, logprobs, sampling, seed, engine_id, model, version_start, version_end, finish_reason, complete,
    delivered, seconds
) values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16,
          version_at_v1($15, $20), version_at_v1($15, $21), $17, $18, $19, $22)

-- name: undelivered_calls
select distinct on (g.call_number) g.call_number, g.request_hash, g.delivered, b.body as response
from generations g join bodies b on b.day = $1 and b.hash = g.response
where g.day = $1 and g.attempt_id = $2 and g.delivered in ('no', 'unknown')
order by g.call_number

-- name: add_call_failures
-- Of attempts that are open and whose token this is; the others are dropped.
with given as (
    select * from unnest($1::text[], $2::text[], $3::int[], $4::text[], $5::text[])
        as given(attempt_id, token_hash, call_number, request_hash, message)
), added as (
    insert into call_failures (day, attempt_id, call_number, request_hash, message)
    select r.day, a.attempt_id, given.call_number, given.request_hash, given.message
    from given join attempts a using (attempt_id, token_hash) join rollouts r using (rollout_id)
    where a.ended_at is null
    on conflict do nothing
    returning attempt_id
)
select touch_attempt_v1(a.rollout_id, a.attempt_id, a.fence)
from attempts a where a.attempt_id in (select attempt_id from added) order by a.rollout_id

-- name: mark_delivered
-- `yes` stays; marks of attempts that are over are dropped.
update generations g set delivered = given.delivered
from unnest($1::text[], $2::int[], $3::text[]) as given(attempt_id, call_number, delivered)
join attempts a using (attempt_id) join rollouts r using (rollout_id)
where a.ended_at is null and g.day = r.day and g.attempt_id = a.attempt_id and g.call_number = given.call_number
  and g.delivered <> 'yes' and g.delivered <> given.delivered
