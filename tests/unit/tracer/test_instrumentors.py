"""Finding instrumentors and switching them on by name."""

from __future__ import annotations

import pytest
from openai.resources.chat.completions import Completions

from relight.tracer import OtelTracer
from relight.tracer.instrumentors import installed, package_of


def create() -> object:
    return Completions.create


def test_instrumentors_are_found_by_name_and_by_package() -> None:
    found = installed()
    assert package_of(found["openai"]) == "opentelemetry-instrumentation-openai"
    assert found["openinference-instrumentation-openai"].value.startswith("openinference.")


@pytest.mark.parametrize("names", [["openai"], ["openinference-instrumentation-openai"], "all"])
def test_a_library_is_instrumented_while_the_tracer_lives(names: list[str]) -> None:
    before, tracer = create(), OtelTracer(instrument=names)
    with tracer.lifespan():
        assert tracer.instrumented == (["openai"] if names == "all" else names)
        assert create() is not before or names[0].startswith("openinference")  # which wraps the method below it
    assert create() == before


def test_a_name_that_is_not_installed_is_refused_with_those_that_are() -> None:
    with pytest.raises(ValueError, match=r"'opnai' is not installed; installed are .*'openai'"):
        OtelTracer(instrument=["opnai"]).init_worker(0)


def test_one_name_as_text_is_refused() -> None:
    with pytest.raises(ValueError, match="give a list of names"):
        OtelTracer(instrument="openai").init_worker(0)  # type: ignore[arg-type]
