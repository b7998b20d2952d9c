"""Tracers: what records the spans of an agent, its frameworks and its model calls."""

from __future__ import annotations

from relight.tracer.agentops import AgentOpsTracer
from relight.tracer.base import Tracer, clear_active_tracer, get_active_tracer, set_active_tracer
from relight.tracer.dummy import DummyTracer
from relight.tracer.otel import OtelTracer
from relight.tracer.weave import WeaveTracer

__all__ = [
    "AgentOpsTracer",
    "DummyTracer",
    "OtelTracer",
    "Tracer",
    "WeaveTracer",
    "clear_active_tracer",
    "get_active_tracer",
    "set_active_tracer",
]
