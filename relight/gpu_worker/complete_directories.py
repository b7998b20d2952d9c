"""Directories of files that are complete or absent: exports and checkpoints.

A directory is written under a temporary name, every file is flushed to disk, `manifest.json` records the size and
SHA-256 of each and of itself, and only then is the directory renamed into place. Readers verify it first, so a
truncated, changed, missing or added file is refused before verl or vLLM reads it.

Both the trainer process and the GPU worker use this module; it imports no torch and does not depend on what the files
hold. In object storage, which has no rename, `object_storage.py` writes the same manifest last.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path, PurePosixPath
from typing import Any

import orjson
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from relight.errors import CheckpointError

MANIFEST = "manifest.json"
WEIGHTS_SUFFIX = ".safetensors"
_CHUNK_BYTES = 1 << 20
_HASHING_THREADS = 4


class FileRecord(BaseModel):
    """One file of a directory."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    size_bytes: int
    sha256: str


class Manifest(BaseModel):
    """What a complete directory holds."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    files: dict[str, FileRecord]
    """By path relative to the directory."""
    meta: dict[str, Any] = Field(default_factory=dict[str, Any])
    """From the writer: version, batch, number of ranks."""
    checksum: str
    """SHA-256 of the rest of the manifest."""

    @classmethod
    def of(cls, files: dict[str, FileRecord], meta: dict[str, Any]) -> Manifest:
        """With its checksum."""
        return cls(files=files, meta=meta, checksum=_checksum(files, meta))

    @field_validator("files")
    @classmethod
    def _stay_inside(cls, files: dict[str, FileRecord]) -> dict[str, FileRecord]:
        for name in files:
            path = PurePosixPath(name)
            if path.is_absolute() or ".." in path.parts or name == MANIFEST:
                raise ValueError(f"{name!r} is not a path inside the directory")
        return files

    def as_bytes(self) -> bytes:
        """The content of the file; equal manifests have equal bytes."""
        return orjson.dumps(self.model_dump(), option=orjson.OPT_INDENT_2)

    @property
    def digest(self) -> str:
        """Hash of all files together; equal digests mean equal content."""
        return _digest(self.files)

    @property
    def weights_digest(self) -> str:
        """Hash of the weight files alone: two exports of the same weights agree on it."""
        return _digest({name: record for name, record in self.files.items() if name.endswith(WEIGHTS_SUFFIX)})

    @property
    def size_bytes(self) -> int:
        return sum(record.size_bytes for record in self.files.values())


def _checksum(files: dict[str, FileRecord], meta: dict[str, Any]) -> str:
    plain = {name: record.model_dump() for name, record in files.items()}
    return hashlib.sha256(orjson.dumps([plain, meta])).hexdigest()


def _digest(files: dict[str, FileRecord]) -> str:
    lines = (f"{name}\0{record.sha256}\n" for name, record in sorted(files.items()))
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def write_manifest(directory: Path, meta: dict[str, Any] | None = None) -> Manifest:
    """Hash and flush every file of the directory, and write its manifest; the last thing before `commit`."""
    names = sorted(_file_names(directory))
    with ThreadPoolExecutor(_HASHING_THREADS) as pool:
        records = list(pool.map(_record_and_flush, [directory / name for name in names]))
    manifest = Manifest.of(dict(zip(names, records, strict=True)), meta or {})
    (directory / MANIFEST).write_bytes(manifest.as_bytes())
    _flush_path(directory / MANIFEST)
    _flush_directories(directory)
    return manifest


def read_manifest(directory: Path) -> Manifest:
    """The manifest as written; the files are not checked.

    Raises:
        CheckpointError: there is none, or it can't be read.
    """
    path = directory / MANIFEST
    try:
        return parse_manifest(path.read_bytes(), str(path))
    except FileNotFoundError as error:
        what = f"has no {MANIFEST}: it was never completed" if directory.is_dir() else "is not there"
        raise CheckpointError(f"{directory} {what}") from error
    except OSError as error:
        raise CheckpointError(f"{path} can't be read: {error}") from error


def parse_manifest(content: bytes, where: str) -> Manifest:
    """Parse a manifest, if its bytes are those that were written.

    Raises:
        CheckpointError: they are truncated or changed.
    """
    try:
        manifest = Manifest.model_validate(orjson.loads(content))
    except (orjson.JSONDecodeError, ValidationError) as error:
        raise CheckpointError(f"{where} can't be read: {str(error).splitlines()[0]}") from error
    # A flip that changes no value changes the bytes: the manifest is refused as any other file would be.
    if manifest.checksum != _checksum(manifest.files, manifest.meta) or manifest.as_bytes() != content:
        raise CheckpointError(f"{where} was changed after it was written")
    return manifest


def verify(directory: Path, digest: str | None = None) -> Manifest:
    """Compare every file with the manifest, and the manifest with the recorded digest, if there is one.

    Raises:
        CheckpointError: naming the file that is missing, added, truncated or changed.
    """
    manifest = read_manifest(directory)
    if digest is not None and manifest.digest != digest:
        raise CheckpointError(f"{directory} differs from what is recorded: its digest is {manifest.digest[:12]}")
    present = set(_file_names(directory))
    _refuse_strangers(directory, present, set(manifest.files))
    with ThreadPoolExecutor(_HASHING_THREADS) as pool:
        list(pool.map(_verify_file, [directory / name for name in manifest.files], manifest.files.values()))
    return manifest


def weights_digest_of(model_dir: Path) -> str:
    """Hash of the weights of a directory without a manifest: the model that a run was given."""
    names = sorted(path.name for path in model_dir.iterdir() if path.suffix in (WEIGHTS_SUFFIX, ".bin"))
    return _digest({name: _record(model_dir / name) for name in names})


def commit(temporary: Path, final: Path) -> Manifest:
    """Rename a directory with a manifest into place.

    A complete directory of the same content that is there already is kept (the same call twice is harmless), a damaged
    one is replaced.

    Raises:
        CheckpointError: there is a complete directory with other content.
    """
    manifest = read_manifest(temporary)
    final.parent.mkdir(parents=True, exist_ok=True)
    if final.exists() and not _give_way(final, manifest):
        shutil.rmtree(temporary)
        return read_manifest(final)
    temporary.rename(final)
    for parent in (final.parent, final.parent.parent):  # the folder of a version is as new as what is in it
        _flush_path(parent)
    return manifest


def temporary_name(final: Path) -> Path:
    """The name under which `final` is written before it is complete, on the same file system."""
    return final.with_name(f".{final.name}.tmp-{os.getpid()}")


def remove_temporary(parent: Path) -> None:
    """Remove unfinished directories of writers that died; call it only when no process writes to `parent`."""
    for path in parent.glob(".*.tmp-*"):
        shutil.rmtree(path, ignore_errors=True)


def _give_way(final: Path, manifest: Manifest) -> bool:
    """Remove the directory at `final` if it is damaged; whether it was."""
    try:
        present = verify(final)
    except CheckpointError:
        shutil.rmtree(final)
        return True
    if present.digest != manifest.digest:
        raise CheckpointError(f"{final} exists already with other content")
    return False


def _file_names(directory: Path) -> Iterator[str]:
    for path in directory.rglob("*"):
        if path.is_file() and path.relative_to(directory).as_posix() != MANIFEST:
            yield path.relative_to(directory).as_posix()


def _refuse_strangers(directory: Path, present: set[str], recorded: set[str]) -> None:
    if missing := sorted(recorded - present):
        raise CheckpointError(f"{directory / missing[0]} is missing")
    if added := sorted(present - recorded):
        raise CheckpointError(f"{directory / added[0]} is not in the {MANIFEST}")


def _verify_file(path: Path, recorded: FileRecord) -> None:
    try:
        size = path.stat().st_size
        if size != recorded.size_bytes:
            raise CheckpointError(f"{path} has the wrong size: {size} bytes, {recorded.size_bytes} were written")
        found = _record(path)
    except OSError as error:  # the disk failed, or the file was removed meanwhile
        raise CheckpointError(f"{path} can't be read: {error}") from error
    if found.sha256 != recorded.sha256:
        raise CheckpointError(f"{path} was changed: its SHA-256 is not the one in the {MANIFEST}")


def _record(path: Path) -> FileRecord:
    hasher = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            hasher.update(chunk)
        return FileRecord(size_bytes=file.tell(), sha256=hasher.hexdigest())


def _record_and_flush(path: Path) -> FileRecord:
    _flush_path(path)
    return _record(path)


def _flush_directories(directory: Path) -> None:
    for path in (directory, *(path for path in directory.rglob("*") if path.is_dir())):
        _flush_path(path)


def _flush_path(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
