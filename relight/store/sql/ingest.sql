-- Spans from anybody. The rules are functions, in the migrations.

-- name: ingest_spans
select verdicts, sequences
from ingest_spans_v1($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19)

-- name: span_bodies
select encode(hash, 'hex') as hash, body from bodies where day = $1 and hash = any ($2::bytea[])

-- name: agent_of_token
select a.rollout_id, a.attempt_id,
       coalesce((select file ->> 'grader' from runs where run = r.run), '') <> '' as graded
from attempts a join rollouts r using (rollout_id)
where a.token_hash = $1 and r.status <> 'cancelled'
  and (a.ended_at is null or a.ended_at > clock_timestamp() - interval '60 s')
