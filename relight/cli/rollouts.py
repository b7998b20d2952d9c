"""`relight rollouts`: a run's rollouts, and why each attempt failed."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from relight.cli import output
from relight.cli.progress import number_text
from relight.cli.render import duration, indent, print_table, shorten, when
from relight.cli.store_reader import StoreReader
from relight.errors import ConfigError
from relight.semconv import PRIMARY_REWARD
from relight.types.views import AttemptView, GenerationView, RewardView, RolloutSummary, RolloutView

EPILOG = """\b
Examples:
  relight rollouts calculator-1 --step 3
  relight rollouts calculator-1 --failed
  relight rollouts show calculator-1-s0003-g01-i5"""
COLUMNS = ("rollout", "kind", "status", "class", "reward", "attempts", "why")
SHOWN_CHARACTERS = 2000


async def rollouts(
    target: Annotated[list[str], typer.Argument(metavar="RUN | show ROLLOUT", help="A run, or `show` and a rollout.")],
    step: Annotated[int | None, typer.Option(min=0, help="Only those of this step.")] = None,
    kind: Annotated[str | None, typer.Option(help="Only train, eval or inspect.")] = None,
    status: Annotated[str | None, typer.Option(help="Only this status, such as running or succeeded.")] = None,
    failed: Annotated[bool, typer.Option("--failed", help="Only failed ones.")] = False,
    failure_class: Annotated[str | None, typer.Option("--class", help="Only this failure class.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="Show at most this many.")] = 200,
) -> None:
    """List a run's rollouts, or show one with its attempts, model calls and rewards."""
    async with StoreReader.from_settings(output.settings()) as reader:
        if len(target) == 2 and target[0] == "show":
            await _show(reader, target[1])
            return
        if len(target) != 1:
            raise ConfigError("give one run, or `show` and the id of a rollout")
        filters = {"step": step, "kind": kind, "status": "failed" if failed else status, "failure_class": failure_class}
        await _list(reader, target[0], filters, limit)


async def _list(reader: StoreReader, run: str, filters: dict[str, Any], limit: int) -> None:
    found, more = await collect(reader, run, filters, limit)
    if output.emitted(*found):
        return
    if not found:
        output.say(f"run {run} has no such rollouts")
        return
    print_table(COLUMNS, [rollout_row(rollout) for rollout in found])
    if more:
        output.say(f"only the first {limit} are shown; --limit shows more")


async def collect(
    reader: StoreReader, run: str, filters: dict[str, Any], limit: int
) -> tuple[list[RolloutSummary], bool]:
    """The first rollouts that match, read page by page; True if there are more."""
    found: list[RolloutSummary] = []
    cursor: str | None = None
    while len(found) < limit:
        page = await reader.rollouts(run, **filters, cursor=cursor, limit=min(limit - len(found), 1000))
        found += page.items
        cursor = page.next
        if cursor is None:
            return found, False
    return found, True


def rollout_row(rollout: RolloutSummary) -> list[str]:
    """A line of the table."""
    return [
        rollout.rollout_id,
        rollout.kind,
        rollout.status,
        rollout.failure_class or "",
        number_text(rollout.reward),
        str(rollout.attempts),
        shorten(rollout.failure or "", 100),
    ]


async def _show(reader: StoreReader, rollout_id: str) -> None:
    rollout = await reader.rollout(rollout_id)
    calls = await reader.generations(rollout_id)
    generations = [call.model_dump(mode="json") for call in calls]
    if not output.emitted({**rollout.model_dump(mode="json"), "generations": generations}):
        for line in rollout_lines(rollout, calls):
            output.say(line)


def rollout_lines(rollout: RolloutView, calls: list[GenerationView]) -> list[str]:
    """The description of a rollout: its input, each attempt, each model call."""
    lines = [
        f"rollout  {rollout.rollout_id}",
        f"status   {rollout.status}{f' ({rollout.failure_class})' if rollout.failure_class else ''}",
        f"place    run {rollout.run}, {position_text(rollout)}",
        *([f"inspected by {', '.join(rollout.inspections)}"] if rollout.inspections else []),
        f"reward   {number_text(rollout.reward)}",
        f"input    {shorten(str(rollout.input), SHOWN_CHARACTERS)}",
    ]
    for attempt in rollout.tries:
        lines += attempt_lines(attempt, attempt.attempt_id == rollout.final_attempt)
        lines += [reward_line(reward) for reward in rollout.rewards if reward.attempt_id == attempt.attempt_id]
        lines += [line for call in calls if call.attempt_id == attempt.attempt_id for line in call_lines(call)]
    return lines


def position_text(rollout: RolloutView) -> str:
    """The position of a rollout in its run."""
    if rollout.inspects:
        return f"an inspection of {rollout.inspects}, which is not used for training"
    if rollout.kind == "external":
        return "from outside, which is not used for training"
    return f"{rollout.kind} {rollout.step}, group {rollout.group_number}, index {rollout.index_in_group}"


def reward_line(reward: RewardView) -> str:
    """A reward, its grader, and the grader's feedback."""
    primary = ", primary" if reward.primary and reward.dimension != PRIMARY_REWARD else ""
    why = f": {shorten(reward.feedback, SHOWN_CHARACTERS)}" if reward.feedback else ""
    return f"  reward {reward.dimension} by {reward.grader}: {number_text(reward.value)}{primary}{why}"


def attempt_lines(attempt: AttemptView, counts: bool) -> list[str]:
    """One attempt and why it ended."""
    ended = f"{attempt.status}{f' ({attempt.failure_class})' if attempt.failure_class else ''}"
    lines = [
        "",
        f"attempt {attempt.sequence_id} (try {attempt.try_number}): {ended}{', counts' if counts else ''}",
        f"  {when(attempt.started_at)}, {duration(attempt.started_at, attempt.ended_at)},"
        f" worker {attempt.worker_id or '-'}, reward {number_text(attempt.reward)}",
    ]
    if attempt.message:
        lines.append(f"  why: {attempt.message}")
    if attempt.spans_dropped:
        lines.append(f"  spans dropped: {attempt.spans_dropped}, malformed or over the limit of an attempt")
    if attempt.error and attempt.error.get("traceback"):
        lines.append(indent(str(attempt.error["traceback"])))
    if attempt.output:
        lines += [f"  output, the last of {attempt.output_bytes} bytes:", indent(attempt.output[-SHOWN_CHARACTERS:])]
    return lines


def call_lines(call: GenerationView) -> list[str]:
    """One model call."""
    return [
        f"  call {call.call_number}{f'.{call.choice}' if call.choice else ''}: version {call.version_start},"
        f" {call.prompt_tokens} + {call.response_tokens} tokens, {call.finish_reason}, {call.seconds:.2f} s,"
        f" delivered: {call.delivered}",
        f"    asked:    {shorten(last_message(call.request), 300)}",
        f"    answered: {shorten(answer_text(call.response, call.choice), 300)}",
    ]


def last_message(request: Any) -> str:
    """The content of the last message in the agent's request."""
    if not isinstance(request, dict):
        return "-"
    messages = request.get("messages")
    if isinstance(messages, list) and messages and isinstance(messages[-1], dict):
        return str(messages[-1].get("content"))
    return str(request.get("prompt", "-"))


def answer_text(response: Any, choice: int) -> str:
    """The content of the model's answer."""
    choices = response.get("choices") if isinstance(response, dict) else None
    for found in choices if isinstance(choices, list) else []:
        if isinstance(found, dict) and found.get("index", 0) == choice:
            message = found.get("message")
            return str(message.get("content") if isinstance(message, dict) else found.get("text", "-"))
    return "-"
