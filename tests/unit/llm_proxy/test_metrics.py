"""The gateway's metrics of its engines."""

from __future__ import annotations

from pathlib import Path

from tests.support.gateway import ADMIN
from tests.unit.llm_proxy.parts import parts

ENGINE = '{engine_id="e1",model="policy",run="r"}'


async def test_each_engine_shows_its_health_its_version_and_its_calls(tmp_path: Path) -> None:
    async with parts(tmp_path) as (client, store, engine):
        store.has_engine(engine.url, version=0)

        async def metrics() -> str:
            headers = {"authorization": f"Bearer {ADMIN}"}
            async with client.session.get(f"{client.origin}/metrics", headers=headers) as answer:
                return await answer.text()

        assert "relight_gateway_engine_healthy{" not in await metrics()
        assert (await client.call())[0] == 200
        found = await metrics()
        for name, value in {"healthy": 1.0, "version": 0.0, "in_flight": 0.0}.items():
            assert f"relight_gateway_engine_{name}{ENGINE} {value}" in found
