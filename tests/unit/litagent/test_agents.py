"""Agents as functions and as classes."""

from __future__ import annotations

import asyncio
import inspect
from typing import Any, cast

import pytest

from relight.litagent import FunctionalLitAgent, LitAgent, llm_rollout, prompt_rollout, rollout
from relight.litagent.agent_arguments import MAIN_LLM, Invocation
from relight.types.resources import LLM, PromptTemplate, ProxyLLM
from relight.types.rollout import Attempt, AttemptedRollout, Rollout

OWN = LLM(endpoint="http://gateway/v1", model="policy", api_key="k")
PROMPT = PromptTemplate(template="say {x}")
ROLLOUT = {
    "rollout_id": "ro-1",
    "start_time": 1.0,
    "mode": "train",
    "attempt": {"rollout_id": "ro-1", "attempt_id": "at-1", "sequence_id": 1, "start_time": 1.0},
}


def _invoke(agent: LitAgent[Any], mode: str | None = "train", **given: Any) -> Any:
    resources = {name: value.model_dump() for name, value in given.pop("resources", {"p": PROMPT}).items()}
    invocation = Invocation(
        {"x": 1}, llm=given.get("llm", OWN.model_dump()), resources=resources, rollout={**ROLLOUT, "mode": mode}
    )
    value = agent.invoke(invocation)
    return asyncio.run(_wait(value)) if inspect.isawaitable(value) else value


async def _wait(value: Any) -> Any:
    return await value


def test_a_function_gets_what_its_parameters_name() -> None:
    @rollout
    def agent(task: Any, rollout: Any, prompt_template: PromptTemplate, llm: LLM, resources: Any) -> Any:
        return task, rollout.attempt.attempt_id, prompt_template.format(x=2), llm.get_base_url(), sorted(resources)

    assert _invoke(agent) == ({"x": 1}, "at-1", "say 2", "http://gateway/v1", [MAIN_LLM, "p"])


def test_an_async_function_is_awaited() -> None:
    @rollout
    async def agent(task: Any) -> float:
        await asyncio.sleep(0)
        return 0.5

    assert agent.is_async()
    assert _invoke(agent) == 0.5


def test_a_decorated_function_can_still_be_called() -> None:
    @llm_rollout
    def agent(task: int, llm: int) -> int:
        """Adds."""
        return task + llm

    assert agent(2, llm=3) == 5
    assert (cast(Any, agent).__name__, agent.__doc__, agent.name) == ("agent", "Adds.", "agent")


def test_the_decorators_take_a_name() -> None:
    assert rollout(name="a.b")(lambda task: 1).name == "a.b"
    assert llm_rollout(name="c", strip_proxy=False)(lambda task, llm: 1).name == "c"
    assert prompt_rollout(name="d")(lambda task, prompt_template: 1).name == "d"


def test_the_attempts_own_model_overrides_one_of_the_resources() -> None:
    other = LLM(endpoint="http://elsewhere/v1", model="other")

    @rollout
    def agent(task: Any, llm: LLM, resources: Any) -> Any:
        return llm.model, [value.model for value in resources.values()]

    assert _invoke(agent, resources={"judge": other}) == ("policy", ["other"])
    assert _invoke(agent, llm=None, resources={"judge": other}) == ("other", ["other"])


PROXY = ProxyLLM(endpoint="http://proxy/v1", model="m")


@pytest.mark.parametrize(
    ("strip", "given"),
    [(True, LLM(endpoint="http://proxy/rollout/ro-1/attempt/at-1/v1", model="m")), (False, PROXY)],
)
def test_a_proxy_is_given_at_the_attempts_address_unless_the_decorator_says_otherwise(strip: bool, given: LLM) -> None:
    agent = llm_rollout(strip_proxy=strip)(lambda task, llm: llm)
    assert _invoke(agent, llm=None, resources={"judge": PROXY}) == given
    assert _invoke(agent, resources={"judge": PROXY}) == OWN


def test_a_proxy_needs_an_attempt_for_its_address() -> None:
    agent = llm_rollout(lambda task, llm: llm)
    with pytest.raises(ValueError, match="needs an AttemptedRollout"):
        agent.rollout(1, {"judge": PROXY}, Rollout(rollout_id="ro-1", start_time=1.0))


def test_the_first_of_several_models_is_used_and_the_others_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    agent = rollout(lambda task, llm: llm.model)
    models = {name: LLM(endpoint="http://x/v1", model=name) for name in ("a", "b")}
    assert _invoke(agent, llm=None, resources=models) == "a"
    assert "the resources hold a, b as an LLM; the first of them is used" in caplog.text


class Counted(LitAgent[Any]):
    async def training_rollout_async(self, task: Any, resources: Any, rollout: Any) -> Any:
        return "training", rollout.mode

    async def validation_rollout_async(self, task: Any, resources: Any, rollout: Any) -> Any:
        return "validation", rollout.mode


def test_both_modes_have_asynchronous_methods_too() -> None:
    assert Counted().is_async()
    assert _invoke(Counted()) == ("training", "train")
    assert _invoke(Counted(), mode="test") == ("validation", "test")


def test_trained_agents_warns_and_is_kept_for_the_adapter() -> None:
    with pytest.warns(DeprecationWarning, match="give the adapter agent_match") as caught:
        assert Counted(trained_agents="writer").trained_agents == "writer"
    assert len(caught) == 1
    assert Counted().trained_agents is None


class Owner:
    tracer = "t"


def test_an_agent_knows_its_runner_and_trainer_as_long_as_these_live() -> None:
    agent, trainer, runner = Counted(), Owner(), LitAgent[Any]()
    with pytest.raises(ValueError, match="no runner: call set_runner first"):
        agent.get_tracer()
    agent.set_trainer(trainer)
    agent.set_runner(trainer)
    assert (agent.runner, agent.trainer, agent.tracer) == (trainer, trainer, "t")
    agent.set_runner(runner)
    del trainer
    with pytest.raises(ValueError, match="trainer is gone"):
        agent.get_trainer()


def test_a_parameter_with_a_default_may_be_missing_from_the_resources() -> None:
    @rollout
    def agent(task: Any, prompt_template: Any = "default", flag: bool = True) -> Any:
        return prompt_template

    assert _invoke(agent, resources={}) == "default"
    assert _invoke(agent) == PROMPT


def test_a_resource_that_is_not_there_is_named() -> None:
    @prompt_rollout
    def agent(task: Any, prompt_template: PromptTemplate) -> None: ...

    with pytest.raises(ValueError, match="asks for a prompt template, and the rollout's resources hold"):
        _invoke(agent, resources={})


@pytest.mark.parametrize(
    ("function", "says"),
    [
        (lambda: 1, "must be called 'task'"),
        (lambda llm, task: 1, "must be called 'task'"),
        (lambda task, model: 1, "asks for 'model'; an agent may ask for task, llm"),
    ],
)
def test_a_signature_that_cannot_be_served_is_refused(function: Any, says: str) -> None:
    with pytest.raises(NotImplementedError, match=says):
        rollout(function)


def test_a_generator_is_no_agent() -> None:
    def agent(task: Any) -> Any:
        yield 1

    with pytest.raises(NotImplementedError, match="is a generator"):
        rollout(agent)


def test_the_specific_decorators_require_their_parameter() -> None:
    with pytest.raises(ValueError, match="must have a parameter called 'llm'"):
        llm_rollout(lambda task, prompt_template: 1)
    with pytest.raises(ValueError, match="must have a parameter called 'prompt_template'"):
        prompt_rollout(lambda task, llm: 1)


class Both(LitAgent[Any]):
    def training_rollout(self, task: Any, resources: Any, rollout: Any) -> Any:
        return "training", task, sorted(resources), rollout.mode

    def rollout(self, task: Any, resources: Any, rollout: Any) -> Any:
        return "rollout", rollout.mode


class Asynchronous(LitAgent[Any]):
    async def rollout_async(self, task: Any, resources: Any, rollout: Any) -> Any:
        return "async", rollout.input


def test_a_class_runs_the_method_for_its_mode() -> None:
    assert _invoke(Both()) == ("training", {"x": 1}, [MAIN_LLM, "p"], "train")
    assert _invoke(Both(), mode="val") == ("rollout", "val")
    assert _invoke(Both(), mode=None) == ("rollout", None)


def test_a_class_with_an_async_method_is_asynchronous() -> None:
    assert Asynchronous().is_async()
    assert not Both().is_async()
    assert _invoke(Asynchronous()) == ("async", {"x": 1})


def test_a_class_that_overrides_nothing_gets_an_error_that_names_what_to_override() -> None:
    with pytest.raises(NotImplementedError, match="must override rollout or rollout_async"):
        _invoke(LitAgent())


def test_a_functions_agent_has_the_methods_of_a_class() -> None:
    attempted = AttemptedRollout(
        rollout_id="ro-1",
        start_time=1.0,
        attempt=Attempt(rollout_id="ro-1", attempt_id="at-1", sequence_id=1, start_time=1.0),
    )
    agent: FunctionalLitAgent[Any] = rollout(lambda task, llm, rollout: (task, llm.model, rollout.rollout_id))
    assert agent.rollout(1, {"m": OWN}, attempted) == (1, "policy", "ro-1")
    with pytest.raises(RuntimeError, match="synchronous"):
        asyncio.run(agent.rollout_async(1, {"m": OWN}, attempted))
