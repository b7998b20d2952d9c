-- The preflight: rollouts before the first step.

-- name: step_was_planned
select exists (select from steps where run = $1 and step > $2)

-- name: preflight_rollouts
-- `calls`: all calls of the policy; `usable`: those with token ids and logprobs.
select r.rollout_id, r.mode, r.batch, r.index_in_group, r.position, r.status, r.failure_class, r.failure, r.reward,
       coalesce(g.calls, 0) as calls, coalesce(g.usable, 0) as usable
from rollouts r
left join lateral (
    select count(*) as calls,
           count(*) filter (where cardinality(g.prompt_token_ids) > 0 and cardinality(g.token_ids) > 0
                              and cardinality(g.logprobs) = cardinality(g.token_ids)) as usable
    from attempts a join generations g on g.day = r.day and g.attempt_id = a.attempt_id
    where a.rollout_id = r.rollout_id and g.model = $2
) g on true
where r.run = $1 and r.kind = 'preflight'
order by r.mode, r.index_in_group

-- name: longest_tasks
-- The longest task of a set, then the shortest, then one from the middle.
with sized as (
    select position, row_number() over (order by length(task::text) desc, position) as place, count(*) over () as number
    from tasks where dataset_id = $1 and position < $2
)
select distinct on (rank) position, rank from (
    select position, case when place = 1 then 0 when place = number then 1 else 2 end as rank, place from sized
    where place = 1 or place = number or place = (number + 1) / 2
) picked
order by rank, place

-- name: insert_preflight
insert into rollouts (rollout_id, run, step, kind, batch, group_number, index_in_group, dataset_id, position, mode,
                      resources_id, resources_version, config, seed_base, min_version, max_version)
values ($1, $2, $3, 'preflight', $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $3, $3)
on conflict do nothing

-- name: close_preflight
-- The preflight has ended: none of its rollouts is tried again.
update rollouts r
set final_attempt = coalesce((select attempt_id from attempts a where a.rollout_id = r.rollout_id
                        order by (a.status = 'succeeded') desc, a.sequence_id desc limit 1), 'none')
where run = $1 and kind = 'preflight' and final_attempt is null and status in ('succeeded', 'failed', 'cancelled')
