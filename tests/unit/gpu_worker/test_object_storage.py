"""Directories in object storage: complete by their manifest, resumed, verified on the way back."""

from __future__ import annotations

from pathlib import Path

import fsspec
import pytest

from relight.errors import CheckpointError, ConfigError, StorageError
from relight.gpu_worker.complete_directories import verify, write_manifest
from relight.gpu_worker.object_storage import ObjectStorage

NAME = "run/v00001-f7/export"


@pytest.fixture
def storage() -> ObjectStorage:
    files = fsspec.filesystem("memory")
    files.store.clear()
    files.pseudo_dirs[:] = [""]
    return ObjectStorage("memory://bucket/prefix")


@pytest.fixture
def source(tmp_path: Path) -> Path:
    directory = tmp_path / "source"
    (directory / "nested").mkdir(parents=True)
    (directory / "model.safetensors").write_bytes(b"weights")
    (directory / "nested" / "config.json").write_text("{}")
    write_manifest(directory, {"version": 1})
    return directory


def put(storage: ObjectStorage, path: str, content: bytes | None) -> None:
    """Change a stored file behind its owner's back."""
    files = fsspec.filesystem("memory")
    stored = f"/bucket/prefix/{NAME}/{path}"
    if content is None:
        files.rm_file(stored)
    else:
        files.pipe_file(stored, content)


def test_what_was_uploaded_comes_back_verified(storage: ObjectStorage, source: Path, tmp_path: Path) -> None:
    assert storage.upload(source, NAME) == f"memory://bucket/prefix/{NAME}"
    copy = tmp_path / "deep" / "copy"
    assert storage.download(NAME, copy) == verify(copy) == verify(source)
    assert storage.names("run") == {"v00001-f7/export"}
    storage.remove(NAME)
    storage.remove(NAME)
    assert storage.names("run") == set()


@pytest.mark.parametrize(
    ("path", "content", "complaint"),
    [
        ("manifest.json", None, r"was never completed"),
        ("manifest.json", b"{", r"manifest\.json can't be read"),
        ("model.safetensors", None, r"model\.safetensors is missing"),
        ("model.safetensors", b"Weights", r"model\.safetensors was changed"),
        ("model.safetensors", b"weight", r"model\.safetensors has the wrong size"),
    ],
)
def test_a_download_that_is_not_what_was_written_is_refused_and_leaves_nothing(
    storage: ObjectStorage, source: Path, tmp_path: Path, path: str, content: bytes | None, complaint: str
) -> None:
    storage.upload(source, NAME)
    put(storage, path, content)
    with pytest.raises(CheckpointError, match=complaint):
        storage.download(NAME, tmp_path / "copies" / "copy")
    assert list((tmp_path / "copies").iterdir()) == []


def test_an_upload_that_broke_off_sends_only_what_is_missing(
    storage: ObjectStorage, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[str] = []
    whole = type(storage._files).put_file

    def put_file(files: object, source: str, target: str) -> None:
        sent.append(Path(target).name)
        if target.endswith("config.json") and sent.count("config.json") == 1:
            raise ConnectionError("cut")
        whole(files, source, target)

    monkeypatch.setattr(type(storage._files), "put_file", put_file)
    with pytest.raises(StorageError, match="ConnectionError: cut"):
        storage.upload(source, NAME)
    with pytest.raises(CheckpointError, match="was never completed"):
        storage.download(NAME, tmp_path / "incomplete")
    storage.upload(source, NAME)
    storage.download(NAME, tmp_path / "complete")
    assert sorted(sent) == ["config.json", "config.json", "model.safetensors"]


def test_an_empty_address_is_not_found_and_not_damaged(storage: ObjectStorage, tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="check address and bucket"):
        storage.download(NAME, tmp_path / "copy")


def test_another_directory_than_the_one_recorded_is_refused(
    storage: ObjectStorage, source: Path, tmp_path: Path
) -> None:
    storage.upload(source, NAME)
    with pytest.raises(CheckpointError, match="differs from what is recorded"):
        storage.download(NAME, tmp_path / "copy", "0" * 64)


def test_an_unknown_protocol_is_named() -> None:
    with pytest.raises(ConfigError, match="nosuch"):
        ObjectStorage("nosuch://bucket")
