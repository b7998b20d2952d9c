-- What changed, for those who follow it: append-only, filled by triggers, kept for a while.
--
-- Readers go from snapshot to snapshot: a window holds what the newer one sees and the older one did not, in the order
-- of ids. So nothing is missed or seen twice, however transactions overtake each other; and since a transaction that
-- changes a row after another has taken its numbers later, what became of one thing comes in its order.

create table events (
    id         bigint generated always as identity primary key,
    xid        xid8 not null default pg_current_xact_id(),
    kind       text not null,                         -- rollout, attempt, run, step, version, audit, command
    run        text,
    rollout_id text,
    attempt_id text,
    step       int,
    data       jsonb not null,
    created_at timestamptz not null default clock_timestamp()
);
create index events_by_xid on events (xid);

-- The newest event that is no longer kept: whoever has not seen it has missed something. No row: all are kept.
create table events_dropped (
    only_one   boolean primary key default true check (only_one),
    id         bigint not null,
    xid        xid8 not null,
    created_at timestamptz not null
);

create function rollout_event() returns trigger language plpgsql as $$
begin
    insert into events (kind, run, rollout_id, step, data)
    values ('rollout', new.run, new.rollout_id, new.step, jsonb_build_object(
        'status', new.status, 'before', case when tg_op = 'UPDATE' then old.status end, 'kind', new.kind,
        'mode', new.mode, 'attempts', new.attempts, 'failure_class', new.failure_class, 'reward', new.reward));
    return null;
end $$;
create trigger rollout_created after insert on rollouts for each row execute function rollout_event();
create trigger rollout_changed after update of status on rollouts for each row
    when (new.status <> old.status) execute function rollout_event();

create function attempt_event() returns trigger language plpgsql set enable_seqscan = off as $$
begin
    insert into events (kind, run, rollout_id, attempt_id, step, data)
    select 'attempt', r.run, new.rollout_id, new.attempt_id, r.step, jsonb_build_object(
        'status', new.status, 'before', case when tg_op = 'UPDATE' then old.status end,
        'sequence_id', new.sequence_id, 'failure_class', new.failure_class, 'reward', new.reward,
        'worker_id', new.worker_id)
    from rollouts r where r.rollout_id = new.rollout_id;
    return null;
end $$;
create trigger attempt_created after insert on attempts for each row execute function attempt_event();
create trigger attempt_changed after update of status, failure_class on attempts for each row
    when (new.status <> old.status or new.failure_class is distinct from old.failure_class)
    execute function attempt_event();

create function run_event() returns trigger language plpgsql as $$
begin
    insert into events (kind, run, data)
    values ('run', new.run, jsonb_build_object(
        'status', new.status, 'before', case when tg_op = 'UPDATE' then old.status end, 'phase', new.phase,
        'paused', new.paused, 'waiting_for', new.waiting_for, 'epoch', new.epoch, 'error', left(new.error, 500)));
    return null;
end $$;
create trigger run_created after insert on runs for each row execute function run_event();
create trigger run_changed after update on runs for each row
    when ((new.status, new.phase, new.paused, new.waiting_for, new.epoch)
        is distinct from (old.status, old.phase, old.paused, old.waiting_for, old.epoch))
    execute function run_event();

create function step_event() returns trigger language plpgsql as $$
begin
    insert into events (kind, run, step, data)
    values ('step', new.run, new.step, jsonb_build_object(
        'status', new.status, 'before', case when tg_op = 'UPDATE' then old.status end, 'unchanged', new.unchanged));
    return null;
end $$;
create trigger step_created after insert on steps for each row execute function step_event();
create trigger step_changed after update of status on steps for each row
    when (new.status <> old.status) execute function step_event();

create function version_event() returns trigger language plpgsql as $$
begin
    insert into events (kind, run, step, data)
    values ('version', new.run, new.version, jsonb_build_object(
        'version', new.version, 'weights_hash', new.weights_hash, 'checkpointed', new.checkpointed_at is not null));
    return null;
end $$;
create trigger version_published after insert on policy_versions for each row execute function version_event();

-- Without what was changed from and to, which may be large: the audit itself has that.
create function audit_event() returns trigger language plpgsql as $$
begin
    insert into events (kind, run, rollout_id, step, data)
    values ('audit', new.run, new.rollout_id, new.effective_step, jsonb_build_object(
        'id', new.id, 'actor', new.actor, 'action', new.action, 'refused', left(new.refused, 500)));
    return null;
end $$;
create trigger audited after insert on audit for each row execute function audit_event();

create function command_event() returns trigger language plpgsql as $$
begin
    insert into events (kind, run, data)
    values ('command', new.run, jsonb_build_object(
        'command_id', new.command_id, 'action', new.action, 'actor', new.actor, 'waiting_for', left(new.waiting_for, 500),
        'status', case when new.done_at is null then 'open' when new.refused is null then 'done' else 'refused' end,
        'refused', left(new.refused, 500)));
    return null;
end $$;
create trigger command_given after insert on commands for each row execute function command_event();
create trigger command_changed after update on commands for each row
    when ((new.done_at, new.waiting_for) is distinct from (old.done_at, old.waiting_for))
    execute function command_event();

-- Whether something that a snapshot has not seen is no longer kept.
create function events_missed_v1(p_seen pg_snapshot, p_after bigint) returns boolean language sql stable as $$
    select exists (select from events_dropped where xid >= pg_snapshot_xmin(p_seen) and id > p_after)
$$;

-- What this statement sees, and the first of what it sees and `p_seen` did not, by id.
create function open_events_v1(p_seen pg_snapshot, out sees text, out first bigint)
language sql stable
set enable_seqscan = off set enable_bitmapscan = off as $$
    select now.sees::text, least(
               (select min(id + 0) from events
                where xid >= pg_snapshot_xmax(p_seen) and xid < pg_snapshot_xmax(now.sees)),
               (select min(id + 0) from events where xid = any (array(select pg_snapshot_xip(p_seen)))))
    from (select pg_current_snapshot() as sees) now
$$;

-- A page of a window.
create function read_events_v1(
    p_seen pg_snapshot, p_sees pg_snapshot, p_after bigint, p_limit int,
    p_run text, p_rollout text, p_kinds text[]
) returns setof events language sql stable
set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_sort = off set enable_bitmapscan = off as $$
    select * from events e
    where id > p_after and pg_visible_in_snapshot(xid, p_sees) and not pg_visible_in_snapshot(xid, p_seen)
      and (p_run is null or run = p_run) and (p_rollout is null or rollout_id = p_rollout)
      and (p_kinds is null or kind = any (p_kinds))
    order by id limit p_limit
$$;

-- Forget the oldest: those that are older than an age, and those beyond a number; at most so many at a time.
create function drop_events_v1(p_seconds double precision, p_keep bigint, p_limit int) returns int language plpgsql
set enable_seqscan = off as $$
declare
    newest bigint := (select max(id) from events);
    dropped int;
begin
    with oldest as (
        select id from events order by id limit p_limit
    ), gone as (
        delete from events e using oldest o
        where e.id = o.id and (e.id <= newest - p_keep or e.created_at < clock_timestamp() - make_interval(secs => p_seconds))
        returning e.id, e.xid, e.created_at
    ), last as (
        select count(*) as number, max(id) as id, max(xid) as xid, max(created_at) as created_at from gone
    ), noted as (
        insert into events_dropped as d (id, xid, created_at)
        select last.id, last.xid, last.created_at from last where last.number > 0
        on conflict (only_one) do update
        set id = greatest(d.id, excluded.id), xid = greatest(d.xid, excluded.xid),
            created_at = greatest(d.created_at, excluded.created_at)
    )
    select number into dropped from last;
    return dropped;
end $$;

-- After a dump was restored: transactions of the other server have numbers that this one has still to give.
create function forget_strange_events_v1() returns void language sql as $$
    delete from events where xid >= pg_snapshot_xmax(pg_current_snapshot());
    delete from events_dropped where xid >= pg_snapshot_xmax(pg_current_snapshot());
$$;
