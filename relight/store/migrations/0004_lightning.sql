-- Rollouts from outside: a queue that runners dequeue from, workers, idempotency keys, leases on attempts, dispatch.
-- Where a queue dispatches, 0.3's rules hold; where a workflow does, the fence does. Lock order: rollouts, attempts, workers.

alter table rollouts
    add column dispatched_by text not null default 'workflow' check (dispatched_by in ('workflow', 'queue')),
    add column queue_order   bigint,                  -- its place in the queue; null: it stands in none
    add column due_at        timestamptz;             -- a retry that backs off is not handed out before
create sequence queue_orders;
create index rollouts_queue on rollouts (queue_order) where queue_order is not null;
create index rollouts_by_time on rollouts (created_at, rollout_id);

-- When the sweeper looks at an attempt next. Signs of life leave it alone: what is due is computed when it has passed.
alter table attempts add column lease_until timestamptz;
create index attempts_leased on attempts (lease_until) where lease_until is not null and ended_at is null;

alter table workers
    alter column heartbeat_stats drop not null,
    add column heartbeat_at timestamptz,              -- last statistics that it sent
    add column dequeued_at  timestamptz,
    add column busy_at      timestamptz,
    add column idle_at      timestamptz,
    add column rollout_id   text,
    add column attempt_id   text;

-- What a request with this key made: rollouts where it enqueued, attempts where it claimed or started.
create table idempotency_keys (
    scope      text not null,
    key        text not null,
    ids        text[] not null default '{}',
    created_at timestamptz not null default now(),
    primary key (scope, key)
);
create index idempotency_keys_by_age on idempotency_keys (created_at);

alter table outbox add column checked_at timestamptz;
create index outbox_by_workflow on outbox (workflow_id);

create function is_over_v1(p_status text) returns boolean language sql immutable as $$
    select p_status in ('succeeded', 'failed', 'cancelled')
$$;

-- A rollout that has ended may only be queued again; where a queue dispatches it, a new attempt by hand may begin too.
-- It stands in the queue exactly while its status says so.
create or replace function rollout_transition() returns trigger language plpgsql as $$
begin
    if is_over_v1(old.status) and new.status <> old.status and not (
        old.counted is null and (new.status = 'requeuing'
            or (old.dispatched_by = 'queue' and new.status = 'preparing'))) then
        raise exception 'rollout % is % and can not become %', old.rollout_id, old.status, new.status
            using errcode = 'RL409';
    end if;
    if new.status not in ('queuing', 'requeuing') then
        new.queue_order := null;
    elsif new.dispatched_by = 'queue' and old.queue_order is null then
        new.queue_order := nextval('queue_orders');
    end if;
    return new;
end $$;

-- An attempt that has ended stays as it is, but for those that external runners drive.
create or replace function attempt_transition() returns trigger language plpgsql as $$
begin
    if old.ended_at is not null and (new.status, new.failure_class, new.reward, new.ended_at)
        is distinct from (old.status, old.failure_class, old.reward, old.ended_at)
        and not exists (select from rollouts where rollout_id = old.rollout_id and dispatched_by = 'queue') then
        raise exception 'attempt % has ended as %', old.attempt_id, old.status using errcode = 'RL409';
    end if;
    return new;
end $$;

-- Wakes those who wait for rollouts from outside. Those of runs end too often to serialize their commits by this.
create function rollout_ended() returns trigger language plpgsql as $$
begin
    perform pg_notify('relight_ended', new.rollout_id);
    return null;
end $$;
create trigger rollout_ended after update of status on rollouts for each row
    when (new.kind = 'external' and is_over_v1(new.status) and not is_over_v1(old.status))
    execute function rollout_ended();

create function outbox_filled() returns trigger language plpgsql as $$
begin
    perform pg_notify('relight_outbox', '');
    return null;
end $$;
create trigger outbox_filled after insert on outbox for each statement execute function outbox_filled();

create function unix_v1(p_time timestamptz) returns double precision language sql immutable as $$
    select extract(epoch from p_time)::double precision
$$;

create function attempt_json_v1(a attempts) returns jsonb language sql stable as $$
    select jsonb_build_object(
        'rollout_id', a.rollout_id, 'attempt_id', a.attempt_id, 'sequence_id', a.sequence_id, 'status', a.status,
        'start_time', unix_v1(a.started_at), 'last_heartbeat_time', unix_v1(a.last_heartbeat),
        'end_time', case when a.status not in ('preparing', 'running') then unix_v1(a.ended_at) end,
        'worker_id', a.worker_id, 'metadata', a.metadata, 'failure_class', a.failure_class, 'error', a.error,
        'reward', a.reward)
$$;

create function rollout_json_v1(r rollouts) returns jsonb language sql stable as $$
    select jsonb_build_object(
        'rollout_id', r.rollout_id, 'start_time', unix_v1(r.created_at), 'end_time', unix_v1(r.ended_at),
        'input', coalesce(r.input, (select task from tasks t where t.dataset_id = r.dataset_id and t.position = r.position)),
        'mode', r.mode, 'resources_id', r.resources_id, 'status', r.status, 'config', r.config, 'metadata', r.metadata,
        'run', r.run, 'step', r.step, 'failure_class', r.failure_class, 'reward', r.reward)
$$;

create function attempted_json_v1(r rollouts, a attempts) returns jsonb language sql stable as $$
    select rollout_json_v1(r) || case when a.attempt_id is not null
        then jsonb_build_object('attempt', attempt_json_v1(a)) else '{}' end
$$;

-- By id, with the newest attempt.
create function get_rollout_v1(p_rollout text) returns jsonb language sql stable as $$
    select attempted_json_v1(r, a) from rollouts r
    left join attempts a on a.rollout_id = r.rollout_id and a.sequence_id = r.attempts
    where r.rollout_id = p_rollout
$$;

-- What became of workers: [{worker_id, status, rollout_id, attempt_id, dequeued}]; a worker's last event counts.
-- The end of an attempt frees its worker only while that is at this attempt.
create function sync_workers_v1(p_events jsonb) returns void language sql as $$
    insert into workers as w (worker_id, kind, host, status, heartbeat_stats, dequeued_at, busy_at, idle_at,
                              rollout_id, attempt_id)
    select worker_id, 'external', '', status, null, case when dequeued then clock_timestamp() end,
           case when status = 'busy' then clock_timestamp() end, case when status <> 'busy' then clock_timestamp() end,
           case when status = 'busy' then rollout_id end, case when status = 'busy' then attempt_id end
    from (
        select distinct on (worker_id) *
        from rows from (jsonb_to_recordset(p_events) as
            (worker_id text, status text, rollout_id text, attempt_id text, dequeued boolean)) with ordinality as e
                (worker_id, status, rollout_id, attempt_id, dequeued, n)
        where worker_id is not null order by worker_id, n desc
    ) event
    on conflict (worker_id) do update set
        status = excluded.status, last_heartbeat = clock_timestamp(),
        dequeued_at = coalesce(excluded.dequeued_at, w.dequeued_at),
        busy_at = case when excluded.status = 'busy'
            and (w.status, w.attempt_id) is distinct from ('busy', excluded.attempt_id)
            then excluded.busy_at else w.busy_at end,
        idle_at = case when excluded.status <> 'busy' and w.status <> excluded.status
            then excluded.idle_at else w.idle_at end,
        rollout_id = excluded.rollout_id, attempt_id = excluded.attempt_id
$$;

create function worker_event_v1(a attempts, p_dequeued boolean default false) returns jsonb language sql stable as $$
    select jsonb_build_object(
        'worker_id', a.worker_id, 'rollout_id', a.rollout_id, 'attempt_id', a.attempt_id, 'dequeued', p_dequeued,
        'status', case when a.status in ('succeeded', 'failed') then 'idle'
                       when a.status in ('timeout', 'unresponsive') then 'unknown' else 'busy' end)
$$;

-- The events that free a worker which is at another attempt by now are dropped.
create function sync_ended_workers_v1(p_events jsonb) returns void language sql as $$
    select sync_workers_v1(coalesce(jsonb_agg(e), '[]')) from jsonb_array_elements(p_events) e
    where e ->> 'status' = 'busy' or not exists (
        select from workers w where w.worker_id = e ->> 'worker_id' and w.attempt_id <> e ->> 'attempt_id')
$$;

-- The resources of a new rollout: those that are named, else the newest.
create function resolve_resources_v1(p_given text) returns text language plpgsql stable as $$
begin
    if p_given is null then
        return (select resources_id from resources order by update_time desc, sequence desc limit 1);
    elsif not exists (select from resources where resources_id = p_given) then
        raise exception 'resources_id: there are no resources %', p_given using errcode = 'RL404';
    end if;
    return p_given;
end $$;

-- When an attempt is overdue if nothing more is heard of it; null: never.
create function lease_end_v1(p_config jsonb, a attempts) returns timestamptz language sql stable as $$
    select least(
        a.started_at + make_interval(secs => (p_config ->> 'timeout_seconds')::double precision),
        coalesce(a.last_heartbeat, a.started_at)
            + make_interval(secs => (p_config ->> 'unresponsive_seconds')::double precision))
$$;

-- Whether this key is new. Not: somebody else wrote it, and has committed by now.
create function take_key_v1(p_scope text, p_key text) returns boolean language plpgsql as $$
begin
    insert into idempotency_keys (scope, key) values (p_scope, p_key) on conflict do nothing;
    return found;
end $$;

-- Enqueue: [{key, rollouts: [{rollout_id, input, mode, resources_id, config, metadata, workflow}]}], where `workflow` is
-- the input of the RolloutWorkflow that drives it, with `task_queue` for the workflow itself. Answers a list each.
create function enqueue_rollouts_v1(p_items jsonb) returns jsonb language plpgsql
set plan_cache_mode = force_generic_plan set enable_seqscan = off as $$
declare
    item jsonb;
    given jsonb;
    r rollouts;
    made jsonb[];
    answer jsonb[] := '{}';
begin
    for item in select * from jsonb_array_elements(p_items) loop
        made := '{}';
        if item ->> 'key' is not null and not take_key_v1('enqueue', item ->> 'key') then
            select coalesce(array_agg(get_rollout_v1(id) order by n), '{}') into made
            from idempotency_keys, unnest(ids) with ordinality as x(id, n)
            where scope = 'enqueue' and key = item ->> 'key';
        else
            for given in select * from jsonb_array_elements(item -> 'rollouts') loop
                insert into rollouts (rollout_id, kind, input, mode, resources_id, config, metadata, dispatched_by,
                                      queue_order, created_at)
                values (given ->> 'rollout_id', 'external', given -> 'input', given ->> 'mode',
                        resolve_resources_v1(given ->> 'resources_id'), given -> 'config', given -> 'metadata',
                        case when given ? 'workflow' then 'workflow' else 'queue' end,
                        case when not given ? 'workflow' then nextval('queue_orders') end, clock_timestamp())
                returning * into r;
                if given ? 'workflow' then
                    insert into outbox (workflow_type, workflow_id, task_queue, input)
                    values (given ->> 'workflow_type', given ->> 'workflow_id', given ->> 'task_queue', given -> 'workflow');
                end if;
                made := array_append(made, rollout_json_v1(r));
            end loop;
            if item ->> 'key' is not null then
                update idempotency_keys set ids = (select array_agg(m ->> 'rollout_id') from unnest(made) m)
                where scope = 'enqueue' and key = item ->> 'key';
            end if;
        end if;
        answer := array_append(answer, to_jsonb(made));
    end loop;
    return to_jsonb(answer);
end $$;

-- The next attempt of a rollout whose row is locked. An older one that is still open loses its fence.
create function begin_attempt_v1(r rollouts, p_attempt text, p_token_hash text, p_worker text) returns attempts
language plpgsql as $$
declare
    a attempts;
begin
    if r.attempts > 0 then
        update attempts set status = 'failed', failure_class = 'infrastructure', ended_at = clock_timestamp(),
            message = 'a newer attempt has begun'
        where rollout_id = r.rollout_id and ended_at is null;
    end if;
    insert into attempts (attempt_id, rollout_id, sequence_id, try_number, open_key, token_hash, worker_id, started_at)
    values (p_attempt, r.rollout_id, r.attempts + 1, r.attempts + 1, 'queue/' || p_attempt, p_token_hash, p_worker,
            clock_timestamp())
    returning * into a;
    if coalesce(r.config ->> 'timeout_seconds', r.config ->> 'unresponsive_seconds') is not null then
        update attempts set lease_until = lease_end_v1(r.config, a) where attempt_id = a.attempt_id returning * into a;
    end if;
    return a;
end $$;

create function attempts_json_v1(p_scope text, p_key text) returns jsonb language sql stable as $$
    select coalesce(jsonb_agg(attempted_json_v1(r, a) order by n), '[]')
    from idempotency_keys, unnest(ids) with ordinality as x(id, n)
    join attempts a on a.attempt_id = id join rollouts r on r.rollout_id = a.rollout_id
    where scope = p_scope and key = p_key
$$;

create function remember_v1(p_scope text, p_key text, p_rollouts jsonb) returns void language sql as $$
    update idempotency_keys
    set ids = (select coalesce(array_agg(m -> 'attempt' ->> 'attempt_id'), '{}') from jsonb_array_elements(p_rollouts) m)
    where scope = p_scope and key = p_key
$$;

-- Claim the oldest rollouts: [{key, worker_id, attempts: [{attempt_id, token_hash}]}], as many as attempts are offered.
-- Answers a list each. A call that finds nothing is not flushed to disk before it is answered.
create function dequeue_rollouts_v1(p_items jsonb) returns jsonb language plpgsql
set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_sort = off set enable_bitmapscan = off as $$
declare
    item jsonb;
    offered jsonb;
    r rollouts;
    a attempts;
    claimed jsonb[];
    number int;
    total int := 0;
    events jsonb := '[]';
    answer jsonb[] := '{}';
begin
    for item in select * from jsonb_array_elements(p_items) loop
        claimed := '{}';
        number := 0;
        if item ->> 'key' is not null and not take_key_v1('dequeue', item ->> 'key') then
            answer := array_append(answer, attempts_json_v1('dequeue', item ->> 'key'));
            continue;
        end if;
        for r in
            select * from rollouts
            where queue_order is not null and (due_at is null or due_at <= clock_timestamp())
            order by queue_order limit jsonb_array_length(item -> 'attempts') for no key update skip locked
        loop
            offered := item -> 'attempts' -> number;
            a := begin_attempt_v1(r, offered ->> 'attempt_id', offered ->> 'token_hash', item ->> 'worker_id');
            update rollouts set status = 'preparing', attempts = attempts + 1, due_at = null
            where rollout_id = r.rollout_id returning * into r;
            claimed := array_append(claimed, attempted_json_v1(r, a));
            number := number + 1;
        end loop;
        if item ->> 'key' is not null and number = 0 then
            delete from idempotency_keys where scope = 'dequeue' and key = item ->> 'key';
        elsif item ->> 'key' is not null then
            perform remember_v1('dequeue', item ->> 'key', to_jsonb(claimed));
        end if;
        if item ->> 'worker_id' is not null then
            events := events || case when number > 0 then worker_event_v1(a, true) else jsonb_build_object(
                'worker_id', item ->> 'worker_id', 'status', 'idle', 'dequeued', true) end;
        end if;
        total := total + number;
        answer := array_append(answer, to_jsonb(claimed));
    end loop;
    perform sync_workers_v1(events);
    if total = 0 then
        perform set_config('synchronous_commit', 'off', true);
    end if;
    return to_jsonb(answer);
end $$;

-- A rollout with attempt 1 at once; the same key again answers with the same one.
create function start_rollout_v1(p_key text, given jsonb, p_attempt text, p_token_hash text, p_worker text) returns jsonb
language plpgsql as $$
declare
    r rollouts;
    a attempts;
    answer jsonb;
begin
    if p_key is not null and not take_key_v1('start', p_key) then
        return attempts_json_v1('start', p_key) -> 0;
    end if;
    insert into rollouts (rollout_id, kind, input, mode, resources_id, config, metadata, dispatched_by, status, created_at)
    values (given ->> 'rollout_id', 'external', given -> 'input', given ->> 'mode',
            resolve_resources_v1(given ->> 'resources_id'), given -> 'config', given -> 'metadata', 'queue', 'preparing',
            clock_timestamp())
    returning * into r;
    a := begin_attempt_v1(r, p_attempt, p_token_hash, p_worker);
    update rollouts set attempts = 1 where rollout_id = r.rollout_id returning * into r;
    answer := attempted_json_v1(r, a);
    if p_key is not null then
        perform remember_v1('start', p_key, jsonb_build_array(answer));
    end if;
    perform sync_workers_v1(jsonb_build_array(worker_event_v1(a)));
    return answer;
end $$;

-- The row of a rollout that may be changed without a fence, locked.
create function lock_queued_v1(p_rollout text) returns rollouts language plpgsql as $$
declare
    r rollouts;
begin
    select * into r from rollouts where rollout_id = p_rollout for no key update;
    if not found then
        raise exception 'there is no rollout %', p_rollout using errcode = 'RL404';
    elsif r.dispatched_by = 'workflow' then
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

-- The last reward that an attempt's spans hold.
create function span_reward_v1(r rollouts, p_attempt text) returns double precision language sql stable as $$
    select (attributes ->> 'agentlightning.reward.0.value')::double precision from spans
    where day = r.day and rollout_id = r.rollout_id and attempt_id = p_attempt
      and name in ('agentlightning.annotation', 'agentlightning.reward', 'agentlightning.operation')
      and jsonb_typeof(attributes -> 'agentlightning.reward.0.value') = 'number'
    order by sequence_id desc limit 1
$$;

-- Wait before the next try: doubles with every try, up to 60 s.
create function backoff_v1(p_config jsonb, p_try int) returns interval language sql immutable as $$
    select make_interval(secs => least(
        coalesce((p_config ->> 'backoff_seconds')::double precision, 1) * 2 ^ least(p_try - 1, 20), 60))
$$;

-- The newest attempt changed its status: so does the rollout, unless that has ended.
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

-- An attempt that a queue dispatched gets a status. A newer attempt's place stays its own.
create function settle_attempt_v1(r rollouts, a attempts, p_status text, p_message text) returns attempts
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
        insert into rewards (rollout_id, attempt_id, value) values (r.rollout_id, a.attempt_id, rewarded)
        on conflict (attempt_id, grader) do update set value = excluded.value;
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

-- Change one attempt; keys that are there are set.
create function update_attempt_v1(item jsonb) returns attempts language plpgsql
set plan_cache_mode = force_generic_plan set enable_seqscan = off as $$
declare
    r rollouts := lock_queued_v1(item ->> 'rollout_id');
    a attempts := find_attempt_v1(item ->> 'rollout_id', item ->> 'attempt_id');
begin
    if item ? 'status' and item ->> 'status' <> a.status then
        if a.sequence_id < r.attempts then
            raise exception 'attempt % has been superseded', a.attempt_id using errcode = 'RL409';
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

-- What is under way ends with its rollout.
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

-- Change a rollout; keys that are there are set. A status that queues it makes it due at once.
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

-- A sign of life from attempts that a queue dispatched, the rows of their rollouts locked by the caller; elsewhere the
-- fence says who is alive. An unresponsive attempt recovers while it is the newest, `timeout` stays.
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

-- Calls of these attempts are about to be recorded, which is a sign of life: lock them, and mark those that are alive as
-- running. A call may last longer than the silence after which the sweeper calls its attempt unresponsive.
create or replace function enter_attempts_v1(p_attempts text[], p_tokens text[]) returns void language plpgsql as $$
begin
    perform from rollouts r where r.status in ('preparing', 'requeuing') and r.rollout_id in (
        select a.rollout_id from attempts a where a.attempt_id = any (p_attempts))
    order by r.rollout_id for no key update;
    perform from attempts a where a.attempt_id = any (p_attempts) order by a.attempt_id for no key update;
    perform revive_attempts_v1(array_agg(a.attempt_id))
    from attempts a join unnest(p_attempts, p_tokens) as given(id, token) on a.attempt_id = given.id
    where a.token_hash = given.token and a.status = 'unresponsive'
    having count(*) > 0;
    update rollouts r set status = 'running'
    from attempts a join unnest(p_attempts, p_tokens) as given(id, token) on a.attempt_id = given.id
    where a.token_hash = given.token and r.rollout_id = a.rollout_id and r.status = 'preparing' and a.ended_at is null;
    update attempts a set status = 'running', last_heartbeat = clock_timestamp()
    from unnest(p_attempts, p_tokens) as given(id, token)
    where a.attempt_id = given.id and a.token_hash = given.token and a.ended_at is null
      and (a.status = 'preparing' or a.last_heartbeat is null or a.last_heartbeat < clock_timestamp() - interval '1 s');
end $$;

-- The next numbers of spans, one for each attempt named, in order; a rollout's attempts share them.
create function take_sequence_ids_v1(p_rollouts text[], p_attempts text[]) returns bigint[] language plpgsql as $$
declare
    missing record;
    numbers bigint[];
begin
    perform from rollouts where rollout_id = any (p_rollouts) order by rollout_id for no key update;
    select * into missing from unnest(p_rollouts, p_attempts) as x(rollout_id, attempt_id)
    where not exists (select from attempts a where a.attempt_id = x.attempt_id and a.rollout_id = x.rollout_id) limit 1;
    if found then
        raise exception 'rollout % has no attempt %', missing.rollout_id, missing.attempt_id using errcode = 'RL404';
    end if;
    select array_agg(r.next_sequence - 1 + x.place order by x.n) into numbers
    from (select id, n, row_number() over (partition by id order by n) as place
          from unnest(p_rollouts) with ordinality as u(id, n)) x
    join rollouts r on r.rollout_id = x.id;
    update rollouts r set next_sequence = next_sequence + x.number
    from (select id, count(*) as number from unnest(p_rollouts) id group by id) x where r.rollout_id = x.id;
    return numbers;
end $$;

-- One look of the sweeper: whoever holds the lease judges what is overdue. Null: somebody else holds it.
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
    on conflict (name) do update set holder = excluded.holder, expires_at = excluded.expires_at,
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

-- End a rollout. Its workflow, where it has one, finds it gone.
create function cancel_rollout_v1(p_rollout text, p_reason text) returns jsonb language plpgsql as $$
declare
    r rollouts;
begin
    select * into r from rollouts where rollout_id = p_rollout for no key update;
    if not found then
        raise exception 'there is no rollout %', p_rollout using errcode = 'RL404';
    elsif r.status = 'cancelled' then
        return get_rollout_v1(p_rollout);
    elsif is_over_v1(r.status) then
        raise exception 'rollout % is % already', p_rollout, r.status using errcode = 'RL409';
    end if;
    update rollouts set status = 'cancelled', failure_class = 'cancelled', failure = p_reason, due_at = null,
        ended_at = clock_timestamp()
    where rollout_id = p_rollout;
    perform end_open_attempt_v1(r, 'cancelled', p_reason);
    update outbox set started_at = clock_timestamp()
    where workflow_id = 'rollout/' || p_rollout and started_at is null;
    if r.dispatched_by = 'workflow' then
        insert into outbox (workflow_type, workflow_id, task_queue, input)
        values ('cancel', 'rollout/' || p_rollout, '', to_jsonb(p_reason));
    end if;
    insert into audit (run, rollout_id, actor, action, before, after)
    values (r.run, p_rollout, 'store', 'cancel_rollout', to_jsonb(r.status), jsonb_build_object('reason', p_reason));
    return get_rollout_v1(p_rollout);
end $$;

-- Remove an ended rollout of no run. Bodies may be shared with others; retention removes them with their day.
create function delete_rollout_v1(p_rollout text) returns void language plpgsql as $$
declare
    r rollouts;
begin
    select * into r from rollouts where rollout_id = p_rollout for update;
    if not found then
        raise exception 'there is no rollout %', p_rollout using errcode = 'RL404';
    elsif r.run is not null or exists (select from step_rollouts where rollout_id = p_rollout) then
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
    insert into audit (rollout_id, actor, action, before)
    values (p_rollout, 'store', 'delete_rollout', to_jsonb(r.status));
end $$;
