"""The durable part: order, not work. Workflows name activities by name and import types alone."""

from relight.workflows.batch import RolloutBatchWorkflow
from relight.workflows.evaluation import EvaluationWorkflow
from relight.workflows.regrade import RegradeWorkflow
from relight.workflows.rollout import RolloutWorkflow
from relight.workflows.training import TrainingWorkflow

WORKFLOWS = [TrainingWorkflow, RolloutBatchWorkflow, RolloutWorkflow, EvaluationWorkflow, RegradeWorkflow]

__all__ = [
    "WORKFLOWS",
    "EvaluationWorkflow",
    "RegradeWorkflow",
    "RolloutBatchWorkflow",
    "RolloutWorkflow",
    "TrainingWorkflow",
]
