-- What clients and external runners change without a fence: attempts and rollouts that a queue dispatches. A sweeper
-- checks their deadlines.

-- The row of a rollout that may be changed without a fence, locked.
create function lock_queued_v1(p_rollout text) returns rollouts language plpgsql as $$
declare
    r rollouts := lock_rollout_v1(p_rollout);
begin
    if r.dispatched_by = 'workflow' then
        raise exception 'rollout % is driven by a workflow: only spans may be added from outside', p_rollout
            using errcode = 'RL409';
    end if;
    return r;
end $$;

create function start_attempt_v1(p_rollout text, p_attempt text, p_token_hash text, p_worker text) returns jsonb
language plpgsql as $$
declare
    r rollouts := lock_queued_v1(p_rollout);
    a attempts;
begin
    if r.status = 'cancelled' then
        raise exception 'rollout % is cancelled', p_rollout using errcode = 'RL409';
    end if;
    a := begin_attempt_v1(r, p_attempt, p_token_hash, p_worker);
    update rollouts set status = 'preparing', attempts = attempts + 1, due_at = null, reward = null,
        failure_class = null, failure = null, ended_at = null
    where rollout_id = p_rollout returning * into r;
    perform sync_workers_v1(jsonb_build_array(worker_event_v1(a)));
    return attempted_json_v1(r, a);
end $$;

-- The pause before the next try: doubles with each try, up to 60 s.
create function backoff_v1(p_config jsonb, p_try int) returns interval language sql immutable as $$
    select make_interval(secs => least(
        least(coalesce((p_config ->> 'backoff_seconds')::double precision, 1), 60) * 2 ^ least(p_try - 1, 20), 60))
$$;

-- The newest attempt changed its status, and so does its rollout, unless that has ended.
create function follow_attempt_v1(r rollouts, a attempts) returns void language plpgsql as $$
declare
    again boolean := a.status not in ('preparing', 'running', 'succeeded')
        and coalesce(r.config -> 'retry_condition', '[]') ? a.failure_class
        and a.sequence_id < coalesce((r.config ->> 'max_attempts')::int, 1);
    follows text := case when a.status in ('preparing', 'running', 'succeeded') then a.status
                         when again then 'requeuing' else 'failed' end;
begin
    if is_over_v1(r.status) or a.sequence_id < r.attempts then
        return;
    end if;
    update rollouts set status = follows, reward = a.reward,
        failure_class = case when follows = 'failed' then a.failure_class end,
        failure = case when follows = 'failed' then nullif(a.message, '') end,
        ended_at = case when is_over_v1(follows) then clock_timestamp() end,
        due_at = case when again then clock_timestamp() + backoff_v1(r.config, a.sequence_id) end
    where rollout_id = r.rollout_id;
end $$;

-- Set the status of an attempt that a queue dispatched. The rollout follows only its newest attempt. Once the attempt has
-- ended, marks of delivered answers are dropped.
create function settle_attempt_v1(r rollouts, a attempts, p_status text, p_message text) returns attempts
language plpgsql as $$
declare
    open boolean := p_status in ('preparing', 'running');
    rewarded double precision;
begin
    if p_status = 'succeeded' then
        rewarded := span_reward_v1(r, a.attempt_id);
    end if;
    if not open then
        perform settle_deliveries_v1(r.day, a.attempt_id);
    end if;
    update attempts set status = p_status, message = coalesce(p_message, ''), reward = rewarded,
        failure_class = case when open or p_status = 'succeeded' then null
                             when p_status = 'failed' then 'agent_error' else p_status end,
        ended_at = case when not open or a.sequence_id < r.attempts then coalesce(ended_at, clock_timestamp()) end,
        lease_until = case when open then lease_end_v1(r.config, a) end
    where attempt_id = a.attempt_id returning * into a;
    if rewarded is not null then
        perform store_span_rewards_v1(r, a.attempt_id, rewarded);
    end if;
    perform follow_attempt_v1(r, a);
    return a;
end $$;

create function find_attempt_v1(p_rollout text, p_attempt text) returns attempts language plpgsql as $$
declare
    a attempts;
begin
    select * into a from attempts
    where rollout_id = p_rollout and (p_attempt = 'latest' or attempt_id = p_attempt)
    order by sequence_id desc limit 1 for no key update;
    if not found then
        raise exception 'rollout % has no attempt %', p_rollout, p_attempt using errcode = 'RL404';
    end if;
    return a;
end $$;

-- Change one attempt: keys that are present are set. One that was superseded may end, which changes no rollout: it has
-- lost its fence, and its rollout's one open attempt is another.
create function update_attempt_v1(item jsonb) returns attempts language plpgsql
set plan_cache_mode = force_generic_plan set enable_seqscan = off as $$
declare
    r rollouts := lock_queued_v1(item ->> 'rollout_id');
    a attempts := find_attempt_v1(item ->> 'rollout_id', item ->> 'attempt_id');
begin
    if item ? 'status' and item ->> 'status' <> a.status then
        if a.sequence_id < r.attempts then
            if item ->> 'status' in ('preparing', 'running') then
                raise exception 'attempt % has been superseded: it may end, but not run again', a.attempt_id
                    using errcode = 'RL409';
            end if;
        elsif a.ended_at is not null and (a.status <> 'unresponsive' or is_over_v1(r.status)) then
            raise exception 'attempt % has ended as %', a.attempt_id, a.status using errcode = 'RL409';
        end if;
        a := settle_attempt_v1(r, a, item ->> 'status', null);
    end if;
    if item ?| array['worker_id', 'last_heartbeat_time', 'metadata'] then
        update attempts set
            worker_id = case when item ? 'worker_id' then item ->> 'worker_id' else worker_id end,
            last_heartbeat = case when item ? 'last_heartbeat_time'
                then to_timestamp((item ->> 'last_heartbeat_time')::double precision) else last_heartbeat end,
            metadata = case when item ? 'metadata' then item -> 'metadata' else metadata end
        where attempt_id = a.attempt_id returning * into a;
        if item ? 'last_heartbeat_time' and a.lease_until is not null then
            update attempts set lease_until = lease_end_v1(r.config, a) where attempt_id = a.attempt_id;
        end if;
    end if;
    return a;
end $$;

-- Change attempts, all or none.
create function update_attempts_v1(p_items jsonb) returns jsonb language plpgsql
set plan_cache_mode = force_generic_plan set enable_seqscan = off as $$
declare
    item jsonb;
    a attempts;
    events jsonb := '[]';
    answer jsonb := '[]';
begin
    if jsonb_array_length(p_items) > 1 then  -- in one order, so that two groups never wait for each other
        perform from rollouts
        where rollout_id in (select i ->> 'rollout_id' from jsonb_array_elements(p_items) i)
        order by rollout_id for no key update;
    end if;
    for item in select * from jsonb_array_elements(p_items) loop
        a := update_attempt_v1(item);
        events := events || worker_event_v1(a);
        answer := answer || jsonb_build_array(attempt_json_v1(a));
    end loop;
    perform sync_ended_workers_v1(events);
    return answer;
end $$;

-- The open attempt of a rollout ends with it.
create function end_open_attempt_v1(r rollouts, p_class text, p_message text) returns void language plpgsql as $$
declare
    a attempts;
begin
    update attempts set status = 'failed', failure_class = p_class, message = p_message, ended_at = clock_timestamp()
    where rollout_id = r.rollout_id and ended_at is null returning * into a;
    if a.worker_id is not null and r.dispatched_by = 'queue' then
        perform sync_ended_workers_v1(jsonb_build_array(worker_event_v1(a)));
    end if;
end $$;

-- Change a rollout: keys that are present are set. A status that queues it makes it due at once.
create function update_rollout_v1(p_rollout text, given jsonb) returns jsonb language plpgsql as $$
declare
    r rollouts := lock_queued_v1(p_rollout);
    wanted text := coalesce(given ->> 'status', r.status);
begin
    if is_over_v1(r.status) and wanted not in (r.status, 'requeuing') then
        raise exception 'rollout % is % already', p_rollout, r.status using errcode = 'RL409';
    elsif given ->> 'resources_id' is not null then
        perform resolve_resources_v1(given ->> 'resources_id');
    end if;
    update rollouts set
        input = case when given ? 'input' then given -> 'input' else input end,
        mode = case when given ? 'mode' then given ->> 'mode' else mode end,
        resources_id = case when given ? 'resources_id' then given ->> 'resources_id' else resources_id end,
        config = case when given ? 'config' then given -> 'config' else config end,
        metadata = case when given ? 'metadata' then given -> 'metadata' else metadata end,
        status = wanted,
        due_at = case when given ? 'status' then null else due_at end,
        reward = case when is_over_v1(wanted) then reward end,
        failure_class = case when wanted = 'cancelled' then 'cancelled'
                             when wanted = 'failed' then coalesce(failure_class, 'agent_error') end,
        failure = case when is_over_v1(wanted) then failure end,
        ended_at = case when is_over_v1(wanted) then coalesce(ended_at, clock_timestamp()) end
    where rollout_id = p_rollout returning * into r;
    if given ? 'config' then
        update attempts a set lease_until = lease_end_v1(r.config, a)
        where a.rollout_id = p_rollout and a.ended_at is null;
    end if;
    if wanted = 'cancelled' then
        perform end_open_attempt_v1(r, 'cancelled', 'its rollout was cancelled');
    end if;
    return get_rollout_v1(p_rollout);
end $$;

-- Attempts that a queue dispatched are alive; the caller has locked the rows of their rollouts. For other attempts the
-- fence decides. An unresponsive attempt runs again while it is the newest; `timeout` stays.
create function revive_attempts_v1(p_attempts text[]) returns void language plpgsql
set plan_cache_mode = force_generic_plan set enable_seqscan = off as $$
declare
    given record;
    a attempts;
    events jsonb := '[]';
begin
    perform from attempts where attempt_id = any (p_attempts) order by attempt_id for no key update;
    for given in
        select r, x as a from attempts x join rollouts r on r.rollout_id = x.rollout_id
        where x.attempt_id = any (p_attempts) and x.status = 'unresponsive' and x.sequence_id = r.attempts
          and not is_over_v1(r.status) and r.dispatched_by = 'queue'
    loop
        a := settle_attempt_v1(given.r, given.a, 'running', null);
        events := events || worker_event_v1(a);
    end loop;
    update rollouts r set status = 'running' from attempts x
    where x.attempt_id = any (p_attempts) and r.rollout_id = x.rollout_id and r.status = 'preparing'
      and x.sequence_id = r.attempts and x.status in ('preparing', 'running') and r.dispatched_by = 'queue';
    update attempts x set last_heartbeat = clock_timestamp(),
        status = case when x.status = 'preparing' then 'running' else x.status end
    from rollouts r
    where x.attempt_id = any (p_attempts) and r.rollout_id = x.rollout_id and r.dispatched_by = 'queue';
    if events <> '[]' then
        perform sync_ended_workers_v1(events);
    end if;
end $$;

-- Check deadlines: the process that holds the lease ends attempts that are overdue. Null: another one holds it.
create function sweep_v1(p_holder text, p_seconds double precision, p_limit int) returns jsonb language plpgsql
set plan_cache_mode = force_generic_plan set enable_seqscan = off as $$
declare
    found_id text;
    r rollouts;
    a attempts;
    due timestamptz;
    events jsonb := '[]';
    overdue jsonb := '[]';
begin
    insert into leases as l (name, fence, holder, expires_at)
    values ('sweeper', nextval('fences'), p_holder, clock_timestamp() + make_interval(secs => p_seconds))
    on conflict (name, policy) do update set holder = excluded.holder, expires_at = excluded.expires_at,
        fence = case when l.holder = excluded.holder then l.fence else excluded.fence end
    where l.holder = excluded.holder or l.expires_at < clock_timestamp();
    if not found then
        return null;
    end if;
    for found_id in
        select rollout_id from attempts
        where lease_until is not null and ended_at is null and lease_until <= clock_timestamp()
        order by lease_until limit p_limit
    loop
        select * into r from rollouts where rollout_id = found_id for no key update skip locked;
        continue when not found;
        select * into a from attempts where rollout_id = found_id and ended_at is null for no key update;
        continue when not found or a.lease_until is null;
        due := case when r.status in ('preparing', 'running') then lease_end_v1(r.config, a) end;
        if due <= clock_timestamp() then
            a := settle_attempt_v1(r, a, case when a.started_at + make_interval(
                    secs => (r.config ->> 'timeout_seconds')::double precision) <= clock_timestamp()
                then 'timeout' else 'unresponsive' end, 'found by the sweeper');
            events := events || worker_event_v1(a);
            overdue := overdue || jsonb_build_object('attempt_id', a.attempt_id, 'rollout_id', found_id, 'status', a.status);
        else
            update attempts set lease_until = due where attempt_id = a.attempt_id;
        end if;
    end loop;
    perform sync_ended_workers_v1(events);
    if overdue = '[]' then
        perform set_config('synchronous_commit', 'off', true);
    end if;
    return overdue;
end $$;

-- End a rollout whose row is locked. Its workflow, where it has one, gets a signal.
create function end_rollout_v1(r rollouts, p_reason text) returns void language plpgsql as $$
begin
    update rollouts set status = 'cancelled', failure_class = 'cancelled', failure = p_reason, due_at = null,
        ended_at = clock_timestamp()
    where rollout_id = r.rollout_id;
    perform end_open_attempt_v1(r, 'cancelled', p_reason);
    update outbox set started_at = clock_timestamp()
    where workflow_id = 'rollout/' || r.rollout_id and started_at is null;
    if r.dispatched_by = 'workflow' then
        insert into outbox (workflow_type, workflow_id, task_queue, input)
        values ('cancel', 'rollout/' || r.rollout_id, '', to_jsonb(p_reason));
    end if;
end $$;

create function cancel_rollout_v1(p_rollout text, p_reason text) returns jsonb language plpgsql as $$
declare
    r rollouts := lock_rollout_v1(p_rollout);
begin
    if r.status = 'cancelled' then
        return get_rollout_v1(p_rollout);
    elsif is_over_v1(r.status) then
        raise exception 'rollout % is % already', p_rollout, r.status using errcode = 'RL409';
    end if;
    perform end_rollout_v1(r, p_reason);
    insert into audit (run, rollout_id, actor, action, before, after)
    values (r.run, p_rollout, 'store', 'cancel_rollout', to_jsonb(r.status), jsonb_build_object('reason', p_reason));
    return get_rollout_v1(p_rollout);
end $$;

-- End the rollouts from outside that are open when their run ends. The run's row is locked.
create function end_outside_rollouts_v1(p_run text, p_reason text) returns void language plpgsql as $$
declare
    r rollouts;
begin
    for r in
        select * from rollouts where run = p_run and kind = 'external' and not is_over_v1(status)
        order by rollout_id for no key update
    loop
        perform end_rollout_v1(r, p_reason);
    end loop;
end $$;

-- Delete an ended rollout from outside. Bodies may be shared with others; retention deletes them with their day.
create function delete_rollout_v1(p_rollout text) returns void language plpgsql as $$
declare
    r rollouts := lock_rollout_v1(p_rollout);
begin
    if r.kind <> 'external' then
        raise exception 'rollout % belongs to a run', p_rollout using errcode = 'RL409';
    elsif not is_over_v1(r.status) then
        raise exception 'rollout % is %; cancel it first', p_rollout, r.status using errcode = 'RL409';
    end if;
    delete from spans where day = r.day and rollout_id = p_rollout;
    delete from call_failures where day = r.day
        and attempt_id in (select attempt_id from attempts where rollout_id = p_rollout);
    delete from generations where day = r.day
        and attempt_id in (select attempt_id from attempts where rollout_id = p_rollout);
    delete from rewards where rollout_id = p_rollout;
    delete from outbox where workflow_id = 'rollout/' || p_rollout;
    update workers set rollout_id = null, attempt_id = null where rollout_id = p_rollout;
    delete from attempts where rollout_id = p_rollout;
    delete from rollouts where rollout_id = p_rollout;
    insert into audit (run, rollout_id, actor, action, before)
    values (r.run, p_rollout, 'store', 'delete_rollout', to_jsonb(r.status));
end $$;
