-- Spans of all sources. The rules are functions, in schema/09_spans.sql.

-- name: ingest_spans
-- Each column is one text; $1 stands between its values, and a control character for null. A single value may be empty.
select verdicts, sequences
from ingest_spans_v1(
    coalesce(nullif(string_to_array($2, $1), '{}'), '{""}'),
    coalesce(nullif(string_to_array($3, $1), '{}'), '{""}'),
    coalesce(nullif(string_to_array($4, $1), '{}'), '{""}'),
    string_to_array($5, $1)::bigint[],
    coalesce(nullif(string_to_array($6, $1), '{}'), '{""}'),
    coalesce(nullif(string_to_array($7, $1, E'\x1e'), '{}'), '{""}'),
    coalesce(nullif(string_to_array($8, $1), '{}'), '{""}'),
    string_to_array($9, $1),
    string_to_array($10, $1),
    string_to_array($11, $1, E'\x1e'),
    string_to_array($12, $1, E'\x1e'),
    string_to_array($13, $1),
    string_to_array($14, $1, E'\x1e'),
    string_to_array($15, $1, E'\x1e')::float8[],
    string_to_array($16, $1, E'\x1e')::float8[],
    string_to_array($17, $1, E'\x1e'),
    $18, $19, $20)

-- name: span_bodies
select encode(hash, 'hex') as hash, body from bodies where day = $1 and hash = any ($2::bytea[])

-- name: agent_of_token
select a.rollout_id, a.attempt_id,
       r.dispatched_by = 'workflow' and coalesce((select file ->> 'grader' from runs where run = r.run), '') <> ''
           as graded
from attempts a join rollouts r using (rollout_id)
where a.token_hash = $1 and r.status <> 'cancelled'
  and (may_call_v1(r, a)
       or a.ended_at > clock_timestamp() - interval '60 s' and a.sequence_id = r.attempts
          and coalesce(a.failure_class, 'agent_error') = 'agent_error')
