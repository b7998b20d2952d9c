"""Resources of rollouts: models and prompts, by name. The names and fields are Agent Lightning 0.3's."""

from __future__ import annotations

import inspect
import logging
from types import FrameType
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from relight.types.rollout import AttemptedRollout
from relight.types.templates import fill_in

logger = logging.getLogger(__name__)

MAIN_LLM = "main_llm"
"""Name of the attempt's own model among the resources, if they have no other."""


class Resource(BaseModel):
    """Base of all resources."""

    model_config = ConfigDict(extra="forbid")

    resource_type: Any


class LLM(Resource):
    """A model behind an OpenAI-compatible endpoint.

    Point any client at `endpoint` with `api_key`; the key is good for this attempt only.
    """

    resource_type: Literal["llm"] = "llm"
    endpoint: str
    """Base URL, with `/v1` if the client needs it: `<gateway>/rollout/<r>/attempt/<a>/v1`."""
    model: str
    api_key: str | None = None
    sampling_parameters: dict[str, Any] = Field(default_factory=dict)

    def get_base_url(self, rollout_id: str | None = None, attempt_id: str | None = None) -> str:
        """The base URL for a client. The ids make a difference for a `ProxyLLM` only."""
        return self.endpoint


class ProxyLLM(LLM):
    """A model behind a proxy that reads rollout and attempt from its path.

    `endpoint` is the proxy's base URL without them: agents call `get_base_url(rollout_id, attempt_id)`.
    """

    resource_type: Literal["proxy_llm"] = "proxy_llm"  # pyright: ignore[reportIncompatibleVariableOverride]

    def __getattribute__(self, name: str) -> Any:
        if name == "endpoint" and not _is_our_own(inspect.currentframe()):
            logger.warning(
                "Accessing 'endpoint' directly on ProxyLLM is discouraged: calls to it belong to no attempt. "
                "Use 'get_base_url(rollout_id, attempt_id)'."
            )
        return super().__getattribute__(name)

    def with_attempted_rollout(self, rollout: AttemptedRollout) -> LLM:
        """The model at the address of this attempt."""
        return LLM(
            endpoint=self.get_base_url(rollout.rollout_id, rollout.attempt.attempt_id),
            model=self.model,
            api_key=self.api_key,
            sampling_parameters=self.sampling_parameters,
        )

    def get_base_url(self, rollout_id: str | None = None, attempt_id: str | None = None) -> str:
        """The base URL of one attempt; without both ids that of the proxy.

        Raises:
            ValueError: only one of the ids is given.
        """
        if rollout_id is None and attempt_id is None:
            return self.endpoint
        if not rollout_id or not attempt_id:
            missing = "attempt_id" if rollout_id else "rollout_id"
            raise ValueError(f"{missing} is missing: give both rollout_id and attempt_id, or neither")
        root = self.endpoint.rstrip("/")
        prefix, version = (root.removesuffix("/v1"), "/v1") if root.endswith("/v1") else (root, "")
        return f"{prefix}/rollout/{rollout_id}/attempt/{attempt_id}{version}"


def _is_our_own(frame: FrameType | None) -> bool:
    """Whether this package, or pydantic, called the function of this frame."""
    caller = frame.f_back if frame else None
    return caller is not None and caller.f_globals.get("__name__", "").startswith(("relight.", "pydantic."))


class PromptTemplate(Resource):
    """A prompt that an algorithm may rewrite."""

    resource_type: Literal["prompt_template"] = "prompt_template"
    template: str
    engine: Literal["f-string", "jinja", "poml"] = "f-string"

    def format(self, **values: Any) -> str:
        """Fill the template in.

        Raises:
            TemplateError: a placeholder has no value, or the template is malformed; the message names it.
            NotImplementedError: the engine is `poml`.
        """
        return fill_in(self.template, self.engine, values)


ResourceUnion = Annotated[LLM | ProxyLLM | PromptTemplate, Field(discriminator="resource_type")]
NamedResources = dict[str, ResourceUnion]
