"""Services as processes: signals."""

from __future__ import annotations

import signal
import subprocess
import sys

PROGRAM = """
import asyncio
from relight.cli.event_loop import run_service

async def main():
    print("up", flush=True)
    try:
        await asyncio.sleep(60)
    finally:
        print("draining", flush=True)
        {drain}

run_service(main())
"""


def start(drain: str) -> subprocess.Popen[str]:
    program = PROGRAM.format(drain=drain)
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert process.stdout
    assert process.stdout.readline() == "up\n"
    return process


def test_a_service_that_is_stopped_drains_and_succeeds() -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        process = start("await asyncio.sleep(0.01)")
        process.send_signal(number)
        assert process.wait(20) == 0
        assert process.stdout
        assert process.stdout.read() == "draining\n"


def test_a_second_signal_ends_it_at_once() -> None:
    process = start("await asyncio.sleep(60)")
    process.send_signal(signal.SIGTERM)
    assert process.stdout
    assert process.stdout.readline() == "draining\n"
    process.send_signal(signal.SIGTERM)
    assert process.wait(20) == 128 + signal.SIGTERM


SERVER = """
import asyncio, signal
from relight.cli.event_loop import run_service

async def main():
    told = asyncio.Event()
    loop = asyncio.get_running_loop()
    signal.signal(signal.SIGTERM, lambda *_: loop.call_soon_threadsafe(told.set))
    print("up", flush=True)
    await told.wait()
    await asyncio.sleep(0.05)
    print("drained", flush=True)

run_service(main())
"""


def test_a_server_with_a_signal_handler_of_its_own_is_not_cancelled_while_it_drains() -> None:
    process = subprocess.Popen([sys.executable, "-c", SERVER], stdout=subprocess.PIPE, text=True)
    assert process.stdout
    assert process.stdout.readline() == "up\n"
    process.terminate()
    assert process.stdout.read() == "drained\n"
    assert process.wait(20) == 0
