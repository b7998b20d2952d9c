"""Resources of rollouts: models and prompts, by name. The names and fields are Agent Lightning 0.3's."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

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

    def get_base_url(self) -> str:
        """The base URL for a client."""
        return self.endpoint


class ProxyLLM(Resource):
    """A model behind a proxy that reads rollout and attempt from its path, as 0.3 hands it to agents."""

    resource_type: Literal["proxy_llm"] = "proxy_llm"
    endpoint: str
    """Base URL of the proxy, without rollout and attempt."""
    model: str
    api_key: str | None = None
    sampling_parameters: dict[str, Any] = Field(default_factory=dict)

    def get_base_url(self, rollout_id: str, attempt_id: str) -> str:
        """The base URL of one attempt."""
        root = self.endpoint.rstrip("/")
        prefix, version = (root.removesuffix("/v1"), "/v1") if root.endswith("/v1") else (root, "")
        return f"{prefix}/rollout/{rollout_id}/attempt/{attempt_id}{version}"


class PromptTemplate(Resource):
    """A prompt that an algorithm may rewrite."""

    resource_type: Literal["prompt_template"] = "prompt_template"
    template: str
    engine: Literal["f-string", "jinja", "poml"] = "f-string"

    def format(self, **values: Any) -> str:
        """Fill the template in. Only the `f-string` engine is filled here, as in 0.3."""
        if self.engine != "f-string":
            raise NotImplementedError(
                f"engine {self.engine!r} is not filled here; render `template` with its own library"
            )
        return self.template.format(**values)


ResourceUnion = Annotated[LLM | ProxyLLM | PromptTemplate, Field(discriminator="resource_type")]
NamedResources = dict[str, ResourceUnion]
