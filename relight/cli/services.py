"""`relight store | gateway | orchestrator | gpu-worker | runner`: each runs one service in this process.

The service's module is imported first, which may take long; then the command waits for the services that it needs.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from relight.cli import event_loop, output
from relight.cli.shared_options import AllowNet, AllowPath, Env, EnvFile, Gpu, Network, Wrapper
from relight.errors import PostgresError, StoreError, TemporalError
from relight.observability import logs
from relight.retrying import Backoff, retry
from relight.transport.open_files import allow_open_files

if TYPE_CHECKING:
    from relight.settings import Settings

Drain = Annotated[
    float | None,
    typer.Option(
        "--drain-seconds",
        min=0,
        metavar="SECONDS",
        help="How long work under way may continue after SIGTERM; the rest is handed back. Default: 20.",
    ),
]
Wait = Annotated[
    float, typer.Option("--wait", help="Seconds to wait for the services that this one needs.", metavar="SECONDS")
]
CHECK_SECONDS = 0.2
"""Between two checks of what a service needs."""
ISOLATION = """Each attempt runs in its own process, even if the run file says otherwise: sandbox requires namespaces,
process uses none. By default there are namespaces where they can be had."""


class Isolation(StrEnum):
    """How a runner overrides the run file."""

    PROCESS = "process"
    SANDBOX = "sandbox"


EPILOG = {
    "gateway": """\b
Examples:
  relight gateway --gateway-url http://10.0.0.7:4748 --store-url http://10.0.0.5:4747""",
    "orchestrator": """\b
Examples:
  TEMPORAL_ADDRESS=temporal:7233 relight orchestrator
  TEMPORAL_PROFILE=cloud relight orchestrator
  relight orchestrator --build-id 2026-11-21""",
    "gpu_worker": """\b
Examples:
  RELIGHT_GPU_HOST=gpu-1 relight gpu-worker""",
    "runner": """\b
Examples:
  relight runner my_agents:calculator
  relight runner my_agents:calculator my_agents:search --concurrency 64
  relight runner my_agents:calculator --isolation process --env OPENAI_ORGANIZATION
  relight runner my_agents:calculator --allow-path ~/.cache/huggingface --allow-net 5432
  relight runner my_agents:calculator --wrapper "bwrap --dev-bind / / --unshare-pid --proc /proc --\"""",
}


def store(wait: Wait = 0.0, drain: Drain = None, *, memory: bool = False) -> None:
    """Serve the store over HTTP."""
    from relight.stack.ports import address

    needs = () if memory else ("postgres",)
    host_and_port = address(output.settings().store_url)
    _serve("relight.store_api.server", needs, wait, drain, listens="store_url", arguments=host_and_port, memory=memory)


def gateway(wait: Wait = 0.0, drain: Drain = None) -> None:
    """Serve model calls to agents and record them. Calls wait while no engine is ready."""
    _serve("relight.llm_proxy.server", ("store",), wait, drain, listens="gateway_url")


def orchestrator(
    build_id: Annotated[str | None, typer.Option(help="Build id of this code; see docs/deployments.md.")] = None,
    deployment: Annotated[str | None, typer.Option(help="Worker deployment of this build. Default: relight.")] = None,
    wait: Wait = 0.0,
    drain: Drain = None,
) -> None:
    """Run the workflows and the activities that plan and record. Several orchestrators may run at once."""
    flags = {"build_id": build_id, "deployment": deployment}
    if build_id:
        os.environ["RELIGHT_BUILD_ID"] = build_id  # read when the workflow definitions are imported
    _serve("relight.worker.orchestrator", ("postgres", "temporal"), wait, drain, flags=flags)


def gpu_worker(wait: Wait = 0.0, drain: Drain = None) -> None:
    """Run the engine (vLLM) and the trainer process (verl) of this host."""
    _serve("relight.gpu_worker.worker", ("postgres", "temporal"), wait, drain)


def runner(
    references: Annotated[list[str], typer.Argument(metavar="REF...", help="Agents as package.module:name.")],
    concurrency: Annotated[int | None, typer.Option(min=1, help="Attempts at once.")] = None,
    isolation: Annotated[Isolation | None, typer.Option(help=ISOLATION)] = None,
    env: Env = None,
    env_file: EnvFile = None,
    allow_path: AllowPath = None,
    allow_net: AllowNet = None,
    network: Network = None,
    gpu: Gpu = False,
    wrapper: Wrapper = None,
    python: Annotated[str | None, typer.Option(help="Python that runs the agents.")] = None,
    wait: Wait = 0.0,
    drain: Drain = None,
) -> None:
    """Serve the named agents, and no others: run their attempts and report the results."""
    options: dict[str, Any] = {
        "isolation": isolation and isolation.value,
        "environment": (*(env or ()), *_set_by(env_file or ())),
        "python": python,
    }
    if concurrency is not None:
        options["concurrency"] = concurrency
    flags: dict[str, Any] = {"allow_path": allow_path, "allow_net": allow_net, "network": network, "wrapper": wrapper}
    flags["allow_gpu"] = gpu or None
    needs = ("temporal", "store")
    _serve("relight.runner.worker", needs, wait, drain, flags=flags, arguments=(references,), **options)


def _set_by(env_files: Sequence[Path]) -> list[str]:
    """Set the variables of these files; their names, and those that files name without a value."""
    from relight.runner.agent_environment import read_env_file

    found = {name: value for path in env_files for name, value in read_env_file(path).items()}
    os.environ.update({name: value for name, value in found.items() if value is not None})
    return list(found)


def _serve(
    module: str,
    needs: tuple[str, ...],
    wait_seconds: float,
    drain_seconds: float | None,
    *,
    listens: str | None = None,
    flags: Mapping[str, Any] | None = None,
    arguments: tuple[Any, ...] = (),
    **options: Any,
) -> None:
    from relight.settings import resolve
    from relight.temporal.draining import HAND_BACK_SECONDS

    resolved = resolve({**output.current.flags, **(flags or {}), "drain_seconds": drain_seconds})
    settings = resolved.settings
    logs.configure(settings.log_level)
    if listens:
        from relight.stack.ports import require_free

        require_free(getattr(settings, listens), listens.removesuffix("_url"), resolved.sources[listens])
    service = importlib.import_module(module)

    allow_open_files()

    async def main() -> None:
        await wait_for(settings, needs, wait_seconds)
        await service.serve(settings, *arguments, **options)

    event_loop.run_service(main(), settings.drain_seconds + HAND_BACK_SECONDS)


async def wait_for(settings: Settings, needs: tuple[str, ...], seconds: float) -> None:
    """Return when all needed services answer.

    Raises:
        PostgresError, TemporalError, StoreError: the last error, if one does not answer in time.
        ConfigError: the database can't be used.
    """
    backoff = Backoff(CHECK_SECONDS, CHECK_SECONDS, within_seconds=seconds)
    for need in needs:
        await retry(partial(CHECKS[need], settings), PostgresError, TemporalError, StoreError, backoff=backoff)


async def _postgres(settings: Settings) -> None:
    from relight.store.database import opened_database

    async with opened_database(settings, max_size=1):
        return


async def _temporal(settings: Settings) -> None:
    from relight.temporal.connection import connect_temporal

    await connect_temporal(settings, timeout_seconds=2.0)


async def _store(settings: Settings) -> None:
    from relight.stack.http_check import require_http

    await require_http(f"{settings.store_url}/healthz", "the store service", "RELIGHT_STORE_URL")


CHECKS: dict[str, Callable[[Settings], Awaitable[None]]] = {
    "postgres": _postgres,
    "temporal": _temporal,
    "store": _store,
}
