"""Named points in the code where a crash is worth a test: between a commit and its answer, an update and its record.

They do nothing unless `RELIGHT_FAULTS` names a folder. A file there with a point's name arms it: the first
process that reaches the point removes the file and kills itself with SIGKILL.
"""

from __future__ import annotations

import os
import signal
from enum import StrEnum
from pathlib import Path
from typing import Final

VARIABLE: Final = "RELIGHT_FAULTS"
_FOLDER: Final = os.environ.get(VARIABLE)


class FaultPoint(StrEnum):
    """A point where a test can make a process die."""

    CANCEL_WRITTEN = "cancel-written"
    """Store: the cancel of a run is on record, the operator does not know."""
    OPENED = "opened"
    """Store: an attempt is open, its runner does not know."""
    FINISHED = "finished"
    """Store: an attempt's end is committed, its runner does not know."""
    GENERATION_COMMITTED = "generation-committed"
    """Store: model calls are committed, the gateway does not know."""
    CALL_COMMITTED = "call-committed"
    """Gateway: a model call is committed, the agent has no answer."""
    ANSWER_SENT = "answer-sent"
    """Gateway: the agent has its answer, and no record says that it was delivered."""
    ATTEMPT_KNOWN = "attempt-known"
    """Runner: it holds an open attempt, and no agent runs."""
    AGENT_ENDED = "agent-ended"
    """Runner: the agent has ended, the store does not know."""
    ATTEMPT_RECORDED = "attempt-recorded"
    """Runner: the end is on record, Temporal does not know."""
    CANCEL_TO_SEND = "cancel-to-send"
    """Orchestrator: a cancel is on record, Temporal does not know."""
    CANCEL_SENT = "cancel-sent"
    """Orchestrator: Temporal has a cancel, and no record says that it was sent."""
    PLANNED = "planned"
    """Orchestrator: a step is planned, its workflow does not know."""
    BATCH_CLOSED = "batch-closed"
    """Orchestrator: a batch is closed, its workflow does not know."""
    LEDGERED = "ledgered"
    """GPU worker: the ledger is written, nothing is trained."""
    TRAINED = "trained"
    """GPU worker: the trainer holds the new version, no file does."""
    UPLOADING = "uploading"
    """GPU worker: a file is in object storage, the manifest that makes it count is not."""
    SAVED = "saved"
    """GPU worker: the files are in place, no row says so."""
    VERSION_RECORDED = "version-recorded"
    """GPU worker: the version is on record, no engine holds it."""
    PUBLISHED = "published"
    """GPU worker: an engine has taken the weights and has not acknowledged them."""
    ACKNOWLEDGED = "acknowledged"
    """GPU worker: an engine has acknowledged the weights and is still paused."""
    STEP_RECORDED = "step-recorded"
    """GPU worker: the step is on record, its workflow does not know."""


def fault_point(point: FaultPoint) -> None:
    """Die here if the point is armed, once."""
    if _FOLDER is None:
        return
    try:
        (Path(_FOLDER) / point).unlink()
    except FileNotFoundError:
        return
    os.kill(os.getpid(), signal.SIGKILL)


def arm(folder: Path, point: FaultPoint) -> None:
    """Make the next process that reaches the point die there."""
    (folder / point).touch()


def is_armed(folder: Path, point: FaultPoint) -> bool:
    """Whether no process has reached the point yet."""
    return (folder / point).exists()
