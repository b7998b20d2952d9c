-- Model calls as the gateway saw them. The rules are functions, in schema/08_generations.sql.

-- name: commit_generations
select item, verdict, next_number from commit_generations_v1($1::generation_item_v1[])

-- name: undelivered_calls
select distinct on (g.call_number) g.call_number, g.request_hash, g.delivered, b.body as response
from generations g join bodies b on b.day = $1 and b.hash = g.response
where g.day = $1 and g.attempt_id = $2 and g.delivered in ('no', 'unknown')
order by g.call_number

-- name: recall_call
select g.call_number, g.request_hash, 'unknown' as delivered, b.body as response
from generations g join bodies b on b.day = $1 and b.hash = g.response
where g.day = $1 and g.attempt_id = $2 and g.call_number = $3 limit 1

-- name: add_call_failures
select add_call_failures_v1($1, $2, $3, $4, $5)

-- name: transcript_calls
-- The calls whose answers reached the agent; an answer with several choices is one row.
select distinct on (g.call_number) g.call_number, q.body as request, p.body as response
from generations g
join bodies q on q.day = $1 and q.hash = g.request
join bodies p on p.day = $1 and p.hash = g.response
where g.day = $1 and g.attempt_id = $2 and g.delivered <> 'no'
order by g.call_number

-- name: mark_delivered
-- Revoking a `no` is flushed to disk, since the answer is sent again because of it.
select mark_delivered_v1($1, $2, $3),
       set_config('synchronous_commit', case when 'unknown' = any ($3) then 'on' else 'off' end, true)
