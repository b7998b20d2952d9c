-- Rollouts from outside: the queue that external runners claim from, and the outbox from which workflows are started.
-- For rollouts that a queue dispatches, the rules of Agent Lightning 0.3 hold; for those of workflows the fence decides
-- (rule 2).

-- What a request with this key made: rollouts where it enqueued, attempts where it claimed or started.
create table idempotency_keys (
    scope        text not null,
    key          text not null,
    request_hash text not null,                       -- the key of another request is refused
    ids          text[] not null default '{}',
    created_at   timestamptz not null default now(),
    primary key (scope, key)
);
create index idempotency_keys_by_age on idempotency_keys (created_at);

-- Workflows to start (or to cancel), written in the transaction that needs them.
create table outbox (
    id            bigint generated always as identity primary key,
    workflow_type text not null,
    workflow_id   text not null,
    task_queue    text not null,
    input         jsonb not null,
    created_at    timestamptz not null default now(),
    started_at    timestamptz,
    checked_at    timestamptz
);
create index outbox_open on outbox (id) where started_at is null;
create index outbox_by_workflow on outbox (workflow_id);

create function outbox_filled() returns trigger language plpgsql as $$
begin
    perform pg_notify('relight_outbox', '');
    return null;
end $$;
create trigger outbox_filled after insert on outbox for each statement execute function outbox_filled();

-- Whether this key is new; if not, the transaction that wrote it has committed. It was that of the same request.
create function claim_key_v1(p_scope text, p_key text, p_hash text) returns boolean language plpgsql as $$
begin
    insert into idempotency_keys (scope, key, request_hash) values (p_scope, p_key, p_hash) on conflict do nothing;
    if found then
        return true;
    end if;
    if exists (select from idempotency_keys where scope = p_scope and key = p_key and request_hash <> p_hash) then
        raise exception 'Idempotency-Key: % was sent with another request; send another key', p_key
            using errcode = 'RL422';
    end if;
    return false;
end $$;

-- Keep which attempts a request with this key made.
create function record_attempts_v1(p_scope text, p_key text, p_rollouts jsonb) returns void language sql as $$
    update idempotency_keys
    set ids = (select coalesce(array_agg(m -> 'attempt' ->> 'attempt_id'), '{}') from jsonb_array_elements(p_rollouts) m)
    where scope = p_scope and key = p_key
$$;

-- The attempts that a request with this key made, with their rollouts.
create function attempts_json_v1(p_scope text, p_key text) returns jsonb language sql stable as $$
    select coalesce(jsonb_agg(attempted_json_v1(r, a) order by n), '[]')
    from idempotency_keys, unnest(ids) with ordinality as x(id, n)
    join attempts a on a.attempt_id = id join rollouts r on r.rollout_id = a.rollout_id
    where scope = p_scope and key = p_key
$$;

-- Enqueue: [{key, request_hash, rollouts: [{rollout_id, run, input, mode, resources_id, config, metadata, workflow}]}],
-- where `workflow` is the input of the RolloutWorkflow that drives it, with `task_queue` for the workflow itself. Returns
-- a list for each item.
create function enqueue_rollouts_v1(p_items jsonb) returns jsonb language plpgsql
set plan_cache_mode = force_generic_plan set enable_seqscan = off as $$
declare
    item jsonb;
    given jsonb;
    u runs;
    r rollouts;
    made jsonb[];
    answer jsonb[] := '{}';
begin
    for item in select * from jsonb_array_elements(p_items) loop
        made := '{}';
        if item ->> 'key' is not null and not claim_key_v1('enqueue', item ->> 'key', item ->> 'request_hash') then
            select coalesce(array_agg(get_rollout_v1(id) order by n), '{}') into made
            from idempotency_keys, unnest(ids) with ordinality as x(id, n)
            where scope = 'enqueue' and key = item ->> 'key';
        else
            for given in select * from jsonb_array_elements(item -> 'rollouts') loop
                u := lock_unfinished_run_v1(given ->> 'run');
                insert into rollouts (rollout_id, kind, run, input, mode, resources_id, resources_version, config,
                                      metadata, dispatched_by, queue_order, created_at)
                values (given ->> 'rollout_id', 'external', u.run, given -> 'input', given ->> 'mode',
                        case when u.run is null then resolve_resources_v1(given ->> 'resources_id')
                             else coalesce(given ->> 'resources_id', u.resources_id) end,
                        case when given ->> 'resources_id' is null then u.resources_version end,
                        given -> 'config', given -> 'metadata',
                        case when given ? 'workflow' then 'workflow' else 'queue' end,
                        case when not given ? 'workflow' then nextval('queue_orders') end, clock_timestamp())
                returning * into r;
                if given ? 'workflow' then
                    insert into outbox (workflow_type, workflow_id, task_queue, input)
                    values (given ->> 'workflow_type', given ->> 'workflow_id', given ->> 'task_queue',
                            given -> 'workflow' || case when u.file ->> 'grader' is null then '{}'
                                else jsonb_build_object('grader_queue',
                                    concat(u.file ->> 'runner_queue', '.', u.file ->> 'grader')) end);
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

-- When an attempt is overdue if it sends nothing more; null: never.
create function lease_end_v1(p_config jsonb, a attempts) returns timestamptz language sql stable as $$
    select least(
        a.started_at + make_interval(secs => (p_config ->> 'timeout_seconds')::double precision),
        coalesce(a.last_heartbeat, a.started_at)
            + make_interval(secs => (p_config ->> 'unresponsive_seconds')::double precision))
$$;

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

-- Claim the oldest rollouts: [{key, request_hash, worker_id, attempts: [{attempt_id, token_hash}]}], as many as attempts
-- are offered. Returns a list for each item. Rollouts whose run waits are passed over. A call that finds nothing is not
-- flushed to disk before it is answered.
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
        if item ->> 'key' is not null and not claim_key_v1('dequeue', item ->> 'key', item ->> 'request_hash') then
            answer := array_append(answer, attempts_json_v1('dequeue', item ->> 'key'));
            continue;
        end if;
        for r in
            select * from rollouts
            where queue_order is not null and (due_at is null or due_at <= clock_timestamp())
              and (run is null or outside_waits_v1(run) is null)
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
            perform record_attempts_v1('dequeue', item ->> 'key', to_jsonb(claimed));
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

-- A rollout with attempt 1 at once; the same key again returns the same one. `given` is that of `enqueue_rollouts_v1`,
-- with `request_hash`.
create function start_rollout_v1(p_key text, given jsonb, p_attempt text, p_token_hash text, p_worker text) returns jsonb
language plpgsql as $$
declare
    r rollouts;
    a attempts;
    answer jsonb;
begin
    if p_key is not null and not claim_key_v1('start', p_key, given ->> 'request_hash') then
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
        perform record_attempts_v1('start', p_key, jsonb_build_array(answer));
    end if;
    perform sync_workers_v1(jsonb_build_array(worker_event_v1(a)));
    return answer;
end $$;
