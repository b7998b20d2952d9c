"""The run file's `vllm:` keys: which arguments vLLM's server has, and which of them are Relight's to set.

`vllm_keys.json` is made from the sources of the vLLM that is pinned, by `scripts/vllm_keys.py`: a run file is checked
where no vLLM is installed.
"""

from __future__ import annotations

import difflib
import functools
import json
from collections.abc import Mapping
from importlib import resources
from typing import Any, NamedTuple

from relight.errors import ConfigError

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
    "revision": "engines load what the run file's `model` names",
    "code_revision": "engines load what the run file's `model` names",
    **dict.fromkeys(
        ("ssl_keyfile", "ssl_certfile", "ssl_ca_certs", "ssl_cert_reqs", "ssl_ciphers", "enable_ssl_refresh"),
        "engines listen on a unix socket only",
    ),
}


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


def check_vllm_keys(keys: Mapping[str, Any]) -> None:
    """Refuse the first key that can't be passed on.

    Raises:
        ConfigError: naming it.
    """
    known = known_keys()
    seen: set[str] = set()
    for key, value in keys.items():
        name = key.replace("-", "_")
        if reason := _OURS.get(name):
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
