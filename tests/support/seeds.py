"""Rows that tests of the store start from."""

from __future__ import annotations

from typing import Any

from relight.store.attempts.attempt_tokens import token_hash
from relight.store.database import Database

RUN = "demo"


async def seed_run(database: Database, run: str = RUN, **file: Any) -> None:
    """A run with a data set of two tasks, one resource and one planned step."""
    async with database.transaction() as tx:
        await tx.connection.execute(
            "insert into datasets (dataset_id, source, row_count) values ('set', 'test', 2) on conflict do nothing"
        )
        await tx.connection.executemany(
            "insert into tasks (dataset_id, position, task) values ('set', $1, $2) on conflict do nothing",
            [(0, {"question": "1+1"}), (1, {"question": "2*3"})],
        )
        await tx.connection.execute(
            "insert into resources (resources_id, resources) values ('rs-1', $1) on conflict do nothing",
            {"prompt": {"resource_type": "prompt_template", "template": "{question}?", "engine": "f-string"}},
        )
        await tx.connection.execute(
            "insert into runs (run, file, driver, total_steps, train_dataset) values ($1, $2, 'driver', 3, 'set')",
            run,
            {"model": "m", "isolation": "process", "engine_wait_seconds": 120, "sampling": {"temperature": 0.5}} | file,
        )
        await tx.connection.execute(
            "insert into steps (run, step, plan, resources_id, batches) values ($1, 1, $2, 'rs-1', 1)",
            run,
            {"sampling": {"temperature": 1.0, "max_tokens": None, "top_k": -1, "agent_chooses": False}},
        )


async def seed_rollout(database: Database, rollout_id: str, run: str | None = RUN, **config: Any) -> None:
    """A planned rollout of step 1, or an external one where `run` is None."""
    number = await database.pool.fetchval("select count(*) from rollouts")
    await database.pool.execute(
        "insert into rollouts (rollout_id, run, step, kind, batch, group_number, index_in_group, dataset_id, position,"
        " mode, resources_id, config, seed_base, min_version, max_version, input) values"
        " ($1, $2, $3, $4, $5, $6, $7, $8, $9, 'train', 'rs-1', $10, $11, $12, $12, $13)",
        rollout_id,
        run,
        *((1, "train", 0, number, 0, "set", 1) if run else (None, "external", None, None, None, None, None)),
        config,
        f"7/1/{number}/0",
        0 if run else None,
        None if run else {"question": "outside"},
    )


async def seed_engine(
    database: Database, engine_id: str = "engine-1", run: str = RUN, *, version: int = 0, state: str = "ready"
) -> None:
    """An engine that loaded `version` just now."""
    async with database.transaction() as tx:
        await tx.connection.execute(
            "insert into gpu_hosts (host, task_queue) values ('host', 'relight-gpu.host') on conflict do nothing"
        )
        load = await tx.connection.fetchval(
            "insert into engines (engine_id, host, run, url, model, state, version, load)"
            " values ($1, 'host', $2, 'unix:/tmp/' || $1 || '.sock', 'policy', $3, $4, 1)"
            " on conflict (engine_id) do update set state = $3, version = $4, load = engines.load + 1 returning load",
            engine_id,
            run,
            state,
            version,
        )
        await tx.connection.execute(
            "insert into engine_loads (engine_id, load, run, version) values ($1, $2, $3, $4)",
            engine_id,
            load,
            run,
            version,
        )


async def seed_attempt(
    database: Database, rollout_id: str, attempt_id: str, sequence_id: int = 1, *, token: str | None = None
) -> None:
    """An attempt that has not begun, of a rollout that a queue dispatched."""
    await database.pool.execute(
        "insert into attempts (attempt_id, rollout_id, sequence_id, try_number, open_key, token_hash)"
        " values ($1, $2, $3, $3, $1, $4)",
        attempt_id,
        rollout_id,
        sequence_id,
        token_hash(token or attempt_id),
    )
    await database.pool.execute(
        "update rollouts set status = 'preparing', dispatched_by = 'queue', attempts = $2 where rollout_id = $1",
        rollout_id,
        sequence_id,
    )
