"""The trainer process with the real verl: what it makes, keeps, refuses, and how it dies."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from relight.adapter.training_rows import TrainingRow
from relight.errors import CheckpointError, ConfigError, ModelError, TrainerError
from relight.gpu_worker.complete_directories import verify
from relight.gpu_worker.row_file import write_rows
from relight.gpu_worker.trainer_client import TrainerProcess
from relight.gpu_worker.trainer_messages import Saved
from tests.integration.gpu_worker.tiny_model import make_tiny_model, token_logprobs

pytestmark = pytest.mark.asyncio(loop_scope="module")

NUMBERS = {"learning_rate": 1e-3, "ppo_epochs": 2, "mini_batches": 2, "shuffle": True}


def make_rows(seed: int, count: int = 12) -> list[TrainingRow]:
    dice = random.Random(seed)
    rows: list[TrainingRow] = []
    for i in range(count):
        length = dice.randint(2, 10)
        rows.append(
            TrainingRow(
                rollout_id=f"r{i // 2}",
                prompt_ids=[dice.randrange(4, 99) for _ in range(dice.randint(2, 9))],
                response_ids=[dice.randrange(4, 99) for _ in range(length)],
                mask=[1] * length,
                advantage=dice.uniform(-1, 1),
                sampled_logprobs=[-4.6] * length,
            )
        )
    return rows


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("model"))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def trainer(model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[TrainerProcess]:
    progress: list[str] = []
    trainer = await TrainerProcess.start(
        model_dir, tmp_path_factory.mktemp("work"), threads=1, on_progress=progress.append
    )
    assert progress == ["importing torch", "importing verl", "loading the model"]
    try:
        yield trainer
    finally:
        await trainer.stop()
        assert not trainer.alive
        assert trainer.pids == []


async def train_from_start(trainer: TrainerProcess, export: Path, checkpoint: Path | None = None) -> Saved:
    """Version 1 out of version 0, saved."""
    await trainer.load(0)
    await trainer.train(1, make_rows(1), NUMBERS, seed=7)
    return await trainer.save(export, checkpoint, meta={"run": "test"})


def weights(saved: Saved) -> str:
    assert saved.export is not None
    return saved.export.weights_digest


async def test_the_same_update_from_the_same_state_gives_the_same_bits(trainer: TrainerProcess, tmp_path: Path) -> None:
    first = await train_from_start(trainer, tmp_path / "first")
    second = await train_from_start(trainer, tmp_path / "second")
    assert weights(first) == weights(second)
    await trainer.load(0)
    await trainer.train(1, make_rows(1), NUMBERS, seed=8)
    other = await trainer.save(tmp_path / "other")
    assert weights(other) != weights(first)


async def test_a_version_is_exported_as_a_model_directory_with_the_tokenizers_very_bytes(
    trainer: TrainerProcess, model_dir: Path, tmp_path: Path
) -> None:
    saved = await train_from_start(trainer, tmp_path / "export", tmp_path / "checkpoint")
    assert saved.export == verify(tmp_path / "export")
    assert saved.checkpoint == verify(tmp_path / "checkpoint")
    assert saved.export is not None
    assert saved.export.meta == {"run": "test", "version": 1, "ranks": 1}
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        assert (tmp_path / "export" / name).read_bytes() == (model_dir / name).read_bytes()
    assert sorted(os.listdir(tmp_path)) == ["checkpoint", "export"]
    result = await trainer.train(2, make_rows(2), NUMBERS, seed=7)
    for row, logprobs in zip(make_rows(2), result.logprobs, strict=True):
        exported = token_logprobs(tmp_path / "export", row.prompt_ids, row.response_ids)
        assert logprobs == pytest.approx(exported, abs=1e-4)
    assert set(result.seconds) == {"rows", "logprobs", "update"}
    assert {"loss", "grad_norm", "actor/pg_loss", "rollout_corr/kl"} <= set(result.metrics)


async def test_a_version_can_be_taken_from_its_export_or_brought_to_agree_with_it_with_the_optimizer_that_is_held(
    trainer: TrainerProcess, tmp_path: Path
) -> None:
    await train_from_start(trainer, tmp_path / "v1", tmp_path / "c1")
    await trainer.train(2, make_rows(2), NUMBERS, seed=7)
    wanted = await trainer.save(tmp_path / "v2")
    await trainer.load(1, checkpoint_dir=tmp_path / "c1")
    assert await trainer.agree(1, tmp_path / "v1") == 0
    assert (await trainer.state()).version == 1
    await trainer.train(2, make_rows(2), NUMBERS, seed=7)
    kept = await trainer.save(tmp_path / "kept")
    assert weights(kept) == weights(wanted)
    await trainer.load(1, model_dir=tmp_path / "v1")
    await trainer.train(2, make_rows(2), NUMBERS, seed=7)
    assert weights(await trainer.save(tmp_path / "afresh")) != weights(wanted)


async def test_a_step_with_nothing_to_learn_from_keeps_weights_and_optimizer(
    trainer: TrainerProcess, tmp_path: Path
) -> None:
    one = await train_from_start(trainer, tmp_path / "v1")
    assert (await trainer.keep(2)).version == 2
    two = await trainer.save(tmp_path / "v2")
    assert weights(two) == weights(one)
    assert two.export
    assert two.export.meta["version"] == 2
    with pytest.raises(TrainerError, match="version 2 is made from 1"):
        await trainer.keep(2)
    await trainer.train(3, make_rows(2), NUMBERS, seed=7)
    after_pause = await trainer.save(tmp_path / "v3")
    await train_from_start(trainer, tmp_path / "again")
    await trainer.train(2, make_rows(2), NUMBERS, seed=7)
    assert weights(await trainer.save(tmp_path / "without-pause")) == weights(after_pause)


async def test_an_invalid_request_is_named_and_leaves_the_trainer_as_it_was(
    trainer: TrainerProcess, tmp_path: Path
) -> None:
    await trainer.load(0)
    with pytest.raises(TrainerError, match="version 3 is made from 2, but the trainer holds 0"):
        await trainer.train(3, make_rows(1), NUMBERS, seed=1)
    with pytest.raises(ConfigError, match="learning_rat: Extra inputs"):
        await trainer.train(1, make_rows(1), {"learning_rat": 1}, seed=1)
    with pytest.raises(ConfigError, match=r"model.use_liger is read when the trainer process starts"):
        await trainer.train(1, make_rows(1), {"verl": {"model.use_liger": True}}, seed=1)
    with pytest.raises(ConfigError, match="would ignore"):
        await trainer.advantages("rloo", [1.0, 0.0], ["a", "a"], {"f_norm": 1})
    nothing = [row.model_copy(update={"mask": [0] * len(row.mask)}) for row in make_rows(1)]
    with pytest.raises(TrainerError, match="no row has a token to train on"):
        await trainer.train(1, nothing, NUMBERS, seed=1)
    write_rows(tmp_path / "rows", make_rows(1))
    with (tmp_path / "rows").open("ab") as file:
        file.write(b"{}\n")
    with pytest.raises(TrainerError, match="line 13"):
        await trainer.train(1, tmp_path / "rows", NUMBERS, seed=1)
    with pytest.raises(CheckpointError, match="never completed"):
        await trainer.load(1, model_dir=tmp_path)
    assert (await trainer.state()).version == 0
    assert await trainer.advantages("grpo_no_std", [1.0, 0.0], ["a", "a"]) == [0.5, -0.5]


async def test_a_damaged_checkpoint_is_refused_before_verl_sees_it(trainer: TrainerProcess, tmp_path: Path) -> None:
    await train_from_start(trainer, tmp_path / "v1", tmp_path / "c1")
    path = next((tmp_path / "c1").glob("optim_*"))
    content = bytearray(path.read_bytes())
    content[100] ^= 1
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=r"optim_world_size_1_rank_0\.pt was changed"):
        await trainer.load(1, checkpoint_dir=tmp_path / "c1")
    with pytest.raises(CheckpointError, match="holds version 1, not 2"):
        await trainer.load(2, model_dir=tmp_path / "v1")
    assert (await trainer.state()).version == 1


async def test_another_process_continues_from_a_checkpoint_with_the_same_result_and_ends_with_a_reason(
    trainer: TrainerProcess, model_dir: Path, tmp_path: Path
) -> None:
    await train_from_start(trainer, tmp_path / "v1", tmp_path / "c1")
    await trainer.train(2, make_rows(2), NUMBERS | {"learning_rate": 5e-4}, seed=9)
    uninterrupted = await trainer.save(tmp_path / "v2")

    other = await TrainerProcess.start(model_dir, tmp_path / "work", threads=1)
    try:
        await other.load(1, checkpoint_dir=tmp_path / "c1")
        await other.train(2, make_rows(2), NUMBERS | {"learning_rate": 5e-4}, seed=9)
        assert weights(await other.save(tmp_path / "v2-again")) == weights(uninterrupted)

        update = asyncio.create_task(other.train(3, make_rows(3, count=4000), NUMBERS, seed=9))
        await asyncio.sleep(0)
        supervisor, process = sorted(other.pids)
        os.kill(process, signal.SIGKILL)
        with pytest.raises(TrainerError, match=r"(?s)ended \(exit code 137\); end of .*trainer\.log"):
            await update
        assert not other.alive
        with pytest.raises(TrainerError, match="ended"):
            await other.state()
        assert supervisor not in other.pids
    finally:
        await other.kill()
    assert other.pids == []


async def test_two_ranks_make_the_same_version_as_one(trainer: TrainerProcess, model_dir: Path, tmp_path: Path) -> None:
    one = await train_from_start(trainer, tmp_path / "one")
    two = await TrainerProcess.start(model_dir, tmp_path / "work", ranks=2, threads=1)
    try:
        assert (await two.state()).ranks == 2
        saved = await train_from_start(two, tmp_path / "two", tmp_path / "c1")
        assert saved.export
        assert one.export
        assert set(saved.export.files) == set(one.export.files)
        row = make_rows(5)[0]
        by_one = token_logprobs(tmp_path / "one", row.prompt_ids, row.response_ids)
        assert token_logprobs(tmp_path / "two", row.prompt_ids, row.response_ids) == pytest.approx(by_one, abs=1e-4)

        before = await two.train(2, make_rows(2), NUMBERS, seed=3)
        await two.load(1, checkpoint_dir=tmp_path / "c1")
        again = await two.train(2, make_rows(2), NUMBERS, seed=3)
        assert again.logprobs == before.logprobs
        assert again.metrics["loss"] == before.metrics["loss"]
        await two.save(tmp_path / "two-2")
        await two.load(1, checkpoint_dir=tmp_path / "c1")
        await two.train(2, make_rows(2), NUMBERS, seed=4)
        assert await two.agree(2, tmp_path / "two-2") > 0
        assert weights(await two.save(tmp_path / "agreed")) == weights(await two.save(tmp_path / "two-2"))
        with pytest.raises(CheckpointError, match="was written by 2 ranks and can't be read by 1"):
            await trainer.load(1, checkpoint_dir=tmp_path / "c1")
        os.kill(two.pids[-1], signal.SIGKILL)
        with pytest.raises(TrainerError, match="ended"):
            await two.train(3, make_rows(3), NUMBERS, seed=3)
    finally:
        await two.kill()
    assert two.pids == []


async def test_a_model_directory_without_weights_is_named_at_once(model_dir: Path, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes((model_dir / "config.json").read_bytes())
    with pytest.raises(ModelError, match="has no weights"):
        await TrainerProcess.start(tmp_path, tmp_path / "work")


@pytest.mark.long
async def test_a_failed_start_reports_why_and_leaves_no_process(model_dir: Path, tmp_path: Path) -> None:
    with pytest.raises(TrainerError, match=r"FileNotFoundError|ModuleNotFoundError|No module|has no attribute"):
        await TrainerProcess.start(
            model_dir, tmp_path, threads=1, verl_keys={"actor.optim.optimizer_impl": "no.such.module"}
        )
