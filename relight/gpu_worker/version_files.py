"""The files of a run's policy versions: in a directory of this host, in a shared one, or in object storage.

    <root>/<run>/<policy>-v<version>-f<fence>/export | checkpoint

A recorded location is a path, or a URL of object storage. The trainer always writes to a directory, named by the fence
of its lease; for object storage this directory is uploaded and stays as this host's copy.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import re
import shutil
from collections.abc import Collection
from pathlib import Path

from relight.errors import CheckpointError
from relight.gpu_worker.complete_directories import MANIFEST, Manifest, verify
from relight.gpu_worker.object_storage import ObjectStorage, is_remote
from relight.store.training.ledger import PolicyVersion
from relight.types.names import POLICY

log = logging.getLogger(__name__)

EXPORT, CHECKPOINT = "export", "checkpoint"
_FOLDER = re.compile(rf"{POLICY}-v(\d+)-f(\d+)")


class VersionFiles:
    """The version files of one run, for one host."""

    def __init__(self, home: Path, run: str, url: str | None = None) -> None:
        """Connects to no storage yet.

        Args:
            home: of this host; copies and new versions are under its `runs`.
            url: of the run's storage; None: this host's home.

        Raises:
            ConfigError: the URL can't be used on this host.
        """
        self.run = run
        self.home = home
        self.storage = ObjectStorage(url) if url and is_remote(url) and not url.startswith("file://") else None
        directory = url.removeprefix("file://") if url and self.storage is None else None
        self.folder = Path(directory).expanduser().resolve() / run if directory else copies_of(home, run)

    def stage(self, version: int, fence: int) -> Path:
        """The directory to which a version is written under a lease."""
        return self.folder / f"{POLICY}-v{version:05d}-f{fence}"

    async def staged(self, version: int, batch: str, checkpoint: bool) -> tuple[Path, Manifest] | None:
        """A version that was written completely from a batch, but not recorded because its writer died."""
        return await asyncio.to_thread(self._staged, version, batch, checkpoint)

    async def publish(self, version: PolicyVersion) -> PolicyVersion:
        """Move a written version to its final location, where it becomes visible only when complete.

        Raises:
            StorageError: the upload failed; files that arrived are not sent again.
        """
        if self.storage is None:
            return version
        locations = [await self._upload(Path(version.export_path))]
        if version.checkpoint_path:
            locations.append(await self._upload(Path(version.checkpoint_path)))
        return dataclasses.replace(
            version, export_path=locations[0], checkpoint_path=locations[1] if version.checkpoint_path else None
        )

    async def open(self, location: str, digest: str | None = None) -> Path:
        """A verified directory with the files of a location; downloaded if this host has no good copy.

        Raises:
            CheckpointError: files are truncated, changed or missing, or differ from what is recorded.
            StorageError: the storage does not answer.
        """
        return await asyncio.to_thread(self._open, location, digest)

    async def can_read(self, location: str) -> bool:
        """Whether this host can read a location: it is in object storage or in a directory that exists here."""
        return is_remote(location) or await asyncio.to_thread((Path(location) / MANIFEST).exists)

    async def remove(self, location: str) -> None:
        """Remove the files of a location, and this host's copy."""
        await asyncio.to_thread(self._remove, location)

    async def sweep(self, wanted: Collection[str], fence: int) -> list[str]:
        """Remove files of updates up to a fence that are not wanted: superseded, incomplete, or recorded as deleted.

        Returns what was removed.
        """
        return await asyncio.to_thread(self._sweep, frozenset(wanted), fence)

    def _staged(self, version: int, batch: str, checkpoint: bool) -> tuple[Path, Manifest] | None:
        for folder in sorted(self.folder.glob(f"{POLICY}-v{version:05d}-f*"), reverse=True):
            kinds = (EXPORT, CHECKPOINT) if checkpoint else (EXPORT,)
            try:
                manifests = [verify(folder / kind) for kind in kinds]
            except CheckpointError:
                continue
            wanted = {"run": self.run, "policy": POLICY, "version": version, "batch": batch}
            if all(wanted.items() <= manifest.meta.items() for manifest in manifests):
                return folder, manifests[0]
        return None

    async def _upload(self, directory: Path) -> str:
        assert self.storage is not None
        name = f"{self.run}/{directory.parent.name}/{directory.name}"
        return await asyncio.to_thread(self.storage.upload, directory, name)

    def _open(self, location: str, digest: str | None) -> Path:
        copy = self._copy(location)
        try:
            verify(copy, digest)
        except CheckpointError:
            if not is_remote(location):
                raise
            shutil.rmtree(copy, ignore_errors=True)
            storage, name = _storage_of(location)
            log.info("downloading %s", location, extra={"action": "checkpoint_download"})
            storage.download(name, copy, digest)
        return copy

    def _copy(self, location: str) -> Path:
        if not is_remote(location):
            return Path(location)
        run, folder, kind = location.split("/")[-3:]
        return copies_of(self.home, run) / folder / kind

    def _remove(self, location: str) -> None:
        if is_remote(location):
            storage, name = _storage_of(location)
            storage.remove(name)
        _remove_directory(self._copy(location))

    def _sweep(self, wanted: frozenset[str], fence: int) -> list[str]:
        removed: list[str] = []
        for directory in sorted(self.folder.glob(f"{POLICY}-v*-f*/*")):
            if _is_old(directory.parent.name, fence) and self._location_of(directory) not in wanted:
                _remove_directory(directory)
                removed.append(str(directory))
        if self.storage:
            for name in sorted(self.storage.names(self.run)):
                location = f"{self.storage.url}/{self.run}/{name}"
                if _is_old(name.split("/")[0], fence) and location not in wanted:
                    self.storage.remove(f"{self.run}/{name}")
                    removed.append(location)
        return removed

    def _location_of(self, directory: Path) -> str:
        """The location under which a directory is recorded."""
        if self.storage is None:
            return str(directory)
        return f"{self.storage.url}/{self.run}/{directory.parent.name}/{directory.name}"


def copies_of(home: Path, run: str) -> Path:
    """The directory in which this host has versions of a run."""
    return home / "runs" / run / "versions"


def _storage_of(location: str) -> tuple[ObjectStorage, str]:
    url, *names = location.rsplit("/", 3)
    return ObjectStorage(url), "/".join(names)


def _is_old(folder: str, fence: int) -> bool:
    found = _FOLDER.fullmatch(folder)
    return found is not None and int(found[2]) <= fence


def _remove_directory(directory: Path) -> None:
    """Remove the manifest first, so that an interrupted removal leaves nothing that looks complete."""
    (directory / MANIFEST).unlink(missing_ok=True)
    shutil.rmtree(directory, ignore_errors=True)
    try:
        directory.parent.rmdir()
    except OSError:  # something else is in it, or it is gone
        return
