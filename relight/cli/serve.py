"""`relight serve`: a trained model behind vLLM's server."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from relight.cli import output
from relight.cli.store_reader import StoreReader
from relight.errors import ConfigError, NotFoundError
from relight.types.views import VersionView

EPILOG = """\b
Examples:
  relight serve calculator-1
  relight serve calculator-1@12 --port 8080
  relight serve calculator-1 -- --max-model-len 4096"""


async def serve(
    model: Annotated[str, typer.Argument(metavar="RUN[@VERSION]", help="A run, and which of its versions; newest.")],
    flags: Annotated[list[str] | None, typer.Argument(metavar="[-- FLAG...]", help="vLLM's own flags.")] = None,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port to listen on.")] = 8000,
) -> None:
    """Serve a run's model by vLLM, with OpenAI's API, until Ctrl-C. Needs the packages of a GPU host.

    The model's name is the run's. The run file's `vllm` keys hold, but those by which engine and trainer share a GPU.
    """
    from relight.gpu_worker.engine import serving_command, serving_environment

    run, _, version = model.partition("@")
    async with StoreReader.from_settings(output.settings()) as reader:
        view = await reader.run(run)
        chosen = choose(run, version, await reader.versions(run))
    command = serving_command(Path(chosen.export_path), run, host, port, view.file.get("vllm", {}), flags or [])
    url = f"http://{host}:{port}/v1"
    if not output.emitted({"event": "serving", "run": run, "version": chosen.version, "url": url}):
        output.say(f"version {chosen.version} of run {run}, once vLLM has loaded it: {url}, model {run!r}")
    os.execve(command[0], command, serving_environment())


def choose(run: str, version: str, versions: list[VersionView]) -> VersionView:
    """The version of this number, or the newest, whose files are on this machine.

    Raises:
        ConfigError: the number is none, or the files are not here.
        NotFoundError: there is no such version, or retention has deleted it.
    """
    if version and not version.isdecimal():
        raise ConfigError(f"{run}@{version}: {version!r} is no version; give a number, as in {run}@12")
    kept = {one.version: one for one in versions if one.export_deleted_at is None}
    chosen = kept.get(int(version)) if version else max(kept.values(), key=lambda one: one.version, default=None)
    if chosen is None:
        listed = ", ".join(map(str, sorted(kept))) or "none"
        raise NotFoundError(f"run {run} has no files of version {version or 'any'}; there are files of: {listed}")
    if not Path(chosen.export_path).is_dir():
        raise ConfigError(
            f"version {chosen.version} of run {run} is at {chosen.export_path}, which is no folder of this machine; "
            "serve it on its GPU host, or copy it and serve the copy with `vllm serve`"
        )
    return chosen
