-- Names of rewards are text of an agent's: one of any length is kept, in short. A rollout whose resources were added after
-- its first attempt had begun is pinned to their version by its next one.

create or replace function name_rewards_v1(
    p_outcome jsonb, p_grader text, p_primary text, p_further jsonb, p_feedback text
) returns jsonb language plpgsql as $$
begin
    if p_primary is null and p_feedback is null or not (p_outcome ->> 'succeeded')::boolean then
        return p_outcome;
    end if;
    update rewards set dimension = coalesce(left(p_primary, 200), dimension), feedback = p_feedback
    where attempt_id = p_outcome ->> 'attempt_id' and grader = p_grader and is_primary and created_at = now();
    if found then
        insert into rewards (rollout_id, attempt_id, grader, value, dimension, is_primary)
        select p_outcome ->> 'rollout_id', p_outcome ->> 'attempt_id', p_grader, value::double precision,
               left(key, 200), false
        from jsonb_each_text(p_further)
        on conflict do nothing;
    end if;
    return p_outcome;
end $$;

create or replace function keep_span_rewards_v1(r rollouts, p_attempt text, p_reward double precision) returns void
language plpgsql as $$
declare
    given jsonb;
begin
    select attributes into given from spans
    where day = r.day and rollout_id = r.rollout_id and attempt_id = p_attempt
      and name in ('agentlightning.annotation', 'agentlightning.reward', 'agentlightning.operation')
      and jsonb_typeof(attributes -> 'agentlightning.reward.0.value') = 'number'
    order by sequence_id desc limit 1;
    delete from rewards where attempt_id = p_attempt and grader = 'agent';
    insert into rewards (rollout_id, attempt_id, value, dimension, is_primary, feedback)
    select r.rollout_id, p_attempt, case when i = 0 then p_reward else value::double precision end,
           left(coalesce(given ->> ('agentlightning.reward.' || i || '.name'),
                         case i when 0 then 'primary' else i::text end), 200),
           i = 0, case when i = 0 then given ->> 'relight.reward.feedback' end
    from (select i, given -> ('agentlightning.reward.' || i || '.value') as value from generate_series(0, 63) i) named
    where i = 0 or jsonb_typeof(value) = 'number' and abs(value::numeric) <= 1e18
    order by i
    on conflict do nothing;
end $$;

create or replace function pin_resources() returns trigger language plpgsql as $$
declare
    first boolean := tg_op = 'INSERT';
begin
    if tg_op = 'UPDATE' then
        if new.resources_id is distinct from old.resources_id then
            new.resources_version := null;
            first := true;
        end if;
        if new.attempts > old.attempts then
            first := true;
            if old.attempts = 0 and new.resources_id is null and new.kind = 'external' then
                select resources_id into new.resources_id from resources order by update_time desc, sequence desc limit 1;
            end if;
        end if;
    end if;
    if first and new.resources_version is null and new.resources_id is not null then
        select version into new.resources_version from resources where resources_id = new.resources_id;
    end if;
    return new;
end $$;
