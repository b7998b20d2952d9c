"""What `relight up` prints of its stack."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from relight.cli.up import EventPrinter
from relight.stack.supervisor import StackEvent


@pytest.mark.parametrize("channel", [os.openpty, os.pipe])
def test_the_stores_url_is_shown_without_its_token_in_a_pipe_and_at_a_terminal(
    channel: Callable[[], tuple[int, int]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RELIGHT_HOME", str(tmp_path))
    monkeypatch.setenv("RELIGHT_TOKEN", "a-token-of-the-admin")
    reader, writer = channel()
    with os.fdopen(writer, "w") as stdout, monkeypatch.context() as patched:
        patched.setattr(sys, "stdout", stdout)
        EventPrinter(None)(StackEvent("url", "store", "store: http://127.0.0.1:1"))
        stdout.flush()
        text = os.read(reader, 1000).decode()
    os.close(reader)
    assert "127.0.0.1:1" in text
    assert "a-token-of-the-admin" not in text
