"""The resources of an external runner's attempt, with the address and the key of its model calls.

0.3's runner requests the resources that its claim names. If they hold a model at the gateway without a key, or a newer
version exists than the one that the rollout is pinned to, or the rollout has a run, the claim names resources of this
attempt instead: `<id>~<attempt>~<seal>`. For these the service returns the rollout's version with the key filled in
and, where the run has engines, with the policy as `main_llm`. Only that runner gets the name, and the seal can't be
guessed. The key is not stored, and valid while the attempt is open.
"""

from __future__ import annotations

import hmac
from base64 import urlsafe_b64encode
from typing import TypeGuard

from relight.store.attempts.attempt_tokens import attempt_token
from relight.store.attempts.bound_resources import AttemptEndpoint, is_at_gateway
from relight.store.base import LightningStore
from relight.store_api.backends import Backend
from relight.types.resources import LLM, MAIN_LLM, PromptTemplate, ProxyLLM, ResourceUnion
from relight.types.rollout import AttemptedRollout
from relight.types.store import ResourcesUpdate

MAX_KNOWN = 1024
SEAL_BYTES = 16


class AttemptResources:
    """Names resources of attempts, and fills them in."""

    def __init__(self, backend: Backend, gateway_url: str | None) -> None:
        self._backend = backend
        self._gateway_url = gateway_url
        self._key: bytes | None = None
        self._known: dict[tuple[str, int], bool] = {}
        """Whether a version of resources holds a model at the gateway; versions don't change."""

    async def bind(self, store: LightningStore, rollout: AttemptedRollout) -> AttemptedRollout:
        """A claim in the form that its runner gets."""
        resources_id, version = rollout.resources_id, rollout.resources_version
        if resources_id is None or version is None:
            return rollout
        newest = await self._backend.newest_resources_version(resources_id)
        plain = rollout.run is None and version == newest
        if plain and not await self._calls_gateway(store, resources_id, version):
            return rollout
        bound = await self._bound_id(resources_id, rollout.attempt.attempt_id)
        return rollout.model_copy(update={"resources_id": bound})

    async def plain(self, resources_id: str) -> str:
        """The plain id of a bound id; any other id is returned unchanged."""
        base, attempt_id = _parts(resources_id)
        if attempt_id and hmac.compare_digest(resources_id.encode(), (await self._bound_id(base, attempt_id)).encode()):
            return base
        return resources_id

    async def find(
        self, store: LightningStore, resources_id: str, version: int | None = None
    ) -> ResourcesUpdate | None:
        """Resources by their id; by a bound one, those that the rollout is pinned to, with the attempt's key."""
        base = await self.plain(resources_id)
        if base == resources_id:
            return await store.get_resources_by_id(base, version)
        _, attempt_id = _parts(resources_id)
        pin = await self._backend.pin_of_attempt(attempt_id)
        if pin is None:  # it was deleted
            return None
        update = await store.get_resources_by_id(base, pin.resources_version if pin.resources_id == base else None)
        if update is None:
            return None
        token = attempt_token(await self._attempt_key(), attempt_id)
        endpoint = AttemptEndpoint(self._gateway_url or "", pin.policy, pin.rollout_id, attempt_id)
        filled = {
            name: endpoint.bound(resource, token) if self._is_at_gateway(resource) else resource
            for name, resource in update.resources.items()
        }
        if pin.policy and self._gateway_url is not None:  # 0.3's agents take the first model that they find
            filled = {MAIN_LLM: endpoint.policy_model(token)} | {k: v for k, v in filled.items() if k != MAIN_LLM}
        return update.model_copy(update={"resources_id": resources_id, "resources": filled})

    async def _calls_gateway(self, store: LightningStore, resources_id: str, version: int) -> bool:
        if self._gateway_url is None:
            return False
        if (known := self._known.get((resources_id, version))) is not None:
            return known
        update = await store.get_resources_by_id(resources_id, version)
        found = update is not None and any(self._is_at_gateway(resource) for resource in update.resources.values())
        if len(self._known) >= MAX_KNOWN:
            self._known.clear()
        self._known[resources_id, version] = found
        return found

    def _is_at_gateway(self, resource: ResourceUnion) -> TypeGuard[LLM | ProxyLLM]:
        if self._gateway_url is None or isinstance(resource, PromptTemplate):
            return False
        return is_at_gateway(resource, self._gateway_url)

    async def _bound_id(self, resources_id: str, attempt_id: str) -> str:
        sealed = f"resources/{resources_id}~{attempt_id}".encode()
        digest = hmac.digest(await self._attempt_key(), sealed, "sha256")[:SEAL_BYTES]
        return f"{resources_id}~{attempt_id}~{urlsafe_b64encode(digest).decode().rstrip('=')}"

    async def _attempt_key(self) -> bytes:
        if self._key is None:
            self._key = await self._backend.attempt_key()
        return self._key


def _parts(resources_id: str) -> tuple[str, str]:
    """Resources and attempt of a bound id; no attempt where it is none."""
    base, _, rest = resources_id.rpartition("~")
    base, _, attempt_id = base.rpartition("~")
    return (base, attempt_id) if rest and base and attempt_id else (resources_id, "")
