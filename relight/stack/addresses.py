"""Chooses the addresses of the embedded stack's parts; a part whose address was given is not started.

Ports are those of the last start, else the usual ones, else any free ones. A given address is used unchanged.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from relight.settings import PROFILE, Resolved, Settings, environment_name, read_stack, resolve
from relight.stack.ports import LOOPBACK, choose, require_free

USUAL_PORTS: Mapping[str, int] = {"temporal": 7233, "temporal_ui": 8233, "store": 4747, "gateway": 4748}
SHARED = (
    *("home", "data_root", "store_url", "gateway_url", "log_level", "drain_seconds"),
    *("temporal_embedded", "temporal_address", "temporal_namespace", "temporal_ui_url"),
)
"""Settings that all processes of the stack get by their environment."""
DRAIN_SECONDS = 2.0
"""The default drain time of the stack's parts; short, for Ctrl-C."""


@dataclass(frozen=True)
class Addresses:
    """The stack's settings, and which servers it starts itself."""

    settings: Settings
    own_postgres: bool
    own_temporal: bool
    ports: Mapping[str, int]


def decide(flags: Mapping[str, Any], postgres_url: str | None) -> Addresses:
    """Choose addresses; `postgres_url` is the embedded server's.

    Raises:
        StackError: an address that was given is in use.
    """
    resolved = resolve(flags)
    home = resolved.settings.home.absolute()
    temporal = resolved.settings.temporal_address if is_given(resolved, "temporal_address") else None
    own_postgres = not is_given(resolved, "postgres_url")
    ports = choose_ports(read_stack(home).get("ports", {}))
    changes: dict[str, Any] = {"home": home, "data_root": resolved.settings.data_root.absolute()}
    if not is_given(resolved, "drain_seconds"):
        changes["drain_seconds"] = DRAIN_SECONDS
    for service in ("store", "gateway"):
        name = f"{service}_url"
        if is_given(resolved, name):
            require_free(getattr(resolved.settings, name), service, resolved.sources[name])
        else:
            changes[name] = f"http://{LOOPBACK}:{ports[service]}"
    if own_postgres:
        changes["postgres_url"] = postgres_url
    changes["temporal_address"] = temporal or f"{LOOPBACK}:{ports['temporal']}"
    changes["temporal_embedded"] = temporal is None
    if not temporal:
        changes["temporal_ui_url"] = f"http://{LOOPBACK}:{ports['temporal_ui']}"
    elif not is_given(resolved, "temporal_ui_url"):
        changes["temporal_ui_url"] = None
    settings = resolved.settings.model_copy(update=changes)
    return Addresses(settings, own_postgres=own_postgres, own_temporal=temporal is None, ports=ports)


def is_given(resolved: Resolved, name: str) -> bool:
    """Whether a setting was given by a flag, the environment or a Temporal profile."""
    source = resolved.sources[name]
    return source == "flag" or source.startswith(("environment", PROFILE))


def choose_ports(last: Mapping[str, int]) -> dict[str, int]:
    """A free port for each name; those of the last start if they are free, so that addresses stay the same."""
    chosen: dict[str, int] = {}
    for name, usual in USUAL_PORTS.items():
        wanted = [port for port in (last.get(name), usual) if isinstance(port, int)]
        chosen[name] = choose(wanted, chosen.values())
    return chosen


def shown_settings(addresses: Addresses) -> dict[str, Any]:
    """The settings in `stack.json` for other processes of this home; without secrets that were given from outside."""
    settings = addresses.settings
    names = ["store_url", "gateway_url", "data_root"]
    names += ["temporal_address", "temporal_embedded", "temporal_namespace", "temporal_ui_url"]
    if addresses.own_postgres:
        names.append("postgres_url")
    return {name: _plain(getattr(settings, name)) for name in names if getattr(settings, name) is not None}


def environment(addresses: Addresses, environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The environment of the stack's processes: the addresses of all parts."""
    settings = addresses.settings
    own = {
        name: value for name, value in environ.items() if not (addresses.own_temporal and name.startswith("TEMPORAL_"))
    }
    values = {environment_name(name): getattr(settings, name) for name in SHARED}
    shared = {name: str(value) for name, value in values.items() if value not in (None, "")}
    return own | {"PYTHONUNBUFFERED": "1"} | shared


def _plain(value: Any) -> Any:
    return str(value) if isinstance(value, Path) else value
