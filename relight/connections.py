"""How a process reaches Temporal and Postgres: from the settings, with one clear error where it can't."""

from __future__ import annotations

import asyncio
from typing import Any

from temporalio.client import Client
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.envconfig import ClientConfig
from temporalio.service import KeepAliveConfig, RPCError

from relight.errors import ConfigError, TemporalError
from relight.settings import Settings
from relight.store.database import Database

TEMPORAL_ALIVE = KeepAliveConfig(interval_millis=15_000, timeout_millis=5_000)
"""A connection to Temporal on which a ping is not answered is given up. More pings than one in 10 s it refuses."""


async def connect_temporal(settings: Settings, *, timeout_seconds: float = 10.0) -> Client:
    """A Temporal client; TLS, API keys and profiles come from Temporal's own environment configuration.

    Raises:
        TemporalError: out of reach; the message says where and what to do.
    """
    options: dict[str, Any] = dict(ClientConfig.load_client_connect_config())
    address = _setting("temporal_address", settings, options, "target_host")
    _setting("temporal_namespace", settings, options, "namespace")
    try:
        return await asyncio.wait_for(
            Client.connect(**options, data_converter=pydantic_data_converter, keep_alive_config=TEMPORAL_ALIVE),
            timeout_seconds,
        )
    except (RuntimeError, RPCError, TimeoutError, OSError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise TemporalError(
            f"can't reach the Temporal server at {address}: {reason}; "
            "check TEMPORAL_ADDRESS, or start the embedded stack with `relight up`"
        ) from error


def _setting(name: str, settings: Settings, options: dict[str, Any], option: str) -> str:
    """Our setting wins, since flags and environment are in it; a profile of Temporal's wins over our default."""
    value = str(getattr(settings, name))
    if option not in options or value != Settings.model_fields[name].default:
        options[option] = value
    return str(options[option])


async def connect_database(settings: Settings, *, migrate: bool = True, **pool: int) -> Database:
    """A pool on the run's Postgres, with the schema up to date; with `migrate=False` it is left as it is.

    Raises:
        ConfigError: no address is set.
        PostgresError: out of reach.
    """
    if not settings.postgres_url:
        raise ConfigError(
            "no Postgres is set: give RELIGHT_POSTGRES_URL, or start the embedded stack with `relight up`"
        )
    database = await Database.connect(settings.postgres_url, **pool)
    if migrate:
        await database.migrate()
    return database
