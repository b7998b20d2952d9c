"""How an agent learns that its spans have their place."""

from __future__ import annotations

import asyncio

import pytest

from relight.errors import StoreError
from relight.runner.numbering import Numbering
from relight.runner.process_messages import Number


class Channel:
    """Keeps what the agent's process is sent."""

    def __init__(self) -> None:
        self.answers: list[int] = []
        self.came = asyncio.Event()

    async def send(self, call: int, message: Number) -> None:
        self.answers.append(message.number)
        self.came.set()


async def test_questions_are_answered_after_the_spans_are_stored_and_the_last_answers_all() -> None:
    gate, flushed = asyncio.Event(), 0

    async def flush() -> None:
        nonlocal flushed
        await gate.wait()
        flushed += 1

    channel, numbering = Channel(), Numbering(flush)
    numbering.send = channel.send
    assert numbering.ask(1)
    await asyncio.sleep(0)
    assert numbering.ask(2)
    assert numbering.ask(3)
    assert channel.answers == []
    gate.set()
    async with asyncio.timeout(10):
        while channel.answers[-1:] != [3]:
            channel.came.clear()
            await channel.came.wait()
    assert (channel.answers, flushed) == ([1, 3], 2)


async def test_a_question_is_not_answered_while_the_store_is_away_and_the_next_one_is() -> None:
    away = [True]

    async def flush() -> None:
        if away.pop():
            away.append(False)
            raise StoreError("away")
        away.append(False)

    channel, numbering = Channel(), Numbering(flush)
    numbering.send = channel.send
    numbering.ask(1)
    for _ in range(5):
        await asyncio.sleep(0)
    numbering.ask(2)
    async with asyncio.timeout(10):
        await channel.came.wait()
    assert channel.answers == [2]


@pytest.mark.parametrize("number", [0, -1, 2**53])
async def test_what_is_no_number_is_no_question(number: int) -> None:
    assert not Numbering(None).ask(number)
