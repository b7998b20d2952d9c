"""The run file's `vllm:` keys: which arguments vLLM's server has, and who may set which of them.

`vllm_keys.json` is made from the sources of the vLLM that is pinned, by `scripts/vllm_keys.py`: a run file is checked
where no vLLM is installed. `vllm_rights.json` says of each argument whether a run file may set it, or only the GPU
worker's own settings (and why), or Relight alone. An argument that it does not name is not for run files.
"""

from __future__ import annotations

import difflib
import functools
import json
from collections.abc import Mapping, Sequence
from importlib import resources
from typing import Any, NamedTuple

from relight.errors import ConfigError
from relight.types.host_keys import REASONS, check_fields, check_plain, refused

SETTING = "RELIGHT_GPU_VLLM"
"""The GPU worker's own keys, which may be others too."""


class VllmKeys(NamedTuple):
    """Arguments of vLLM's server."""

    version: str
    names: frozenset[str]
    choices: dict[str, list[str]]
    """Allowed values of arguments that have a fixed set."""


@functools.cache
def known_keys() -> VllmKeys:
    """The arguments of the pinned vLLM, with underscores."""
    table = json.loads(resources.files("relight.types").joinpath("vllm_keys.json").read_text(encoding="utf-8"))
    return VllmKeys(table["version"], frozenset(table["keys"]), table["choices"])


class VllmRights(NamedTuple):
    """Who may set which argument."""

    allowed: frozenset[str]
    """A run file may, to plain values."""
    allowed_lists: Sequence[str]
    """A run file may, to lists of plain values."""
    allowed_values: Mapping[str, Sequence[str]]
    """A run file may, to one of these; also a field of an object."""
    allowed_fields: Mapping[str, Sequence[str]]
    """A run file may, to an object with these fields."""
    refused: Mapping[str, Sequence[str]]
    """Only the GPU worker's own settings may; by class of the reason."""
    managed: Mapping[str, str]
    """Only Relight does, for this reason."""

    def reason(self, name: str) -> str:
        """Why a run file may not set an argument."""
        found = next((kind for kind, names in self.refused.items() if name in names), None)
        return REASONS[found] if found else "it is not among those that are known to be harmless"


@functools.cache
def rights() -> VllmRights:
    """Who may set which argument of the pinned vLLM."""
    table = json.loads(resources.files("relight.types").joinpath("vllm_rights.json").read_text(encoding="utf-8"))
    return VllmRights(**table | {"allowed": frozenset(table["allowed"])})


def check_run_file_keys(keys: Mapping[str, Any]) -> None:
    """Refuse the first key or value that a run file may not have.

    Raises:
        ConfigError: naming it.
    """
    check_vllm_keys(keys)
    for key, value in keys.items():
        name, shown = key.replace("-", "_"), f"vllm.{key}"
        if name in rights().allowed_fields:
            check_fields(shown, {} if value is None else value, rights().allowed_fields[name], SETTING)
            for field, item in (value or {}).items():
                _check_value(f"{name}.{field}", f"{shown}.{field}", item)
        elif name in rights().allowed_values:
            _check_value(name, shown, value)
        elif name in rights().allowed | set(rights().allowed_lists):
            check_plain(shown, value, SETTING, lists=name in rights().allowed_lists)
        else:
            raise refused(shown, rights().reason(name), SETTING)


def _check_value(name: str, shown: str, value: Any) -> None:
    allowed = rights().allowed_values.get(name)
    if allowed is not None and value is not None and value not in allowed:
        raise refused(shown, f"{value!r} is not one of {', '.join(allowed)}", SETTING)


def check_vllm_keys(keys: Mapping[str, Any]) -> None:
    """Refuse the first key that can't be passed on, in a run file or in the settings.

    Raises:
        ConfigError: naming it.
    """
    known = known_keys()
    seen: set[str] = set()
    for key, value in keys.items():
        name = key.replace("-", "_")
        if reason := rights().managed.get(name):
            raise ConfigError(f"vllm.{key}: not to be set here: {reason}")
        if name not in known.names:
            near = difflib.get_close_matches(name, known.names, n=1)
            hint = f"; did you mean `{near[0]}`?" if near else ""
            raise ConfigError(f"vllm.{key}: vLLM {known.version} has no such argument{hint}")
        allowed = known.choices.get(name)
        if allowed is not None and value is not None and value not in allowed:
            near = difflib.get_close_matches(str(value), allowed, n=1)
            hint = f"; did you mean `{near[0]}`?" if near else ""
            raise ConfigError(f"vllm.{key}: {value!r} must be one of {', '.join(allowed)}{hint}")
        if name in seen:
            raise ConfigError(f"vllm.{key}: given twice, with `-` and with `_`")
        seen.add(name)
