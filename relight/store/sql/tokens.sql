-- Tokens of the store service that are rows.

-- name: create_token
insert into tokens (token_hash, name, role, run, expires_at)
values ($1, $2, $3, $4, now() + $5::float8 * interval '1 s')
on conflict do nothing
returning name

-- name: list_tokens
select * from shown_tokens order by created_at desc, name

-- name: revoke_token
update tokens set revoked_at = now() where name = $1 and revoked_at is null
returning token_hash

-- name: find_token
select *, extract(epoch from expires_at - now())::float8 as seconds_left from shown_tokens where token_hash = $1

-- name: not_of_run
-- Ids of a kind ($2) that nothing of the run ($1) has.
select given.id from unnest($3::text[]) as given (id)
where case $2::text
    when 'rollout' then not exists (select from rollouts where rollout_id = given.id and run = $1)
    when 'attempt' then not exists (
        select from attempts join rollouts using (rollout_id) where attempt_id = given.id and run = $1)
    when 'resources' then not exists (select from rollouts where resources_id = given.id and run = $1)
    when 'command' then not exists (select from commands where command_id = given.id and run = $1)
    else true
end
