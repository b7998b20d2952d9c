-- Signs of life cost the same however many rollouts and attempts are open. A bare condition on `status` or `ended_at`
-- would be looked up in `rollouts_open` or `attempts_one_open`, all of it, as long as Postgres has no statistics of a
-- young table; `is true` keeps it out of these.

-- Calls of these attempts are about to be recorded, which is a sign of life: lock them, and mark those that are alive as
-- running. A call may last longer than the silence after which the sweeper calls its attempt unresponsive.
create or replace function enter_attempts_v1(p_attempts text[], p_tokens text[]) returns void language plpgsql
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

-- A sign of life from an open attempt: it is running. The rollout's row is locked by the caller or not at all yet.
create or replace function touch_attempt_v1(p_rollout text, p_attempt text, p_fence bigint) returns void
language plpgsql as $$
begin
    update rollouts set status = 'running'
    where rollout_id = p_rollout and (status = 'preparing') is true and exists (
        select from attempts where attempt_id = p_attempt and fence = p_fence and (ended_at is null) is true);
    update attempts set status = 'running', last_heartbeat = clock_timestamp()
    where attempt_id = p_attempt and fence = p_fence and (ended_at is null) is true
      and (status = 'preparing' or last_heartbeat is null or last_heartbeat < clock_timestamp() - interval '1 s');
end $$;

-- Whether answers reached the agent. `yes` stays; marks of attempts that are over are dropped. No call comes twice.
-- Not flushed to disk before it is answered: a mark that a crash of the database host loses leaves `unknown`.
create or replace function mark_delivered_v1(p_attempts text[], p_calls int[], p_marks text[]) returns void
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
