-- Day partitions of what is large and append-only.

-- name: ensure_partitions
select count(*) filter (where ensure_partition_v1(name, (now() at time zone 'utc')::date + ahead))
from unnest(array['bodies', 'generations', 'call_failures', 'spans']) as name, generate_series(0, $1::int) as ahead

-- name: drop_partition
select drop_partition_v1($1)
