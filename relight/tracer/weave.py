"""A tracer on Weave's library: its operations, and the libraries that it patches, become spans.

Nothing is sent to Weights & Biases: Weave's client is replaced by one that makes spans of OpenTelemetry of its calls.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

from relight.store.base import LightningStore
from relight.tracer.otel import OtelTracer

if TYPE_CHECKING:
    from relight.tracer.weave_client import WeaveSpanClient

MISSING = "WeaveTracer needs the library weave: pip install 'relight[weave]'"


class WeaveTracer(OtelTracer):
    """Records Weave's operations (`@weave.op`) and the libraries that Weave patches, besides what `OtelTracer` does."""

    def __init__(self, patch: Sequence[str] | Literal["all"] = "all", **options: Any) -> None:
        """Describe a tracer; nothing is changed before `init_worker`.

        Args:
            patch: names of Weave's integrations, such as `openai` for `weave.integrations.patch_openai`; or `all` that
                it patches by itself, now or when they are imported.
            options: those of `OtelTracer`.
        """
        super().__init__(**options)
        self.patch = patch
        self._client: WeaveSpanClient | None = None

    def init_worker(self, worker_id: int, store: LightningStore | None = None, *args: Any, **kwargs: Any) -> None:
        """Attach to the SDK and to Weave.

        Raises:
            ImportError: weave is not installed; the message has the command.
            RuntimeError: `weave.init` was called: its client would get the calls.
            ValueError: a name in `patch` or `instrument` is unknown.
        """
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")  # else importing weave connects to its error reports
        try:
            from relight.tracer.weave_client import WeaveSpanClient, patch
        except ImportError as error:
            raise ImportError(f"{MISSING} ({error})") from error
        super().init_worker(worker_id, store)
        self._client = WeaveSpanClient(self._tracer)
        self._client.enter()
        patch(self.patch)

    def teardown_worker(self, worker_id: int, *args: Any, **kwargs: Any) -> None:
        """Detach from Weave, whose operations are then not recorded; its patches stay, and do nothing."""
        if self._client is not None:
            self._client.leave()
            self._client = None
        super().teardown_worker(worker_id)
