SET statement_timeout = 0;
SET lock_timeout = 0;
SET idle_in_transaction_session_timeout = 0;
SET transaction_timeout = 0;
SET client_encoding = 'UTF8';
SET standard_conforming_strings = on;
SELECT pg_catalog.set_config('search_path', '', false);
SET check_function_bodies = false;
SET xmloption = content;
SET client_min_messages = warning;
SET row_security = off;
CREATE TYPE public.generation_item_v1 AS (
	item integer,
	rollout_id text,
	attempt_id text,
	token_hash text,
	call_number integer,
	choice integer,
	request_hash text,
	route text,
	request bytea,
	request_body bytea,
	response bytea,
	response_body bytea,
	prompt_token_ids integer[],
	token_ids integer[],
	logprobs real[],
	sampling text,
	seed bigint,
	engine_id text,
	model text,
	finish_reason text,
	complete boolean,
	delivered text,
	seconds double precision
);
CREATE FUNCTION public.add_call_failures_v1(p_attempts text[], p_tokens text[], p_calls integer[], p_requests text[], p_messages text[]) RETURNS void
    LANGUAGE plpgsql
    SET plan_cache_mode TO 'force_generic_plan'
    SET enable_seqscan TO 'off'
    AS $$
begin
    perform enter_attempts_v1(array_agg(given.id), array_agg(given.token))
    from (select distinct * from unnest(p_attempts, p_tokens) as x(id, token)) given;
    insert into call_failures (day, attempt_id, call_number, request_hash, message)
    select r.day, a.attempt_id, given.call_number, given.request_hash, given.message
    from unnest(p_attempts, p_tokens, p_calls, p_requests, p_messages)
        as given(attempt_id, token_hash, call_number, request_hash, message)
    join attempts a on a.attempt_id = given.attempt_id and a.token_hash = given.token_hash and a.ended_at is null
    join rollouts r on r.rollout_id = a.rollout_id
    on conflict do nothing;
end $$;
CREATE FUNCTION public.add_spans_v1(p_rollout text, p_attempt text, p_fence bigint, p_spans jsonb) RETURNS integer
    LANGUAGE plpgsql
    SET plan_cache_mode TO 'force_generic_plan'
    SET enable_seqscan TO 'off'
    AS $$
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
CREATE FUNCTION public.answer_v1(p_state text, p_reason text, p_attempt jsonb DEFAULT NULL::jsonb, p_outcome jsonb DEFAULT NULL::jsonb) RETURNS jsonb
    LANGUAGE sql IMMUTABLE
    AS $$
    select jsonb_build_object('state', p_state, 'reason', p_reason, 'attempt', p_attempt, 'outcome', p_outcome)
$$;
CREATE SEQUENCE public.fences
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;
SET default_tablespace = '';
SET default_table_access_method = heap;
CREATE TABLE public.attempts (
    attempt_id text NOT NULL,
    rollout_id text NOT NULL,
    sequence_id integer NOT NULL,
    try_number integer NOT NULL,
    open_key text NOT NULL,
    fence bigint DEFAULT nextval('public.fences'::regclass) NOT NULL,
    status text DEFAULT 'preparing'::text NOT NULL,
    failure_class text,
    message text DEFAULT ''::text NOT NULL,
    error jsonb,
    output text DEFAULT ''::text NOT NULL,
    output_bytes bigint DEFAULT 0 NOT NULL,
    reward double precision,
    seconds double precision,
    token_hash text NOT NULL,
    worker_id text,
    metadata jsonb DEFAULT '{}'::jsonb NOT NULL,
    started_at timestamp with time zone DEFAULT now() NOT NULL,
    last_heartbeat timestamp with time zone,
    ended_at timestamp with time zone,
    CONSTRAINT attempts_status_check CHECK ((status = ANY (ARRAY['preparing'::text, 'running'::text, 'succeeded'::text, 'failed'::text, 'timeout'::text, 'unresponsive'::text])))
);
CREATE TABLE public.rollouts (
    rollout_id text NOT NULL,
    run text,
    step integer,
    kind text NOT NULL,
    batch integer,
    group_number integer,
    index_in_group integer,
    fill_up integer DEFAULT 0 NOT NULL,
    dataset_id text,
    "position" integer,
    input jsonb,
    mode text,
    resources_id text,
    status text DEFAULT 'queuing'::text NOT NULL,
    failure_class text,
    failure text,
    reward double precision,
    config jsonb DEFAULT '{}'::jsonb NOT NULL,
    metadata jsonb DEFAULT '{}'::jsonb NOT NULL,
    seed_base text,
    min_version integer,
    max_version integer,
    next_sequence bigint DEFAULT 1 NOT NULL,
    attempts integer DEFAULT 0 NOT NULL,
    deaths integer DEFAULT 0 NOT NULL,
    counted text,
    day date DEFAULT ((now() AT TIME ZONE 'utc'::text))::date NOT NULL,
    created_at timestamp with time zone DEFAULT now() NOT NULL,
    ended_at timestamp with time zone,
    CONSTRAINT rollouts_kind_check CHECK ((kind = ANY (ARRAY['train'::text, 'eval'::text, 'external'::text]))),
    CONSTRAINT rollouts_mode_check CHECK ((mode = ANY (ARRAY['train'::text, 'val'::text, 'test'::text]))),
    CONSTRAINT rollouts_status_check CHECK ((status = ANY (ARRAY['queuing'::text, 'preparing'::text, 'running'::text, 'requeuing'::text, 'succeeded'::text, 'failed'::text, 'cancelled'::text])))
);
CREATE FUNCTION public.assignment_v1(r public.rollouts, a public.attempts) RETURNS jsonb
    LANGUAGE sql STABLE
    AS $$
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
CREATE FUNCTION public.attempt_transition() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
begin
    if old.ended_at is not null and (new.status, new.failure_class, new.reward, new.ended_at)
        is distinct from (old.status, old.failure_class, old.reward, old.ended_at) then
        raise exception 'attempt % has ended as %', old.attempt_id, old.status using errcode = 'RL409';
    end if;
    return new;
end $$;
CREATE FUNCTION public.bury_attempt_v1(r public.rollouts, p_attempt text) RETURNS integer
    LANGUAGE plpgsql
    AS $$
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
CREATE FUNCTION public.commit_generations_v1(p_items public.generation_item_v1[]) RETURNS TABLE(item integer, verdict text, next_number integer)
    LANGUAGE plpgsql
    SET plan_cache_mode TO 'force_generic_plan'
    SET enable_seqscan TO 'off'
    AS $$
begin
    perform enter_attempts_v1(array_agg(given.attempt_id), array_agg(given.token_hash))
    from (select distinct g.attempt_id, g.token_hash from unnest(p_items) g) given;
    return query
    with judged as materialized (
        select given.*, r.day, case
            when a.attempt_id is null or a.rollout_id <> given.rollout_id or a.token_hash <> given.token_hash then 'foreign'
            when holder.request_hash = given.request_hash then 'committed'
            when a.ended_at is not null or r.status = 'cancelled' then 'over'
            when holder.request_hash is not null then 'renumber'
            else 'new'
        end as judgement
        from unnest(p_items) given
        left join attempts a on a.attempt_id = given.attempt_id
        left join rollouts r on r.rollout_id = a.rollout_id
        left join lateral (
            select g.request_hash from generations g
            where g.day = r.day and g.attempt_id = given.attempt_id and g.call_number = given.call_number limit 1
        ) holder on true
    ), stored_bodies as (
        insert into bodies (day, hash, body)
        select distinct on (b.day, b.hash) b.day, b.hash, b.body
        from judged j
        cross join lateral (values (j.day, j.request, j.request_body), (j.day, j.response, j.response_body))
            as b(day, hash, body)
        where j.judgement = 'new' and b.body is not null
        order by b.day, b.hash
        on conflict do nothing
    ), stored as (
        insert into generations (
            day, rollout_id, attempt_id, call_number, choice, request_hash, route, request, response,
            prompt_token_ids, token_ids, logprobs, sampling, seed, engine_id, model, version_start, version_end,
            finish_reason, complete, delivered, seconds)
        select j.day, j.rollout_id, j.attempt_id, j.call_number, j.choice, j.request_hash, j.route, j.request,
               j.response, j.prompt_token_ids, j.token_ids, j.logprobs, j.sampling::jsonb, j.seed, j.engine_id,
               j.model, version_at_v1(j.engine_id, j.seconds), version_at_v1(j.engine_id, 0), j.finish_reason,
               j.complete, j.delivered, j.seconds
        from judged j where j.judgement = 'new'
    )
    select j.item, j.judgement,
           case when j.judgement = 'renumber' then next_call_number_v1(j.day, j.attempt_id) end
    from judged j where j.request_body is not null;
end $$;
CREATE FUNCTION public.ensure_partition_v1(p_table text, p_day date) RETURNS boolean
    LANGUAGE plpgsql
    AS $$
declare
    part text := format('%s_%s', p_table, to_char(p_day, 'YYYYMMDD'));
begin
    if to_regclass(quote_ident(part)) is not null then
        return false;
    end if;
    execute format('create table %I (like %I including all)', part, p_table);
    execute format('alter table %I attach partition %I for values from (%L) to (%L)', p_table, part, p_day, p_day + 1);
    return true;
exception when check_violation then
    return false;
end $$;
CREATE FUNCTION public.enter_attempts_v1(p_attempts text[], p_tokens text[]) RETURNS void
    LANGUAGE plpgsql
    AS $$
begin
    perform from rollouts r where r.status = 'preparing' and r.rollout_id in (
        select a.rollout_id from attempts a where a.attempt_id = any (p_attempts))
    order by r.rollout_id for no key update;
    perform from attempts a where a.attempt_id = any (p_attempts) order by a.attempt_id for no key update;
    update rollouts r set status = 'running'
    from attempts a join unnest(p_attempts, p_tokens) as given(id, token) on a.attempt_id = given.id
    where a.token_hash = given.token and r.rollout_id = a.rollout_id and r.status = 'preparing' and a.ended_at is null;
    update attempts a set status = 'running', last_heartbeat = clock_timestamp()
    from unnest(p_attempts, p_tokens) as given(id, token)
    where a.attempt_id = given.id and a.token_hash = given.token and a.ended_at is null
      and (a.status = 'preparing' or a.last_heartbeat < clock_timestamp() - interval '1 s');
end $$;
CREATE FUNCTION public.finish_attempt_v1(p_attempt text, p_fence bigint, p_class text, p_reward double precision, p_message text, p_error jsonb, p_output text, p_output_bytes bigint, p_seconds double precision, p_spans jsonb, p_grader text) RETURNS jsonb
    LANGUAGE plpgsql
    SET plan_cache_mode TO 'force_generic_plan'
    SET enable_seqscan TO 'off'
    AS $$
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
CREATE FUNCTION public.hand_over_v1(p_attempt text, p_fence bigint, p_output text, p_output_bytes bigint, p_seconds double precision) RETURNS void
    LANGUAGE plpgsql
    SET plan_cache_mode TO 'force_generic_plan'
    SET enable_seqscan TO 'off'
    AS $$
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
CREATE FUNCTION public.has_unresolved_failure_v1(p_day date, p_attempt text) RETURNS boolean
    LANGUAGE sql STABLE
    AS $$
    select exists (
        select from call_failures f
        where f.day = p_day and f.attempt_id = p_attempt and not exists (
            select from generations g
            where g.day = p_day and g.attempt_id = p_attempt
              and g.request_hash = f.request_hash and g.call_number >= f.call_number))
$$;
CREATE FUNCTION public.is_platform_failure(class text) RETURNS boolean
    LANGUAGE sql IMMUTABLE
    AS $$
    select coalesce(class in ('infrastructure', 'engine_error', 'grader_error'), false)
$$;
CREATE FUNCTION public.mark_delivered_v1(p_attempts text[], p_calls integer[], p_marks text[]) RETURNS void
    LANGUAGE plpgsql
    SET plan_cache_mode TO 'force_generic_plan'
    SET enable_seqscan TO 'off'
    AS $$
declare
    given record;
begin
    perform set_config('synchronous_commit', 'off', true);
    for given in
        select r.day, a.attempt_id, x.call_number, x.delivered
        from unnest(p_attempts, p_calls, p_marks) as x(attempt_id, call_number, delivered)
        join attempts a on a.attempt_id = x.attempt_id and a.ended_at is null
        join rollouts r on r.rollout_id = a.rollout_id
    loop
        update generations g set delivered = given.delivered
        where g.day = given.day and g.attempt_id = given.attempt_id and g.call_number = given.call_number
          and g.delivered <> 'yes' and g.delivered <> given.delivered;
    end loop;
end $$;
CREATE FUNCTION public.next_call_number_v1(p_day date, p_attempt text) RETURNS integer
    LANGUAGE sql STABLE
    AS $$
    select coalesce(max(call_number), 0) + 1 from generations where day = p_day and attempt_id = p_attempt
$$;
CREATE FUNCTION public.open_attempt_v1(p_rollout text, p_try integer, p_open_key text, p_worker text, p_attempt text, p_token_hash text) RETURNS jsonb
    LANGUAGE plpgsql
    SET plan_cache_mode TO 'force_generic_plan'
    SET enable_seqscan TO 'off'
    AS $$
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
CREATE FUNCTION public.open_refusal_v1(r public.rollouts, p_try integer, p_open_key text, newest public.attempts) RETURNS jsonb
    LANGUAGE plpgsql
    AS $$
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
CREATE FUNCTION public.outcome_v1(a public.attempts) RETURNS jsonb
    LANGUAGE sql IMMUTABLE
    AS $$
    select jsonb_build_object(
        'rollout_id', a.rollout_id, 'attempt_id', a.attempt_id, 'try_number', a.try_number,
        'succeeded', a.status = 'succeeded', 'failure_class', a.failure_class, 'reward', a.reward, 'message', a.message)
$$;
CREATE FUNCTION public.rollout_transition() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
begin
    if old.status in ('succeeded', 'failed', 'cancelled') and new.status <> old.status
       and not (new.status = 'requeuing' and old.counted is null) then
        raise exception 'rollout % is % and can not become %', old.rollout_id, old.status, new.status
            using errcode = 'RL409';
    end if;
    return new;
end $$;
CREATE FUNCTION public.run_waits_v1(p_run text) RETURNS text
    LANGUAGE sql STABLE
    AS $$
    select case
        when paused then 'the run is paused'
        when (select not bool_or(state in ('ready', 'loading')) from engines where run = p_run) then 'no engine is ready'
    end
    from runs where run = p_run
$$;
CREATE FUNCTION public.sampling_v1(p_run text, p_step integer) RETURNS jsonb
    LANGUAGE sql STABLE
    AS $$
    select coalesce(
        (select plan -> 'sampling' from steps where run = p_run and step = p_step),
        (select file -> 'sampling' from runs where run = p_run),
        '{}')
$$;
CREATE FUNCTION public.settle_deliveries_v1(p_day date, p_attempt text) RETURNS void
    LANGUAGE sql
    AS $$
    update generations g
    set delivered = case when exists (
        select from generations later
        where later.day = p_day and later.attempt_id = p_attempt and later.call_number > g.call_number
          and later.prompt_token_ids is not distinct from g.prompt_token_ids
          and (g.prompt_token_ids is not null or later.request_hash = g.request_hash)
    ) then 'no' else 'yes' end
    where g.day = p_day and g.attempt_id = p_attempt and g.delivered = 'unknown'
$$;
CREATE FUNCTION public.status_after_v1(r public.rollouts, p_try integer, p_class text) RETURNS text
    LANGUAGE sql IMMUTABLE
    AS $$
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
CREATE FUNCTION public.touch_attempt_v1(p_rollout text, p_attempt text, p_fence bigint) RETURNS void
    LANGUAGE plpgsql
    AS $$
begin
    update rollouts set status = 'running'
    where rollout_id = p_rollout and status = 'preparing' and exists (
        select from attempts where attempt_id = p_attempt and fence = p_fence and ended_at is null);
    update attempts set status = 'running', last_heartbeat = clock_timestamp()
    where attempt_id = p_attempt and fence = p_fence and ended_at is null
      and (status = 'preparing' or last_heartbeat is null or last_heartbeat < clock_timestamp() - interval '1 s');
end $$;
CREATE FUNCTION public.version_at_v1(p_engine text, p_seconds_ago double precision) RETURNS integer
    LANGUAGE sql STABLE
    AS $$
    select version from engine_loads
    where engine_id = p_engine and loaded_at <= clock_timestamp() - make_interval(secs => p_seconds_ago)
    order by load desc limit 1
$$;
CREATE TABLE public.audit (
    id bigint NOT NULL,
    run text,
    rollout_id text,
    actor text NOT NULL,
    action text NOT NULL,
    before jsonb,
    after jsonb,
    effective_step integer,
    refused text,
    created_at timestamp with time zone DEFAULT now() NOT NULL,
    request_key text
);
ALTER TABLE public.audit ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME public.audit_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);
CREATE TABLE public.bodies (
    day date NOT NULL,
    hash bytea NOT NULL,
    body bytea NOT NULL
)
PARTITION BY RANGE (day);
CREATE TABLE public.bodies_20261121 (
    day date CONSTRAINT bodies_day_not_null NOT NULL,
    hash bytea CONSTRAINT bodies_hash_not_null NOT NULL,
    body bytea CONSTRAINT bodies_body_not_null NOT NULL
);
CREATE TABLE public.bodies_20261122 (
    day date CONSTRAINT bodies_day_not_null NOT NULL,
    hash bytea CONSTRAINT bodies_hash_not_null NOT NULL,
    body bytea CONSTRAINT bodies_body_not_null NOT NULL
);
CREATE TABLE public.bodies_20261123 (
    day date CONSTRAINT bodies_day_not_null NOT NULL,
    hash bytea CONSTRAINT bodies_hash_not_null NOT NULL,
    body bytea CONSTRAINT bodies_body_not_null NOT NULL
);
CREATE TABLE public.bodies_default (
    day date CONSTRAINT bodies_day_not_null NOT NULL,
    hash bytea CONSTRAINT bodies_hash_not_null NOT NULL,
    body bytea CONSTRAINT bodies_body_not_null NOT NULL
);
CREATE TABLE public.call_failures (
    day date NOT NULL,
    attempt_id text NOT NULL,
    call_number integer NOT NULL,
    request_hash text NOT NULL,
    message text NOT NULL,
    created_at timestamp with time zone DEFAULT now() NOT NULL
)
PARTITION BY RANGE (day);
CREATE TABLE public.call_failures_20261121 (
    day date CONSTRAINT call_failures_day_not_null NOT NULL,
    attempt_id text CONSTRAINT call_failures_attempt_id_not_null NOT NULL,
    call_number integer CONSTRAINT call_failures_call_number_not_null NOT NULL,
    request_hash text CONSTRAINT call_failures_request_hash_not_null NOT NULL,
    message text CONSTRAINT call_failures_message_not_null NOT NULL,
    created_at timestamp with time zone DEFAULT now() CONSTRAINT call_failures_created_at_not_null NOT NULL
);
CREATE TABLE public.call_failures_20261122 (
    day date CONSTRAINT call_failures_day_not_null NOT NULL,
    attempt_id text CONSTRAINT call_failures_attempt_id_not_null NOT NULL,
    call_number integer CONSTRAINT call_failures_call_number_not_null NOT NULL,
    request_hash text CONSTRAINT call_failures_request_hash_not_null NOT NULL,
    message text CONSTRAINT call_failures_message_not_null NOT NULL,
    created_at timestamp with time zone DEFAULT now() CONSTRAINT call_failures_created_at_not_null NOT NULL
);
CREATE TABLE public.call_failures_20261123 (
    day date CONSTRAINT call_failures_day_not_null NOT NULL,
    attempt_id text CONSTRAINT call_failures_attempt_id_not_null NOT NULL,
    call_number integer CONSTRAINT call_failures_call_number_not_null NOT NULL,
    request_hash text CONSTRAINT call_failures_request_hash_not_null NOT NULL,
    message text CONSTRAINT call_failures_message_not_null NOT NULL,
    created_at timestamp with time zone DEFAULT now() CONSTRAINT call_failures_created_at_not_null NOT NULL
);
CREATE TABLE public.call_failures_default (
    day date CONSTRAINT call_failures_day_not_null NOT NULL,
    attempt_id text CONSTRAINT call_failures_attempt_id_not_null NOT NULL,
    call_number integer CONSTRAINT call_failures_call_number_not_null NOT NULL,
    request_hash text CONSTRAINT call_failures_request_hash_not_null NOT NULL,
    message text CONSTRAINT call_failures_message_not_null NOT NULL,
    created_at timestamp with time zone DEFAULT now() CONSTRAINT call_failures_created_at_not_null NOT NULL
);
CREATE TABLE public.datasets (
    dataset_id text NOT NULL,
    source text NOT NULL,
    row_count integer NOT NULL,
    created_at timestamp with time zone DEFAULT now() NOT NULL
);
CREATE TABLE public.engine_loads (
    engine_id text NOT NULL,
    load integer NOT NULL,
    run text NOT NULL,
    version integer NOT NULL,
    loaded_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL
);
CREATE TABLE public.engines (
    engine_id text NOT NULL,
    host text NOT NULL,
    run text NOT NULL,
    url text NOT NULL,
    model text NOT NULL,
    state text NOT NULL,
    version integer,
    load integer DEFAULT 0 NOT NULL,
    fence bigint DEFAULT 0 NOT NULL,
    pid integer,
    updated_at timestamp with time zone DEFAULT now() NOT NULL,
    CONSTRAINT engines_state_check CHECK ((state = ANY (ARRAY['starting'::text, 'ready'::text, 'loading'::text, 'dead'::text])))
);
CREATE TABLE public.generations (
    day date NOT NULL,
    rollout_id text NOT NULL,
    attempt_id text NOT NULL,
    call_number integer NOT NULL,
    choice integer NOT NULL,
    request_hash text NOT NULL,
    route text NOT NULL,
    request bytea NOT NULL,
    response bytea NOT NULL,
    prompt_token_ids integer[],
    token_ids integer[],
    logprobs real[],
    sampling jsonb NOT NULL,
    seed bigint NOT NULL,
    engine_id text NOT NULL,
    model text NOT NULL,
    version_start integer,
    version_end integer,
    finish_reason text,
    complete boolean NOT NULL,
    delivered text NOT NULL,
    seconds double precision NOT NULL,
    created_at timestamp with time zone DEFAULT now() NOT NULL,
    CONSTRAINT generations_delivered_check CHECK ((delivered = ANY (ARRAY['yes'::text, 'no'::text, 'unknown'::text])))
)
PARTITION BY RANGE (day);
CREATE TABLE public.generations_20261121 (
    day date CONSTRAINT generations_day_not_null NOT NULL,
    rollout_id text CONSTRAINT generations_rollout_id_not_null NOT NULL,
    attempt_id text CONSTRAINT generations_attempt_id_not_null NOT NULL,
    call_number integer CONSTRAINT generations_call_number_not_null NOT NULL,
    choice integer CONSTRAINT generations_choice_not_null NOT NULL,
    request_hash text CONSTRAINT generations_request_hash_not_null NOT NULL,
    route text CONSTRAINT generations_route_not_null NOT NULL,
    request bytea CONSTRAINT generations_request_not_null NOT NULL,
    response bytea CONSTRAINT generations_response_not_null NOT NULL,
    prompt_token_ids integer[],
    token_ids integer[],
    logprobs real[],
    sampling jsonb CONSTRAINT generations_sampling_not_null NOT NULL,
    seed bigint CONSTRAINT generations_seed_not_null NOT NULL,
    engine_id text CONSTRAINT generations_engine_id_not_null NOT NULL,
    model text CONSTRAINT generations_model_not_null NOT NULL,
    version_start integer,
    version_end integer,
    finish_reason text,
    complete boolean CONSTRAINT generations_complete_not_null NOT NULL,
    delivered text CONSTRAINT generations_delivered_not_null NOT NULL,
    seconds double precision CONSTRAINT generations_seconds_not_null NOT NULL,
    created_at timestamp with time zone DEFAULT now() CONSTRAINT generations_created_at_not_null NOT NULL,
    CONSTRAINT generations_delivered_check CHECK ((delivered = ANY (ARRAY['yes'::text, 'no'::text, 'unknown'::text])))
);
CREATE TABLE public.generations_20261122 (
    day date CONSTRAINT generations_day_not_null NOT NULL,
    rollout_id text CONSTRAINT generations_rollout_id_not_null NOT NULL,
    attempt_id text CONSTRAINT generations_attempt_id_not_null NOT NULL,
    call_number integer CONSTRAINT generations_call_number_not_null NOT NULL,
    choice integer CONSTRAINT generations_choice_not_null NOT NULL,
    request_hash text CONSTRAINT generations_request_hash_not_null NOT NULL,
    route text CONSTRAINT generations_route_not_null NOT NULL,
    request bytea CONSTRAINT generations_request_not_null NOT NULL,
    response bytea CONSTRAINT generations_response_not_null NOT NULL,
    prompt_token_ids integer[],
    token_ids integer[],
    logprobs real[],
    sampling jsonb CONSTRAINT generations_sampling_not_null NOT NULL,
    seed bigint CONSTRAINT generations_seed_not_null NOT NULL,
    engine_id text CONSTRAINT generations_engine_id_not_null NOT NULL,
    model text CONSTRAINT generations_model_not_null NOT NULL,
    version_start integer,
    version_end integer,
    finish_reason text,
    complete boolean CONSTRAINT generations_complete_not_null NOT NULL,
    delivered text CONSTRAINT generations_delivered_not_null NOT NULL,
    seconds double precision CONSTRAINT generations_seconds_not_null NOT NULL,
    created_at timestamp with time zone DEFAULT now() CONSTRAINT generations_created_at_not_null NOT NULL,
    CONSTRAINT generations_delivered_check CHECK ((delivered = ANY (ARRAY['yes'::text, 'no'::text, 'unknown'::text])))
);
CREATE TABLE public.generations_20261123 (
    day date CONSTRAINT generations_day_not_null NOT NULL,
    rollout_id text CONSTRAINT generations_rollout_id_not_null NOT NULL,
    attempt_id text CONSTRAINT generations_attempt_id_not_null NOT NULL,
    call_number integer CONSTRAINT generations_call_number_not_null NOT NULL,
    choice integer CONSTRAINT generations_choice_not_null NOT NULL,
    request_hash text CONSTRAINT generations_request_hash_not_null NOT NULL,
    route text CONSTRAINT generations_route_not_null NOT NULL,
    request bytea CONSTRAINT generations_request_not_null NOT NULL,
    response bytea CONSTRAINT generations_response_not_null NOT NULL,
    prompt_token_ids integer[],
    token_ids integer[],
    logprobs real[],
    sampling jsonb CONSTRAINT generations_sampling_not_null NOT NULL,
    seed bigint CONSTRAINT generations_seed_not_null NOT NULL,
    engine_id text CONSTRAINT generations_engine_id_not_null NOT NULL,
    model text CONSTRAINT generations_model_not_null NOT NULL,
    version_start integer,
    version_end integer,
    finish_reason text,
    complete boolean CONSTRAINT generations_complete_not_null NOT NULL,
    delivered text CONSTRAINT generations_delivered_not_null NOT NULL,
    seconds double precision CONSTRAINT generations_seconds_not_null NOT NULL,
    created_at timestamp with time zone DEFAULT now() CONSTRAINT generations_created_at_not_null NOT NULL,
    CONSTRAINT generations_delivered_check CHECK ((delivered = ANY (ARRAY['yes'::text, 'no'::text, 'unknown'::text])))
);
CREATE TABLE public.generations_default (
    day date CONSTRAINT generations_day_not_null NOT NULL,
    rollout_id text CONSTRAINT generations_rollout_id_not_null NOT NULL,
    attempt_id text CONSTRAINT generations_attempt_id_not_null NOT NULL,
    call_number integer CONSTRAINT generations_call_number_not_null NOT NULL,
    choice integer CONSTRAINT generations_choice_not_null NOT NULL,
    request_hash text CONSTRAINT generations_request_hash_not_null NOT NULL,
    route text CONSTRAINT generations_route_not_null NOT NULL,
    request bytea CONSTRAINT generations_request_not_null NOT NULL,
    response bytea CONSTRAINT generations_response_not_null NOT NULL,
    prompt_token_ids integer[],
    token_ids integer[],
    logprobs real[],
    sampling jsonb CONSTRAINT generations_sampling_not_null NOT NULL,
    seed bigint CONSTRAINT generations_seed_not_null NOT NULL,
    engine_id text CONSTRAINT generations_engine_id_not_null NOT NULL,
    model text CONSTRAINT generations_model_not_null NOT NULL,
    version_start integer,
    version_end integer,
    finish_reason text,
    complete boolean CONSTRAINT generations_complete_not_null NOT NULL,
    delivered text CONSTRAINT generations_delivered_not_null NOT NULL,
    seconds double precision CONSTRAINT generations_seconds_not_null NOT NULL,
    created_at timestamp with time zone DEFAULT now() CONSTRAINT generations_created_at_not_null NOT NULL,
    CONSTRAINT generations_delivered_check CHECK ((delivered = ANY (ARRAY['yes'::text, 'no'::text, 'unknown'::text])))
);
CREATE TABLE public.gpu_hosts (
    host text NOT NULL,
    run text,
    epoch integer,
    task_queue text NOT NULL,
    state text DEFAULT 'idle'::text NOT NULL,
    detail text,
    heartbeat timestamp with time zone DEFAULT now() NOT NULL
);
CREATE TABLE public.leases (
    name text NOT NULL,
    fence bigint NOT NULL,
    holder text NOT NULL,
    expires_at timestamp with time zone NOT NULL
);
CREATE TABLE public.metrics (
    run text NOT NULL,
    step integer NOT NULL,
    name text NOT NULL,
    value double precision NOT NULL,
    created_at timestamp with time zone DEFAULT now() NOT NULL
);
CREATE TABLE public.migrations (
    version integer NOT NULL,
    name text NOT NULL,
    applied_at timestamp with time zone DEFAULT now() NOT NULL
);
CREATE TABLE public.outbox (
    id bigint NOT NULL,
    workflow_type text NOT NULL,
    workflow_id text NOT NULL,
    task_queue text NOT NULL,
    input jsonb NOT NULL,
    created_at timestamp with time zone DEFAULT now() NOT NULL,
    started_at timestamp with time zone
);
ALTER TABLE public.outbox ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME public.outbox_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);
CREATE TABLE public.policy_versions (
    run text NOT NULL,
    version integer NOT NULL,
    fence bigint DEFAULT 0 NOT NULL,
    weights_hash text NOT NULL,
    export_path text NOT NULL,
    checkpoint_path text,
    published_at timestamp with time zone DEFAULT now() NOT NULL,
    checkpointed_at timestamp with time zone,
    CONSTRAINT policy_versions_version_check CHECK ((version >= 0))
);
CREATE TABLE public.resources (
    resources_id text NOT NULL,
    version integer DEFAULT 1 NOT NULL,
    resources jsonb NOT NULL,
    create_time timestamp with time zone DEFAULT now() NOT NULL,
    update_time timestamp with time zone DEFAULT now() NOT NULL,
    sequence bigint NOT NULL
);
ALTER TABLE public.resources ALTER COLUMN sequence ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME public.resources_sequence_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);
CREATE TABLE public.rewards (
    rollout_id text NOT NULL,
    attempt_id text NOT NULL,
    grader text DEFAULT 'agent'::text NOT NULL,
    value double precision NOT NULL,
    created_at timestamp with time zone DEFAULT now() NOT NULL
);
CREATE TABLE public.runs (
    run text NOT NULL,
    file jsonb NOT NULL,
    file_hash text NOT NULL,
    hyperparameters jsonb DEFAULT '{}'::jsonb NOT NULL,
    status text DEFAULT 'running'::text NOT NULL,
    epoch integer DEFAULT 1 NOT NULL,
    driver text NOT NULL,
    paused boolean DEFAULT false NOT NULL,
    pause_reason text,
    stop_after_step integer,
    concurrency integer,
    waiting_for text,
    phase text,
    error text,
    total_steps integer NOT NULL,
    train_dataset text NOT NULL,
    eval_dataset text,
    resources_id text,
    parent_run text,
    parent_step integer,
    created_at timestamp with time zone DEFAULT now() NOT NULL,
    finished_at timestamp with time zone,
    CONSTRAINT runs_run_check CHECK ((run ~ '^[a-z0-9][a-z0-9._-]{0,62}$'::text)),
    CONSTRAINT runs_status_check CHECK ((status = ANY (ARRAY['running'::text, 'finished'::text, 'failed'::text, 'cancelled'::text, 'interrupted'::text])))
);
CREATE TABLE public.secrets (
    name text NOT NULL,
    value bytea NOT NULL
);
CREATE TABLE public.spans (
    day date NOT NULL,
    rollout_id text NOT NULL,
    attempt_id text NOT NULL,
    span_id text NOT NULL,
    sequence_id bigint NOT NULL,
    trace_id text NOT NULL,
    parent_id text,
    name text NOT NULL,
    status jsonb DEFAULT '{}'::jsonb NOT NULL,
    attributes jsonb DEFAULT '{}'::jsonb NOT NULL,
    events jsonb DEFAULT '[]'::jsonb NOT NULL,
    links jsonb DEFAULT '[]'::jsonb NOT NULL,
    resource jsonb DEFAULT '{}'::jsonb NOT NULL,
    start_time double precision NOT NULL,
    end_time double precision,
    created_at timestamp with time zone DEFAULT now() NOT NULL
)
PARTITION BY RANGE (day);
CREATE TABLE public.spans_20261121 (
    day date CONSTRAINT spans_day_not_null NOT NULL,
    rollout_id text CONSTRAINT spans_rollout_id_not_null NOT NULL,
    attempt_id text CONSTRAINT spans_attempt_id_not_null NOT NULL,
    span_id text CONSTRAINT spans_span_id_not_null NOT NULL,
    sequence_id bigint CONSTRAINT spans_sequence_id_not_null NOT NULL,
    trace_id text CONSTRAINT spans_trace_id_not_null NOT NULL,
    parent_id text,
    name text CONSTRAINT spans_name_not_null NOT NULL,
    status jsonb DEFAULT '{}'::jsonb CONSTRAINT spans_status_not_null NOT NULL,
    attributes jsonb DEFAULT '{}'::jsonb CONSTRAINT spans_attributes_not_null NOT NULL,
    events jsonb DEFAULT '[]'::jsonb CONSTRAINT spans_events_not_null NOT NULL,
    links jsonb DEFAULT '[]'::jsonb CONSTRAINT spans_links_not_null NOT NULL,
    resource jsonb DEFAULT '{}'::jsonb CONSTRAINT spans_resource_not_null NOT NULL,
    start_time double precision CONSTRAINT spans_start_time_not_null NOT NULL,
    end_time double precision,
    created_at timestamp with time zone DEFAULT now() CONSTRAINT spans_created_at_not_null NOT NULL
);
CREATE TABLE public.spans_20261122 (
    day date CONSTRAINT spans_day_not_null NOT NULL,
    rollout_id text CONSTRAINT spans_rollout_id_not_null NOT NULL,
    attempt_id text CONSTRAINT spans_attempt_id_not_null NOT NULL,
    span_id text CONSTRAINT spans_span_id_not_null NOT NULL,
    sequence_id bigint CONSTRAINT spans_sequence_id_not_null NOT NULL,
    trace_id text CONSTRAINT spans_trace_id_not_null NOT NULL,
    parent_id text,
    name text CONSTRAINT spans_name_not_null NOT NULL,
    status jsonb DEFAULT '{}'::jsonb CONSTRAINT spans_status_not_null NOT NULL,
    attributes jsonb DEFAULT '{}'::jsonb CONSTRAINT spans_attributes_not_null NOT NULL,
    events jsonb DEFAULT '[]'::jsonb CONSTRAINT spans_events_not_null NOT NULL,
    links jsonb DEFAULT '[]'::jsonb CONSTRAINT spans_links_not_null NOT NULL,
    resource jsonb DEFAULT '{}'::jsonb CONSTRAINT spans_resource_not_null NOT NULL,
    start_time double precision CONSTRAINT spans_start_time_not_null NOT NULL,
    end_time double precision,
    created_at timestamp with time zone DEFAULT now() CONSTRAINT spans_created_at_not_null NOT NULL
);
CREATE TABLE public.spans_20261123 (
    day date CONSTRAINT spans_day_not_null NOT NULL,
    rollout_id text CONSTRAINT spans_rollout_id_not_null NOT NULL,
    attempt_id text CONSTRAINT spans_attempt_id_not_null NOT NULL,
    span_id text CONSTRAINT spans_span_id_not_null NOT NULL,
    sequence_id bigint CONSTRAINT spans_sequence_id_not_null NOT NULL,
    trace_id text CONSTRAINT spans_trace_id_not_null NOT NULL,
    parent_id text,
    name text CONSTRAINT spans_name_not_null NOT NULL,
    status jsonb DEFAULT '{}'::jsonb CONSTRAINT spans_status_not_null NOT NULL,
    attributes jsonb DEFAULT '{}'::jsonb CONSTRAINT spans_attributes_not_null NOT NULL,
    events jsonb DEFAULT '[]'::jsonb CONSTRAINT spans_events_not_null NOT NULL,
    links jsonb DEFAULT '[]'::jsonb CONSTRAINT spans_links_not_null NOT NULL,
    resource jsonb DEFAULT '{}'::jsonb CONSTRAINT spans_resource_not_null NOT NULL,
    start_time double precision CONSTRAINT spans_start_time_not_null NOT NULL,
    end_time double precision,
    created_at timestamp with time zone DEFAULT now() CONSTRAINT spans_created_at_not_null NOT NULL
);
CREATE TABLE public.spans_default (
    day date CONSTRAINT spans_day_not_null NOT NULL,
    rollout_id text CONSTRAINT spans_rollout_id_not_null NOT NULL,
    attempt_id text CONSTRAINT spans_attempt_id_not_null NOT NULL,
    span_id text CONSTRAINT spans_span_id_not_null NOT NULL,
    sequence_id bigint CONSTRAINT spans_sequence_id_not_null NOT NULL,
    trace_id text CONSTRAINT spans_trace_id_not_null NOT NULL,
    parent_id text,
    name text CONSTRAINT spans_name_not_null NOT NULL,
    status jsonb DEFAULT '{}'::jsonb CONSTRAINT spans_status_not_null NOT NULL,
    attributes jsonb DEFAULT '{}'::jsonb CONSTRAINT spans_attributes_not_null NOT NULL,
    events jsonb DEFAULT '[]'::jsonb CONSTRAINT spans_events_not_null NOT NULL,
    links jsonb DEFAULT '[]'::jsonb CONSTRAINT spans_links_not_null NOT NULL,
    resource jsonb DEFAULT '{}'::jsonb CONSTRAINT spans_resource_not_null NOT NULL,
    start_time double precision CONSTRAINT spans_start_time_not_null NOT NULL,
    end_time double precision,
    created_at timestamp with time zone DEFAULT now() CONSTRAINT spans_created_at_not_null NOT NULL
);
CREATE TABLE public.step_rollouts (
    run text NOT NULL,
    step integer NOT NULL,
    rollout_id text NOT NULL,
    attempt_id text NOT NULL,
    group_number integer NOT NULL,
    reward double precision NOT NULL,
    grader text DEFAULT 'agent'::text NOT NULL,
    advantage double precision
);
CREATE TABLE public.steps (
    run text NOT NULL,
    step integer NOT NULL,
    status text DEFAULT 'planned'::text NOT NULL,
    plan jsonb NOT NULL,
    resources_id text,
    batches integer NOT NULL,
    batch_hash text,
    unchanged boolean DEFAULT false NOT NULL,
    metrics jsonb DEFAULT '{}'::jsonb NOT NULL,
    seconds jsonb DEFAULT '{}'::jsonb NOT NULL,
    planned_at timestamp with time zone DEFAULT now() NOT NULL,
    sampled_at timestamp with time zone,
    ledgered_at timestamp with time zone,
    recorded_at timestamp with time zone,
    CONSTRAINT steps_status_check CHECK ((status = ANY (ARRAY['planned'::text, 'sampled'::text, 'ledgered'::text, 'recorded'::text]))),
    CONSTRAINT steps_step_check CHECK ((step >= 0))
);
CREATE TABLE public.tasks (
    dataset_id text NOT NULL,
    "position" integer NOT NULL,
    task jsonb NOT NULL
);
CREATE TABLE public.training_rows (
    run text NOT NULL,
    step integer NOT NULL,
    row_number integer NOT NULL,
    rollout_id text NOT NULL,
    attempt_id text NOT NULL,
    calls integer[] NOT NULL,
    prompt_ids integer[] NOT NULL,
    response_ids integer[] NOT NULL,
    mask smallint[] NOT NULL,
    advantage double precision NOT NULL,
    weight double precision NOT NULL,
    sampled_logprobs real[] NOT NULL,
    trainer_logprobs real[]
);
CREATE TABLE public.workers (
    worker_id text NOT NULL,
    kind text NOT NULL,
    host text NOT NULL,
    pid integer,
    serves text[] DEFAULT '{}'::text[] NOT NULL,
    status text DEFAULT 'idle'::text NOT NULL,
    heartbeat_stats jsonb DEFAULT '{}'::jsonb NOT NULL,
    last_heartbeat timestamp with time zone DEFAULT now() NOT NULL,
    started_at timestamp with time zone DEFAULT now() NOT NULL
);
ALTER TABLE ONLY public.bodies ATTACH PARTITION public.bodies_20261121 FOR VALUES FROM ('2026-11-21') TO ('2026-11-22');
ALTER TABLE ONLY public.bodies ATTACH PARTITION public.bodies_20261122 FOR VALUES FROM ('2026-11-22') TO ('2026-11-23');
ALTER TABLE ONLY public.bodies ATTACH PARTITION public.bodies_20261123 FOR VALUES FROM ('2026-11-23') TO ('2026-11-24');
ALTER TABLE ONLY public.bodies ATTACH PARTITION public.bodies_default DEFAULT;
ALTER TABLE ONLY public.call_failures ATTACH PARTITION public.call_failures_20261121 FOR VALUES FROM ('2026-11-21') TO ('2026-11-22');
ALTER TABLE ONLY public.call_failures ATTACH PARTITION public.call_failures_20261122 FOR VALUES FROM ('2026-11-22') TO ('2026-11-23');
ALTER TABLE ONLY public.call_failures ATTACH PARTITION public.call_failures_20261123 FOR VALUES FROM ('2026-11-23') TO ('2026-11-24');
ALTER TABLE ONLY public.call_failures ATTACH PARTITION public.call_failures_default DEFAULT;
ALTER TABLE ONLY public.generations ATTACH PARTITION public.generations_20261121 FOR VALUES FROM ('2026-11-21') TO ('2026-11-22');
ALTER TABLE ONLY public.generations ATTACH PARTITION public.generations_20261122 FOR VALUES FROM ('2026-11-22') TO ('2026-11-23');
ALTER TABLE ONLY public.generations ATTACH PARTITION public.generations_20261123 FOR VALUES FROM ('2026-11-23') TO ('2026-11-24');
ALTER TABLE ONLY public.generations ATTACH PARTITION public.generations_default DEFAULT;
ALTER TABLE ONLY public.spans ATTACH PARTITION public.spans_20261121 FOR VALUES FROM ('2026-11-21') TO ('2026-11-22');
ALTER TABLE ONLY public.spans ATTACH PARTITION public.spans_20261122 FOR VALUES FROM ('2026-11-22') TO ('2026-11-23');
ALTER TABLE ONLY public.spans ATTACH PARTITION public.spans_20261123 FOR VALUES FROM ('2026-11-23') TO ('2026-11-24');
ALTER TABLE ONLY public.spans ATTACH PARTITION public.spans_default DEFAULT;
INSERT INTO public.attempts VALUES ('at-01a1fc32b0fe9d40856035', 'small-s0002-g01-i0', 1, 1, 'small-s0002-g01-i0/1/x1', 14, 'succeeded', NULL, '', NULL, 'done', 4, 0, 0, '5e37a0db95a6151528b796cb430d59b2bbef802b7f885714aa85189eb29a47d3', 'runner-1', '{}', '2026-11-21 03:42:22.974527+00', '2026-11-21 03:42:22.975292+00', '2026-11-21 03:42:22.977219+00');
INSERT INTO public.attempts VALUES ('at-01a1fc32b06477c5db2f84', 'small-e0000-g00-i0', 1, 1, 'small-e0000-g00-i0/1/x1', 2, 'succeeded', NULL, '', NULL, 'done', 4, 0, 0, '1d433d5e20b956eb0a2b001cb90b2be3e8d3f4f0824f6d1f7d03556af49b0e88', 'runner-1', '{}', '2026-11-21 03:42:22.821022+00', '2026-11-21 03:42:22.825092+00', '2026-11-21 03:42:22.839388+00');
INSERT INTO public.attempts VALUES ('at-01a1fc32b078c148bb65c7', 'small-e0000-g01-i0', 1, 1, 'small-e0000-g01-i0/1/x1', 3, 'succeeded', NULL, '', NULL, 'done', 4, 0, 0, 'e6c51b38ce75b0d3a08ee28828e09a5b2d7a3420dc76df33f35da58cf37ffc6d', 'runner-1', '{}', '2026-11-21 03:42:22.84062+00', '2026-11-21 03:42:22.841536+00', '2026-11-21 03:42:22.843761+00');
INSERT INTO public.attempts VALUES ('at-01a1fc32b082defcf9cd05', 'small-s0001-g00-i0', 1, 1, 'small-s0001-g00-i0/1/that dies', 4, 'failed', 'infrastructure', 'its process died, or lost touch with the platform', NULL, '', 0, NULL, NULL, '91850c1d99c789542f1d3e703560ce61a038a64d7963a2898691071d0cda5c48', 'runner-1', '{}', '2026-11-21 03:42:22.850965+00', '2026-11-21 03:42:22.851219+00', '2026-11-21 03:42:22.852086+00');
INSERT INTO public.attempts VALUES ('at-01a1fc32b1017bd5273426', 'small-s0002-g01-i1', 1, 1, 'small-s0002-g01-i1/1/x1', 15, 'failed', 'agent_error', 'no', NULL, '', 0, NULL, 0, 'f886562ced52a1341be73a7fa6a9cc1d2ea50223f4767a38b34ee68cea2dc14d', 'runner-1', '{}', '2026-11-21 03:42:22.977555+00', '2026-11-21 03:42:22.977735+00', '2026-11-21 03:42:22.978118+00');
INSERT INTO public.attempts VALUES ('at-01a1fc32b083ca7a5e1903', 'small-s0001-g00-i0', 2, 1, 'small-s0001-g00-i0/1/x1', 5, 'succeeded', NULL, '', NULL, 'done', 4, 0, 0, 'ac8997cf03bb39cf0fbb6c6276bc7052ccbb2f6684f36b44fe8b568895813924', 'runner-1', '{}', '2026-11-21 03:42:22.851727+00', '2026-11-21 03:42:22.8529+00', '2026-11-21 03:42:22.855+00');
INSERT INTO public.attempts VALUES ('at-01a1fc32b08796adf5ea5b', 'small-s0001-g00-i1', 1, 1, 'small-s0001-g00-i1/1/x1', 6, 'succeeded', NULL, '', NULL, 'done', 4, 1, 0, '0705596aab5cb9beebc269ee3b5b9e98d6bcf20b18ddece3c8c026000dc74143', 'runner-1', '{}', '2026-11-21 03:42:22.855368+00', '2026-11-21 03:42:22.85612+00', '2026-11-21 03:42:22.869551+00');
INSERT INTO public.attempts VALUES ('at-01a1fc32b0969d12277715', 'small-s0001-g01-i0', 1, 1, 'small-s0001-g01-i0/1/x1', 7, 'succeeded', NULL, '', NULL, 'done', 4, 0, 0, '88a99f2f1705dc59930bf1a58a4ab7ce20fad3c48f6112e93e8d12fdd0175ba5', 'runner-1', '{}', '2026-11-21 03:42:22.870278+00', '2026-11-21 03:42:22.871755+00', '2026-11-21 03:42:22.875668+00');
INSERT INTO public.attempts VALUES ('at-01a1fc32b09c6352f0ff93', 'small-s0001-g01-i1', 1, 1, 'small-s0001-g01-i1/1/x1', 8, 'failed', 'agent_error', 'no', NULL, '', 0, NULL, 0, '425bb0059c220c9e3b016d5dbada31b7b659b5b8a694a8c61bd26318dac970df', 'runner-1', '{}', '2026-11-21 03:42:22.876484+00', '2026-11-21 03:42:22.876709+00', '2026-11-21 03:42:22.877169+00');
INSERT INTO public.attempts VALUES ('at-01a1fc32b0e1f89faadf97', 'small-s0002-g00-i0', 1, 1, 'small-s0002-g00-i0/1/that dies', 11, 'failed', 'infrastructure', 'its process died, or lost touch with the platform', NULL, '', 0, NULL, NULL, '3d44192733913b00638f50a38818000ba85f186aa563085415e008bd96f6bbc1', 'runner-1', '{}', '2026-11-21 03:42:22.945358+00', '2026-11-21 03:42:22.945685+00', '2026-11-21 03:42:22.946302+00');
INSERT INTO public.attempts VALUES ('at-01a1fc32b0e20f30d59b8a', 'small-s0002-g00-i0', 2, 1, 'small-s0002-g00-i0/1/x1', 12, 'succeeded', NULL, '', NULL, 'done', 4, 0, 0, '7128ceaa3ae4e14a53f49433c65ccbb5300509721bb87944a5391b75cba7e58e', 'runner-1', '{}', '2026-11-21 03:42:22.946085+00', '2026-11-21 03:42:22.946971+00', '2026-11-21 03:42:22.951436+00');
INSERT INTO public.attempts VALUES ('at-01a1fc32b0f9f5553adc4a', 'small-s0002-g00-i1', 1, 1, 'small-s0002-g00-i1/1/x1', 13, 'succeeded', NULL, '', NULL, 'done', 4, 1, 0, '7d58b2e00d2c5613224c01ff230b2eddc6c6dfa718921e6a112943985d19883f', 'runner-1', '{}', '2026-11-21 03:42:22.969787+00', '2026-11-21 03:42:22.971358+00', '2026-11-21 03:42:22.974096+00');
INSERT INTO public.audit OVERRIDING SYSTEM VALUE VALUES (1, 'small', NULL, 'someone', 'set_hyperparameters', '{}', '{"learning_rate": 0.0001}', 1, NULL, '2026-11-21 03:42:22.810053+00', 'set_hyperparameters');
INSERT INTO public.bodies_20261121 VALUES ('2026-11-21', '\x284569949850c9771385890b39034d20e3c9fc51b05e9e587d213a9c5d54fac7', '\x7801ab56ca4d2d2e4e4c4f2d56b28aae562acacf4955b2522a2d4e2d52d2514acecf2b49cd2b010a64241667e81a2ad5c6d60200a7bb109d');
INSERT INTO public.bodies_20261121 VALUES ('2026-11-21', '\x7a5a0b15d81b36d399bce854c6902e09feaa753235cd90eec1398d70a977fb2c', '\x7801ab56ca4c51b2524ace482c49ce2dc8d13552d20172f23393538b95aca2ab954a522b4a80f2a6664ab5b1b5004b660e5d');
INSERT INTO public.bodies_20261121 VALUES ('2026-11-21', '\x9b222f60ba6d06a5948008d165b1bdb3cb9d37caae8961f706f58ece53ae6567', '\x7801ab56ca4c51b2524ace482c49ce2dc8d13554d20172f23393538b95aca2ab954a522b4a80f2a6664ab5b1b5004b490e5c');
INSERT INTO public.bodies_20261121 VALUES ('2026-11-21', '\xb09742960edb9636ea4e6c4bca65ec8603ad59a87956d62dbbaa5c2706d15e9c', '\x7801ab56ca4d2d2e4e4c4f2d56b28aae562acacf4955b2522a2d4e2d52d2514acecf2b49cd2b010a64241667e81a29d5c6d60200a7c0109e');
INSERT INTO public.call_failures_20261121 VALUES ('2026-11-21', 'at-01a1fc32b06477c5db2f84', 1, 'hash-1', 'the engine did not answer', '2026-11-21 03:42:22.824104+00');
INSERT INTO public.call_failures_20261121 VALUES ('2026-11-21', 'at-01a1fc32b078c148bb65c7', 1, 'hash-1', 'the engine did not answer', '2026-11-21 03:42:22.841319+00');
INSERT INTO public.call_failures_20261121 VALUES ('2026-11-21', 'at-01a1fc32b083ca7a5e1903', 1, 'hash-1', 'the engine did not answer', '2026-11-21 03:42:22.852685+00');
INSERT INTO public.call_failures_20261121 VALUES ('2026-11-21', 'at-01a1fc32b08796adf5ea5b', 1, 'hash-1', 'the engine did not answer', '2026-11-21 03:42:22.855945+00');
INSERT INTO public.call_failures_20261121 VALUES ('2026-11-21', 'at-01a1fc32b0969d12277715', 1, 'hash-1', 'the engine did not answer', '2026-11-21 03:42:22.871499+00');
INSERT INTO public.call_failures_20261121 VALUES ('2026-11-21', 'at-01a1fc32b0e20f30d59b8a', 1, 'hash-1', 'the engine did not answer', '2026-11-21 03:42:22.946761+00');
INSERT INTO public.call_failures_20261121 VALUES ('2026-11-21', 'at-01a1fc32b0f9f5553adc4a', 1, 'hash-1', 'the engine did not answer', '2026-11-21 03:42:22.97106+00');
INSERT INTO public.call_failures_20261121 VALUES ('2026-11-21', 'at-01a1fc32b0fe9d40856035', 1, 'hash-1', 'the engine did not answer', '2026-11-21 03:42:22.97513+00');
INSERT INTO public.datasets VALUES ('666251885e251dbe412692a972fdb6ed914070cd2f6461bd4684944d1be06002', 'train.jsonl', 4, '2026-11-21 03:42:22.793638+00');
INSERT INTO public.datasets VALUES ('414c26046e509a653f996e0c9492048afa080b92579388037cc22041eb1d51bf', 'heldout.jsonl', 4, '2026-11-21 03:42:22.802217+00');
INSERT INTO public.engine_loads VALUES ('engine-1', 1, 'small', 0, '2026-11-21 03:42:22.807201+00');
INSERT INTO public.engine_loads VALUES ('engine-1', 2, 'small', 0, '2026-11-21 03:42:22.809828+00');
INSERT INTO public.engine_loads VALUES ('engine-1', 3, 'small', 1, '2026-11-21 03:42:22.932896+00');
INSERT INTO public.engine_loads VALUES ('engine-1', 4, 'small', 2, '2026-11-21 03:42:22.984747+00');
INSERT INTO public.engines VALUES ('engine-1', 'host', 'small', 'unix:/tmp/engine-1.sock', 'policy', 'ready', 2, 4, 0, NULL, '2026-11-21 03:42:22.806085+00');
INSERT INTO public.generations_20261121 VALUES ('2026-11-21', 'small-e0000-g00-i0', 'at-01a1fc32b06477c5db2f84', 1, 0, 'hash-1', 'chat/completions', '\x284569949850c9771385890b39034d20e3c9fc51b05e9e587d213a9c5d54fac7', '\x9b222f60ba6d06a5948008d165b1bdb3cb9d37caae8961f706f58ece53ae6567', '{1,2,1}', '{3,4}', '{-0.5,-0.25}', '{"temperature": 1.0}', 3, 'engine-1', 'policy', 0, 0, 'stop', true, 'yes', 0, '2026-11-21 03:42:22.83113+00');
INSERT INTO public.generations_20261121 VALUES ('2026-11-21', 'small-e0000-g00-i0', 'at-01a1fc32b06477c5db2f84', 2, 0, 'hash-2', 'chat/completions', '\xb09742960edb9636ea4e6c4bca65ec8603ad59a87956d62dbbaa5c2706d15e9c', '\x7a5a0b15d81b36d399bce854c6902e09feaa753235cd90eec1398d70a977fb2c', '{1,2,2}', '{3,4}', '{-0.5,-0.25}', '{"temperature": 1.0}', 3, 'engine-1', 'policy', 0, 0, 'stop', true, 'yes', 0, '2026-11-21 03:42:22.83113+00');
INSERT INTO public.generations_20261121 VALUES ('2026-11-21', 'small-e0000-g01-i0', 'at-01a1fc32b078c148bb65c7', 1, 0, 'hash-1', 'chat/completions', '\x284569949850c9771385890b39034d20e3c9fc51b05e9e587d213a9c5d54fac7', '\x9b222f60ba6d06a5948008d165b1bdb3cb9d37caae8961f706f58ece53ae6567', '{1,2,1}', '{3,4}', '{-0.5,-0.25}', '{"temperature": 1.0}', 3, 'engine-1', 'policy', 0, 0, 'stop', true, 'yes', 0, '2026-11-21 03:42:22.841974+00');
INSERT INTO public.generations_20261121 VALUES ('2026-11-21', 'small-e0000-g01-i0', 'at-01a1fc32b078c148bb65c7', 2, 0, 'hash-2', 'chat/completions', '\xb09742960edb9636ea4e6c4bca65ec8603ad59a87956d62dbbaa5c2706d15e9c', '\x7a5a0b15d81b36d399bce854c6902e09feaa753235cd90eec1398d70a977fb2c', '{1,2,2}', '{3,4}', '{-0.5,-0.25}', '{"temperature": 1.0}', 3, 'engine-1', 'policy', 0, 0, 'stop', true, 'yes', 0, '2026-11-21 03:42:22.841974+00');
INSERT INTO public.generations_20261121 VALUES ('2026-11-21', 'small-s0001-g00-i0', 'at-01a1fc32b083ca7a5e1903', 1, 0, 'hash-1', 'chat/completions', '\x284569949850c9771385890b39034d20e3c9fc51b05e9e587d213a9c5d54fac7', '\x9b222f60ba6d06a5948008d165b1bdb3cb9d37caae8961f706f58ece53ae6567', '{1,2,1}', '{3,4}', '{-0.5,-0.25}', '{"temperature": 1.0}', 3, 'engine-1', 'policy', 0, 0, 'stop', true, 'yes', 0, '2026-11-21 03:42:22.853431+00');
INSERT INTO public.generations_20261121 VALUES ('2026-11-21', 'small-s0001-g00-i0', 'at-01a1fc32b083ca7a5e1903', 2, 0, 'hash-2', 'chat/completions', '\xb09742960edb9636ea4e6c4bca65ec8603ad59a87956d62dbbaa5c2706d15e9c', '\x7a5a0b15d81b36d399bce854c6902e09feaa753235cd90eec1398d70a977fb2c', '{1,2,2}', '{3,4}', '{-0.5,-0.25}', '{"temperature": 1.0}', 3, 'engine-1', 'policy', 0, 0, 'stop', true, 'yes', 0, '2026-11-21 03:42:22.853431+00');
INSERT INTO public.generations_20261121 VALUES ('2026-11-21', 'small-s0001-g00-i1', 'at-01a1fc32b08796adf5ea5b', 1, 0, 'hash-1', 'chat/completions', '\x284569949850c9771385890b39034d20e3c9fc51b05e9e587d213a9c5d54fac7', '\x9b222f60ba6d06a5948008d165b1bdb3cb9d37caae8961f706f58ece53ae6567', '{1,2,1}', '{3,4}', '{-0.5,-0.25}', '{"temperature": 1.0}', 3, 'engine-1', 'policy', 0, 0, 'stop', true, 'yes', 0, '2026-11-21 03:42:22.85647+00');
INSERT INTO public.generations_20261121 VALUES ('2026-11-21', 'small-s0001-g00-i1', 'at-01a1fc32b08796adf5ea5b', 2, 0, 'hash-2', 'chat/completions', '\xb09742960edb9636ea4e6c4bca65ec8603ad59a87956d62dbbaa5c2706d15e9c', '\x7a5a0b15d81b36d399bce854c6902e09feaa753235cd90eec1398d70a977fb2c', '{1,2,2}', '{3,4}', '{-0.5,-0.25}', '{"temperature": 1.0}', 3, 'engine-1', 'policy', 0, 0, 'stop', true, 'yes', 0, '2026-11-21 03:42:22.85647+00');
INSERT INTO public.generations_20261121 VALUES ('2026-11-21', 'small-s0001-g01-i0', 'at-01a1fc32b0969d12277715', 1, 0, 'hash-1', 'chat/completions', '\x284569949850c9771385890b39034d20e3c9fc51b05e9e587d213a9c5d54fac7', '\x9b222f60ba6d06a5948008d165b1bdb3cb9d37caae8961f706f58ece53ae6567', '{1,2,1}', '{3,4}', '{-0.5,-0.25}', '{"temperature": 1.0}', 3, 'engine-1', 'policy', 0, 0, 'stop', true, 'yes', 0, '2026-11-21 03:42:22.873812+00');
INSERT INTO public.generations_20261121 VALUES ('2026-11-21', 'small-s0001-g01-i0', 'at-01a1fc32b0969d12277715', 2, 0, 'hash-2', 'chat/completions', '\xb09742960edb9636ea4e6c4bca65ec8603ad59a87956d62dbbaa5c2706d15e9c', '\x7a5a0b15d81b36d399bce854c6902e09feaa753235cd90eec1398d70a977fb2c', '{1,2,2}', '{3,4}', '{-0.5,-0.25}', '{"temperature": 1.0}', 3, 'engine-1', 'policy', 0, 0, 'stop', true, 'yes', 0, '2026-11-21 03:42:22.873812+00');
INSERT INTO public.generations_20261121 VALUES ('2026-11-21', 'small-s0002-g00-i0', 'at-01a1fc32b0e20f30d59b8a', 1, 0, 'hash-1', 'chat/completions', '\x284569949850c9771385890b39034d20e3c9fc51b05e9e587d213a9c5d54fac7', '\x9b222f60ba6d06a5948008d165b1bdb3cb9d37caae8961f706f58ece53ae6567', '{1,2,1}', '{3,4}', '{-0.5,-0.25}', '{"temperature": 1.0}', 3, 'engine-1', 'policy', 1, 1, 'stop', true, 'yes', 0, '2026-11-21 03:42:22.947359+00');
INSERT INTO public.generations_20261121 VALUES ('2026-11-21', 'small-s0002-g00-i0', 'at-01a1fc32b0e20f30d59b8a', 2, 0, 'hash-2', 'chat/completions', '\xb09742960edb9636ea4e6c4bca65ec8603ad59a87956d62dbbaa5c2706d15e9c', '\x7a5a0b15d81b36d399bce854c6902e09feaa753235cd90eec1398d70a977fb2c', '{1,2,2}', '{3,4}', '{-0.5,-0.25}', '{"temperature": 1.0}', 3, 'engine-1', 'policy', 1, 1, 'stop', true, 'yes', 0, '2026-11-21 03:42:22.947359+00');
INSERT INTO public.generations_20261121 VALUES ('2026-11-21', 'small-s0002-g00-i1', 'at-01a1fc32b0f9f5553adc4a', 1, 0, 'hash-1', 'chat/completions', '\x284569949850c9771385890b39034d20e3c9fc51b05e9e587d213a9c5d54fac7', '\x9b222f60ba6d06a5948008d165b1bdb3cb9d37caae8961f706f58ece53ae6567', '{1,2,1}', '{3,4}', '{-0.5,-0.25}', '{"temperature": 1.0}', 3, 'engine-1', 'policy', 1, 1, 'stop', true, 'yes', 0, '2026-11-21 03:42:22.972014+00');
INSERT INTO public.generations_20261121 VALUES ('2026-11-21', 'small-s0002-g00-i1', 'at-01a1fc32b0f9f5553adc4a', 2, 0, 'hash-2', 'chat/completions', '\xb09742960edb9636ea4e6c4bca65ec8603ad59a87956d62dbbaa5c2706d15e9c', '\x7a5a0b15d81b36d399bce854c6902e09feaa753235cd90eec1398d70a977fb2c', '{1,2,2}', '{3,4}', '{-0.5,-0.25}', '{"temperature": 1.0}', 3, 'engine-1', 'policy', 1, 1, 'stop', true, 'yes', 0, '2026-11-21 03:42:22.972014+00');
INSERT INTO public.generations_20261121 VALUES ('2026-11-21', 'small-s0002-g01-i0', 'at-01a1fc32b0fe9d40856035', 1, 0, 'hash-1', 'chat/completions', '\x284569949850c9771385890b39034d20e3c9fc51b05e9e587d213a9c5d54fac7', '\x9b222f60ba6d06a5948008d165b1bdb3cb9d37caae8961f706f58ece53ae6567', '{1,2,1}', '{3,4}', '{-0.5,-0.25}', '{"temperature": 1.0}', 3, 'engine-1', 'policy', 1, 1, 'stop', true, 'yes', 0, '2026-11-21 03:42:22.975717+00');
INSERT INTO public.generations_20261121 VALUES ('2026-11-21', 'small-s0002-g01-i0', 'at-01a1fc32b0fe9d40856035', 2, 0, 'hash-2', 'chat/completions', '\xb09742960edb9636ea4e6c4bca65ec8603ad59a87956d62dbbaa5c2706d15e9c', '\x7a5a0b15d81b36d399bce854c6902e09feaa753235cd90eec1398d70a977fb2c', '{1,2,2}', '{3,4}', '{-0.5,-0.25}', '{"temperature": 1.0}', 3, 'engine-1', 'policy', 1, 1, 'stop', true, 'yes', 0, '2026-11-21 03:42:22.975717+00');
INSERT INTO public.gpu_hosts VALUES ('host', NULL, NULL, 'relight-gpu.host', 'idle', NULL, '2026-11-21 03:42:22.806085+00');
INSERT INTO public.leases VALUES ('policy/small', 17, 'small', '2026-11-21 03:43:22.98354+00');
INSERT INTO public.metrics VALUES ('small', 0, 'eval/reward', 0, '2026-11-21 03:42:22.846565+00');
INSERT INTO public.metrics VALUES ('small', 0, 'eval/rewarded', 2, '2026-11-21 03:42:22.846565+00');
INSERT INTO public.metrics VALUES ('small', 0, 'eval/failed', 0, '2026-11-21 03:42:22.846565+00');
INSERT INTO public.metrics VALUES ('small', 0, 'eval/seconds', 0.031632, '2026-11-21 03:42:22.846565+00');
INSERT INTO public.metrics VALUES ('small', 1, 'train/loss', 0.5, '2026-11-21 03:42:22.938023+00');
INSERT INTO public.metrics VALUES ('small', 1, 'train/rollouts', 2, '2026-11-21 03:42:22.938023+00');
INSERT INTO public.metrics VALUES ('small', 1, 'train/reward', 0.5, '2026-11-21 03:42:22.938023+00');
INSERT INTO public.metrics VALUES ('small', 2, 'train/loss', 0.5, '2026-11-21 03:42:22.984926+00');
INSERT INTO public.metrics VALUES ('small', 2, 'train/rollouts', 2, '2026-11-21 03:42:22.984926+00');
INSERT INTO public.metrics VALUES ('small', 2, 'train/reward', 0.5, '2026-11-21 03:42:22.984926+00');
INSERT INTO public.migrations VALUES (1, '0001_initial.sql', '2026-11-21 03:42:22.541699+00');
INSERT INTO public.migrations VALUES (2, '0002_attempt_functions.sql', '2026-11-21 03:42:22.541699+00');
INSERT INTO public.migrations VALUES (3, '0003_generation_functions.sql', '2026-11-21 03:42:22.541699+00');
INSERT INTO public.policy_versions VALUES ('small', 0, 1, 'w0', '/runs/small-0', '/runs/small-0', '2026-11-21 03:42:22.808568+00', '2026-11-21 03:42:22.808568+00');
INSERT INTO public.policy_versions VALUES ('small', 1, 10, 'w1', '/runs/small-1', '/runs/small-1', '2026-11-21 03:42:22.932017+00', '2026-11-21 03:42:22.932017+00');
INSERT INTO public.policy_versions VALUES ('small', 2, 17, 'w2', '/runs/small-2', '/runs/small-2', '2026-11-21 03:42:22.983805+00', '2026-11-21 03:42:22.983805+00');
INSERT INTO public.resources OVERRIDING SYSTEM VALUE VALUES ('rs-small', 1, '{}', '2026-11-21 03:42:22.802915+00', '2026-11-21 03:42:22.802915+00', 1);
INSERT INTO public.rewards VALUES ('small-e0000-g00-i0', 'at-01a1fc32b06477c5db2f84', 'agent', 0, '2026-11-21 03:42:22.837568+00');
INSERT INTO public.rewards VALUES ('small-e0000-g01-i0', 'at-01a1fc32b078c148bb65c7', 'agent', 0, '2026-11-21 03:42:22.843555+00');
INSERT INTO public.rewards VALUES ('small-s0001-g00-i0', 'at-01a1fc32b083ca7a5e1903', 'agent', 0, '2026-11-21 03:42:22.854841+00');
INSERT INTO public.rewards VALUES ('small-s0001-g00-i1', 'at-01a1fc32b08796adf5ea5b', 'agent', 1, '2026-11-21 03:42:22.869306+00');
INSERT INTO public.rewards VALUES ('small-s0001-g01-i0', 'at-01a1fc32b0969d12277715', 'agent', 0, '2026-11-21 03:42:22.875294+00');
INSERT INTO public.rewards VALUES ('small-s0002-g00-i0', 'at-01a1fc32b0e20f30d59b8a', 'agent', 0, '2026-11-21 03:42:22.951168+00');
INSERT INTO public.rewards VALUES ('small-s0002-g00-i1', 'at-01a1fc32b0f9f5553adc4a', 'agent', 1, '2026-11-21 03:42:22.973934+00');
INSERT INTO public.rewards VALUES ('small-s0002-g01-i0', 'at-01a1fc32b0fe9d40856035', 'agent', 0, '2026-11-21 03:42:22.977086+00');
INSERT INTO public.rollouts VALUES ('small-e0000-g00-i0', 'small', 0, 'eval', 0, 0, 0, 0, '414c26046e509a653f996e0c9492048afa080b92579388037cc22041eb1d51bf', 0, NULL, 'val', 'rs-small', 'succeeded', NULL, NULL, 0, '{"max_attempts": 1, "backoff_seconds": 1.0, "retry_condition": [], "timeout_seconds": null, "unresponsive_seconds": null}', '{}', '0/eval-0/0/0', 0, 0, 3, 1, 0, 'at-01a1fc32b06477c5db2f84', '2026-11-21', '2026-11-21 03:42:22.812211+00', '2026-11-21 03:42:22.839953+00');
INSERT INTO public.rollouts VALUES ('small-e0000-g01-i0', 'small', 0, 'eval', 0, 1, 0, 0, '414c26046e509a653f996e0c9492048afa080b92579388037cc22041eb1d51bf', 1, NULL, 'val', 'rs-small', 'succeeded', NULL, NULL, 0, '{"max_attempts": 1, "backoff_seconds": 1.0, "retry_condition": [], "timeout_seconds": null, "unresponsive_seconds": null}', '{}', '0/eval-0/1/0', 0, 0, 3, 1, 0, 'at-01a1fc32b078c148bb65c7', '2026-11-21', '2026-11-21 03:42:22.812211+00', '2026-11-21 03:42:22.843843+00');
INSERT INTO public.rollouts VALUES ('small-s0001-g01-i1', 'small', 1, 'train', 0, 1, 1, 0, '666251885e251dbe412692a972fdb6ed914070cd2f6461bd4684944d1be06002', 0, NULL, 'train', 'rs-small', 'failed', 'agent_error', 'no', NULL, '{"max_attempts": 1, "backoff_seconds": 1.0, "retry_condition": [], "timeout_seconds": null, "unresponsive_seconds": null}', '{}', '0/1/1/1', 0, 0, 1, 1, 0, 'at-01a1fc32b09c6352f0ff93', '2026-11-21', '2026-11-21 03:42:22.848101+00', '2026-11-21 03:42:22.877215+00');
INSERT INTO public.rollouts VALUES ('small-s0001-g00-i0', 'small', 1, 'train', 0, 0, 0, 0, '666251885e251dbe412692a972fdb6ed914070cd2f6461bd4684944d1be06002', 3, NULL, 'train', 'rs-small', 'succeeded', NULL, NULL, 0, '{"max_attempts": 1, "backoff_seconds": 1.0, "retry_condition": [], "timeout_seconds": null, "unresponsive_seconds": null}', '{}', '0/1/0/0', 0, 0, 3, 2, 1, 'at-01a1fc32b083ca7a5e1903', '2026-11-21', '2026-11-21 03:42:22.848101+00', '2026-11-21 03:42:22.855092+00');
INSERT INTO public.rollouts VALUES ('small-s0001-g00-i1', 'small', 1, 'train', 0, 0, 1, 0, '666251885e251dbe412692a972fdb6ed914070cd2f6461bd4684944d1be06002', 3, NULL, 'train', 'rs-small', 'succeeded', NULL, NULL, 1, '{"max_attempts": 1, "backoff_seconds": 1.0, "retry_condition": [], "timeout_seconds": null, "unresponsive_seconds": null}', '{}', '0/1/0/1', 0, 0, 3, 1, 0, 'at-01a1fc32b08796adf5ea5b', '2026-11-21', '2026-11-21 03:42:22.848101+00', '2026-11-21 03:42:22.869773+00');
INSERT INTO public.rollouts VALUES ('small-s0001-g01-i0', 'small', 1, 'train', 0, 1, 0, 0, '666251885e251dbe412692a972fdb6ed914070cd2f6461bd4684944d1be06002', 0, NULL, 'train', 'rs-small', 'succeeded', NULL, NULL, 0, '{"max_attempts": 1, "backoff_seconds": 1.0, "retry_condition": [], "timeout_seconds": null, "unresponsive_seconds": null}', '{}', '0/1/1/0', 0, 0, 3, 1, 0, 'at-01a1fc32b0969d12277715', '2026-11-21', '2026-11-21 03:42:22.848101+00', '2026-11-21 03:42:22.876045+00');
INSERT INTO public.rollouts VALUES ('small-s0002-g00-i1', 'small', 2, 'train', 0, 0, 1, 0, '666251885e251dbe412692a972fdb6ed914070cd2f6461bd4684944d1be06002', 2, NULL, 'train', 'rs-small', 'succeeded', NULL, NULL, 1, '{"max_attempts": 1, "backoff_seconds": 1.0, "retry_condition": [], "timeout_seconds": null, "unresponsive_seconds": null}', '{}', '0/2/0/1', 1, 1, 3, 1, 0, 'at-01a1fc32b0f9f5553adc4a', '2026-11-21', '2026-11-21 03:42:22.940465+00', '2026-11-21 03:42:22.97424+00');
INSERT INTO public.rollouts VALUES ('small-s0002-g00-i0', 'small', 2, 'train', 0, 0, 0, 0, '666251885e251dbe412692a972fdb6ed914070cd2f6461bd4684944d1be06002', 2, NULL, 'train', 'rs-small', 'succeeded', NULL, NULL, 0, '{"max_attempts": 1, "backoff_seconds": 1.0, "retry_condition": [], "timeout_seconds": null, "unresponsive_seconds": null}', '{}', '0/2/0/0', 1, 1, 3, 2, 1, 'at-01a1fc32b0e20f30d59b8a', '2026-11-21', '2026-11-21 03:42:22.940465+00', '2026-11-21 03:42:22.951585+00');
INSERT INTO public.rollouts VALUES ('small-s0002-g01-i0', 'small', 2, 'train', 0, 1, 0, 0, '666251885e251dbe412692a972fdb6ed914070cd2f6461bd4684944d1be06002', 1, NULL, 'train', 'rs-small', 'succeeded', NULL, NULL, 0, '{"max_attempts": 1, "backoff_seconds": 1.0, "retry_condition": [], "timeout_seconds": null, "unresponsive_seconds": null}', '{}', '0/2/1/0', 1, 1, 3, 1, 0, 'at-01a1fc32b0fe9d40856035', '2026-11-21', '2026-11-21 03:42:22.940465+00', '2026-11-21 03:42:22.977299+00');
INSERT INTO public.rollouts VALUES ('small-s0002-g01-i1', 'small', 2, 'train', 0, 1, 1, 0, '666251885e251dbe412692a972fdb6ed914070cd2f6461bd4684944d1be06002', 1, NULL, 'train', 'rs-small', 'failed', 'agent_error', 'no', NULL, '{"max_attempts": 1, "backoff_seconds": 1.0, "retry_condition": [], "timeout_seconds": null, "unresponsive_seconds": null}', '{}', '0/2/1/1', 1, 1, 1, 1, 0, 'at-01a1fc32b1017bd5273426', '2026-11-21', '2026-11-21 03:42:22.940465+00', '2026-11-21 03:42:22.978161+00');
INSERT INTO public.runs VALUES ('small', '{"data": {"train": "train.jsonl", "shuffle": true, "evaluation": "heldout.jsonl", "required_fields": []}, "seed": 0, "verl": {}, "vllm": {}, "agent": "echo", "model": "model", "steps": 2, "epochs": null, "grader": null, "rollout": {"max_attempts": 1, "backoff_seconds": 1.0, "retry_condition": [], "timeout_seconds": null, "unresponsive_seconds": null}, "failures": {"rewards": {}, "short_groups": "fill_up", "fill_up_rounds": 2}, "sampling": {"stop": [], "top_k": -1, "top_p": 1.0, "max_tokens": null, "temperature": 1.0, "agent_chooses": false}, "algorithm": {"name": "grpo", "level": "transition", "grad_clip": 1.0, "loss_mode": "vanilla", "clip_ratio": 0.2, "ppo_epochs": 1, "mini_batches": 1, "weight_decay": 0.01, "entropy_coeff": 0.0, "learning_rate": 0.000001, "loss_agg_mode": "seq-mean-token-mean", "clip_ratio_low": null, "clip_ratio_high": null, "rollout_correction": {}}, "isolation": "process", "resources": {}, "batch_size": 2, "evaluation": {"every": 0, "limit": 2, "at_end": true, "samples": 1, "at_start": true}, "group_size": 2, "concurrency": null, "runner_queue": "relight-runner", "checkpoint_every": 1, "engine_wait_seconds": 300.0}', '066186e9b52cfc25ce3ce65ed13641ddb0f8211ecef99a951b35aa978923e140', '{"learning_rate": 0.0001}', 'finished', 1, 'driver', false, NULL, NULL, NULL, NULL, 'finished', NULL, 2, '666251885e251dbe412692a972fdb6ed914070cd2f6461bd4684944d1be06002', '414c26046e509a653f996e0c9492048afa080b92579388037cc22041eb1d51bf', 'rs-small', NULL, NULL, '2026-11-21 03:42:22.802915+00', '2026-11-21 03:42:22.985714+00');
INSERT INTO public.secrets VALUES ('attempt_key', '\x3a12b853ced3b500d948d376008160ada8f5bbe8cd69e17206f27abc3581a53b');
INSERT INTO public.spans_20261121 VALUES ('2026-11-21', 'small-e0000-g00-i0', 'at-01a1fc32b06477c5db2f84', 'one', 1, 'trace', NULL, 'step', '{"description": null, "status_code": "UNSET"}', '{}', '[]', '[]', '{}', 1, 2, '2026-11-21 03:42:22.835403+00');
INSERT INTO public.spans_20261121 VALUES ('2026-11-21', 'small-e0000-g00-i0', 'at-01a1fc32b06477c5db2f84', 'two', 2, 'trace', NULL, 'step', '{"description": null, "status_code": "UNSET"}', '{}', '[]', '[]', '{}', 1, 2, '2026-11-21 03:42:22.835403+00');
INSERT INTO public.spans_20261121 VALUES ('2026-11-21', 'small-e0000-g01-i0', 'at-01a1fc32b078c148bb65c7', 'one', 1, 'trace', NULL, 'step', '{"description": null, "status_code": "UNSET"}', '{}', '[]', '[]', '{}', 1, 2, '2026-11-21 03:42:22.842951+00');
INSERT INTO public.spans_20261121 VALUES ('2026-11-21', 'small-e0000-g01-i0', 'at-01a1fc32b078c148bb65c7', 'two', 2, 'trace', NULL, 'step', '{"description": null, "status_code": "UNSET"}', '{}', '[]', '[]', '{}', 1, 2, '2026-11-21 03:42:22.842951+00');
INSERT INTO public.spans_20261121 VALUES ('2026-11-21', 'small-s0001-g00-i0', 'at-01a1fc32b083ca7a5e1903', 'one', 1, 'trace', NULL, 'step', '{"description": null, "status_code": "UNSET"}', '{}', '[]', '[]', '{}', 1, 2, '2026-11-21 03:42:22.854398+00');
INSERT INTO public.spans_20261121 VALUES ('2026-11-21', 'small-s0001-g00-i0', 'at-01a1fc32b083ca7a5e1903', 'two', 2, 'trace', NULL, 'step', '{"description": null, "status_code": "UNSET"}', '{}', '[]', '[]', '{}', 1, 2, '2026-11-21 03:42:22.854398+00');
INSERT INTO public.spans_20261121 VALUES ('2026-11-21', 'small-s0001-g00-i1', 'at-01a1fc32b08796adf5ea5b', 'one', 1, 'trace', NULL, 'step', '{"description": null, "status_code": "UNSET"}', '{}', '[]', '[]', '{}', 1, 2, '2026-11-21 03:42:22.85729+00');
INSERT INTO public.spans_20261121 VALUES ('2026-11-21', 'small-s0001-g00-i1', 'at-01a1fc32b08796adf5ea5b', 'two', 2, 'trace', NULL, 'step', '{"description": null, "status_code": "UNSET"}', '{}', '[]', '[]', '{}', 1, 2, '2026-11-21 03:42:22.85729+00');
INSERT INTO public.spans_20261121 VALUES ('2026-11-21', 'small-s0001-g01-i0', 'at-01a1fc32b0969d12277715', 'one', 1, 'trace', NULL, 'step', '{"description": null, "status_code": "UNSET"}', '{}', '[]', '[]', '{}', 1, 2, '2026-11-21 03:42:22.874794+00');
INSERT INTO public.spans_20261121 VALUES ('2026-11-21', 'small-s0001-g01-i0', 'at-01a1fc32b0969d12277715', 'two', 2, 'trace', NULL, 'step', '{"description": null, "status_code": "UNSET"}', '{}', '[]', '[]', '{}', 1, 2, '2026-11-21 03:42:22.874794+00');
INSERT INTO public.spans_20261121 VALUES ('2026-11-21', 'small-s0002-g00-i0', 'at-01a1fc32b0e20f30d59b8a', 'one', 1, 'trace', NULL, 'step', '{"description": null, "status_code": "UNSET"}', '{}', '[]', '[]', '{}', 1, 2, '2026-11-21 03:42:22.9496+00');
INSERT INTO public.spans_20261121 VALUES ('2026-11-21', 'small-s0002-g00-i0', 'at-01a1fc32b0e20f30d59b8a', 'two', 2, 'trace', NULL, 'step', '{"description": null, "status_code": "UNSET"}', '{}', '[]', '[]', '{}', 1, 2, '2026-11-21 03:42:22.9496+00');
INSERT INTO public.spans_20261121 VALUES ('2026-11-21', 'small-s0002-g00-i1', 'at-01a1fc32b0f9f5553adc4a', 'one', 1, 'trace', NULL, 'step', '{"description": null, "status_code": "UNSET"}', '{}', '[]', '[]', '{}', 1, 2, '2026-11-21 03:42:22.973406+00');
INSERT INTO public.spans_20261121 VALUES ('2026-11-21', 'small-s0002-g00-i1', 'at-01a1fc32b0f9f5553adc4a', 'two', 2, 'trace', NULL, 'step', '{"description": null, "status_code": "UNSET"}', '{}', '[]', '[]', '{}', 1, 2, '2026-11-21 03:42:22.973406+00');
INSERT INTO public.spans_20261121 VALUES ('2026-11-21', 'small-s0002-g01-i0', 'at-01a1fc32b0fe9d40856035', 'one', 1, 'trace', NULL, 'step', '{"description": null, "status_code": "UNSET"}', '{}', '[]', '[]', '{}', 1, 2, '2026-11-21 03:42:22.976716+00');
INSERT INTO public.spans_20261121 VALUES ('2026-11-21', 'small-s0002-g01-i0', 'at-01a1fc32b0fe9d40856035', 'two', 2, 'trace', NULL, 'step', '{"description": null, "status_code": "UNSET"}', '{}', '[]', '[]', '{}', 1, 2, '2026-11-21 03:42:22.976716+00');
INSERT INTO public.step_rollouts VALUES ('small', 1, 'small-s0001-g00-i0', 'at-01a1fc32b083ca7a5e1903', 0, 0, 'agent', -0.5);
INSERT INTO public.step_rollouts VALUES ('small', 1, 'small-s0001-g00-i1', 'at-01a1fc32b08796adf5ea5b', 0, 1, 'agent', 0.5);
INSERT INTO public.step_rollouts VALUES ('small', 2, 'small-s0002-g00-i0', 'at-01a1fc32b0e20f30d59b8a', 0, 0, 'agent', -0.5);
INSERT INTO public.step_rollouts VALUES ('small', 2, 'small-s0002-g00-i1', 'at-01a1fc32b0f9f5553adc4a', 0, 1, 'agent', 0.5);
INSERT INTO public.steps VALUES ('small', 0, 'recorded', '{"verl": {}, "failures": {"rewards": {}, "short_groups": "fill_up", "fill_up_rounds": 2}, "sampling": {"stop": [], "top_k": -1, "top_p": 1.0, "max_tokens": null, "temperature": 1.0, "agent_chooses": false}, "algorithm": {"name": "grpo", "level": "transition", "grad_clip": 1.0, "loss_mode": "vanilla", "clip_ratio": 0.2, "ppo_epochs": 1, "mini_batches": 1, "weight_decay": 0.01, "entropy_coeff": 0.0, "learning_rate": 0.0001, "loss_agg_mode": "seq-mean-token-mean", "clip_ratio_low": null, "clip_ratio_high": null, "rollout_correction": {}}, "isolation": "process", "positions": [], "batch_size": 2, "group_size": 2, "stream_end": 0, "trainer_seed": 1688923563, "engine_wait_seconds": 300.0}', 'rs-small', 0, NULL, false, '{}', '{}', '2026-11-21 03:42:22.812211+00', NULL, NULL, NULL);
INSERT INTO public.steps VALUES ('small', 1, 'recorded', '{"verl": {}, "failures": {"rewards": {}, "short_groups": "fill_up", "fill_up_rounds": 2}, "sampling": {"stop": [], "top_k": -1, "top_p": 1.0, "max_tokens": null, "temperature": 1.0, "agent_chooses": false}, "algorithm": {"name": "grpo", "level": "transition", "grad_clip": 1.0, "loss_mode": "vanilla", "clip_ratio": 0.2, "ppo_epochs": 1, "mini_batches": 1, "weight_decay": 0.01, "entropy_coeff": 0.0, "learning_rate": 0.0001, "loss_agg_mode": "seq-mean-token-mean", "clip_ratio_low": null, "clip_ratio_high": null, "rollout_correction": {}}, "isolation": "process", "positions": [3, 0], "batch_size": 2, "group_size": 2, "stream_end": 2, "trainer_seed": 1986145219, "engine_wait_seconds": 300.0}', 'rs-small', 1, '178f0d1d38c5c301d9e25b77fa77ecf4d3697a194e4a603ca6451ac09d095078', false, '{"loss": 0.5, "rollouts": 2.0, "reward_mean": 0.5}', '{"total": 0.089922, "update": 0.1, "rollouts": 0.029359}', '2026-11-21 03:42:22.848101+00', '2026-11-21 03:42:22.87746+00', '2026-11-21 03:42:22.900997+00', '2026-11-21 03:42:22.938023+00');
INSERT INTO public.steps VALUES ('small', 2, 'recorded', '{"verl": {}, "failures": {"rewards": {}, "short_groups": "fill_up", "fill_up_rounds": 2}, "sampling": {"stop": [], "top_k": -1, "top_p": 1.0, "max_tokens": null, "temperature": 1.0, "agent_chooses": false}, "algorithm": {"name": "grpo", "level": "transition", "grad_clip": 1.0, "loss_mode": "vanilla", "clip_ratio": 0.2, "ppo_epochs": 1, "mini_batches": 1, "weight_decay": 0.01, "entropy_coeff": 0.0, "learning_rate": 0.0001, "loss_agg_mode": "seq-mean-token-mean", "clip_ratio_low": null, "clip_ratio_high": null, "rollout_correction": {}}, "isolation": "process", "positions": [2, 1], "batch_size": 2, "group_size": 2, "stream_end": 4, "trainer_seed": 1245027759, "engine_wait_seconds": 300.0}', 'rs-small', 1, 'dcde7f93cfbab6c246cd5360cf11e1eac6209f5f8b162817571f7d39fe04b778', false, '{"loss": 0.5, "rollouts": 2.0, "reward_mean": 0.5}', '{"total": 0.044461, "update": 0.1, "rollouts": 0.03793}', '2026-11-21 03:42:22.940465+00', '2026-11-21 03:42:22.978395+00', '2026-11-21 03:42:22.982277+00', '2026-11-21 03:42:22.984926+00');
INSERT INTO public.tasks VALUES ('666251885e251dbe412692a972fdb6ed914070cd2f6461bd4684944d1be06002', 0, '{"question": "train 0"}');
INSERT INTO public.tasks VALUES ('666251885e251dbe412692a972fdb6ed914070cd2f6461bd4684944d1be06002', 1, '{"question": "train 1"}');
INSERT INTO public.tasks VALUES ('666251885e251dbe412692a972fdb6ed914070cd2f6461bd4684944d1be06002', 2, '{"question": "train 2"}');
INSERT INTO public.tasks VALUES ('666251885e251dbe412692a972fdb6ed914070cd2f6461bd4684944d1be06002', 3, '{"question": "train 3"}');
INSERT INTO public.tasks VALUES ('414c26046e509a653f996e0c9492048afa080b92579388037cc22041eb1d51bf', 0, '{"question": "heldout 0"}');
INSERT INTO public.tasks VALUES ('414c26046e509a653f996e0c9492048afa080b92579388037cc22041eb1d51bf', 1, '{"question": "heldout 1"}');
INSERT INTO public.tasks VALUES ('414c26046e509a653f996e0c9492048afa080b92579388037cc22041eb1d51bf', 2, '{"question": "heldout 2"}');
INSERT INTO public.tasks VALUES ('414c26046e509a653f996e0c9492048afa080b92579388037cc22041eb1d51bf', 3, '{"question": "heldout 3"}');
INSERT INTO public.training_rows VALUES ('small', 1, 0, 'small-s0001-g00-i0', 'at-01a1fc32b083ca7a5e1903', '{1}', '{1,2,1}', '{3,4}', '{1,1}', 0, 1, '{-0.5,-0.25}', NULL);
INSERT INTO public.training_rows VALUES ('small', 1, 1, 'small-s0001-g00-i0', 'at-01a1fc32b083ca7a5e1903', '{2}', '{1,2,2}', '{3,4}', '{1,1}', 0, 1, '{-0.5,-0.25}', NULL);
INSERT INTO public.training_rows VALUES ('small', 1, 2, 'small-s0001-g00-i1', 'at-01a1fc32b08796adf5ea5b', '{1}', '{1,2,1}', '{3,4}', '{1,1}', 0, 1, '{-0.5,-0.25}', NULL);
INSERT INTO public.training_rows VALUES ('small', 1, 3, 'small-s0001-g00-i1', 'at-01a1fc32b08796adf5ea5b', '{2}', '{1,2,2}', '{3,4}', '{1,1}', 0, 1, '{-0.5,-0.25}', NULL);
INSERT INTO public.training_rows VALUES ('small', 2, 0, 'small-s0002-g00-i0', 'at-01a1fc32b0e20f30d59b8a', '{1}', '{1,2,1}', '{3,4}', '{1,1}', 0, 1, '{-0.5,-0.25}', NULL);
INSERT INTO public.training_rows VALUES ('small', 2, 1, 'small-s0002-g00-i0', 'at-01a1fc32b0e20f30d59b8a', '{2}', '{1,2,2}', '{3,4}', '{1,1}', 0, 1, '{-0.5,-0.25}', NULL);
INSERT INTO public.training_rows VALUES ('small', 2, 2, 'small-s0002-g00-i1', 'at-01a1fc32b0f9f5553adc4a', '{1}', '{1,2,1}', '{3,4}', '{1,1}', 0, 1, '{-0.5,-0.25}', NULL);
INSERT INTO public.training_rows VALUES ('small', 2, 3, 'small-s0002-g00-i1', 'at-01a1fc32b0f9f5553adc4a', '{2}', '{1,2,2}', '{3,4}', '{1,1}', 0, 1, '{-0.5,-0.25}', NULL);
SELECT pg_catalog.setval('public.audit_id_seq', 1, true);
SELECT pg_catalog.setval('public.fences', 17, true);
SELECT pg_catalog.setval('public.outbox_id_seq', 1, false);
SELECT pg_catalog.setval('public.resources_sequence_seq', 1, true);
ALTER TABLE ONLY public.attempts
    ADD CONSTRAINT attempts_pkey PRIMARY KEY (attempt_id);
ALTER TABLE ONLY public.attempts
    ADD CONSTRAINT attempts_rollout_id_sequence_id_key UNIQUE (rollout_id, sequence_id);
ALTER TABLE ONLY public.audit
    ADD CONSTRAINT audit_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.audit
    ADD CONSTRAINT audit_request_key_key UNIQUE (request_key);
ALTER TABLE ONLY public.bodies
    ADD CONSTRAINT bodies_pkey PRIMARY KEY (day, hash);
ALTER TABLE ONLY public.bodies_20261121
    ADD CONSTRAINT bodies_20261121_pkey PRIMARY KEY (day, hash);
ALTER TABLE ONLY public.bodies_20261122
    ADD CONSTRAINT bodies_20261122_pkey PRIMARY KEY (day, hash);
ALTER TABLE ONLY public.bodies_20261123
    ADD CONSTRAINT bodies_20261123_pkey PRIMARY KEY (day, hash);
ALTER TABLE ONLY public.bodies_default
    ADD CONSTRAINT bodies_default_pkey PRIMARY KEY (day, hash);
ALTER TABLE ONLY public.call_failures
    ADD CONSTRAINT call_failures_pkey PRIMARY KEY (day, attempt_id, call_number, request_hash);
ALTER TABLE ONLY public.call_failures_20261121
    ADD CONSTRAINT call_failures_20261121_pkey PRIMARY KEY (day, attempt_id, call_number, request_hash);
ALTER TABLE ONLY public.call_failures_20261122
    ADD CONSTRAINT call_failures_20261122_pkey PRIMARY KEY (day, attempt_id, call_number, request_hash);
ALTER TABLE ONLY public.call_failures_20261123
    ADD CONSTRAINT call_failures_20261123_pkey PRIMARY KEY (day, attempt_id, call_number, request_hash);
ALTER TABLE ONLY public.call_failures_default
    ADD CONSTRAINT call_failures_default_pkey PRIMARY KEY (day, attempt_id, call_number, request_hash);
ALTER TABLE ONLY public.datasets
    ADD CONSTRAINT datasets_pkey PRIMARY KEY (dataset_id);
ALTER TABLE ONLY public.engine_loads
    ADD CONSTRAINT engine_loads_pkey PRIMARY KEY (engine_id, load);
ALTER TABLE ONLY public.engines
    ADD CONSTRAINT engines_pkey PRIMARY KEY (engine_id);
ALTER TABLE ONLY public.generations
    ADD CONSTRAINT generations_pkey PRIMARY KEY (day, attempt_id, call_number, choice);
ALTER TABLE ONLY public.generations_20261121
    ADD CONSTRAINT generations_20261121_pkey PRIMARY KEY (day, attempt_id, call_number, choice);
ALTER TABLE ONLY public.generations_20261122
    ADD CONSTRAINT generations_20261122_pkey PRIMARY KEY (day, attempt_id, call_number, choice);
ALTER TABLE ONLY public.generations_20261123
    ADD CONSTRAINT generations_20261123_pkey PRIMARY KEY (day, attempt_id, call_number, choice);
ALTER TABLE ONLY public.generations_default
    ADD CONSTRAINT generations_default_pkey PRIMARY KEY (day, attempt_id, call_number, choice);
ALTER TABLE ONLY public.gpu_hosts
    ADD CONSTRAINT gpu_hosts_pkey PRIMARY KEY (host);
ALTER TABLE ONLY public.leases
    ADD CONSTRAINT leases_pkey PRIMARY KEY (name);
ALTER TABLE ONLY public.metrics
    ADD CONSTRAINT metrics_pkey PRIMARY KEY (run, step, name);
ALTER TABLE ONLY public.migrations
    ADD CONSTRAINT migrations_pkey PRIMARY KEY (version);
ALTER TABLE ONLY public.outbox
    ADD CONSTRAINT outbox_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.policy_versions
    ADD CONSTRAINT policy_versions_pkey PRIMARY KEY (run, version);
ALTER TABLE ONLY public.resources
    ADD CONSTRAINT resources_pkey PRIMARY KEY (resources_id);
ALTER TABLE ONLY public.rewards
    ADD CONSTRAINT rewards_pkey PRIMARY KEY (attempt_id, grader);
ALTER TABLE ONLY public.rollouts
    ADD CONSTRAINT rollouts_pkey PRIMARY KEY (rollout_id);
ALTER TABLE ONLY public.rollouts
    ADD CONSTRAINT rollouts_run_kind_step_group_number_index_in_group_key UNIQUE (run, kind, step, group_number, index_in_group);
ALTER TABLE ONLY public.runs
    ADD CONSTRAINT runs_pkey PRIMARY KEY (run);
ALTER TABLE ONLY public.secrets
    ADD CONSTRAINT secrets_pkey PRIMARY KEY (name);
ALTER TABLE ONLY public.spans
    ADD CONSTRAINT spans_pkey PRIMARY KEY (day, rollout_id, attempt_id, span_id);
ALTER TABLE ONLY public.spans_20261121
    ADD CONSTRAINT spans_20261121_pkey PRIMARY KEY (day, rollout_id, attempt_id, span_id);
ALTER TABLE ONLY public.spans_20261122
    ADD CONSTRAINT spans_20261122_pkey PRIMARY KEY (day, rollout_id, attempt_id, span_id);
ALTER TABLE ONLY public.spans_20261123
    ADD CONSTRAINT spans_20261123_pkey PRIMARY KEY (day, rollout_id, attempt_id, span_id);
ALTER TABLE ONLY public.spans_default
    ADD CONSTRAINT spans_default_pkey PRIMARY KEY (day, rollout_id, attempt_id, span_id);
ALTER TABLE ONLY public.step_rollouts
    ADD CONSTRAINT step_rollouts_pkey PRIMARY KEY (run, rollout_id);
ALTER TABLE ONLY public.step_rollouts
    ADD CONSTRAINT step_rollouts_run_attempt_id_key UNIQUE (run, attempt_id);
ALTER TABLE ONLY public.steps
    ADD CONSTRAINT steps_pkey PRIMARY KEY (run, step);
ALTER TABLE ONLY public.tasks
    ADD CONSTRAINT tasks_pkey PRIMARY KEY (dataset_id, "position");
ALTER TABLE ONLY public.training_rows
    ADD CONSTRAINT training_rows_pkey PRIMARY KEY (run, step, row_number);
ALTER TABLE ONLY public.workers
    ADD CONSTRAINT workers_pkey PRIMARY KEY (worker_id);
CREATE INDEX attempts_by_token ON public.attempts USING btree (token_hash);
CREATE UNIQUE INDEX attempts_one_open ON public.attempts USING btree (rollout_id) WHERE (ended_at IS NULL);
CREATE INDEX audit_by_run ON public.audit USING btree (run, id);
CREATE INDEX outbox_open ON public.outbox USING btree (id) WHERE (started_at IS NULL);
CREATE INDEX resources_latest ON public.resources USING btree (update_time DESC, sequence DESC);
CREATE INDEX rollouts_by_batch ON public.rollouts USING btree (run, kind, step, batch);
CREATE INDEX rollouts_open ON public.rollouts USING btree (status, created_at) WHERE (status = ANY (ARRAY['queuing'::text, 'preparing'::text, 'running'::text, 'requeuing'::text]));
CREATE INDEX step_rollouts_by_step ON public.step_rollouts USING btree (run, step);
ALTER INDEX public.bodies_pkey ATTACH PARTITION public.bodies_20261121_pkey;
ALTER INDEX public.bodies_pkey ATTACH PARTITION public.bodies_20261122_pkey;
ALTER INDEX public.bodies_pkey ATTACH PARTITION public.bodies_20261123_pkey;
ALTER INDEX public.bodies_pkey ATTACH PARTITION public.bodies_default_pkey;
ALTER INDEX public.call_failures_pkey ATTACH PARTITION public.call_failures_20261121_pkey;
ALTER INDEX public.call_failures_pkey ATTACH PARTITION public.call_failures_20261122_pkey;
ALTER INDEX public.call_failures_pkey ATTACH PARTITION public.call_failures_20261123_pkey;
ALTER INDEX public.call_failures_pkey ATTACH PARTITION public.call_failures_default_pkey;
ALTER INDEX public.generations_pkey ATTACH PARTITION public.generations_20261121_pkey;
ALTER INDEX public.generations_pkey ATTACH PARTITION public.generations_20261122_pkey;
ALTER INDEX public.generations_pkey ATTACH PARTITION public.generations_20261123_pkey;
ALTER INDEX public.generations_pkey ATTACH PARTITION public.generations_default_pkey;
ALTER INDEX public.spans_pkey ATTACH PARTITION public.spans_20261121_pkey;
ALTER INDEX public.spans_pkey ATTACH PARTITION public.spans_20261122_pkey;
ALTER INDEX public.spans_pkey ATTACH PARTITION public.spans_20261123_pkey;
ALTER INDEX public.spans_pkey ATTACH PARTITION public.spans_default_pkey;
CREATE TRIGGER attempt_transition BEFORE UPDATE OF status, failure_class, reward, ended_at ON public.attempts FOR EACH ROW EXECUTE FUNCTION public.attempt_transition();
CREATE TRIGGER rollout_transition BEFORE UPDATE OF status ON public.rollouts FOR EACH ROW EXECUTE FUNCTION public.rollout_transition();
ALTER TABLE ONLY public.attempts
    ADD CONSTRAINT attempts_rollout_id_fkey FOREIGN KEY (rollout_id) REFERENCES public.rollouts(rollout_id);
ALTER TABLE ONLY public.engines
    ADD CONSTRAINT engines_host_fkey FOREIGN KEY (host) REFERENCES public.gpu_hosts(host) ON DELETE CASCADE;
ALTER TABLE ONLY public.engines
    ADD CONSTRAINT engines_run_fkey FOREIGN KEY (run) REFERENCES public.runs(run);
ALTER TABLE ONLY public.gpu_hosts
    ADD CONSTRAINT gpu_hosts_run_fkey FOREIGN KEY (run) REFERENCES public.runs(run);
ALTER TABLE ONLY public.policy_versions
    ADD CONSTRAINT policy_versions_run_fkey FOREIGN KEY (run) REFERENCES public.runs(run);
ALTER TABLE ONLY public.rewards
    ADD CONSTRAINT rewards_attempt_id_fkey FOREIGN KEY (attempt_id) REFERENCES public.attempts(attempt_id);
ALTER TABLE ONLY public.rewards
    ADD CONSTRAINT rewards_rollout_id_fkey FOREIGN KEY (rollout_id) REFERENCES public.rollouts(rollout_id);
ALTER TABLE ONLY public.rollouts
    ADD CONSTRAINT rollouts_dataset_id_position_fkey FOREIGN KEY (dataset_id, "position") REFERENCES public.tasks(dataset_id, "position");
ALTER TABLE ONLY public.rollouts
    ADD CONSTRAINT rollouts_run_fkey FOREIGN KEY (run) REFERENCES public.runs(run);
ALTER TABLE ONLY public.runs
    ADD CONSTRAINT runs_eval_dataset_fkey FOREIGN KEY (eval_dataset) REFERENCES public.datasets(dataset_id);
ALTER TABLE ONLY public.runs
    ADD CONSTRAINT runs_parent_run_fkey FOREIGN KEY (parent_run) REFERENCES public.runs(run);
ALTER TABLE ONLY public.runs
    ADD CONSTRAINT runs_train_dataset_fkey FOREIGN KEY (train_dataset) REFERENCES public.datasets(dataset_id);
ALTER TABLE ONLY public.step_rollouts
    ADD CONSTRAINT step_rollouts_attempt_id_fkey FOREIGN KEY (attempt_id) REFERENCES public.attempts(attempt_id);
ALTER TABLE ONLY public.step_rollouts
    ADD CONSTRAINT step_rollouts_rollout_id_fkey FOREIGN KEY (rollout_id) REFERENCES public.rollouts(rollout_id);
ALTER TABLE ONLY public.step_rollouts
    ADD CONSTRAINT step_rollouts_run_fkey FOREIGN KEY (run) REFERENCES public.runs(run);
ALTER TABLE ONLY public.steps
    ADD CONSTRAINT steps_run_fkey FOREIGN KEY (run) REFERENCES public.runs(run);
ALTER TABLE ONLY public.tasks
    ADD CONSTRAINT tasks_dataset_id_fkey FOREIGN KEY (dataset_id) REFERENCES public.datasets(dataset_id) ON DELETE CASCADE;
