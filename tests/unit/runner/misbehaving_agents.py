"""Agents that behave badly in every way that tests ask for. Loaded by path into the fork server's process."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

from relight.emitter import emit_message, emit_reward, operation
from relight.runner.agent_process import Reporter
from relight.runner.loop_watch import current_call
from relight.runner.process_messages import Blocked
from relight.runner.shared_process import SharedProcess


def _note(task, *pids):
    with Path(task["pids"]).open("a") as file:
        file.write("".join(f"{pid}\n" for pid in pids))


def _wait_for(condition):
    while not condition():
        time.sleep(0.005)


def well(task):
    return task.get("reward", 1.0)


async def well_async(task):
    await asyncio.sleep(0)
    return {"exact": 0.5, "short": 1.0}, "exact"


def reports_rollout(task, rollout):
    return {
        "primary": 1.0,
        "known": float(rollout.metadata == {"source": "algebra"} and rollout.resources_id == "rs-7"),
        "feedback": "as it was enqueued",
    }


async def neighbour(task):
    emit_message("ready")
    await asyncio.to_thread(_wait_for, Path(task["go"]).exists)
    return 0.75


def claims_to_have_blocked(task):
    process = next(found for found in gc.get_objects() if isinstance(found, SharedProcess))
    Reporter(process._channel, current_call.get() or 0).send(Blocked(3e7))
    return 1.0


async def emits_without_a_context(task):
    thread = threading.Thread(target=emit_message, args=("whose is it?",))
    thread.start()
    thread.join()
    return 0.5


def inspects_its_call(task, llm, rollout, resources):
    print("modules", *sorted(sys.modules))
    return [
        {
            "name": "seen",
            "attributes": {
                "environment": [f"{name}={value}" for name, value in os.environ.items()],
                "parents": Path(f"/proc/{os.getppid()}/environ").read_text().split("\0"),
                "llm": llm.model_dump(),
                "rollout": rollout.model_dump(mode="json"),
                "resources": list(resources),
                "task_length": len(str(task)),
            },
        }
    ]


def busy(task):
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        with suppress(ValueError):  # in a thread
            signal.signal(number, signal.SIG_IGN)
    emit_message("ready")
    while True:
        pass


async def busy_async(task):
    busy(task)


async def stubborn(task):
    emit_message("ready")
    while True:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            print("no")


async def patient(task):
    emit_message("ready")
    await asyncio.sleep(600)


def thread_patient(task):
    emit_message("ready")
    time.sleep(600)


def exits(task):
    os._exit(task.get("code", 7))


def leaves(task):
    sys.exit("enough")


def raises(task):
    print("before the end")
    raise LookupError(task["text"])


def segfaults(task):
    ctypes.string_at(0)


def kills_itself(task):
    os.kill(os.getpid(), signal.SIGKILL)


def stops_itself(task):
    emit_message("ready")
    os.kill(os.getpid(), signal.SIGSTOP)
    time.sleep(600)  # in a thread, the stop may come a moment later


def stops_fork_server(task):
    os.kill(os.getppid(), signal.SIGSTOP)
    emit_message("ready")
    time.sleep(600)


def kills_fork_server(task):
    os.kill(os.getppid(), signal.SIGKILL)
    time.sleep(600)


def has_children(task):
    """A child by exec, one by fork, both ignore SIGTERM; then hang or return."""
    script = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
    running = subprocess.Popen([sys.executable, "-c", script])
    forked = os.fork()
    if forked == 0:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        time.sleep(600)
    _note(task, os.getpid(), running.pid, forked)
    emit_message("ready")
    if task.get("hang"):
        time.sleep(600)
    return 1.0


def daemonizes(task):
    """The classic: fork, setsid, fork, close everything; and one more that is another program with no environment."""
    reader, writer = os.pipe()
    if os.fork() == 0:
        os.setsid()
        if os.fork() != 0:
            os._exit(0)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        program = os.fork()
        if program == 0:
            os.setsid()
            os.execve("/bin/sleep", ["sleep", "600"], {})
        os.write(writer, f"{os.getpid()} {program}".encode())
        os.closerange(0, 256)
        time.sleep(600)
    pids = [int(word) for word in os.read(reader, 100).split()]
    _wait_for(lambda: Path(f"/proc/{pids[1]}/comm").read_text() == "sleep\n")
    _note(task, os.getpid(), *pids)
    emit_message("ready")
    if task.get("hang"):
        time.sleep(600)
    return 1.0


def forks_and_both_return(task):
    os.fork()
    return 1.0


def _emit(index):
    for number in range(50):
        emit_message("x" * 100_000, {"index": index, "number": number})


def emits_from_everywhere(task):
    processes = [multiprocessing.get_context("fork").Process(target=_emit, args=(n,)) for n in range(2)]
    threads = [threading.Thread(target=_emit, args=(n,)) for n in (2, 3)]
    for worker in (*processes, *threads):
        worker.start()
    for worker in (*processes, *threads):
        worker.join()
    return 1.0


def emits_then_hangs(task):
    with operation(name="outer"):
        emit_reward(0.25)
    emit_message("ready")
    time.sleep(600)


def floods_spans(task):
    for _ in range(task["count"]):
        emit_message("again")
    return 0.5


def prints(task):
    line = "0123456789abcdef" * 64 + "\n"
    for _ in range(task["bytes"] // len(line)):
        sys.stdout.write(line)
    print("the end \u2603")
    return 1.0


def prints_to_stderr_by_descriptor(task):
    os.write(2, b"raw \xff\x00 bytes\n")
    return 1.0


def gives(task):
    return {"nan": float("nan"), "text": "x" * 10_000_000, "object": object(), "names": {"a": 1, "b": 2}}[task["what"]]


def eats_memory(task):
    held = []
    while True:
        held.append(bytearray(16 * 1024 * 1024))


def garbage(task):
    for name in os.listdir("/proc/self/fd"):
        try:
            found = socket.socket(fileno=os.dup(int(name)))
        except OSError:
            continue
        if found.type == socket.SOCK_SEQPACKET:
            found.send(b"\xff" * 100)
    time.sleep(600)


def random_numbers(task):
    import numpy

    return float(numpy.random.random())
