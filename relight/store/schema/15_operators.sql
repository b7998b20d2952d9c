-- What operators ask for, and what was changed.

-- Commands over HTTP, which an orchestrator executes.
create table commands (
    command_id    text primary key,                   -- the caller's idempotency key, or one made for it
    run           text not null,
    action        text not null,
    value         jsonb not null,
    actor         text not null,
    created_at    timestamptz not null default now(),
    claimed_until timestamptz not null default now(), -- an orchestrator executes it until then
    tries         int not null default 0,
    waiting_for   text,                               -- why the last try did nothing
    done_at       timestamptz,
    refused       text,                               -- the reason, if it changed nothing
    result        jsonb
);
create index commands_open on commands (run, created_at) where done_at is null;

create function command_event() returns trigger language plpgsql as $$
begin
    insert into events (kind, run, data)
    values ('command', new.run, jsonb_build_object(
        'command_id', new.command_id, 'action', new.action, 'actor', new.actor, 'waiting_for', left(new.waiting_for, 500),
        'status', case when new.done_at is null then 'open' when new.refused is null then 'done' else 'refused' end,
        'refused', left(new.refused, 500)));
    return null;
end $$;
create trigger command_given after insert on commands for each row execute function command_event();
create trigger command_changed after update on commands for each row
    when ((new.done_at, new.waiting_for) is distinct from (old.done_at, old.waiting_for))
    execute function command_event();

create table audit (
    id             bigint generated always as identity primary key,
    run            text,
    rollout_id     text,
    actor          text not null,
    action         text not null,
    before         jsonb,
    after          jsonb,
    effective_step int,
    refused        text,                              -- the reason, if it changed nothing
    created_at     timestamptz not null default now(),
    request_key    text unique                        -- the same request twice is one row
);
create index audit_by_run on audit (run, id);

-- Without the values before and after, which may be large: the audit row has them.
create function audit_event() returns trigger language plpgsql as $$
begin
    insert into events (kind, run, rollout_id, step, data)
    values ('audit', new.run, new.rollout_id, new.effective_step, jsonb_build_object(
        'id', new.id, 'actor', new.actor, 'action', new.action, 'refused', left(new.refused, 500)));
    return null;
end $$;
create trigger audited after insert on audit for each row execute function audit_event();
