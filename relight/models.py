"""Checks a model directory before anything starts on it: config, weights, tokenizer. Loads no weights.

A name that is no directory on this machine is taken for a model of the hub, which the GPU worker downloads.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from relight.errors import ModelError

HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[\w.-]+)?")
TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "spiece.model", "tekken.json")
NEEDED = "a model directory holds config.json, weights (*.safetensors or *.bin) and a tokenizer"
LFS_POINTER = b"version https://git-lfs"


def check_model(model: str, data_root: Path | str) -> Path | str:
    """The model's directory, or its hub name as it is.

    Raises:
        ModelError: a file is missing or damaged; the message names it.
    """
    path = Path(data_root) / Path(model).expanduser()
    if not path.exists():
        if HUB_NAME.fullmatch(model):
            return model
        raise ModelError(
            f"model {model}: there is no directory {path.resolve()}; "
            "relative paths start at the data root (`relight config` shows it)"
        )
    if not path.is_dir():
        raise ModelError(f"model {model}: {path.resolve()} is a file; {NEEDED}")
    _check_config(model, path)
    _check_weights(model, path)
    if not any((path / name).is_file() for name in TOKENIZER_FILES):
        raise ModelError(
            f"model {model}: {path.resolve()} has no tokenizer ({TOKENIZER_FILES[0]} or the like); {NEEDED}"
        )
    return path.resolve()


def _check_config(model: str, path: Path) -> None:
    file = path / "config.json"
    if not file.is_file():
        raise ModelError(f"model {model}: {path.resolve()} has no config.json; {NEEDED}")
    config = _read_json(model, file)
    if "model_type" not in config and "architectures" not in config:
        raise ModelError(f"model {model}: {file.resolve()} names neither `model_type` nor `architectures`")


def _check_weights(model: str, path: Path) -> None:
    found = sorted(file for pattern in ("*.safetensors", "*.bin") for file in path.glob(pattern))
    if not found:
        raise ModelError(f"model {model}: {path.resolve()} has no weights; {NEEDED}")
    for index in sorted(path.glob("*.index.json")):
        shards = {str(name) for name in _read_json(model, index).get("weight_map", {}).values()}
        missing = sorted(name for name in shards if not (path / name).is_file())
        if missing:
            raise ModelError(f"model {model}: {index.name} names {', '.join(missing)}, which {path.resolve()} lacks")
    for file in found:
        _check_file(model, file)


def _check_file(model: str, file: Path) -> None:
    """Refuse Git LFS pointers, empty and truncated files, on which engines would fail much later."""
    size = file.stat().st_size
    with file.open("rb") as opened:
        head = opened.read(len(LFS_POINTER))
    if head == LFS_POINTER:
        raise ModelError(f"model {model}: {file.resolve()} is a Git LFS pointer; fetch the file with `git lfs pull`")
    header = int.from_bytes(head[:8], "little")
    if size == 0 or (file.suffix == ".safetensors" and (size < 8 or header > size - 8)):
        raise ModelError(f"model {model}: {file.resolve()} is truncated ({size} bytes); copy or download it again")


def _read_json(model: str, file: Path) -> dict[str, Any]:
    try:
        data = json.loads(file.read_text())
    except (OSError, ValueError) as error:
        raise ModelError(f"model {model}: {file.resolve()} can't be read as JSON: {error}") from error
    if not isinstance(data, dict):
        raise ModelError(f"model {model}: {file.resolve()} is not a JSON object")
    return data
