"""A Postgres with the rows that a run leaves behind; and settings of a command line that finds real services."""

from __future__ import annotations

import zlib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest

from relight.cli import output
from relight.store.attempts.postgres import PostgresStore
from relight.store.database import Connection, Database
from tests.support.orchestration import write_tasks
from tests.support.store_service import TOKEN, store_service


@pytest.fixture
async def seeded(database: Database) -> Database:
    """A database with one run in the middle of its second step, and an older one."""
    async with database.transaction() as tx:
        await _seed(tx.connection)
    return database


@pytest.fixture
async def store_url(database: Database) -> AsyncIterator[str]:
    store = await PostgresStore.create(database, "http://127.0.0.1:9")
    async with store_service(store, database) as url:
        yield url


@pytest.fixture
def flags(tmp_path: Path, store_url: str, temporal_address: str) -> Iterator[dict[str, Any]]:
    write_tasks(tmp_path)
    known = {"home": tmp_path, "data_root": tmp_path, "token": TOKEN}
    output.current = output.GlobalOptions({**known, "store_url": store_url, "temporal_address": temporal_address})
    yield output.current.flags
    output.current = output.GlobalOptions()


async def _seed(connection: Connection) -> None:
    await connection.execute(
        """
        insert into datasets (dataset_id, source, row_count) values ('d1', 'train.jsonl', 2);
        insert into tasks values ('d1', 0, '{"question": "1+1?"}'), ('d1', 1, '{"question": "2+2?"}');
        insert into runs (run, file, driver, phase, total_steps, train_dataset, waiting_for)
        values ('calc-1', '{"agent": "calculator", "algorithm": {"name": "rloo"}}', 'w', 'sampling', 4, 'd1',
                null), ('old', '{"agent": "other"}', 'w', 'finished', 1, 'd1', 'a GPU worker, held by calc-1');
        update runs set created_at = now() - interval '1 hour' where run = 'old';
        insert into steps (run, step, status, plan, batches, metrics, seconds, recorded_at) values
            ('calc-1', 0, 'recorded', '{}', 1, '{}', '{}', now()),
            ('calc-1', 1, 'recorded', '{"learning_rate": 0.1}', 1, '{"reward_mean": 0.5, "retried": 1}',
             '{"rollouts": 1.5, "total": 2.0}', now()),
            ('calc-1', 2, 'planned', '{}', 1, '{}', '{}', null);
        insert into metrics (run, step, name, value) values
            ('calc-1', 1, 'train/loss', 0.1),
            ('calc-1', 0, 'eval/score', 0.52), ('calc-1', 0, 'eval/reward', 0.53),
            ('calc-1', 0, 'eval/rewarded', 239), ('calc-1', 0, 'eval/failed', 1),
            ('calc-1', 0, 'eval/seconds', 3.5);
        insert into policy_versions (run, version, weights_hash, export_path, checkpoint_path)
        values ('calc-1', 0, 'w0', '/e/0', '/c/0'), ('calc-1', 1, 'w1', '/e/1', null);
        insert into gpu_hosts (host, run, task_queue, state) values ('box', 'calc-1', 'relight-gpu.box', 'ready');
        insert into engines (engine_id, host, run, url, model, state, version)
        values ('e1', 'box', 'calc-1', 'unix:/e1', 'policy', 'ready', 1);
        insert into workers (worker_id, kind, host, pid, serves) values ('r1', 'runner', 'box', 7, '{calculator}');
        insert into audit (run, actor, action, before, after, effective_step) values
            ('calc-1', 'ann', 'set_hyperparameters', '{"learning_rate": 0.1}', '{"learning_rate": 0.2}', 3);
        insert into audit (run, actor, action, refused) values ('calc-1', 'bob', 'pause', 'is paused already');
        """
    )
    for step, group, index, status, failure, reward, attempts in [
        (1, 0, 0, "succeeded", None, 1.0, 1),
        (1, 0, 1, "succeeded", None, 0.0, 3),
        (2, 0, 0, "succeeded", None, 1.0, 1),
        (2, 0, 1, "running", None, None, 1),
        (2, 1, 0, "queuing", None, None, 0),
        (2, 1, 1, "failed", "agent_error", None, 2),
        (2, 1, 2, "cancelled", "cancelled", None, 1),
    ]:
        await connection.execute(
            "insert into rollouts (rollout_id, run, step, kind, batch, group_number, index_in_group, dataset_id,"
            " position, status, failure_class, reward, attempts)"
            " values ($1, 'calc-1', $2, 'train', 0, $3, $4, 'd1', $3, $5, $6, $7, $8)",
            f"calc-1-s{step:04d}-g{group:02d}-i{index}",
            step,
            group,
            index,
            status,
            failure,
            reward,
            attempts,
        )
    await _seed_attempts(connection)


async def _seed_attempts(connection: Connection) -> None:
    rollout = "calc-1-s0002-g01-i1"
    await connection.execute(
        "insert into attempts (attempt_id, rollout_id, sequence_id, try_number, open_key, status, failure_class,"
        " message, error, output, token_hash, ended_at) values"
        " ('a1', $1, 1, 1, 'k1', 'failed', 'infrastructure', 'the runner died', null, '', 't1', now()),"
        " ('a2', $1, 2, 1, 'k2', 'failed', 'agent_error', 'KeyError: 3', $2, 'thinking...', 't2', now())",
        rollout,
        {"type": "KeyError", "traceback": "..."},
    )
    await connection.execute("insert into rewards (rollout_id, attempt_id, value) values ($1, 'a2', 0.25)", rollout)
    for name in ("request", "response"):
        await connection.execute(
            "insert into bodies (day, hash, body) values ((now() at time zone 'utc')::date, $1, $2)",
            name.encode(),
            zlib.compress(orjson.dumps({"body": name})),
        )
    await connection.execute(
        "insert into generations (day, rollout_id, attempt_id, call_number, choice, request_hash, route, request,"
        " response, prompt_token_ids, token_ids, logprobs, sampling, seed, engine_id, model, complete, delivered,"
        " seconds) values ((now() at time zone 'utc')::date, $1, 'a2', 1, 0, 'h', '/v1/chat/completions', $2, $3,"
        " '{1,2,3}', '{4,5}', '{-0.5,-0.1}', '{}', 9, 'e1', 'policy', true, 'yes', 0.1)",
        rollout,
        b"request",
        b"response",
    )
