-- Opening and finishing attempts: one call, one transaction each. Lock order everywhere: rollout, then attempt.
-- A function that changes its meaning gets a new suffix, so that old and new services can share one database.

create function is_platform_failure(class text) returns boolean language sql immutable as $$
    select coalesce(class in ('infrastructure', 'engine_error', 'grader_error'), false)
$$;

-- An attempt has ended: what is not known to have been delivered is settled. `no` if a later call repeats its prompt.
create function settle_deliveries_v1(p_day date, p_attempt text) returns void language sql as $$
    update generations g
    set delivered = case when exists (
        select from generations later
        where later.day = p_day and later.attempt_id = p_attempt and later.call_number > g.call_number
          and later.prompt_token_ids is not distinct from g.prompt_token_ids
          and (g.prompt_token_ids is not null or later.request_hash = g.request_hash)
    ) then 'no' else 'yes' end
    where g.day = p_day and g.attempt_id = p_attempt and g.delivered = 'unknown'
$$;

-- A call that the platform failed, without a later committed generation of the same request.
create function has_unresolved_failure_v1(p_day date, p_attempt text) returns boolean language sql stable as $$
    select exists (
        select from call_failures f
        where f.day = p_day and f.attempt_id = p_attempt and not exists (
            select from generations g
            where g.day = p_day and g.attempt_id = p_attempt
              and g.request_hash = f.request_hash and g.call_number >= f.call_number))
$$;

create function outcome_v1(a attempts) returns jsonb language sql immutable as $$
    select jsonb_build_object(
        'rollout_id', a.rollout_id, 'attempt_id', a.attempt_id, 'try_number', a.try_number,
        'succeeded', a.status = 'succeeded', 'failure_class', a.failure_class, 'reward', a.reward, 'message', a.message)
$$;

-- The step's plan says how its rollouts are sampled; without one, the run file.
create function sampling_v1(p_run text, p_step int) returns jsonb language sql stable as $$
    select coalesce(
        (select plan -> 'sampling' from steps where run = p_run and step = p_step),
        (select file -> 'sampling' from runs where run = p_run),
        '{}')
$$;

-- What a runner needs to run an attempt; token and address are added by the service.
create function assignment_v1(r rollouts, a attempts) returns jsonb language sql stable as $$
    select jsonb_build_object(
        'rollout_id', r.rollout_id, 'attempt_id', a.attempt_id, 'sequence_id', a.sequence_id, 'fence', a.fence,
        'run', r.run, 'step', r.step, 'mode', r.mode,
        'input', coalesce((select task from tasks t where t.dataset_id = r.dataset_id and t.position = r.position), r.input),
        'resources', coalesce((select resources from resources x where x.resources_id = r.resources_id), '{}'),
        'sampling', sampling_v1(r.run, r.step),
        'config', r.config,
        'isolation', coalesce((select file ->> 'isolation' from runs where run = r.run), 'process'),
        'alone', r.deaths >= 2,
        'grader', (select file ->> 'grader' from runs where run = r.run))
$$;

-- Why a run lets nothing begin, or null.
create function run_waits_v1(p_run text) returns text language sql stable as $$
    select case
        when paused then 'the run is paused'
        when (select not bool_or(state in ('ready', 'loading')) from engines where run = p_run) then 'no engine is ready'
    end
    from runs where run = p_run
$$;

-- Add spans (a JSON array) to an attempt; sequence ids count from 1 without gaps in a rollout. Returns how many were new.
create function add_spans_v1(p_rollout text, p_attempt text, p_fence bigint, p_spans jsonb) returns int
language plpgsql
set plan_cache_mode = force_generic_plan set enable_seqscan = off as $$
declare
    r rollouts;
    added int;
begin
    select * into r from rollouts where rollout_id = p_rollout for no key update;
    perform from attempts where attempt_id = p_attempt and rollout_id = p_rollout;
    if not found then
        raise exception 'rollout % has no attempt %', p_rollout, p_attempt using errcode = 'RL404';
    end if;
    with given as (
        select distinct on (s ->> 'span_id') s, n
        from jsonb_array_elements(p_spans) with ordinality as x(s, n) order by s ->> 'span_id', n
    )
    insert into spans (day, rollout_id, attempt_id, span_id, sequence_id, trace_id, parent_id, name, status,
                       attributes, events, links, start_time, end_time)
    select r.day, p_rollout, p_attempt, s ->> 'span_id', r.next_sequence - 1 + row_number() over (order by n),
           s ->> 'trace_id', s ->> 'parent_id', s ->> 'name',
           jsonb_build_object('status_code', s -> 'status', 'description', s -> 'status_description'),
           s -> 'attributes', s -> 'events', s -> 'links',
           (s ->> 'start_time')::double precision, (s ->> 'end_time')::double precision
    from given
    where not exists (
        select from spans old
        where old.day = r.day and old.rollout_id = p_rollout and old.attempt_id = p_attempt
          and old.span_id = s ->> 'span_id');
    get diagnostics added = row_count;
    if added > 0 then
        update rollouts set next_sequence = next_sequence + added where rollout_id = p_rollout;
    end if;
    if jsonb_array_length(p_spans) > 0 then
        perform touch_attempt_v1(p_rollout, p_attempt, p_fence);
    end if;
    return added;
end $$;

-- A sign of life from an open attempt: it is running. The rollout's row is locked by the caller or not at all yet.
create function touch_attempt_v1(p_rollout text, p_attempt text, p_fence bigint) returns void language plpgsql as $$
begin
    update rollouts set status = 'running'
    where rollout_id = p_rollout and status = 'preparing' and exists (
        select from attempts where attempt_id = p_attempt and fence = p_fence and ended_at is null);
    update attempts set status = 'running', last_heartbeat = clock_timestamp()
    where attempt_id = p_attempt and fence = p_fence and ended_at is null
      and (status = 'preparing' or last_heartbeat is null or last_heartbeat < clock_timestamp() - interval '1 s');
end $$;

create function answer_v1(p_state text, p_reason text, p_attempt jsonb default null, p_outcome jsonb default null)
returns jsonb language sql immutable as $$
    select jsonb_build_object('state', p_state, 'reason', p_reason, 'attempt', p_attempt, 'outcome', p_outcome)
$$;

-- Its process died or lost touch: a newer attempt takes over.
create function bury_attempt_v1(r rollouts, p_attempt text) returns int language plpgsql as $$
declare
    died int;
begin
    perform settle_deliveries_v1(r.day, p_attempt);
    update attempts set status = 'failed', failure_class = 'infrastructure', ended_at = clock_timestamp(),
        message = 'its process died, or lost touch with the platform'
    where attempt_id = p_attempt;
    update rollouts set deaths = deaths + 1 where rollout_id = r.rollout_id returning deaths into died;
    return died;
end $$;

-- Why this rollout lets no attempt be opened, as an answer; null: it may be. The rollout's row is locked.
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
    elsif r.counted is not null then
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
    select 'the run is ' || status into reason from runs where run = r.run and status <> 'running';
    if found then
        return answer_v1('gone', reason);  -- nobody drives it; whoever does so next starts the rollout anew
    end if;
    reason := run_waits_v1(r.run);
    return case when reason is not null then answer_v1('wait', reason) end;
end $$;

create function open_attempt_v1(
    p_rollout text, p_try int, p_open_key text, p_worker text, p_attempt text, p_token_hash text
) returns jsonb language plpgsql
set plan_cache_mode = force_generic_plan set enable_seqscan = off as $$
declare
    r rollouts;
    newest attempts;
    refusal jsonb;
    died int;
begin
    select * into r from rollouts where rollout_id = p_rollout for no key update;
    if not found then
        raise exception 'there is no rollout %', p_rollout using errcode = 'RL404';
    elsif r.status = 'cancelled' then
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
        died := bury_attempt_v1(r, newest.attempt_id);
        if died >= 5 then
            update rollouts set status = 'failed', failure_class = 'infrastructure', ended_at = clock_timestamp(),
                failure = 'quarantined: its process died ' || died || ' times'
            where rollout_id = p_rollout;
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

-- Where a rollout stands after an attempt at it ended with `p_class` (null: well).
create function status_after_v1(r rollouts, p_try int, p_class text) returns text language sql immutable as $$
    select case
        when r.status in ('succeeded', 'failed', 'cancelled') or r.counted is not null then r.status
        when p_class is null then 'succeeded'
        when p_class = 'cancelled' then 'cancelled'
        when p_class = 'infrastructure' then 'requeuing'
        when coalesce(r.config -> 'retry_condition', '[]') ? p_class
             and p_try < coalesce((r.config ->> 'max_attempts')::int, 1) then 'requeuing'
        else 'failed'
    end
$$;

create function finish_attempt_v1(
    p_attempt text, p_fence bigint, p_class text, p_reward double precision, p_message text, p_error jsonb,
    p_output text, p_output_bytes bigint, p_seconds double precision, p_spans jsonb, p_grader text
) returns jsonb language plpgsql
set plan_cache_mode = force_generic_plan set enable_seqscan = off as $$
declare
    r rollouts;
    a attempts;
    new_status text;
begin
    select * into r from rollouts where rollout_id = (select rollout_id from attempts where attempt_id = p_attempt)
    for no key update;
    if not found then
        raise exception 'there is no attempt %', p_attempt using errcode = 'RL404';
    end if;
    select * into a from attempts where attempt_id = p_attempt for no key update;  -- commits of its calls are over now
    if a.fence <> p_fence or a.sequence_id < r.attempts then
        raise exception 'attempt % has been superseded', p_attempt using errcode = 'RL409';
    elsif a.ended_at is not null then
        return outcome_v1(a);
    end if;
    if p_spans is not null then
        perform add_spans_v1(r.rollout_id, p_attempt, p_fence, p_spans);
        select * into r from rollouts where rollout_id = r.rollout_id;
    end if;
    if a.status = 'running' then  -- the first model call makes it so
        perform settle_deliveries_v1(r.day, p_attempt);
        if coalesce(p_class, 'agent_error') = 'agent_error' and has_unresolved_failure_v1(r.day, p_attempt) then
            p_class := 'engine_error';
            p_message := concat_ws(': ', 'a model call failed on the platform''s side', nullif(p_message, ''));
        end if;
    end if;
    p_reward := case when p_class is null then p_reward end;
    update attempts set
        status = case when p_class is null then 'succeeded' when p_class in ('timeout', 'unresponsive') then p_class
                      else 'failed' end,
        failure_class = p_class, message = p_message, error = p_error,
        output = case when p_grader = 'agent' then p_output else output end,
        output_bytes = case when p_grader = 'agent' then p_output_bytes else output_bytes end,
        seconds = case when p_grader = 'agent' then p_seconds else seconds end,
        reward = p_reward, ended_at = clock_timestamp()
    where attempt_id = p_attempt returning * into a;
    if p_class is null then
        insert into rewards (rollout_id, attempt_id, grader, value)
        values (r.rollout_id, p_attempt, p_grader, p_reward);
    end if;
    new_status := status_after_v1(r, a.try_number, p_class);
    if new_status <> r.status then
        update rollouts set status = new_status, reward = p_reward,
            failure_class = case when new_status <> 'requeuing' then p_class end,
            failure = case when new_status <> 'requeuing' then nullif(p_message, '') end,
            ended_at = case when new_status <> 'requeuing' then clock_timestamp() end
        where rollout_id = r.rollout_id;
    end if;
    return outcome_v1(a);
end $$;

-- The agent ended well and its attempt stays open for the grader. Nothing is left to do where it was closed meanwhile.
create function hand_over_v1(
    p_attempt text, p_fence bigint, p_output text, p_output_bytes bigint, p_seconds double precision
) returns void language plpgsql
set plan_cache_mode = force_generic_plan set enable_seqscan = off as $$
declare
    r rollouts;
    a attempts;
begin
    select * into r from rollouts where rollout_id = (select rollout_id from attempts where attempt_id = p_attempt)
    for no key update;
    if not found then
        raise exception 'there is no attempt %', p_attempt using errcode = 'RL404';
    end if;
    select * into a from attempts where attempt_id = p_attempt for no key update;
    if a.fence <> p_fence or a.sequence_id < r.attempts then
        raise exception 'attempt % has been superseded', p_attempt using errcode = 'RL409';
    elsif a.ended_at is null then
        perform touch_attempt_v1(r.rollout_id, p_attempt, p_fence);
        perform settle_deliveries_v1(r.day, p_attempt);
        update attempts set output = p_output, output_bytes = p_output_bytes, seconds = p_seconds
        where attempt_id = p_attempt;
    end if;
end $$;
