"""Models and prompts as resources."""

from __future__ import annotations

import logging
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter

from relight.errors import TemplateError
from relight.types.resources import LLM, NamedResources, PromptTemplate, ProxyLLM
from relight.types.rollout import Attempt, AttemptedRollout

ATTEMPTED = AttemptedRollout(
    rollout_id="ro-1",
    start_time=1.0,
    attempt=Attempt(rollout_id="ro-1", attempt_id="at-1", sequence_id=1, start_time=1.0),
)


def proxy(endpoint: str = "http://gateway:4748") -> ProxyLLM:
    return ProxyLLM(endpoint=endpoint, model="m", api_key="k", sampling_parameters={"temperature": 0.5})


@pytest.mark.parametrize(
    ("endpoint", "own"),
    [
        ("http://gateway:4748", "http://gateway:4748/rollout/ro-1/attempt/at-1"),
        ("http://gateway:4748/", "http://gateway:4748/rollout/ro-1/attempt/at-1"),
        ("http://gateway:4748/v1", "http://gateway:4748/rollout/ro-1/attempt/at-1/v1"),
        ("http://gateway:4748/v1/", "http://gateway:4748/rollout/ro-1/attempt/at-1/v1"),
    ],
)
def test_a_proxys_base_url_is_that_of_the_attempt(endpoint: str, own: str) -> None:
    assert proxy(endpoint).get_base_url("ro-1", "at-1") == own
    assert proxy(endpoint).get_base_url() == endpoint
    assert LLM(endpoint=endpoint, model="m").get_base_url("ro-1", "at-1") == endpoint


@pytest.mark.parametrize(("ids", "missing"), [(("ro-1", None), "attempt_id"), ((None, "at-1"), "rollout_id")])
def test_one_id_alone_is_an_error_that_names_the_other(ids: tuple[Any, Any], missing: str) -> None:
    with pytest.raises(ValueError, match=f"{missing} is missing"):
        proxy().get_base_url(*ids)


def test_a_proxy_becomes_the_attempts_own_model() -> None:
    own = proxy("http://gateway:4748/v1").with_attempted_rollout(ATTEMPTED)
    assert own == LLM(
        endpoint="http://gateway:4748/rollout/ro-1/attempt/at-1/v1",
        model="m",
        api_key="k",
        sampling_parameters={"temperature": 0.5},
    )


def test_only_the_bare_endpoint_of_a_proxy_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    model = proxy()
    with caplog.at_level(logging.WARNING):
        assert model.get_base_url("ro-1", "at-1")
        assert model.model_dump() == model.model_copy().model_dump()
        assert model == proxy()
        assert caplog.text == ""
        assert model.endpoint == "http://gateway:4748"
    assert "Accessing 'endpoint' directly on ProxyLLM is discouraged" in caplog.text


def test_resources_are_read_as_the_types_that_they_were() -> None:
    resources: NamedResources = {"a": proxy(), "b": LLM(endpoint="e", model="m"), "c": PromptTemplate(template="t")}
    named: TypeAdapter[NamedResources] = TypeAdapter(NamedResources)
    read = named.validate_json(named.dump_json(resources))
    assert read == resources
    assert [type(resource) for resource in read.values()] == [ProxyLLM, LLM, PromptTemplate]


@pytest.mark.parametrize(
    ("engine", "template", "filled"),
    [
        ("f-string", "{x} of {{braces}}", "1 of {braces}"),
        ("f-string", "{x:>{width}}|{seen[0]}|{seen.x}", "   1|a|no"),
        ("jinja", "{{ x }} of {braces}\n", "1 of {braces}\n"),
        ("jinja", "{% for s in seen %}{{ loop.index }}{{ s }} {% endfor %}{{ y if y is defined }}", "1a 2b "),
    ],
)
def test_both_engines_fill_a_template_in(engine: Any, template: str, filled: str) -> None:
    class Seen(list[str]):
        x = "no"

    values: dict[str, Any] = {"x": 1, "width": 4, "seen": Seen(["a", "b"])}
    assert PromptTemplate(template=template, engine=engine).format(**values) == filled


@pytest.mark.parametrize(
    ("engine", "template", "says"),
    [
        ("f-string", "{question} {x}", r"placeholder 'question', and no such value was given \(given: x\)"),
        ("f-string", "{}", "placeholder without a name"),
        ("f-string", "{x", "write {{ and }} for braces"),
        ("f-string", "{x[a]}", "has no attribute 'a'"),
        ("f-string", "{x.__class__}", "'__class__' of 'int' object is unsafe"),
        ("f-string", "{x:{x.__class__}}", "'__class__' of 'int' object is unsafe"),
        ("jinja", "{{ question }}", r"'question' is undefined \(given: x\)"),
        ("jinja", "{{ x.__class__.__mro__ }}", "'__class__' of 'int' object is unsafe"),
        ("jinja", "{{ x", "unexpected end of template"),
    ],
)
def test_what_a_template_lacks_is_named_and_it_gets_at_no_objects(engine: Any, template: str, says: str) -> None:
    with pytest.raises(TemplateError, match=says):
        PromptTemplate(template=template, engine=engine).format(x=1)


@given(st.text("{}x.[]!:0 "))
def test_no_template_raises_anything_else(template: str) -> None:
    with suppress(TemplateError):
        assert isinstance(PromptTemplate(template=template).format(x=1), str)


def test_poml_is_left_to_its_own_library() -> None:
    with pytest.raises(NotImplementedError, match="'poml' is not filled in here"):
        PromptTemplate(template="<poml/>", engine="poml").format()


@pytest.mark.parametrize(
    ("engine", "template"),
    [
        ("jinja", "{{ 1/0 }}"),
        ("jinja", "{{ x + 1 }}"),
        ("jinja", "{% include 'a' %}"),
        ("jinja", "{{ p.read_text() }}"),
        ("f-string", "{x:>10000000000000}"),
    ],
)
def test_whatever_a_template_does_wrong_is_one_kind_of_error(tmp_path: Path, engine: Any, template: str) -> None:
    secret = tmp_path / "secret"
    secret.write_text("secret")
    with pytest.raises(TemplateError) as caught:
        PromptTemplate(template=template, engine=engine).format(x="a", p=secret)
    assert "secret" not in str(caught.value).replace(str(secret), "")


def test_a_template_may_call_methods_of_texts_and_lists() -> None:
    template = PromptTemplate(template="{{ x.upper() }} {{ range(2) | list }} {{ y.count('a') }}", engine="jinja")
    assert template.format(x="a", y=["a", "b"]) == "A [0, 1] 1"
