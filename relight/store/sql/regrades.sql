-- Rewards that a grader gives afterwards: rows of their own, beside those that were trained on.

-- name: count_ungraded
-- Attempts that count, ended well, and have no reward by this grader; $3 names a step, or null for all.
select count(*) from rollouts r
where r.run = $1 and r.status = 'succeeded' and r.final_attempt is not null and ($3::int is null or r.step = $3)
  and not exists (select from rewards w where w.attempt_id = r.final_attempt and w.grader = $2)

-- name: list_ungraded
-- A page of them, in the order of the rollouts' ids.
select r.rollout_id, r.final_attempt as attempt_id from rollouts r
where r.run = $1 and r.status = 'succeeded' and r.final_attempt is not null and ($3::int is null or r.step = $3)
  and r.rollout_id > $4
  and not exists (select from rewards w where w.attempt_id = r.final_attempt and w.grader = $2)
order by r.rollout_id
limit $5

-- name: insert_rewards
insert into rewards (rollout_id, attempt_id, value, dimension, is_primary, feedback, grader)
select rollout_id, attempt_id, value, left(dimension, 200), is_primary, feedback, $1::text
from unnest($2::text[], $3::text[], $4::float8[], $5::text[], $6::boolean[], $7::text[])
    as given (rollout_id, attempt_id, value, dimension, is_primary, feedback)
on conflict do nothing
