"""One model call, and its requests to an engine."""

from __future__ import annotations

from dataclasses import dataclass, field
from time import monotonic
from typing import Any, cast

import orjson

from relight.llm_proxy.attempt_states import GatewayAttempt
from relight.llm_proxy.capture import Capture
from relight.llm_proxy.engines import PASSED_ON_STATUSES
from relight.llm_proxy.limits import GatewayLimits
from relight.llm_proxy.request_errors import PassedOn
from relight.llm_proxy.requests import Prepared
from relight.llm_proxy.targets import Target, TargetUnavailable
from relight.types.wire import GenerationRecord


@dataclass(slots=True, eq=False)
class ModelCall:
    """One model call."""

    attempt: GatewayAttempt
    prepared: Prepared
    number: int
    seed: int
    target: Target | None = None
    began: float = field(default_factory=monotonic)
    """When it was last forwarded."""

    @property
    def content(self) -> bytes:
        """The request as it is forwarded."""
        target = cast("Target", self.target)
        if not self.prepared.records_tokens:
            return orjson.dumps({**self.prepared.body, "model": target.model or self.prepared.body["model"]})
        return orjson.dumps({**self.prepared.body, "model": target.model, "seed": self.seed})

    @property
    def key(self) -> dict[str, Any]:
        """The fields of `CallKey`."""
        return {
            "rollout_id": self.attempt.context.rollout_id,
            "attempt_id": self.attempt.context.attempt_id,
            "token_hash": self.attempt.token_hash,
            "call_number": self.number,
            "request_hash": self.prepared.request_hash,
        }

    def record(self, capture: Capture, complete: bool = True) -> GenerationRecord:
        """The call in the store's form. Not validated, because the token lists are long and come from a JSON parser."""
        target = cast("Target", self.target)
        prepared = self.prepared
        return GenerationRecord.model_construct(
            **self.key,
            route=prepared.dialect,
            request={**prepared.body, "seed": self.seed} if prepared.records_tokens else prepared.body,
            response=capture.shown,
            prompt_token_ids=capture.prompt_token_ids,
            choices=capture.choices(),
            sampling=prepared.sampling,
            seed=self.seed,
            engine_id=target.name,
            model=target.model if prepared.records_tokens else prepared.body["model"],
            duration_seconds=0.0,
            delivered="unknown" if complete else "yes",
        )

    def unused(self) -> None:
        """Nothing is committed under its number."""
        self.attempt.give_back(self.prepared.request_hash, self.number)


async def ask(target: Target, call: ModelCall, limits: GatewayLimits) -> dict[str, Any]:
    """Send the call to a target; returns the whole answer."""
    async with target.post(call.prepared.route, call.content) as answer:
        content = b"".join([piece async for piece in limits.within(answer.pieces())])
    shown = read_object(target, content)
    if not shown.get("choices"):
        raise TargetUnavailable(f"{target.name}: the answer has no choices")
    return shown


def read_object(target: Target, data: bytes) -> dict[str, Any]:
    """An answer, or a chunk of one."""
    try:
        found = orjson.loads(target.clean(data))
    except orjson.JSONDecodeError as error:
        raise TargetUnavailable(f"{target.name}: its answer is not JSON: {error}") from error
    if not isinstance(found, dict):
        raise TargetUnavailable(f"{target.name}: its answer is not a JSON object")
    return cast("dict[str, Any]", found)


def read_chunk(target: Target, data: bytes) -> dict[str, Any]:
    """One chunk of a stream; vLLM reports errors during a stream as a chunk."""
    chunk = read_object(target, data)
    error = chunk.get("error")
    if error is None:
        return chunk
    code = error.get("code") if isinstance(error, dict) else None
    if code in PASSED_ON_STATUSES:
        raise PassedOn(code, target.clean(data))
    raise TargetUnavailable(f"{target.name}: {str(error)[:200]}")
