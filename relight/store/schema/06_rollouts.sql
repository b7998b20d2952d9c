-- Rollouts: those that runs plan, and those that clients enqueue.

create function is_over_v1(p_status text) returns boolean language sql immutable as $$
    select p_status in ('succeeded', 'failed', 'cancelled')
$$;

create function unix_v1(p_time timestamptz) returns double precision language sql immutable as $$
    select extract(epoch from p_time)::double precision
$$;

create table rollouts (
    rollout_id        text primary key,
    kind              text not null
                      check (kind in ('train', 'eval', 'external', 'preflight', 'inspect', 'algorithm')),

    run               text references runs,           -- that planned it, or that it was enqueued for

    -- Its place in a run's plan; null for rollouts from outside
    step              int,
    batch             int,
    group_number      int,
    index_in_group    int,
    fill_up           int not null default 0,         -- round of filling up in which it was planned; 0: the plan itself
    inspects          text references rollouts,       -- the rollout of a closed batch that this one repeats

    -- What the agent gets
    dataset_id        text,
    position          int,
    input             jsonb,                          -- of external rollouts; planned ones read their task
    mode              text check (mode in ('train', 'val', 'test')),
    resources_id      text,
    resources_version int,
    config            jsonb not null default '{}',
    metadata          jsonb not null default '{}',
    seed_base         text,                           -- null: its id
    min_version       int,                            -- policy versions that its model calls may be sampled from
    max_version       int,

    dispatched_by     text not null default 'workflow' check (dispatched_by in ('workflow', 'queue')),
    queue_order       bigint,                         -- its place in the queue; null: it is not in the queue
    due_at            timestamptz,                    -- a retry that backs off is not handed out before

    status            text not null default 'queuing'
                      check (status in
                             ('queuing', 'preparing', 'running', 'requeuing', 'succeeded', 'failed', 'cancelled')),
    failure_class     text,
    failure           text,                           -- why it failed, in one line
    reward            double precision,
    attempts          int not null default 0,
    deaths            int not null default 0,         -- attempts during which the process or platform died (rule 4)
    final_attempt     text,                           -- the attempt that counts, written when its batch closes
    next_sequence     bigint not null default 1,      -- of its spans and generations

    day               date not null default (now() at time zone 'utc')::date, -- partition of its spans, calls
    created_at        timestamptz not null default now(),
    ended_at          timestamptz,
    unique (run, kind, step, group_number, index_in_group),
    foreign key (dataset_id, position) references tasks (dataset_id, position)
);
create index rollouts_by_batch on rollouts (run, kind, step, batch);
create index rollouts_open on rollouts (status, created_at)
    where status in ('queuing', 'preparing', 'running', 'requeuing');
create index rollouts_queue on rollouts (queue_order) where queue_order is not null;
create index rollouts_by_time on rollouts (created_at, rollout_id);
create index rollouts_inspections on rollouts (inspects) where inspects is not null;
create sequence queue_orders;

-- A rollout that has ended may only be queued again; one that a queue dispatches may also get a new attempt by hand.
-- Neither is possible once the run that it was enqueued for has ended. It has a place in the queue exactly while its
-- status says so.
create function rollout_transition() returns trigger language plpgsql as $$
begin
    if is_over_v1(old.status) and new.status <> old.status and not (
        old.final_attempt is null and (new.status = 'requeuing'
            or (old.dispatched_by = 'queue' and new.status = 'preparing'))) then
        raise exception 'rollout % is % and can not become %', old.rollout_id, old.status, new.status
            using errcode = 'RL409';
    end if;
    if new.kind = 'external' and is_over_v1(old.status) and not is_over_v1(new.status) then
        perform lock_unfinished_run_v1(new.run);
    end if;
    if new.status not in ('queuing', 'requeuing') then
        new.queue_order := null;
    elsif new.dispatched_by = 'queue' and old.queue_order is null then
        new.queue_order := nextval('queue_orders');
    end if;
    return new;
end $$;
create trigger rollout_transition before update of status on rollouts
    for each row execute function rollout_transition();

-- Pins a rollout to a version of its resources when it is enqueued, or when it gets other resources. A rollout from
-- outside that names none and has no run gets the newest when its first attempt begins; one whose resources did not
-- exist yet is pinned when the next attempt begins.
create function pin_resources() returns trigger language plpgsql as $$
declare
    first boolean := tg_op = 'INSERT';
begin
    if tg_op = 'UPDATE' then
        if new.resources_id is distinct from old.resources_id then
            new.resources_version := null;
            first := true;
        end if;
        if new.attempts > old.attempts then
            first := true;
            if old.attempts = 0 and new.resources_id is null and new.kind = 'external' and new.run is null then
                select resources_id into new.resources_id from resources order by update_time desc, sequence desc limit 1;
            end if;
        end if;
    end if;
    if first and new.resources_version is null and new.resources_id is not null then
        select version into new.resources_version from resources where resources_id = new.resources_id;
    end if;
    return new;
end $$;
create trigger pin_resources before insert or update of resources_id, attempts on rollouts
    for each row execute function pin_resources();

-- Notifies waits for rollouts from outside. Rollouts of runs end too often to serialize their commits by this.
create function rollout_ended() returns trigger language plpgsql as $$
begin
    perform pg_notify('relight_ended', new.rollout_id);
    return null;
end $$;
create trigger rollout_ended after update of status on rollouts for each row
    when (new.kind = 'external' and is_over_v1(new.status) and not is_over_v1(old.status))
    execute function rollout_ended();

create function rollout_event() returns trigger language plpgsql as $$
begin
    insert into events (kind, run, rollout_id, step, data)
    values ('rollout', new.run, new.rollout_id, new.step, jsonb_build_object(
        'status', new.status, 'before', case when tg_op = 'UPDATE' then old.status end, 'kind', new.kind,
        'mode', new.mode, 'attempts', new.attempts, 'failure_class', new.failure_class, 'reward', new.reward));
    return null;
end $$;
create trigger rollout_created after insert on rollouts for each row execute function rollout_event();
create trigger rollout_changed after update of status on rollouts for each row
    when (new.status <> old.status) execute function rollout_event();

-- The workflow of a rollout: `rollout/<id>`, and `rollout/<id>/inspect-<k>` for its inspections `<id>.inspect-<k>`.
create function workflow_of_v1(p_rollout text) returns text language sql immutable as $$
    select 'rollout/' || regexp_replace(p_rollout, '\.(inspect-[0-9]+)$', '/\1')
$$;

-- How a rollout is sampled: as the plan of its step says, or the run file where there is none. Evaluations may override
-- that.
create function sampling_v1(r rollouts) returns jsonb language sql stable as $$
    select coalesce(
        (select plan -> 'sampling' from steps where run = r.run and step = r.step),
        (select file -> 'sampling' from runs where run = r.run),
        '{}'
    ) || coalesce((
        select jsonb_strip_nulls(nullif(file #> '{evaluation,sampling}', 'null')) from runs
        where run = r.run and r.mode = 'val'), '{}')
$$;

create function rollout_json_v1(r rollouts) returns jsonb language sql stable as $$
    select jsonb_build_object(
        'rollout_id', r.rollout_id, 'start_time', unix_v1(r.created_at), 'end_time', unix_v1(r.ended_at),
        'input', coalesce(r.input, (select task from tasks t where t.dataset_id = r.dataset_id and t.position = r.position)),
        'mode', r.mode, 'resources_id', r.resources_id, 'resources_version', r.resources_version, 'status', r.status,
        'config', r.config, 'metadata', r.metadata, 'run', r.run, 'step', r.step, 'failure_class', r.failure_class,
        'reward', r.reward)
$$;

create function lock_rollout_v1(p_rollout text) returns rollouts language plpgsql as $$
declare
    r rollouts;
begin
    select * into r from rollouts where rollout_id = p_rollout for no key update;
    if not found then
        raise exception 'there is no rollout %', p_rollout using errcode = 'RL404';
    end if;
    return r;
end $$;
