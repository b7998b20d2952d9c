"""Directories with a manifest in object storage, by fsspec: `s3://bucket/prefix`, `gs://...`, `memory://` in tests.

Object storage has no rename, so a directory is complete when its manifest is there: it is uploaded last, each file by
one put. An interrupted upload continues with the missing files; a download is hashed before it is renamed into place.
Credentials come from the environment, as the storage's own package reads them; none is stored or shown.

The calls block; make them from a thread.
"""

from __future__ import annotations

import posixpath
import shutil
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import fsspec

from relight.errors import CheckpointError, ConfigError, RelightError, StorageError
from relight.faults import FaultPoint, fault_point
from relight.gpu_worker.complete_directories import MANIFEST, Manifest, commit, parse_manifest, temporary_name, verify

_TRANSFERS = 4
_LISTING_OFF = {"use_listings_cache": False}
"""So that files which another host has just written are found."""


def is_remote(location: str) -> bool:
    """Whether a location is a URL of object storage, not a directory."""
    return "://" in location


class ObjectStorage:
    """The directories below one URL."""

    def __init__(self, url: str) -> None:
        """Connects to nothing yet.

        Raises:
            ConfigError: the protocol is unknown, or its package is not installed.
        """
        self.url = url.rstrip("/")
        try:
            self._files, self._root = _open(self.url)
        except (ImportError, ValueError) as error:
            raise ConfigError(f"checkpoints: {url} can't be used: {error}") from error

    def upload(self, directory: Path, name: str) -> str:
        """Copy a complete directory to `<url>/<name>`; files that are there already are not sent. Returns its URL.

        Raises:
            CheckpointError: the directory is not complete.
            StorageError: the upload failed.
        """
        content = (directory / MANIFEST).read_bytes()
        manifest = parse_manifest(content, str(directory / MANIFEST))
        with self._reached(name):
            there = self._sizes(name)
            missing = [file for file, record in manifest.files.items() if there.get(file) != record.size_bytes]
            _each(lambda file: self._put(directory / file, name, file), missing)
            self._check_sizes(manifest, name)
            self._files.pipe_file(self._path(name, MANIFEST), content)
        return f"{self.url}/{name}"

    def download(self, name: str, final: Path, digest: str | None = None) -> Manifest:
        """Copy a complete directory to `final`, hash it, and rename it into place.

        Raises:
            CheckpointError: it is not complete, was changed, or differs from what is recorded.
            StorageError: the download failed.
        """
        temporary = temporary_name(final)
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True)
        try:
            manifest = self._manifest(name)
            _each(lambda file: self._get(name, file, temporary / file), manifest.files)
            (temporary / MANIFEST).write_bytes(manifest.as_bytes())
            verify(temporary, digest)
            return commit(temporary, final)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)

    def names(self, name: str) -> set[str]:
        """The directories two levels below, as `<version>/<kind>`, complete or not."""
        with self._reached(name):
            return {"/".join(file.split("/")[:2]) for file in self._sizes(name) if file.count("/") >= 2}

    def remove(self, name: str) -> None:
        """Remove all files below a name, the manifest first; no error if there are none."""
        with self._reached(name):
            for path in (self._path(name, MANIFEST), self._path(name)):
                if self._files.exists(path):
                    self._files.rm(path, recursive=True)

    def _manifest(self, name: str) -> Manifest:
        with self._reached(name):
            try:
                content = self._files.cat_file(self._path(name, MANIFEST))
            except FileNotFoundError:
                raise self._missing(f"{name} has no {MANIFEST}: it was never completed") from None
        return parse_manifest(content, f"{self.url}/{name}/{MANIFEST}")

    def _put(self, source: Path, name: str, file: str) -> None:
        self._files.put_file(str(source), self._path(name, file))
        fault_point(FaultPoint.UPLOADING)

    def _get(self, name: str, file: str, target: Path) -> None:
        target.parent.mkdir(parents=True, exist_ok=True)
        with self._reached(name):
            try:
                self._files.get_file(self._path(name, file), str(target))
            except FileNotFoundError:
                raise self._missing(f"{name}/{file} is missing") from None

    def _missing(self, what: str) -> RelightError:
        """CheckpointError, or StorageError if the whole storage is empty: then the address is probably wrong."""
        if not self._files.exists(self._root):
            return StorageError(f"checkpoint storage {self.url} is empty or does not exist; check address and bucket")
        return CheckpointError(f"{self.url}/{what}")

    def _sizes(self, name: str) -> dict[str, int]:
        """Size of each file below a name, by its path from there."""
        top = self._path(name)
        try:
            found: dict[str, Any] = self._files.find(top, detail=True)
        except FileNotFoundError:
            return {}
        start = len(self._files._strip_protocol(top)) + 1
        return {path[start:]: int(info["size"]) for path, info in found.items()}

    def _check_sizes(self, manifest: Manifest, name: str) -> None:
        there = self._sizes(name)
        for file, record in manifest.files.items():
            if there.get(file) != record.size_bytes:
                raise StorageError(f"{self.url}/{name}/{file} was not uploaded completely; trying again")

    def _path(self, *names: str) -> str:
        return posixpath.join(self._root, *names)

    @contextmanager
    def _reached(self, name: str) -> Generator[None]:
        try:
            yield
        except RelightError:
            raise
        # fsspec's file systems have no common error type: any other error means that the storage can't be used.
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
            raise StorageError(f"checkpoint storage {self.url}/{name}: {reason}") from error


def _open(url: str) -> tuple[Any, str]:
    folders = {"auto_mkdir": True} if url.startswith("local://") else {}  # buckets have no folders to make
    return fsspec.core.url_to_fs(url, **_LISTING_OFF, **folders)


def _each(do: Callable[[str], None], files: Iterable[str]) -> None:
    with ThreadPoolExecutor(_TRANSFERS) as pool:
        list(pool.map(do, files))
