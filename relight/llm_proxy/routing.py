"""Selects the model that a call names and the target that serves it.

The policy is served by engines that hold a version which the call's step allows; calls of no step get the newest. Other
models of the run's engines, models of providers and models of the rollout's resources are called by name; their answers
are recorded without token ids. Where the rollout's run has no engines, there is no policy; the model of its resources
replaces it.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from relight.llm_proxy.dialects import Dialect
from relight.llm_proxy.engines import Engines
from relight.llm_proxy.request_errors import no_such_model
from relight.llm_proxy.requests import Prepared, pass_on, prepare
from relight.llm_proxy.targets import Target, TargetUnavailable
from relight.llm_proxy.upstreams import Upstreams
from relight.types.names import POLICY
from relight.types.wire import CallContext


class Router:
    """Finds the target of a call."""

    def __init__(self, engines: Engines, upstreams: Upstreams) -> None:
        self.engines = engines
        self._upstreams = upstreams

    async def prepare(self, dialect: Dialect, context: CallContext, asked: dict[str, Any]) -> Prepared:
        """The request that is forwarded.

        Raises:
            RequestError: it can't be served, or names an unknown model.
        """
        named = asked.get("model")
        if isinstance(named, str) and named in context.models:
            named = context.models[named]
            asked = {**asked, "model": named}
        if context.run is None and named in (None, POLICY):
            named = context.model
            asked = {**asked, "model": named}
        of_policy = named in (None, POLICY, context.model)
        if of_policy and (context.run is not None or named not in self._upstreams.models(context)):
            run = context.sampling, context.agent_chooses_sampling
            return prepare(dialect.route, asked, context.model, *run, dialect.name, corrected=context.corrected)
        if named in self._upstreams.models(context):
            return pass_on(dialect.route, asked, "upstream", dialect.name)
        if await self._may_be_an_engines(context, named):
            return pass_on(dialect.route, asked, "engine", dialect.name)
        raise no_such_model(str(named), ", ".join(await self.models(context)))

    async def pick(self, context: CallContext, prepared: Prepared) -> Target:
        """The target that serves the call now.

        Raises:
            TargetUnavailable: there is none.
        """
        if prepared.source == "upstream":
            return self._upstreams.pick(context, prepared.body["model"])
        return await self.engines.pick(context, prepared.body["model"])

    async def models(self, context: CallContext) -> list[str]:
        """The names that a call may give, as far as they are known."""
        names = [context.model]
        with suppress(TargetUnavailable):
            names += await self.engines.models(context)
        return list(dict.fromkeys([*names, *self._upstreams.models(context), *context.models]))

    async def _may_be_an_engines(self, context: CallContext, named: Any) -> bool:
        """True also while the store does not answer: then the call waits, since this is a failure of the platform."""
        try:
            return named in await self.engines.models(context)
        except TargetUnavailable:
            return True
