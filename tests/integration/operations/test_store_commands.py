"""`relight store check` and `relight store retain` as processes."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from relight.store.database import Database
from tests.support.postgres import create_database


def relight(*arguments: str, url: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "relight.cli", "store", *arguments, "--postgres-url", url]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


def lines(answer: subprocess.CompletedProcess[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in answer.stdout.splitlines()]


async def test_check_passes_a_healthy_store_and_names_what_is_broken(finished: Database, postgres_url: str) -> None:
    url = finished.url
    healthy = relight("check", url=url)
    assert (healthy.returncode, healthy.stderr) == (0, "")
    assert "none broken" in healthy.stdout
    await finished.pool.execute("update metrics set value = 'NaN' where name = 'train/loss' and step = 1")
    broken = relight("check", url=url)
    assert broken.returncode == 1
    assert "metrics_finite: Metrics are finite numbers." in broken.stdout
    assert "run small, step 1, name train/loss, value nan" in broken.stdout
    found, summary = lines(relight("check", "--json", url=url))
    assert (found["invariant"], found["rows"][0]["name"]) == ("metrics_finite", "train/loss")
    assert summary["broken"] == 1


async def test_check_leaves_a_database_of_another_schema_alone(postgres_url: str) -> None:
    url = await create_database(postgres_url, template="template0")
    answer = relight("check", url=url)
    assert answer.returncode == 1
    assert "the schema is version 0" in answer.stderr
    database = await Database.connect(url)
    assert (
        await database.pool.fetchval("select count(*) from pg_class where relnamespace = 'public'::regnamespace") == 0
    )
    await database.close()


async def test_retain_reports_what_it_does(finished: Database, postgres_url: str) -> None:
    url = finished.url
    answer = relight("retain", "--max-size", "1B", "--dry-run", url=url)
    assert (answer.returncode, answer.stderr) == (0, "")
    assert "kept" in answer.stdout
    days = lines(relight("retain", "--older-than", "1d", "--json", url=url))
    assert {day["action"] for day in days} == {"kept"}


@pytest.mark.parametrize(("arguments", "mend"), [((), "--older-than 30d"), (("--max-size", "huge"), "50GB")])
async def test_retain_refuses_invalid_values(postgres_url: str, arguments: tuple[str, ...], mend: str) -> None:
    answer = relight("retain", *arguments, url=postgres_url)
    assert answer.returncode == 2
    assert mend in answer.stderr
