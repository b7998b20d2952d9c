-- Spans of agents.

-- name: add_spans
select add_spans_v1($1, $2, $3, $4)
