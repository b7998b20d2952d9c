-- Events: what changed, for readers that follow it; append-only, written by triggers, kept for a time.
--
-- Readers go from snapshot to snapshot: a window holds what the newer one sees and the older one does not, in the order
-- of ids. So nothing is missed or read twice, in whatever order transactions commit; and since a transaction that
-- changes a row after another one takes its ids later, the changes of a row come in their order.

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

-- The newest event that is no longer kept: a reader that has not read it has missed something. No row: all are kept.
create table events_dropped (
    only_one   boolean primary key default true check (only_one),
    id         bigint not null,
    xid        xid8 not null,
    created_at timestamptz not null
);

-- Whether an event that a snapshot does not see is no longer kept.
create function events_missed_v1(p_seen pg_snapshot, p_after bigint) returns boolean language sql stable as $$
    select exists (select from events_dropped where xid >= pg_snapshot_xmin(p_seen) and id > p_after)
$$;

-- What this statement sees, and the first event that it sees and `p_seen` does not, by id.
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

-- Drop the oldest events: those older than an age, and those beyond a number; at most `p_limit` at a time.
create function drop_events_v1(p_seconds double precision, p_keep bigint, p_limit int) returns int language plpgsql
set enable_seqscan = off as $$
declare
    newest bigint := (select max(id) from events);
    dropped int;
begin
    with oldest as (
        select id from events order by id limit p_limit
    ), deleted as (
        delete from events e using oldest o
        where e.id = o.id and (e.id <= newest - p_keep or e.created_at < clock_timestamp() - make_interval(secs => p_seconds))
        returning e.id, e.xid, e.created_at
    ), last as (
        select count(*) as number, max(id) as id, max(xid) as xid, max(created_at) as created_at from deleted
    ), recorded as (
        insert into events_dropped as d (id, xid, created_at)
        select last.id, last.xid, last.created_at from last where last.number > 0
        on conflict (only_one) do update
        set id = greatest(d.id, excluded.id), xid = greatest(d.xid, excluded.xid),
            created_at = greatest(d.created_at, excluded.created_at)
    )
    select number into dropped from last;
    return dropped;
end $$;

-- After a dump was restored: drop events of transactions whose numbers this server has yet to assign.
create function drop_foreign_events_v1() returns void language sql as $$
    delete from events where xid >= pg_snapshot_xmax(pg_current_snapshot());
    delete from events_dropped where xid >= pg_snapshot_xmax(pg_current_snapshot());
$$;
