"""The durable part: order, not work. Workflows name activities by name and import types alone."""

from relight.workflows.batch import RolloutBatchWorkflow
from relight.workflows.evaluation import EvaluationWorkflow
from relight.workflows.rollout import RolloutWorkflow
from relight.workflows.training import TrainingWorkflow

WORKFLOWS = [TrainingWorkflow, RolloutBatchWorkflow, RolloutWorkflow, EvaluationWorkflow]

__all__ = ["WORKFLOWS", "EvaluationWorkflow", "RolloutBatchWorkflow", "RolloutWorkflow", "TrainingWorkflow"]
