"""Where a run's policy versions lie: a directory of this host or of many, or object storage.

    <place>/<run>/v<version>-f<fence>/export | checkpoint

A place on record is a path, or the URL of object storage. The trainer always writes to a directory, named by the fence
of its lease; for object storage that is a stage, which is uploaded and stays as this host's copy.
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
from relight.gpu_worker.checkpoints import MANIFEST, Manifest, verify
from relight.gpu_worker.object_storage import ObjectStorage, is_remote
from relight.store.ledger import Version

log = logging.getLogger(__name__)

EXPORT, CHECKPOINT = "export", "checkpoint"
_FOLDER = re.compile(r"v(\d+)-f(\d+)")


class VersionFiles:
    """The files of one run, as one host sees them."""

    def __init__(self, home: Path, run: str, url: str | None = None) -> None:
        """Reach nothing yet.

        Args:
            home: of this host; copies and stages lie under its `runs`.
            url: of the run's storage; None: this host's home itself.

        Raises:
            ConfigError: a URL that can't be used here.
        """
        self.run = run
        self.home = home
        self.storage = ObjectStorage(url) if url and is_remote(url) and not url.startswith("file://") else None
        directory = url.removeprefix("file://") if url and self.storage is None else None
        self.folder = Path(directory).expanduser().resolve() / run if directory else copies_of(home, run)

    def stage(self, version: int, fence: int) -> Path:
        """Where a version is written under a lease."""
        return self.folder / f"v{version:05d}-f{fence}"

    async def staged(self, version: int, batch: str, checkpoint: bool) -> tuple[Path, Manifest] | None:
        """A version that was written whole out of a batch, and then nobody lived to record it."""
        return await asyncio.to_thread(self._staged, version, batch, checkpoint)

    async def publish(self, version: Version) -> Version:
        """Put what was written where it is read from; complete at once, or not there.

        Raises:
            StorageError: the storage does not take it; what arrived is not sent again.
        """
        if self.storage is None:
            return version
        places = [await self._upload(Path(version.export_path))]
        if version.checkpoint_path:
            places.append(await self._upload(Path(version.checkpoint_path)))
        return dataclasses.replace(
            version, export_path=places[0], checkpoint_path=places[1] if version.checkpoint_path else None
        )

    async def open(self, place: str, digest: str | None = None) -> Path:
        """A verified directory with what lies at a place; downloaded where this host has no good copy.

        Raises:
            CheckpointError: it is torn, changed, missing, or not what is on record.
            StorageError: the storage does not answer.
        """
        return await asyncio.to_thread(self._open, place, digest)

    async def can_read(self, place: str) -> bool:
        """Whether a place is one that this host sees at all."""
        return is_remote(place) or await asyncio.to_thread((Path(place) / MANIFEST).exists)

    async def remove(self, place: str) -> None:
        """Remove what lies at a place, and this host's copy."""
        await asyncio.to_thread(self._remove, place)

    async def sweep(self, wanted: Collection[str], fence: int) -> list[str]:
        """Remove what updates up to a fence left behind: losers', half-written, or forgotten by the record.

        Returns what was removed.
        """
        return await asyncio.to_thread(self._sweep, frozenset(wanted), fence)

    def _staged(self, version: int, batch: str, checkpoint: bool) -> tuple[Path, Manifest] | None:
        for folder in sorted(self.folder.glob(f"v{version:05d}-f*"), reverse=True):
            kinds = (EXPORT, CHECKPOINT) if checkpoint else (EXPORT,)
            try:
                manifests = [verify(folder / kind) for kind in kinds]
            except CheckpointError:
                continue
            wanted = {"run": self.run, "version": version, "batch": batch}
            if all(wanted.items() <= manifest.meta.items() for manifest in manifests):
                return folder, manifests[0]
        return None

    async def _upload(self, directory: Path) -> str:
        assert self.storage is not None
        name = f"{self.run}/{directory.parent.name}/{directory.name}"
        return await asyncio.to_thread(self.storage.upload, directory, name)

    def _open(self, place: str, digest: str | None) -> Path:
        copy = self._copy(place)
        try:
            verify(copy, digest)
        except CheckpointError:
            if not is_remote(place):
                raise
            shutil.rmtree(copy, ignore_errors=True)
            storage, name = _located(place)
            log.info("downloading %s", place, extra={"action": "checkpoint_download"})
            storage.download(name, copy, digest)
        return copy

    def _copy(self, place: str) -> Path:
        if not is_remote(place):
            return Path(place)
        run, folder, kind = place.split("/")[-3:]
        return copies_of(self.home, run) / folder / kind

    def _remove(self, place: str) -> None:
        if is_remote(place):
            storage, name = _located(place)
            storage.remove(name)
        _remove_directory(self._copy(place))

    def _sweep(self, wanted: frozenset[str], fence: int) -> list[str]:
        removed: list[str] = []
        for directory in sorted(self.folder.glob("v*-f*/*")):
            if _is_old(directory.parent.name, fence) and self._place_of(directory) not in wanted:
                _remove_directory(directory)
                removed.append(str(directory))
        if self.storage:
            for name in sorted(self.storage.names(self.run)):
                place = f"{self.storage.url}/{self.run}/{name}"
                if _is_old(name.split("/")[0], fence) and place not in wanted:
                    self.storage.remove(f"{self.run}/{name}")
                    removed.append(place)
        return removed

    def _place_of(self, directory: Path) -> str:
        """How the record would name a directory of ours."""
        if self.storage is None:
            return str(directory)
        return f"{self.storage.url}/{self.run}/{directory.parent.name}/{directory.name}"


def copies_of(home: Path, run: str) -> Path:
    """Where this host has versions of a run."""
    return home / "runs" / run / "versions"


def _located(place: str) -> tuple[ObjectStorage, str]:
    url, *names = place.rsplit("/", 3)
    return ObjectStorage(url), "/".join(names)


def _is_old(folder: str, fence: int) -> bool:
    found = _FOLDER.fullmatch(folder)
    return found is not None and int(found[2]) <= fence


def _remove_directory(directory: Path) -> None:
    """Its manifest first, so that a removal that breaks off leaves nothing that looks complete."""
    (directory / MANIFEST).unlink(missing_ok=True)
    shutil.rmtree(directory, ignore_errors=True)
    try:
        directory.parent.rmdir()
    except OSError:  # something else is in it, or it is gone
        return
