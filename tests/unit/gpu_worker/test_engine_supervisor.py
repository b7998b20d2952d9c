"""Where an engine's socket lies."""

from __future__ import annotations

import shutil
import socket
import tempfile
import uuid
from pathlib import Path

import pytest

from relight.gpu_worker.engine_supervisor import socket_path


@pytest.mark.parametrize("length", [5, 120])
def test_an_engines_socket_path_is_short_however_long_the_home_folders_name_is(tmp_path: Path, length: int) -> None:
    home = tmp_path / ("x" * length)
    home.mkdir()
    path = socket_path(home)
    (path.parent / "rpc").mkdir()
    for name in (path, path.parent / "rpc" / str(uuid.uuid4())):
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(name))
    assert path.parent.stat().st_mode & 0o077 == 0
    if home not in path.parents:
        shutil.rmtree(path.parent)


def test_an_engines_socket_is_in_its_home_folder_if_its_path_is_short_enough() -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as home:
        assert Path(home).resolve() in socket_path(Path(home)).parents
