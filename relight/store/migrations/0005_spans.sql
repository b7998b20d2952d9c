-- Spans that arrive many at a time, from anybody: one function call a group.

alter table spans alter column start_time drop not null;      -- a span without a start keeps none
alter table spans add column extra jsonb;                     -- context, parent and unknown keys; null: there are none
alter table spans add column bodies jsonb;                    -- what is large, by hash in bodies: field, or attribute, to hash

-- Keep spans: parallel arrays, no span twice among them. A sequence id below 0 asks for one: they count from 1 without
-- gaps in a rollout, and a given one raises the counter. One verdict and one sequence id a span: new, duplicate (it is
-- there already) or unknown (there is no such attempt of such a rollout).
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
