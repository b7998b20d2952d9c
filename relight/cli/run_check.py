"""Checks a run file, its data sets and its model before anything starts.

The workflow makes the same checks with the same messages; here they are made first, on the user's machine.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from relight.datasets import is_stored, load_tasks
from relight.errors import ConfigError
from relight.models import check_model
from relight.operators.derived_runs import set_key
from relight.types.names import RUN_NAME
from relight.types.run_file import RunFile, parse_run_file


def read_run_file(path: Path, overrides: Sequence[str] = ()) -> RunFile:
    """Read and validate a run file; each override is `key=value` with a dotted key.

    Raises:
        ConfigError: with one message that names the file and each wrong key.
    """
    data = _read_json(path)
    for override in overrides:
        apply_override(data, override)
    try:
        return parse_run_file(data)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error.message.removeprefix('run file: ')}") from error


def check_run(path: Path, data_root: Path, overrides: Sequence[str] = (), *, files: bool = True) -> RunFile:
    """The run file, checked as far as this machine can; `files=False` leaves data and model to the cluster.

    Raises:
        ConfigError, DatasetError, ModelError: what is wrong, where, and how to correct it.
    """
    file = read_run_file(path, overrides)
    if files:
        for source in (file.data.train, file.data.evaluation):
            if source is not None and not is_stored(source):
                load_tasks(source, data_root, file.data.required_fields)
        check_model(file.model, data_root)
    return file


def parse_pair(pair: str) -> tuple[str, Any]:
    """`key=value`; the value is JSON where it parses as such, else text, and `@file` reads it from a file.

    Raises:
        ConfigError: it is not like that.
    """
    key, separator, text = pair.partition("=")
    if not separator or not key:
        raise ConfigError(f"{pair}: give it as key=value, such as algorithm.learning_rate=3e-4")
    if not text.startswith("@"):
        with suppress(ValueError):
            return key, json.loads(text)
        return key, text
    try:
        return key, json.loads(Path(text[1:]).read_bytes())
    except (OSError, ValueError) as error:
        raise ConfigError(f"{text[1:]}: can't be read as JSON: {error}") from error


def apply_override(data: dict[str, Any], override: str) -> None:
    """Set one dotted key of a run file."""
    key, value = parse_pair(override)
    if key.startswith("data.") and isinstance(data.get("data"), str):
        data["data"] = {"train": data["data"]}
    try:
        set_key(data, key, value)
    except ConfigError as error:
        raise ConfigError(f"--set {override}: {error.message.partition(': ')[2]}") from error


def check_run_name(name: str) -> str:
    """Return the name, if it is a valid name of a run.

    Raises:
        ConfigError: it is not.
    """
    if not RUN_NAME.fullmatch(name):
        raise ConfigError(
            f"run name {name!r}: use at most 63 lower-case letters, digits, `.`, `_` and `-`, first a letter or digit"
        )
    return name


def name_stem(path: Path) -> str:
    """The default name of a run of this file, without its number: the name of the file's folder."""
    folder = path.resolve().parent.name or path.stem
    return re.sub(r"[^a-z0-9._-]+", "-", folder.lower()).strip("-._")[:50] or "run"


def next_name(stem: str, taken: Sequence[str]) -> str:
    """`<stem>-<n>` with the next free number."""
    pattern = re.compile(rf"{re.escape(stem)}-(\d+)")
    numbers = [int(match[1]) for match in map(pattern.fullmatch, taken) if match]
    return f"{stem}-{max(numbers, default=0) + 1}"


def _read_json(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(path.read_text())
    except FileNotFoundError as error:
        raise ConfigError(f"{path}: the run file does not exist") from error
    except json.JSONDecodeError as error:
        raise ConfigError(f"{path}: not JSON: {error.msg} (line {error.lineno}, column {error.colno})") from error
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: can't be read: {error}") from error
    if not isinstance(data, dict):
        raise ConfigError(f"{path}: a run file has to be one JSON object; `relight schema` prints its schema")
    return data
