"""The workflows. They decide the order of activities, call these by name, and import `types` alone."""

from relight.workflows.batch import RolloutBatchWorkflow
from relight.workflows.evaluation import EvaluationWorkflow
from relight.workflows.regrade import RegradeWorkflow
from relight.workflows.rollout import RolloutWorkflow
from relight.workflows.training import TrainingWorkflow
from relight.workflows.unknown_type import UnknownWorkflow

WORKFLOWS = [
    TrainingWorkflow,
    RolloutBatchWorkflow,
    RolloutWorkflow,
    EvaluationWorkflow,
    RegradeWorkflow,
    UnknownWorkflow,
]
