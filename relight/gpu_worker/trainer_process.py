"""The process that holds verl: `python -m relight.gpu_worker.trainer_process`, one for each rank.

`TrainerProcess` starts it with a socket for each rank, and sends every rank the same commands, one JSON object a line;
each rank answers each. Logs go to stdout and stderr. A rank ends when its socket is closed, even in the middle of an
update, and so when its parent dies.
"""

from __future__ import annotations

import argparse
import os
import queue
import socket
import sys
import threading
import traceback
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson
from pydantic import validate_call

from relight.errors import RelightError
from relight.gpu_worker.row_file import read_rows
from relight.gpu_worker.trainer_messages import TrainerState, TrainResult
from relight.types.hyperparameters import parse_hyperparameters
from relight.types.verl_keys import flatten_verl_keys

if TYPE_CHECKING:
    from relight.gpu_worker.trainer import Trainer

COLLECTIVE_TIMEOUT = timedelta(minutes=30)


class Channel:
    """The control socket: lines in, lines out."""

    def __init__(self, descriptor: int) -> None:
        self._socket = socket.socket(fileno=descriptor)
        self._reader = self._socket.makefile("rb")
        self.commands: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        threading.Thread(target=self._read, name="control", daemon=True).start()

    def send(self, message: dict[str, Any]) -> None:
        self._socket.sendall(orjson.dumps(message, option=orjson.OPT_SERIALIZE_NUMPY) + b"\n")

    def progress(self, text: str) -> None:
        self.send({"event": "progress", "text": text})

    def _read(self) -> None:
        for line in self._reader:
            self.commands.put(orjson.loads(line))
        os._exit(0)  # the result of the command under way is not needed, and torch can't be interrupted otherwise


class Commands:
    """The commands of a trainer."""

    def __init__(self, trainer: Trainer) -> None:
        self._trainer = trainer

    def answer(self, command: dict[str, Any]) -> dict[str, Any]:
        """Run one command, and turn its result or error into a reply."""
        try:
            run = validate_call(getattr(self, f"do_{command['do']}"))  # makes paths of texts
            return {"id": command["id"], "ok": True, "result": run(**command["arguments"])}
        except RelightError as error:
            return _failed(command, type(error).__name__, str(error))
        except Exception as error:
            # Errors of verl and torch go to the GPU worker as TrainerError; the log has the traceback.
            traceback.print_exc()
            return _failed(command, "TrainerError", f"{type(error).__name__}: {error}")

    def do_state(self) -> TrainerState:
        return self._trainer.state()

    def do_load(self, version: int, model_dir: Path | None, checkpoint_dir: Path | None) -> TrainerState:
        if checkpoint_dir is not None:
            self._trainer.load_checkpoint(version, checkpoint_dir)
        else:
            self._trainer.load_model(version, model_dir or self._trainer.model_dir)
        return self._trainer.state()

    def do_agree(self, version: int, export_dir: Path, scratch_dir: Path) -> int:
        return self._trainer.agree(version, export_dir, scratch_dir)

    def do_advantages(
        self, estimator: str, rewards: list[float], groups: list[str], options: dict[str, Any]
    ) -> list[float]:
        from relight.gpu_worker.estimators import compute_advantages

        return compute_advantages(estimator, rewards, groups, options)

    def do_train(
        self, version: int, rows_file: Path, logprobs_file: Path, hyperparameters: dict[str, Any], seed: int
    ) -> TrainResult:
        numbers = parse_hyperparameters(hyperparameters)
        update = self._trainer.train(version, read_rows(rows_file), numbers, seed)
        if os.environ["RANK"] == "0":
            logprobs_file.write_bytes(b"".join(orjson.dumps(row) + b"\n" for row in update.logprobs))
        return replace(update, logprobs=[])

    def do_keep(self, version: int) -> TrainerState:
        self._trainer.keep(version)
        return self._trainer.state()

    def do_save(self, export_dir: Path | None, checkpoint_dir: Path | None, meta: dict[str, Any]) -> dict[str, Any]:
        return self._trainer.save(export_dir, checkpoint_dir, meta).model_dump()


def _failed(command: dict[str, Any], kind: str, message: str) -> dict[str, Any]:
    return {"id": command["id"], "ok": False, "error": {"type": kind, "message": message}}


def make_commands(arguments: argparse.Namespace, channel: Channel) -> Commands:
    """Import verl and build the model; most of a start is spent here."""
    startup = flatten_verl_keys(orjson.loads(arguments.verl))
    channel.progress("importing torch")
    import torch

    from relight.gpu_worker.platform_cpu import prepare_device, register_engines

    torch.set_num_threads(arguments.threads)
    device = prepare_device()
    if device == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    torch.distributed.init_process_group(
        backend="cpu:gloo,cuda:nccl" if device == "cuda" else "gloo",
        init_method=Path(arguments.rendezvous).absolute().as_uri(),
        rank=int(os.environ["RANK"]),
        world_size=int(os.environ["WORLD_SIZE"]),
        timeout=COLLECTIVE_TIMEOUT,
    )
    channel.progress("importing verl")
    register_engines()
    from relight.gpu_worker.trainer import Trainer

    channel.progress("loading the model")
    return Commands(Trainer(Path(arguments.model_dir), device, startup))


def serve(make: Callable[[argparse.Namespace, Channel], Commands]) -> None:
    """Build the commands, report when they are ready, then run those that arrive."""
    arguments = _parse_arguments()
    channel = Channel(arguments.socket)
    try:
        commands = make(arguments, channel)
    except Exception as error:
        # The parent raises an error of its own from this; the log has the traceback.
        traceback.print_exc()
        kind = type(error).__name__ if isinstance(error, RelightError) else "TrainerError"
        channel.send({"event": "failed", "error": {"type": kind, "message": f"{type(error).__name__}: {error}"}})
        sys.exit(1)
    channel.send({"event": "ready", "state": commands.do_state()})
    while True:
        channel.send(commands.answer(channel.commands.get()))


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--socket", type=int, required=True)
    parser.add_argument("--model-dir", required=True)
    parser.add_argument("--rendezvous", required=True)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--verl", default="{}")
    return parser.parse_args()


if __name__ == "__main__":
    serve(make_commands)
