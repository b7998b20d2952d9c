-- What operators need: runs that come from other runs, and commands that wait until somebody can do them.

alter table runs add column replays boolean not null default false;  -- trains on its parent's rollouts, samples nothing

-- A version that runs were forked from stays on disk.
alter table policy_versions add column forks int not null default 0;

create table commands (
    command_id    text primary key,                   -- the caller's idempotency key, or one made for it
    run           text not null,
    action        text not null,
    value         jsonb not null,
    actor         text not null,
    created_at    timestamptz not null default now(),
    claimed_until timestamptz not null default now(), -- an orchestrator is at it until then
    tries         int not null default 0,
    waiting_for   text,                               -- why the last try did nothing
    done_at       timestamptz,
    refused       text,                               -- the reason, if it changed nothing
    result        jsonb
);
create index commands_open on commands (run, created_at) where done_at is null;

-- The run whose rollouts a run trains on: its own, or its parent's where it is a replay.
create function rollouts_of_v1(p_run text) returns text language sql stable as $$
    select case when replays then parent_run else run end from runs where run = p_run
$$;
