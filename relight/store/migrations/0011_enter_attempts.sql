-- Entering attempts costs the same however many rollouts are open. A condition on the status alone would be looked up
-- in `rollouts_open`, all of it, as long as Postgres has no statistics of a young table; `is true` keeps it out of that.

-- Calls of these attempts are about to be recorded: lock them, and mark those that are alive as running.
create or replace function enter_attempts_v1(p_attempts text[], p_tokens text[]) returns void language plpgsql
set plan_cache_mode = force_generic_plan set enable_seqscan = off as $$
declare
    starting text[];
begin
    starting := array(
        select r.rollout_id from unnest(p_attempts) as given(id)
        join attempts a on a.attempt_id = given.id
        join rollouts r on r.rollout_id = a.rollout_id
        where (r.status = 'preparing') is true);
    if cardinality(starting) > 0 then
        perform from rollouts r where r.rollout_id = any (starting) order by r.rollout_id for no key update;
    end if;
    perform from attempts a where a.attempt_id = any (p_attempts) order by a.attempt_id for no key update;
    if cardinality(starting) > 0 then
        update rollouts r set status = 'running'
        from attempts a join unnest(p_attempts, p_tokens) as given(id, token) on a.attempt_id = given.id
        where a.token_hash = given.token and r.rollout_id = a.rollout_id and r.rollout_id = any (starting)
          and (r.status = 'preparing') is true and a.ended_at is null;
    end if;
    update attempts a set status = 'running', last_heartbeat = clock_timestamp()
    from unnest(p_attempts, p_tokens) as given(id, token)
    where a.attempt_id = given.id and a.token_hash = given.token and a.ended_at is null
      and (a.status = 'preparing' or a.last_heartbeat < clock_timestamp() - interval '1 s');
end $$;
