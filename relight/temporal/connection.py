"""Connects to Temporal by the settings."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Generator
from contextlib import contextmanager
from functools import cache
from typing import Any

from temporalio.client import Client
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.envconfig import ClientConfig
from temporalio.runtime import LogForwardingConfig, LoggingConfig, Runtime, TelemetryConfig, TelemetryFilter
from temporalio.service import KeepAliveConfig, RPCError

from relight.errors import TemporalError
from relight.settings import Settings

TEMPORAL_ALIVE = KeepAliveConfig(interval_millis=11_000, timeout_millis=4_000)
"""A connection on which a ping is not answered is closed. Temporal refuses more than one ping in 10 s."""


CORE_LEVEL = TelemetryFilter(core_level="WARN", other_level="ERROR")
CORE_REASON = re.compile(r'\bmessage: "([^"]*)"')
"""The message in an error of Temporal's core."""


@cache
def temporal_runtime() -> Runtime:
    """The runtime of all clients of this process, which passes the log lines of Temporal's core to `logging`."""
    logger = logging.getLogger("temporalio.core")
    logger.addFilter(_plain)
    forwarding = LogForwardingConfig(logger, prepend_target_on_message=False, append_log_fields_to_message=False)
    return Runtime(telemetry=TelemetryConfig(logging=LoggingConfig(CORE_LEVEL, forwarding=forwarding)))


def _plain(record: logging.LogRecord) -> bool:
    """Reduce a log record of Temporal's core to its message and the reason."""
    logged = vars(record).pop("temporal_log", None)
    error = str(logged.fields.get("error", "")) if logged else ""
    reason = CORE_REASON.search(error)
    vars(record).update(action="temporal_core")
    record.msg = f"{record.msg}: {reason[1] if reason else error}" if error else record.msg
    return True


async def connect_temporal(settings: Settings, *, timeout_seconds: float = 10.0) -> Client:
    """A Temporal client; TLS and API keys come from Temporal's own environment configuration.

    They are not used for the embedded stack's server.

    Raises:
        TemporalError: the server can't be reached; the message has the address and the remedy.
    """
    options: dict[str, Any] = {} if settings.temporal_embedded else dict(ClientConfig.load_client_connect_config())
    options |= {"target_host": settings.temporal_address, "namespace": settings.temporal_namespace}
    try:
        return await asyncio.wait_for(
            Client.connect(
                **options,
                data_converter=pydantic_data_converter,
                keep_alive_config=TEMPORAL_ALIVE,
                runtime=temporal_runtime(),
            ),
            timeout_seconds,
        )
    except (RuntimeError, RPCError, TimeoutError, OSError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise TemporalError(
            f"can't reach the Temporal server at {settings.temporal_address}: {reason}; "
            "check TEMPORAL_ADDRESS, or start the embedded stack with `relight up`"
        ) from error


@contextmanager
def as_temporal_error(action: str) -> Generator[None]:
    """Convert an error of the server about `action` to a TemporalError."""
    try:
        yield
    except RPCError as error:
        raise TemporalError(f"the Temporal server did not {action}: {error.message}") from error


def address_of(client: Client) -> tuple[str, str]:
    """Address and namespace of the server that a client talks to."""
    return client.service_client.config.target_host, client.namespace
