"""An engine that is there and doesn't get on with its work is found; one that is slow, or idle, is left alone."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import cast

import pytest

from relight.errors import EngineError
from relight.gpu_worker import engine_liveness
from relight.gpu_worker.engine_client import EngineClient, EngineLoad


class Engine:
    """Answers as it was told, check by check."""

    def __init__(self, answers: Iterable[EngineLoad | bool]) -> None:
        self._answers = iter(answers)
        self._now: EngineLoad | bool = False

    async def health(self) -> bool:
        self._now = next(self._answers)
        return self._now is not False

    async def read_load(self) -> EngineLoad | None:
        return self._now if isinstance(self._now, EngineLoad) else None


async def check(answers: Sequence[EngineLoad | bool]) -> None:
    watched = engine_liveness.EngineLiveness(cast("EngineClient", Engine(answers)))
    watched.check_seconds = 0.0
    for _ in answers:
        await watched.check()


async def test_an_engine_that_never_answers_is_replaced() -> None:
    with pytest.raises(EngineError, match="did not answer 6 times"):
        await check([True, *[False] * engine_liveness.SILENT_CHECKS])


async def test_an_engine_that_answers_sometimes_is_kept() -> None:
    await check([*[False] * (engine_liveness.SILENT_CHECKS - 1), True] * 3)


async def test_an_engine_whose_calls_make_no_token_is_replaced() -> None:
    with pytest.raises(EngineError, match="sampled no token"):
        await check([EngineLoad(running=2, tokens=7)] * (engine_liveness.STALLED_CHECKS + 1))


async def test_an_engine_that_is_idle_or_slow_is_kept() -> None:
    await check([EngineLoad(running=0, tokens=7)] * engine_liveness.STALLED_CHECKS * 2)
    await check([EngineLoad(running=1, tokens=number // 50) for number in range(engine_liveness.STALLED_CHECKS * 3)])


async def test_an_engine_without_load_figures_is_checked_by_its_answers() -> None:
    await check([True] * engine_liveness.STALLED_CHECKS * 2)
