"""Messages over datagrams."""

from __future__ import annotations

import os
import socket
import threading
from collections import deque

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from relight.runner import frames
from tests.support.examples import examples


def test_a_message_longer_than_a_datagram_arrives_whole() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    payload = os.urandom(5_000_000)
    sender = threading.Thread(target=frames.send, args=(ours, payload))
    sender.start()
    assert frames.receive(theirs) == payload
    sender.join()
    ours.close()
    assert frames.receive(theirs) is None
    theirs.close()


@given(st.lists(st.integers(0, 3 * frames.CHUNK_BYTES + 1), min_size=1, max_size=4), st.randoms(use_true_random=False))
@settings(max_examples=examples(50))
def test_messages_arrive_whole_under_any_interleaving_of_senders(lengths: list[int], random: object) -> None:
    payloads = [bytes([n]) * length for n, length in enumerate(lengths)]
    streams = [list(frames.split(payload)) for payload in payloads]
    assembler, arrived = frames.Assembler(), []
    while any(streams):
        stream = random.choice([s for s in streams if s])  # type: ignore[attr-defined]
        message = assembler.feed(stream.pop(0))
        if message is not None:
            arrived.append(message)
    assert sorted(arrived) == sorted(payloads)


@given(st.binary(max_size=200))
def test_random_bytes_are_a_frame_error_or_a_message(datagram: bytes) -> None:
    assembler = frames.Assembler()
    try:
        message = assembler.feed(datagram)
    except frames.FrameError:
        return
    assert message is None or datagram.endswith(message)


def test_a_message_that_never_ends_is_an_error() -> None:
    assembler = frames.Assembler(limit_bytes=200_000)
    endless = list(frames.split(b"x" * 1_000_000))[:-1]
    with pytest.raises(frames.FrameError, match="unfinished"):
        deque(map(assembler.feed, endless))


def test_many_tiny_unfinished_messages_are_an_error() -> None:
    assembler = frames.Assembler(limit_bytes=1000)
    openings = (next(frames.split(b"x" * (frames.CHUNK_BYTES + 1)))[:10] for _ in range(1000))
    with pytest.raises(frames.FrameError):
        deque(map(assembler.feed, openings))


def test_a_message_over_the_limit_is_not_sent() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs, pytest.raises(frames.FrameError, match="longer than"):
        frames.send(ours, bytes(frames.MAX_MESSAGE_BYTES + 1))
