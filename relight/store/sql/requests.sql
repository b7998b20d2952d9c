-- Commands that came over HTTP, until an orchestrator has done them.

-- name: insert_request
-- The same key twice is one command.
insert into commands (command_id, run, action, value, actor) values ($1, $2, $3, $4, $5)
on conflict (command_id) do nothing
returning command_id

-- name: answer_request
-- The result of a command of which the run's workflow has not been signalled yet.
update commands set result = $2 where command_id = $1

-- name: get_request
select * from commands where command_id = $1

-- name: made_by_request
-- The run that a fork or a replay has made, in the form of its answer.
select jsonb_build_object('run', r.parent_run, 'step', r.parent_step) as before, jsonb_build_object('run', r.run) as after,
       r.parent_step + 1 as effective_step
from commands c join runs r on r.run = c.value ->> 'name' and r.parent_run = c.run and r.created_at >= c.created_at
where c.command_id = $1

-- name: claim_requests
-- The oldest open command of each run, so that the commands of a run stay in order.
update commands set claimed_until = now() + make_interval(secs => $2), tries = tries + 1
where command_id in (
    select command_id from commands c
    where done_at is null and claimed_until <= now() and not exists (
        select from commands older
        where older.run = c.run and older.done_at is null
          and (older.created_at, older.command_id) < (c.created_at, c.command_id))
    order by created_at limit $1 for update skip locked)
returning *

-- name: finish_request
update commands
set done_at = now(), result = coalesce(result, $2), refused = case when result is null then $3 end, waiting_for = null
where command_id = $1 and done_at is null

-- name: postpone_request
update commands set claimed_until = now() + make_interval(secs => $3), waiting_for = $2
where command_id = $1 and done_at is null
