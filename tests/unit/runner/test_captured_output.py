"""The end of what a process printed."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from relight.runner.captured_output import OutputTail


@given(st.lists(st.binary(max_size=40), max_size=30), st.integers(1, 64))
def test_a_tail_counts_everything_and_can_be_stored(chunks: list[bytes], limit: int) -> None:
    tail = OutputTail(limit)
    for chunk in chunks:
        tail.write(chunk)
    whole = b"".join(chunks)
    assert tail.total_bytes == len(whole)
    assert "\x00" not in tail.text()
    assert len(tail.text()) <= limit


@given(st.lists(st.text("abc\n", max_size=40), max_size=30), st.integers(1, 64))
def test_a_tail_is_the_end_of_the_text(chunks: list[str], limit: int) -> None:
    tail = OutputTail(limit)
    for chunk in chunks:
        tail.write(chunk.encode())
    assert tail.text() == "".join(chunks)[-limit:]


def test_a_cut_in_a_character_leaves_whole_ones() -> None:
    tail = OutputTail(4)
    tail.write("\u2603\u2603".encode())
    assert tail.text() == "\u2603"
