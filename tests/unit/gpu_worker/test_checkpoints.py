"""Directories of files are whole or refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from relight.errors import CheckpointError
from relight.gpu_worker.checkpoints import (
    commit,
    read_manifest,
    remove_temporary,
    temporary_name,
    verify,
    write_manifest,
)


def write(directory: Path, weights: bytes = b"weights") -> Path:
    (directory / "nested").mkdir(parents=True)
    (directory / "model.safetensors").write_bytes(weights)
    (directory / "nested" / "config.json").write_text("{}")
    return directory


def committed(tmp_path: Path, weights: bytes = b"weights") -> Path:
    final = tmp_path / "export"
    temporary = write(temporary_name(final), weights)
    write_manifest(temporary, {"version": 3})
    commit(temporary, final)
    return final


def test_a_committed_directory_is_verified_with_what_its_writer_says_of_it(tmp_path: Path) -> None:
    manifest = verify(committed(tmp_path))
    assert manifest.meta == {"version": 3}
    assert set(manifest.files) == {"model.safetensors", "nested/config.json"}
    assert manifest.size_bytes == len(b"weights{}")
    assert list(tmp_path.iterdir()) == [tmp_path / "export"]


def tear(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[0] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("damage", "complaint"), [(tear, "is torn"), (flip, "was changed"), (Path.unlink, "is missing")]
)
def test_a_damaged_file_is_named(tmp_path: Path, damage: Callable[[Path], None], complaint: str) -> None:
    final = committed(tmp_path)
    damage(final / "model.safetensors")
    with pytest.raises(CheckpointError, match=rf"model\.safetensors {complaint}"):
        verify(final)


def test_a_file_that_was_added_is_named(tmp_path: Path) -> None:
    final = committed(tmp_path)
    (final / "evil.pt").write_bytes(b"")
    with pytest.raises(CheckpointError, match=r"evil\.pt is not in the manifest"):
        verify(final)


@pytest.mark.parametrize("content", [None, b"{", b'{"files": 3}'])
def test_a_directory_without_a_readable_manifest_was_never_completed(tmp_path: Path, content: bytes | None) -> None:
    directory = write(tmp_path / "export")
    if content is not None:
        (directory / "manifest.json").write_bytes(content)
    with pytest.raises(CheckpointError, match=r"never completed|can't be read"):
        verify(directory)


def test_the_weights_digest_depends_on_the_weights_alone(tmp_path: Path) -> None:
    first = write_manifest(write(tmp_path / "a"), {"run": "a"})
    second = write_manifest(write(tmp_path / "b"), {"run": "b"})
    (tmp_path / "b" / "nested" / "config.json").write_text("[]")
    third = write_manifest(tmp_path / "b")
    assert first.digest == second.digest != third.digest
    assert first.weights_digest == third.weights_digest
    assert write_manifest(write(tmp_path / "c", b"others")).weights_digest != first.weights_digest


def test_the_same_content_committed_twice_is_one_directory(tmp_path: Path) -> None:
    before = read_manifest(committed(tmp_path))
    assert read_manifest(committed(tmp_path)) == before
    assert list(tmp_path.iterdir()) == [tmp_path / "export"]


def test_other_content_under_a_complete_name_is_refused(tmp_path: Path) -> None:
    final = committed(tmp_path)
    with pytest.raises(CheckpointError, match="other content"):
        committed(tmp_path, b"others")
    assert (final / "model.safetensors").read_bytes() == b"weights"


def test_a_torn_directory_gives_way(tmp_path: Path) -> None:
    tear(committed(tmp_path) / "model.safetensors")
    assert (committed(tmp_path, b"others") / "model.safetensors").read_bytes() == b"others"


def test_an_uncommitted_directory_can_be_swept_away(tmp_path: Path) -> None:
    final = committed(tmp_path)
    write(temporary_name(tmp_path / "other"))
    remove_temporary(tmp_path)
    assert list(tmp_path.iterdir()) == [final]
