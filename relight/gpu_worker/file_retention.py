"""Which files of policy versions are kept: those of the run file's `checkpoints.keep_*`, and those still needed.

The deletion is recorded in Postgres before files are removed: a crash in between leaves files that the next sweep
removes, never a row that names removed files. A version that another run was forked from is kept until no descendant
needs it.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from relight.errors import StorageError
from relight.gpu_worker.version_files import VersionFiles
from relight.store.database import Database
from relight.store.runs.rows import get_run
from relight.types.names import POLICY
from relight.types.run_file import Checkpoints

log = logging.getLogger(__name__)

PUBLISHED_KEPT = 2
"""Number of newest exports that are kept: the one that engines acknowledged, and the one before."""


@dataclass(frozen=True)
class StoredVersion:
    """A version with stored files."""

    version: int
    export_path: str | None
    checkpoint_path: str | None
    forks: int = 0
    score: float | None = None
    """Held-out."""
    fence: int = 0


def wanted_checkpoints(stored: Sequence[StoredVersion], keep: Checkpoints) -> set[int]:
    """Versions whose checkpoints are kept."""
    there = sorted(row.version for row in stored if row.checkpoint_path)
    regular = {version for version in there if keep.keep_every and version % keep.keep_every == 0}
    forked = {row.version for row in stored if row.forks}
    return ({*there[-keep.keep_last :]} | regular | forked | best(stored, keep.keep_best)) & {*there}


def wanted_exports(stored: Sequence[StoredVersion], keep: Checkpoints) -> set[int]:
    """Versions whose exports are kept: the newest, the best, and those of every checkpoint that is kept."""
    newest = {row.version for row in sorted(stored, key=lambda row: row.version)[-PUBLISHED_KEPT:]}
    return newest | best(stored, keep.keep_best) | wanted_checkpoints(stored, keep)


def best(stored: Sequence[StoredVersion], count: int) -> set[int]:
    """The evaluated versions with the highest scores; of equal ones the newer."""
    ranked = sorted((row.score, row.version) for row in stored if row.score is not None)
    return {version for _, version in ranked[len(ranked) - min(count, len(ranked)) :]}


class VersionRetention:
    """Deletes files of versions after an update."""

    def __init__(self, db: Database, files: VersionFiles) -> None:
        self.db = db
        self.files = files

    async def delete_unneeded(self, run: str, keep: Checkpoints) -> None:
        """Delete files that are not needed, and those of failed updates; if storage does not answer, later."""
        try:
            await self._delete_unneeded(run, keep)
            stored = await self._stored(run)
            wanted = [path for row in stored for path in (row.export_path, row.checkpoint_path) if path]
            removed = await self.files.sweep(wanted, max((row.fence for row in stored), default=0))
        except StorageError as error:
            log.warning("can't delete old versions of run %s now: %s", run, error, extra={"action": "retention_waits"})
            return
        for path in removed:
            log.info("removed %s", path, extra={"action": "version_removed", "run": run})

    async def _delete_unneeded(self, run: str, keep: Checkpoints) -> None:
        stored = await self._stored(run)
        checkpoints, exports = wanted_checkpoints(stored, keep), wanted_exports(stored, keep)
        own = await get_run(self.db, run)
        for row in stored:
            parent = own.parent_run if own.parent_step == row.version else None
            deleted = await self._record_deletion(
                run,
                row,
                checkpoint=row.version not in checkpoints and row.checkpoint_path is not None,
                export=row.version not in exports and row.export_path is not None,
                inherited_from=parent,
            )
            if deleted and parent:  # its files; only this descendant needed them
                await self._delete_unneeded(parent, (await get_run(self.db, parent)).file.checkpoints)
            elif not parent:
                for path in deleted:
                    await self.files.remove(path)

    async def _record_deletion(
        self, run: str, row: StoredVersion, *, checkpoint: bool, export: bool, inherited_from: str | None
    ) -> list[str]:
        """Record that files are deleted; returns which. Files that a fork has come to need meanwhile are kept."""
        deleted: list[str] = []
        version = (POLICY, row.version)
        async with self.db.transaction() as tx:
            for name, path, wanted in (
                ("forget_checkpoint", row.checkpoint_path, checkpoint),
                ("forget_export", row.export_path, export),
            ):
                if wanted and path and await tx.value(name, run, *version) is not None:
                    deleted.append(path)
            if inherited_from and export and row.export_path in deleted:
                await tx.execute("release_fork", inherited_from, *version)
        return deleted

    async def _stored(self, run: str) -> list[StoredVersion]:
        return [StoredVersion(**row) for row in await self.db.fetch("stored_versions", run, POLICY)]
