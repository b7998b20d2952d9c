-- Spans. Large and append-only, so partitioned by the day on which the rollout was created (rule 23).

create table spans (
    day         date not null,
    rollout_id  text not null,
    attempt_id  text not null,
    span_id     text not null,
    sequence_id bigint not null,                      -- in the one sequence of its rollout, with its generations
    trace_id    text not null,
    parent_id   text,
    name        text not null,
    status      jsonb not null default '{}',
    attributes  jsonb not null default '{}',
    events      jsonb not null default '[]',
    links       jsonb not null default '[]',
    resource    jsonb not null default '{}',
    extra       jsonb,                                -- context, parent and unknown keys; null: there are none
    bodies      jsonb,                                -- what is large, by hash in bodies: field, or attribute, to hash
    start_time  double precision,                     -- null: the span was sent without one
    end_time    double precision,
    created_at  timestamptz not null default now(),
    response_id text generated always as (            -- of the model's answer, where the span is of a model call
        left(coalesce(nullif(attributes ->> 'gen_ai.response.id', ''),
                      nullif(attributes ->> 'agentlightning.operation.output.id', ''),
                      nullif(attributes ->> 'llm.hosted_vllm.id', '')), 200)) stored,
    primary key (day, rollout_id, attempt_id, span_id)
) partition by range (day);
create table spans_default partition of spans default;

-- Add spans (a JSON array) to an attempt; sequence ids count from 1 without gaps in a rollout. Returns how many were
-- new.
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
                       attributes, events, links, resource, extra, start_time, end_time)
    select r.day, p_rollout, p_attempt, s ->> 'span_id', r.next_sequence - 1 + row_number() over (order by n),
           s ->> 'trace_id', s ->> 'parent_id', s ->> 'name',
           jsonb_build_object('status_code', s -> 'status', 'description', s -> 'status_description'),
           s -> 'attributes', s -> 'events', s -> 'links', s -> 'resource', nullif(s -> 'extra', '{}'),
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

-- Add spans of any attempts: parallel arrays, no span twice among them. A sequence id below 0 asks for one: they count
-- from 1 without gaps in a rollout, and a given one raises the counter. One verdict and one sequence id a span: new,
-- duplicate (it exists already) or unknown (there is no such attempt of such a rollout).
create function ingest_spans_v1(
    p_rollouts text[], p_attempts text[], p_spans text[], p_sequences bigint[], p_traces text[], p_parents text[],
    p_names text[], p_statuses text[], p_attributes text[], p_events text[], p_links text[], p_resources text[],
    p_extras text[], p_starts float8[], p_ends float8[], p_refs text[],
    p_body_items int[], p_body_hashes bytea[], p_bodies bytea[],
    out verdicts text[], out sequences bigint[]
) language plpgsql
set plan_cache_mode = force_generic_plan set enable_seqscan = off set work_mem = '32MB' as $$
declare
    days date[];
    alive text[];
begin
    perform from rollouts r where r.rollout_id = any (p_rollouts) order by r.rollout_id for no key update;

    with checked as (
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
        select c.*, count(*) filter (where c.verdict = 'new' and c.wanted < 0) over before as issued
        from checked c
        window before as (
            partition by c.rollout_id order by c.item rows between unbounded preceding and 1 preceding)
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

-- The next sequence ids of spans, one for each attempt named, in order; a rollout's attempts share them.
create function take_sequence_ids_v1(p_rollouts text[], p_attempts text[]) returns bigint[] language plpgsql as $$
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

-- The spans of a rollout or of one of its attempts (`latest`: the newest), model calls among them, each once; those
-- whose answer did not reach the agent are left out. A call has the sequence id of its generation.
-- The tracer's span of the same call stands for it: the one with the answer's id or, of several, the innermost, which
-- ended first and so has the lowest sequence id. Clients of the Messages and Responses APIs know the id as its last
-- part behind a prefix. Any other call is under the attempt's root: the only span of a tracer without a parent that has
-- children. Nested loops are off because, without statistics, they would be chosen for any number of rows.
create function rollout_spans_v1(p_rollout text, p_attempt text) returns table (
    day date, rollout_id text, attempt_id text, sequence_id bigint, trace_id text, span_id text, parent_id text,
    name text, start_time double precision, end_time double precision, call_number int
) language plpgsql stable
set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_nestloop = off as $$
#variable_conflict use_column
declare
    p_day date;
    p_attempts text[];
begin
    select r.day, array(
        select a.attempt_id from attempts a
        where a.rollout_id = r.rollout_id
          and (p_attempt is null or a.attempt_id = p_attempt or p_attempt = 'latest' and a.sequence_id = r.attempts))
    into p_day, p_attempts
    from rollouts r where r.rollout_id = p_rollout;
    if not exists (select from generations g where g.day = p_day and g.attempt_id = any (p_attempts)) then
        return query
        select s.day, s.rollout_id, s.attempt_id, s.sequence_id, s.trace_id, s.span_id, s.parent_id, s.name,
               s.start_time, s.end_time, null::int
        from spans s where s.day = p_day and s.rollout_id = p_rollout and s.attempt_id = any (p_attempts);
        return;
    end if;
    return query
    with traced as materialized (
        select s.attempt_id, s.sequence_id, s.trace_id, s.span_id, s.parent_id, s.name, s.start_time, s.end_time,
               s.response_id
        from spans s where s.day = p_day and s.rollout_id = p_rollout and s.attempt_id = any (p_attempts)
    ), calls as materialized (
        select distinct on (g.attempt_id, g.call_number)
               g.attempt_id, g.call_number, coalesce(g.sequence_id, 0) as sequence_id, g.response_id,
               answer.last_part, g.seconds, extract(epoch from g.created_at)::double precision as end_time,
               row_number() over (partition by g.attempt_id, answer.last_part order by g.call_number, g.choice) as repeat
        from generations g
        cross join lateral (values (regexp_replace(g.response_id, '^.*-', ''))) as answer(last_part)
        where g.day = p_day and g.attempt_id = any (p_attempts) and g.delivered <> 'no'
        order by g.attempt_id, g.call_number, g.choice
    ), answers as (
        select c.attempt_id, c.call_number, c.sequence_id, known.id
        from calls c
        cross join lateral (values (c.response_id), ('msg_' || c.last_part), ('resp_' || c.last_part)) as known(id)
        where c.repeat = 1
    ), joined as materialized (
        select distinct on (c.attempt_id, c.call_number) c.attempt_id, c.call_number, c.sequence_id, t.span_id
        from answers c
        join traced t on t.attempt_id = c.attempt_id and t.response_id = c.id
        order by c.attempt_id, c.call_number, t.sequence_id, t.start_time desc nulls last, t.span_id
    ), roots as (
        select t.attempt_id, min(t.trace_id) as trace_id, min(t.span_id) as span_id
        from traced t
        where t.parent_id is null and not starts_with(t.name, 'agentlightning.')
          and (t.attempt_id, t.span_id) in (select below.attempt_id, below.parent_id from traced below)
        group by t.attempt_id having count(*) = 1
    )
    select p_day, p_rollout, t.attempt_id, coalesce(j.sequence_id, t.sequence_id), t.trace_id, t.span_id, t.parent_id,
           t.name, t.start_time, t.end_time, j.call_number
    from traced t
    left join joined j on j.attempt_id = t.attempt_id and j.span_id = t.span_id
    union all
    select p_day, p_rollout, c.attempt_id, c.sequence_id,
           coalesce(r.trace_id, left(encode(sha256(convert_to(c.attempt_id, 'UTF8')), 'hex'), 32)),
           left(encode(sha256(convert_to(c.attempt_id || '/' || c.call_number, 'UTF8')), 'hex'), 16),
           r.span_id, 'raw_gen_ai_request', c.end_time - c.seconds, c.end_time, c.call_number
    from calls c
    left join roots r on r.attempt_id = c.attempt_id
    left join joined j on j.attempt_id = c.attempt_id and j.call_number = c.call_number
    where j.call_number is null;
end $$;
