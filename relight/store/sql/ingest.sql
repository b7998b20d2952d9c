-- Spans from anybody. The rules are functions, in the migrations.

-- name: ingest_spans
select verdicts, sequences
from ingest_spans_v1($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19)

-- name: span_bodies
select encode(hash, 'hex') as hash, body from bodies where day = $1 and hash = any ($2::bytea[])
