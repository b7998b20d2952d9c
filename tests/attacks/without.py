"""A boundary of the services taken away while a test attacks it, so that the attack can be seen to succeed.

A plugin of pytest: `python -m pytest -p tests.attacks.without TESTS`.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from types import FunctionType
from typing import Any, cast

import pytest
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from relight.llm_proxy import exchange, limits, requests
from relight.llm_proxy.attempt_states import GatewayAttempts
from relight.llm_proxy.provider_addresses import AddressGuard
from relight.llm_proxy.upstreams import Provider
from relight.store.access_tokens import Role
from relight.store.queue import idempotency_keys, rows
from relight.store_api import agl_calls, grants
from relight.store_api.access import AccessMiddleware
from relight.store_api.grants import Principal
from relight.store_api.request_budgets import RequestBudgets
from relight.transport.keepalive import alive_socket
from relight.transport.request_limits import LimitedHttpProtocol
from relight.types import verl_keys, vllm_keys
from relight.types.vllm_keys import check_vllm_keys


def _nothing(*_: Any, **__: Any) -> None:
    return None


async def _nothing_later(*_: Any, **__: Any) -> None:
    return None


def _replace(patch: pytest.MonkeyPatch, function: Any, other: Callable[..., Any]) -> None:
    """Have a function do what another does, in the modules that have imported it too.

    The other's globals are then those of the function's module.
    """
    patch.setattr(function, "__code__", cast("FunctionType", other).__code__)


def _head_limits(patch: pytest.MonkeyPatch) -> None:
    for name in ("data_received", "on_headers_complete"):
        patch.setattr(LimitedHttpProtocol, name, getattr(HttpToolsProtocol, name))
    patch.setattr(LimitedHttpProtocol, "_check", _nothing)


def _store_budgets(patch: pytest.MonkeyPatch) -> None:
    async def admit(self: Any, app: Any, scope: Any, receive: Any, send: Any) -> None:
        await app(scope, receive, send)

    patch.setattr(RequestBudgets, "admit", admit)


def _gateway_budgets(patch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def hold(self: Any, attempt: Any) -> Generator[Callable[[int], None]]:
        yield _nothing

    patch.setattr(limits.HeldRequests, "hold", hold)


def _request_hashes(patch: pytest.MonkeyPatch) -> None:
    _replace(patch, idempotency_keys.request_hash, lambda *values: "")
    _replace(patch, rows.of_key, lambda kept, resources, key: kept)


def _access(patch: pytest.MonkeyPatch) -> None:
    async def pass_on(self: Any, scope: Any, receive: Any, send: Any) -> None:
        await self.app(scope, receive, send)

    patch.setattr(AccessMiddleware, "__call__", pass_on)


def _roles(patch: pytest.MonkeyPatch) -> None:
    def everybody(method: str, path: str) -> frozenset[Any]:
        return frozenset({*Role, Principal.ANYONE} if path == "/healthz" else Role)

    _replace(patch, grants.principals_of, everybody)


def _scopes(patch: pytest.MonkeyPatch) -> None:
    async def none(*_: Any) -> set[str]:
        return set()

    async def within(*_: Any) -> bool:
        return True

    patch.setattr(grants.Grants, "_check_path", within)
    patch.setattr(grants.Grants, "foreign", none)


def _one_authorization(patch: pytest.MonkeyPatch) -> None:
    def token(self: Any) -> str:
        return self._headers.get(b"authorization", b"").decode("latin-1").partition(" ")[2]

    patch.setattr(exchange.Exchange, "token", property(token))


def _host_keys(patch: pytest.MonkeyPatch) -> None:
    def known(keys: Any) -> None:
        check_vllm_keys(keys)

    _replace(patch, vllm_keys.check_run_file_keys, known)
    _replace(patch, verl_keys.check_run_file_keys, lambda flat: None)


BOUNDARIES: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    "head and body limits": _head_limits,
    "store budgets": _store_budgets,
    "gateway budgets": _gateway_budgets,
    "request ranges": lambda patch: patch.setattr(requests, "RANGES", {}),
    "nesting depth": lambda patch: patch.setattr(requests, "MAX_DEPTH", 10**9),
    "key length": lambda patch: patch.setattr(agl_calls, "MAX_KEY_CHARACTERS", 10**9),
    "request hashes": _request_hashes,
    "access": _access,
    "roles": _roles,
    "token scopes": _scopes,
    "one authorization": _one_authorization,
    "ended attempts": lambda patch: patch.setattr(GatewayAttempts, "drop_ended", _nothing_later),
    "provider addresses": lambda patch: patch.setattr(
        AddressGuard, "open", lambda self, address: alive_socket(address)
    ),
    "key removal": lambda patch: patch.setattr(Provider, "clean", lambda self, data: data),
    "host keys": _host_keys,
}
"""What takes each away. Those that the database itself holds, or the order of a handler's steps, can't be taken away
alone.
"""


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Play a test without its boundary; what its fixtures have made is used as it is."""
    from tests.attacks.services import ATTACKS

    node = item.nodeid.partition("[")[0]
    with pytest.MonkeyPatch.context() as patch:
        BOUNDARIES[next(attack.boundary for attack in ATTACKS if attack.node == node)](patch)
        return (yield)
