"""The settings of all of Relight: addresses, names, folders and limits.

Sources, in order of precedence: a flag, the environment, Temporal's profile (address and namespace), the embedded
stack's file (`<home>/stack.json`, written by `relight up`), the default. `relight config` prints each value and its
source. Temporal's own settings (TLS, API keys) are read by its environment configuration (`TEMPORAL_*`,
`temporal.toml`), except for the embedded stack's server.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ByteSize, ConfigDict, Field, SecretStr, ValidationError, ValidationInfo, field_validator

from relight.errors import ConfigError
from relight.types.names import GPU_QUEUE, ORCHESTRATOR_QUEUE, RUNNER_QUEUE, Network
from relight.types.run_file import check_location
from relight.types.verl_keys import require_startup_keys
from relight.types.vllm_keys import check_vllm_keys

STACK_FILE = "stack.json"
TOKEN_FILE = "token"
SECRETS = frozenset({"token", "postgres_url"})
PROFILE = "Temporal profile"
"""The prefix of the source of a setting from a Temporal profile."""


class Settings(BaseModel):
    """Addresses, names and folders. Each field is `RELIGHT_<FIELD>` in the environment, unless it says otherwise."""

    model_config = ConfigDict(extra="forbid")

    home: Path = Path(".relight")
    """The folder of the embedded stack and the checkpoints."""
    data_root: Path = Path(".")
    """Relative paths in run files start here."""
    postgres_url: str | None = None
    """`postgresql://user:password@host:port/database?sslmode=verify-full`."""
    store_url: str = "http://127.0.0.1:4747"
    gateway_url: str = "http://127.0.0.1:4748"
    """The address that attempts get, also after a restart."""
    gateway_upstreams: Path | None = None
    """JSON file of model providers that every rollout may call through the gateway."""
    gateway_allowed_hosts: list[str] = Field(default_factory=list[str])
    """Hosts that providers may have although they are link-local or belong to the platform; in the environment a JSON
    list."""
    gateway_request_bytes: int = Field(default=16 * 2**20, ge=1)
    """Longest request that the gateway accepts."""
    gateway_answer_bytes: int = Field(default=64 * 2**20, ge=1)
    """Longest answer of an engine or a provider that the gateway accepts."""
    gateway_call_seconds: float = Field(default=3600.0, gt=0)
    """Longest time that an engine or a provider may take to answer a call."""
    token: SecretStr | None = None
    """Admin token of the store service; by default the content of `<home>/token`."""
    temporal_address: str = Field(default="127.0.0.1:7233", json_schema_extra={"env": "TEMPORAL_ADDRESS"})
    temporal_namespace: str = Field(default="default", json_schema_extra={"env": "TEMPORAL_NAMESPACE"})
    temporal_embedded: bool = False
    """The address is that of the embedded stack's own Temporal server, which takes neither TLS nor an API key."""
    temporal_ui_url: str | None = None
    orchestrator_queue: str = ORCHESTRATOR_QUEUE
    deployment: str = "relight"
    """Worker deployment that orchestrators with a build id belong to."""
    build_id: str | None = None
    """Build of this orchestrator: Temporal then gives it only work of this build."""
    runner_queue: str = RUNNER_QUEUE
    gpu_queue: str = GPU_QUEUE
    gpu_host: str | None = None
    """Name of this GPU host; by default the machine's host name."""
    gpu_vllm: dict[str, Any] = Field(default_factory=dict[str, Any])
    """vLLM's arguments for the engines of this GPU worker, over those of run files; in the environment JSON."""
    gpu_verl: dict[str, Any] = Field(default_factory=dict[str, Any])
    """verl's keys for the trainers of this GPU worker, beside those of run files; in the environment JSON."""
    gpu_lost_seconds: float = Field(default=60.0, ge=10)
    """After this time without a report a GPU host counts as lost, and another one may take over its run."""
    checkpoints: str | None = None
    """Where policy versions are stored if the run file does not say: a directory, or `s3://bucket/prefix`."""
    engine_module: str = "vllm.entrypoints.openai.api_server"
    """The module that is started as an engine, with vLLM's flags and routes."""
    trainer_module: str = "relight.gpu_worker.trainer_process"
    """The module that is started for each rank of a trainer."""
    redact_patterns: list[str] = Field(default_factory=list[str])
    """Further regular expressions (RE2) whose matches are redacted; in the environment a JSON list."""
    network: Network = "internet"
    """What attempts may connect to by TCP: the ports of the web too, or those of gateway and store only."""
    allow_path: list[str] = Field(default_factory=list[str])
    """Further files and folders for attempts, to write to unless they end in `:ro`; in the environment a JSON list."""
    allow_net: list[str] = Field(default_factory=list[str])
    """Further TCP ports for attempts, or `any`; in the environment a JSON list."""
    allow_gpu: bool = False
    """Whether attempts may use the runner's GPUs."""
    wrapper: str | None = None
    """The start of a command within which agents run, such as `bwrap --dev-bind / / --`; split as by a shell."""
    attempt_memory_bytes: ByteSize = Field(default=ByteSize(16 * 2**30), ge=2**26)
    """Memory that all processes of an attempt may hold together, such as 16GiB; a run file may set a lower limit."""
    attempt_processes: int = Field(default=1024, ge=1)
    """Processes and threads that an attempt may run at once."""
    attempt_scratch_bytes: ByteSize = Field(default=ByteSize(16 * 2**30), ge=2**20)
    """What an attempt may have written to its scratch folder."""
    log_level: str = "info"
    drain_seconds: float = Field(default=20.0, ge=0)
    """How long work under way may continue after SIGTERM."""
    retention_days: int | None = Field(default=None, ge=1)
    """Spans, model calls and bodies of rollouts older than this are dropped; None: they are kept."""
    retention_bytes: ByteSize | None = Field(default=None, ge=1)
    """Above this size, such as 50GB, their oldest days are dropped; None: unlimited."""

    @field_validator("checkpoints")
    @classmethod
    def _check_place(cls, value: str | None) -> str | None:
        return check_location(value) if value else None

    @field_validator(
        *("redact_patterns", "gateway_allowed_hosts", "gpu_vllm", "gpu_verl", "allow_path", "allow_net"), mode="before"
    )
    @classmethod
    def _read_json(cls, value: Any) -> Any:
        return json.loads(value) if isinstance(value, str) else value

    @field_validator("gpu_vllm", "gpu_verl")
    @classmethod
    def _check_keys(cls, value: dict[str, Any], info: ValidationInfo) -> dict[str, Any]:
        try:
            if info.field_name == "gpu_vllm":
                check_vllm_keys(value)
            else:
                require_startup_keys(value)
        except ConfigError as error:
            raise ValueError(error.message) from error
        return value

    @property
    def token_value(self) -> str | None:
        """The admin token in plain text."""
        return self.token.get_secret_value() if self.token else None


@dataclass(frozen=True)
class Resolved:
    """Settings, and where each value came from."""

    settings: Settings
    sources: Mapping[str, str]


@dataclass(frozen=True)
class TemporalProfile:
    """The settings of a profile that are also Relight's."""

    values: Mapping[str, str]
    """By the names of Relight's settings."""
    source: str


def environment_name(field: str) -> str:
    """The environment variable of a setting."""
    extra = Settings.model_fields[field].json_schema_extra
    if isinstance(extra, dict) and isinstance(extra.get("env"), str):
        return str(extra["env"])
    return f"RELIGHT_{field.upper()}"


def read_stack(home: Path) -> dict[str, Any]:
    """The content of the embedded stack's file; empty if there is none."""
    try:
        data = json.loads((home / STACK_FILE).read_text())
    except (OSError, ValueError):
        return {}
    return data if isinstance(data, dict) else {}


def read_temporal_profile(environ: Mapping[str, str]) -> TemporalProfile | None:
    """The active profile of Temporal's environment configuration; None if there is none.

    Temporal's SDK takes more than a second to import, so it is imported only if there is a file or a profile's name.

    Raises:
        ConfigError: it can't be read, or it does not exist.
    """
    name, file = environ.get("TEMPORAL_PROFILE"), _profile_file(environ)
    if not name and not file.is_file():
        return None
    from temporalio.envconfig import ClientConfigProfile

    source = f"{PROFILE} {name or 'default'!r} of {file}"
    try:
        given = file if file.is_file() else None
        profile = ClientConfigProfile.load(config_source=given, override_env_vars=dict(environ))
    except (RuntimeError, ValueError, OSError) as error:
        reason = " ".join(str(error).split())
        remedy = "correct the file, or name another profile (TEMPORAL_PROFILE) or file (TEMPORAL_CONFIG_FILE)"
        raise ConfigError(f"{source}: {reason}; {remedy}") from error
    values = {"temporal_address": profile.address, "temporal_namespace": profile.namespace}
    return TemporalProfile({key: value for key, value in values.items() if value}, source)


def _profile_file(environ: Mapping[str, str]) -> Path:
    """The path at which Temporal expects it."""
    if given := environ.get("TEMPORAL_CONFIG_FILE"):
        return Path(given)
    folder = environ.get("XDG_CONFIG_HOME") or Path(environ.get("HOME") or "~").expanduser() / ".config"
    return Path(folder) / "temporalio" / "temporal.toml"


def resolve(flags: Mapping[str, Any] | None = None, environ: Mapping[str, str] | None = None) -> Resolved:
    """The settings with their sources.

    Raises:
        ConfigError: a value is invalid (the message has its source), or a Temporal profile can't be read.
    """
    environ = os.environ if environ is None else environ
    given = {name: value for name, value in (flags or {}).items() if value is not None}
    home = Path(str(given.get("home") or environ.get(environment_name("home")) or Settings().home))
    stack_source = str(home / STACK_FILE)
    stack, profile = read_stack(home).get("settings", {}), read_temporal_profile(environ)
    values: dict[str, Any] = {}
    sources: dict[str, str] = {}
    for name in Settings.model_fields:
        variable = environment_name(name)
        if name in given:
            values[name], sources[name] = given[name], "flag"
        elif environ.get(variable):
            values[name], sources[name] = environ[variable], f"environment {variable}"
        elif profile and name in profile.values:
            values[name], sources[name] = profile.values[name], profile.source
        elif name in stack and (name != "temporal_embedded" or sources["temporal_address"] == stack_source):
            values[name], sources[name] = stack[name], stack_source
        elif name == "token" and (home / TOKEN_FILE).is_file():
            values[name], sources[name] = (home / TOKEN_FILE).read_text().strip(), str(home / TOKEN_FILE)
        else:
            sources[name] = "default"
    try:
        return Resolved(Settings.model_validate(values), sources)
    except ValidationError as error:
        fault = error.errors()[0]
        name = str(fault["loc"][0])
        raise ConfigError(
            f"setting {name} (from {sources.get(name)}): {fault['msg']}, given {values.get(name)!r}"
        ) from error


def load_settings(**flags: Any) -> Settings:
    """The settings of this process."""
    return resolve(flags).settings
