"""Which versions stay."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relight.gpu_worker.file_retention import StoredVersion, best, wanted_checkpoints, wanted_exports
from relight.types.run_file import Checkpoints, parse_run_file


def versions(
    count: int, every: int = 1, forked: tuple[int, ...] = (), scores: dict[int, float] | None = None
) -> list[StoredVersion]:
    return [
        StoredVersion(number, f"e{number}", f"c{number}" if number % every == 0 else None, number in forked, score)
        for number in range(1, count + 1)
        for score in ((scores or {}).get(number),)
    ]


@pytest.mark.parametrize(
    ("keep", "every", "forked", "scores", "checkpoints", "exports"),
    [
        ({}, 1, (), {}, {9, 10}, {9, 10}),
        ({"keep_last": 1}, 1, (), {}, {10}, {9, 10}),
        ({}, 4, (), {}, {4, 8}, {4, 8, 9, 10}),
        ({"keep_every": 3}, 1, (), {}, {3, 6, 9, 10}, {3, 6, 9, 10}),
        ({}, 1, (2,), {}, {2, 9, 10}, {2, 9, 10}),
        ({}, 1, (), {3: 0.5, 6: 0.9, 9: 0.7}, {6, 9, 10}, {6, 9, 10}),
        ({"keep_best": 2}, 1, (), {3: 0.5, 6: 0.9, 9: 0.9}, {6, 9, 10}, {6, 9, 10}),
        ({"keep_best": 0}, 1, (), {3: 0.5}, {9, 10}, {9, 10}),
        ({}, 4, (), {7: 1.0}, {4, 8}, {4, 7, 8, 9, 10}),
    ],
)
def test_retention_keeps_the_documented_ones_of_ten_versions(
    keep: dict[str, Any],
    every: int,
    forked: tuple[int, ...],
    scores: dict[int, float],
    checkpoints: set[int],
    exports: set[int],
) -> None:
    stored = versions(10, every, forked, scores)
    assert wanted_checkpoints(stored, Checkpoints(**keep)) == checkpoints
    assert wanted_exports(stored, Checkpoints(**keep)) == exports


@given(st.integers(1, 40), st.integers(1, 5), st.integers(1, 4), st.integers(0, 7), st.integers(0, 3), st.data())
def test_the_newest_checkpoint_always_stays_and_no_checkpoint_without_its_export(
    count: int, every: int, last: int, regular: int, top: int, data: st.DataObject
) -> None:
    scores = data.draw(st.dictionaries(st.integers(1, count), st.floats(0, 1)))
    stored, keep = versions(count, every, (), scores), Checkpoints(keep_last=last, keep_every=regular, keep_best=top)
    checkpoints, exports = wanted_checkpoints(stored, keep), wanted_exports(stored, keep)
    assert checkpoints <= exports
    assert count in exports
    assert not (there := [row.version for row in stored if row.checkpoint_path]) or there[-1] in checkpoints
    assert best(stored, top) <= exports


@pytest.mark.parametrize(
    ("url", "complaint"),
    [
        ("s3://KEY:SECRET@bucket/x", "credentials"),
        ("s3://bucket/x?secret=1", "credentials"),
        ("s3://", "name a directory"),
        (" ", "name a directory"),
    ],
)
def test_an_invalid_checkpoint_url_is_refused(url: str, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        Checkpoints(url=url)


def test_a_url_alone_stands_for_the_section() -> None:
    file = parse_run_file({"agent": "a", "model": "m", "data": "d", "checkpoints": "s3://bucket/prefix"})
    assert file.checkpoints == Checkpoints(url="s3://bucket/prefix")
