"""Runs as the store's views show them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from relight.types.views import Counts, EngineView, EvaluationView, RunView, StepView

NOW = datetime(2024, 5, 1, 12, 0, tzinfo=UTC)


def a_run(**changes: Any) -> RunView:
    known: dict[str, Any] = {
        "run": "calc-1",
        "status": "running",
        "phase": "sampling",
        "agent": "calculator",
        "algorithm": "grpo",
        "step": 0,
        "total_steps": 60,
        "created_at": NOW,
        "file": {"agent": "calculator"},
        "epoch": 1,
        "train_dataset": "d1",
    }
    return RunView.model_validate(known | changes)


def a_step(number: int, **changes: Any) -> StepView:
    known: dict[str, Any] = {
        "step": number,
        "status": "recorded",
        "rollouts": Counts(planned=128, succeeded=126, failed=2, retried=1, failures={"agent_error": 2}),
        "reward": 0.5,
        "seconds": {"update": 0.8, "plan": 0.1, "rollouts": 2.0, "total": 3.4, "publish": 0.2, "other": 0.3},
        "planned_at": NOW,
        "recorded_at": NOW,
    }
    return StepView.model_validate(known | changes)


def an_evaluation(version: int, score: float | None = 0.52, failed: int = 0, **changes: Any) -> EvaluationView:
    reward = score * 240 / (240 - failed) if score is not None and failed < 240 else None
    known = {"score": score, "reward": reward, "rewarded": 240 - failed, "failed": failed, "tasks": 240, "seconds": 3.0}
    return EvaluationView.model_validate({"version": version} | known | changes)


def an_engine(state: str = "ready") -> EngineView:
    return EngineView(engine_id="box/0", host="box", run="calc-1", state=state, version=1, pid=5, updated_at=NOW)
