"""What every rollout store holds: in memory and on Postgres, directly and by our client against the real service.

The list is Agent Lightning 0.3's: the 64 invariants that its own tests hold. Each test names those that it holds in
its docstring, and `test_completeness.py` sees to it that none is forgotten. Where Relight decides otherwise the test
holds Relight's rule. These are:

- 5: the legacy arguments `status` and `rollout_ids` of `query_rollouts` are not there: two names for one filter.
- 25: an unknown `resources_id` is accepted, as 0.3's code does, though its docs say otherwise: it may be added
  later. Where a workflow dispatches the rollout it is refused with NotFoundError.
- 27: sequence ids are given out for known attempts only; an unknown one is NotFoundError. 0.3 counts for any name.
- 31: a duplicate span answers None and leaves no line in a log: clients repeat spans whenever an answer is lost.
- 32: `add_many_spans` with a span of an unknown rollout or attempt stores nothing; 0.3 keeps those before it. (By OTLP
  the others are kept, and the answer counts what was refused.)
- 33, 50: unknown ids raise NotFoundError (404), which is a ValueError too; 0.3 raises ValueError and answers 500.
- 35: an unresponsive attempt revives while its rollout has not ended. Under an ended rollout the late span is kept,
  and nothing runs again: 0.3 leaves a failed rollout with a running attempt.
- 36, 44, 45: an attempt that has ended keeps its status, but for an unresponsive one whose rollout waits for another
  try. A rollout that has ended leaves that only for `requeuing`, or for the attempt that `start_attempt` makes.
  Anything else is ConflictError (409); the same status again is no change. 0.3 lets any update move a terminal rollout
  anywhere, and lets a runner turn its timeout into a success. `timeout` and `unresponsive` have an end time, too.
- 38, 39: a superseded attempt may be closed, but not run again, which is ConflictError: a newer one holds the fence.
  Neither its end nor its spans move the rollout. What was still open when a newer attempt began ends as `failed`, class
  `infrastructure`.
- 41: what is tried again waits for `backoff_seconds` (default 1 s, doubling, at most 60 s); 0.3 has no back-off.
  `retry_condition` names failure classes; on the wire 0.3's `failed` stands for those that are the agent's.
- 46, 47: there is no scan in front of calls and so no debounce; a sweeper finds what is overdue, without any traffic,
  and however many services run one, a transition is made once. Cancelling is real: the open attempt ends with it.
- 48: unknown ids in a wait are ignored, also where the wait has no timeout: they delay no wait.
- 54: no other origin is let in; there is nothing to set.
- 55, 56: nothing is evicted when memory is short. Spans lie in Postgres, and go by age and size (retention), never
  by memory pressure; so there are no thresholds and no read that raises.
- 59: every call of our client may be repeated by it, as it carries a key: a lost answer makes neither a second
  rollout nor a lost one. `get_*` never turns an error into None. A wait is one long poll, of any length.
- 64: our client is picklable; a server is not, it is a thread of its process.
"""
