-- Runs that were requested over HTTP.

-- name: lock_request
select * from commands where command_id = $1 for update

-- name: renew_request
-- Requested again after it was refused.
update commands set value = $2, actor = $3, created_at = now(), claimed_until = now(), tries = 0, waiting_for = null,
    done_at = null, refused = null, result = null
where command_id = $1
