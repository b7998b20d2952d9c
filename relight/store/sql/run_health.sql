-- The health of runs: failures of a step or an evaluation, equal rewards, runs without progress.

-- name: ended_by_class
-- A step's or evaluation's rollouts that have ended, by class; '' for those that ended well.
select coalesce(failure_class, '') as failure_class, count(*) as number
from rollouts
where run = $1 and kind = $2 and step = $3 and status in ('succeeded', 'failed', 'cancelled')
group by 1

-- name: example_failure
-- An example: a rollout of the most frequent of these classes.
select rollout_id, failure_class, coalesce(failure, 'no message') as failure
from rollouts r
where run = $1 and kind = $2 and step = $3 and failure_class = any ($4::text[])
order by (select count(*) from rollouts o
          where o.run = $1 and o.kind = $2 and o.step = $3 and o.failure_class = r.failure_class) desc,
         rollout_id
limit 1

-- name: retries_asked
-- How often operators retried failed rollouts of a step.
select count(*) from audit
where run = $1 and effective_step = $2 and action in ('retry_rollout', 'retry_failed') and refused is null

-- name: set_warning
-- Set or, with null, drop a warning; returns all warnings where that changed anything.
update runs set warnings = case when $3::text is null then warnings - $2::text
                                else warnings || jsonb_build_object($2::text, $3::text) end
where run = $1 and warnings ->> $2 is distinct from $3
returning warnings

-- name: groups_of_equal_rewards
-- Steps $2 to $3: groups that can be compared, and those of them whose rewards are all equal.
-- $4: rewards by failure class.
select step, count(*) as groups, count(*) filter (where lowest = highest) as flat
from (
    select step, min(value) as lowest, max(value) as highest
    from (
        select step, group_number,
               case when failure_class is null then reward else ($4::jsonb ->> failure_class)::float8 end as value
        from rollouts where run = $1 and kind = 'train' and step between $2 and $3 and final_attempt is not null
    ) given
    where value is not null
    group by step, group_number having count(*) >= 2
) grouped
group by step

-- name: runs_without_progress
-- Runs that should make progress, and the seconds since one of their rollouts, steps or evaluations ended or a command came.
select u.run, u.epoch, u.file -> 'failures' as failures, u.phase, u.warnings,
       extract(epoch from now() - moved.at)::float8 as seconds, moved.at as moved_at
from runs u
cross join lateral (select coalesce(max(step), 0) as step from steps where run = u.run) newest
cross join lateral (
    select greatest(
        u.created_at,
        (select max(greatest(planned_at, sampled_at, ledgered_at, recorded_at)) from steps
         where run = u.run and step >= newest.step - 1),
        (select max(ended_at) from rollouts
         where run = u.run and kind in ('train', 'eval', 'preflight') and step >= newest.step - 1),
        (select max(created_at) from rollouts
         where run = u.run and kind in ('eval', 'preflight') and step >= newest.step - 1),
        (select max(created_at) from metrics where run = u.run and step >= newest.step - 1),
        (select created_at from audit where run = u.run order by id desc limit 1)
    ) as at
) moved
where u.status = 'running' and not u.paused and u.waiting_for is null

-- name: under_way
-- The oldest open attempt at what a run planned, and how many there are.
select a.rollout_id, extract(epoch from now() - a.started_at)::float8 as seconds, a.worker_id,
       count(*) over () as number
from attempts a join rollouts r using (rollout_id)
where r.run = $1 and r.kind <> 'external' and a.ended_at is null and r.status in ('preparing', 'running')
order by a.started_at limit 1
