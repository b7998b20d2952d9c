"""The home folder's lock, token and stack.json."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from relight.errors import StackError
from relight.settings import resolve
from relight.stack import stack_file

HOLDER = """
import sys, time
from pathlib import Path
from relight.stack.stack_file import locked
with locked(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


def hold(home: Path) -> subprocess.Popen[str]:
    process = subprocess.Popen([sys.executable, "-c", HOLDER, str(home)], stdout=subprocess.PIPE, text=True)
    assert process.stdout
    assert process.stdout.readline() == "held\n"
    return process


def test_a_second_stack_is_refused_with_the_pid_of_the_first(tmp_path: Path) -> None:
    with (
        stack_file.locked(tmp_path),
        pytest.raises(StackError, match=rf"running already \(pid {os.getpid()}\)"),
        stack_file.locked(tmp_path),
    ):
        pass


def test_a_lock_ends_with_its_block(tmp_path: Path) -> None:
    with stack_file.locked(tmp_path):
        assert stack_file.running_pid(tmp_path) == os.getpid()
    assert stack_file.running_pid(tmp_path) is None


def test_a_killed_holder_leaves_no_lock(tmp_path: Path) -> None:
    process = hold(tmp_path)
    assert stack_file.running_pid(tmp_path) == process.pid
    process.kill()
    process.wait()
    assert stack_file.running_pid(tmp_path) is None


def test_end_stops_the_holder_and_waits_for_it(tmp_path: Path) -> None:
    process = hold(tmp_path)
    assert stack_file.end(tmp_path, timeout_seconds=10) == process.pid
    assert process.wait() < 0


def test_ending_without_a_holder_does_nothing(tmp_path: Path) -> None:
    assert stack_file.end(tmp_path) is None


def test_the_token_is_made_once_and_for_its_owner_alone(tmp_path: Path) -> None:
    token = stack_file.ensure_token(tmp_path)
    assert stack_file.ensure_token(tmp_path) == token
    assert len(token) >= 40
    assert stat.S_IMODE((tmp_path / "token").stat().st_mode) == 0o600


def test_settings_read_the_token_and_the_addresses_of_a_stack(tmp_path: Path) -> None:
    token = stack_file.ensure_token(tmp_path)
    stack_file.write_stack(tmp_path, {"settings": {"store_url": "http://127.0.0.1:9"}, "pid": 1, "processes": {}})
    resolved = resolve({"home": tmp_path}, environ={})
    assert resolved.settings.token_value == token
    assert resolved.settings.store_url == "http://127.0.0.1:9"
    assert resolved.sources["store_url"] == str(tmp_path / "stack.json")


def test_a_write_that_fails_leaves_the_old_file(tmp_path: Path) -> None:
    stack_file.write_stack(tmp_path, {"pid": 1})
    with pytest.raises(TypeError):
        stack_file.write_stack(tmp_path, {"pid": object()})
    assert json.loads((tmp_path / "stack.json").read_text()) == {"pid": 1}
    assert stat.S_IMODE((tmp_path / "stack.json").stat().st_mode) == 0o600
