"""Rule 24: on 0.3's wire an attempt's class shows as `timeout` or `unresponsive`, else `failed`; the class is added."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import aiohttp
import pytest

from relight.store.database import Database
from relight.types.rollout import FailureClass
from tests.rules.kit import begin
from tests.support.store_service import TOKEN, store_service

BY_NAME = {FailureClass.TIMEOUT: "timeout", FailureClass.UNRESPONSIVE: "unresponsive"}


async def asked(url: str, path: str, **more: str) -> Any:
    headers = {"Authorization": f"Bearer {TOKEN}"} | more
    async with aiohttp.ClientSession(headers=headers) as session, session.get(f"{url}/v1/agl{path}") as answer:
        assert answer.status == 200, await answer.text()
        return await answer.json()


@pytest.mark.parametrize("failure", sorted({*FailureClass} - {FailureClass.INFRASTRUCTURE}))
async def test_a_failure_class_shows_as_the_status_that_0_3_knows_and_under_its_own_name(
    database: Database, tmp_path: Path, failure: FailureClass
) -> None:
    run = await begin(database, tmp_path, "wire")
    await run.plan(1)
    rollout_id = (await run.rollouts(1))[0]["rollout_id"]
    await run.play(rollout_id, failure=failure)
    async with store_service(run.store, database) as url:
        for path, status in (
            (f"/rollouts/{rollout_id}", "cancelled" if failure is FailureClass.CANCELLED else "failed"),
            (f"/rollouts/{rollout_id}/attempts/latest", BY_NAME.get(failure, "failed")),
        ):
            plain, whole = await asked(url, path), await asked(url, path, **{"Relight-Fields": "all"})
            assert (plain["status"], whole["status"]) == (status, status)
            assert "failure_class" not in plain  # 0.3's clients refuse fields that they don't know
            assert whole["failure_class"] == failure.value
