-- Access tokens beside the admin token: each with a role, an expiry, and a run or all of them.

create table tokens (
    token_hash text primary key,                      -- SHA-256 hex; the token itself is not stored
    name       text not null,
    role       text not null check (role in ('viewer', 'runner', 'gateway', 'admin')),
    run        text,                                  -- null: all runs; the run need not exist yet
    agents     text[],                                -- null: all agents; a runner's token may be limited to some
    created_at timestamptz not null default now(),
    expires_at timestamptz,                           -- null: never
    revoked_at timestamptz
);
create unique index tokens_by_name on tokens (name) where revoked_at is null;

-- Tokens as they are shown.
create view shown_tokens as
select token_hash, name, role, run, agents, created_at, expires_at, revoked_at, case
    when revoked_at is not null then 'revoked'
    when expires_at <= now() then 'expired'
    else 'valid'
end as state
from tokens;

-- Whether a rollout is run or graded by one of these agents; null: any. Of a rollout from outside that a workflow drives,
-- the task queue names the agent.
create function is_of_agents_v1(r rollouts, p_agents text[]) returns boolean language sql stable as $$
    select p_agents is null
        or exists (select from runs where run = r.run and (file ->> 'agent' = any (p_agents) or file ->> 'grader' = any (p_agents)))
        or exists (select from outbox where workflow_id = 'rollout/' || r.rollout_id and workflow_type <> 'cancel'
                   and regexp_replace(task_queue, '^.*\.', '') = any (p_agents))
$$;

create table secrets (
    name  text primary key,
    value bytea not null                              -- the key that attempt tokens are derived from
);
