"""Every error that Relight raises.

One root, flat types, each named after the part that failed. The docstring of a type is its default message.
A failed rollout is data (an attempt with a failure class), not one of these.

    RelightError
    ├── ConfigError            a setting, a run file or a database that can't be used
    ├── DatasetError           a data set that can't be read, or a row that lacks what the agent needs
    ├── AgentLoadError         an agent reference that can't be imported
    ├── TemplateError          a prompt template that can't be filled in
    ├── ReplacedNameError      a name of Agent Lightning that something else replaces
    ├── ModelError             a model directory that can't be served or trained
    ├── StackError             the embedded stack
    ├── PreflightError         something that would fail in every rollout, found before the first step
    ├── PostgresError          Postgres does not answer or has an old schema
    ├── TemporalError          Temporal does not answer or is not set up
    ├── StoreError             the store service does not answer, or answers what can't be parsed
    ├── NotFoundError          404
    ├── ConflictError          409: a newer attempt, epoch or status forbids it
    ├── SupersededError        409: another workflow drives this run now
    ├── PausedError            409: the run is paused, so nothing begins
    ├── CancelRequestedError   409: the run is being cancelled, so nothing begins
    ├── LeaseLostError         another process does this work now
    ├── InvalidRequestError    422
    ├── UnauthorizedError      401
    ├── ForbiddenError         403
    ├── OverloadedError        503
    ├── NeedsPostgresError     501: the store is in memory
    ├── EngineError            a vLLM server
    ├── TrainerError           the process that holds verl
    ├── HostChangedError       another GPU host serves this run now
    ├── StorageError           the storage of checkpoints does not answer
    ├── CheckpointError        checkpoint files that are truncated, changed or missing
    └── DiskFullError          507: a full disk
"""

from __future__ import annotations

from typing import ClassVar


class RelightError(Exception):
    """Something in Relight went wrong."""

    http_status: ClassVar[int] = 500

    def __init_subclass__(cls, http_status: int | None = None) -> None:
        super().__init_subclass__()
        cls.http_status = http_status or cls.http_status

    def __init__(self, message: str | None = None) -> None:
        super().__init__(message or (type(self).__doc__ or "").strip())

    @property
    def message(self) -> str:
        return str(self.args[0])


class ConfigError(RelightError, http_status=422):
    """A setting, a run file or a database can't be used."""


class DatasetError(RelightError, http_status=422):
    """A data set can't be read, or one of its rows lacks what the agent needs."""


class AgentLoadError(RelightError):
    """An agent reference can't be imported."""


class TemplateError(RelightError, KeyError, http_status=422):
    """A prompt template can't be filled in."""

    __str__ = Exception.__str__  # a KeyError shows its message in quotes


class ReplacedNameError(RelightError, ImportError):
    """Something else replaces this name of Agent Lightning."""


class ModelError(RelightError):
    """A model directory can't be served or trained."""


class PreflightError(RelightError, http_status=422):
    """Something would fail in every rollout."""


class StackError(RelightError):
    """The embedded stack can't be started or reached."""


class PostgresError(RelightError, http_status=503):
    """Postgres does not answer."""


class TemporalError(RelightError, http_status=503):
    """The Temporal server does not answer."""


class StoreError(RelightError, http_status=503):
    """The store service does not answer."""


class NotFoundError(RelightError, ValueError, http_status=404):
    """The requested object does not exist."""


class ConflictError(RelightError, http_status=409):
    """A newer attempt, epoch or status forbids this."""


class SupersededError(RelightError, http_status=409):
    """Another workflow drives this run now."""


class PausedError(RelightError, http_status=409):
    """The run is paused."""


class CancelRequestedError(RelightError, http_status=409):
    """The run is being cancelled."""


class LeaseLostError(RelightError, http_status=409):
    """Another process does this work now."""


class InvalidRequestError(RelightError, http_status=422):
    """The request can't be understood."""


class UnauthorizedError(RelightError, http_status=401):
    """A valid token is needed."""


class ForbiddenError(RelightError, http_status=403):
    """This token does not permit that."""


class OverloadedError(RelightError, http_status=503):
    """The service is busy; try again shortly."""


class NeedsPostgresError(RelightError, http_status=501):
    """A store in memory has no runs, events, data sets and commands."""


class EngineError(RelightError, http_status=503):
    """An inference engine failed."""


class TrainerError(RelightError):
    """The trainer process failed."""


class HostChangedError(RelightError, http_status=409):
    """Another GPU host serves this run now."""


class StorageError(RelightError, http_status=503):
    """The storage of checkpoints does not answer."""


class CheckpointError(RelightError):
    """Checkpoint files are truncated, changed or missing."""


class DiskFullError(RelightError, http_status=507):
    """A disk is full."""


BY_STATUS: dict[int, type[RelightError]] = {
    401: UnauthorizedError,
    403: ForbiddenError,
    404: NotFoundError,
    409: ConflictError,
    422: InvalidRequestError,
    501: NeedsPostgresError,
    503: OverloadedError,
}
