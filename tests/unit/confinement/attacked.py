"""A runner that an agent attacks: `attacked.py FOLDER POLICY`: `confined` (layer 1), `open`, the part of layer 1 to
leave out, `sandbox` (layers 1 and 2), or `namespaces` (layer 2 alone).

Prints as JSON what the fork server reported and how each attack ended.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from relight.confinement import sandbox
from relight.confinement.policy import policy
from relight.confinement.privileges import set_dumpable
from relight.runner.agent_call import AgentCall
from relight.runner.fork_server import ForkServerOptions, ForkServerSupervisor
from relight.runner.process_isolation import IsolatedRunner
from relight.semconv import LightningSpanAttributes
from relight.types.wire import SpanRecord
from tests.unit.confinement import attacks, without


def _made(folder: Path) -> dict[str, Any]:
    """A project with what agents must not read."""
    for name in (".relight", ".git", "data"):
        (folder / name).mkdir()
    for name in (".relight/token", ".env", ".git/config", "data/rows", "agent.py"):
        (folder / name).write_text("secret")
    task = {"project": str(folder), "home": str(folder / ".relight"), "runner": os.getpid(), "abstract": folder.name}
    return task | {"socket": str(folder / "socket"), "shared_memory": f"/dev/shm/relight-attacked-{os.getpid()}"}


def _interpreter(folder: Path, layer: str) -> str:
    """A program that stands for Python and leaves out a layer."""
    script = folder / "python"
    start = f'[ "$1" != -m ] || set -- {without.__file__} {layer} "$@"'
    script.write_text(f'#!/bin/sh\n{start}\nexec {sys.executable} "$@"\n')
    script.chmod(0o755)
    return str(script)


async def main(folder: Path, kind: str) -> None:
    task = _made(folder)
    set_dumpable(False)
    os.chdir(folder)
    closed, free, abstract = socket.create_server(("127.0.0.1", 0)), socket.socket(), socket.socket(socket.AF_UNIX)
    named = socket.socket(socket.AF_UNIX)
    named.bind(task["socket"])
    named.listen()
    os.close(os.open(task["shared_memory"], os.O_CREAT | os.O_WRONLY))
    segment = attacks.shared_segment(task["runner"], attacks.CREATE)
    free.bind(("127.0.0.1", 0))
    free_port = free.getsockname()[1]
    free.close()
    abstract.bind("\0" + task["abstract"])
    abstract.listen()
    task |= {"closed_port": closed.getsockname()[1], "free_port": free_port}
    confined = kind != "open"
    network = "gateway" if confined else "internet"
    left_out = kind if kind in without.LAYERS else ",".join(without.ALL) if kind == "namespaces" else ""
    python = _interpreter(folder, left_out) if left_out else sys.executable
    namespaces = kind in ("sandbox", "namespaces") and not await sandbox.namespace_error(sys.executable)
    names = [name for name in attacks.ATTACKS if confined or not name.startswith("calls_")]
    chosen = policy(home=folder / ".relight") if confined else None
    chosen = chosen and replace(chosen, hidden=[*chosen.hidden, task["socket"]])
    options = ForkServerOptions((f"{attacks.__file__}:agent",), python=python, policy=chosen, namespaces=namespaces)
    async with IsolatedRunner(options.references, supervisor=ForkServerSupervisor(options)) as runner:
        report = await runner.start()
        neighbour: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()

        def heard(span: SpanRecord) -> None:
            if LightningSpanAttributes.MESSAGE_BODY in span.attributes:
                neighbour.set_result(json.loads(span.attributes[LightningSpanAttributes.MESSAGE_BODY]))

        waiting = asyncio.create_task(
            runner.call(AgentCall(call_id="neighbour", agent="agent", task=task | {"wait": True}), on_span=heard)
        )
        beside = await neighbour
        task |= {"neighbour": beside["pid"], "scratch": beside["scratch"], "attacks": names}
        outcome = await runner.call(AgentCall(call_id="attacker", agent="agent", task=task, network=network))
        (folder / "go").touch()
        reward = (await waiting).reward
    attacks.remove_segment(segment)
    os.unlink(task["shared_memory"])
    assert outcome.reward == 1.0, outcome
    ended = json.loads(outcome.output.splitlines()[-1])
    print(json.dumps({"held": asdict(report.held), "neighbour": reward, "ended": ended, "uid": os.getuid()}))


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), sys.argv[2]))
