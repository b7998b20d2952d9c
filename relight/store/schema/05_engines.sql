-- GPU hosts, the engines on them, and leases.

-- Fences of attempts and of leases: the holder of an older one is refused.
create sequence fences;

create table leases (
    name       text not null,
    policy     text not null default 'policy',        -- leases that concern no policy have the default
    fence      bigint not null,
    holder     text not null,
    expires_at timestamptz not null,
    primary key (name, policy)
);

-- One row a GPU host: it serves one run at a time.
create table gpu_hosts (
    host       text primary key,
    run        text references runs,
    epoch      int,
    task_queue text not null,                         -- the host's own
    state      text not null default 'idle',          -- idle, starting, ready, failed
    detail     text,
    heartbeat  timestamptz not null default now()
);

create table engines (
    engine_id  text primary key,
    host       text not null references gpu_hosts on delete cascade,
    run        text not null references runs,
    policy     text not null default 'policy',        -- whose versions it holds
    url        text not null,
    model      text not null,
    -- `stopped`: on purpose
    state      text not null check (state in ('starting', 'ready', 'loading', 'dead', 'stopped')),
    version    int,
    load       int not null default 0,
    fence      bigint not null default 0,             -- of the update whose export it holds: older ones are refused
    pid        int,
    updated_at timestamptz not null default now()
);

-- Which version an engine held from when on.
create table engine_loads (
    engine_id text not null,
    load      int not null,
    run       text not null,
    policy    text not null default 'policy',
    version   int not null,
    loaded_at timestamptz not null default clock_timestamp(),
    primary key (engine_id, load)
);

-- The policy version that an engine held this many seconds ago; null: unknown.
create function version_at_v1(p_engine text, p_seconds_ago double precision) returns int language sql stable as $$
    select version from engine_loads
    where engine_id = p_engine and loaded_at <= clock_timestamp() - make_interval(secs => p_seconds_ago)
    order by load desc limit 1
$$;

-- Whether each policy of a run has an engine that answers; null: the run has no engines.
create function engines_ready_v1(p_run text) returns boolean language sql stable as $$
    select bool_and(ready)
    from (select bool_or(state in ('ready', 'loading')) as ready from engines where run = p_run group by policy) by_policy
$$;

-- Why attempts of a run have to wait before they begin, or null.
create function run_waits_v1(p_run text) returns text language sql stable as $$
    select case
        when paused then 'the run is paused'
        when not engines_ready_v1(run) then 'no engine is ready'
    end
    from runs where run = p_run
$$;

-- Why no attempt of a rollout from outside begins in this run now, or null.
create function outside_waits_v1(p_run text) returns text language sql stable as $$
    select case
        when status <> 'running' then 'the run is ' || status
        when cancel_requested is not null then 'the run is being cancelled'
        when paused then 'the run is paused'
        when file ->> 'model' is not null and engines_ready_v1(run) is not true then 'no engine is ready'
    end
    from runs where run = p_run
$$;
