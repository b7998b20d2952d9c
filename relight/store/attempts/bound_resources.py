"""The models among a rollout's resources as its attempts call them: through the gateway, with the attempt's key.

Where the rollout's run has engines, `llm` is the policy, and a `ProxyLLM` among the resources can be called too.
Elsewhere there is no policy, and `llm` is the model of the resources. The calls to all of them are recorded.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from pydantic import TypeAdapter

from relight.store.attempts.attempt_tokens import attempt_url
from relight.types.names import POLICY
from relight.types.resources import LLM, MAIN_LLM, NamedResources, PromptTemplate, ProxyLLM
from relight.types.wire import ResourceModel

_RESOURCES: TypeAdapter[NamedResources] = TypeAdapter(NamedResources)


Model = LLM | ProxyLLM


class AttemptEndpoint(NamedTuple):
    """The attempt that the resources are for, and the gateway that serves its model calls."""

    gateway_url: str
    policy: bool
    """The run of its rollout has engines, which serve the policy."""
    rollout_id: str
    attempt_id: str

    def is_forwarded(self, model: Model) -> bool:
        """Whether the gateway forwards calls of this model to another address."""
        elsewhere = _origin(model.endpoint) != _origin(self.gateway_url)
        return elsewhere and (not self.policy or isinstance(model, ProxyLLM))

    def address(self, model: Model) -> str:
        """The model's own base URL."""
        url = model.get_base_url(self.rollout_id, self.attempt_id) if isinstance(model, ProxyLLM) else model.endpoint
        return url.rstrip("/")

    def policy_model(self, token: str) -> LLM:
        """The policy as a resource."""
        url = attempt_url(self.gateway_url.rstrip("/"), self.rollout_id, self.attempt_id)
        return LLM(endpoint=url, model=POLICY, api_key=token)

    def bound(self, model: Model, token: str, called: str | None = None) -> Model:
        """The same model at the gateway, with the attempt's key."""
        root = self.gateway_url.rstrip("/")
        proxy = isinstance(model, ProxyLLM)
        endpoint = f"{root}/v1" if proxy else attempt_url(root, self.rollout_id, self.attempt_id)
        return model.model_copy(update={"endpoint": endpoint, "api_key": token, "model": called or model.model})


class BoundResources(NamedTuple):
    """The resources that an attempt gets, and the models among them that the gateway forwards to."""

    resources: NamedResources
    forwarded: list[ResourceModel]
    main: Model | None
    """The model that replaces the policy; None where there is a policy, and if there is no model."""


def is_at_gateway(model: Model, gateway_url: str) -> bool:
    """Whether its endpoint is the gateway itself, and no key was given for it."""
    if model.api_key is not None or _origin(gateway_url) != _origin(model.endpoint):
        return False
    return urlsplit(model.endpoint).path.rstrip("/") in ("", "/v1")


def _origin(url: str) -> tuple[str, str]:
    parts = urlsplit(url)
    return parts.scheme, parts.netloc


def bind_resources(raw: Mapping[str, Any], endpoint: AttemptEndpoint, token: str) -> BoundResources:
    """Resources as an attempt gets them."""
    resources = _RESOURCES.validate_python(dict(raw))
    models = {name: model for name, model in resources.items() if not isinstance(model, PromptTemplate)}
    here = {name: model for name, model in models.items() if is_at_gateway(model, endpoint.gateway_url)}
    forwarded = _forwarded(models, endpoint, {model.model for model in here.values()})
    bound = {name: endpoint.bound(model, token) for name, model in here.items()}
    bound |= {name: endpoint.bound(models[name], token, target.name) for name, target in forwarded.items()}
    reached = models | bound
    main = reached.get(MAIN_LLM) or next(iter(reached.values()), None)
    return BoundResources(resources | bound, list(forwarded.values()), None if endpoint.policy else main)


def _forwarded(models: Mapping[str, Model], endpoint: AttemptEndpoint, taken: set[str]) -> dict[str, ResourceModel]:
    """By resource, under names that are different from each other and from `taken`."""
    taken = taken | ({POLICY} if endpoint.policy else set())
    found: dict[str, ResourceModel] = {}
    for name, model in models.items():
        if endpoint.is_forwarded(model):
            called = f"{name}/{model.model}" if model.model in taken else model.model
            taken.add(called)
            found[name] = ResourceModel(
                name=called, resource=name, base_url=endpoint.address(model), model=model.model, api_key=model.api_key
            )
    return found
