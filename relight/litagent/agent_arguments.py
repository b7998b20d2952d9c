"""The arguments of an agent in one attempt. Each object is built on first use, since most agents use two of them."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import cached_property
from typing import Any, Self, TypeVar

from pydantic import TypeAdapter

from relight.types.resources import LLM, MAIN_LLM, NamedResources, PromptTemplate
from relight.types.rollout import AttemptedRollout, Rollout

logger = logging.getLogger(__name__)

R = TypeVar("R", LLM, PromptTemplate)
_resources: TypeAdapter[NamedResources] = TypeAdapter(NamedResources)


class Invocation:
    """One attempt at one task, from the JSON that the runner sent."""

    def __init__(
        self,
        task: Any,
        *,
        llm: Mapping[str, Any] | None = None,
        resources: Mapping[str, Any] | None = None,
        rollout: Mapping[str, Any] | None = None,
    ) -> None:
        self.task = task
        self._llm = llm
        self._resources = resources or {}
        self._rollout = rollout or {}

    @classmethod
    def of(cls, task: Any, resources: NamedResources, rollout: Rollout) -> Self:
        """An invocation with these objects."""
        invocation = cls(task, rollout={"mode": rollout.mode})
        invocation.__dict__.update(resources=resources, rollout=rollout)
        return invocation

    @cached_property
    def llm(self) -> LLM:
        """The attempt's own model, or else the first `LLM` of the resources.

        Raises:
            ValueError: there is none.
        """
        if self._llm is not None:
            return LLM.model_validate(self._llm)
        return self._first(LLM, "an LLM")

    @cached_property
    def prompt_template(self) -> PromptTemplate:
        """The first prompt template of the resources.

        Raises:
            ValueError: there is none.
        """
        return self._first(PromptTemplate, "a prompt template")

    def _first(self, kind: type[R], what: str) -> R:
        found = {name: resource for name, resource in self.resources.items() if isinstance(resource, kind)}
        if len(found) > 1:
            logger.warning("the resources hold %s as %s; the first of them is used", ", ".join(found), what)
        for resource in found.values():
            return resource
        raise ValueError(
            f"the agent asks for {what}, and the rollout's resources hold {sorted(self.resources) or 'none'}"
        )

    @cached_property
    def resources(self) -> NamedResources:
        """All resources by name, with the attempt's own model among them."""
        resources = _resources.validate_python(dict(self._resources))
        if self._llm is not None and not any(resource.resource_type == "llm" for resource in resources.values()):
            resources[MAIN_LLM] = self.llm
        return resources

    @cached_property
    def rollout(self) -> AttemptedRollout:
        """Ids, mode, configuration and metadata of the rollout and of this attempt."""
        return AttemptedRollout.model_validate({**self._rollout, "input": self.task})

    def lacks(self, name: str) -> bool:
        """Whether there is no argument for this parameter."""
        if name == "llm":
            return self._llm is None and not any(isinstance(value, LLM) for value in self.resources.values())
        if name == "prompt_template":
            return not any(isinstance(value, PromptTemplate) for value in self.resources.values())
        return False

    @property
    def mode(self) -> str | None:
        """`train`, `val` or `test`."""
        return self._rollout.get("mode")
