"""Files of versions lie in folders that name their policy."""

from __future__ import annotations

from pathlib import Path

from relight.gpu_worker.complete_directories import write_manifest
from relight.gpu_worker.version_files import EXPORT, VersionFiles
from relight.types.names import POLICY


def written(folder: Path, **meta: str | int) -> Path:
    """A complete export in a version's folder."""
    export = folder / EXPORT
    export.mkdir(parents=True)
    write_manifest(export, meta)
    return export


async def test_a_sweep_leaves_the_files_of_other_policies_alone(tmp_path: Path) -> None:
    files = VersionFiles(tmp_path, "run")
    mine, theirs = written(files.stage(1, 3)), written(files.folder / "critic-v00001-f2")
    assert await files.sweep([], 5) == [str(mine)]
    assert theirs.exists()


async def test_only_files_that_were_made_for_the_policy_are_taken_as_its_version(tmp_path: Path) -> None:
    files = VersionFiles(tmp_path, "run")
    meta = {"run": "run", "version": 1, "batch": "b"}
    written(files.stage(1, 3), policy="critic", **meta)
    assert await files.staged(1, "b", False) is None
    written(files.stage(1, 4), policy=POLICY, **meta)
    found = await files.staged(1, "b", False)
    assert found is not None
    assert found[0] == files.stage(1, 4)
