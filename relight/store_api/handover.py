"""What an external runner is handed with its attempt: the address and the key of its model calls.

0.3's runner asks for the resources that its claim names. Where these hold a model at the gateway without a key, the
claim names resources of this attempt instead: `<id>~<attempt>~<seal>`. Asked for these, the service answers the same
resources with the key filled in. Nobody else is shown that name, and the seal can't be guessed; the key is stored
nowhere, and good as long as the attempt.
"""

from __future__ import annotations

import hmac
import time
from base64 import urlsafe_b64encode
from urllib.parse import urlsplit

from relight.store.database import Database
from relight.store.lightning import LightningStore
from relight.store.postgres import attempt_key
from relight.store.tokens import attempt_token, attempt_url
from relight.types.resources import LLM, PromptTemplate, ProxyLLM
from relight.types.rollout import AttemptedRollout
from relight.types.store import ResourcesUpdate

KNOWN_SECONDS = 2.0
MAX_KNOWN = 1024
SEAL_BYTES = 16


class Handover:
    """Names resources of attempts, and fills them in."""

    def __init__(self, database: Database, gateway_url: str | None) -> None:
        self._database = database
        self._gateway_url = gateway_url
        self._key: bytes | None = None
        self._known: dict[str, tuple[float, bool]] = {}
        """Whether resources hold a model at the gateway, until when that is not asked again."""

    async def bind(self, store: LightningStore, rollout: AttemptedRollout) -> AttemptedRollout:
        """A claim as its runner is to see it."""
        resources_id = rollout.resources_id
        if resources_id is None or not await self._calls_gateway(store, resources_id):
            return rollout
        bound = await self._bound_id(resources_id, rollout.attempt.attempt_id)
        return rollout.model_copy(update={"resources_id": bound})

    async def plain(self, resources_id: str) -> str:
        """The id of the resources that a bound id stands for; any other id is what it is."""
        base, attempt_id = _parts(resources_id)
        if attempt_id and hmac.compare_digest(resources_id.encode(), (await self._bound_id(base, attempt_id)).encode()):
            return base
        return resources_id

    async def find(self, store: LightningStore, resources_id: str) -> ResourcesUpdate | None:
        """Resources by their id; by a bound one, with the attempt's address and key."""
        base = await self.plain(resources_id)
        update = await store.get_resources_by_id(base)
        if update is None or base == resources_id:
            return update
        _, attempt_id = _parts(resources_id)
        rollout_id = await self._database.value("rollout_of_attempt", attempt_id)
        if rollout_id is None:  # it was deleted
            return None
        token = attempt_token(await self._attempt_key(), attempt_id)
        filled = {
            name: self._filled(resource, rollout_id, attempt_id, token) for name, resource in update.resources.items()
        }
        return update.model_copy(update={"resources_id": resources_id, "resources": filled})

    def _filled(
        self, resource: LLM | ProxyLLM | PromptTemplate, rollout_id: str, attempt_id: str, token: str
    ) -> LLM | ProxyLLM | PromptTemplate:
        if isinstance(resource, PromptTemplate) or not self._is_at_gateway(resource):
            return resource
        root = (self._gateway_url or "").rstrip("/")
        proxy = isinstance(resource, ProxyLLM)
        endpoint = f"{root}/v1" if proxy else attempt_url(root, rollout_id, attempt_id)
        return resource.model_copy(update={"endpoint": endpoint, "api_key": token})

    async def _calls_gateway(self, store: LightningStore, resources_id: str) -> bool:
        if self._gateway_url is None:
            return False
        now = time.monotonic()
        until, known = self._known.get(resources_id, (0.0, False))
        if now < until:
            return known
        update = await store.get_resources_by_id(resources_id)
        found = update is not None and any(
            not isinstance(resource, PromptTemplate) and self._is_at_gateway(resource)
            for resource in update.resources.values()
        )
        if len(self._known) >= MAX_KNOWN:
            self._known.clear()
        self._known[resources_id] = (now + KNOWN_SECONDS, found)
        return found

    def _is_at_gateway(self, resource: LLM | ProxyLLM) -> bool:
        """Whether its endpoint is the gateway itself, and no key was given for it."""
        if self._gateway_url is None or resource.api_key is not None:
            return False
        ours, theirs = urlsplit(self._gateway_url), urlsplit(resource.endpoint)
        same = (theirs.scheme, theirs.netloc) == (ours.scheme, ours.netloc)
        return same and theirs.path.rstrip("/") in ("", "/v1")

    async def _bound_id(self, resources_id: str, attempt_id: str) -> str:
        sealed = f"resources/{resources_id}~{attempt_id}".encode()
        digest = hmac.digest(await self._attempt_key(), sealed, "sha256")[:SEAL_BYTES]
        return f"{resources_id}~{attempt_id}~{urlsafe_b64encode(digest).decode().rstrip('=')}"

    async def _attempt_key(self) -> bytes:
        if self._key is None:
            self._key = await attempt_key(self._database)
        return self._key


def _parts(resources_id: str) -> tuple[str, str]:
    """Resources and attempt of a bound id; no attempt where it is none."""
    base, _, rest = resources_id.rpartition("~")
    base, _, attempt_id = base.rpartition("~")
    return (base, attempt_id) if rest and base and attempt_id else (resources_id, "")
