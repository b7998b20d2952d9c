"""Agents that call a model by bare HTTP and leave files that say how far they are. Loaded by path into the template."""

from __future__ import annotations

import asyncio
import http.client
import json
import time
from pathlib import Path
from urllib.parse import urlsplit


def _say(task, what):
    Path(task["folder"], what).touch()


def _await(task, what):
    while not Path(task["folder"], what).exists():
        time.sleep(0.01)


def _call(llm, question, timeout=30.0):
    url = urlsplit(llm.endpoint)
    connection = http.client.HTTPConnection(url.hostname, url.port, timeout=timeout)
    try:
        connection.request("POST", f"{url.path}/chat/completions", json.dumps(question).encode())
        return json.loads(connection.getresponse().read())
    finally:
        connection.close()


def computes(task, llm):
    """Has its answer, and works on it while the gateway dies."""
    _call(llm, {"say": "at once"})
    _say(task, "ready")
    _await(task, "go")
    return 0.25


async def computes_async(task, llm):
    return await asyncio.to_thread(computes, task, llm)


def swallows(task, llm):
    """Asks what is never answered, and gives a reward all the same."""
    try:
        _call(llm, {"say": "never", "ready": str(Path(task["folder"], "ready"))})
    except (OSError, http.client.HTTPException):
        _say(task, "raised")
    return 0.5


def lingers(task, llm):
    """Makes nothing of a call that got lost, and comes to no end."""
    swallows(task, llm)
    time.sleep(600)


async def swallows_async(task, llm):
    return await asyncio.to_thread(swallows, task, llm)


def asks_when_it_is_gone(task, llm):
    """Is refused, says nothing of it, and gives a reward."""
    _say(task, "ready")
    _await(task, "go")
    return swallows(task, llm)


def raises(task, llm):
    """As most agents do."""
    _call(llm, {"say": "never", "ready": str(Path(task["folder"], "ready"))})


def asks_again(task, llm):
    """Repeats a call that was cut until it is answered."""
    while True:
        try:
            _call(llm, {"say": "the second time", "ready": str(Path(task["folder"], "ready"))})
            return 0.75
        except (OSError, http.client.HTTPException):
            time.sleep(0.05)


def gives_up(task, llm):
    """Has less patience than the gateway."""
    _say(task, "ready")
    _await(task, "go")
    try:
        _call(llm, {"say": "never", "ready": str(Path(task["folder"], "asked"))}, timeout=0.5)
    except (OSError, http.client.HTTPException):
        _say(task, "raised")
    return 1.0
