"""Agents that take more than they may, each in another way. Loaded by path."""

from __future__ import annotations

import ctypes
import mmap
import os
import resource
import tempfile
import threading
import time
from pathlib import Path

from relight.emitter import emit_message

MEGABYTE = 2**20


def _hold(value=None):
    time.sleep(600)
    return value


def forks_with_memory(task):
    """In several processes, each of which holds little."""
    for _ in range(4):
        if os.fork() == 0:
            _hold(bytearray(os.urandom(MEGABYTE)) * 40)
    _hold()


def maps_shared_memory(task):
    held = mmap.mmap(-1, 160 * MEGABYTE)
    for start in range(0, len(held), mmap.PAGESIZE):
        held[start] = 1
    _hold(held)


def writes_to_a_file_in_memory(task):
    file = os.memfd_create("held")
    for _ in range(160):
        os.write(file, bytes(MEGABYTE))
    _hold()


def raises_its_soft_limit(task):
    _soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (hard, hard))
    held = []
    while len(held) < 300:
        held.append(bytearray(MEGABYTE))
    _hold(held)


def forks(task):
    for _ in range(60):
        if os.fork() == 0:
            os.setsid()
            _hold()
    _hold()


def starts_threads(task):
    for _ in range(60):
        threading.Thread(target=_hold, daemon=True).start()
    _hold()


def forks_on_and_on(task):
    """Each process starts the next one, in a session of its own, and ends."""
    emit_message("ready")
    while True:
        if os.fork() == 0:
            os.setsid()
            ctypes.CDLL(None).prctl(1, 0, 0, 0, 0)
            time.sleep(0.002)
        else:
            _hold() if os.getpid() == task.setdefault("first", os.getpid()) else os._exit(0)


def fills_the_disk(task):
    for number in range(40):
        Path(tempfile.gettempdir(), str(number)).write_bytes(bytes(MEGABYTE))
    _hold()


def fills_the_disk_unseen(task):
    with tempfile.TemporaryFile() as file:
        for _ in range(40):
            file.write(bytes(MEGABYTE))
        file.flush()
        _hold()


def shares_much(task):
    """Much in one process, which four others see: no more than that in all."""
    held = bytearray(os.urandom(MEGABYTE)) * 60
    children = [os.fork() for _ in range(4)]
    if 0 in children:
        time.sleep(1.5)
        os._exit(0)
    for child in children:
        os.waitpid(child, 0)
    return float(len(held) > 0)
