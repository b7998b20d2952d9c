"""The run file: the configuration of a run, one JSON object.

`temporal workflow start --type TrainingWorkflow --input-file run.json` and `relight train run.json` read the same
schema (`relight schema` prints it). Unknown keys are errors. Relative paths are relative to the data root
(`relight config` shows it).

`algorithm.name` decides of what kind a run file is. What all kinds have stands in `AnyRunFile`; a kind adds its own
keys, and those of other kinds are refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, Self, TypeVar, get_args

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError, field_validator, model_validator

from relight.errors import ConfigError
from relight.types import verl_keys, vllm_keys
from relight.types.checking import Numbers
from relight.types.hyperparameters import (
    LossAggregation,
    LossSequence,
    estimator_options,
    parse_hyperparameters,
    trainer_numbers,
)
from relight.types.ineffective_keys import not_finite
from relight.types.learning_rate_schedule import check_schedule
from relight.types.names import RUNNER_QUEUE, Isolation, Network, runner_queue
from relight.types.resources import NamedResources
from relight.types.rollout import FailureClass, RolloutConfig
from relight.types.run_file_errors import describe
from relight.types.upstreams import Upstream, check_models, check_names

OWN_REWARD = "agent"
"""Stands for a grader's name in rewards that the agent gave itself."""
MOST_ROLLOUTS = 100_000
"""Of a step."""
_RESOURCES: TypeAdapter[NamedResources] = TypeAdapter(NamedResources)
AGENT_PATTERN = r"^[A-Za-z_][A-Za-z0-9_.-]*$"
Estimator = Literal[
    "grpo",
    "grpo_no_std",
    "grpo_vectorized",
    "grpo_passk",
    "gpg",
    "rloo",
    "rloo_vectorized",
    "reinforce_plus_plus",
    "reinforce_plus_plus_baseline",
    "opo",
]


class Section(Numbers):
    """Base class of all sections: unknown keys are errors."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)


class Data(Section):
    """Where the tasks come from: JSONL or Parquet by path or URL, or a set that is in the store already: `store:<name>`
    as `relight data put` named it, or `dataset:<id>`."""

    train: str
    """Tasks to train on; one JSON value a line (or one Parquet row) is one task."""
    evaluation: str | None = None
    """Held-out tasks."""
    required_fields: list[str] = Field(default_factory=list[str])
    """Fields that every row must have; a row without one is an error before the run starts."""
    shuffle: bool = True
    """Shuffle the training tasks again in each epoch, by the run's seed."""


class Algorithm(Section):
    """How a step's rewards are turned into an update. Names and meanings are verl's."""

    name: Estimator = "grpo"
    """Advantage estimator: `grpo` (arXiv 2402.03300), `grpo_no_std` (Dr. GRPO, arXiv 2503.20783),
    `grpo_passk` (arXiv 2503.19595), `gpg` (arXiv 2504.02546), `rloo` (arXiv 2402.14740), `reinforce_plus_plus` and
    `reinforce_plus_plus_baseline` (arXiv 2501.03262), `opo` (arXiv 2505.23585); `_vectorized` computes the same
    otherwise."""
    learning_rate: float = Field(default=1e-6, gt=0)
    """Step size of AdamW; `verl.actor.optim` names a schedule."""
    weight_decay: float = Field(default=0.01, ge=0)
    """AdamW's decay of the weights."""
    grad_clip: float = Field(default=1.0, gt=0)
    """Largest norm of the gradient."""
    ppo_epochs: int = Field(default=1, ge=1)
    """Passes over a step's rows."""
    mini_batches: int | None = Field(default=None, ge=1)
    """Optimizer steps a pass: one, unless `verl.actor.ppo_mini_batch_size` says how many tasks one takes."""
    clip_ratio: float = Field(default=0.2, gt=0)
    """PPO's clipping: a token's probability ratio counts between 1 minus and 1 plus this (arXiv 1707.06347)."""
    clip_ratio_low: float | None = Field(default=None, gt=0)
    """The same below 1 alone; null: `clip_ratio`."""
    clip_ratio_high: float | None = Field(default=None, gt=0)
    """The same above 1 alone (DAPO's clip-higher, arXiv 2503.14476); null: `clip_ratio`."""
    entropy_coeff: float = 0.0
    """Weight of the entropy bonus in the loss."""
    loss_agg_mode: LossAggregation = "seq-mean-token-mean"
    """How the tokens' losses become one: the mean over all trained tokens, or the mean over sequences of each one's
    mean or sum; `-norm` divides by `verl.actor.loss_scale_factor`, or else by the longest response of the step."""
    sequence: LossSequence = "rollout"
    """What the `seq-mean` modes take for a sequence: all rows of a rollout together, or each row, as verl does;
    `token-mean` takes none."""
    loss_mode: str = "vanilla"
    """verl's policy loss by name."""
    level: Literal["transition", "trajectory"] = "transition"
    """A training row a model call, or one for each chain of calls whose tokens continue each other."""
    rollout_correction: dict[str, Any] = Field(default_factory=dict[str, Any])
    """verl's correction of the mismatch between sampler and trainer, by its own keys."""


class Sampling(Section):
    """How the policy is sampled in training, and in evaluations unless these say otherwise."""

    temperature: float = Field(default=1.0, gt=0)
    """The logits are divided by it before sampling."""
    top_p: float = Field(default=1.0, gt=0, le=1)
    """Share of the probability that the likeliest tokens, of which one is sampled, have together."""
    top_k: int = Field(default=-1, ge=-1)
    """-1 and 0: all tokens."""
    max_tokens: int | None = Field(default=None, ge=1)
    """Longest answer in tokens; an agent may ask for less."""
    stop: list[str] = Field(default_factory=list[str])
    """Texts at which an answer ends."""
    agent_chooses: bool = False
    """Let the agent's own sampling parameters through instead of these; each call trains at its own temperature. With
    `algorithm.rollout_correction` those but `temperature` are refused that change which tokens can be sampled."""


class EvaluationSampling(Section):
    """How the policy is sampled in evaluations; keys that are not given are as in training."""

    temperature: float | None = Field(default=None, ge=0)
    """0: the likeliest token."""
    top_p: float | None = Field(default=None, gt=0, le=1)
    """As in `sampling`; null: that value."""
    top_k: int | None = Field(default=None, ge=-1)
    """As in `sampling`; null: that value."""
    max_tokens: int | None = Field(default=None, ge=1)
    """As in `sampling`; null: that value."""
    stop: list[str] | None = None
    """As in `sampling`; null: that value."""
    agent_chooses: bool | None = None
    """As in `sampling`; null: that value."""


class Evaluation(Section):
    """When and how the policy is evaluated on the held-out tasks. A task may name its source in its field
    `data_source`; then the scores are also shown by source."""

    every: int = Field(default=0, ge=0)
    """Steps between evaluations; 0: only at the start and the end."""
    at_start: bool = True
    """Evaluate version 0, before the first step."""
    at_end: bool = True
    """Evaluate the last version."""
    samples: int = Field(default=1, ge=1)
    """Rollouts of each held-out task: k of pass@k."""
    pass_threshold: float = 1.0
    """Reward with which a sample counts as passed; pass@k is the share of tasks of which a sample did."""
    sampling: EvaluationSampling = Field(default_factory=EvaluationSampling)
    """How the policy is sampled in evaluations."""
    limit: int | None = Field(default=None, ge=1)
    """Use only the first tasks of the set."""


class PauseAbove(Section):
    """Shares of a step's rollouts that may fail before the run pauses itself; null: however many."""

    agent: float | None = Field(default=0.9, ge=0, le=1)
    """Failures of the agent: `agent_error`, `timeout`, `unresponsive`, `out_of_memory`, `invalid_reward`, `no_reward`.
    Many of them are usual where a policy has yet to learn the format of an answer."""
    platform: float | None = Field(default=0.5, ge=0, le=1)
    """Failures of the platform: `infrastructure`, `engine_error`, `grader_error`."""


class Failures(Section):
    """What rollouts without a reward count, and which failures pause a run or make it warn."""

    rewards: dict[FailureClass, float] = Field(default_factory=dict[FailureClass, float])
    """Reward given to a failure class; without one, only a real reward trains, and the failure counts as 0 in the score
    of an evaluation."""
    short_groups: Literal["fill_up", "train", "drop"] = "fill_up"
    """A group that lost members to the platform: sample more, train what is left, or drop it."""
    fill_up_rounds: int = Field(default=2, ge=0, le=2)
    """Rounds of further samples for short groups; then those train that have two rewards, and others are dropped."""
    pause_above: PauseAbove = Field(default_factory=PauseAbove)
    """A step, or an evaluation, of which a larger share failed pauses the run before it is closed. A number is meant
    for agent and platform alike, null turns both off. Failures that `rewards` gives a reward don't count."""
    pause_without_reward: bool = True
    """A step, or an evaluation, without one real reward pauses the run."""
    stalled_after_seconds: float | None = Field(default=1800.0, gt=0)
    """Warn if no rollout, step or evaluation has ended for so long although the run waits for nothing; null: never."""
    pause_when_stalled: bool = False
    """Pause the run in that case, too."""
    warn_equal_rewards: int | None = Field(default=3, ge=1)
    """Warn if all rewards of each group were equal in so many steps in a row: nothing is learned; null: never."""

    @field_validator("pause_above", mode="before")
    @classmethod
    def _for_both(cls, value: Any) -> Any:
        return {"agent": value, "platform": value} if value is None or isinstance(value, int | float) else value

    @model_validator(mode="after")
    def _check(self) -> Self:
        usual = Failures.model_fields["fill_up_rounds"].default
        if self.short_groups != "fill_up" and self.fill_up_rounds != usual:
            raise ValueError(
                f"`failures.fill_up_rounds`: {self.fill_up_rounds} would do nothing with `short_groups: "
                f"{self.short_groups}`, which fills nothing up: leave it out, or write `short_groups: fill_up`"
            )
        if self.pause_when_stalled and self.stalled_after_seconds is None:
            raise ValueError(
                "`failures.pause_when_stalled`: true would do nothing without `stalled_after_seconds`: give the "
                "seconds, or leave it out"
            )
        return self


class Checkpoints(Section):
    """Where policy versions lie, and which stay. A version is an export for engines and, every `checkpoint_every`
    steps, a checkpoint with the optimizer."""

    url: str | None = None
    """A directory (the same path on every GPU host), or object storage: `s3://bucket/prefix`, whose credentials come
    from the environment of the GPU workers. Without it: what the setting `checkpoints` says, or the GPU host's own home
    folder, from where no other host can go on."""
    keep_last: int = Field(default=2, ge=1)
    """Number of newest checkpoints that are kept."""
    keep_every: int = Field(default=0, ge=0)
    """Checkpoints of steps that this number divides are kept; 0: none."""
    keep_best: int = Field(default=1, ge=0)
    """Number of versions with the best held-out score that are kept."""

    @field_validator("url")
    @classmethod
    def _check_url(cls, value: str | None) -> str | None:
        return check_location(value) if value is not None else None


def check_location(location: str) -> str:
    """A directory, or a URL without credentials.

    Raises:
        ValueError: with what to write instead.
    """
    protocol, separator, rest = location.partition("://")
    if separator and ("@" in rest or "?" in rest):
        raise ValueError("a URL with credentials or options would be stored and shown; set them in the environment")
    if not location.strip() or (separator and not (protocol and rest.strip("/"))):
        raise ValueError("name a directory, or object storage such as s3://bucket/prefix")
    return location


class AnyRunFile(Section):
    """What every run file has. A kind of run is a subclass with an `algorithm` section, whose `name` is a Literal."""

    agent: str = Field(min_length=1, pattern=AGENT_PATTERN)
    """Name of an agent that runners serve."""
    grader: str | None = Field(default=None, min_length=1, pattern=AGENT_PATTERN)
    """Name of a grader that runners serve; then its reward counts, not one that the agent gives itself."""
    runner_queue: str = RUNNER_QUEUE
    """Task queue prefix of the runners; they poll `<runner_queue>.<agent>` and `<runner_queue>.<grader>`."""
    data: Data
    """The tasks; a text alone is `data.train`."""
    evaluation: Evaluation = Field(default_factory=Evaluation)
    """Evaluations on the held-out tasks `data.evaluation`."""
    rollout: RolloutConfig = Field(default_factory=RolloutConfig)
    """Retries and deadlines."""
    failures: Failures = Field(default_factory=Failures)
    """What rollouts without a reward count, and which failures pause the run."""
    preflight: bool = True
    """Run a rollout of each kind before step 1; if it shows that all would fail, the run ends at once."""
    isolation: Isolation = "process"
    """`process`: one for each attempt; `sandbox`: one in namespaces; `shared`: one for all, which separates nothing."""
    network: Network = "internet"
    """What attempts may connect to: `gateway` takes the web's ports and UDP away, even if the runner allows them."""
    concurrency: int | None = Field(default=None, ge=1)
    """Limit on the rollouts of this run under way at once; without it the runners' own limits apply."""
    engine_wait_seconds: float = Field(default=300.0, gt=0)
    """How long a model call waits at the gateway while its engine or the store does not answer."""
    seed: int = Field(default=0, ge=-(2**63), lt=2**63)
    """The order of tasks and all sampling follow from it."""
    resources: dict[str, Any] = Field(default_factory=dict[str, Any])
    """Prompt templates and other resources by name, beside the model."""
    upstreams: list[Upstream] = Field(default_factory=list[Upstream])
    """Providers of other models that the agent may call by name; their answers are recorded and never trained on."""
    models: dict[str, str] = Field(default_factory=dict[str, str])
    """Models by the names that the agent calls them by: `{"gpt-4o-mini": "policy"}`. Other names stay as they are."""

    @classmethod
    def section(cls) -> type[Section]:
        """The model of `algorithm`, which may also be null."""
        annotation = cls.model_fields["algorithm"].annotation
        choices: tuple[Any, ...] = get_args(annotation) or (annotation,)
        return next(choice for choice in choices if choice is not type(None))

    @classmethod
    def algorithms(cls) -> tuple[str, ...]:
        """The values of `algorithm.name` that make a run file one of this kind."""
        return get_args(cls.section().model_fields["name"].annotation)

    @property
    def grader_queue(self) -> str | None:
        """Task queue of the runners that serve the grader."""
        return runner_queue(self.runner_queue, self.grader) if self.grader else None

    @field_validator("data", mode="before")
    @classmethod
    def _accept_a_path(cls, value: Any) -> Any:
        return {"train": value} if isinstance(value, str) else value

    @field_validator("resources")
    @classmethod
    def _check_resources(cls, value: dict[str, Any]) -> dict[str, Any]:
        try:
            _RESOURCES.validate_python(value)
        except ValidationError as error:
            raise ValueError(describe(error)) from error
        return value

    @field_validator("upstreams")
    @classmethod
    def _check_upstreams(cls, value: list[Upstream]) -> list[Upstream]:
        return check_names(value)

    @model_validator(mode="after")
    def _check_models(self) -> Self:
        check_models(self.models, self.upstreams)
        return self

    @model_validator(mode="after")
    def _check_rollouts(self) -> Self:
        if self.grader == OWN_REWARD:
            raise ValueError(f"`grader` can't be called {OWN_REWARD!r}: rewards of agents themselves are kept so")
        if self.data.evaluation is None and (idle := _differing(self.evaluation, Evaluation())):
            raise ValueError(f"`evaluation.{idle}` needs `data.evaluation`, the held-out tasks")
        if (rollouts := self.evaluation.samples * (self.evaluation.limit or 1)) > MOST_ROLLOUTS:
            raise ValueError(
                f"`evaluation.samples` {self.evaluation.samples} makes {rollouts} rollouts or more an evaluation; "
                f"{MOST_ROLLOUTS} are the most"
            )
        return self


Kind = TypeVar("Kind", bound=AnyRunFile)


class RunFile(AnyRunFile):
    """The configuration of a run that trains a model by comparing the samples of each task."""

    model: str = Field(min_length=1)
    """Directory (config, weights, tokenizer) or hub name of version 0."""
    algorithm: Algorithm = Field(default_factory=Algorithm)
    """How rewards become an update."""
    group_size: int = Field(default=8, ge=1)
    """Rollouts of one task in a step."""
    batch_size: int = Field(default=16, ge=1)
    """Tasks a step."""
    epochs: int | None = Field(default=None, ge=1)
    """Passes over the training tasks; or give `steps`."""
    steps: int | None = Field(default=None, ge=0)
    """Updates in all; or give `epochs`. Without either: one epoch."""
    sampling: Sampling = Field(default_factory=Sampling)
    """How the policy is sampled."""
    checkpoint_every: int = Field(default=1, ge=1)
    """Steps between full checkpoints (weights, optimizer, random state)."""
    checkpoints: Checkpoints = Field(default_factory=Checkpoints)
    """Where policy versions are stored and which are kept; a URL alone is `checkpoints.url`."""
    verl: dict[str, Any] = Field(default_factory=dict[str, Any])
    """verl's own keys, nested or dotted."""
    vllm: dict[str, Any] = Field(default_factory=dict[str, Any])
    """vLLM's own engine arguments, with `_` or `-`."""

    @field_validator("checkpoints", mode="before")
    @classmethod
    def _accept_a_url(cls, value: Any) -> Any:
        return {"url": value} if isinstance(value, str) else value

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.epochs is not None and self.steps is not None:
            raise ValueError("give `epochs` or `steps`, not both")
        if self.group_size < 2:
            raise ValueError(
                f"`group_size` must be 2 or more: `algorithm.name: {self.algorithm.name}` compares samples, and a step "
                "trains on no group of one"
            )
        check_step_size(self.group_size, self.batch_size)
        if (parts := self.algorithm.mini_batches or 1) > self.batch_size:
            raise ValueError(
                f"`algorithm.mini_batches`: {parts} is more than `batch_size`, {self.batch_size}: a mini-batch holds "
                "whole tasks"
            )
        self._check_numbers()
        return self

    def _check_numbers(self) -> None:
        """Check engine and trainer keys, which would otherwise fail only at their start or the first update."""
        algorithm = self.algorithm
        given = {
            "verl": self.verl,
            "vllm": self.vllm,
            "algorithm": {"rollout_correction": algorithm.rollout_correction},
        }
        for key, value in not_finite(given, ""):
            raise ValueError(f"`{key}`: {value!r} must be a finite number")
        if algorithm.loss_agg_mode == "token-mean" and algorithm.sequence != "rollout":
            raise ValueError(
                f"`algorithm.sequence`: `{algorithm.sequence}` would do nothing with `loss_agg_mode: token-mean`, "
                "where each token has the same weight: leave it out"
            )
        try:
            vllm_keys.check_run_file_keys(self.vllm)
            flat = verl_keys.flatten_verl_keys(self.verl)
            verl_keys.check_run_file_keys(flat)
            check_schedule(flat)
            estimator_options(algorithm.name, flat)
            parse_hyperparameters(
                trainer_numbers(algorithm, self.sampling.temperature, flat, self.group_size, algorithm.learning_rate)
            )
        except ConfigError as error:
            raise ValueError(error.message) from error
        tasks = flat.get("actor.ppo_mini_batch_size")
        if (tasks or 1) > self.batch_size:
            raise ValueError(f"`verl.actor.ppo_mini_batch_size`: {tasks} is more than `batch_size`, {self.batch_size}")
        one = tasks == self.batch_size if tasks else (algorithm.mini_batches or 1) == 1
        if one and flat.get("actor.shuffle"):
            raise ValueError(
                "`verl.actor.shuffle` would do nothing to one mini-batch: set `algorithm.mini_batches`, or leave it out"
            )
        if self.sampling.agent_chooses and flat.get("model.use_fused_kernels"):
            raise ValueError(
                "`sampling.agent_chooses` can't be used with `verl.model.use_fused_kernels`: verl's fused kernels take "
                "one temperature for all rows"
            )


KINDS: list[type[RunFile]] = [RunFile]
"""The kinds of run files: what parses, shows or compares run files goes by them. The first is the default."""


def _differing(given: Evaluation, usual: Evaluation) -> str:
    """The first key that only has an effect with an evaluation; empty if there is none."""
    names = [name for name in Evaluation.model_fields if name not in ("at_start", "at_end")]
    return next((name for name in names if getattr(given, name) != getattr(usual, name)), "")


def check_step_size(group_size: int, batch_size: int) -> None:
    """Refuse steps that are too large for one plan and its rows.

    Raises:
        ValueError: there are too many rollouts in a step.
    """
    if (rollouts := group_size * batch_size) > MOST_ROLLOUTS:
        raise ValueError(
            f"`group_size` {group_size} times `batch_size` {batch_size} is {rollouts} rollouts a step; "
            f"{MOST_ROLLOUTS} are the most"
        )


def parse_run_file(data: Any) -> RunFile:
    """Validate a run file's content.

    Raises:
        ConfigError: one message that names each key at fault.
    """
    return parse_kind(data, KINDS)


def parse_kind(data: Any, kinds: Sequence[type[Kind]]) -> Kind:
    """Validate a run file of one of several kinds: that which has its `algorithm.name`, or else the first.

    Raises:
        ConfigError: one message that names each key at fault.
    """
    try:
        return kind_of(data, kinds).model_validate(data)
    except ValidationError as error:
        raise ConfigError(f"run file: {describe(error, kinds)}") from error


def kind_of(data: Any, kinds: Sequence[type[Kind]]) -> type[Kind]:
    """The kind that has a file's `algorithm.name`, or else the first."""
    section: Any = data.get("algorithm") if isinstance(data, Mapping) else None
    name: Any = section.get("name") if isinstance(section, Mapping) else None
    return next((kind for kind in kinds if name in kind.algorithms()), kinds[0])


def known_keys(data: Mapping[str, Any], kinds: Sequence[type[AnyRunFile]] = KINDS) -> dict[str, Any]:
    """What a run file of its kind may hold, of a workflow's input or of a file that another release has written."""
    return {key: value for key, value in data.items() if key in kind_of(data, kinds).model_fields}
