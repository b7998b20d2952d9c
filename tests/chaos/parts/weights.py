"""The policy of the deterministic engine and trainer: 32 bytes that decide every token and that every row changes."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

FILE = "model.safetensors"
SIZE = 32


def read(directory: Path) -> bytes:
    """The weights of a model directory."""
    return (directory / FILE).read_bytes()[-SIZE:]


def write(directory: Path, weights: bytes) -> None:
    """Write them in the layout of a safetensors file."""
    header = json.dumps({"w": {"dtype": "U8", "shape": [SIZE], "data_offsets": [0, SIZE]}}).encode()
    (directory / FILE).write_bytes(len(header).to_bytes(8, "little") + header + weights)


def mixed(*parts: bytes) -> bytes:
    """One step of everything that changes weights: depends on each byte and on the order."""
    return hashlib.sha256(b"\0".join(parts)).digest()


def make_model(directory: Path) -> Path:
    """A model directory that passes for one."""
    directory.mkdir(parents=True)
    write(directory, mixed(b"version 0"))
    (directory / "config.json").write_text('{"model_type": "deterministic"}')
    (directory / "tokenizer.json").write_text("{}")
    return directory
