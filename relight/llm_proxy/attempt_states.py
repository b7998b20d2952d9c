"""The gateway's state of the attempts whose calls it serves.

It is a cache: the store's answer to `resolve` restores the call numbers and the answers that may not have been
delivered.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from time import monotonic
from typing import Any, TypeVar
from weakref import WeakValueDictionary

from relight.errors import ConflictError, NotFoundError, OverloadedError, StoreError, UnauthorizedError
from relight.llm_proxy.platform_waits import WaitClock
from relight.llm_proxy.request_errors import RequestError, bad_key, superseded, unavailable
from relight.retrying import Backoff, retry
from relight.store.attempts.base import AttemptStore
from relight.types.wire import MAX_ENDED, CallContext, EndedAttempts, RecallRequest, ResolveRequest, UndeliveredCall

Key = tuple[str, str]
T = TypeVar("T")

FIRST_PAUSE_SECONDS = 0.05
LONGEST_PAUSE_SECONDS = 1.0
FIRST_WAIT_SECONDS = 300.0
"""How long a call waits for the store before the run's own `engine_wait_seconds` is known."""
IDLE_SECONDS = 3600.0
QUIET_SECONDS = 120.0
FORGOTTEN_WAIT_SECONDS = 1.0
"""A wait of this length may be missing from an attempt's deadlines."""


@dataclass(slots=True, eq=False)
class UndeliveredAnswer:
    """A committed answer that may not have been delivered (rule 8)."""

    call_number: int
    request_hash: str
    shown: dict[str, Any]
    certain: bool
    """True: it was not delivered; false: that is unknown."""
    denied: bool = False
    """True if the store has recorded that it was not delivered."""
    committing: asyncio.Future[RequestError | None] | None = None
    """Set while its commit is under way."""

    @classmethod
    def from_store(cls, call: UndeliveredCall) -> UndeliveredAnswer:
        """As the store keeps it."""
        denied = call.delivered == "no"
        return cls(call.call_number, call.request_hash, call.response, certain=denied, denied=denied)


class RepeatableCall:
    """A call and its declared retries, which are served one after the other."""

    def __init__(self) -> None:
        self.turn = asyncio.Lock()
        self.number: int | None = None
        """The number of the call that is being served, once it is known."""
        self.users = 0


@dataclass(slots=True, eq=False)
class GatewayAttempt:
    """The gateway's state of one attempt."""

    context: CallContext
    token_hash: str
    clock: WaitClock
    next_call: int = 1
    calls: int = 0
    under_way: int = 0
    """Calls that are being read or served."""
    known_since: float = field(default_factory=monotonic)
    last_activity: float | None = None
    """Of the agent itself; a runner's request for its status does not count."""
    failed: set[str] = field(default_factory=set[str])
    """Hashes of requests that the platform failed and that have not succeeded since."""
    _free: dict[str, list[int]] = field(default_factory=dict[str, list[int]])
    _own: set[int] = field(default_factory=set[int])
    _asked: dict[str, int] = field(default_factory=dict[str, int])
    """By request: the number of call numbers that it has used."""
    _undelivered: list[UndeliveredAnswer] = field(default_factory=list[UndeliveredAnswer])
    _last_sent: dict[str, int | None] = field(default_factory=dict[str, int | None])
    """By request: the call whose answer was sent, if no identical call has begun since. None: there are two."""
    _being_served: dict[str, list[RepeatableCall]] = field(default_factory=dict[str, list[RepeatableCall]])
    """By request: the calls that are being served."""

    @property
    def key(self) -> Key:
        return self.context.rollout_id, self.context.attempt_id

    @property
    def is_restorable(self) -> bool:
        """Whether the store's answer to `resolve` would restore the state that matters."""
        kept = self.failed or self._undelivered or self._being_served or self.under_way
        return not kept and self.clock.seconds < FORGOTTEN_WAIT_SECONDS

    @property
    def seen(self) -> float:
        """The time of its last activity."""
        return self.known_since if self.last_activity is None else self.last_activity

    def touch(self) -> None:
        """Record activity."""
        self.last_activity = monotonic()

    def merge(self, context: CallContext) -> None:
        """Add what the store knows and this process does not."""
        self.context = context
        self.next_call = max(self.next_call, context.next_call_number)
        known = self._own | {undelivered.call_number for undelivered in self._undelivered}
        self._undelivered += [
            UndeliveredAnswer.from_store(call) for call in context.undelivered if call.call_number not in known
        ]

    @contextmanager
    def repeatable_call(self, request_hash: str, declared_retry: bool) -> Generator[RepeatableCall]:
        """The `RepeatableCall` of a call.

        A declared retry waits for the call that it repeats, whose answer serves both, even if that call has not noticed
        yet that its agent disconnected. The repeated call is known if there is only one.
        """
        asks = self._being_served.setdefault(request_hash, [])
        repeats = declared_retry and len(asks) == 1 and not self._can_answer_retry(request_hash)
        ask = asks[0] if repeats else RepeatableCall()
        if not repeats:
            asks.append(ask)
        ask.users += 1
        try:
            yield ask
        finally:
            ask.users -= 1
            if not ask.users:
                asks.remove(ask)
            if not asks:
                self._being_served.pop(request_hash, None)

    def _can_answer_retry(self, request_hash: str) -> bool:
        """Whether there is an answer or a call number for a retry of this request."""
        left = any(undelivered.request_hash == request_hash for undelivered in self._undelivered)
        return left or bool(self._free.get(request_hash))

    def take_number(self, request_hash: str) -> int:
        """The number of a new call: the first unused one of the same request, else the next.

        Answers to this request whose delivery is unknown are dropped: the agent has them or has given them up.
        """
        self._last_sent.pop(request_hash, None)
        for undelivered in [old for old in self._undelivered if old.request_hash == request_hash and not old.certain]:
            self._undelivered.remove(undelivered)
            self._own.add(undelivered.call_number)
        free = self._free.get(request_hash)
        if free:
            free.sort()
            return free.pop(0)
        number, self.next_call = self.next_call, self.next_call + 1
        self._own.add(number)
        self._asked[request_hash] = self._asked.get(request_hash, 0) + 1
        return number

    def asked_again(self, request_hash: str) -> bool:
        """Whether several calls are identical: then the store learns only by marks which answers arrived."""
        return self._asked.get(request_hash, 0) > 1

    def give_back(self, request_hash: str, number: int) -> None:
        """Return a number under which nothing was committed: the same request may use it again, with the same seed."""
        self._free.setdefault(request_hash, []).append(number)

    def renumber(self, at_least: int | None) -> int:
        """Another gateway took the number: take the next one that is free."""
        number = max(self.next_call, at_least or 0)
        self.next_call = number + 1
        self._own.add(number)
        return number

    def keep(self, undelivered: UndeliveredAnswer) -> None:
        """Keep an answer for the next identical call."""
        self._undelivered.append(undelivered)

    def note_sent(self, undelivered: UndeliveredAnswer) -> None:
        """An answer was sent to the agent; whether it arrives is unknown to the gateway."""
        number = undelivered.call_number
        self._last_sent[undelivered.request_hash] = (
            number if self._last_sent.get(undelivered.request_hash, number) == number else None
        )

    def last_sent(self, request_hash: str) -> int | None:
        """The call whose answer was sent last for this request, if that is unambiguous."""
        return self._last_sent.get(request_hash)

    def forget(self, undelivered: UndeliveredAnswer) -> None:
        """It was not committed after all."""
        if undelivered in self._undelivered:
            self._undelivered.remove(undelivered)

    def take_undelivered(self, request_hash: str, declared_retry: bool) -> UndeliveredAnswer | None:
        """The undelivered answer to this request, if there is one."""
        for undelivered in self._undelivered:
            if undelivered.request_hash == request_hash and (undelivered.certain or declared_retry):
                self._undelivered.remove(undelivered)
                self._own.add(undelivered.call_number)
                return undelivered
        return None


class GatewayAttempts:
    """All attempts, by rollout and attempt id."""

    kept_attempts = 4096
    """Above this number, attempts without recent calls are forgotten if the store can restore their state."""

    def __init__(self, store: AttemptStore) -> None:
        self._store = store
        self._known: dict[Key, GatewayAttempt] = {}
        self._pending: dict[Key, WaitClock] = {}
        self._locks: WeakValueDictionary[tuple[str, str, str], asyncio.Lock] = WeakValueDictionary()

    def get(self, rollout_id: str, attempt_id: str) -> GatewayAttempt | None:
        """The known state, without a request to the store."""
        return self._known.get((rollout_id, attempt_id))

    def clock(self, rollout_id: str, attempt_id: str) -> WaitClock | None:
        """The clock of an attempt, also while it is still being resolved."""
        known = self._known.get((rollout_id, attempt_id))
        return known.clock if known else self._pending.get((rollout_id, attempt_id))

    def drop(self, attempt: GatewayAttempt) -> None:
        """Forget an attempt whose token was revoked."""
        if self._known.get(attempt.key) is attempt:
            del self._known[attempt.key]

    async def drop_ended(self) -> None:
        """Forget attempts whose token has ended since: their next call is refused by the store."""
        known = {attempt.context.attempt_id: attempt for attempt in self._known.values()}
        ids = [*known]
        for start in range(0, len(ids), MAX_ENDED):
            asked = EndedAttempts(attempt_ids=ids[start : start + MAX_ENDED])
            for ended in (await self._store.ended_attempts(asked)).attempt_ids:
                self.drop(known[ended])

    def sweep(self) -> None:
        """Forget attempts without activity for long; if there are many, those that have probably ended."""
        now = monotonic()
        for attempt in [known for known in self._known.values() if known.seen < now - IDLE_SECONDS]:
            self.drop(attempt)
        spare = len(self._known) - self.kept_attempts
        quiet = [known for known in self._known.values() if known.seen < now - QUIET_SECONDS]
        for attempt in sorted(quiet, key=lambda known: known.seen)[: max(0, spare)]:
            if attempt.is_restorable:
                self.drop(attempt)

    async def find(self, rollout_id: str, attempt_id: str, token: str, fresh: bool = False) -> GatewayAttempt:
        """The attempt of a token. `fresh` asks the store again, since another gateway may have served it.

        Raises:
            RequestError: the token is wrong or revoked, or the store does not answer.
        """
        digest = hashlib.sha256(token.encode()).hexdigest()
        known = self._known.get((rollout_id, attempt_id))
        if known and not hmac.compare_digest(known.token_hash, digest):
            raise bad_key()
        if known and not fresh:
            return known
        lock = self._locks.setdefault((rollout_id, attempt_id, digest), asyncio.Lock())
        async with lock:
            found = self._known.get((rollout_id, attempt_id))
            if found is not None and found is not known:
                return found  # another call resolved it meanwhile
            return await self._resolve(
                ResolveRequest(rollout_id=rollout_id, attempt_id=attempt_id, token=token), digest
            )

    async def _resolve(self, request: ResolveRequest, digest: str) -> GatewayAttempt:
        key = request.rollout_id, request.attempt_id
        known = self._known.get(key)
        clock = known.clock if known else self._pending.setdefault(key, WaitClock())
        try:
            context = await self._ask(partial(self._store.resolve, request), key, clock)
        finally:
            self._pending.pop(key, None)
        attempt = self._known.get(key) or GatewayAttempt(context, digest, clock, next_call=context.next_call_number)
        attempt.merge(context)
        self._known[key] = attempt
        return attempt

    async def undelivered_answer(
        self, attempt: GatewayAttempt, token: str, request_hash: str, declared_retry: bool
    ) -> UndeliveredAnswer | None:
        """A committed answer for this call: it was not delivered, or the agent declares a retry.

        Raises:
            RequestError: the token was revoked, or the store does not answer.
        """
        undelivered = attempt.take_undelivered(request_hash, declared_retry)
        number = attempt.last_sent(request_hash) if undelivered is None and declared_retry else None
        if number is None:
            return undelivered
        rollout_id, attempt_id = attempt.key
        request = RecallRequest(rollout_id=rollout_id, attempt_id=attempt_id, token=token, call_number=number)
        call = await self._ask(partial(self._recall, request), attempt.key, attempt.clock)
        return call and UndeliveredAnswer.from_store(call)

    async def _recall(self, request: RecallRequest) -> UndeliveredCall | None:
        try:
            return (await self._store.recall(request)).call
        except NotFoundError:  # the store service is older than this gateway
            return None

    async def _ask(self, ask: Callable[[], Awaitable[T]], key: Key, clock: WaitClock) -> T:
        with clock.call() as wait:
            wait.begin(monotonic())
            backoff = Backoff(FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS, within_seconds=FIRST_WAIT_SECONDS)
            try:
                return await retry(ask, StoreError, OverloadedError, backoff=backoff)
            except (UnauthorizedError, NotFoundError):
                raise bad_key() from None
            except ConflictError as error:
                self._known.pop(key, None)
                raise superseded(error.message) from None
            except (StoreError, OverloadedError) as error:
                raise unavailable(f"the store does not answer: {error}") from None
