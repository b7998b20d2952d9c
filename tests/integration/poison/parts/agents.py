"""Agents and a grader that do what their task says, for the whole stack. Loaded by path."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

from openai import AsyncOpenAI, OpenAI

from relight.emitter import emit_message


def kind_of(task, rollout):
    """What this sample is to do; those that fill a group up behave."""
    kinds = task["kinds"]
    sample = re.search(r"-i(\d+)$", rollout.rollout_id)  # a preflight has none
    index = int(sample[1]) if sample else 0
    return kinds[index] if index < len(kinds) else "well"


def ask(llm, content="hello", **options):
    with OpenAI(base_url=llm.endpoint, api_key=llm.api_key, max_retries=0) as client:
        answer = client.chat.completions.create(
            model=llm.model, messages=[{"role": "user", "content": content}], max_tokens=4, **options
        )
    return (sum(map(ord, answer.choices[0].message.content or "")) % 101) / 100


def poison(task, llm, rollout):
    """Everything that can go wrong, by name."""
    note_pid(task)
    kind = kind_of(task, rollout)
    action = ACTIONS.get(kind)
    return action(task) if action else ask(llm, kind)


async def shared(task, llm, rollout):
    """For one process with others in it."""
    kind = kind_of(task, rollout)
    if kind == "exit":
        os._exit(3)
    if kind == "raise":
        raise LookupError("on purpose")
    if kind == "hang":
        time.sleep(3600)  # noqa: ASYNC251 - it blocks its process
    async with AsyncOpenAI(base_url=llm.endpoint, api_key=llm.api_key, max_retries=2) as client:
        answer = await client.chat.completions.create(
            model=llm.model, messages=[{"role": "user", "content": kind}], max_tokens=4
        )
    return (sum(map(ord, answer.choices[0].message.content or "")) % 101) / 100


def silent(task):
    return 0.5


def broken(task):
    import there_is_no_such_module  # noqa: F401 # pyright: ignore - that is the point


def rewardless(task, llm):
    ask(llm)


def judge(task):
    """Fails on answers to `graded-badly`."""
    if "graded-badly" in str(task["calls"]):
        raise ZeroDivisionError("the grader divides by 0")
    return 0.25 if "even" in str(task["calls"]) else 0.75


def strict(task):
    raise FileNotFoundError("/opt/verifier: there is no such file")


def note_pid(task):
    with Path(task["pids"]).open("a") as file:
        file.write(f"{_noted(os.getpid())}\n")


def _noted(pid):
    return f"{pid}:{os.stat('/proc/self/ns/pid').st_ino}"


def _hang(task):
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    while True:
        time.sleep(1)


def _daemonize(task):
    reader, writer = os.pipe()
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            note_pid(task)
            os.write(writer, b"x")
            os.closerange(3, 256)
            _hang(task)
        os._exit(0)
    os.read(reader, 1)
    subprocess.Popen(["/bin/sleep", "3600"], env={}, start_new_session=True)
    _hang(task)


def _stop(task):
    os.kill(os.getpid(), signal.SIGSTOP)
    time.sleep(3600)


def _await_the_kill(task):
    """The test kills the fork server, which an agent can't where the kernel scopes signals."""
    Path(f"{task['pids']}.kill").write_text(_noted(os.getppid()))
    time.sleep(3600)


def _chatter(task):
    """Alive and busy, and it gets nowhere."""
    while True:
        emit_message("still here")
        time.sleep(0.2)


def _eat(task):
    held = []
    while True:
        held.append(bytearray(16 * 1024 * 1024))


def _print_a_gigabyte(task):
    block = "0123456789abcdef" * 65536
    for _ in range(1024):
        sys.stdout.write(block)
    return 0.5


def _print_no_text(task):
    os.write(1, b"\xff\xfe\x00 is no text\n" * 100)
    return 0.25


def _raise_nul(task):
    raise ValueError("nul \x00 and lone \ud800 surrogate")


def _raise(task):
    raise LookupError("on purpose")


ACTIONS = {
    "raise": _raise,
    "raise-nul": _raise_nul,
    "exit": lambda task: os._exit(7),
    "leave": lambda task: sys.exit("enough"),
    "killed": lambda task: os.kill(os.getpid(), signal.SIGKILL),
    "hang": _hang,
    "daemonize": _daemonize,
    "stop": _stop,
    "chatter": _chatter,
    "silent": lambda task: time.sleep(3600),
    "eat": _eat,
    "nan": lambda task: float("nan"),
    "inf": lambda task: float("inf"),
    "huge": lambda task: 1e308,
    "none": lambda task: None,
    "string": lambda task: "good",
    "ten-megabytes": lambda task: "x" * 10_000_000,
    "no-text": lambda task: b"\xff\xfe\x00",
    "gigabyte": _print_a_gigabyte,
    "prints-no-text": _print_no_text,
    "loses-fork-server": _await_the_kill,
}
