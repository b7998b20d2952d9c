-- Steps of runs: what was planned, and what came of it.

create table steps (
    run               text not null references runs,
    step              int not null check (step >= 0), -- 0 holds the evaluation of the given model
    status            text not null default 'planned' check (status in ('planned', 'sampled', 'ledgered', 'recorded')),
    plan              jsonb not null,                 -- resolved hyper-parameters, seed, data positions, group size
    resources_id      text,
    resources_version int,
    batches           int not null,
    batch_hash        text,
    unchanged         boolean not null default false, -- all groups were dropped: no new weights
    metrics           jsonb not null default '{}',
    seconds           jsonb not null default '{}',    -- by phase
    planned_at        timestamptz not null default now(),
    sampled_at        timestamptz,
    ledgered_at       timestamptz,
    recorded_at       timestamptz,
    primary key (run, step)
);

create function step_event() returns trigger language plpgsql as $$
begin
    insert into events (kind, run, step, data)
    values ('step', new.run, new.step, jsonb_build_object(
        'status', new.status, 'before', case when tg_op = 'UPDATE' then old.status end, 'unchanged', new.unchanged));
    return null;
end $$;
create trigger step_created after insert on steps for each row execute function step_event();
create trigger step_changed after update of status on steps for each row
    when (new.status <> old.status) execute function step_event();

create table metrics (
    run        text not null,
    step       int not null,
    name       text not null,
    value      double precision not null,
    created_at timestamptz not null default now(),
    primary key (run, step, name)
);
