-- Attempts at rollouts: opening and finishing them is one call and one transaction each.
--
-- Lock order everywhere: rollouts, attempts, workers; each by id. A function that changes its meaning gets a new
-- suffix, so that services of two releases can share one database.
--
-- Functions that are called often look their rows up by key. Postgres has no statistics of a young table, and would use
-- `rollouts_open` or `attempts_one_open`, all of it, for a bare condition on `status` or `ended_at`: `is true` and
-- `enable_seqscan = off` prevent this, so that a call costs the same however many rollouts and attempts are open.

create table attempts (
    attempt_id     text primary key,
    rollout_id     text not null references rollouts,
    sequence_id    int not null,
    try_number     int not null,
    open_key       text not null,                     -- rollout, try and execution that opened it
    fence          bigint not null default nextval('fences'),
    token_hash     text not null,                     -- SHA-256 hex
    worker_id      text,
    metadata       jsonb not null default '{}',
    status         text not null default 'preparing'
                   check (status in ('preparing', 'running', 'succeeded', 'failed', 'timeout', 'unresponsive')),
    failure_class  text,
    message        text not null default '',
    error          jsonb,
    reward         double precision,
    output         text not null default '',
    output_bytes   bigint not null default 0,
    spans_dropped  int not null default 0,            -- spans that its runner did not keep
    seconds        double precision,                  -- that the agent ran, as its runner measured
    started_at     timestamptz not null default now(),
    last_heartbeat timestamptz,
    lease_until    timestamptz,                       -- when the sweeper checks it next; heartbeats do not move it
    ended_at       timestamptz,
    unique (rollout_id, sequence_id)
);
create unique index attempts_one_open on attempts (rollout_id) where ended_at is null;
create index attempts_by_token on attempts (token_hash);
create index attempts_leased on attempts (lease_until) where lease_until is not null and ended_at is null;

-- An attempt that has ended stays as it is, except those of external runners.
create function attempt_transition() returns trigger language plpgsql as $$
begin
    if old.ended_at is not null and (new.status, new.failure_class, new.reward, new.ended_at)
        is distinct from (old.status, old.failure_class, old.reward, old.ended_at)
        and not exists (select from rollouts where rollout_id = old.rollout_id and dispatched_by = 'queue') then
        raise exception 'attempt % has ended as %', old.attempt_id, old.status using errcode = 'RL409';
    end if;
    return new;
end $$;
create trigger attempt_transition before update of status, failure_class, reward, ended_at on attempts
    for each row execute function attempt_transition();

create function attempt_event() returns trigger language plpgsql set enable_seqscan = off as $$
begin
    insert into events (kind, run, rollout_id, attempt_id, step, data)
    select 'attempt', r.run, new.rollout_id, new.attempt_id, r.step, jsonb_build_object(
        'status', new.status, 'before', case when tg_op = 'UPDATE' then old.status end,
        'sequence_id', new.sequence_id, 'failure_class', new.failure_class, 'reward', new.reward,
        'worker_id', new.worker_id)
    from rollouts r where r.rollout_id = new.rollout_id;
    return null;
end $$;
create trigger attempt_created after insert on attempts for each row execute function attempt_event();
create trigger attempt_changed after update of status, failure_class on attempts for each row
    when (new.status <> old.status or new.failure_class is distinct from old.failure_class)
    execute function attempt_event();

create function attempt_json_v1(a attempts) returns jsonb language sql stable as $$
    select jsonb_build_object(
        'rollout_id', a.rollout_id, 'attempt_id', a.attempt_id, 'sequence_id', a.sequence_id, 'status', a.status,
        'start_time', unix_v1(a.started_at), 'last_heartbeat_time', unix_v1(a.last_heartbeat),
        'end_time', case when a.status not in ('preparing', 'running') then unix_v1(a.ended_at) end,
        'worker_id', a.worker_id, 'metadata', a.metadata, 'failure_class', a.failure_class, 'error', a.error,
        'reward', a.reward, 'spans_dropped', a.spans_dropped)
$$;

create function attempted_json_v1(r rollouts, a attempts) returns jsonb language sql stable as $$
    select rollout_json_v1(r) || case when a.attempt_id is not null
        then jsonb_build_object('attempt', attempt_json_v1(a)) else '{}' end
$$;

-- A rollout by id, with its newest attempt.
create function get_rollout_v1(p_rollout text) returns jsonb language sql stable as $$
    select attempted_json_v1(r, a) from rollouts r
    left join attempts a on a.rollout_id = r.rollout_id and a.sequence_id = r.attempts
    where r.rollout_id = p_rollout
$$;

-- Rule 3: these failures are never the agent's.
create function is_platform_failure(class text) returns boolean language sql immutable as $$
    select coalesce(class in ('infrastructure', 'engine_error', 'grader_error'), false)
$$;

create function outcome_v1(a attempts) returns jsonb language sql immutable as $$
    select jsonb_build_object(
        'rollout_id', a.rollout_id, 'attempt_id', a.attempt_id, 'try_number', a.try_number,
        'succeeded', a.status = 'succeeded', 'failure_class', a.failure_class, 'reward', a.reward, 'message', a.message)
$$;

create function answer_v1(p_state text, p_reason text, p_attempt jsonb default null, p_outcome jsonb default null)
returns jsonb language sql immutable as $$
    select jsonb_build_object('state', p_state, 'reason', p_reason, 'attempt', p_attempt, 'outcome', p_outcome)
$$;

-- What a runner needs to run an attempt; token and address are added by the service.
create function assignment_v1(r rollouts, a attempts) returns jsonb language sql stable as $$
    select jsonb_build_object(
        'rollout_id', r.rollout_id, 'attempt_id', a.attempt_id, 'sequence_id', a.sequence_id, 'fence', a.fence,
        'run', r.run, 'step', r.step, 'mode', r.mode, 'metadata', r.metadata,
        'input', coalesce((select task from tasks t where t.dataset_id = r.dataset_id and t.position = r.position), r.input),
        'resources_id', r.resources_id, 'resources_version', r.resources_version,
        'resources', coalesce((select resources from resource_versions v
                               where v.resources_id = r.resources_id and v.version = r.resources_version), '{}'),
        'sampling', sampling_v1(r),
        'config', r.config,
        'isolation', coalesce((select file ->> 'isolation' from runs where run = r.run), 'process'),
        'network', coalesce((select file ->> 'network' from runs where run = r.run), 'internet'),
        'alone', r.deaths >= 2,
        'deaths', r.deaths,
        'grader', (select file ->> 'grader' from runs where run = r.run))
$$;

-- Rule 4: a process died during an attempt; the fifth death quarantines the rollout. Returns the number of deaths.
create function count_death_v1(p_rollout text) returns int language plpgsql as $$
declare
    died int;
begin
    update rollouts set deaths = deaths + 1 where rollout_id = p_rollout returning deaths into died;
    if died >= 5 then
        update rollouts set status = 'failed', failure_class = 'infrastructure', ended_at = clock_timestamp(),
            failure = 'quarantined: its process died ' || died || ' times'
        where rollout_id = p_rollout and status not in ('succeeded', 'failed', 'cancelled') and final_attempt is null;
    end if;
    return died;
end $$;

-- The attempt's process died or lost its connection: a newer attempt takes over. Returns the rollout's deaths.
create function close_dead_attempt_v1(r rollouts, p_attempt text) returns int language plpgsql as $$
begin
    perform settle_deliveries_v1(r.day, p_attempt);
    update attempts set status = 'failed', failure_class = 'infrastructure', ended_at = clock_timestamp(),
        message = 'its process died, or lost its connection'
    where attempt_id = p_attempt;
    return count_death_v1(r.rollout_id);
end $$;

-- Why no attempt of this rollout may be opened, as an answer; null: one may be. The rollout's row is locked.
create function open_refusal_v1(r rollouts, p_try int, p_open_key text, newest attempts) returns jsonb
language plpgsql as $$
declare
    ended attempts;
    reason text;
begin
    select * into ended from attempts a
    where a.rollout_id = r.rollout_id and a.try_number = p_try and a.ended_at is not null
      and not is_platform_failure(a.failure_class)
    order by a.sequence_id desc limit 1;
    if found then
        return answer_v1('finished', 'this try has ended', null, outcome_v1(ended));
    elsif r.final_attempt is not null then
        return answer_v1('gone', 'the batch of this rollout is closed');
    elsif r.status in ('succeeded', 'failed') and newest.ended_at is not null then
        return answer_v1('finished', 'the rollout has ended', null, outcome_v1(newest));
    elsif r.status in ('succeeded', 'failed') then
        return answer_v1('gone', 'the rollout has ended as ' || r.status);
    elsif p_try < newest.try_number then
        return answer_v1('gone', 'try ' || newest.try_number || ' has begun');
    elsif newest.open_key <> p_open_key and exists (
            select from attempts where rollout_id = r.rollout_id and open_key = p_open_key) then
        return answer_v1('gone', 'another execution has taken over');
    end if;
    if r.kind = 'external' then
        reason := outside_waits_v1(r.run);
        return case when reason is not null then answer_v1('wait', reason) end;
    end if;
    select case when status <> 'running' then 'the run is ' || status else 'the run is being cancelled' end
    into reason from runs where run = r.run and (status <> 'running' or cancel_requested is not null);
    if found then
        return answer_v1('gone', reason);  -- the next workflow that drives it starts the rollout again
    end if;
    reason := run_waits_v1(r.run);
    return case when reason is not null then answer_v1('wait', reason) end;
end $$;

-- Rule 1: answers `opened`, `finished`, `wait` or `gone`.
create function open_attempt_v1(
    p_rollout text, p_try int, p_open_key text, p_worker text, p_attempt text, p_token_hash text
) returns jsonb language plpgsql
set plan_cache_mode = force_generic_plan set enable_seqscan = off as $$
declare
    r rollouts := lock_rollout_v1(p_rollout);
    newest attempts;
    refusal jsonb;
begin
    if r.status = 'cancelled' then
        return answer_v1('gone', 'the rollout is cancelled');
    end if;
    select * into newest from attempts where rollout_id = p_rollout order by sequence_id desc limit 1
    for no key update;  -- commits of its calls are over now
    if newest.open_key = p_open_key and newest.ended_at is null then
        return answer_v1('opened', '', assignment_v1(r, newest));
    end if;
    refusal := open_refusal_v1(r, p_try, p_open_key, newest);
    if refusal is not null then
        return refusal;
    end if;
    if newest.attempt_id is not null and newest.ended_at is null then
        if close_dead_attempt_v1(r, newest.attempt_id) >= 5 then
            select * into newest from attempts where attempt_id = newest.attempt_id;
            return answer_v1('finished', 'quarantined', null, outcome_v1(newest));
        end if;
    end if;
    update rollouts set status = 'preparing', attempts = attempts + 1,
        reward = null, failure_class = null, failure = null, ended_at = null
    where rollout_id = p_rollout returning * into r;
    insert into attempts (attempt_id, rollout_id, sequence_id, try_number, open_key, token_hash, worker_id, last_heartbeat)
    values (p_attempt, p_rollout, r.attempts, p_try, p_open_key, p_token_hash, p_worker, clock_timestamp())
    returning * into newest;
    return answer_v1('opened', '', assignment_v1(r, newest));
end $$;

-- Whether an attempt's token is valid for model calls.
create function may_call_v1(r rollouts, a attempts) returns boolean language sql immutable as $$
    select r.status <> 'cancelled' and (
        a.ended_at is null
        or a.status = 'unresponsive' and r.dispatched_by = 'queue' and r.status = 'requeuing' and a.sequence_id = r.attempts)
$$;

-- An open attempt is alive, so it is running. The caller has locked the rollout's row, or holds no lock.
create function touch_attempt_v1(p_rollout text, p_attempt text, p_fence bigint) returns void
language plpgsql as $$
begin
    update rollouts set status = 'running'
    where rollout_id = p_rollout and (status = 'preparing') is true and exists (
        select from attempts where attempt_id = p_attempt and fence = p_fence and (ended_at is null) is true);
    update attempts set status = 'running', last_heartbeat = clock_timestamp()
    where attempt_id = p_attempt and fence = p_fence and (ended_at is null) is true
      and (status = 'preparing' or last_heartbeat is null or last_heartbeat < clock_timestamp() - interval '1 s');
end $$;

-- The status of a rollout after an attempt at it ended with `p_class`; null: success.
create function status_after_v1(r rollouts, p_try int, p_class text) returns text language sql immutable as $$
    select case
        when r.status in ('succeeded', 'failed', 'cancelled') or r.final_attempt is not null then r.status
        when p_class is null then 'succeeded'
        when p_class = 'cancelled' then 'cancelled'
        when p_class = 'infrastructure' then 'requeuing'
        when coalesce(r.config -> 'retry_condition', '[]') ? p_class
             and p_try < coalesce((r.config ->> 'max_attempts')::int, 1) then 'requeuing'
        else 'failed'
    end
$$;

create function lock_rollout_of_v1(p_attempt text) returns rollouts language plpgsql as $$
declare
    r rollouts;
begin
    select * into r from rollouts where rollout_id = (select rollout_id from attempts where attempt_id = p_attempt)
    for no key update;
    if not found then
        raise exception 'there is no attempt %', p_attempt using errcode = 'RL404';
    end if;
    return r;
end $$;

-- An attempt, locked, if it is the newest one of its rollout and `p_fence` is its own. Commits of its calls are over then.
create function lock_fenced_attempt_v1(r rollouts, p_attempt text, p_fence bigint) returns attempts
language plpgsql as $$
declare
    a attempts;
begin
    select * into a from attempts where attempt_id = p_attempt for no key update;
    if a.fence <> p_fence or a.sequence_id < r.attempts then
        raise exception 'attempt % has been superseded', p_attempt using errcode = 'RL409';
    end if;
    return a;
end $$;

-- What an agent left beside its rewards.
create function keep_end_v1(p_attempt text, p_end jsonb) returns void language sql as $$
    update attempts set output = p_end ->> 'output', output_bytes = (p_end ->> 'output_bytes')::bigint,
        seconds = (p_end ->> 'duration_seconds')::double precision, spans_dropped = (p_end ->> 'spans_dropped')::int
    where attempt_id = p_attempt
$$;

-- `p_request`: a `FinishRequest` as JSON. `died` in it: the attempt ended because a process died that it shared, and no
-- other attempt is known to be the cause.
create function finish_attempt_v1(p_request jsonb) returns jsonb language plpgsql
set plan_cache_mode = force_generic_plan set enable_seqscan = off as $$
declare
    r rollouts := lock_rollout_of_v1(p_request ->> 'attempt_id');
    a attempts := lock_fenced_attempt_v1(r, p_request ->> 'attempt_id', (p_request ->> 'fence')::bigint);
    final_class text := p_request ->> 'failure_class';
    final_message text := p_request ->> 'message';
    new_status text;
begin
    if a.ended_at is not null then
        return outcome_v1(a);
    end if;
    if p_request -> 'spans' <> '[]' then
        perform add_spans_v1(r.rollout_id, a.attempt_id, a.fence, p_request -> 'spans');
        select * into r from rollouts where rollout_id = r.rollout_id;
    end if;
    if a.status = 'running' then  -- the first model call makes it so
        perform settle_deliveries_v1(r.day, a.attempt_id);
        if coalesce(final_class, 'agent_error') = 'agent_error' and has_unresolved_failure_v1(r.day, a.attempt_id) then
            final_class := 'engine_error';
            final_message := concat_ws(': ', 'a model call failed on the platform''s side', nullif(final_message, ''));
        end if;
    end if;
    if p_request ->> 'grader' = 'agent' then
        perform keep_end_v1(a.attempt_id, p_request -> 'end');
    end if;
    update attempts set
        status = case when final_class is null then 'succeeded'
                      when final_class in ('timeout', 'unresponsive') then final_class else 'failed' end,
        failure_class = final_class, message = final_message, error = nullif(p_request #> '{end,error}', 'null'),
        reward = case when final_class is null then (p_request ->> 'reward')::double precision end,
        ended_at = clock_timestamp()
    where attempt_id = a.attempt_id returning * into a;
    if final_class is null then
        perform store_rewards_v1(a, p_request ->> 'grader', p_request -> 'end');
    end if;
    new_status := status_after_v1(r, a.try_number, final_class);
    if new_status <> r.status then
        update rollouts set status = new_status, reward = a.reward,
            failure_class = case when new_status <> 'requeuing' then final_class end,
            failure = case when new_status <> 'requeuing' then nullif(final_message, '') end,
            ended_at = case when new_status <> 'requeuing' then clock_timestamp() end
        where rollout_id = r.rollout_id;
    end if;
    if (p_request ->> 'died')::boolean and final_class = 'infrastructure' then
        perform count_death_v1(r.rollout_id);
    end if;
    return outcome_v1(a);
end $$;

-- The agent succeeded, and its attempt stays open for the grader. An attempt that ended meanwhile is left as it is.
-- `p_request`: a `GradingRequest` as JSON.
create function await_grading_v1(p_request jsonb) returns void language plpgsql
set plan_cache_mode = force_generic_plan set enable_seqscan = off as $$
declare
    r rollouts := lock_rollout_of_v1(p_request ->> 'attempt_id');
    a attempts := lock_fenced_attempt_v1(r, p_request ->> 'attempt_id', (p_request ->> 'fence')::bigint);
begin
    if a.ended_at is null then
        perform touch_attempt_v1(r.rollout_id, a.attempt_id, a.fence);
        perform settle_deliveries_v1(r.day, a.attempt_id);
        perform keep_end_v1(a.attempt_id, p_request -> 'end');
    end if;
end $$;
