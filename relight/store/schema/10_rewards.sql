-- Rewards of attempts. A grader, or the agent itself, may give several by name, and feedback. One of them counts.

create table rewards (
    rollout_id text not null references rollouts,
    attempt_id text not null references attempts,
    grader     text not null default 'agent',
    dimension  text not null default 'primary',
    is_primary boolean not null default true,         -- the one that counts
    value      double precision not null,
    feedback   text,
    created_at timestamptz not null default now(),
    primary key (attempt_id, grader, dimension)
);
create unique index rewards_primary on rewards (attempt_id, grader) where is_primary;

-- The rewards of an attempt that succeeded: `rewards` of `p_end` are pairs of name and value, the first of which names the
-- attempt's reward. Names are text of an agent's: a long one is cut.
create function store_rewards_v1(a attempts, p_grader text, p_end jsonb) returns void language sql as $$
    insert into rewards (rollout_id, attempt_id, grader, dimension, is_primary, value, feedback)
    select a.rollout_id, a.attempt_id, p_grader, left(given ->> 0, 200), i = 1,
           case when i = 1 then a.reward else (given ->> 1)::double precision end,
           case when i = 1 then p_end ->> 'feedback' end
    from jsonb_array_elements(case p_end -> 'rewards' when '[]' then '[["primary"]]' else p_end -> 'rewards' end)
         with ordinality named(given, i)
    order by i
    on conflict do nothing
$$;

-- The last reward that an attempt's spans hold.
create function span_reward_v1(r rollouts, p_attempt text) returns double precision language sql stable as $$
    select (attributes ->> 'agentlightning.reward.0.value')::double precision from spans
    where day = r.day and rollout_id = r.rollout_id and attempt_id = p_attempt
      and name in ('agentlightning.annotation', 'agentlightning.reward', 'agentlightning.operation')
      and jsonb_typeof(attributes -> 'agentlightning.reward.0.value') = 'number'
    order by sequence_id desc limit 1
$$;

-- The rewards of an external runner's attempt, as its last reward span names them; the first one counts.
create function store_span_rewards_v1(r rollouts, p_attempt text, p_reward double precision) returns void
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
