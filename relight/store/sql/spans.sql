-- Spans of agents.

-- name: add_spans
select add_spans_v1($1, $2, $3, $4)

-- name: stored_spans
-- Those of a rollout with one of these attempts and one of these ids, which an index finds.
select attempt_id, span_id, status, attributes, events, links, resource, extra, bodies
from spans
where day = $1 and rollout_id = $2 and attempt_id = any ($3::text[]) and span_id = any ($4::text[])

-- name: span_calls
-- The choices of model calls that are shown as spans, in order.
select attempt_id, call_number, route, engine_id, seed, version_start, version_end, response_id,
       request, response, prompt_token_ids, token_ids, logprobs, finish_reason
from generations
where day = $1 and attempt_id = any ($2::text[]) and call_number = any ($3::int[])
order by attempt_id, call_number, choice
