"""Nothing that comes from agents or the network is unpickled or evaluated."""

from __future__ import annotations

import ast
import os
import pickle
import sys
from pathlib import Path
from typing import Any

import aiohttp

import relight
from relight.store.attempts.postgres import PostgresStore
from relight.store.database import Database
from tests.support.otlp import make_request, make_span
from tests.support.small_run import play_small_run
from tests.support.store_service import TOKEN, store_service

SOURCE = Path(relight.__file__).parent
DANGEROUS = {"pickle", "cPickle", "dill", "cloudpickle", "shelve", "marshal", "jsonpickle", "joblib"}
CALLS = {"eval", "exec", "compile", "__import__"}


def test_no_module_of_relight_unpickles_or_evaluates() -> None:
    found: list[str] = []
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import | ast.ImportFrom):
                names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or ""]
                found += [f"{path.name}: imports {name}" for name in names if name.partition(".")[0] in DANGEROUS]
            elif isinstance(node, ast.Call):
                if isinstance(node.func, ast.Name) and node.func.id in CALLS:
                    found.append(f"{path.name}:{node.lineno}: calls {node.func.id}")
                found += [
                    f"{path.name}:{node.lineno}: {keyword.arg}={value}"
                    for keyword in node.keywords
                    if isinstance(keyword.value, ast.Constant)
                    and (keyword.arg, value := keyword.value.value)
                    in {("weights_only", False), ("trust_remote_code", True), ("allow_pickle", True)}
                ]
    assert found == []


class Bomb:
    """Makes a file if it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.path),)


class Watch:
    """Counts what is unpickled while it is on. Audit hooks can't be taken away again."""

    on = False
    seen: tuple[str, ...] = ()

    def __call__(self, event: str, arguments: Any) -> None:
        if self.on and event in ("pickle.find_class", "os.system", "subprocess.Popen"):
            self.seen += (event,)


async def test_a_pickle_in_any_input_stays_bytes(database: Database, tmp_path: Path) -> None:
    bomb = tmp_path / "went-off"
    raw = pickle.dumps(Bomb(bomb))
    text = raw.decode("latin-1")
    watch = Watch()
    sys.addaudithook(watch)
    small = await play_small_run(database, tmp_path)
    headers = {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/x-protobuf"}
    store = await PostgresStore.create(database, "http://gateway")
    rollout = "small-s0001-g00-i0"
    attempt = await database.pool.fetchval("select final_attempt from rollouts where rollout_id = $1", rollout)
    async with store_service(store, database) as url, aiohttp.ClientSession(headers=headers) as session:
        watch.on = True
        try:
            for kind in ("application/x-protobuf", "application/json", "application/octet-stream"):
                for path in (
                    "/v1/traces",
                    "/v1/agl/rollouts",
                    "/v1/relight/attempts/spans",
                    "/v1/relight/attempts/open",
                ):
                    async with session.post(url + path, data=raw, headers={"Content-Type": kind}) as answer:
                        assert 400 <= answer.status < 500, path
            span = make_span(1, {"pickled": text, "raw": raw})
            request = make_request([span], rollout, attempt).SerializeToString()
            async with session.post(f"{url}/v1/traces", data=request) as answer:
                assert answer.status == 200
            body = {"input": {"pickled": text}, "metadata": {"py/reduce": text}}
            async with session.post(f"{url}/v1/agl/rollouts", json=body, headers={"Content-Type": "application/json"}):
                pass
            async with session.get(f"{url}/v1/agl/rollouts") as answer:
                assert answer.status == 200
        finally:
            watch.on = False
    assert small.run == "small"
    assert watch.seen == ()
    assert not bomb.exists()
