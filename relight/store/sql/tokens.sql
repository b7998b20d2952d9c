-- Access tokens of the store service.

-- name: create_token
insert into tokens (token_hash, name, role, run, agents, expires_at)
values ($1, $2, $3, $4, $5, now() + $6::float8 * interval '1 s')
on conflict do nothing
returning name

-- name: list_tokens
select * from shown_tokens order by created_at desc, name

-- name: revoke_token
update tokens set revoked_at = now() where name = $1 and revoked_at is null
returning token_hash

-- name: find_token
select *, extract(epoch from expires_at - now())::float8 as seconds_left from shown_tokens where token_hash = $1

-- name: out_of_scope
-- Ids of a kind ($3) that nothing of the run ($1; null: any) and of the agents ($2; null: any) has. Runners are of no run
-- and no agent: ids of other processes. A queue is that of a run's agent or grader.
select given.id from unnest($4::text[]) as given (id)
where case $3::text
    when 'rollout' then not exists (
        select from rollouts r where rollout_id = given.id and ($1::text is null or run = $1) and is_of_agents_v1(r, $2::text[]))
    when 'attempt' then not exists (
        select from attempts join rollouts r using (rollout_id)
        where attempt_id = given.id and ($1::text is null or run = $1) and is_of_agents_v1(r, $2::text[]))
    when 'resources' then not exists (select from rollouts where resources_id = given.id and run = $1)
        and not exists (select from runs where resources_id = given.id and run = $1)
    when 'worker' then exists (select from workers where worker_id = given.id and kind <> 'runner')
    when 'queue' then not exists (
        select from runs, unnest(array[file ->> 'agent', file ->> 'grader']) as agent
        where run = $1 and coalesce(file ->> 'runner_queue', 'relight-runner') || '.' || agent = given.id)
    when 'command' then not exists (select from commands where command_id = given.id and run = $1)
    else true
end

-- name: register_runner_token
-- The token that runners of this store derive from the admin token.
insert into tokens (token_hash, name, role) values ($1, $2, 'runner')
on conflict do nothing
