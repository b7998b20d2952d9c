"""Directories of files are whole or refused."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from relight.errors import CheckpointError
from relight.gpu_worker.complete_directories import (
    FileRecord,
    Manifest,
    commit,
    parse_manifest,
    read_manifest,
    temporary_name,
    verify,
    write_manifest,
)
from tests.support.examples import examples


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


def test_a_committed_directory_is_verified_against_its_writers_manifest(tmp_path: Path) -> None:
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
    ("damage", "complaint"), [(tear, "has the wrong size"), (flip, "was changed"), (Path.unlink, "is missing")]
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


def test_a_torn_directory_is_replaced(tmp_path: Path) -> None:
    tear(committed(tmp_path) / "model.safetensors")
    assert (committed(tmp_path, b"others") / "model.safetensors").read_bytes() == b"others"


FILES = ("model.safetensors", "nested/config.json", "manifest.json")


@settings(max_examples=examples(100), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_no_flipped_bit_and_no_lost_byte_is_accepted_wherever_it_is(tmp_path: Path, data: st.DataObject) -> None:
    final = tmp_path / "export"
    if not final.exists():
        committed(tmp_path)
    path = final / data.draw(st.sampled_from(FILES))
    whole = path.read_bytes()
    content = bytearray(whole)
    position = data.draw(st.integers(0, len(whole) - 1))
    if data.draw(st.booleans()):
        content[position] ^= 1 << data.draw(st.integers(0, 7))
    else:
        del content[position:]
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=path.name.replace(".", r"\.")):
        verify(final)
    path.write_bytes(whole)
    verify(final)


def test_a_flipped_bit_of_a_manifest_is_refused(tmp_path: Path) -> None:
    final = committed(tmp_path)
    whole = (final / "manifest.json").read_bytes()
    for position in range(8 * len(whole)):
        content = bytearray(whole)
        content[position // 8] ^= 1 << position % 8
        with pytest.raises(CheckpointError):
            parse_manifest(bytes(content), "manifest.json")


def test_a_complete_directory_in_the_place_of_another_is_refused(tmp_path: Path) -> None:
    digest = verify(committed(tmp_path)).digest
    other = committed(tmp_path / "other", b"others")
    with pytest.raises(CheckpointError, match="differs from what is recorded"):
        verify(other, digest)


def test_a_missing_directory_is_reported_as_missing(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="nothing is not there"):
        verify(tmp_path / "nothing")


@pytest.mark.parametrize("name", ["../evil", "/etc/evil", "a/../../evil", "manifest.json"])
def test_a_manifest_that_names_files_elsewhere_is_refused(name: str) -> None:
    record = FileRecord(size_bytes=0, sha256="0")
    content = Manifest.of({"a": record}, {}).as_bytes().replace(b'"a"', orjson.dumps(name))
    with pytest.raises(CheckpointError, match="can't be read"):
        parse_manifest(content, "manifest.json")


def test_writers_killed_a_hundred_times_leave_directories_that_are_complete_or_refused(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.unit.gpu_worker.killed_writers", str(tmp_path)]
    output = subprocess.run(command, check=True, capture_output=True, text=True, timeout=300).stdout
    found = json.loads(output)
    print(output)
    for what in ("saves", "uploads"):
        assert "TORN" not in found[what]
        assert found[what]["killed"] == found[what]["then whole"] == 100
        assert found[what].get("whole", 0) + found[what]["refused"] == 100
