-- A cancel is a fact of the run, and so is where Temporal drives it.

alter table runs
    add column cancel_requested timestamptz,  -- from then on nothing of the run is planned, opened, updated or begun
    add column temporal_address text,         -- of the server that drives it, or drove it last
    add column temporal_namespace text,
    add column drive_again_at timestamptz;    -- when a run that lost its driver is driven again by itself; null: by hand
update runs set cancel_requested = finished_at where status = 'cancelled';

-- Why this rollout lets no attempt be opened, as an answer; null: it may be. The rollout's row is locked.
create or replace function open_refusal_v1(r rollouts, p_try int, p_open_key text, newest attempts) returns jsonb
language plpgsql as $$
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
    select case when status <> 'running' then 'the run is ' || status else 'the run is being cancelled' end
    into reason from runs where run = r.run and (status <> 'running' or cancel_requested is not null);
    if found then
        return answer_v1('gone', reason);  -- nobody drives it; whoever does so next starts the rollout anew
    end if;
    reason := run_waits_v1(r.run);
    return case when reason is not null then answer_v1('wait', reason) end;
end $$;
