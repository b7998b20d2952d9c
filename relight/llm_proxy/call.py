"""One model call, and how it is put to an engine."""

from __future__ import annotations

from dataclasses import dataclass, field
from time import monotonic
from typing import Any, cast

import orjson

from relight.llm_proxy.attempts import Attempt
from relight.llm_proxy.capture import Capture
from relight.llm_proxy.engines import AGENTS_FAULT, Engine, EngineAway
from relight.llm_proxy.refusal import PassedOn
from relight.llm_proxy.requests import Prepared
from relight.types.wire import GenerationRecord


@dataclass(slots=True, eq=False)
class Call:
    """One model call."""

    attempt: Attempt
    prepared: Prepared
    number: int
    seed: int
    engine: Engine | None = None
    began: float = field(default_factory=monotonic)
    """When it was last forwarded."""

    @property
    def content(self) -> bytes:
        """The request as it goes to the engine."""
        engine = cast("Engine", self.engine)
        return orjson.dumps({**self.prepared.body, "model": engine.info.model, "seed": self.seed})

    def record(self, capture: Capture, complete: bool = True) -> GenerationRecord:
        """What the store keeps. Not validated: the token lists come from a JSON parser, and are long."""
        engine = cast("Engine", self.engine)
        return GenerationRecord.model_construct(
            rollout_id=self.attempt.context.rollout_id,
            attempt_id=self.attempt.context.attempt_id,
            token_hash=self.attempt.token_hash,
            call_number=self.number,
            request_hash=self.prepared.request_hash,
            route=self.prepared.dialect,
            request={**self.prepared.body, "seed": self.seed},
            response=capture.shown,
            prompt_token_ids=capture.prompt_token_ids,
            choices=capture.choices(),
            sampling=self.prepared.sampling,
            seed=self.seed,
            engine_id=engine.info.engine_id,
            model=engine.info.model,
            duration_seconds=0.0,
            delivered="unknown" if complete else "yes",
        )

    def unused(self) -> None:
        """Nothing is committed under its number."""
        self.attempt.give_back(self.prepared.request_hash, self.number)


async def ask(engine: Engine, call: Call) -> dict[str, Any]:
    """Have an engine answer in one piece."""
    async with engine.post(call.prepared.route, call.content) as answer:
        content = await answer.read()
    try:
        return orjson.loads(content)
    except orjson.JSONDecodeError as error:
        raise EngineAway(f"engine {engine.info.engine_id}: the answer is not JSON: {error}") from error


def read_chunk(engine: Engine, data: bytes) -> dict[str, Any]:
    """One chunk of a stream; vLLM reports what goes wrong midway as a chunk."""
    try:
        chunk = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise EngineAway(f"engine {engine.info.engine_id}: a chunk is not JSON: {error}") from error
    error = chunk.get("error")
    if error is None:
        return chunk
    code = error.get("code") if isinstance(error, dict) else None
    if code in AGENTS_FAULT:
        raise PassedOn(code, data)
    raise EngineAway(f"engine {engine.info.engine_id}: {str(error)[:200]}")
