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
    lease_until timestamp with time zone,
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
    dispatched_by text DEFAULT 'workflow'::text NOT NULL,
    queue_order bigint,
    due_at timestamp with time zone,
    inspects text,
    CONSTRAINT rollouts_dispatched_by_check CHECK ((dispatched_by = ANY (ARRAY['workflow'::text, 'queue'::text]))),
    CONSTRAINT rollouts_kind_check CHECK ((kind = ANY (ARRAY['train'::text, 'eval'::text, 'external'::text, 'preflight'::text, 'inspect'::text]))),
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
        'deaths', r.deaths,
        'grader', (select file ->> 'grader' from runs where run = r.run))
$$;
CREATE FUNCTION public.attempt_event() RETURNS trigger
    LANGUAGE plpgsql
    SET enable_seqscan TO 'off'
    AS $$
begin
    insert into events (kind, run, rollout_id, attempt_id, step, data)
    select 'attempt', r.run, new.rollout_id, new.attempt_id, r.step, jsonb_build_object(
        'status', new.status, 'before', case when tg_op = 'UPDATE' then old.status end,
        'sequence_id', new.sequence_id, 'failure_class', new.failure_class, 'reward', new.reward,
        'worker_id', new.worker_id)
    from rollouts r where r.rollout_id = new.rollout_id;
    return null;
end $$;
CREATE FUNCTION public.attempt_json_v1(a public.attempts) RETURNS jsonb
    LANGUAGE sql STABLE
    AS $$
    select jsonb_build_object(
        'rollout_id', a.rollout_id, 'attempt_id', a.attempt_id, 'sequence_id', a.sequence_id, 'status', a.status,
        'start_time', unix_v1(a.started_at), 'last_heartbeat_time', unix_v1(a.last_heartbeat),
        'end_time', case when a.status not in ('preparing', 'running') then unix_v1(a.ended_at) end,
        'worker_id', a.worker_id, 'metadata', a.metadata, 'failure_class', a.failure_class, 'error', a.error,
        'reward', a.reward)
$$;
CREATE FUNCTION public.attempt_transition() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
begin
    if old.ended_at is not null and (new.status, new.failure_class, new.reward, new.ended_at)
        is distinct from (old.status, old.failure_class, old.reward, old.ended_at)
        and not exists (select from rollouts where rollout_id = old.rollout_id and dispatched_by = 'queue') then
        raise exception 'attempt % has ended as %', old.attempt_id, old.status using errcode = 'RL409';
    end if;
    return new;
end $$;
CREATE FUNCTION public.attempted_json_v1(r public.rollouts, a public.attempts) RETURNS jsonb
    LANGUAGE sql STABLE
    AS $$
    select rollout_json_v1(r) || case when a.attempt_id is not null
        then jsonb_build_object('attempt', attempt_json_v1(a)) else '{}' end
$$;
CREATE FUNCTION public.attempts_json_v1(p_scope text, p_key text) RETURNS jsonb
    LANGUAGE sql STABLE
    AS $$
    select coalesce(jsonb_agg(attempted_json_v1(r, a) order by n), '[]')
    from idempotency_keys, unnest(ids) with ordinality as x(id, n)
    join attempts a on a.attempt_id = id join rollouts r on r.rollout_id = a.rollout_id
    where scope = p_scope and key = p_key
$$;
CREATE FUNCTION public.audit_event() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
begin
    insert into events (kind, run, rollout_id, step, data)
    values ('audit', new.run, new.rollout_id, new.effective_step, jsonb_build_object(
        'id', new.id, 'actor', new.actor, 'action', new.action, 'refused', left(new.refused, 500)));
    return null;
end $$;
CREATE FUNCTION public.backoff_v1(p_config jsonb, p_try integer) RETURNS interval
    LANGUAGE sql IMMUTABLE
    AS $$
    select make_interval(secs => least(
        coalesce((p_config ->> 'backoff_seconds')::double precision, 1) * 2 ^ least(p_try - 1, 20), 60))
$$;
CREATE FUNCTION public.begin_attempt_v1(r public.rollouts, p_attempt text, p_token_hash text, p_worker text) RETURNS public.attempts
    LANGUAGE plpgsql
    AS $$
declare
    a attempts;
begin
    if r.attempts > 0 then
        update attempts set status = 'failed', failure_class = 'infrastructure', ended_at = clock_timestamp(),
            message = 'a newer attempt has begun'
        where rollout_id = r.rollout_id and ended_at is null;
    end if;
    insert into attempts (attempt_id, rollout_id, sequence_id, try_number, open_key, token_hash, worker_id, started_at)
    values (p_attempt, r.rollout_id, r.attempts + 1, r.attempts + 1, 'queue/' || p_attempt, p_token_hash, p_worker,
            clock_timestamp())
    returning * into a;
    if coalesce(r.config ->> 'timeout_seconds', r.config ->> 'unresponsive_seconds') is not null then
        update attempts set lease_until = lease_end_v1(r.config, a) where attempt_id = a.attempt_id returning * into a;
    end if;
    return a;
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
CREATE FUNCTION public.cancel_rollout_v1(p_rollout text, p_reason text) RETURNS jsonb
    LANGUAGE plpgsql
    AS $$
declare
    r rollouts;
begin
    select * into r from rollouts where rollout_id = p_rollout for no key update;
    if not found then
        raise exception 'there is no rollout %', p_rollout using errcode = 'RL404';
    elsif r.status = 'cancelled' then
        return get_rollout_v1(p_rollout);
    elsif is_over_v1(r.status) then
        raise exception 'rollout % is % already', p_rollout, r.status using errcode = 'RL409';
    end if;
    update rollouts set status = 'cancelled', failure_class = 'cancelled', failure = p_reason, due_at = null,
        ended_at = clock_timestamp()
    where rollout_id = p_rollout;
    perform end_open_attempt_v1(r, 'cancelled', p_reason);
    update outbox set started_at = clock_timestamp()
    where workflow_id = 'rollout/' || p_rollout and started_at is null;
    if r.dispatched_by = 'workflow' then
        insert into outbox (workflow_type, workflow_id, task_queue, input)
        values ('cancel', 'rollout/' || p_rollout, '', to_jsonb(p_reason));
    end if;
    insert into audit (run, rollout_id, actor, action, before, after)
    values (r.run, p_rollout, 'store', 'cancel_rollout', to_jsonb(r.status), jsonb_build_object('reason', p_reason));
    return get_rollout_v1(p_rollout);
end $$;
CREATE FUNCTION public.command_event() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
begin
    insert into events (kind, run, data)
    values ('command', new.run, jsonb_build_object(
        'command_id', new.command_id, 'action', new.action, 'actor', new.actor, 'waiting_for', left(new.waiting_for, 500),
        'status', case when new.done_at is null then 'open' when new.refused is null then 'done' else 'refused' end,
        'refused', left(new.refused, 500)));
    return null;
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
CREATE FUNCTION public.count_death_v1(p_rollout text) RETURNS void
    LANGUAGE plpgsql
    AS $$
declare
    died int;
begin
    update rollouts set deaths = deaths + 1 where rollout_id = p_rollout returning deaths into died;
    if died >= 5 then
        update rollouts set status = 'failed', failure_class = 'infrastructure', ended_at = clock_timestamp(),
            failure = 'quarantined: its process died ' || died || ' times'
        where rollout_id = p_rollout and status not in ('succeeded', 'failed', 'cancelled') and counted is null;
    end if;
end $$;
CREATE FUNCTION public.delete_rollout_v1(p_rollout text) RETURNS void
    LANGUAGE plpgsql
    AS $$
declare
    r rollouts;
begin
    select * into r from rollouts where rollout_id = p_rollout for update;
    if not found then
        raise exception 'there is no rollout %', p_rollout using errcode = 'RL404';
    elsif r.run is not null or exists (select from step_rollouts where rollout_id = p_rollout) then
        raise exception 'rollout % belongs to a run', p_rollout using errcode = 'RL409';
    elsif not is_over_v1(r.status) then
        raise exception 'rollout % is %; cancel it first', p_rollout, r.status using errcode = 'RL409';
    end if;
    delete from spans where day = r.day and rollout_id = p_rollout;
    delete from call_failures where day = r.day
        and attempt_id in (select attempt_id from attempts where rollout_id = p_rollout);
    delete from generations where day = r.day
        and attempt_id in (select attempt_id from attempts where rollout_id = p_rollout);
    delete from rewards where rollout_id = p_rollout;
    delete from outbox where workflow_id = 'rollout/' || p_rollout;
    update workers set rollout_id = null, attempt_id = null where rollout_id = p_rollout;
    delete from attempts where rollout_id = p_rollout;
    delete from rollouts where rollout_id = p_rollout;
    insert into audit (rollout_id, actor, action, before)
    values (p_rollout, 'store', 'delete_rollout', to_jsonb(r.status));
end $$;
CREATE FUNCTION public.dequeue_rollouts_v1(p_items jsonb) RETURNS jsonb
    LANGUAGE plpgsql
    SET plan_cache_mode TO 'force_generic_plan'
    SET enable_seqscan TO 'off'
    SET enable_sort TO 'off'
    SET enable_bitmapscan TO 'off'
    AS $$
declare
    item jsonb;
    offered jsonb;
    r rollouts;
    a attempts;
    claimed jsonb[];
    number int;
    total int := 0;
    events jsonb := '[]';
    answer jsonb[] := '{}';
begin
    for item in select * from jsonb_array_elements(p_items) loop
        claimed := '{}';
        number := 0;
        if item ->> 'key' is not null and not take_key_v1('dequeue', item ->> 'key') then
            answer := array_append(answer, attempts_json_v1('dequeue', item ->> 'key'));
            continue;
        end if;
        for r in
            select * from rollouts
            where queue_order is not null and (due_at is null or due_at <= clock_timestamp())
            order by queue_order limit jsonb_array_length(item -> 'attempts') for no key update skip locked
        loop
            offered := item -> 'attempts' -> number;
            a := begin_attempt_v1(r, offered ->> 'attempt_id', offered ->> 'token_hash', item ->> 'worker_id');
            update rollouts set status = 'preparing', attempts = attempts + 1, due_at = null
            where rollout_id = r.rollout_id returning * into r;
            claimed := array_append(claimed, attempted_json_v1(r, a));
            number := number + 1;
        end loop;
        if item ->> 'key' is not null and number = 0 then
            delete from idempotency_keys where scope = 'dequeue' and key = item ->> 'key';
        elsif item ->> 'key' is not null then
            perform remember_v1('dequeue', item ->> 'key', to_jsonb(claimed));
        end if;
        if item ->> 'worker_id' is not null then
            events := events || case when number > 0 then worker_event_v1(a, true) else jsonb_build_object(
                'worker_id', item ->> 'worker_id', 'status', 'idle', 'dequeued', true) end;
        end if;
        total := total + number;
        answer := array_append(answer, to_jsonb(claimed));
    end loop;
    perform sync_workers_v1(events);
    if total = 0 then
        perform set_config('synchronous_commit', 'off', true);
    end if;
    return to_jsonb(answer);
end $$;
CREATE FUNCTION public.drop_events_v1(p_seconds double precision, p_keep bigint, p_limit integer) RETURNS integer
    LANGUAGE plpgsql
    SET enable_seqscan TO 'off'
    AS $$
declare
    newest bigint := (select max(id) from events);
    dropped int;
begin
    with oldest as (
        select id from events order by id limit p_limit
    ), gone as (
        delete from events e using oldest o
        where e.id = o.id and (e.id <= newest - p_keep or e.created_at < clock_timestamp() - make_interval(secs => p_seconds))
        returning e.id, e.xid, e.created_at
    ), last as (
        select count(*) as number, max(id) as id, max(xid) as xid, max(created_at) as created_at from gone
    ), noted as (
        insert into events_dropped as d (id, xid, created_at)
        select last.id, last.xid, last.created_at from last where last.number > 0
        on conflict (only_one) do update
        set id = greatest(d.id, excluded.id), xid = greatest(d.xid, excluded.xid),
            created_at = greatest(d.created_at, excluded.created_at)
    )
    select number into dropped from last;
    return dropped;
end $$;
CREATE FUNCTION public.end_open_attempt_v1(r public.rollouts, p_class text, p_message text) RETURNS void
    LANGUAGE plpgsql
    AS $$
declare
    a attempts;
begin
    update attempts set status = 'failed', failure_class = p_class, message = p_message, ended_at = clock_timestamp()
    where rollout_id = r.rollout_id and ended_at is null returning * into a;
    if a.worker_id is not null and r.dispatched_by = 'queue' then
        perform sync_ended_workers_v1(jsonb_build_array(worker_event_v1(a)));
    end if;
end $$;
CREATE FUNCTION public.enqueue_rollouts_v1(p_items jsonb) RETURNS jsonb
    LANGUAGE plpgsql
    SET plan_cache_mode TO 'force_generic_plan'
    SET enable_seqscan TO 'off'
    AS $$
declare
    item jsonb;
    given jsonb;
    r rollouts;
    made jsonb[];
    answer jsonb[] := '{}';
begin
    for item in select * from jsonb_array_elements(p_items) loop
        made := '{}';
        if item ->> 'key' is not null and not take_key_v1('enqueue', item ->> 'key') then
            select coalesce(array_agg(get_rollout_v1(id) order by n), '{}') into made
            from idempotency_keys, unnest(ids) with ordinality as x(id, n)
            where scope = 'enqueue' and key = item ->> 'key';
        else
            for given in select * from jsonb_array_elements(item -> 'rollouts') loop
                insert into rollouts (rollout_id, kind, input, mode, resources_id, config, metadata, dispatched_by,
                                      queue_order, created_at)
                values (given ->> 'rollout_id', 'external', given -> 'input', given ->> 'mode',
                        resolve_resources_v1(given ->> 'resources_id'), given -> 'config', given -> 'metadata',
                        case when given ? 'workflow' then 'workflow' else 'queue' end,
                        case when not given ? 'workflow' then nextval('queue_orders') end, clock_timestamp())
                returning * into r;
                if given ? 'workflow' then
                    insert into outbox (workflow_type, workflow_id, task_queue, input)
                    values (given ->> 'workflow_type', given ->> 'workflow_id', given ->> 'task_queue', given -> 'workflow');
                end if;
                made := array_append(made, rollout_json_v1(r));
            end loop;
            if item ->> 'key' is not null then
                update idempotency_keys set ids = (select array_agg(m ->> 'rollout_id') from unnest(made) m)
                where scope = 'enqueue' and key = item ->> 'key';
            end if;
        end if;
        answer := array_append(answer, to_jsonb(made));
    end loop;
    return to_jsonb(answer);
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
    SET plan_cache_mode TO 'force_generic_plan'
    SET enable_seqscan TO 'off'
    AS $$
declare
    starting text[];
begin
    starting := array(
        select r.rollout_id from unnest(p_attempts) as given(id)
        join attempts a on a.attempt_id = given.id
        join rollouts r on r.rollout_id = a.rollout_id
        where (r.status in ('preparing', 'requeuing')) is true);
    if cardinality(starting) > 0 then
        perform from rollouts r where r.rollout_id = any (starting) order by r.rollout_id for no key update;
    end if;
    perform from attempts a where a.attempt_id = any (p_attempts) order by a.attempt_id for no key update;
    perform revive_attempts_v1(array_agg(a.attempt_id))
    from attempts a join unnest(p_attempts, p_tokens) as given(id, token) on a.attempt_id = given.id
    where a.token_hash = given.token and a.status = 'unresponsive'
    having count(*) > 0;
    if cardinality(starting) > 0 then
        update rollouts r set status = 'running'
        from attempts a join unnest(p_attempts, p_tokens) as given(id, token) on a.attempt_id = given.id
        where a.token_hash = given.token and r.rollout_id = a.rollout_id and r.rollout_id = any (starting)
          and (r.status = 'preparing') is true and (a.ended_at is null) is true;
    end if;
    update attempts a set status = 'running', last_heartbeat = clock_timestamp()
    from unnest(p_attempts, p_tokens) as given(id, token)
    where a.attempt_id = given.id and a.token_hash = given.token and (a.ended_at is null) is true
      and (a.status = 'preparing' or a.last_heartbeat is null or a.last_heartbeat < clock_timestamp() - interval '1 s');
end $$;
CREATE FUNCTION public.events_missed_v1(p_seen pg_snapshot, p_after bigint) RETURNS boolean
    LANGUAGE sql STABLE
    AS $$
    select exists (select from events_dropped where xid >= pg_snapshot_xmin(p_seen) and id > p_after)
$$;
CREATE FUNCTION public.find_attempt_v1(p_rollout text, p_attempt text) RETURNS public.attempts
    LANGUAGE plpgsql
    AS $$
declare
    a attempts;
begin
    select * into a from attempts
    where rollout_id = p_rollout and (p_attempt = 'latest' or attempt_id = p_attempt)
    order by sequence_id desc limit 1 for no key update;
    if not found then
        raise exception 'rollout % has no attempt %', p_rollout, p_attempt using errcode = 'RL404';
    end if;
    return a;
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
CREATE FUNCTION public.finish_attempt_v2(p_attempt text, p_fence bigint, p_class text, p_reward double precision, p_message text, p_error jsonb, p_output text, p_output_bytes bigint, p_seconds double precision, p_spans jsonb, p_grader text, p_died boolean) RETURNS jsonb
    LANGUAGE plpgsql
    SET plan_cache_mode TO 'force_generic_plan'
    SET enable_seqscan TO 'off'
    AS $$
declare
    r rollouts;
    was_open boolean;
    answer jsonb;
begin
    select * into r from rollouts where rollout_id = (select rollout_id from attempts where attempt_id = p_attempt)
    for no key update;
    select ended_at is null into was_open from attempts where attempt_id = p_attempt for no key update;
    answer := finish_attempt_v1(p_attempt, p_fence, p_class, p_reward, p_message, p_error, p_output, p_output_bytes,
                                p_seconds, p_spans, p_grader);
    if p_died and was_open and answer ->> 'failure_class' = 'infrastructure' then
        perform count_death_v1(r.rollout_id);
    end if;
    return answer;
end $$;
CREATE FUNCTION public.follow_attempt_v1(r public.rollouts, a public.attempts) RETURNS void
    LANGUAGE plpgsql
    AS $$
declare
    again boolean := a.status not in ('preparing', 'running', 'succeeded')
        and coalesce(r.config -> 'retry_condition', '[]') ? a.failure_class
        and a.sequence_id < coalesce((r.config ->> 'max_attempts')::int, 1);
    follows text := case when a.status in ('preparing', 'running', 'succeeded') then a.status
                         when again then 'requeuing' else 'failed' end;
begin
    if is_over_v1(r.status) or a.sequence_id < r.attempts then
        return;
    end if;
    update rollouts set status = follows, reward = a.reward,
        failure_class = case when follows = 'failed' then a.failure_class end,
        failure = case when follows = 'failed' then nullif(a.message, '') end,
        ended_at = case when is_over_v1(follows) then clock_timestamp() end,
        due_at = case when again then clock_timestamp() + backoff_v1(r.config, a.sequence_id) end
    where rollout_id = r.rollout_id;
end $$;
CREATE FUNCTION public.forget_strange_events_v1() RETURNS void
    LANGUAGE sql
    AS $$
    delete from events where xid >= pg_snapshot_xmax(pg_current_snapshot());
    delete from events_dropped where xid >= pg_snapshot_xmax(pg_current_snapshot());
$$;
CREATE FUNCTION public.get_rollout_v1(p_rollout text) RETURNS jsonb
    LANGUAGE sql STABLE
    AS $$
    select attempted_json_v1(r, a) from rollouts r
    left join attempts a on a.rollout_id = r.rollout_id and a.sequence_id = r.attempts
    where r.rollout_id = p_rollout
$$;
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
CREATE FUNCTION public.ingest_spans_v1(p_rollouts text[], p_attempts text[], p_spans text[], p_sequences bigint[], p_traces text[], p_parents text[], p_names text[], p_statuses text[], p_attributes text[], p_events text[], p_links text[], p_resources text[], p_extras text[], p_starts double precision[], p_ends double precision[], p_refs text[], p_body_items integer[], p_body_hashes bytea[], p_bodies bytea[], OUT verdicts text[], OUT sequences bigint[]) RETURNS record
    LANGUAGE plpgsql
    SET plan_cache_mode TO 'force_generic_plan'
    SET enable_seqscan TO 'off'
    SET work_mem TO '32MB'
    AS $$
declare
    days date[];
    alive text[];
begin
    perform from rollouts r where r.rollout_id = any (p_rollouts) order by r.rollout_id for no key update;
    with judged as (
        select given.item, given.rollout_id, given.attempt_id, given.wanted, r.day, r.next_sequence, case
            when r.day is null then 'unknown'
            when old.there then 'duplicate'
            else 'new'
        end as verdict
        from unnest(p_rollouts, p_attempts, p_spans, p_sequences)
            with ordinality as given (rollout_id, attempt_id, span_id, wanted, item)
        left join attempts a on a.attempt_id = given.attempt_id and a.rollout_id = given.rollout_id
        left join rollouts r on r.rollout_id = a.rollout_id
        left join lateral (                           -- with its limit it is looked up, and never hashed as a whole
            select true as there from spans s
            where s.day = r.day and s.rollout_id = given.rollout_id and s.attempt_id = given.attempt_id
              and s.span_id = given.span_id
            limit 1
        ) old on true
    ), counted as (
        select j.*, count(*) filter (where j.verdict = 'new' and j.wanted < 0) over before as issued
        from judged j
        window before as (
            partition by j.rollout_id order by j.item rows between unbounded preceding and 1 preceding)
    ), numbered as (
        select c.item, c.attempt_id, c.day, c.verdict, case
            when c.verdict <> 'new' then null
            when c.wanted >= 0 then c.wanted
            else c.issued + greatest(
                c.next_sequence,
                max(c.wanted + 1 - c.issued) filter (where c.verdict = 'new' and c.wanted >= 0) over before)
        end as number
        from counted c
        window before as (
            partition by c.rollout_id order by c.item rows between unbounded preceding and 1 preceding)
    )
    select array_agg(n.verdict order by n.item), array_agg(n.number order by n.item), array_agg(n.day order by n.item),
           array_agg(distinct n.attempt_id) filter (where n.day is not null)
    into verdicts, sequences, days, alive
    from numbered n;
    if alive is null then
        return;
    end if;
    insert into bodies (day, hash, body)
    select distinct on (days[b.item], b.hash) days[b.item], b.hash, b.body
    from unnest(p_body_items, p_body_hashes, p_bodies) as b (item, hash, body)
    where sequences[b.item] is not null
    order by days[b.item], b.hash
    on conflict do nothing;
    insert into spans (
        day, rollout_id, attempt_id, span_id, sequence_id, trace_id, parent_id, name, status, attributes, events, links,
        resource, extra, start_time, end_time, bodies)
    select given.day, given.rollout_id, given.attempt_id, given.span_id, given.number, given.trace_id, given.parent_id,
           given.name, given.status::jsonb, given.attributes::jsonb, coalesce(given.events::jsonb, '[]'),
           coalesce(given.links::jsonb, '[]'), given.resource::jsonb, given.extra::jsonb, given.start_time,
           given.end_time, given.refs::jsonb
    from unnest(
        days, sequences, p_rollouts, p_attempts, p_spans, p_traces, p_parents, p_names, p_statuses, p_attributes,
        p_events, p_links, p_resources, p_extras, p_starts, p_ends, p_refs
    ) as given (
        day, number, rollout_id, attempt_id, span_id, trace_id, parent_id, name, status, attributes, events, links,
        resource, extra, start_time, end_time, refs)
    where given.number is not null;
    update rollouts r set next_sequence = top.number + 1
    from (
        select given.rollout_id, max(given.number) as number
        from unnest(p_rollouts, sequences) as given (rollout_id, number)
        where given.number is not null
        group by given.rollout_id
    ) top
    where r.rollout_id = top.rollout_id and r.next_sequence <= top.number;
    perform revive_attempts_v1(alive);
end $$;
CREATE FUNCTION public.is_over_v1(p_status text) RETURNS boolean
    LANGUAGE sql IMMUTABLE
    AS $$
    select p_status in ('succeeded', 'failed', 'cancelled')
$$;
CREATE FUNCTION public.is_platform_failure(class text) RETURNS boolean
    LANGUAGE sql IMMUTABLE
    AS $$
    select coalesce(class in ('infrastructure', 'engine_error', 'grader_error'), false)
$$;
CREATE FUNCTION public.lease_end_v1(p_config jsonb, a public.attempts) RETURNS timestamp with time zone
    LANGUAGE sql STABLE
    AS $$
    select least(
        a.started_at + make_interval(secs => (p_config ->> 'timeout_seconds')::double precision),
        coalesce(a.last_heartbeat, a.started_at)
            + make_interval(secs => (p_config ->> 'unresponsive_seconds')::double precision))
$$;
CREATE FUNCTION public.lock_queued_v1(p_rollout text) RETURNS public.rollouts
    LANGUAGE plpgsql
    AS $$
declare
    r rollouts;
begin
    select * into r from rollouts where rollout_id = p_rollout for no key update;
    if not found then
        raise exception 'there is no rollout %', p_rollout using errcode = 'RL404';
    elsif r.dispatched_by = 'workflow' then
        raise exception 'rollout % is driven by a workflow: only spans may be added from outside', p_rollout
            using errcode = 'RL409';
    end if;
    return r;
end $$;
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
        join attempts a on a.attempt_id = x.attempt_id
        join rollouts r on r.rollout_id = a.rollout_id
        where (a.ended_at is null) is true
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
CREATE FUNCTION public.open_events_v1(p_seen pg_snapshot, OUT sees text, OUT first bigint) RETURNS record
    LANGUAGE sql STABLE
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    AS $$
    select now.sees::text, least(
               (select min(id + 0) from events
                where xid >= pg_snapshot_xmax(p_seen) and xid < pg_snapshot_xmax(now.sees)),
               (select min(id + 0) from events where xid = any (array(select pg_snapshot_xip(p_seen)))))
    from (select pg_current_snapshot() as sees) now
$$;
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
CREATE FUNCTION public.outbox_filled() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
begin
    perform pg_notify('relight_outbox', '');
    return null;
end $$;
CREATE FUNCTION public.outcome_v1(a public.attempts) RETURNS jsonb
    LANGUAGE sql IMMUTABLE
    AS $$
    select jsonb_build_object(
        'rollout_id', a.rollout_id, 'attempt_id', a.attempt_id, 'try_number', a.try_number,
        'succeeded', a.status = 'succeeded', 'failure_class', a.failure_class, 'reward', a.reward, 'message', a.message)
$$;
CREATE TABLE public.events (
    id bigint NOT NULL,
    xid xid8 DEFAULT pg_current_xact_id() NOT NULL,
    kind text NOT NULL,
    run text,
    rollout_id text,
    attempt_id text,
    step integer,
    data jsonb NOT NULL,
    created_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL
);
CREATE FUNCTION public.read_events_v1(p_seen pg_snapshot, p_sees pg_snapshot, p_after bigint, p_limit integer, p_run text, p_rollout text, p_kinds text[]) RETURNS SETOF public.events
    LANGUAGE sql STABLE
    SET plan_cache_mode TO 'force_generic_plan'
    SET enable_seqscan TO 'off'
    SET enable_sort TO 'off'
    SET enable_bitmapscan TO 'off'
    AS $$
    select * from events e
    where id > p_after and pg_visible_in_snapshot(xid, p_sees) and not pg_visible_in_snapshot(xid, p_seen)
      and (p_run is null or run = p_run) and (p_rollout is null or rollout_id = p_rollout)
      and (p_kinds is null or kind = any (p_kinds))
    order by id limit p_limit
$$;
CREATE FUNCTION public.remember_v1(p_scope text, p_key text, p_rollouts jsonb) RETURNS void
    LANGUAGE sql
    AS $$
    update idempotency_keys
    set ids = (select coalesce(array_agg(m -> 'attempt' ->> 'attempt_id'), '{}') from jsonb_array_elements(p_rollouts) m)
    where scope = p_scope and key = p_key
$$;
CREATE FUNCTION public.resolve_resources_v1(p_given text) RETURNS text
    LANGUAGE plpgsql STABLE
    AS $$
begin
    if p_given is null then
        return (select resources_id from resources order by update_time desc, sequence desc limit 1);
    elsif not exists (select from resources where resources_id = p_given) then
        raise exception 'resources_id: there are no resources %', p_given using errcode = 'RL404';
    end if;
    return p_given;
end $$;
CREATE FUNCTION public.revive_attempts_v1(p_attempts text[]) RETURNS void
    LANGUAGE plpgsql
    SET plan_cache_mode TO 'force_generic_plan'
    SET enable_seqscan TO 'off'
    AS $$
declare
    given record;
    a attempts;
    events jsonb := '[]';
begin
    perform from attempts where attempt_id = any (p_attempts) order by attempt_id for no key update;
    for given in
        select r, x as a from attempts x join rollouts r on r.rollout_id = x.rollout_id
        where x.attempt_id = any (p_attempts) and x.status = 'unresponsive' and x.sequence_id = r.attempts
          and not is_over_v1(r.status) and r.dispatched_by = 'queue'
    loop
        a := settle_attempt_v1(given.r, given.a, 'running', null);
        events := events || worker_event_v1(a);
    end loop;
    update rollouts r set status = 'running' from attempts x
    where x.attempt_id = any (p_attempts) and r.rollout_id = x.rollout_id and r.status = 'preparing'
      and x.sequence_id = r.attempts and x.status in ('preparing', 'running') and r.dispatched_by = 'queue';
    update attempts x set last_heartbeat = clock_timestamp(),
        status = case when x.status = 'preparing' then 'running' else x.status end
    from rollouts r
    where x.attempt_id = any (p_attempts) and r.rollout_id = x.rollout_id and r.dispatched_by = 'queue';
    if events <> '[]' then
        perform sync_ended_workers_v1(events);
    end if;
end $$;
CREATE FUNCTION public.rollout_ended() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
begin
    perform pg_notify('relight_ended', new.rollout_id);
    return null;
end $$;
CREATE FUNCTION public.rollout_event() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
begin
    insert into events (kind, run, rollout_id, step, data)
    values ('rollout', new.run, new.rollout_id, new.step, jsonb_build_object(
        'status', new.status, 'before', case when tg_op = 'UPDATE' then old.status end, 'kind', new.kind,
        'mode', new.mode, 'attempts', new.attempts, 'failure_class', new.failure_class, 'reward', new.reward));
    return null;
end $$;
CREATE FUNCTION public.rollout_json_v1(r public.rollouts) RETURNS jsonb
    LANGUAGE sql STABLE
    AS $$
    select jsonb_build_object(
        'rollout_id', r.rollout_id, 'start_time', unix_v1(r.created_at), 'end_time', unix_v1(r.ended_at),
        'input', coalesce(r.input, (select task from tasks t where t.dataset_id = r.dataset_id and t.position = r.position)),
        'mode', r.mode, 'resources_id', r.resources_id, 'status', r.status, 'config', r.config, 'metadata', r.metadata,
        'run', r.run, 'step', r.step, 'failure_class', r.failure_class, 'reward', r.reward)
$$;
CREATE FUNCTION public.rollout_transition() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
begin
    if is_over_v1(old.status) and new.status <> old.status and not (
        old.counted is null and (new.status = 'requeuing'
            or (old.dispatched_by = 'queue' and new.status = 'preparing'))) then
        raise exception 'rollout % is % and can not become %', old.rollout_id, old.status, new.status
            using errcode = 'RL409';
    end if;
    if new.status not in ('queuing', 'requeuing') then
        new.queue_order := null;
    elsif new.dispatched_by = 'queue' and old.queue_order is null then
        new.queue_order := nextval('queue_orders');
    end if;
    return new;
end $$;
CREATE FUNCTION public.rollouts_of_v1(p_run text) RETURNS text
    LANGUAGE sql STABLE
    AS $$
    select case when replays then parent_run else run end from runs where run = p_run
$$;
CREATE FUNCTION public.run_event() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
begin
    insert into events (kind, run, data)
    values ('run', new.run, jsonb_build_object(
        'status', new.status, 'before', case when tg_op = 'UPDATE' then old.status end, 'phase', new.phase,
        'paused', new.paused, 'waiting_for', new.waiting_for, 'epoch', new.epoch, 'error', left(new.error, 500)));
    return null;
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
CREATE FUNCTION public.settle_attempt_v1(r public.rollouts, a public.attempts, p_status text, p_message text) RETURNS public.attempts
    LANGUAGE plpgsql
    AS $$
declare
    open boolean := p_status in ('preparing', 'running');
    rewarded double precision;
begin
    if p_status = 'succeeded' then
        rewarded := span_reward_v1(r, a.attempt_id);
    end if;
    update attempts set status = p_status, message = coalesce(p_message, ''), reward = rewarded,
        failure_class = case when open or p_status = 'succeeded' then null
                             when p_status = 'failed' then 'agent_error' else p_status end,
        ended_at = case when not open or a.sequence_id < r.attempts then coalesce(ended_at, clock_timestamp()) end,
        lease_until = case when open then lease_end_v1(r.config, a) end
    where attempt_id = a.attempt_id returning * into a;
    if rewarded is not null then
        insert into rewards (rollout_id, attempt_id, value) values (r.rollout_id, a.attempt_id, rewarded)
        on conflict (attempt_id, grader) do update set value = excluded.value;
    end if;
    perform follow_attempt_v1(r, a);
    return a;
end $$;
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
CREATE FUNCTION public.span_reward_v1(r public.rollouts, p_attempt text) RETURNS double precision
    LANGUAGE sql STABLE
    AS $$
    select (attributes ->> 'agentlightning.reward.0.value')::double precision from spans
    where day = r.day and rollout_id = r.rollout_id and attempt_id = p_attempt
      and name in ('agentlightning.annotation', 'agentlightning.reward', 'agentlightning.operation')
      and jsonb_typeof(attributes -> 'agentlightning.reward.0.value') = 'number'
    order by sequence_id desc limit 1
$$;
CREATE FUNCTION public.start_attempt_v1(p_rollout text, p_attempt text, p_token_hash text, p_worker text) RETURNS jsonb
    LANGUAGE plpgsql
    AS $$
declare
    r rollouts := lock_queued_v1(p_rollout);
    a attempts;
begin
    if r.status = 'cancelled' then
        raise exception 'rollout % is cancelled', p_rollout using errcode = 'RL409';
    end if;
    a := begin_attempt_v1(r, p_attempt, p_token_hash, p_worker);
    update rollouts set status = 'preparing', attempts = attempts + 1, due_at = null, reward = null,
        failure_class = null, failure = null, ended_at = null
    where rollout_id = p_rollout returning * into r;
    perform sync_workers_v1(jsonb_build_array(worker_event_v1(a)));
    return attempted_json_v1(r, a);
end $$;
CREATE FUNCTION public.start_rollout_v1(p_key text, given jsonb, p_attempt text, p_token_hash text, p_worker text) RETURNS jsonb
    LANGUAGE plpgsql
    AS $$
declare
    r rollouts;
    a attempts;
    answer jsonb;
begin
    if p_key is not null and not take_key_v1('start', p_key) then
        return attempts_json_v1('start', p_key) -> 0;
    end if;
    insert into rollouts (rollout_id, kind, input, mode, resources_id, config, metadata, dispatched_by, status, created_at)
    values (given ->> 'rollout_id', 'external', given -> 'input', given ->> 'mode',
            resolve_resources_v1(given ->> 'resources_id'), given -> 'config', given -> 'metadata', 'queue', 'preparing',
            clock_timestamp())
    returning * into r;
    a := begin_attempt_v1(r, p_attempt, p_token_hash, p_worker);
    update rollouts set attempts = 1 where rollout_id = r.rollout_id returning * into r;
    answer := attempted_json_v1(r, a);
    if p_key is not null then
        perform remember_v1('start', p_key, jsonb_build_array(answer));
    end if;
    perform sync_workers_v1(jsonb_build_array(worker_event_v1(a)));
    return answer;
end $$;
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
CREATE FUNCTION public.step_event() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
begin
    insert into events (kind, run, step, data)
    values ('step', new.run, new.step, jsonb_build_object(
        'status', new.status, 'before', case when tg_op = 'UPDATE' then old.status end, 'unchanged', new.unchanged));
    return null;
end $$;
CREATE FUNCTION public.sweep_v1(p_holder text, p_seconds double precision, p_limit integer) RETURNS jsonb
    LANGUAGE plpgsql
    SET plan_cache_mode TO 'force_generic_plan'
    SET enable_seqscan TO 'off'
    AS $$
declare
    found_id text;
    r rollouts;
    a attempts;
    due timestamptz;
    events jsonb := '[]';
    overdue jsonb := '[]';
begin
    insert into leases as l (name, fence, holder, expires_at)
    values ('sweeper', nextval('fences'), p_holder, clock_timestamp() + make_interval(secs => p_seconds))
    on conflict (name) do update set holder = excluded.holder, expires_at = excluded.expires_at,
        fence = case when l.holder = excluded.holder then l.fence else excluded.fence end
    where l.holder = excluded.holder or l.expires_at < clock_timestamp();
    if not found then
        return null;
    end if;
    for found_id in
        select rollout_id from attempts
        where lease_until is not null and ended_at is null and lease_until <= clock_timestamp()
        order by lease_until limit p_limit
    loop
        select * into r from rollouts where rollout_id = found_id for no key update skip locked;
        continue when not found;
        select * into a from attempts where rollout_id = found_id and ended_at is null for no key update;
        continue when not found or a.lease_until is null;
        due := case when r.status in ('preparing', 'running') then lease_end_v1(r.config, a) end;
        if due <= clock_timestamp() then
            a := settle_attempt_v1(r, a, case when a.started_at + make_interval(
                    secs => (r.config ->> 'timeout_seconds')::double precision) <= clock_timestamp()
                then 'timeout' else 'unresponsive' end, 'found by the sweeper');
            events := events || worker_event_v1(a);
            overdue := overdue || jsonb_build_object('attempt_id', a.attempt_id, 'rollout_id', found_id, 'status', a.status);
        else
            update attempts set lease_until = due where attempt_id = a.attempt_id;
        end if;
    end loop;
    perform sync_ended_workers_v1(events);
    if overdue = '[]' then
        perform set_config('synchronous_commit', 'off', true);
    end if;
    return overdue;
end $$;
CREATE FUNCTION public.sync_ended_workers_v1(p_events jsonb) RETURNS void
    LANGUAGE sql
    AS $$
    select sync_workers_v1(coalesce(jsonb_agg(e), '[]')) from jsonb_array_elements(p_events) e
    where e ->> 'status' = 'busy' or not exists (
        select from workers w where w.worker_id = e ->> 'worker_id' and w.attempt_id <> e ->> 'attempt_id')
$$;
CREATE FUNCTION public.sync_workers_v1(p_events jsonb) RETURNS void
    LANGUAGE sql
    AS $$
    insert into workers as w (worker_id, kind, host, status, heartbeat_stats, dequeued_at, busy_at, idle_at,
                              rollout_id, attempt_id)
    select worker_id, 'external', '', status, null, case when dequeued then clock_timestamp() end,
           case when status = 'busy' then clock_timestamp() end, case when status <> 'busy' then clock_timestamp() end,
           case when status = 'busy' then rollout_id end, case when status = 'busy' then attempt_id end
    from (
        select distinct on (worker_id) *
        from rows from (jsonb_to_recordset(p_events) as
            (worker_id text, status text, rollout_id text, attempt_id text, dequeued boolean)) with ordinality as e
                (worker_id, status, rollout_id, attempt_id, dequeued, n)
        where worker_id is not null order by worker_id, n desc
    ) event
    on conflict (worker_id) do update set
        status = excluded.status, last_heartbeat = clock_timestamp(),
        dequeued_at = coalesce(excluded.dequeued_at, w.dequeued_at),
        busy_at = case when excluded.status = 'busy'
            and (w.status, w.attempt_id) is distinct from ('busy', excluded.attempt_id)
            then excluded.busy_at else w.busy_at end,
        idle_at = case when excluded.status <> 'busy' and w.status <> excluded.status
            then excluded.idle_at else w.idle_at end,
        rollout_id = excluded.rollout_id, attempt_id = excluded.attempt_id
$$;
CREATE FUNCTION public.take_key_v1(p_scope text, p_key text) RETURNS boolean
    LANGUAGE plpgsql
    AS $$
begin
    insert into idempotency_keys (scope, key) values (p_scope, p_key) on conflict do nothing;
    return found;
end $$;
CREATE FUNCTION public.take_sequence_ids_v1(p_rollouts text[], p_attempts text[]) RETURNS bigint[]
    LANGUAGE plpgsql
    AS $$
declare
    missing record;
    numbers bigint[];
begin
    perform from rollouts where rollout_id = any (p_rollouts) order by rollout_id for no key update;
    select * into missing from unnest(p_rollouts, p_attempts) as x(rollout_id, attempt_id)
    where not exists (select from attempts a where a.attempt_id = x.attempt_id and a.rollout_id = x.rollout_id) limit 1;
    if found then
        raise exception 'rollout % has no attempt %', missing.rollout_id, missing.attempt_id using errcode = 'RL404';
    end if;
    select array_agg(r.next_sequence - 1 + x.place order by x.n) into numbers
    from (select id, n, row_number() over (partition by id order by n) as place
          from unnest(p_rollouts) with ordinality as u(id, n)) x
    join rollouts r on r.rollout_id = x.id;
    update rollouts r set next_sequence = next_sequence + x.number
    from (select id, count(*) as number from unnest(p_rollouts) id group by id) x where r.rollout_id = x.id;
    return numbers;
end $$;
CREATE FUNCTION public.touch_attempt_v1(p_rollout text, p_attempt text, p_fence bigint) RETURNS void
    LANGUAGE plpgsql
    AS $$
begin
    update rollouts set status = 'running'
    where rollout_id = p_rollout and (status = 'preparing') is true and exists (
        select from attempts where attempt_id = p_attempt and fence = p_fence and (ended_at is null) is true);
    update attempts set status = 'running', last_heartbeat = clock_timestamp()
    where attempt_id = p_attempt and fence = p_fence and (ended_at is null) is true
      and (status = 'preparing' or last_heartbeat is null or last_heartbeat < clock_timestamp() - interval '1 s');
end $$;
CREATE FUNCTION public.unix_v1(p_time timestamp with time zone) RETURNS double precision
    LANGUAGE sql IMMUTABLE
    AS $$
    select extract(epoch from p_time)::double precision
$$;
CREATE FUNCTION public.update_attempt_v1(item jsonb) RETURNS public.attempts
    LANGUAGE plpgsql
    SET plan_cache_mode TO 'force_generic_plan'
    SET enable_seqscan TO 'off'
    AS $$
declare
    r rollouts := lock_queued_v1(item ->> 'rollout_id');
    a attempts := find_attempt_v1(item ->> 'rollout_id', item ->> 'attempt_id');
begin
    if item ? 'status' and item ->> 'status' <> a.status then
        if a.sequence_id < r.attempts then
            raise exception 'attempt % has been superseded', a.attempt_id using errcode = 'RL409';
        elsif a.ended_at is not null and (a.status <> 'unresponsive' or is_over_v1(r.status)) then
            raise exception 'attempt % has ended as %', a.attempt_id, a.status using errcode = 'RL409';
        end if;
        a := settle_attempt_v1(r, a, item ->> 'status', null);
    end if;
    if item ?| array['worker_id', 'last_heartbeat_time', 'metadata'] then
        update attempts set
            worker_id = case when item ? 'worker_id' then item ->> 'worker_id' else worker_id end,
            last_heartbeat = case when item ? 'last_heartbeat_time'
                then to_timestamp((item ->> 'last_heartbeat_time')::double precision) else last_heartbeat end,
            metadata = case when item ? 'metadata' then item -> 'metadata' else metadata end
        where attempt_id = a.attempt_id returning * into a;
        if item ? 'last_heartbeat_time' and a.lease_until is not null then
            update attempts set lease_until = lease_end_v1(r.config, a) where attempt_id = a.attempt_id;
        end if;
    end if;
    return a;
end $$;
CREATE FUNCTION public.update_attempts_v1(p_items jsonb) RETURNS jsonb
    LANGUAGE plpgsql
    SET plan_cache_mode TO 'force_generic_plan'
    SET enable_seqscan TO 'off'
    AS $$
declare
    item jsonb;
    a attempts;
    events jsonb := '[]';
    answer jsonb := '[]';
begin
    if jsonb_array_length(p_items) > 1 then  -- in one order, so that two groups never wait for each other
        perform from rollouts
        where rollout_id in (select i ->> 'rollout_id' from jsonb_array_elements(p_items) i)
        order by rollout_id for no key update;
    end if;
    for item in select * from jsonb_array_elements(p_items) loop
        a := update_attempt_v1(item);
        events := events || worker_event_v1(a);
        answer := answer || jsonb_build_array(attempt_json_v1(a));
    end loop;
    perform sync_ended_workers_v1(events);
    return answer;
end $$;
CREATE FUNCTION public.update_rollout_v1(p_rollout text, given jsonb) RETURNS jsonb
    LANGUAGE plpgsql
    AS $$
declare
    r rollouts := lock_queued_v1(p_rollout);
    wanted text := coalesce(given ->> 'status', r.status);
begin
    if is_over_v1(r.status) and wanted not in (r.status, 'requeuing') then
        raise exception 'rollout % is % already', p_rollout, r.status using errcode = 'RL409';
    elsif given ->> 'resources_id' is not null then
        perform resolve_resources_v1(given ->> 'resources_id');
    end if;
    update rollouts set
        input = case when given ? 'input' then given -> 'input' else input end,
        mode = case when given ? 'mode' then given ->> 'mode' else mode end,
        resources_id = case when given ? 'resources_id' then given ->> 'resources_id' else resources_id end,
        config = case when given ? 'config' then given -> 'config' else config end,
        metadata = case when given ? 'metadata' then given -> 'metadata' else metadata end,
        status = wanted,
        due_at = case when given ? 'status' then null else due_at end,
        reward = case when is_over_v1(wanted) then reward end,
        failure_class = case when wanted = 'cancelled' then 'cancelled'
                             when wanted = 'failed' then coalesce(failure_class, 'agent_error') end,
        failure = case when is_over_v1(wanted) then failure end,
        ended_at = case when is_over_v1(wanted) then coalesce(ended_at, clock_timestamp()) end
    where rollout_id = p_rollout returning * into r;
    if given ? 'config' then
        update attempts a set lease_until = lease_end_v1(r.config, a)
        where a.rollout_id = p_rollout and a.ended_at is null;
    end if;
    if wanted = 'cancelled' then
        perform end_open_attempt_v1(r, 'cancelled', 'its rollout was cancelled');
    end if;
    return get_rollout_v1(p_rollout);
end $$;
CREATE FUNCTION public.version_at_v1(p_engine text, p_seconds_ago double precision) RETURNS integer
    LANGUAGE sql STABLE
    AS $$
    select version from engine_loads
    where engine_id = p_engine and loaded_at <= clock_timestamp() - make_interval(secs => p_seconds_ago)
    order by load desc limit 1
$$;
CREATE FUNCTION public.version_event() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
begin
    insert into events (kind, run, step, data)
    values ('version', new.run, new.version, jsonb_build_object(
        'version', new.version, 'weights_hash', new.weights_hash, 'checkpointed', new.checkpointed_at is not null));
    return null;
end $$;
CREATE FUNCTION public.worker_event_v1(a public.attempts, p_dequeued boolean DEFAULT false) RETURNS jsonb
    LANGUAGE sql STABLE
    AS $$
    select jsonb_build_object(
        'worker_id', a.worker_id, 'rollout_id', a.rollout_id, 'attempt_id', a.attempt_id, 'dequeued', p_dequeued,
        'status', case when a.status in ('succeeded', 'failed') then 'idle'
                       when a.status in ('timeout', 'unresponsive') then 'unknown' else 'busy' end)
$$;
CREATE FUNCTION public.workflow_of_v1(p_rollout text) RETURNS text
    LANGUAGE sql IMMUTABLE
    AS $_$
    select 'rollout/' || regexp_replace(p_rollout, '\.(inspect-[0-9]+)$', '/\1')
$_$;
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
CREATE TABLE public.commands (
    command_id text NOT NULL,
    run text NOT NULL,
    action text NOT NULL,
    value jsonb NOT NULL,
    actor text NOT NULL,
    created_at timestamp with time zone DEFAULT now() NOT NULL,
    claimed_until timestamp with time zone DEFAULT now() NOT NULL,
    tries integer DEFAULT 0 NOT NULL,
    waiting_for text,
    done_at timestamp with time zone,
    refused text,
    result jsonb
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
CREATE TABLE public.events_dropped (
    only_one boolean DEFAULT true NOT NULL,
    id bigint NOT NULL,
    xid xid8 NOT NULL,
    created_at timestamp with time zone NOT NULL,
    CONSTRAINT events_dropped_only_one_check CHECK (only_one)
);
ALTER TABLE public.events ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME public.events_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
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
CREATE TABLE public.idempotency_keys (
    scope text NOT NULL,
    key text NOT NULL,
    ids text[] DEFAULT '{}'::text[] NOT NULL,
    created_at timestamp with time zone DEFAULT now() NOT NULL
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
    started_at timestamp with time zone,
    checked_at timestamp with time zone
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
    forks integer DEFAULT 0 NOT NULL,
    export_digest text,
    checkpoint_digest text,
    export_bytes bigint DEFAULT 0 NOT NULL,
    checkpoint_bytes bigint DEFAULT 0 NOT NULL,
    export_deleted_at timestamp with time zone,
    checkpoint_deleted_at timestamp with time zone,
    CONSTRAINT policy_versions_version_check CHECK ((version >= 0))
);
CREATE SEQUENCE public.queue_orders
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;
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
    replays boolean DEFAULT false NOT NULL,
    warnings jsonb DEFAULT '{}'::jsonb NOT NULL,
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
    start_time double precision,
    end_time double precision,
    created_at timestamp with time zone DEFAULT now() NOT NULL,
    extra jsonb,
    bodies jsonb
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
    start_time double precision,
    end_time double precision,
    created_at timestamp with time zone DEFAULT now() CONSTRAINT spans_created_at_not_null NOT NULL,
    extra jsonb,
    bodies jsonb
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
    start_time double precision,
    end_time double precision,
    created_at timestamp with time zone DEFAULT now() CONSTRAINT spans_created_at_not_null NOT NULL,
    extra jsonb,
    bodies jsonb
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
    start_time double precision,
    end_time double precision,
    created_at timestamp with time zone DEFAULT now() CONSTRAINT spans_created_at_not_null NOT NULL,
    extra jsonb,
    bodies jsonb
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
    start_time double precision,
    end_time double precision,
    created_at timestamp with time zone DEFAULT now() CONSTRAINT spans_created_at_not_null NOT NULL,
    extra jsonb,
    bodies jsonb
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
    heartbeat_stats jsonb DEFAULT '{}'::jsonb,
    last_heartbeat timestamp with time zone DEFAULT now() NOT NULL,
    started_at timestamp with time zone DEFAULT now() NOT NULL,
    heartbeat_at timestamp with time zone,
    dequeued_at timestamp with time zone,
    busy_at timestamp with time zone,
    idle_at timestamp with time zone,
    rollout_id text,
    attempt_id text
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
INSERT INTO public.attempts VALUES ('at-01a1fd290e612cc055de5e', 'small-s0002-g01-i0', 1, 1, 'small-s0002-g01-i0/1/x1', 14, 'succeeded', NULL, '', NULL, 'done', 4, 0, 0, '004f36a82c82b569a74a30c69f92028059b9d114c4d171eefc872190a368a0eb', 'runner-1', '{}', '2026-11-21 08:11:28.737733+00', '2026-11-21 08:11:28.738532+00', '2026-11-21 08:11:28.740342+00', NULL);
INSERT INTO public.attempts VALUES ('at-01a1fd290e045ea37b8886', 'small-e0000-g00-i0', 1, 1, 'small-e0000-g00-i0/1/x1', 2, 'succeeded', NULL, '', NULL, 'done', 4, 0, 0, '93ee8e178aa0d536c8fdadcddae58115099b3ffb5fc1856819be27f29e60d47c', 'runner-1', '{}', '2026-11-21 08:11:28.644583+00', '2026-11-21 08:11:28.650373+00', '2026-11-21 08:11:28.667901+00', NULL);
INSERT INTO public.attempts VALUES ('at-01a1fd290e1d848bf6db4c', 'small-e0000-g01-i0', 1, 1, 'small-e0000-g01-i0/1/x1', 3, 'succeeded', NULL, '', NULL, 'done', 4, 0, 0, 'aebf7575ed45d31b96a9811e4a16ae771b0ca0ac9a5a795b99442f25c88f54b8', 'runner-1', '{}', '2026-11-21 08:11:28.669217+00', '2026-11-21 08:11:28.670462+00', '2026-11-21 08:11:28.672961+00', NULL);
INSERT INTO public.attempts VALUES ('at-01a1fd290e2a7f9e4c8ea7', 'small-s0001-g00-i0', 1, 1, 'small-s0001-g00-i0/1/that dies', 4, 'failed', 'infrastructure', 'its process died, or lost touch with the platform', NULL, '', 0, NULL, NULL, '8fd766191ef74756cb5021a985f50843773c16313ef5b158f422f8074373ac26', 'runner-1', '{}', '2026-11-21 08:11:28.68274+00', '2026-11-21 08:11:28.683068+00', '2026-11-21 08:11:28.683969+00', NULL);
INSERT INTO public.attempts VALUES ('at-01a1fd290e640a39761d89', 'small-s0002-g01-i1', 1, 1, 'small-s0002-g01-i1/1/x1', 15, 'failed', 'agent_error', 'no', NULL, '', 0, NULL, 0, '8178d18f6151bec29f57cd9f8b3f791b907c8174f0df61d20d2c0a1d3808c5f7', 'runner-1', '{}', '2026-11-21 08:11:28.740814+00', '2026-11-21 08:11:28.741013+00', '2026-11-21 08:11:28.741467+00', NULL);
INSERT INTO public.attempts VALUES ('at-01a1fd290e2b65b611eee1', 'small-s0001-g00-i0', 2, 1, 'small-s0001-g00-i0/1/x1', 5, 'succeeded', NULL, '', NULL, 'done', 4, 0, 0, 'd745187fbcc0dba4c8ad4f0c3a8e4b7eaf72d21f58533615c12cd33e6be4c026', 'runner-1', '{}', '2026-11-21 08:11:28.68357+00', '2026-11-21 08:11:28.685793+00', '2026-11-21 08:11:28.688326+00', NULL);
INSERT INTO public.attempts VALUES ('at-01a1fd290e30be3ed84734', 'small-s0001-g00-i1', 1, 1, 'small-s0001-g00-i1/1/x1', 6, 'succeeded', NULL, '', NULL, 'done', 4, 1, 0, 'f9d1afaafa5eda916c6fb5fbed83f1a5f414c6e36924a51c213c6b232d91478e', 'runner-1', '{}', '2026-11-21 08:11:28.68886+00', '2026-11-21 08:11:28.68999+00', '2026-11-21 08:11:28.692176+00', NULL);
INSERT INTO public.attempts VALUES ('at-01a1fd290e346edda15666', 'small-s0001-g01-i0', 1, 1, 'small-s0001-g01-i0/1/x1', 7, 'succeeded', NULL, '', NULL, 'done', 4, 0, 0, 'a26f725f6ac56b96f6d9b32a4432d8c550021a7c47f989ed54d8079ee5327ca7', 'runner-1', '{}', '2026-11-21 08:11:28.692714+00', '2026-11-21 08:11:28.693657+00', '2026-11-21 08:11:28.695811+00', NULL);
INSERT INTO public.attempts VALUES ('at-01a1fd290e38ec06612db1', 'small-s0001-g01-i1', 1, 1, 'small-s0001-g01-i1/1/x1', 8, 'failed', 'agent_error', 'no', NULL, '', 0, NULL, 0, '3cd1f05778671bf96c5a25d8382e5c30c95e1248b70ef7016ae0e3f7350cbc79', 'runner-1', '{}', '2026-11-21 08:11:28.696304+00', '2026-11-21 08:11:28.696539+00', '2026-11-21 08:11:28.69708+00', NULL);
INSERT INTO public.attempts VALUES ('at-01a1fd290e593931bd3f5b', 'small-s0002-g00-i0', 1, 1, 'small-s0002-g00-i0/1/that dies', 11, 'failed', 'infrastructure', 'its process died, or lost touch with the platform', NULL, '', 0, NULL, NULL, 'afc919d11437d473d1644522378a52cc9b0668ccd4c9e42cb78bb54fb2ca3a44', 'runner-1', '{}', '2026-11-21 08:11:28.729856+00', '2026-11-21 08:11:28.73017+00', '2026-11-21 08:11:28.730799+00', NULL);
INSERT INTO public.attempts VALUES ('at-01a1fd290e5a22714a4226', 'small-s0002-g00-i0', 2, 1, 'small-s0002-g00-i0/1/x1', 12, 'succeeded', NULL, '', NULL, 'done', 4, 0, 0, 'ad88fbc754a3c36f365a7e00afc8b3591852a9bb19fbd9ab42af0d15a137cdb9', 'runner-1', '{}', '2026-11-21 08:11:28.730657+00', '2026-11-21 08:11:28.731796+00', '2026-11-21 08:11:28.734013+00', NULL);
INSERT INTO public.attempts VALUES ('at-01a1fd290e5e6a98859d93', 'small-s0002-g00-i1', 1, 1, 'small-s0002-g00-i1/1/x1', 13, 'succeeded', NULL, '', NULL, 'done', 4, 1, 0, '8324666325de9913a76af2317f98dd295642310d84fd266eaf5a4286d775e739', 'runner-1', '{}', '2026-11-21 08:11:28.734492+00', '2026-11-21 08:11:28.735362+00', '2026-11-21 08:11:28.73726+00', NULL);
INSERT INTO public.audit OVERRIDING SYSTEM VALUE VALUES (1, 'small', NULL, 'someone', 'set_hyperparameters', '{"learning_rate": 0.000001}', '{"learning_rate": 0.0001}', 1, NULL, '2026-11-21 08:11:28.632295+00', 'set_hyperparameters');
INSERT INTO public.bodies_20261121 VALUES ('2026-11-21', '\x284569949850c9771385890b39034d20e3c9fc51b05e9e587d213a9c5d54fac7', '\x7801ab56ca4d2d2e4e4c4f2d56b28aae562acacf4955b2522a2d4e2d52d2514acecf2b49cd2b010a64241667e81a2ad5c6d60200a7bb109d');
INSERT INTO public.bodies_20261121 VALUES ('2026-11-21', '\x7a5a0b15d81b36d399bce854c6902e09feaa753235cd90eec1398d70a977fb2c', '\x7801ab56ca4c51b2524ace482c49ce2dc8d13552d20172f23393538b95aca2ab954a522b4a80f2a6664ab5b1b5004b660e5d');
INSERT INTO public.bodies_20261121 VALUES ('2026-11-21', '\x9b222f60ba6d06a5948008d165b1bdb3cb9d37caae8961f706f58ece53ae6567', '\x7801ab56ca4c51b2524ace482c49ce2dc8d13554d20172f23393538b95aca2ab954a522b4a80f2a6664ab5b1b5004b490e5c');
INSERT INTO public.bodies_20261121 VALUES ('2026-11-21', '\xb09742960edb9636ea4e6c4bca65ec8603ad59a87956d62dbbaa5c2706d15e9c', '\x7801ab56ca4d2d2e4e4c4f2d56b28aae562acacf4955b2522a2d4e2d52d2514acecf2b49cd2b010a64241667e81a29d5c6d60200a7c0109e');
INSERT INTO public.call_failures_20261121 VALUES ('2026-11-21', 'at-01a1fd290e045ea37b8886', 1, 'hash-1', 'the engine did not answer', '2026-11-21 08:11:28.648745+00');
INSERT INTO public.call_failures_20261121 VALUES ('2026-11-21', 'at-01a1fd290e1d848bf6db4c', 1, 'hash-1', 'the engine did not answer', '2026-11-21 08:11:28.67012+00');
INSERT INTO public.call_failures_20261121 VALUES ('2026-11-21', 'at-01a1fd290e2b65b611eee1', 1, 'hash-1', 'the engine did not answer', '2026-11-21 08:11:28.6854+00');
INSERT INTO public.call_failures_20261121 VALUES ('2026-11-21', 'at-01a1fd290e30be3ed84734', 1, 'hash-1', 'the engine did not answer', '2026-11-21 08:11:28.689738+00');
INSERT INTO public.call_failures_20261121 VALUES ('2026-11-21', 'at-01a1fd290e346edda15666', 1, 'hash-1', 'the engine did not answer', '2026-11-21 08:11:28.693403+00');
INSERT INTO public.call_failures_20261121 VALUES ('2026-11-21', 'at-01a1fd290e5a22714a4226', 1, 'hash-1', 'the engine did not answer', '2026-11-21 08:11:28.731466+00');
INSERT INTO public.call_failures_20261121 VALUES ('2026-11-21', 'at-01a1fd290e5e6a98859d93', 1, 'hash-1', 'the engine did not answer', '2026-11-21 08:11:28.735092+00');
INSERT INTO public.call_failures_20261121 VALUES ('2026-11-21', 'at-01a1fd290e612cc055de5e', 1, 'hash-1', 'the engine did not answer', '2026-11-21 08:11:28.738318+00');
INSERT INTO public.datasets VALUES ('666251885e251dbe412692a972fdb6ed914070cd2f6461bd4684944d1be06002', 'train.jsonl', 4, '2026-11-21 08:11:28.612904+00');
INSERT INTO public.datasets VALUES ('414c26046e509a653f996e0c9492048afa080b92579388037cc22041eb1d51bf', 'heldout.jsonl', 4, '2026-11-21 08:11:28.622049+00');
INSERT INTO public.engine_loads VALUES ('engine-1', 1, 'small', 0, '2026-11-21 08:11:28.628301+00');
INSERT INTO public.engine_loads VALUES ('engine-1', 2, 'small', 0, '2026-11-21 08:11:28.631912+00');
INSERT INTO public.engine_loads VALUES ('engine-1', 3, 'small', 1, '2026-11-21 08:11:28.724709+00');
INSERT INTO public.engine_loads VALUES ('engine-1', 4, 'small', 2, '2026-11-21 08:11:28.751115+00');
INSERT INTO public.engines VALUES ('engine-1', 'host', 'small', 'unix:/tmp/engine-1.sock', 'policy', 'ready', 2, 4, 0, NULL, '2026-11-21 08:11:28.626837+00');
INSERT INTO public.events OVERRIDING SYSTEM VALUE VALUES (1, '771', 'run', 'small', NULL, NULL, NULL, '{"epoch": 1, "error": null, "phase": "starting", "before": null, "paused": false, "status": "running", "waiting_for": null}', '2026-11-21 08:11:28.625003+00');
INSERT INTO public.events OVERRIDING SYSTEM VALUE VALUES (2, '774', 'version', 'small', NULL, NULL, 0, '{"version": 0, "checkpointed": true, "weights_hash": "w0"}', '2026-11-21 08:11:28.630678+00');
INSERT INTO public.events OVERRIDING SYSTEM VALUE VALUES (3, '776', 'audit', 'small', NULL, NULL, 1, '{"id": 1, "actor": "someone", "action": "set_hyperparameters", "refused": null}', '2026-11-21 08:11:28.634408+00');
INSERT INTO public.events OVERRIDING SYSTEM VALUE VALUES (4, '777', 'step', 'small', NULL, NULL, 0, '{"before": null, "status": "recorded", "unchanged": false}', '2026-11-21 08:11:28.637039+00');
INSERT INTO public.events OVERRIDING SYSTEM VALUE VALUES (5, '777', 'rollout', 'small', 'small-e0000-g00-i0', NULL, 0, '{"kind": "eval", "mode": "val", "before": null, "reward": null, "status": "queuing", "attempts": 0, "failure_class": null}', '2026-11-21 08:11:28.642102+00');
INSERT INTO public.events OVERRIDING SYSTEM VALUE VALUES (6, '777', 'rollout', 'small', 'small-e0000-g01-i0', NULL, 0, '{"kind": "eval", "mode": "val", "before": null, "reward": null, "status": "queuing", "attempts": 0, "failure_class": null}', '2026-11-21 08:11:28.642237+00');
INSERT INTO public.events OVERRIDING SYSTEM VALUE VALUES (7, '777', 'run', 'small', NULL, NULL, NULL, '{"epoch": 1, "error": null, "phase": "evaluating", "before": "running", "paused": false, "status": "running", "waiting_for": null}', '2026-11-21 08:11:28.643435+00');
INSERT INTO public.events OVERRIDING SYSTEM VALUE VALUES (8, '778', 'rollout', 'small', 'small-e0000-g00-i0', NULL, 0, '{"kind": "eval", "mode": "val", "before": "queuing", "reward": null, "status": "preparing", "attempts": 1, "failure_class": null}', '2026-11-21 08:11:28.646581+00');
INSERT INTO public.events OVERRIDING SYSTEM VALUE VALUES (9, '778', 'attempt', 'small', 'small-e0000-g00-i0', 'at-01a1fd290e045ea37b8886', 0, '{"before": null, "reward": null, "status": "preparing", "worker_id": "runner-1", "sequence_id": 1, "failure_class": null}', '2026-11-21 08:11:28.647143+00');
INSERT INTO public.events OVERRIDING SYSTEM VALUE VALUES (10, '779', 'rollout', 'small', 'small-e0000-g00-i0', NULL, 0, '{"kind": "eval", "mode": "val", "before": "preparing", "reward": null, "status": "running", "attempts": 1, "failure_class": null}', '2026-11-21 08:11:28.65016+00');
INSERT INTO public.events OVERRIDING SYSTEM VALUE VALUES (11, '779', 'attempt', 'small', 'small-e0000-g00-i0', 'at-01a1fd290e045ea37b8886', 0, '{"before": "preparing", "reward": null, "status": "running", "worker_id": "runner-1", "sequence_id": 1, "failure_class": null}', '2026-11-21 08:11:28.650783+00');
INSERT INTO public.events OVERRIDING SYSTEM VALUE VALUES (12, '783', 'attempt', 'small', 'small-e0000-g00-i0', 'at-01a1fd290e045ea37b8886', 0, '{"before": "running", "reward": 0, "status": "succeeded", "worker_id": "runner-1", "sequence_id": 1, "failure_class": null}', '2026-11-21 08:11:28.667996+00');
INSERT INTO public.events OVERRIDING SYSTEM VALUE VALUES (13, '783', 'rollout', 'small', 'small-e0000-g00-i0', NULL, 0, '{"kind": "eval", "mode": "val", "before": "running", "reward": 0, "status": "succeeded", "attempts": 1, "failure_class": null}', '2026-11-21 08:11:28.66865+00');
INSERT INTO public.events OVERRIDING SYSTEM VALUE VALUES (14, '784', 'rollout', 'small', 'small-e0000-g01-i0', NULL, 0, '{"kind": "eval", "mode": "val", "before": "queuing", "reward": null, "status": "preparing", "attempts": 1, "failure_class": null}', '2026-11-21 08:11:28.669534+00');
INSERT INTO public.events OVERRIDING SYSTEM VALUE VALUES (15, '784', 'attempt', 'small', 'small-e0000-g01-i0', 'at-01a1fd290e1d848bf6db4c', 0, '{"before": null, "reward": null, "status": "preparing", "worker_id": "runner-1", "sequence_id": 1, "failure_class": null}', '2026-11-21 08:11:28.669617+00');
INSERT INTO public.events OVERRIDING SYSTEM VALUE VALUES (16, '785', 'rollout', 'small', 'small-e0000-g01-i0', NULL, 0, '{"kind": "eval", "mode": "val", "before": "preparing", "reward": null, "status": "running", "attempts": 1, "failure_class": null}', '2026-11-21 08:11:28.670425+00');
INSERT INTO public.events OVERRIDING SYSTEM VALUE VALUES (17, '785', 'attempt', 'small', 'small-e0000-g01-i0', 'at-01a1fd290e1d848bf6db4c', 0, '{"before": "preparing", "reward": null, "status": "running", "worker_id": "runner-1", "sequence_id": 1, "failure_class": null}', '2026-11-21 08:11:28.670514+00');
INSERT INTO public.events OVERRIDING SYSTEM VALUE VALUES (18, '789', 'attempt', 'small', 'small-e0000-g01-i0', 'at-01a1fd290e1d848bf6db4c', 0, '{"before": "running", "reward": 0, "status": "succeeded", "worker_id": "runner-1", "sequence_id": 1, "failure_class": null}', '2026-11-21 08:11:28.673027+00');
INSERT INTO public.events OVERRIDING SYSTEM VALUE VALUES (19, '789', 'rollout', 'small', 'small-e0000-g01-i0', NULL, 0, '{"kind": "eval", "mode": "val", "before": "running", "reward": 0, "status": "succeeded", "attempts": 1, "failure_class": null}', '2026-11-21 08:11:28.673176+00');
INSERT INTO public.events OVERRIDING SYSTEM VALUE VALUES (20, '792', 'step', 'small', NULL, NULL, 1, '{"before": null, "status": "planned", "unchanged": false}', '2026-11-21 08:11:28.680596+00');
INSERT INTO public.events OVERRIDING SYSTEM VALUE VALUES (21, '792', 'rollout', 'small', 'small-s0001-g00-i0', NULL, 1, '{"kind": "train", "mode": "train", "before": null, "reward": null, "status": "queuing", "attempts": 0, "failure_class": null}', '2026-11-21 08:11:28.681105+00');
INSERT INTO public.events OVERRIDING SYSTEM VALUE VALUES (22, '792', 'rollout', 'small', 'small-s0001-g00-i1', NULL, 1, '{"kind": "train", "mode": "train", "before": null, "reward": null, "status": "queuing", "attempts": 0, "failure_class": null}', '2026-11-21 08:11:28.681164+00');
INSERT INTO public.events OVERRIDING SYSTEM VALUE VALUES (23, '792', 'rollout', 'small', 'small-s0001-g01-i0', NULL, 1, '{"kind": "train", "mode": "train", "before": null, "reward": null, "status": "queuing", "attempts": 0, "failure_class": null}', '2026-11-21 08:11:28.681208+00');
INSERT INTO public.events OVERRIDING SYSTEM VALUE VALUES (24, '792', 'rollout', 'small', 'small-s0001-g01-i1', NULL, 1, '{"kind": "train", "mode": "train", "before": null, "reward": null, "status": "queuing", "attempts": 0, "failure_class": null}', '2026-11-21 08:11:28.681278+00');
INSERT INTO public.events OVERRIDING SYSTEM VALUE VALUES (25, '792', 'run', 'small', NULL, NULL, NULL, '{"epoch": 1, "error": null, "phase": "sampling", "before": "running", "paused": false, "status": "running", "waiting_for": null}', '2026-11-21 08:11:28.681801+00');
INSERT INTO public.events OVERRIDING SYSTEM VALUE VALUES (26, '793', 'rollout', 'small', 'small-s0001-g00-i0', NULL, 1, '{"kind": "train", "mode": "train", "before": "queuing", "reward": null, "status": "preparing", "attempts": 1, "failure_class": null}', '2026-11-21 08:11:28.68304+00');
INSERT INTO public.events OVERRIDING SYSTEM VALUE VALUES (27, '793', 'attempt', 'small', 'small-s0001-g00-i0', 'at-01a1fd290e2a7f9e4c8ea7', 1, '{"before": null, "reward": null, "status": "preparing", "worker_id": "runner-1", "sequence_id": 1, "failure_class": null}', '2026-11-21 08:11:28.683125+00');
INSERT INTO public.events OVERRIDING SYSTEM VALUE VALUES (28, '794', 'attempt', 'small', 'small-s0001-g00-i0', 'at-01a1fd290e2a7f9e4c8ea7', 1, '{"before": "preparing", "reward": null, "status": "failed", "worker_id": "runner-1", "sequence_id": 1, "failure_class": "infrastructure"}', '2026-11-21 08:11:28.684049+00');
INSERT INTO public.events OVERRIDING SYSTEM VALUE VALUES (29, '794', 'attempt', 'small', 'small-s0001-g00-i0', 'at-01a1fd290e2b65b611eee1', 1, '{"before": null, "reward": null, "status": "preparing", "worker_id": "runner-1", "sequence_id": 2, "failure_class": null}', '2026-11-21 08:11:28.684322+00');
INSERT INTO public.events OVERRIDING SYSTEM VALUE VALUES (30, '795', 'rollout', 'small', 'small-s0001-g00-i0', NULL, 1, '{"kind": "train", "mode": "train", "before": "preparing", "reward": null, "status": "running", "attempts": 2, "failure_class": null}', '2026-11-21 08:11:28.685758+00');
INSERT INTO public.events OVERRIDING SYSTEM VALUE VALUES (31, '795', 'attempt', 'small', 'small-s0001-g00-i0', 'at-01a1fd290e2b65b611eee1', 1, '{"before": "preparing", "reward": null, "status": "running", "worker_id": "runner-1", "sequence_id": 2, "failure_class": null}', '2026-11-21 08:11:28.685849+00');
INSERT INTO public.events OVERRIDING SYSTEM VALUE VALUES (32, '799', 'attempt', 'small', 'small-s0001-g00-i0', 'at-01a1fd290e2b65b611eee1', 1, '{"before": "running", "reward": 0, "status": "succeeded", "worker_id": "runner-1", "sequence_id": 2, "failure_class": null}', '2026-11-21 08:11:28.688387+00');
INSERT INTO public.events OVERRIDING SYSTEM VALUE VALUES (33, '799', 'rollout', 'small', 'small-s0001-g00-i0', NULL, 1, '{"kind": "train", "mode": "train", "before": "running", "reward": 0, "status": "succeeded", "attempts": 2, "failure_class": null}', '2026-11-21 08:11:28.688529+00');
INSERT INTO public.events OVERRIDING SYSTEM VALUE VALUES (34, '800', 'rollout', 'small', 'small-s0001-g00-i1', NULL, 1, '{"kind": "train", "mode": "train", "before": "queuing", "reward": null, "status": "preparing", "attempts": 1, "failure_class": null}', '2026-11-21 08:11:28.689085+00');
INSERT INTO public.events OVERRIDING SYSTEM VALUE VALUES (35, '800', 'attempt', 'small', 'small-s0001-g00-i1', 'at-01a1fd290e30be3ed84734', 1, '{"before": null, "reward": null, "status": "preparing", "worker_id": "runner-1", "sequence_id": 1, "failure_class": null}', '2026-11-21 08:11:28.689148+00');
INSERT INTO public.events OVERRIDING SYSTEM VALUE VALUES (36, '801', 'rollout', 'small', 'small-s0001-g00-i1', NULL, 1, '{"kind": "train", "mode": "train", "before": "preparing", "reward": null, "status": "running", "attempts": 1, "failure_class": null}', '2026-11-21 08:11:28.689964+00');
INSERT INTO public.events OVERRIDING SYSTEM VALUE VALUES (37, '801', 'attempt', 'small', 'small-s0001-g00-i1', 'at-01a1fd290e30be3ed84734', 1, '{"before": "preparing", "reward": null, "status": "running", "worker_id": "runner-1", "sequence_id": 1, "failure_class": null}', '2026-11-21 08:11:28.690041+00');
INSERT INTO public.events OVERRIDING SYSTEM VALUE VALUES (38, '805', 'attempt', 'small', 'small-s0001-g00-i1', 'at-01a1fd290e30be3ed84734', 1, '{"before": "running", "reward": 1, "status": "succeeded", "worker_id": "runner-1", "sequence_id": 1, "failure_class": null}', '2026-11-21 08:11:28.692265+00');
INSERT INTO public.events OVERRIDING SYSTEM VALUE VALUES (39, '805', 'rollout', 'small', 'small-s0001-g00-i1', NULL, 1, '{"kind": "train", "mode": "train", "before": "running", "reward": 1, "status": "succeeded", "attempts": 1, "failure_class": null}', '2026-11-21 08:11:28.692407+00');
INSERT INTO public.events OVERRIDING SYSTEM VALUE VALUES (40, '806', 'rollout', 'small', 'small-s0001-g01-i0', NULL, 1, '{"kind": "train", "mode": "train", "before": "queuing", "reward": null, "status": "preparing", "attempts": 1, "failure_class": null}', '2026-11-21 08:11:28.69294+00');
INSERT INTO public.events OVERRIDING SYSTEM VALUE VALUES (41, '806', 'attempt', 'small', 'small-s0001-g01-i0', 'at-01a1fd290e346edda15666', 1, '{"before": null, "reward": null, "status": "preparing", "worker_id": "runner-1", "sequence_id": 1, "failure_class": null}', '2026-11-21 08:11:28.693009+00');
INSERT INTO public.events OVERRIDING SYSTEM VALUE VALUES (42, '807', 'rollout', 'small', 'small-s0001-g01-i0', NULL, 1, '{"kind": "train", "mode": "train", "before": "preparing", "reward": null, "status": "running", "attempts": 1, "failure_class": null}', '2026-11-21 08:11:28.693633+00');
INSERT INTO public.events OVERRIDING SYSTEM VALUE VALUES (43, '807', 'attempt', 'small', 'small-s0001-g01-i0', 'at-01a1fd290e346edda15666', 1, '{"before": "preparing", "reward": null, "status": "running", "worker_id": "runner-1", "sequence_id": 1, "failure_class": null}', '2026-11-21 08:11:28.693699+00');
INSERT INTO public.events OVERRIDING SYSTEM VALUE VALUES (44, '811', 'attempt', 'small', 'small-s0001-g01-i0', 'at-01a1fd290e346edda15666', 1, '{"before": "running", "reward": 0, "status": "succeeded", "worker_id": "runner-1", "sequence_id": 1, "failure_class": null}', '2026-11-21 08:11:28.695867+00');
INSERT INTO public.events OVERRIDING SYSTEM VALUE VALUES (45, '811', 'rollout', 'small', 'small-s0001-g01-i0', NULL, 1, '{"kind": "train", "mode": "train", "before": "running", "reward": 0, "status": "succeeded", "attempts": 1, "failure_class": null}', '2026-11-21 08:11:28.695999+00');
INSERT INTO public.events OVERRIDING SYSTEM VALUE VALUES (46, '812', 'rollout', 'small', 'small-s0001-g01-i1', NULL, 1, '{"kind": "train", "mode": "train", "before": "queuing", "reward": null, "status": "preparing", "attempts": 1, "failure_class": null}', '2026-11-21 08:11:28.696515+00');
INSERT INTO public.events OVERRIDING SYSTEM VALUE VALUES (47, '812', 'attempt', 'small', 'small-s0001-g01-i1', 'at-01a1fd290e38ec06612db1', 1, '{"before": null, "reward": null, "status": "preparing", "worker_id": "runner-1", "sequence_id": 1, "failure_class": null}', '2026-11-21 08:11:28.696589+00');
INSERT INTO public.events OVERRIDING SYSTEM VALUE VALUES (48, '813', 'attempt', 'small', 'small-s0001-g01-i1', 'at-01a1fd290e38ec06612db1', 1, '{"before": "preparing", "reward": null, "status": "failed", "worker_id": "runner-1", "sequence_id": 1, "failure_class": "agent_error"}', '2026-11-21 08:11:28.697131+00');
INSERT INTO public.events OVERRIDING SYSTEM VALUE VALUES (49, '813', 'rollout', 'small', 'small-s0001-g01-i1', NULL, 1, '{"kind": "train", "mode": "train", "before": "preparing", "reward": null, "status": "failed", "attempts": 1, "failure_class": "agent_error"}', '2026-11-21 08:11:28.69722+00');
INSERT INTO public.events OVERRIDING SYSTEM VALUE VALUES (50, '814', 'step', 'small', NULL, NULL, 1, '{"before": "planned", "status": "sampled", "unchanged": false}', '2026-11-21 08:11:28.700548+00');
INSERT INTO public.events OVERRIDING SYSTEM VALUE VALUES (51, '815', 'step', 'small', NULL, NULL, 1, '{"before": "sampled", "status": "ledgered", "unchanged": false}', '2026-11-21 08:11:28.722439+00');
INSERT INTO public.events OVERRIDING SYSTEM VALUE VALUES (52, '817', 'version', 'small', NULL, NULL, 1, '{"version": 1, "checkpointed": true, "weights_hash": "w1"}', '2026-11-21 08:11:28.723829+00');
INSERT INTO public.events OVERRIDING SYSTEM VALUE VALUES (53, '819', 'step', 'small', NULL, NULL, 1, '{"before": "ledgered", "status": "recorded", "unchanged": false}', '2026-11-21 08:11:28.725433+00');
INSERT INTO public.events OVERRIDING SYSTEM VALUE VALUES (54, '820', 'step', 'small', NULL, NULL, 2, '{"before": null, "status": "planned", "unchanged": false}', '2026-11-21 08:11:28.727963+00');
INSERT INTO public.events OVERRIDING SYSTEM VALUE VALUES (55, '820', 'rollout', 'small', 'small-s0002-g00-i0', NULL, 2, '{"kind": "train", "mode": "train", "before": null, "reward": null, "status": "queuing", "attempts": 0, "failure_class": null}', '2026-11-21 08:11:28.728463+00');
INSERT INTO public.events OVERRIDING SYSTEM VALUE VALUES (56, '820', 'rollout', 'small', 'small-s0002-g00-i1', NULL, 2, '{"kind": "train", "mode": "train", "before": null, "reward": null, "status": "queuing", "attempts": 0, "failure_class": null}', '2026-11-21 08:11:28.728488+00');
INSERT INTO public.events OVERRIDING SYSTEM VALUE VALUES (57, '820', 'rollout', 'small', 'small-s0002-g01-i0', NULL, 2, '{"kind": "train", "mode": "train", "before": null, "reward": null, "status": "queuing", "attempts": 0, "failure_class": null}', '2026-11-21 08:11:28.728506+00');
INSERT INTO public.events OVERRIDING SYSTEM VALUE VALUES (58, '820', 'rollout', 'small', 'small-s0002-g01-i1', NULL, 2, '{"kind": "train", "mode": "train", "before": null, "reward": null, "status": "queuing", "attempts": 0, "failure_class": null}', '2026-11-21 08:11:28.728523+00');
INSERT INTO public.events OVERRIDING SYSTEM VALUE VALUES (59, '821', 'rollout', 'small', 'small-s0002-g00-i0', NULL, 2, '{"kind": "train", "mode": "train", "before": "queuing", "reward": null, "status": "preparing", "attempts": 1, "failure_class": null}', '2026-11-21 08:11:28.730141+00');
INSERT INTO public.events OVERRIDING SYSTEM VALUE VALUES (60, '821', 'attempt', 'small', 'small-s0002-g00-i0', 'at-01a1fd290e593931bd3f5b', 2, '{"before": null, "reward": null, "status": "preparing", "worker_id": "runner-1", "sequence_id": 1, "failure_class": null}', '2026-11-21 08:11:28.730223+00');
INSERT INTO public.events OVERRIDING SYSTEM VALUE VALUES (61, '822', 'attempt', 'small', 'small-s0002-g00-i0', 'at-01a1fd290e593931bd3f5b', 2, '{"before": "preparing", "reward": null, "status": "failed", "worker_id": "runner-1", "sequence_id": 1, "failure_class": "infrastructure"}', '2026-11-21 08:11:28.730868+00');
INSERT INTO public.events OVERRIDING SYSTEM VALUE VALUES (62, '822', 'attempt', 'small', 'small-s0002-g00-i0', 'at-01a1fd290e5a22714a4226', 2, '{"before": null, "reward": null, "status": "preparing", "worker_id": "runner-1", "sequence_id": 2, "failure_class": null}', '2026-11-21 08:11:28.731051+00');
INSERT INTO public.events OVERRIDING SYSTEM VALUE VALUES (63, '823', 'rollout', 'small', 'small-s0002-g00-i0', NULL, 2, '{"kind": "train", "mode": "train", "before": "preparing", "reward": null, "status": "running", "attempts": 2, "failure_class": null}', '2026-11-21 08:11:28.731766+00');
INSERT INTO public.events OVERRIDING SYSTEM VALUE VALUES (64, '823', 'attempt', 'small', 'small-s0002-g00-i0', 'at-01a1fd290e5a22714a4226', 2, '{"before": "preparing", "reward": null, "status": "running", "worker_id": "runner-1", "sequence_id": 2, "failure_class": null}', '2026-11-21 08:11:28.731837+00');
INSERT INTO public.events OVERRIDING SYSTEM VALUE VALUES (65, '827', 'attempt', 'small', 'small-s0002-g00-i0', 'at-01a1fd290e5a22714a4226', 2, '{"before": "running", "reward": 0, "status": "succeeded", "worker_id": "runner-1", "sequence_id": 2, "failure_class": null}', '2026-11-21 08:11:28.734068+00');
INSERT INTO public.events OVERRIDING SYSTEM VALUE VALUES (66, '827', 'rollout', 'small', 'small-s0002-g00-i0', NULL, 2, '{"kind": "train", "mode": "train", "before": "running", "reward": 0, "status": "succeeded", "attempts": 2, "failure_class": null}', '2026-11-21 08:11:28.734203+00');
INSERT INTO public.events OVERRIDING SYSTEM VALUE VALUES (67, '828', 'rollout', 'small', 'small-s0002-g00-i1', NULL, 2, '{"kind": "train", "mode": "train", "before": "queuing", "reward": null, "status": "preparing", "attempts": 1, "failure_class": null}', '2026-11-21 08:11:28.73468+00');
INSERT INTO public.events OVERRIDING SYSTEM VALUE VALUES (68, '828', 'attempt', 'small', 'small-s0002-g00-i1', 'at-01a1fd290e5e6a98859d93', 2, '{"before": null, "reward": null, "status": "preparing", "worker_id": "runner-1", "sequence_id": 1, "failure_class": null}', '2026-11-21 08:11:28.734738+00');
INSERT INTO public.events OVERRIDING SYSTEM VALUE VALUES (69, '829', 'rollout', 'small', 'small-s0002-g00-i1', NULL, 2, '{"kind": "train", "mode": "train", "before": "preparing", "reward": null, "status": "running", "attempts": 1, "failure_class": null}', '2026-11-21 08:11:28.735286+00');
INSERT INTO public.events OVERRIDING SYSTEM VALUE VALUES (70, '829', 'attempt', 'small', 'small-s0002-g00-i1', 'at-01a1fd290e5e6a98859d93', 2, '{"before": "preparing", "reward": null, "status": "running", "worker_id": "runner-1", "sequence_id": 1, "failure_class": null}', '2026-11-21 08:11:28.735403+00');
INSERT INTO public.events OVERRIDING SYSTEM VALUE VALUES (71, '833', 'attempt', 'small', 'small-s0002-g00-i1', 'at-01a1fd290e5e6a98859d93', 2, '{"before": "running", "reward": 1, "status": "succeeded", "worker_id": "runner-1", "sequence_id": 1, "failure_class": null}', '2026-11-21 08:11:28.737318+00');
INSERT INTO public.events OVERRIDING SYSTEM VALUE VALUES (72, '833', 'rollout', 'small', 'small-s0002-g00-i1', NULL, 2, '{"kind": "train", "mode": "train", "before": "running", "reward": 1, "status": "succeeded", "attempts": 1, "failure_class": null}', '2026-11-21 08:11:28.737439+00');
INSERT INTO public.events OVERRIDING SYSTEM VALUE VALUES (73, '834', 'rollout', 'small', 'small-s0002-g01-i0', NULL, 2, '{"kind": "train", "mode": "train", "before": "queuing", "reward": null, "status": "preparing", "attempts": 1, "failure_class": null}', '2026-11-21 08:11:28.737911+00');
INSERT INTO public.events OVERRIDING SYSTEM VALUE VALUES (74, '834', 'attempt', 'small', 'small-s0002-g01-i0', 'at-01a1fd290e612cc055de5e', 2, '{"before": null, "reward": null, "status": "preparing", "worker_id": "runner-1", "sequence_id": 1, "failure_class": null}', '2026-11-21 08:11:28.737963+00');
INSERT INTO public.events OVERRIDING SYSTEM VALUE VALUES (75, '835', 'rollout', 'small', 'small-s0002-g01-i0', NULL, 2, '{"kind": "train", "mode": "train", "before": "preparing", "reward": null, "status": "running", "attempts": 1, "failure_class": null}', '2026-11-21 08:11:28.738505+00');
INSERT INTO public.events OVERRIDING SYSTEM VALUE VALUES (76, '835', 'attempt', 'small', 'small-s0002-g01-i0', 'at-01a1fd290e612cc055de5e', 2, '{"before": "preparing", "reward": null, "status": "running", "worker_id": "runner-1", "sequence_id": 1, "failure_class": null}', '2026-11-21 08:11:28.738574+00');
INSERT INTO public.events OVERRIDING SYSTEM VALUE VALUES (77, '839', 'attempt', 'small', 'small-s0002-g01-i0', 'at-01a1fd290e612cc055de5e', 2, '{"before": "running", "reward": 0, "status": "succeeded", "worker_id": "runner-1", "sequence_id": 1, "failure_class": null}', '2026-11-21 08:11:28.740395+00');
INSERT INTO public.events OVERRIDING SYSTEM VALUE VALUES (78, '839', 'rollout', 'small', 'small-s0002-g01-i0', NULL, 2, '{"kind": "train", "mode": "train", "before": "running", "reward": 0, "status": "succeeded", "attempts": 1, "failure_class": null}', '2026-11-21 08:11:28.740521+00');
INSERT INTO public.events OVERRIDING SYSTEM VALUE VALUES (79, '840', 'rollout', 'small', 'small-s0002-g01-i1', NULL, 2, '{"kind": "train", "mode": "train", "before": "queuing", "reward": null, "status": "preparing", "attempts": 1, "failure_class": null}', '2026-11-21 08:11:28.740994+00');
INSERT INTO public.events OVERRIDING SYSTEM VALUE VALUES (80, '840', 'attempt', 'small', 'small-s0002-g01-i1', 'at-01a1fd290e640a39761d89', 2, '{"before": null, "reward": null, "status": "preparing", "worker_id": "runner-1", "sequence_id": 1, "failure_class": null}', '2026-11-21 08:11:28.741048+00');
INSERT INTO public.events OVERRIDING SYSTEM VALUE VALUES (81, '841', 'attempt', 'small', 'small-s0002-g01-i1', 'at-01a1fd290e640a39761d89', 2, '{"before": "preparing", "reward": null, "status": "failed", "worker_id": "runner-1", "sequence_id": 1, "failure_class": "agent_error"}', '2026-11-21 08:11:28.741517+00');
INSERT INTO public.events OVERRIDING SYSTEM VALUE VALUES (82, '841', 'rollout', 'small', 'small-s0002-g01-i1', NULL, 2, '{"kind": "train", "mode": "train", "before": "preparing", "reward": null, "status": "failed", "attempts": 1, "failure_class": "agent_error"}', '2026-11-21 08:11:28.741602+00');
INSERT INTO public.events OVERRIDING SYSTEM VALUE VALUES (83, '842', 'step', 'small', NULL, NULL, 2, '{"before": "planned", "status": "sampled", "unchanged": false}', '2026-11-21 08:11:28.744649+00');
INSERT INTO public.events OVERRIDING SYSTEM VALUE VALUES (84, '843', 'step', 'small', NULL, NULL, 2, '{"before": "sampled", "status": "ledgered", "unchanged": false}', '2026-11-21 08:11:28.748932+00');
INSERT INTO public.events OVERRIDING SYSTEM VALUE VALUES (85, '845', 'version', 'small', NULL, NULL, 2, '{"version": 2, "checkpointed": true, "weights_hash": "w2"}', '2026-11-21 08:11:28.750146+00');
INSERT INTO public.events OVERRIDING SYSTEM VALUE VALUES (86, '847', 'step', 'small', NULL, NULL, 2, '{"before": "ledgered", "status": "recorded", "unchanged": false}', '2026-11-21 08:11:28.751695+00');
INSERT INTO public.events OVERRIDING SYSTEM VALUE VALUES (87, '848', 'run', 'small', NULL, NULL, NULL, '{"epoch": 1, "error": null, "phase": "finished", "before": "running", "paused": false, "status": "finished", "waiting_for": null}', '2026-11-21 08:11:28.753247+00');
INSERT INTO public.generations_20261121 VALUES ('2026-11-21', 'small-e0000-g00-i0', 'at-01a1fd290e045ea37b8886', 1, 0, 'hash-1', 'chat/completions', '\x284569949850c9771385890b39034d20e3c9fc51b05e9e587d213a9c5d54fac7', '\x9b222f60ba6d06a5948008d165b1bdb3cb9d37caae8961f706f58ece53ae6567', '{1,2,1}', '{3,4}', '{-0.5,-0.25}', '{"temperature": 1.0}', 3, 'engine-1', 'policy', 0, 0, 'stop', true, 'yes', 0, '2026-11-21 08:11:28.657602+00');
INSERT INTO public.generations_20261121 VALUES ('2026-11-21', 'small-e0000-g00-i0', 'at-01a1fd290e045ea37b8886', 2, 0, 'hash-2', 'chat/completions', '\xb09742960edb9636ea4e6c4bca65ec8603ad59a87956d62dbbaa5c2706d15e9c', '\x7a5a0b15d81b36d399bce854c6902e09feaa753235cd90eec1398d70a977fb2c', '{1,2,2}', '{3,4}', '{-0.5,-0.25}', '{"temperature": 1.0}', 3, 'engine-1', 'policy', 0, 0, 'stop', true, 'yes', 0, '2026-11-21 08:11:28.657602+00');
INSERT INTO public.generations_20261121 VALUES ('2026-11-21', 'small-e0000-g01-i0', 'at-01a1fd290e1d848bf6db4c', 1, 0, 'hash-1', 'chat/completions', '\x284569949850c9771385890b39034d20e3c9fc51b05e9e587d213a9c5d54fac7', '\x9b222f60ba6d06a5948008d165b1bdb3cb9d37caae8961f706f58ece53ae6567', '{1,2,1}', '{3,4}', '{-0.5,-0.25}', '{"temperature": 1.0}', 3, 'engine-1', 'policy', 0, 0, 'stop', true, 'yes', 0, '2026-11-21 08:11:28.671004+00');
INSERT INTO public.generations_20261121 VALUES ('2026-11-21', 'small-e0000-g01-i0', 'at-01a1fd290e1d848bf6db4c', 2, 0, 'hash-2', 'chat/completions', '\xb09742960edb9636ea4e6c4bca65ec8603ad59a87956d62dbbaa5c2706d15e9c', '\x7a5a0b15d81b36d399bce854c6902e09feaa753235cd90eec1398d70a977fb2c', '{1,2,2}', '{3,4}', '{-0.5,-0.25}', '{"temperature": 1.0}', 3, 'engine-1', 'policy', 0, 0, 'stop', true, 'yes', 0, '2026-11-21 08:11:28.671004+00');
INSERT INTO public.generations_20261121 VALUES ('2026-11-21', 'small-s0001-g00-i0', 'at-01a1fd290e2b65b611eee1', 1, 0, 'hash-1', 'chat/completions', '\x284569949850c9771385890b39034d20e3c9fc51b05e9e587d213a9c5d54fac7', '\x9b222f60ba6d06a5948008d165b1bdb3cb9d37caae8961f706f58ece53ae6567', '{1,2,1}', '{3,4}', '{-0.5,-0.25}', '{"temperature": 1.0}', 3, 'engine-1', 'policy', 0, 0, 'stop', true, 'yes', 0, '2026-11-21 08:11:28.686423+00');
INSERT INTO public.generations_20261121 VALUES ('2026-11-21', 'small-s0001-g00-i0', 'at-01a1fd290e2b65b611eee1', 2, 0, 'hash-2', 'chat/completions', '\xb09742960edb9636ea4e6c4bca65ec8603ad59a87956d62dbbaa5c2706d15e9c', '\x7a5a0b15d81b36d399bce854c6902e09feaa753235cd90eec1398d70a977fb2c', '{1,2,2}', '{3,4}', '{-0.5,-0.25}', '{"temperature": 1.0}', 3, 'engine-1', 'policy', 0, 0, 'stop', true, 'yes', 0, '2026-11-21 08:11:28.686423+00');
INSERT INTO public.generations_20261121 VALUES ('2026-11-21', 'small-s0001-g00-i1', 'at-01a1fd290e30be3ed84734', 1, 0, 'hash-1', 'chat/completions', '\x284569949850c9771385890b39034d20e3c9fc51b05e9e587d213a9c5d54fac7', '\x9b222f60ba6d06a5948008d165b1bdb3cb9d37caae8961f706f58ece53ae6567', '{1,2,1}', '{3,4}', '{-0.5,-0.25}', '{"temperature": 1.0}', 3, 'engine-1', 'policy', 0, 0, 'stop', true, 'yes', 0, '2026-11-21 08:11:28.690463+00');
INSERT INTO public.generations_20261121 VALUES ('2026-11-21', 'small-s0001-g00-i1', 'at-01a1fd290e30be3ed84734', 2, 0, 'hash-2', 'chat/completions', '\xb09742960edb9636ea4e6c4bca65ec8603ad59a87956d62dbbaa5c2706d15e9c', '\x7a5a0b15d81b36d399bce854c6902e09feaa753235cd90eec1398d70a977fb2c', '{1,2,2}', '{3,4}', '{-0.5,-0.25}', '{"temperature": 1.0}', 3, 'engine-1', 'policy', 0, 0, 'stop', true, 'yes', 0, '2026-11-21 08:11:28.690463+00');
INSERT INTO public.generations_20261121 VALUES ('2026-11-21', 'small-s0001-g01-i0', 'at-01a1fd290e346edda15666', 1, 0, 'hash-1', 'chat/completions', '\x284569949850c9771385890b39034d20e3c9fc51b05e9e587d213a9c5d54fac7', '\x9b222f60ba6d06a5948008d165b1bdb3cb9d37caae8961f706f58ece53ae6567', '{1,2,1}', '{3,4}', '{-0.5,-0.25}', '{"temperature": 1.0}', 3, 'engine-1', 'policy', 0, 0, 'stop', true, 'yes', 0, '2026-11-21 08:11:28.69409+00');
INSERT INTO public.generations_20261121 VALUES ('2026-11-21', 'small-s0001-g01-i0', 'at-01a1fd290e346edda15666', 2, 0, 'hash-2', 'chat/completions', '\xb09742960edb9636ea4e6c4bca65ec8603ad59a87956d62dbbaa5c2706d15e9c', '\x7a5a0b15d81b36d399bce854c6902e09feaa753235cd90eec1398d70a977fb2c', '{1,2,2}', '{3,4}', '{-0.5,-0.25}', '{"temperature": 1.0}', 3, 'engine-1', 'policy', 0, 0, 'stop', true, 'yes', 0, '2026-11-21 08:11:28.69409+00');
INSERT INTO public.generations_20261121 VALUES ('2026-11-21', 'small-s0002-g00-i0', 'at-01a1fd290e5a22714a4226', 1, 0, 'hash-1', 'chat/completions', '\x284569949850c9771385890b39034d20e3c9fc51b05e9e587d213a9c5d54fac7', '\x9b222f60ba6d06a5948008d165b1bdb3cb9d37caae8961f706f58ece53ae6567', '{1,2,1}', '{3,4}', '{-0.5,-0.25}', '{"temperature": 1.0}', 3, 'engine-1', 'policy', 1, 1, 'stop', true, 'yes', 0, '2026-11-21 08:11:28.732313+00');
INSERT INTO public.generations_20261121 VALUES ('2026-11-21', 'small-s0002-g00-i0', 'at-01a1fd290e5a22714a4226', 2, 0, 'hash-2', 'chat/completions', '\xb09742960edb9636ea4e6c4bca65ec8603ad59a87956d62dbbaa5c2706d15e9c', '\x7a5a0b15d81b36d399bce854c6902e09feaa753235cd90eec1398d70a977fb2c', '{1,2,2}', '{3,4}', '{-0.5,-0.25}', '{"temperature": 1.0}', 3, 'engine-1', 'policy', 1, 1, 'stop', true, 'yes', 0, '2026-11-21 08:11:28.732313+00');
INSERT INTO public.generations_20261121 VALUES ('2026-11-21', 'small-s0002-g00-i1', 'at-01a1fd290e5e6a98859d93', 1, 0, 'hash-1', 'chat/completions', '\x284569949850c9771385890b39034d20e3c9fc51b05e9e587d213a9c5d54fac7', '\x9b222f60ba6d06a5948008d165b1bdb3cb9d37caae8961f706f58ece53ae6567', '{1,2,1}', '{3,4}', '{-0.5,-0.25}', '{"temperature": 1.0}', 3, 'engine-1', 'policy', 1, 1, 'stop', true, 'yes', 0, '2026-11-21 08:11:28.735814+00');
INSERT INTO public.generations_20261121 VALUES ('2026-11-21', 'small-s0002-g00-i1', 'at-01a1fd290e5e6a98859d93', 2, 0, 'hash-2', 'chat/completions', '\xb09742960edb9636ea4e6c4bca65ec8603ad59a87956d62dbbaa5c2706d15e9c', '\x7a5a0b15d81b36d399bce854c6902e09feaa753235cd90eec1398d70a977fb2c', '{1,2,2}', '{3,4}', '{-0.5,-0.25}', '{"temperature": 1.0}', 3, 'engine-1', 'policy', 1, 1, 'stop', true, 'yes', 0, '2026-11-21 08:11:28.735814+00');
INSERT INTO public.generations_20261121 VALUES ('2026-11-21', 'small-s0002-g01-i0', 'at-01a1fd290e612cc055de5e', 1, 0, 'hash-1', 'chat/completions', '\x284569949850c9771385890b39034d20e3c9fc51b05e9e587d213a9c5d54fac7', '\x9b222f60ba6d06a5948008d165b1bdb3cb9d37caae8961f706f58ece53ae6567', '{1,2,1}', '{3,4}', '{-0.5,-0.25}', '{"temperature": 1.0}', 3, 'engine-1', 'policy', 1, 1, 'stop', true, 'yes', 0, '2026-11-21 08:11:28.738936+00');
INSERT INTO public.generations_20261121 VALUES ('2026-11-21', 'small-s0002-g01-i0', 'at-01a1fd290e612cc055de5e', 2, 0, 'hash-2', 'chat/completions', '\xb09742960edb9636ea4e6c4bca65ec8603ad59a87956d62dbbaa5c2706d15e9c', '\x7a5a0b15d81b36d399bce854c6902e09feaa753235cd90eec1398d70a977fb2c', '{1,2,2}', '{3,4}', '{-0.5,-0.25}', '{"temperature": 1.0}', 3, 'engine-1', 'policy', 1, 1, 'stop', true, 'yes', 0, '2026-11-21 08:11:28.738936+00');
INSERT INTO public.gpu_hosts VALUES ('host', NULL, NULL, 'relight-gpu.host', 'idle', NULL, '2026-11-21 08:11:28.626837+00');
INSERT INTO public.leases VALUES ('policy/small', 17, 'small', '2026-11-21 08:12:28.749478+00');
INSERT INTO public.metrics VALUES ('small', 0, 'eval/reward', 0, '2026-11-21 08:11:28.677112+00');
INSERT INTO public.metrics VALUES ('small', 0, 'eval/rewarded', 2, '2026-11-21 08:11:28.677112+00');
INSERT INTO public.metrics VALUES ('small', 0, 'eval/failed', 0, '2026-11-21 08:11:28.677112+00');
INSERT INTO public.metrics VALUES ('small', 0, 'eval/seconds', 0.038298, '2026-11-21 08:11:28.677112+00');
INSERT INTO public.metrics VALUES ('small', 1, 'train/loss', 0.5, '2026-11-21 08:11:28.724992+00');
INSERT INTO public.metrics VALUES ('small', 1, 'train/rollouts', 2, '2026-11-21 08:11:28.724992+00');
INSERT INTO public.metrics VALUES ('small', 1, 'train/reward', 0.5, '2026-11-21 08:11:28.724992+00');
INSERT INTO public.metrics VALUES ('small', 2, 'train/loss', 0.5, '2026-11-21 08:11:28.751399+00');
INSERT INTO public.metrics VALUES ('small', 2, 'train/rollouts', 2, '2026-11-21 08:11:28.751399+00');
INSERT INTO public.metrics VALUES ('small', 2, 'train/reward', 0.5, '2026-11-21 08:11:28.751399+00');
INSERT INTO public.migrations VALUES (1, '0001_initial.sql', '2026-11-21 08:11:28.453423+00');
INSERT INTO public.migrations VALUES (2, '0002_attempt_functions.sql', '2026-11-21 08:11:28.453423+00');
INSERT INTO public.migrations VALUES (3, '0003_generation_functions.sql', '2026-11-21 08:11:28.453423+00');
INSERT INTO public.migrations VALUES (4, '0004_lightning.sql', '2026-11-21 08:11:28.453423+00');
INSERT INTO public.migrations VALUES (5, '0005_spans.sql', '2026-11-21 08:11:28.453423+00');
INSERT INTO public.migrations VALUES (6, '0006_operators.sql', '2026-11-21 08:11:28.453423+00');
INSERT INTO public.migrations VALUES (7, '0007_events.sql', '2026-11-21 08:11:28.453423+00');
INSERT INTO public.migrations VALUES (8, '0008_poison.sql', '2026-11-21 08:11:28.453423+00');
INSERT INTO public.migrations VALUES (9, '0009_checkpoints.sql', '2026-11-21 08:11:28.453423+00');
INSERT INTO public.migrations VALUES (10, '0010_inspections.sql', '2026-11-21 08:11:28.453423+00');
INSERT INTO public.migrations VALUES (11, '0011_signs_of_life.sql', '2026-11-21 08:11:28.453423+00');
INSERT INTO public.policy_versions VALUES ('small', 0, 1, 'w0', '/runs/small-0', '/runs/small-0', '2026-11-21 08:11:28.629649+00', '2026-11-21 08:11:28.629649+00', 0, NULL, NULL, 0, 0, NULL, NULL);
INSERT INTO public.policy_versions VALUES ('small', 1, 10, 'w1', '/runs/small-1', '/runs/small-1', '2026-11-21 08:11:28.723427+00', '2026-11-21 08:11:28.723427+00', 0, NULL, NULL, 0, 0, NULL, NULL);
INSERT INTO public.policy_versions VALUES ('small', 2, 17, 'w2', '/runs/small-2', '/runs/small-2', '2026-11-21 08:11:28.749754+00', '2026-11-21 08:11:28.749754+00', 0, NULL, NULL, 0, 0, NULL, NULL);
INSERT INTO public.resources OVERRIDING SYSTEM VALUE VALUES ('rs-small', 1, '{}', '2026-11-21 08:11:28.622785+00', '2026-11-21 08:11:28.622785+00', 1);
INSERT INTO public.rewards VALUES ('small-e0000-g00-i0', 'at-01a1fd290e045ea37b8886', 'agent', 0, '2026-11-21 08:11:28.665583+00');
INSERT INTO public.rewards VALUES ('small-e0000-g01-i0', 'at-01a1fd290e1d848bf6db4c', 'agent', 0, '2026-11-21 08:11:28.672771+00');
INSERT INTO public.rewards VALUES ('small-s0001-g00-i0', 'at-01a1fd290e2b65b611eee1', 'agent', 0, '2026-11-21 08:11:28.688126+00');
INSERT INTO public.rewards VALUES ('small-s0001-g00-i1', 'at-01a1fd290e30be3ed84734', 'agent', 1, '2026-11-21 08:11:28.691994+00');
INSERT INTO public.rewards VALUES ('small-s0001-g01-i0', 'at-01a1fd290e346edda15666', 'agent', 0, '2026-11-21 08:11:28.695598+00');
INSERT INTO public.rewards VALUES ('small-s0002-g00-i0', 'at-01a1fd290e5a22714a4226', 'agent', 0, '2026-11-21 08:11:28.733839+00');
INSERT INTO public.rewards VALUES ('small-s0002-g00-i1', 'at-01a1fd290e5e6a98859d93', 'agent', 1, '2026-11-21 08:11:28.737125+00');
INSERT INTO public.rewards VALUES ('small-s0002-g01-i0', 'at-01a1fd290e612cc055de5e', 'agent', 0, '2026-11-21 08:11:28.74021+00');
INSERT INTO public.rollouts VALUES ('small-e0000-g00-i0', 'small', 0, 'eval', 0, 0, 0, 0, '414c26046e509a653f996e0c9492048afa080b92579388037cc22041eb1d51bf', 0, NULL, 'val', 'rs-small', 'succeeded', NULL, NULL, 0, '{"max_attempts": 1, "backoff_seconds": 1.0, "retry_condition": [], "timeout_seconds": null, "memory_limit_bytes": null, "unresponsive_seconds": null}', '{}', '0/eval-0/0/0', 0, 0, 3, 1, 0, 'at-01a1fd290e045ea37b8886', '2026-11-21', '2026-11-21 08:11:28.634789+00', '2026-11-21 08:11:28.668536+00', 'workflow', NULL, NULL, NULL);
INSERT INTO public.rollouts VALUES ('small-e0000-g01-i0', 'small', 0, 'eval', 0, 1, 0, 0, '414c26046e509a653f996e0c9492048afa080b92579388037cc22041eb1d51bf', 1, NULL, 'val', 'rs-small', 'succeeded', NULL, NULL, 0, '{"max_attempts": 1, "backoff_seconds": 1.0, "retry_condition": [], "timeout_seconds": null, "memory_limit_bytes": null, "unresponsive_seconds": null}', '{}', '0/eval-0/1/0', 0, 0, 3, 1, 0, 'at-01a1fd290e1d848bf6db4c', '2026-11-21', '2026-11-21 08:11:28.634789+00', '2026-11-21 08:11:28.673087+00', 'workflow', NULL, NULL, NULL);
INSERT INTO public.rollouts VALUES ('small-s0001-g01-i0', 'small', 1, 'train', 0, 1, 0, 0, '666251885e251dbe412692a972fdb6ed914070cd2f6461bd4684944d1be06002', 0, NULL, 'train', 'rs-small', 'succeeded', NULL, NULL, 0, '{"max_attempts": 1, "backoff_seconds": 1.0, "retry_condition": [], "timeout_seconds": null, "memory_limit_bytes": null, "unresponsive_seconds": null}', '{}', '0/1/1/0', 0, 0, 3, 1, 0, 'at-01a1fd290e346edda15666', '2026-11-21', '2026-11-21 08:11:28.679272+00', '2026-11-21 08:11:28.695924+00', 'workflow', NULL, NULL, NULL);
INSERT INTO public.rollouts VALUES ('small-s0001-g00-i0', 'small', 1, 'train', 0, 0, 0, 0, '666251885e251dbe412692a972fdb6ed914070cd2f6461bd4684944d1be06002', 3, NULL, 'train', 'rs-small', 'succeeded', NULL, NULL, 0, '{"max_attempts": 1, "backoff_seconds": 1.0, "retry_condition": [], "timeout_seconds": null, "memory_limit_bytes": null, "unresponsive_seconds": null}', '{}', '0/1/0/0', 0, 0, 3, 2, 1, 'at-01a1fd290e2b65b611eee1', '2026-11-21', '2026-11-21 08:11:28.679272+00', '2026-11-21 08:11:28.688447+00', 'workflow', NULL, NULL, NULL);
INSERT INTO public.rollouts VALUES ('small-s0001-g00-i1', 'small', 1, 'train', 0, 0, 1, 0, '666251885e251dbe412692a972fdb6ed914070cd2f6461bd4684944d1be06002', 3, NULL, 'train', 'rs-small', 'succeeded', NULL, NULL, 1, '{"max_attempts": 1, "backoff_seconds": 1.0, "retry_condition": [], "timeout_seconds": null, "memory_limit_bytes": null, "unresponsive_seconds": null}', '{}', '0/1/0/1', 0, 0, 3, 1, 0, 'at-01a1fd290e30be3ed84734', '2026-11-21', '2026-11-21 08:11:28.679272+00', '2026-11-21 08:11:28.692331+00', 'workflow', NULL, NULL, NULL);
INSERT INTO public.rollouts VALUES ('small-s0001-g01-i1', 'small', 1, 'train', 0, 1, 1, 0, '666251885e251dbe412692a972fdb6ed914070cd2f6461bd4684944d1be06002', 0, NULL, 'train', 'rs-small', 'failed', 'agent_error', 'no', NULL, '{"max_attempts": 1, "backoff_seconds": 1.0, "retry_condition": [], "timeout_seconds": null, "memory_limit_bytes": null, "unresponsive_seconds": null}', '{}', '0/1/1/1', 0, 0, 1, 1, 0, 'at-01a1fd290e38ec06612db1', '2026-11-21', '2026-11-21 08:11:28.679272+00', '2026-11-21 08:11:28.697153+00', 'workflow', NULL, NULL, NULL);
INSERT INTO public.rollouts VALUES ('small-s0002-g00-i1', 'small', 2, 'train', 0, 0, 1, 0, '666251885e251dbe412692a972fdb6ed914070cd2f6461bd4684944d1be06002', 2, NULL, 'train', 'rs-small', 'succeeded', NULL, NULL, 1, '{"max_attempts": 1, "backoff_seconds": 1.0, "retry_condition": [], "timeout_seconds": null, "memory_limit_bytes": null, "unresponsive_seconds": null}', '{}', '0/2/0/1', 1, 1, 3, 1, 0, 'at-01a1fd290e5e6a98859d93', '2026-11-21', '2026-11-21 08:11:28.726555+00', '2026-11-21 08:11:28.737362+00', 'workflow', NULL, NULL, NULL);
INSERT INTO public.rollouts VALUES ('small-s0002-g00-i0', 'small', 2, 'train', 0, 0, 0, 0, '666251885e251dbe412692a972fdb6ed914070cd2f6461bd4684944d1be06002', 2, NULL, 'train', 'rs-small', 'succeeded', NULL, NULL, 0, '{"max_attempts": 1, "backoff_seconds": 1.0, "retry_condition": [], "timeout_seconds": null, "memory_limit_bytes": null, "unresponsive_seconds": null}', '{}', '0/2/0/0', 1, 1, 3, 2, 1, 'at-01a1fd290e5a22714a4226', '2026-11-21', '2026-11-21 08:11:28.726555+00', '2026-11-21 08:11:28.734129+00', 'workflow', NULL, NULL, NULL);
INSERT INTO public.rollouts VALUES ('small-s0002-g01-i0', 'small', 2, 'train', 0, 1, 0, 0, '666251885e251dbe412692a972fdb6ed914070cd2f6461bd4684944d1be06002', 1, NULL, 'train', 'rs-small', 'succeeded', NULL, NULL, 0, '{"max_attempts": 1, "backoff_seconds": 1.0, "retry_condition": [], "timeout_seconds": null, "memory_limit_bytes": null, "unresponsive_seconds": null}', '{}', '0/2/1/0', 1, 1, 3, 1, 0, 'at-01a1fd290e612cc055de5e', '2026-11-21', '2026-11-21 08:11:28.726555+00', '2026-11-21 08:11:28.740445+00', 'workflow', NULL, NULL, NULL);
INSERT INTO public.rollouts VALUES ('small-s0002-g01-i1', 'small', 2, 'train', 0, 1, 1, 0, '666251885e251dbe412692a972fdb6ed914070cd2f6461bd4684944d1be06002', 1, NULL, 'train', 'rs-small', 'failed', 'agent_error', 'no', NULL, '{"max_attempts": 1, "backoff_seconds": 1.0, "retry_condition": [], "timeout_seconds": null, "memory_limit_bytes": null, "unresponsive_seconds": null}', '{}', '0/2/1/1', 1, 1, 1, 1, 0, 'at-01a1fd290e640a39761d89', '2026-11-21', '2026-11-21 08:11:28.726555+00', '2026-11-21 08:11:28.741537+00', 'workflow', NULL, NULL, NULL);
INSERT INTO public.runs VALUES ('small', '{"data": {"train": "train.jsonl", "shuffle": true, "evaluation": "heldout.jsonl", "required_fields": []}, "seed": 0, "verl": {}, "vllm": {}, "agent": "echo", "model": "model", "steps": 2, "epochs": null, "grader": null, "rollout": {"max_attempts": 1, "backoff_seconds": 1.0, "retry_condition": [], "timeout_seconds": null, "memory_limit_bytes": null, "unresponsive_seconds": null}, "failures": {"rewards": {}, "pause_above": {"agent": 0.9, "platform": 0.5}, "short_groups": "fill_up", "fill_up_rounds": 2, "pause_when_stalled": false, "warn_equal_rewards": 3, "pause_without_reward": true, "stalled_after_seconds": 1800.0}, "sampling": {"stop": [], "top_k": -1, "top_p": 1.0, "max_tokens": null, "temperature": 1.0, "agent_chooses": false}, "algorithm": {"name": "grpo", "level": "transition", "grad_clip": 1.0, "loss_mode": "vanilla", "clip_ratio": 0.2, "ppo_epochs": 1, "mini_batches": 1, "weight_decay": 0.01, "entropy_coeff": 0.0, "learning_rate": 0.000001, "loss_agg_mode": "seq-mean-token-mean", "clip_ratio_low": null, "clip_ratio_high": null, "rollout_correction": {}}, "isolation": "process", "preflight": false, "resources": {}, "upstreams": [], "batch_size": 2, "evaluation": {"every": 0, "limit": 2, "at_end": true, "samples": 1, "at_start": true}, "group_size": 2, "checkpoints": {"url": null, "keep_best": 1, "keep_last": 2, "keep_every": 0}, "concurrency": null, "runner_queue": "relight-runner", "checkpoint_every": 1, "engine_wait_seconds": 300.0}', '96938a5d1ff8dae02b48d92c143805c6e5c89bdc0dd710179a2b1b7792628bd9', '{"learning_rate": 0.0001}', 'finished', 1, 'driver', false, NULL, NULL, NULL, NULL, 'finished', NULL, 2, '666251885e251dbe412692a972fdb6ed914070cd2f6461bd4684944d1be06002', '414c26046e509a653f996e0c9492048afa080b92579388037cc22041eb1d51bf', 'rs-small', NULL, NULL, '2026-11-21 08:11:28.622785+00', '2026-11-21 08:11:28.752552+00', false, '{}');
INSERT INTO public.secrets VALUES ('attempt_key', '\x431f335bc993a37ecbb1694b221c1084fa7a8cc3cc6db73222190fa91a54db4c');
INSERT INTO public.spans_20261121 VALUES ('2026-11-21', 'small-e0000-g00-i0', 'at-01a1fd290e045ea37b8886', 'one', 1, 'trace', NULL, 'step', '{"description": null, "status_code": "UNSET"}', '{}', '[]', '[]', '{}', 1, 2, '2026-11-21 08:11:28.662682+00', NULL, NULL);
INSERT INTO public.spans_20261121 VALUES ('2026-11-21', 'small-e0000-g00-i0', 'at-01a1fd290e045ea37b8886', 'two', 2, 'trace', NULL, 'step', '{"description": null, "status_code": "UNSET"}', '{}', '[]', '[]', '{}', 1, 2, '2026-11-21 08:11:28.662682+00', NULL, NULL);
INSERT INTO public.spans_20261121 VALUES ('2026-11-21', 'small-e0000-g01-i0', 'at-01a1fd290e1d848bf6db4c', 'one', 1, 'trace', NULL, 'step', '{"description": null, "status_code": "UNSET"}', '{}', '[]', '[]', '{}', 1, 2, '2026-11-21 08:11:28.672253+00', NULL, NULL);
INSERT INTO public.spans_20261121 VALUES ('2026-11-21', 'small-e0000-g01-i0', 'at-01a1fd290e1d848bf6db4c', 'two', 2, 'trace', NULL, 'step', '{"description": null, "status_code": "UNSET"}', '{}', '[]', '[]', '{}', 1, 2, '2026-11-21 08:11:28.672253+00', NULL, NULL);
INSERT INTO public.spans_20261121 VALUES ('2026-11-21', 'small-s0001-g00-i0', 'at-01a1fd290e2b65b611eee1', 'one', 1, 'trace', NULL, 'step', '{"description": null, "status_code": "UNSET"}', '{}', '[]', '[]', '{}', 1, 2, '2026-11-21 08:11:28.687633+00', NULL, NULL);
INSERT INTO public.spans_20261121 VALUES ('2026-11-21', 'small-s0001-g00-i0', 'at-01a1fd290e2b65b611eee1', 'two', 2, 'trace', NULL, 'step', '{"description": null, "status_code": "UNSET"}', '{}', '[]', '[]', '{}', 1, 2, '2026-11-21 08:11:28.687633+00', NULL, NULL);
INSERT INTO public.spans_20261121 VALUES ('2026-11-21', 'small-s0001-g00-i1', 'at-01a1fd290e30be3ed84734', 'one', 1, 'trace', NULL, 'step', '{"description": null, "status_code": "UNSET"}', '{}', '[]', '[]', '{}', 1, 2, '2026-11-21 08:11:28.691505+00', NULL, NULL);
INSERT INTO public.spans_20261121 VALUES ('2026-11-21', 'small-s0001-g00-i1', 'at-01a1fd290e30be3ed84734', 'two', 2, 'trace', NULL, 'step', '{"description": null, "status_code": "UNSET"}', '{}', '[]', '[]', '{}', 1, 2, '2026-11-21 08:11:28.691505+00', NULL, NULL);
INSERT INTO public.spans_20261121 VALUES ('2026-11-21', 'small-s0001-g01-i0', 'at-01a1fd290e346edda15666', 'one', 1, 'trace', NULL, 'step', '{"description": null, "status_code": "UNSET"}', '{}', '[]', '[]', '{}', 1, 2, '2026-11-21 08:11:28.695137+00', NULL, NULL);
INSERT INTO public.spans_20261121 VALUES ('2026-11-21', 'small-s0001-g01-i0', 'at-01a1fd290e346edda15666', 'two', 2, 'trace', NULL, 'step', '{"description": null, "status_code": "UNSET"}', '{}', '[]', '[]', '{}', 1, 2, '2026-11-21 08:11:28.695137+00', NULL, NULL);
INSERT INTO public.spans_20261121 VALUES ('2026-11-21', 'small-s0002-g00-i0', 'at-01a1fd290e5a22714a4226', 'one', 1, 'trace', NULL, 'step', '{"description": null, "status_code": "UNSET"}', '{}', '[]', '[]', '{}', 1, 2, '2026-11-21 08:11:28.733374+00', NULL, NULL);
INSERT INTO public.spans_20261121 VALUES ('2026-11-21', 'small-s0002-g00-i0', 'at-01a1fd290e5a22714a4226', 'two', 2, 'trace', NULL, 'step', '{"description": null, "status_code": "UNSET"}', '{}', '[]', '[]', '{}', 1, 2, '2026-11-21 08:11:28.733374+00', NULL, NULL);
INSERT INTO public.spans_20261121 VALUES ('2026-11-21', 'small-s0002-g00-i1', 'at-01a1fd290e5e6a98859d93', 'one', 1, 'trace', NULL, 'step', '{"description": null, "status_code": "UNSET"}', '{}', '[]', '[]', '{}', 1, 2, '2026-11-21 08:11:28.736733+00', NULL, NULL);
INSERT INTO public.spans_20261121 VALUES ('2026-11-21', 'small-s0002-g00-i1', 'at-01a1fd290e5e6a98859d93', 'two', 2, 'trace', NULL, 'step', '{"description": null, "status_code": "UNSET"}', '{}', '[]', '[]', '{}', 1, 2, '2026-11-21 08:11:28.736733+00', NULL, NULL);
INSERT INTO public.spans_20261121 VALUES ('2026-11-21', 'small-s0002-g01-i0', 'at-01a1fd290e612cc055de5e', 'one', 1, 'trace', NULL, 'step', '{"description": null, "status_code": "UNSET"}', '{}', '[]', '[]', '{}', 1, 2, '2026-11-21 08:11:28.739825+00', NULL, NULL);
INSERT INTO public.spans_20261121 VALUES ('2026-11-21', 'small-s0002-g01-i0', 'at-01a1fd290e612cc055de5e', 'two', 2, 'trace', NULL, 'step', '{"description": null, "status_code": "UNSET"}', '{}', '[]', '[]', '{}', 1, 2, '2026-11-21 08:11:28.739825+00', NULL, NULL);
INSERT INTO public.step_rollouts VALUES ('small', 1, 'small-s0001-g00-i0', 'at-01a1fd290e2b65b611eee1', 0, 0, 'agent', -0.5);
INSERT INTO public.step_rollouts VALUES ('small', 1, 'small-s0001-g00-i1', 'at-01a1fd290e30be3ed84734', 0, 1, 'agent', 0.5);
INSERT INTO public.step_rollouts VALUES ('small', 2, 'small-s0002-g00-i0', 'at-01a1fd290e5a22714a4226', 0, 0, 'agent', -0.5);
INSERT INTO public.step_rollouts VALUES ('small', 2, 'small-s0002-g00-i1', 'at-01a1fd290e5e6a98859d93', 0, 1, 'agent', 0.5);
INSERT INTO public.steps VALUES ('small', 0, 'recorded', '{"verl": {}, "failures": {"rewards": {}, "pause_above": {"agent": 0.9, "platform": 0.5}, "short_groups": "fill_up", "fill_up_rounds": 2, "pause_when_stalled": false, "warn_equal_rewards": 3, "pause_without_reward": true, "stalled_after_seconds": 1800.0}, "sampling": {"stop": [], "top_k": -1, "top_p": 1.0, "max_tokens": null, "temperature": 1.0, "agent_chooses": false}, "algorithm": {"name": "grpo", "level": "transition", "grad_clip": 1.0, "loss_mode": "vanilla", "clip_ratio": 0.2, "ppo_epochs": 1, "mini_batches": 1, "weight_decay": 0.01, "entropy_coeff": 0.0, "learning_rate": 0.0001, "loss_agg_mode": "seq-mean-token-mean", "clip_ratio_low": null, "clip_ratio_high": null, "rollout_correction": {}}, "isolation": "process", "positions": [], "batch_size": 2, "group_size": 2, "stream_end": 0, "trainer_seed": 1688923563, "engine_wait_seconds": 300.0}', 'rs-small', 0, NULL, false, '{}', '{}', '2026-11-21 08:11:28.634789+00', NULL, NULL, NULL);
INSERT INTO public.steps VALUES ('small', 2, 'recorded', '{"verl": {}, "failures": {"rewards": {}, "pause_above": {"agent": 0.9, "platform": 0.5}, "short_groups": "fill_up", "fill_up_rounds": 2, "pause_when_stalled": false, "warn_equal_rewards": 3, "pause_without_reward": true, "stalled_after_seconds": 1800.0}, "sampling": {"stop": [], "top_k": -1, "top_p": 1.0, "max_tokens": null, "temperature": 1.0, "agent_chooses": false}, "algorithm": {"name": "grpo", "level": "transition", "grad_clip": 1.0, "loss_mode": "vanilla", "clip_ratio": 0.2, "ppo_epochs": 1, "mini_batches": 1, "weight_decay": 0.01, "entropy_coeff": 0.0, "learning_rate": 0.0001, "loss_agg_mode": "seq-mean-token-mean", "clip_ratio_low": null, "clip_ratio_high": null, "rollout_correction": {}}, "isolation": "process", "positions": [2, 1], "batch_size": 2, "group_size": 2, "stream_end": 4, "trainer_seed": 1245027759, "engine_wait_seconds": 300.0}', 'rs-small', 1, '297d7fec772f27d3ca5f2f43cdbb11f846c02a0acd14b928f3d207202a218765', false, '{"loss": 0.5, "rollouts": 2.0, "reward_mean": 0.5}', '{"total": 0.024844, "update": 0.1, "rollouts": 0.015293}', '2026-11-21 08:11:28.726555+00', '2026-11-21 08:11:28.741848+00', '2026-11-21 08:11:28.747805+00', '2026-11-21 08:11:28.751399+00');
INSERT INTO public.steps VALUES ('small', 1, 'recorded', '{"verl": {}, "failures": {"rewards": {}, "pause_above": {"agent": 0.9, "platform": 0.5}, "short_groups": "fill_up", "fill_up_rounds": 2, "pause_when_stalled": false, "warn_equal_rewards": 3, "pause_without_reward": true, "stalled_after_seconds": 1800.0}, "sampling": {"stop": [], "top_k": -1, "top_p": 1.0, "max_tokens": null, "temperature": 1.0, "agent_chooses": false}, "algorithm": {"name": "grpo", "level": "transition", "grad_clip": 1.0, "loss_mode": "vanilla", "clip_ratio": 0.2, "ppo_epochs": 1, "mini_batches": 1, "weight_decay": 0.01, "entropy_coeff": 0.0, "learning_rate": 0.0001, "loss_agg_mode": "seq-mean-token-mean", "clip_ratio_low": null, "clip_ratio_high": null, "rollout_correction": {}}, "isolation": "process", "positions": [3, 0], "batch_size": 2, "group_size": 2, "stream_end": 2, "trainer_seed": 1986145219, "engine_wait_seconds": 300.0}', 'rs-small', 1, 'fe680a780e87e1a8fdcd9bdf4e00a6fa2cf96434628801ed6c762f5cbf9644d1', false, '{"loss": 0.5, "rollouts": 2.0, "reward_mean": 0.5}', '{"total": 0.04572, "update": 0.1, "rollouts": 0.018216}', '2026-11-21 08:11:28.679272+00', '2026-11-21 08:11:28.697488+00', '2026-11-21 08:11:28.709255+00', '2026-11-21 08:11:28.724992+00');
INSERT INTO public.tasks VALUES ('666251885e251dbe412692a972fdb6ed914070cd2f6461bd4684944d1be06002', 0, '{"question": "train 0"}');
INSERT INTO public.tasks VALUES ('666251885e251dbe412692a972fdb6ed914070cd2f6461bd4684944d1be06002', 1, '{"question": "train 1"}');
INSERT INTO public.tasks VALUES ('666251885e251dbe412692a972fdb6ed914070cd2f6461bd4684944d1be06002', 2, '{"question": "train 2"}');
INSERT INTO public.tasks VALUES ('666251885e251dbe412692a972fdb6ed914070cd2f6461bd4684944d1be06002', 3, '{"question": "train 3"}');
INSERT INTO public.tasks VALUES ('414c26046e509a653f996e0c9492048afa080b92579388037cc22041eb1d51bf', 0, '{"question": "heldout 0"}');
INSERT INTO public.tasks VALUES ('414c26046e509a653f996e0c9492048afa080b92579388037cc22041eb1d51bf', 1, '{"question": "heldout 1"}');
INSERT INTO public.tasks VALUES ('414c26046e509a653f996e0c9492048afa080b92579388037cc22041eb1d51bf', 2, '{"question": "heldout 2"}');
INSERT INTO public.tasks VALUES ('414c26046e509a653f996e0c9492048afa080b92579388037cc22041eb1d51bf', 3, '{"question": "heldout 3"}');
INSERT INTO public.training_rows VALUES ('small', 1, 0, 'small-s0001-g00-i0', 'at-01a1fd290e2b65b611eee1', '{1}', '{1,2,1}', '{3,4}', '{1,1}', 0, 1, '{-0.5,-0.25}', NULL);
INSERT INTO public.training_rows VALUES ('small', 1, 1, 'small-s0001-g00-i0', 'at-01a1fd290e2b65b611eee1', '{2}', '{1,2,2}', '{3,4}', '{1,1}', 0, 1, '{-0.5,-0.25}', NULL);
INSERT INTO public.training_rows VALUES ('small', 1, 2, 'small-s0001-g00-i1', 'at-01a1fd290e30be3ed84734', '{1}', '{1,2,1}', '{3,4}', '{1,1}', 0, 1, '{-0.5,-0.25}', NULL);
INSERT INTO public.training_rows VALUES ('small', 1, 3, 'small-s0001-g00-i1', 'at-01a1fd290e30be3ed84734', '{2}', '{1,2,2}', '{3,4}', '{1,1}', 0, 1, '{-0.5,-0.25}', NULL);
INSERT INTO public.training_rows VALUES ('small', 2, 0, 'small-s0002-g00-i0', 'at-01a1fd290e5a22714a4226', '{1}', '{1,2,1}', '{3,4}', '{1,1}', 0, 1, '{-0.5,-0.25}', NULL);
INSERT INTO public.training_rows VALUES ('small', 2, 1, 'small-s0002-g00-i0', 'at-01a1fd290e5a22714a4226', '{2}', '{1,2,2}', '{3,4}', '{1,1}', 0, 1, '{-0.5,-0.25}', NULL);
INSERT INTO public.training_rows VALUES ('small', 2, 2, 'small-s0002-g00-i1', 'at-01a1fd290e5e6a98859d93', '{1}', '{1,2,1}', '{3,4}', '{1,1}', 0, 1, '{-0.5,-0.25}', NULL);
INSERT INTO public.training_rows VALUES ('small', 2, 3, 'small-s0002-g00-i1', 'at-01a1fd290e5e6a98859d93', '{2}', '{1,2,2}', '{3,4}', '{1,1}', 0, 1, '{-0.5,-0.25}', NULL);
SELECT pg_catalog.setval('public.audit_id_seq', 1, true);
SELECT pg_catalog.setval('public.events_id_seq', 87, true);
SELECT pg_catalog.setval('public.fences', 17, true);
SELECT pg_catalog.setval('public.outbox_id_seq', 1, false);
SELECT pg_catalog.setval('public.queue_orders', 1, false);
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
ALTER TABLE ONLY public.commands
    ADD CONSTRAINT commands_pkey PRIMARY KEY (command_id);
ALTER TABLE ONLY public.datasets
    ADD CONSTRAINT datasets_pkey PRIMARY KEY (dataset_id);
ALTER TABLE ONLY public.engine_loads
    ADD CONSTRAINT engine_loads_pkey PRIMARY KEY (engine_id, load);
ALTER TABLE ONLY public.engines
    ADD CONSTRAINT engines_pkey PRIMARY KEY (engine_id);
ALTER TABLE ONLY public.events_dropped
    ADD CONSTRAINT events_dropped_pkey PRIMARY KEY (only_one);
ALTER TABLE ONLY public.events
    ADD CONSTRAINT events_pkey PRIMARY KEY (id);
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
ALTER TABLE ONLY public.idempotency_keys
    ADD CONSTRAINT idempotency_keys_pkey PRIMARY KEY (scope, key);
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
CREATE INDEX attempts_leased ON public.attempts USING btree (lease_until) WHERE ((lease_until IS NOT NULL) AND (ended_at IS NULL));
CREATE UNIQUE INDEX attempts_one_open ON public.attempts USING btree (rollout_id) WHERE (ended_at IS NULL);
CREATE INDEX audit_by_run ON public.audit USING btree (run, id);
CREATE INDEX commands_open ON public.commands USING btree (run, created_at) WHERE (done_at IS NULL);
CREATE INDEX events_by_xid ON public.events USING btree (xid);
CREATE INDEX idempotency_keys_by_age ON public.idempotency_keys USING btree (created_at);
CREATE INDEX outbox_by_workflow ON public.outbox USING btree (workflow_id);
CREATE INDEX outbox_open ON public.outbox USING btree (id) WHERE (started_at IS NULL);
CREATE INDEX resources_latest ON public.resources USING btree (update_time DESC, sequence DESC);
CREATE INDEX rollouts_by_batch ON public.rollouts USING btree (run, kind, step, batch);
CREATE INDEX rollouts_by_time ON public.rollouts USING btree (created_at, rollout_id);
CREATE INDEX rollouts_inspections ON public.rollouts USING btree (inspects) WHERE (inspects IS NOT NULL);
CREATE INDEX rollouts_open ON public.rollouts USING btree (status, created_at) WHERE (status = ANY (ARRAY['queuing'::text, 'preparing'::text, 'running'::text, 'requeuing'::text]));
CREATE INDEX rollouts_queue ON public.rollouts USING btree (queue_order) WHERE (queue_order IS NOT NULL);
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
CREATE TRIGGER attempt_changed AFTER UPDATE OF status, failure_class ON public.attempts FOR EACH ROW WHEN (((new.status <> old.status) OR (new.failure_class IS DISTINCT FROM old.failure_class))) EXECUTE FUNCTION public.attempt_event();
CREATE TRIGGER attempt_created AFTER INSERT ON public.attempts FOR EACH ROW EXECUTE FUNCTION public.attempt_event();
CREATE TRIGGER attempt_transition BEFORE UPDATE OF status, failure_class, reward, ended_at ON public.attempts FOR EACH ROW EXECUTE FUNCTION public.attempt_transition();
CREATE TRIGGER audited AFTER INSERT ON public.audit FOR EACH ROW EXECUTE FUNCTION public.audit_event();
CREATE TRIGGER command_changed AFTER UPDATE ON public.commands FOR EACH ROW WHEN (((new.done_at IS DISTINCT FROM old.done_at) OR (new.waiting_for IS DISTINCT FROM old.waiting_for))) EXECUTE FUNCTION public.command_event();
CREATE TRIGGER command_given AFTER INSERT ON public.commands FOR EACH ROW EXECUTE FUNCTION public.command_event();
CREATE TRIGGER outbox_filled AFTER INSERT ON public.outbox FOR EACH STATEMENT EXECUTE FUNCTION public.outbox_filled();
CREATE TRIGGER rollout_changed AFTER UPDATE OF status ON public.rollouts FOR EACH ROW WHEN ((new.status <> old.status)) EXECUTE FUNCTION public.rollout_event();
CREATE TRIGGER rollout_created AFTER INSERT ON public.rollouts FOR EACH ROW EXECUTE FUNCTION public.rollout_event();
CREATE TRIGGER rollout_ended AFTER UPDATE OF status ON public.rollouts FOR EACH ROW WHEN (((new.kind = 'external'::text) AND public.is_over_v1(new.status) AND (NOT public.is_over_v1(old.status)))) EXECUTE FUNCTION public.rollout_ended();
CREATE TRIGGER rollout_transition BEFORE UPDATE OF status ON public.rollouts FOR EACH ROW EXECUTE FUNCTION public.rollout_transition();
CREATE TRIGGER run_changed AFTER UPDATE ON public.runs FOR EACH ROW WHEN ((((((new.status IS DISTINCT FROM old.status) OR (new.phase IS DISTINCT FROM old.phase)) OR (new.paused IS DISTINCT FROM old.paused)) OR (new.waiting_for IS DISTINCT FROM old.waiting_for)) OR (new.epoch IS DISTINCT FROM old.epoch))) EXECUTE FUNCTION public.run_event();
CREATE TRIGGER run_created AFTER INSERT ON public.runs FOR EACH ROW EXECUTE FUNCTION public.run_event();
CREATE TRIGGER step_changed AFTER UPDATE OF status ON public.steps FOR EACH ROW WHEN ((new.status <> old.status)) EXECUTE FUNCTION public.step_event();
CREATE TRIGGER step_created AFTER INSERT ON public.steps FOR EACH ROW EXECUTE FUNCTION public.step_event();
CREATE TRIGGER version_published AFTER INSERT ON public.policy_versions FOR EACH ROW EXECUTE FUNCTION public.version_event();
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
    ADD CONSTRAINT rollouts_inspects_fkey FOREIGN KEY (inspects) REFERENCES public.rollouts(rollout_id);
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
