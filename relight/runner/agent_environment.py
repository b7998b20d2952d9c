"""The environment of agents: variables that any program may need, those that the user passes on, and what the clients
of an attempt need; no secret of the runner.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final
from urllib.parse import quote

from dotenv.parser import parse_stream

from relight.errors import ConfigError
from relight.processes.common_variables import COMMON, PREFIXES, PROXIES
from relight.types.resources import LLM

SINGLE_THREADED: Final = dict.fromkeys(
    ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS", "VECLIB_MAXIMUM_THREADS"), "1"
)
"""Limits of thread pools: many attempts share a machine, and the fork server must have only one thread."""
NO_PROXY: Final = ("no_proxy", "NO_PROXY")
LOCAL: Final = "127.0.0.1,localhost"
"""Where the runner's relay listens, which no proxy reaches."""
OWN_PREFIXES: Final = ("RELIGHT_", "TEMPORAL_")


def agent_environment(own: Mapping[str, str], passed: Iterable[str]) -> dict[str, str]:
    """The environment of the fork server and so of every agent. `passed` names variables of this process to pass on."""
    chosen = {*passed, *COMMON}
    kept = {name: value for name, value in own.items() if name in chosen or name.startswith(PREFIXES)}
    if kept.keys() & PROXIES:
        kept |= {name: ",".join(filter(None, (kept.get(name), LOCAL))) for name in NO_PROXY}
    return SINGLE_THREADED | kept


def attempt_environment(llm: LLM) -> dict[str, str]:
    """Where the clients of OpenAI, Anthropic and OpenTelemetry find the attempt's gateway, in any language."""
    key = llm.api_key or ""
    base = llm.endpoint.removesuffix("/v1")  # to which the other clients append it
    return {
        "OPENAI_BASE_URL": llm.endpoint,
        "OPENAI_API_BASE": llm.endpoint,
        "OPENAI_API_KEY": key,
        "ANTHROPIC_BASE_URL": base,
        "ANTHROPIC_API_KEY": key,
        "OTEL_EXPORTER_OTLP_ENDPOINT": base,
        "OTEL_EXPORTER_OTLP_HEADERS": f"authorization={quote(f'Bearer {key}')}",
        "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
    }


def read_env_file(path: Path) -> dict[str, str | None]:
    """The variables of a file of `NAME=VALUE` lines, as python-dotenv reads them; None: a line has the name alone.

    Raises:
        ConfigError: the file can't be read, a line is none, or names a variable of Relight's or Temporal's own.
    """
    try:
        with path.open() as lines:
            found = list(parse_stream(lines))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--env-file {path}: {error}; name a file of NAME=VALUE lines") from error
    for line in found:
        at = f"--env-file {path}, line {line.original.line}"
        if line.error:
            raise ConfigError(f"{at}: {line.original.string.strip()!r} is no NAME=VALUE; quote the value, or remove it")
        if line.key is not None and line.key.startswith(OWN_PREFIXES):
            raise ConfigError(f"{at}: {line.key} is no variable for agents; set it in the runner's own environment")
    return {line.key: line.value for line in found if line.key is not None}
