"""Extracts the tokens of an engine's answer, and removes what the agent did not ask for.

Ids and logprobs stay plain lists from the JSON parser to the store. A stream is read in the same way, chunk by chunk.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, cast

from relight.llm_proxy.requests import Prepared, Route
from relight.types.wire import Choice

JSON = dict[str, Any]
# Added by the engine because we asked for ids.
TOP_EXTRAS = ("prompt_token_ids", "prompt_text")
CHOICE_EXTRAS = ("token_ids", "prompt_token_ids")


@dataclass(slots=True)
class ChoiceTokens:
    """The tokens of one choice so far."""

    token_ids: list[int] = field(default_factory=list[int])
    logprobs: list[float] = field(default_factory=list[float])
    finish_reason: str | None = None
    sent: int = 0
    """How many of them were sent to the agent, in a stream."""
    records_tokens: bool = True
    """False for another model's answer: its tokens are not the policy's."""

    @property
    def sent_ids(self) -> list[int]:
        """The tokens that were sent to the agent."""
        return self.token_ids[: self.sent]

    def cut(self) -> None:
        """Keep only the tokens that were sent."""
        if self.sent < len(self.token_ids) or not self.records_tokens:
            self.finish_reason = None
            del self.token_ids[self.sent :]
            del self.logprobs[self.sent :]

    def add(self, route: Route, choice: JSON) -> None:
        """Take the tokens of an answer's or a chunk's choice."""
        if self.records_tokens:
            self.token_ids += choice.get("token_ids") or []
            self.logprobs += sampled_logprobs(route, choice.get("logprobs"))
        self.finish_reason = choice.get("finish_reason") or self.finish_reason

    def record(self, index: int) -> Choice:
        """In the store's form. Not validated, because these lists are long and come from a JSON parser."""
        return Choice.model_construct(
            index=index,
            response_token_ids=self.token_ids if self.records_tokens else None,
            logprobs=self.logprobs if self.records_tokens and len(self.logprobs) == len(self.token_ids) else None,
            finish_reason=self.finish_reason,
            complete=self.finish_reason is not None,
        )


def sampled_logprobs(route: Route, logprobs: JSON | None) -> list[float]:
    """The sampled tokens' logprobs, in the shape of either route."""
    if not logprobs:
        return []
    if route == "completions":
        return logprobs.get("token_logprobs") or []
    return [entry["logprob"] for entry in logprobs.get("content") or ()]


@dataclass(slots=True)
class Capture:
    """The tokens of one call, and the answer as the agent gets it."""

    prepared: Prepared
    prompt_token_ids: list[int] | None = None
    tokens: dict[int, ChoiceTokens] = field(default_factory=dict[int, ChoiceTokens])
    shown: JSON = field(default_factory=dict[str, Any])
    _any_shown: bool = False

    @property
    def records_tokens(self) -> bool:
        """False: no tokens are taken."""
        return self.prepared.records_tokens

    def take(self, piece: JSON) -> None:
        """Take the ids and logprobs of an answer or a chunk."""
        if self.prompt_token_ids is None and self.records_tokens:
            self.prompt_token_ids = piece.get("prompt_token_ids")
        for choice in cast("list[JSON]", piece.get("choices") or ()):
            if self.prompt_token_ids is None and self.records_tokens:
                self.prompt_token_ids = choice.get("prompt_token_ids")
            self.choice(choice.get("index", 0)).add(self.prepared.route, choice)

    def choice(self, index: int) -> ChoiceTokens:
        """The tokens of choice `index`."""
        if index not in self.tokens:
            self.tokens[index] = ChoiceTokens(records_tokens=self.records_tokens)
        return self.tokens[index]

    def show(self, piece: JSON) -> JSON:
        """Take out, in place, what the agent did not ask for."""
        if not self.prepared.wants.token_ids:
            for name in TOP_EXTRAS:
                piece.pop(name, None)
        for choice in cast("list[JSON]", piece.get("choices") or ()):
            if not self.prepared.wants.token_ids:
                for name in CHOICE_EXTRAS:
                    choice.pop(name, None)
            if not self.prepared.wants.logprobs and "logprobs" in choice:
                choice["logprobs"] = None
        return piece

    def count_sent(self, piece: JSON) -> None:
        """All tokens so far of the choices in this chunk are sent with it."""
        self._any_shown = True
        for choice in cast("list[JSON]", piece.get("choices") or ()):
            tokens = self.choice(choice.get("index", 0))
            tokens.sent = len(tokens.token_ids)

    def cut_to_sent(self) -> None:
        """The agent closed the stream: tokens that were not sent are dropped."""
        for tokens in self.tokens.values():
            tokens.cut()

    @property
    def sampled(self) -> bool:
        """True once any token came; where they are not recorded, any chunk may hold one."""
        return not self.records_tokens or any(tokens.token_ids for tokens in self.tokens.values())

    @property
    def any_sent(self) -> bool:
        """True once the agent was sent any token."""
        if not self.records_tokens:
            return self._any_shown
        return any(tokens.sent for tokens in self.tokens.values())

    def choices(self) -> list[Choice]:
        """All choices in the store's form."""
        return [self.tokens[index].record(index) for index in sorted(self.tokens)]


def read_answer(prepared: Prepared, answer: JSON) -> Capture:
    """Read an answer that came in one piece."""
    capture = Capture(prepared)
    capture.take(answer)
    capture.shown = capture.show(answer)
    return capture
