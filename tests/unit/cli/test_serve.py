"""Which files `relight serve` serves."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from relight.cli.serve import choose
from relight.cli.train import show_model
from relight.errors import ConfigError, NotFoundError
from relight.types.views import VersionView

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def a_version(number: int, path: str, *, deleted: bool = False) -> VersionView:
    deleted_at = NOW if deleted else None
    columns = {"weights_hash": "w", "published_at": NOW, "export_deleted_at": deleted_at}
    return VersionView.model_validate({"version": number, "export_path": path, **columns})


def test_the_newest_version_is_served_unless_one_is_named(tmp_path: Path) -> None:
    versions = [a_version(number, str(tmp_path)) for number in (0, 1, 2)] + [a_version(3, "/gone", deleted=True)]
    assert choose("calc", "", versions).version == 2
    assert choose("calc", "1", versions).version == 1


@pytest.mark.parametrize(
    ("version", "kind", "says"),
    [
        ("x", ConfigError, "calc@x: 'x' is no version; give a number, as in calc@12"),
        ("3", NotFoundError, "run calc has no files of version 3; there are files of: 1, 4"),
        ("4", ConfigError, "version 4 of run calc is at s3://bucket/x, which is no folder of this machine"),
    ],
)
def test_a_version_that_is_not_here_is_refused_with_what_is(
    tmp_path: Path, version: str, kind: type[Exception], says: str
) -> None:
    versions = [a_version(1, str(tmp_path)), a_version(3, "/gone", deleted=True), a_version(4, "s3://bucket/x")]
    with pytest.raises(kind) as caught:
        choose("calc", version, versions)
    assert says in str(caught.value)


class Versions:
    """A reader of these versions."""

    def __init__(self, *versions: VersionView) -> None:
        self._versions = versions

    async def versions(self, run: str) -> list[VersionView]:
        return list(self._versions)


@pytest.mark.parametrize("here", [True, False])
async def test_the_end_of_a_run_shows_how_to_serve_what_is_on_this_machine(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], here: bool
) -> None:
    path = str(tmp_path) if here else "s3://bucket/x"
    await show_model("calc", Versions(a_version(0, "/model"), a_version(2, path)))
    model, *more = capsys.readouterr().out.splitlines()
    assert model == f"model         {path} (version 2)"
    assert any(line.startswith("serve it") and line.endswith("serve calc@2") for line in more) is here
    await show_model("calc", Versions(a_version(0, "/model"), a_version(1, path, deleted=True)))
    assert capsys.readouterr().out == ""
