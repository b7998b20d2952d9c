-- Recording model calls: a group of them is one call and one transaction. Lock order: rollouts, then attempts, by id.

-- One choice of a model call; the bodies come with the first choice alone.
create type generation_item_v1 as (
    item             int,                             -- which call of the group
    rollout_id       text,
    attempt_id       text,
    token_hash       text,
    call_number      int,
    choice           int,
    request_hash     text,
    route            text,
    request          bytea,
    request_body     bytea,
    response         bytea,
    response_body    bytea,
    prompt_token_ids int[],
    token_ids        int[],
    logprobs         real[],
    sampling         text,
    seed             bigint,
    engine_id        text,
    model            text,
    finish_reason    text,
    complete         boolean,
    delivered        text,
    seconds          double precision
);

-- The policy version that an engine held so many seconds ago; null: unknown.
create function version_at_v1(p_engine text, p_seconds_ago double precision) returns int language sql stable as $$
    select version from engine_loads
    where engine_id = p_engine and loaded_at <= clock_timestamp() - make_interval(secs => p_seconds_ago)
    order by load desc limit 1
$$;

create function next_call_number_v1(p_day date, p_attempt text) returns int language sql stable as $$
    select coalesce(max(call_number), 0) + 1 from generations where day = p_day and attempt_id = p_attempt
$$;

-- Calls of these attempts are about to be recorded: lock them, and mark those that are alive as running.
create function enter_attempts_v1(p_attempts text[], p_tokens text[]) returns void language plpgsql as $$
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

-- Record calls; no two of them have the same attempt and call number. One verdict a call:
-- new, committed (sent twice), foreign (not this attempt's token), over (the attempt is), renumber (the number is taken).
create function commit_generations_v1(p_items generation_item_v1[])
returns table (item int, verdict text, next_number int) language plpgsql
set plan_cache_mode = force_generic_plan set enable_seqscan = off as $$
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

-- Calls that the platform failed, of attempts that are open and whose token this is; the others are dropped.
create function add_call_failures_v1(
    p_attempts text[], p_tokens text[], p_calls int[], p_requests text[], p_messages text[]
) returns void language plpgsql
set plan_cache_mode = force_generic_plan set enable_seqscan = off as $$
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

-- Whether answers reached the agent. `yes` stays; marks of attempts that are over are dropped. No call comes twice.
-- Not flushed to disk before it is answered: a mark that a crash of the database host loses leaves `unknown`.
create function mark_delivered_v1(p_attempts text[], p_calls int[], p_marks text[]) returns void language plpgsql
set plan_cache_mode = force_generic_plan set enable_seqscan = off as $$
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

-- A partition for a day, before rows of that day exist. False: it is there, or the default partition holds such rows.
create function ensure_partition_v1(p_table text, p_day date) returns boolean language plpgsql as $$
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
