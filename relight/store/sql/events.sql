-- Events, window by window.

-- name: events_now
select pg_current_snapshot()::text

-- name: open_events
select * from open_events_v1($1::text::pg_snapshot)

-- name: read_events
select id, xid::text::bigint as xid, kind, run, rollout_id, attempt_id, step, data, unix_v1(created_at) as time
from read_events_v1($1::text::pg_snapshot, $2::text::pg_snapshot, $3, $4, $5, $6, $7)

-- name: events_missed
select events_missed_v1($1::text::pg_snapshot, $2)

-- name: events_since
-- The newest event before a time, and whether later ones are no longer kept.
select greatest(0, d.id, (select id from events where created_at < $1 order by id desc limit 1)) as after,
       coalesce(d.created_at >= $1, false) as missed
from (select) one left join events_dropped d on true

-- name: drop_events
select drop_events_v1($1, $2, $3)

-- name: drop_foreign_events
select drop_foreign_events_v1()
