-- Versions of resources, to which rollouts are pinned; how evaluations are sampled, and their score; named rewards.

-- `resources` holds the newest version of each.
create table resource_versions (
    resources_id text not null references resources on delete cascade,
    version      int not null,
    resources    jsonb not null,
    create_time  timestamptz not null,
    update_time  timestamptz not null,                -- when this version was made
    primary key (resources_id, version)
);
insert into resource_versions (resources_id, version, resources, create_time, update_time)
select resources_id, version, resources, create_time, update_time from resources;

create function keep_version() returns trigger language plpgsql as $$
begin
    insert into resource_versions (resources_id, version, resources, create_time, update_time)
    values (new.resources_id, new.version, new.resources, new.create_time, new.update_time);
    return null;
end $$;
create trigger keep_version after insert or update of version on resources for each row execute function keep_version();

alter table runs add column resources_version int;
alter table steps add column resources_version int;
alter table rollouts add column resources_version int;
update runs r set resources_version = (select version from resources x where x.resources_id = r.resources_id);
update steps s set resources_version = (select version from resources x where x.resources_id = s.resources_id);
update rollouts r set resources_version = (select version from resources x where x.resources_id = r.resources_id);

-- A rollout is pinned to a version when it is enqueued, or when it is given other resources; one from outside that names
-- none, or some that were not there, when it is first opened.
create function pin_resources() returns trigger language plpgsql as $$
declare
    first boolean := tg_op = 'INSERT';
begin
    if tg_op = 'UPDATE' then
        if new.resources_id is distinct from old.resources_id then
            new.resources_version := null;
            first := true;
        end if;
        if old.attempts = 0 and new.attempts > 0 then
            first := true;
            if new.resources_id is null and new.kind = 'external' then
                select resources_id into new.resources_id from resources order by update_time desc, sequence desc limit 1;
            end if;
        end if;
    end if;
    if first and new.resources_version is null and new.resources_id is not null then
        select version into new.resources_version from resources where resources_id = new.resources_id;
    end if;
    return new;
end $$;
create trigger pin_resources before insert or update of resources_id, attempts on rollouts
    for each row execute function pin_resources();

create or replace function rollout_json_v1(r rollouts) returns jsonb language sql stable as $$
    select jsonb_build_object(
        'rollout_id', r.rollout_id, 'start_time', unix_v1(r.created_at), 'end_time', unix_v1(r.ended_at),
        'input', coalesce(r.input, (select task from tasks t where t.dataset_id = r.dataset_id and t.position = r.position)),
        'mode', r.mode, 'resources_id', r.resources_id, 'resources_version', r.resources_version, 'status', r.status,
        'config', r.config, 'metadata', r.metadata, 'run', r.run, 'step', r.step, 'failure_class', r.failure_class,
        'reward', r.reward)
$$;

-- As the plan of its step says, or the run file where there is none; evaluations may say otherwise.
create function sampling_v2(r rollouts) returns jsonb language sql stable as $$
    select sampling_v1(r.run, r.step) || coalesce((
        select jsonb_strip_nulls(nullif(file #> '{evaluation,sampling}', 'null')) from runs
        where run = r.run and r.mode = 'val'), '{}')
$$;

create or replace function assignment_v1(r rollouts, a attempts) returns jsonb language sql stable as $$
    select jsonb_build_object(
        'rollout_id', r.rollout_id, 'attempt_id', a.attempt_id, 'sequence_id', a.sequence_id, 'fence', a.fence,
        'run', r.run, 'step', r.step, 'mode', r.mode, 'metadata', r.metadata,
        'input', coalesce((select task from tasks t where t.dataset_id = r.dataset_id and t.position = r.position), r.input),
        'resources_id', r.resources_id, 'resources_version', r.resources_version,
        'resources', coalesce((select resources from resource_versions v
                               where v.resources_id = r.resources_id and v.version = r.resources_version), '{}'),
        'sampling', sampling_v2(r),
        'config', r.config,
        'isolation', coalesce((select file ->> 'isolation' from runs where run = r.run), 'process'),
        'alone', r.deaths >= 2,
        'deaths', r.deaths,
        'grader', (select file ->> 'grader' from runs where run = r.run))
$$;

-- A failure counts as the run file says, 0 where that is silent.
insert into metrics (run, step, name, value)
select r.run, r.step, 'eval/score',
       avg(coalesce(r.reward, (u.file #>> array['failures', 'rewards', r.failure_class])::float8, 0))
from rollouts r
join runs u on u.run = r.run
join metrics m on m.run = r.run and m.step = r.step and m.name = 'eval/failed'
where r.kind = 'eval'
group by r.run, r.step
on conflict do nothing;

-- A grader, or the agent itself, may give several rewards by name, and say why. One of them counts.
alter table rewards
    add column dimension text not null default 'primary',
    add column is_primary boolean not null default true,
    add column feedback text,
    drop constraint rewards_pkey,
    add primary key (attempt_id, grader, dimension);
create unique index rewards_primary on rewards (attempt_id, grader) where is_primary;

-- Adds names to the reward that this transaction has written, and what was given beside it. Answers the outcome.
create function name_rewards_v1(
    p_outcome jsonb, p_grader text, p_primary text, p_further jsonb, p_feedback text
) returns jsonb language plpgsql as $$
begin
    if p_primary is null and p_feedback is null or not (p_outcome ->> 'succeeded')::boolean then
        return p_outcome;
    end if;
    update rewards set dimension = coalesce(p_primary, dimension), feedback = p_feedback
    where attempt_id = p_outcome ->> 'attempt_id' and grader = p_grader and is_primary and created_at = now();
    if found then
        insert into rewards (rollout_id, attempt_id, grader, value, dimension, is_primary)
        select p_outcome ->> 'rollout_id', p_outcome ->> 'attempt_id', p_grader, value::double precision, key, false
        from jsonb_each_text(p_further)
        on conflict do nothing;
    end if;
    return p_outcome;
end $$;

-- The rewards of an external runner's attempt, as its last reward span names them; the first one counts.
create function keep_span_rewards_v1(r rollouts, p_attempt text, p_reward double precision) returns void
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
           coalesce(given ->> ('agentlightning.reward.' || i || '.name'), case i when 0 then 'primary' else i::text end),
           i = 0, case when i = 0 then given ->> 'relight.reward.feedback' end
    from (select i, given -> ('agentlightning.reward.' || i || '.value') as value from generate_series(0, 63) i) named
    where i = 0 or jsonb_typeof(value) = 'number' and abs(value::numeric) <= 1e18
    order by i
    on conflict do nothing;
end $$;

create or replace function settle_attempt_v1(r rollouts, a attempts, p_status text, p_message text) returns attempts
language plpgsql as $$
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
        perform keep_span_rewards_v1(r, a.attempt_id, rewarded);
    end if;
    perform follow_attempt_v1(r, a);
    return a;
end $$;
