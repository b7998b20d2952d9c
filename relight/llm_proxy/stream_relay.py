"""Relays a stream to the agent: which chunks were sent, which are held back, and which another engine has to repeat.

If an engine dies during a stream, the call is repeated with its seed. The new engine first samples what the agent has
already, which is skipped; if it samples anything else, the stream fails.
"""

from __future__ import annotations

from typing import Any, cast

from relight.llm_proxy.capture import Capture
from relight.llm_proxy.dialects import Dialect
from relight.llm_proxy.requests import Prepared
from relight.llm_proxy.streams import Assembly, finishes

JSON = dict[str, Any]


class Diverged(Exception):
    """The repeated call did not sample the tokens that were sent to the agent."""


class StreamRelay:
    """One streamed call."""

    def __init__(self, dialect: Dialect, prepared: Prepared) -> None:
        self._dialect = dialect
        self._prepared = prepared
        self._capture = Capture(prepared)
        self._assembly = Assembly(prepared.route)
        self._lead: list[JSON] = []
        """Chunks before the first token: sent with it."""
        self._held: list[JSON] = []
        """Chunks that end a choice: sent after the commit."""
        self._before: tuple[Capture, Assembly] | None = None
        """Chunks from an engine that died, until the next engine has repeated them."""

    def restart(self) -> None:
        """An engine begins, possibly not the first one."""
        if self._capture.any_sent and not self._prepared.records_tokens:
            raise Diverged  # without tokens it is unknown where the repetition has got to
        if self._before is None and self._capture.any_sent:
            self._before = self._capture, self._assembly
        self._capture, self._assembly = Capture(self._prepared), Assembly(self._prepared.route)
        self._lead, self._held = [], []

    def take(self, chunk: JSON) -> bytes:
        """Process a chunk; returns what is to be sent now."""
        self._capture.take(chunk)
        repeated = self._before is not None and self._repeats(self._before[0], chunk)
        ends = finishes(chunk)
        shown = self._capture.show(chunk)
        self._assembly.add(shown)
        if repeated:
            self._capture.count_sent(chunk)
            return b""
        if ends:
            self._held.append(shown)
            return b""
        if not self._capture.sampled:
            self._lead.append(shown)
            return b""
        ready, self._lead = [*self._lead, shown], []
        self._capture.count_sent(chunk)
        return self._write(ready)

    def _write(self, chunks: list[JSON]) -> bytes:
        """Chunks in the form of the agent's client; each is written once, in order."""
        self._dialect.prompt_tokens = len(self._capture.prompt_token_ids or ())
        return b"".join([self._dialect.chunk(chunk) for chunk in chunks])

    def _repeats(self, before: Capture, chunk: JSON) -> bool:
        """True for a chunk that the agent has already."""
        for choice in cast("list[JSON]", chunk.get("choices") or ()):
            index = choice.get("index", 0)
            tokens, known = self._capture.choice(index).token_ids, before.choice(index).sent_ids
            new = len(tokens) - len(choice.get("token_ids") or ())
            if new < len(known) or not tokens:
                if tokens != known[: len(tokens)]:
                    raise Diverged
                return True
        if self._caught_up(before):
            self._before = None
        return False

    def _caught_up(self, before: Capture) -> bool:
        return all(
            len(self._capture.choice(n).token_ids) >= len(tokens.sent_ids) for n, tokens in before.tokens.items()
        )

    def finish(self) -> tuple[Capture, bytes]:
        """The engine has finished: what is to be committed, and what is to be sent after that."""
        self._capture.shown = self._assembly.answer()
        return self._capture, self._write([*self._lead, *self._held]) + self._dialect.end()

    def close_early(self) -> Capture | None:
        """The agent closed the stream: the tokens that were sent to it; None if none were."""
        capture, assembly = self._before or (self._capture, self._assembly)
        if not capture.any_sent:
            return None
        capture.cut_to_sent()
        capture.shown = assembly.answer()
        return capture
