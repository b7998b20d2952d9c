-- Runs: the run file, its state, and which workflow drives it.

create table runs (
    run                text primary key check (run ~ '^[a-z0-9][a-z0-9._-]{0,62}$'),
    file               jsonb not null,
    hyperparameters    jsonb not null default '{}',   -- changes, by key; effective at the first unplanned step
    total_steps        int not null,
    train_dataset      text not null references datasets,
    eval_dataset       text references datasets,
    resources_id       text,
    resources_version  int,
    concurrency        int,

    status             text not null default 'running'
                       check (status in ('running', 'finished', 'failed', 'cancelled', 'interrupted')),
    phase              text,                          -- what the run does now
    waiting_for        text,                          -- what it waits for, in a sentence; null: it waits for nothing
    warnings           jsonb not null default '{}',   -- problems that do not stop the run, by name, in a sentence
    error              text,
    paused             boolean not null default false,
    pause_reason       text,
    stop_after_step    int,
    cancel_requested   timestamptz,                   -- from then on nothing of the run begins (rule 20)

    epoch              int not null default 1,        -- raised when another workflow begins to drive the run (rule 19)
    driver             text not null,                 -- first execution run id of the workflow that drives the run
    temporal_address   text,                          -- of the server that drives it, or drove it last
    temporal_namespace text,
    drive_again_at     timestamptz,                   -- when it gets a new workflow; null: by `resume` only

    parent_run         text references runs,          -- that it was forked from, or that it replays
    parent_step        int,
    replays            boolean not null default false, -- trains on its parent's rollouts, and samples nothing

    created_at         timestamptz not null default now(),
    finished_at        timestamptz
);

-- The run whose rollouts a run trains on: its own, or its parent's if it is a replay.
create function rollouts_of_v1(p_run text) returns text language sql stable as $$
    select case when replays then parent_run else run end from runs where run = p_run
$$;

-- Whether a run trains a model, which its engines serve.
create function run_has_engines_v1(p_run text) returns boolean language sql stable as $$
    select coalesce((select file ->> 'model' is not null from runs where run = p_run), false)
$$;

-- The run of a new rollout. The caller's transaction commits before the run can end, and with it the rollout.
create function lock_unfinished_run_v1(p_run text) returns runs language plpgsql as $$
declare
    u runs;
    ended text;
begin
    if p_run is null then
        return null;
    end if;
    select * into u from runs where run = p_run for share;
    if not found then
        raise exception 'run: there is no run %; `relight runs` lists them', p_run using errcode = 'RL404';
    end if;
    ended := case when u.status in ('finished', 'failed', 'cancelled') then u.status
                  when u.cancel_requested is not null then 'being cancelled' end;
    if ended is not null then
        raise exception 'run: % is % and takes no more rollouts; name an unfinished run, or none', p_run, ended
            using errcode = 'RL409';
    end if;
    return u;
end $$;

create function run_event() returns trigger language plpgsql as $$
begin
    insert into events (kind, run, data)
    values ('run', new.run, jsonb_build_object(
        'status', new.status, 'before', case when tg_op = 'UPDATE' then old.status end, 'phase', new.phase,
        'paused', new.paused, 'waiting_for', new.waiting_for, 'epoch', new.epoch, 'error', left(new.error, 500)));
    return null;
end $$;
create trigger run_created after insert on runs for each row execute function run_event();
create trigger run_changed after update on runs for each row
    when ((new.status, new.phase, new.paused, new.waiting_for, new.epoch)
        is distinct from (old.status, old.phase, old.paused, old.waiting_for, old.epoch))
    execute function run_event();
