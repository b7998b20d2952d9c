"""Which policy versions stay: the run file's `checkpoints.keep_*`, and what is needed whatever it says.

Decided on the rows, written there first, and only then are files removed: a crash in between leaves files that the next
sweep takes away, never a row that names what is gone. A version that another run was forked from stays until no
descendant needs it.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from relight.errors import StorageError
from relight.gpu_worker.versions import VersionFiles
from relight.store.database import Database
from relight.types.run_file import Checkpoints, RunFile

log = logging.getLogger(__name__)

PUBLISHED_KEPT = 2
"""Newest exports that stay: the one that engines acknowledged, and the one before."""


@dataclass(frozen=True)
class Stored:
    """A version of which something is stored."""

    version: int
    export_path: str | None
    checkpoint_path: str | None
    forks: int = 0
    reward: float | None = None
    """Held-out."""
    fence: int = 0


def wanted_checkpoints(stored: Sequence[Stored], keep: Checkpoints) -> set[int]:
    """Versions whose checkpoints stay."""
    there = sorted(row.version for row in stored if row.checkpoint_path)
    regular = {version for version in there if keep.keep_every and version % keep.keep_every == 0}
    forked = {row.version for row in stored if row.forks}
    return ({*there[-keep.keep_last :]} | regular | forked | best(stored, keep.keep_best)) & {*there}


def wanted_exports(stored: Sequence[Stored], keep: Checkpoints) -> set[int]:
    """Versions whose exports stay: the newest, the best, and those of every checkpoint that stays."""
    newest = {row.version for row in sorted(stored, key=lambda row: row.version)[-PUBLISHED_KEPT:]}
    return newest | best(stored, keep.keep_best) | wanted_checkpoints(stored, keep)


def best(stored: Sequence[Stored], count: int) -> set[int]:
    """The evaluated versions with the highest rewards; of equal ones the newer."""
    ranked = sorted((row.reward, row.version) for row in stored if row.reward is not None)
    return {version for _, version in ranked[len(ranked) - min(count, len(ranked)) :]}


class Retention:
    """Tidies up after an update."""

    def __init__(self, db: Database, files: VersionFiles) -> None:
        self.db = db
        self.files = files

    async def tidy(self, run: str, keep: Checkpoints) -> None:
        """Forget and remove what need not stay, and sweep up what never counted. Storage that is away can wait."""
        try:
            await self._forget(run, keep)
            stored = await self._stored(run)
            wanted = [place for row in stored for place in (row.export_path, row.checkpoint_path) if place]
            removed = await self.files.sweep(wanted, max((row.fence for row in stored), default=0))
        except StorageError as error:
            log.warning("old versions of run %s stay for now: %s", run, error, extra={"action": "retention_waits"})
            return
        for place in removed:
            log.info("removed %s", place, extra={"action": "version_removed", "run": run})

    async def _forget(self, run: str, keep: Checkpoints) -> None:
        stored = await self._stored(run)
        checkpoints, exports = wanted_checkpoints(stored, keep), wanted_exports(stored, keep)
        parent = await self.db.row("get_run", run)
        for row in stored:
            inherited = parent is not None and parent["parent_step"] == row.version
            gone = await self._forget_version(
                run,
                row,
                checkpoint=row.version not in checkpoints and row.checkpoint_path is not None,
                export=row.version not in exports and row.export_path is not None,
                heir_of=parent["parent_run"] if parent and inherited else None,
            )
            if gone and parent and inherited:
                await self._tidy_parent(parent["parent_run"])
            elif not inherited:
                for place in gone:
                    await self.files.remove(place)

    async def _forget_version(
        self, run: str, row: Stored, *, checkpoint: bool, export: bool, heir_of: str | None
    ) -> list[str]:
        """Write down that files are deleted; returns which. A fork that came meanwhile keeps them."""
        gone: list[str] = []
        async with self.db.transaction() as connection:
            for name, place, wanted in (
                ("forget_checkpoint", row.checkpoint_path, checkpoint),
                ("forget_export", row.export_path, export),
            ):
                if wanted and place and await self.db.value(name, run, row.version, connection=connection) is not None:
                    gone.append(place)
            if heir_of and export and row.export_path in gone:
                await self.db.execute("release_fork", heir_of, row.version, connection=connection)
        return gone

    async def _tidy_parent(self, run: str) -> None:
        """What a descendant released may be the last thing that kept a version of its parent."""
        parent = await self.db.row("get_run", run)
        if parent is not None:
            await self._forget(run, RunFile.model_validate(parent["file"]).checkpoints)

    async def _stored(self, run: str) -> list[Stored]:
        return [
            Stored(
                version=row["version"],
                export_path=row["export_path"] if row["has_export"] else None,
                checkpoint_path=row["checkpoint_path"],
                forks=row["forks"],
                reward=row["reward"],
                fence=row["fence"],
            )
            for row in await self.db.fetch("stored_versions", run)
        ]
