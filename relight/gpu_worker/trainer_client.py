"""The GPU worker's client of the trainer process: starts it, sends commands, notices when it dies.

Torch-free and async. Each rank is a child process with its own socket. A command goes to all of them, and its result is
rank 0's once all have answered. If a rank dies, the command fails with a `TrainerError` that has the end of the log.
"""

from __future__ import annotations

import asyncio
import itertools
import shutil
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import orjson

from relight import errors
from relight.adapter.training_rows import TrainingRow
from relight.errors import RelightError, TrainerError
from relight.gpu_worker.child_environment import clean_environment
from relight.gpu_worker.row_file import write_rows
from relight.gpu_worker.trainer_messages import Saved, TrainerState, TrainResult
from relight.gpu_worker.trainer_rank import Rank, default_threads, rank_environment
from relight.models import check_model
from relight.processes.child import log_tail
from relight.retrying import in_background
from relight.types.verl_keys import merged_startup_keys

Progress = Callable[[str], None]

VERL = "relight.gpu_worker.trainer_process"
_STRAGGLER_SECONDS = 20.0
"""How long ranks may take to answer after one of them failed; they may be waiting for it in a collective."""
_STOP_SECONDS = 5.0
_RENDEZVOUS = "rendezvous-"
"""Prefix of the folders of torch.distributed's rendezvous files."""


class TrainerProcess:
    """A trainer: one child process for each rank."""

    def __init__(self, ranks: list[Rank], workdir: Path, log: Path) -> None:
        self._ranks = ranks
        self._workdir = workdir
        self._log = log
        self._ids = itertools.count(1)
        self._one_at_a_time = asyncio.Lock()

    @classmethod
    async def start(
        cls,
        model_dir: Path,
        workdir: Path,
        *,
        ranks: int = 1,
        env: Mapping[str, str] | None = None,
        verl_keys: Mapping[str, Any] | None = None,
        own_keys: Mapping[str, Any] | None = None,
        threads: int | None = None,
        log: Path | None = None,
        on_progress: Progress | None = None,
        module: str = VERL,
    ) -> TrainerProcess:
        """Start a trainer that holds `model_dir` as version 0; returns when it answers.

        Args:
            model_dir: a Hugging Face model directory; also the reference of a KL loss.
            workdir: for rows files, of this trainer alone; made if it is not there.
            ranks: processes that share the model, one for each GPU.
            env: added to the clean environment.
            verl_keys: the run file's `verl:`; those that verl reads at the start are used, the others ignored here.
            own_keys: the GPU worker's own, beside those.
            threads: of torch in each rank; by default two, or as many as there are cores.
            log: by default `trainer.log` in `workdir`.
            on_progress: called with a short text for each phase of the start.
            module: the module that is started for each rank.

        Raises:
            ConfigError: a verl key is wrong.
            ModelError: the model directory lacks a file.
            TrainerError: the trainer did not start; with the end of its log.
        """
        keys = merged_startup_keys(verl_keys or {}, own_keys or {})
        await asyncio.to_thread(workdir.mkdir, parents=True, exist_ok=True)
        log = log or workdir / "trainer.log"
        trainer = cls([], workdir, log)
        await asyncio.to_thread(check_model, str(model_dir), Path.cwd())  # before verl's import, which takes long
        try:
            argv = [sys.executable, "-m", module, "--model-dir", str(model_dir), "--verl", orjson.dumps(keys).decode()]
            await trainer._spawn(argv, ranks, clean_environment(env), threads or default_threads())
            await trainer._wait_ready(on_progress or (lambda _: None))
        except BaseException:
            await trainer.kill()
            raise
        return trainer

    @property
    def alive(self) -> bool:
        return bool(self._ranks) and all(rank.child.alive for rank in self._ranks)

    @property
    def pids(self) -> list[int]:
        return [pid for rank in self._ranks for pid in rank.child.pids]

    async def state(self) -> TrainerState:
        """Which version the trainer holds."""
        return TrainerState(**await self._ask("state"))

    async def load(
        self, version: int, *, model_dir: Path | None = None, checkpoint_dir: Path | None = None
    ) -> TrainerState:
        """Load a version: a checkpoint with its optimizer, or the weights of a model directory with a new optimizer.

        Without either it loads the model that the trainer was started with.

        Raises:
            CheckpointError: files are damaged, of another version, or of another number of ranks.
        """
        return TrainerState(
            **await self._ask("load", version=version, model_dir=model_dir, checkpoint_dir=checkpoint_dir)
        )

    async def agree(self, version: int, export_dir: Path) -> int:
        """Adjust the held weights to their export, element by element; returns how many elements differed.

        An element whose cast equals the export's keeps its full precision, any other takes the export's value. The
        optimizer is kept.

        Raises:
            CheckpointError: the export is damaged, of another version, or of another model.
            TrainerError: another version is held.
        """
        scratch = self._workdir / f"agreed-{version}"
        try:
            return await self._ask("agree", version=version, export_dir=export_dir, scratch_dir=scratch)
        finally:
            await asyncio.to_thread(shutil.rmtree, scratch, True)

    async def advantages(
        self,
        estimator: str,
        rewards: Sequence[float],
        groups: Sequence[str],
        options: Mapping[str, Any] | None = None,
    ) -> list[float]:
        """verl's estimator on one entry per rollout (`estimators.py` has names and options).

        Raises:
            ConfigError: unknown or unsupported estimator, or an option that is missing or would be ignored.
        """
        return await self._ask(
            "advantages", estimator=estimator, rewards=list(rewards), groups=list(groups), options=dict(options or {})
        )

    async def train(
        self, version: int, rows: Sequence[TrainingRow] | Path, hyperparameters: Mapping[str, Any], *, seed: int
    ) -> TrainResult:
        """Make `version` from the one before it, which the trainer must hold.

        Args:
            rows: the batch, or a file that `write_rows` wrote.
            hyperparameters: keys of `Hyperparameters`.

        Raises:
            ConfigError: a hyper-parameter is wrong; the trainer is unchanged.
            TrainerError: the wrong version is held, or the update failed; `state` then says what is held.
        """
        rows_file, own = await self._rows_file(version, rows)
        logprobs_file = self._workdir / f"logprobs-{version}.jsonl"
        try:
            result = await self._ask(
                "train",
                version=version,
                rows_file=rows_file,
                logprobs_file=logprobs_file,
                hyperparameters=dict(hyperparameters),
                seed=seed,
            )
            content = await asyncio.to_thread(logprobs_file.read_bytes)
        finally:
            for path in (logprobs_file, *((rows_file,) if own else ())):
                path.unlink(missing_ok=True)
        return TrainResult(**result | {"logprobs": [orjson.loads(line) for line in content.splitlines()]})

    async def keep(self, version: int) -> TrainerState:
        """Make the held weights and optimizer the next version, after a step without anything to train on.

        Raises:
            TrainerError: the trainer does not hold the version before it.
        """
        return TrainerState(**await self._ask("keep", version=version))

    async def save(
        self, export_dir: Path | None, checkpoint_dir: Path | None = None, *, meta: Mapping[str, Any] | None = None
    ) -> Saved:
        """Write the held version: an export for vLLM, and a checkpoint for `load`.

        Each directory appears when it is complete. `meta` goes into the manifests, with `version` and `ranks`.
        """
        written = await self._ask("save", export_dir=export_dir, checkpoint_dir=checkpoint_dir, meta=dict(meta or {}))
        return Saved.model_validate(written)

    async def stop(self) -> None:
        """End the trainer; a command under way is lost."""
        for rank in self._ranks:
            rank.close()
        with suppress(TimeoutError):
            async with asyncio.timeout(_STOP_SECONDS):
                await asyncio.gather(*(rank.child.wait() for rank in self._ranks))
        await self.kill()

    async def kill(self) -> None:
        """SIGKILL all ranks with all that they started."""
        for rank in self._ranks:
            rank.close()
        await asyncio.gather(*(rank.child.kill() for rank in self._ranks))
        await asyncio.to_thread(self._remove_rendezvous)

    def _remove_rendezvous(self) -> None:
        for folder in self._workdir.glob(f"{_RENDEZVOUS}*"):
            shutil.rmtree(folder, ignore_errors=True)

    async def _spawn(self, argv: Sequence[str], ranks: int, environment: Mapping[str, str], threads: int) -> None:
        await asyncio.to_thread(self._remove_rendezvous)  # that of a GPU worker that was killed
        rendezvous = Path(tempfile.mkdtemp(prefix=_RENDEZVOUS, dir=self._workdir)) / "store"
        argv = [*argv, "--rendezvous", str(rendezvous), "--threads", str(threads)]
        for rank in range(ranks):
            own = {**environment, **rank_environment(rank, ranks, threads)}
            self._ranks.append(await Rank.start(argv, own, self._log))

    async def _wait_ready(self, on_progress: Progress) -> None:
        await asyncio.gather(
            *(self._ready(rank, (lambda _: None) if number else on_progress) for number, rank in enumerate(self._ranks))
        )

    async def _ready(self, rank: Rank, on_progress: Progress) -> None:
        while (message := await self._receive(rank))["event"] != "ready":
            if message["event"] == "failed":
                raise _error(message["error"])
            on_progress(message["text"])

    async def _rows_file(self, version: int, rows: Sequence[TrainingRow] | Path) -> tuple[Path, bool]:
        if isinstance(rows, Path):
            return rows, False
        path = self._workdir / f"rows-{version}.jsonl"
        await asyncio.to_thread(write_rows, path, rows)
        return path, True

    async def _ask(self, do: str, **arguments: Any) -> Any:
        """Send a command to all ranks, and wait for all."""
        async with self._one_at_a_time:
            if not self.alive:
                raise self._died()
            line = orjson.dumps({"id": next(self._ids), "do": do, "arguments": arguments}, default=str) + b"\n"
            try:
                replies = await self._exchange(line)
            except BaseException:
                # Cancelled, or a rank died: late answers would be taken for those to the next command.
                await self.kill()
                raise
        for reply in replies:
            if not reply["ok"]:
                raise _error(reply["error"])
        return replies[0]["result"]

    async def _exchange(self, line: bytes) -> list[dict[str, Any]]:
        for rank in self._ranks:
            with suppress(ConnectionError):
                await rank.send(line)
        try:
            async with in_background(*map(self._receive, self._ranks)) as tasks:
                for finished in asyncio.as_completed(tasks):
                    if not (await finished)["ok"]:
                        break
                async with asyncio.timeout(_STRAGGLER_SECONDS):
                    return list(await asyncio.gather(*tasks))
        except TimeoutError as error:
            raise TrainerError("a rank of the trainer failed and the others did not answer") from error

    async def _receive(self, rank: Rank) -> dict[str, Any]:
        try:
            return await rank.receive()
        except EOFError as error:
            await rank.child.wait()
            raise self._died() from error

    def _died(self) -> TrainerError:
        codes = ", ".join(str(rank.child.returncode) for rank in self._ranks if not rank.child.alive)
        end = f"end of {self._log}:\n{log_tail(self._log)}"
        return TrainerError(f"the trainer process ended (exit code {codes}); {end}")


def _error(given: Mapping[str, str]) -> RelightError:
    kind = getattr(errors, given["type"], TrainerError)
    return kind(given["message"])
