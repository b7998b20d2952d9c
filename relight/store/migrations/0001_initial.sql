-- Everything that a run leaves behind. Postgres is the record; Temporal is what drives.

create table runs (
    run             text primary key check (run ~ '^[a-z0-9][a-z0-9._-]{0,62}$'),
    file            jsonb not null,
    file_hash       text not null,
    hyperparameters jsonb not null default '{}',     -- changes since the start, by key; effective at the first unplanned step
    status          text not null default 'running'
                    check (status in ('running', 'finished', 'failed', 'cancelled', 'interrupted')),
    epoch           int not null default 1,           -- raised whenever somebody starts to drive the run anew
    driver          text not null,                    -- Temporal's first execution run id of the one who drives
    paused          boolean not null default false,
    pause_reason    text,
    stop_after_step int,
    concurrency     int,
    waiting_for     text,                             -- why nothing moves, in a sentence; null while something moves
    phase           text,                             -- what the run does at the moment
    error           text,
    total_steps     int not null,
    train_dataset   text not null,
    eval_dataset    text,
    resources_id    text,
    parent_run      text references runs,
    parent_step     int,
    created_at      timestamptz not null default now(),
    finished_at     timestamptz
);

create table datasets (
    dataset_id text primary key,                      -- SHA-256 of the rows
    source     text not null,
    row_count  int not null,
    created_at timestamptz not null default now()
);

create table tasks (
    dataset_id text not null references datasets on delete cascade,
    position   int not null,
    task       jsonb not null,
    primary key (dataset_id, position)
);

alter table runs add foreign key (train_dataset) references datasets, add foreign key (eval_dataset) references datasets;

create table resources (
    resources_id text primary key,
    version      int not null default 1,
    resources    jsonb not null,
    create_time  timestamptz not null default now(),
    update_time  timestamptz not null default now(),
    sequence     bigint generated always as identity
);
create index resources_latest on resources (update_time desc, sequence desc);

create table steps (
    run          text not null references runs,
    step         int not null check (step >= 0),      -- 0 holds the evaluation of the given model
    status       text not null default 'planned' check (status in ('planned', 'sampled', 'ledgered', 'recorded')),
    plan         jsonb not null,                      -- resolved hyper-parameters, trainer seed, data positions, group size
    resources_id text,
    batches      int not null,
    batch_hash   text,
    unchanged    boolean not null default false,      -- every group was dropped: the weights are those of the step before
    metrics      jsonb not null default '{}',
    seconds      jsonb not null default '{}',         -- by phase
    planned_at   timestamptz not null default now(),
    sampled_at   timestamptz,
    ledgered_at  timestamptz,
    recorded_at  timestamptz,
    primary key (run, step)
);

create table rollouts (
    rollout_id     text primary key,
    run            text references runs,
    step           int,
    kind           text not null check (kind in ('train', 'eval', 'external')),
    batch          int,
    group_number   int,
    index_in_group int,
    fill_up        int not null default 0,            -- round of filling up in which it was planned; 0: the plan itself
    dataset_id     text,
    position       int,
    input          jsonb,                             -- external rollouts; planned ones read their task
    mode           text check (mode in ('train', 'val', 'test')),
    resources_id   text,
    status         text not null default 'queuing'
                   check (status in ('queuing', 'preparing', 'running', 'requeuing', 'succeeded', 'failed', 'cancelled')),
    failure_class  text,
    failure        text,                              -- one line: why it failed
    reward         double precision,
    config         jsonb not null default '{}',
    metadata       jsonb not null default '{}',
    seed_base      text,
    min_version    int,
    max_version    int,
    next_sequence  bigint not null default 1,         -- of its spans
    attempts       int not null default 0,
    deaths         int not null default 0,            -- attempts under which the process or platform died
    counted        text,                              -- the attempt that counts, written when its batch closes
    day            date not null default (now() at time zone 'utc')::date,
    created_at     timestamptz not null default now(),
    ended_at       timestamptz,
    unique (run, kind, step, group_number, index_in_group),
    foreign key (dataset_id, position) references tasks (dataset_id, position)
);
create index rollouts_by_batch on rollouts (run, kind, step, batch);
create index rollouts_open on rollouts (status, created_at) where status in ('queuing', 'preparing', 'running', 'requeuing');

create function rollout_transition() returns trigger language plpgsql as $$
begin
    if old.status in ('succeeded', 'failed', 'cancelled') and new.status <> old.status
       and not (new.status = 'requeuing' and old.counted is null) then
        raise exception 'rollout % is % and can not become %', old.rollout_id, old.status, new.status
            using errcode = 'RL409';
    end if;
    return new;
end $$;
create trigger rollout_transition before update of status on rollouts
    for each row execute function rollout_transition();

create sequence fences;

create table attempts (
    attempt_id     text primary key,
    rollout_id     text not null references rollouts,
    sequence_id    int not null,
    try_number     int not null,
    open_key       text not null,                     -- rollout, try and execution that opened it
    fence          bigint not null default nextval('fences'),
    status         text not null default 'preparing'
                   check (status in ('preparing', 'running', 'succeeded', 'failed', 'timeout', 'unresponsive')),
    failure_class  text,
    message        text not null default '',
    error          jsonb,
    output         text not null default '',
    output_bytes   bigint not null default 0,
    reward         double precision,
    seconds        double precision,                  -- that the agent ran, as its runner measured
    token_hash     text not null,                     -- SHA-256 hex
    worker_id      text,
    metadata       jsonb not null default '{}',
    started_at     timestamptz not null default now(),
    last_heartbeat timestamptz,
    ended_at       timestamptz,
    unique (rollout_id, sequence_id)
);
create unique index attempts_one_open on attempts (rollout_id) where ended_at is null;
create index attempts_by_token on attempts (token_hash);

create function attempt_transition() returns trigger language plpgsql as $$
begin
    if old.ended_at is not null and (new.status, new.failure_class, new.reward, new.ended_at)
        is distinct from (old.status, old.failure_class, old.reward, old.ended_at) then
        raise exception 'attempt % has ended as %', old.attempt_id, old.status using errcode = 'RL409';
    end if;
    return new;
end $$;
create trigger attempt_transition before update of status, failure_class, reward, ended_at on attempts
    for each row execute function attempt_transition();

create table rewards (
    rollout_id text not null references rollouts,
    attempt_id text not null references attempts,
    grader     text not null default 'agent',
    value      double precision not null,
    created_at timestamptz not null default now(),
    primary key (attempt_id, grader)
);

-- Large and append-only: partitioned by the day on which the rollout was created.
create table bodies (
    day  date not null,
    hash bytea not null,
    body bytea not null,                              -- zlib-compressed JSON
    primary key (day, hash)
) partition by range (day);

create table generations (
    day              date not null,
    rollout_id       text not null,
    attempt_id       text not null,
    call_number      int not null,
    choice           int not null,
    request_hash     text not null,
    route            text not null,
    request          bytea not null,                  -- hash in bodies
    response         bytea not null,
    prompt_token_ids int[],
    token_ids        int[],
    logprobs         real[],                          -- of the sampled tokens, as processed for sampling
    sampling         jsonb not null,
    seed             bigint not null,
    engine_id        text not null,
    model            text not null,
    version_start    int,
    version_end      int,
    finish_reason    text,
    complete         boolean not null,
    delivered        text not null check (delivered in ('yes', 'no', 'unknown')),
    seconds          double precision not null,
    created_at       timestamptz not null default now(),
    primary key (day, attempt_id, call_number, choice)
) partition by range (day);

create table call_failures (
    day          date not null,
    attempt_id   text not null,
    call_number  int not null,
    request_hash text not null,
    message      text not null,
    created_at   timestamptz not null default now(),
    primary key (day, attempt_id, call_number, request_hash)
) partition by range (day);

create table spans (
    day         date not null,
    rollout_id  text not null,
    attempt_id  text not null,
    span_id     text not null,
    sequence_id bigint not null,
    trace_id    text not null,
    parent_id   text,
    name        text not null,
    status      jsonb not null default '{}',
    attributes  jsonb not null default '{}',
    events      jsonb not null default '[]',
    links       jsonb not null default '[]',
    resource    jsonb not null default '{}',
    start_time  double precision not null,
    end_time    double precision,
    created_at  timestamptz not null default now(),
    primary key (day, rollout_id, attempt_id, span_id)
) partition by range (day);

create table bodies_default partition of bodies default;
create table generations_default partition of generations default;
create table call_failures_default partition of call_failures default;
create table spans_default partition of spans default;

create table workers (
    worker_id      text primary key,
    kind           text not null,                     -- runner, orchestrator, gateway, gpu-worker, store
    host           text not null,
    pid            int,
    serves         text[] not null default '{}',      -- agents
    status         text not null default 'idle',
    heartbeat_stats jsonb not null default '{}',
    last_heartbeat timestamptz not null default now(),
    started_at     timestamptz not null default now()
);

-- One row a GPU host: it serves one run at a time.
create table gpu_hosts (
    host        text primary key,
    run         text references runs,
    epoch       int,
    task_queue  text not null,                        -- the host's own
    state       text not null default 'idle',         -- idle, starting, ready, failed
    detail      text,
    heartbeat   timestamptz not null default now()
);

create table engines (
    engine_id text primary key,
    host      text not null references gpu_hosts on delete cascade,
    run       text not null references runs,
    url       text not null,
    model     text not null,
    state     text not null check (state in ('starting', 'ready', 'loading', 'dead')),
    version   int,
    load      int not null default 0,
    fence     bigint not null default 0,              -- of the update whose export it holds: older ones are refused
    pid       int,
    updated_at timestamptz not null default now()
);

create table engine_loads (
    engine_id text not null,
    load      int not null,
    run       text not null,
    version   int not null,
    loaded_at timestamptz not null default clock_timestamp(),
    primary key (engine_id, load)
);

create table leases (
    name       text primary key,
    fence      bigint not null,
    holder     text not null,
    expires_at timestamptz not null
);

create table policy_versions (
    run             text not null references runs,
    version         int not null check (version >= 0),
    fence           bigint not null default 0,
    weights_hash    text not null,
    export_path     text not null,                    -- what engines load
    checkpoint_path text,                             -- weights, optimizer and random state; null: not checkpointed
    published_at    timestamptz not null default now(),
    checkpointed_at timestamptz,
    primary key (run, version)
);

-- The ledger: which attempt a step consumed. Unique in a run, written before the weights change.
create table step_rollouts (
    run          text not null references runs,
    step         int not null,
    rollout_id   text not null references rollouts,
    attempt_id   text not null references attempts,
    group_number int not null,
    reward       double precision not null,
    grader       text not null default 'agent',
    advantage    double precision,
    primary key (run, rollout_id),
    unique (run, attempt_id)
);
create index step_rollouts_by_step on step_rollouts (run, step);

create table training_rows (
    run              text not null,
    step             int not null,
    row_number       int not null,
    rollout_id       text not null,
    attempt_id       text not null,
    calls            int[] not null,                  -- call numbers that it was made of
    prompt_ids       int[] not null,
    response_ids     int[] not null,
    mask             smallint[] not null,             -- 1 on tokens that the policy wrote
    advantage        double precision not null,
    weight           double precision not null,
    sampled_logprobs real[] not null,
    trainer_logprobs real[],
    primary key (run, step, row_number)
);

create table metrics (
    run        text not null,
    step       int not null,
    name       text not null,
    value      double precision not null,
    created_at timestamptz not null default now(),
    primary key (run, step, name)
);

create table audit (
    id         bigint generated always as identity primary key,
    run        text,
    rollout_id text,
    actor      text not null,
    action     text not null,
    before     jsonb,
    after      jsonb,
    effective_step int,
    refused    text,                                  -- the reason, if it changed nothing
    created_at timestamptz not null default now(),
    request_key text unique                           -- the same request twice is one row
);
create index audit_by_run on audit (run, id);

create table outbox (
    id            bigint generated always as identity primary key,
    workflow_type text not null,
    workflow_id   text not null,
    task_queue    text not null,
    input         jsonb not null,
    created_at    timestamptz not null default now(),
    started_at    timestamptz
);
create index outbox_open on outbox (id) where started_at is null;

create table secrets (
    name  text primary key,
    value bytea not null                              -- the key that attempt tokens are derived from
);
