"""The launcher's order, on PATHs and caches made for the purpose."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from relight.stack import temporal_binary

Maker = Callable[[Path, str], Path]


@pytest.fixture
def make() -> Maker:
    """Writes an executable that answers --version as `temporal` does."""

    def write(path: Path, server: str) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"#!/bin/sh\necho 'temporal version 1.0.0 (Server {server}, UI 2.0.0)'\n")
        path.chmod(0o755)
        return path

    return write


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    return {"PATH": f"{tmp_path / 'path'}", "XDG_CACHE_HOME": str(tmp_path / "cache"), "HOME": str(tmp_path)}


def test_a_server_on_path_is_preferred_to_the_caches(tmp_path: Path, make: Maker, environ: dict[str, str]) -> None:
    on_path = make(tmp_path / "path" / "temporal", "1.31.2")
    make(tmp_path / "home" / "bin" / "temporal", "1.31.2")
    make(tmp_path / "cache" / "relight" / "temporal-1.8.2", "1.31.2")
    found = temporal_binary.find(tmp_path / "home", environ).found
    assert found == temporal_binary.Binary(on_path, "1.31.2", "PATH")


def test_a_server_that_is_too_old_is_skipped_and_reported(tmp_path: Path, make: Maker, environ: dict[str, str]) -> None:
    old = make(tmp_path / "path" / "temporal", "1.28.3")
    cached = make(tmp_path / "cache" / "relight" / "temporal-1.8.2", "1.29.0")
    search = temporal_binary.find(tmp_path / "home", environ)
    assert search.found == temporal_binary.Binary(cached, "1.29.0", "cache")
    assert search.notes == [f"{old} is not used: its server is 1.28.3, and 1.29 or newer is needed"]


def test_the_projects_own_server_is_preferred_to_the_shared_cache(
    tmp_path: Path, make: Maker, environ: dict[str, str]
) -> None:
    own = make(tmp_path / "home" / "bin" / "temporal", "1.30.0")
    make(tmp_path / "cache" / "relight" / "temporal-1.8.2", "1.31.0")
    assert temporal_binary.find(tmp_path / "home", environ).found == temporal_binary.Binary(own, "1.30.0", "project")


def test_a_half_written_download_is_not_used(tmp_path: Path, make: Maker, environ: dict[str, str]) -> None:
    make(tmp_path / "cache" / "relight" / "temporal-1.8.2.77.partial", "1.31.0")
    assert temporal_binary.find(tmp_path / "home", environ).found is None


def test_a_command_that_is_not_a_temporal_server_is_skipped(tmp_path: Path, environ: dict[str, str]) -> None:
    other = tmp_path / "path" / "temporal"
    other.parent.mkdir()
    other.write_text("#!/bin/sh\necho hello\n")
    other.chmod(0o755)
    search = temporal_binary.find(tmp_path / "home", environ)
    assert search.found is None
    assert search.notes == [f"{other} is not used: it does not name its server's version"]


def test_a_build_without_go_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(RuntimeError, match="Go is not installed"):
        temporal_binary.build(tmp_path, tmp_path / "out", tmp_path / "scratch", tmp_path / "log")


def test_a_failed_build_leaves_nothing_and_shows_its_last_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go = tmp_path / "path" / "go"
    go.parent.mkdir()
    go.write_text("#!/bin/sh\necho 'module lookup disabled'\nexit 1\n")
    go.chmod(0o755)
    monkeypatch.setenv("PATH", f"{go.parent}:/bin:/usr/bin")
    target = tmp_path / "out" / "temporal"
    with pytest.raises(RuntimeError, match="module lookup disabled"):
        temporal_binary.build(tmp_path, target, tmp_path / "scratch", tmp_path / "log")
    assert list(target.parent.iterdir()) == []


def test_the_message_lists_every_way_to_get_a_server() -> None:
    for way in ("TEMPORAL_ADDRESS", "PATH", temporal_binary.DOWNLOAD_HOST, "Go"):
        assert way in temporal_binary.WAYS


def test_the_module_needs_only_the_standard_library() -> None:
    source = Path(temporal_binary.__file__).read_text()
    names = [line.split()[1] for line in source.splitlines() if line.startswith(("import ", "from "))]
    assert {name.split(".")[0] for name in names} <= sys.stdlib_module_names
