-- Model calls stand in the one sequence of their rollout, beside its spans, and are found by the id of their answer.
-- A rollout may be the record of an algorithm's own model calls.

alter table generations add column sequence_id bigint;        -- null: recorded before calls had one
alter table generations add column response_id text;          -- the engine's id of the answer, or the provider's
create index generations_by_response on generations (response_id);

alter table rollouts drop constraint rollouts_kind_check;
alter table rollouts add constraint rollouts_kind_check
    check (kind in ('train', 'eval', 'external', 'preflight', 'inspect', 'algorithm'));

drop function commit_generations_v1(generation_item_v1[]);
alter type generation_item_v1 add attribute response_id text;

-- Record calls; no two of them have the same attempt and call number. One verdict a call:
-- new, committed (sent twice), foreign (not this attempt's token), over (the attempt is), renumber (the number is taken).
-- Each choice of a new call takes the next number of its rollout's sequence.
create function commit_generations_v1(p_items generation_item_v1[])
returns table (item int, verdict text, next_number int) language plpgsql
set plan_cache_mode = force_generic_plan set enable_seqscan = off as $$
begin
    perform from rollouts r where r.rollout_id in (select g.rollout_id from unnest(p_items) g)
    order by r.rollout_id for no key update;
    perform enter_attempts_v1(array_agg(given.attempt_id), array_agg(given.token_hash))
    from (select distinct g.attempt_id, g.token_hash from unnest(p_items) g) given;
    return query
    with judged as materialized (
        select given.*, r.day, r.next_sequence, case
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
            finish_reason, complete, delivered, seconds, response_id, sequence_id)
        select j.day, j.rollout_id, j.attempt_id, j.call_number, j.choice, j.request_hash, j.route, j.request,
               j.response, j.prompt_token_ids, j.token_ids, j.logprobs, j.sampling::jsonb, j.seed, j.engine_id,
               j.model, version_at_v1(j.engine_id, j.seconds), version_at_v1(j.engine_id, 0), j.finish_reason,
               j.complete, j.delivered, j.seconds, j.response_id,
               j.next_sequence - 1 + row_number() over (partition by j.rollout_id order by j.item, j.choice)
        from judged j where j.judgement = 'new'
    ), numbered as (
        update rollouts r set next_sequence = r.next_sequence + counted.choices
        from (select j.rollout_id, count(*) as choices from judged j where j.judgement = 'new' group by j.rollout_id) counted
        where r.rollout_id = counted.rollout_id
    )
    select j.item, j.judgement,
           case when j.judgement = 'renumber' then next_call_number_v1(j.day, j.attempt_id) end
    from judged j where j.request_body is not null;
end $$;
