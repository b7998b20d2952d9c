-- Generations: model calls as the gateway saw them, one row a choice. A group of calls is one function call and one
-- transaction. Large and append-only, so partitioned by the day on which the rollout was created (rule 23).

-- Bodies of requests and responses, and large parts of spans, by hash within a day.
create table bodies (
    day  date not null,
    hash bytea not null,
    body bytea not null,                              -- zlib-compressed JSON
    primary key (day, hash)
) partition by range (day);
create table bodies_default partition of bodies default;

create table generations (
    day              date not null,
    rollout_id       text not null,
    attempt_id       text not null,
    call_number      int not null,
    choice           int not null,
    sequence_id      bigint,                          -- in the one sequence of its rollout, with its spans
    request_hash     text not null,
    route            text not null,
    request          bytea not null,                  -- hash in bodies
    response         bytea not null,                  -- hash in bodies
    response_id      text,                            -- the engine's id of the answer, or the provider's
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
create table generations_default partition of generations default;
create index generations_by_response on generations (response_id);

-- Calls that the platform failed.
create table call_failures (
    day          date not null,
    attempt_id   text not null,
    call_number  int not null,
    request_hash text not null,
    message      text not null,
    created_at   timestamptz not null default now(),
    primary key (day, attempt_id, call_number, request_hash)
) partition by range (day);
create table call_failures_default partition of call_failures default;

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
    seconds          double precision,
    response_id      text
);

create function next_call_number_v1(p_day date, p_attempt text) returns int language sql stable as $$
    select coalesce(max(call_number), 0) + 1 from generations where day = p_day and attempt_id = p_attempt
$$;

-- Calls of these attempts are about to be recorded, so they are alive: lock them, and mark open ones as running. A call
-- may last longer than the silence after which the sweeper marks its attempt as unresponsive.
create function mark_callers_running_v1(p_attempts text[], p_tokens text[]) returns void language plpgsql
set plan_cache_mode = force_generic_plan set enable_seqscan = off as $$
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

-- Record calls; no two of them have the same attempt and call number. One verdict a call: new, committed (sent twice),
-- foreign (not this attempt's token), over (the attempt has ended), renumber (the number is taken). Each choice of a
-- new call takes the next number of its rollout's sequence.
create function commit_generations_v1(p_items generation_item_v1[])
returns table (item int, verdict text, next_number int) language plpgsql
set plan_cache_mode = force_generic_plan set enable_seqscan = off as $$
begin
    perform from rollouts r where r.rollout_id in (select g.rollout_id from unnest(p_items) g)
    order by r.rollout_id for no key update;
    perform mark_callers_running_v1(array_agg(given.attempt_id), array_agg(given.token_hash))
    from (select distinct g.attempt_id, g.token_hash from unnest(p_items) g) given;
    return query
    with checked as materialized (
        select given.*, r.day, r.next_sequence, case
            when a.attempt_id is null or a.rollout_id <> given.rollout_id or a.token_hash <> given.token_hash then 'foreign'
            when holder.request_hash = given.request_hash then 'committed'
            when a.ended_at is not null or r.status = 'cancelled' then 'over'
            when holder.request_hash is not null then 'renumber'
            else 'new'
        end as outcome
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
        from checked c
        cross join lateral (values (c.day, c.request, c.request_body), (c.day, c.response, c.response_body))
            as b(day, hash, body)
        where c.outcome = 'new' and b.body is not null
        order by b.day, b.hash
        on conflict do nothing
    ), stored as (
        insert into generations (
            day, rollout_id, attempt_id, call_number, choice, request_hash, route, request, response,
            prompt_token_ids, token_ids, logprobs, sampling, seed, engine_id, model, version_start, version_end,
            finish_reason, complete, delivered, seconds, response_id, sequence_id)
        select c.day, c.rollout_id, c.attempt_id, c.call_number, c.choice, c.request_hash, c.route, c.request,
               c.response, c.prompt_token_ids, c.token_ids, c.logprobs, c.sampling::jsonb, c.seed, c.engine_id,
               c.model, version_at_v1(c.engine_id, c.seconds), version_at_v1(c.engine_id, 0), c.finish_reason,
               c.complete, c.delivered, c.seconds, c.response_id,
               c.next_sequence - 1 + row_number() over (partition by c.rollout_id order by c.item, c.choice)
        from checked c where c.outcome = 'new'
    ), numbered as (
        update rollouts r set next_sequence = r.next_sequence + counted.choices
        from (select c.rollout_id, count(*) as choices from checked c where c.outcome = 'new' group by c.rollout_id) counted
        where r.rollout_id = counted.rollout_id
    )
    select c.item, c.outcome,
           case when c.outcome = 'renumber' then next_call_number_v1(c.day, c.attempt_id) end
    from checked c where c.request_body is not null;
end $$;

-- Record failures of open attempts whose token this is; others are dropped.
create function add_call_failures_v1(
    p_attempts text[], p_tokens text[], p_calls int[], p_requests text[], p_messages text[]
) returns void language plpgsql
set plan_cache_mode = force_generic_plan set enable_seqscan = off as $$
begin
    perform mark_callers_running_v1(array_agg(given.id), array_agg(given.token))
    from (select distinct * from unnest(p_attempts, p_tokens) as x(id, token)) given;
    insert into call_failures (day, attempt_id, call_number, request_hash, message)
    select r.day, a.attempt_id, given.call_number, given.request_hash, given.message
    from unnest(p_attempts, p_tokens, p_calls, p_requests, p_messages)
        as given(attempt_id, token_hash, call_number, request_hash, message)
    join attempts a on a.attempt_id = given.attempt_id and a.token_hash = given.token_hash and a.ended_at is null
    join rollouts r on r.rollout_id = a.rollout_id
    on conflict do nothing;
end $$;

-- A call that the platform failed, without a later committed generation of the same request.
create function has_unresolved_failure_v1(p_day date, p_attempt text) returns boolean language sql stable as $$
    select exists (
        select from call_failures f
        where f.day = p_day and f.attempt_id = p_attempt and not exists (
            select from generations g
            where g.day = p_day and g.attempt_id = p_attempt
              and g.request_hash = f.request_hash and g.call_number >= f.call_number))
$$;

-- Record whether answers reached the agent (rule 8). `yes` stays; marks of attempts that have ended are dropped. No
-- call comes twice. Not flushed to disk before it is answered: a mark that a crash of the database host loses leaves
-- `unknown`.
create function mark_delivered_v1(p_attempts text[], p_calls int[], p_marks text[]) returns void
language plpgsql
set plan_cache_mode = force_generic_plan set enable_seqscan = off as $$
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

-- An attempt has ended: an unknown delivery becomes `no` if a later call repeats its prompt, else `yes` (rule 8).
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
