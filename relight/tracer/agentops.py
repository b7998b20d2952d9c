"""0.3's name for a tracer that instruments what it finds."""

from __future__ import annotations

import warnings
from functools import cache
from typing import Any

from relight.tracer.otel import OtelTracer


class AgentOpsTracer(OtelTracer):
    """`OtelTracer(instrument="all")`. The arguments configured AgentOps' client, and have no effect."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        del args, kwargs
        _warn_once()
        super().__init__("all")


@cache
def _warn_once() -> None:
    text = "AgentOpsTracer is an alias: use OtelTracer(instrument='all'), or name the instrumentors"
    warnings.warn(text, DeprecationWarning, stacklevel=3)
