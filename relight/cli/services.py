"""`relight store | gateway | orchestrator | gpu-worker | runner`: one service each, as a process of its own.

Thin: the service's module is imported first (that may take long), then what it needs is waited for, then it serves.
"""

from __future__ import annotations

import asyncio
import importlib
import os
from collections.abc import Awaitable, Callable, Mapping
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from relight import logs
from relight.cli import output, process
from relight.errors import RelightError

if TYPE_CHECKING:
    from relight.settings import Settings

Drain = Annotated[
    float | None,
    typer.Option(
        "--drain-seconds",
        min=0,
        metavar="SECONDS",
        help="How long what is under way may go on after SIGTERM; the rest is handed back. Default: 20.",
        show_default=False,
    ),
]
Wait = Annotated[
    float, typer.Option("--wait", help="Seconds to wait for what it needs before it gives up.", metavar="SECONDS")
]
ISOLATION = "process: every attempt gets a process of its own, whatever the run file says."


class Isolation(StrEnum):
    """How a runner overrides the run file."""

    PROCESS = "process"


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
  relight runner my_agents:calculator --isolation process --env OPENAI_ORGANIZATION""",
}


def store(wait: Wait = 0.0, drain: Drain = None) -> None:
    """Serve the store over HTTP: what runners, gateways and the command line ask. Any number may share a Postgres."""
    from relight.worker.ports import address

    host, port = address(output.settings().store_url)
    _serve("relight.store_api.server", ("postgres",), wait, drain, listens="store_url", arguments=(host, port))


def gateway(wait: Wait = 0.0, drain: Drain = None) -> None:
    """Serve model calls to agents, record every one of them, and wait where an engine is away."""
    _serve("relight.llm_proxy.server", ("store",), wait, drain, listens="gateway_url")


def orchestrator(
    build_id: Annotated[
        str | None, typer.Option(help="Build of this code; see docs/deployments.md.", show_default=False)
    ] = None,
    deployment: Annotated[
        str | None, typer.Option(help="Worker deployment of the build. Default: relight.", show_default=False)
    ] = None,
    wait: Wait = 0.0,
    drain: Drain = None,
) -> None:
    """Host the workflows and the activities that plan and record. Several processes scale it."""
    flags = {"build_id": build_id, "deployment": deployment}
    if build_id:
        os.environ["RELIGHT_BUILD_ID"] = build_id  # the definitions of workflows read it as they are made
    _serve("relight.worker.orchestrator", ("postgres", "temporal"), wait, drain, flags=flags)


def gpu_worker(wait: Wait = 0.0, drain: Drain = None) -> None:
    """Hold the engines (vLLM) and the trainer process (verl) of this host."""
    _serve("relight.gpu_worker.service", ("postgres", "temporal"), wait, drain)


def runner(
    references: Annotated[list[str], typer.Argument(metavar="REF...", help="Agents as package.module:name.")],
    concurrency: Annotated[int | None, typer.Option(min=1, help="Attempts at a time.", show_default=False)] = None,
    isolation: Annotated[Isolation | None, typer.Option(help=ISOLATION, show_default=False)] = None,
    env: Annotated[list[str] | None, typer.Option(help="Environment variable that attempts may see.")] = None,
    python: Annotated[str | None, typer.Option(help="Python that runs the agents.", show_default=False)] = None,
    wait: Wait = 0.0,
    drain: Drain = None,
) -> None:
    """Serve the agents that are named, and no others: run their attempts, watch over them, report them."""
    options: dict[str, Any] = {
        "isolation": isolation and isolation.value,
        "environment": tuple(env or ()),
        "python": python,
    }
    if concurrency is not None:
        options["concurrency"] = concurrency
    _serve("relight.runner.worker", ("temporal", "store"), wait, drain, arguments=(references,), **options)


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
    from relight.draining import HAND_BACK_SECONDS
    from relight.settings import resolve

    resolved = resolve({**output.current.flags, **(flags or {}), "drain_seconds": drain_seconds})
    settings = resolved.settings
    logs.configure(settings.log_level)
    if listens:
        from relight.worker.ports import require_free

        require_free(getattr(settings, listens), listens.removesuffix("_url"), resolved.sources[listens])
    service = importlib.import_module(module)

    async def main() -> None:
        await wait_for(settings, needs, wait_seconds)
        await service.serve(settings, *arguments, **options)

    process.run_service(main(), settings.drain_seconds + HAND_BACK_SECONDS)


async def wait_for(settings: Settings, needs: tuple[str, ...], seconds: float) -> None:
    """Return when everything answers.

    Raises:
        RelightError: the last refusal, once the time is over.
    """
    deadline = asyncio.get_running_loop().time() + seconds
    for check in [CHECKS[need] for need in needs]:
        while True:
            try:
                await check(settings)
                break
            except RelightError:
                if asyncio.get_running_loop().time() >= deadline:
                    raise
            await asyncio.sleep(0.2)


async def _postgres(settings: Settings) -> None:
    from relight.connections import connect_database

    await (await connect_database(settings, max_size=1)).close()


async def _temporal(settings: Settings) -> None:
    from relight.connections import connect_temporal

    await connect_temporal(settings, timeout_seconds=2.0)


async def _store(settings: Settings) -> None:
    from relight.worker.health import require_http

    await require_http(f"{settings.store_url}/healthz", "the store service", "RELIGHT_STORE_URL")


CHECKS: dict[str, Callable[[Settings], Awaitable[None]]] = {
    "postgres": _postgres,
    "temporal": _temporal,
    "store": _store,
}
