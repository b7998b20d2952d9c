-- Commands that came over HTTP, until an orchestrator has done them.

-- name: insert_request
-- The same key twice is one command.
insert into commands (command_id, run, action, value, actor) values ($1, $2, $3, $4, $5)
on conflict (command_id) do nothing

-- name: get_request
select * from commands where command_id = $1

-- name: claim_requests
-- The oldest open command of each run: what one run is told stays in order.
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
update commands set done_at = now(), result = $2, refused = $3, waiting_for = null
where command_id = $1 and done_at is null

-- name: postpone_request
update commands set claimed_until = now() + make_interval(secs => $3), waiting_for = $2
where command_id = $1 and done_at is null
