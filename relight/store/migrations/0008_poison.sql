-- Rollouts that take their process with them, runs that pause themselves, and the look before the first step.

-- What a run should know and does not stop it, by name: a sentence each.
alter table runs add column warnings jsonb not null default '{}';

-- A preflight belongs to its run and to no step.
alter table rollouts drop constraint rollouts_kind_check;
alter table rollouts add constraint rollouts_kind_check check (kind in ('train', 'eval', 'external', 'preflight', 'inspect'));

-- A process died under the attempt without being its own: counted, and after five times the rollout is given up.
create function count_death_v1(p_rollout text) returns void language plpgsql as $$
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

-- `p_died`: the attempt ended because a process died that was not its own alone, and nobody else is known to blame.
create function finish_attempt_v2(
    p_attempt text, p_fence bigint, p_class text, p_reward double precision, p_message text, p_error jsonb,
    p_output text, p_output_bytes bigint, p_seconds double precision, p_spans jsonb, p_grader text, p_died boolean
) returns jsonb language plpgsql
set plan_cache_mode = force_generic_plan set enable_seqscan = off as $$
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

create or replace function assignment_v1(r rollouts, a attempts) returns jsonb language sql stable as $$
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
