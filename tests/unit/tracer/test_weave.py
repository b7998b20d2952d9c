"""The tracer on Weave's library, whose import takes seconds, so that only these tests import it."""

from __future__ import annotations

import importlib
import subprocess
import sys
from collections.abc import Generator
from types import ModuleType

import pytest
from opentelemetry import trace

from relight.tracer.weave import WeaveTracer
from relight.types.tracer import Span


@pytest.fixture(scope="module")
def tracer() -> Generator[WeaveTracer]:
    tracer = WeaveTracer(patch=["openai"])
    with tracer.lifespan():
        yield tracer


@pytest.fixture(scope="module")
def operations() -> ModuleType:
    return importlib.import_module("tests.unit.tracer.weave_operations")


def by_name(tracer: WeaveTracer) -> dict[str, Span]:
    return {span.name: span for span in tracer.get_last_trace()}


def test_operations_are_spans_in_one_tree_with_those_of_emitters_and_libraries(
    tracer: WeaveTracer, operations: ModuleType
) -> None:
    assert tracer.trace_run(operations.outer, 4) == {"double": 8}
    spans = by_name(tracer)
    assert spans["inner"].parent_id == spans["outer"].span_id
    assert spans["agentlightning.message"].parent_id == spans["library"].parent_id == spans["inner"].span_id
    assert spans["outer"].attributes["agentlightning.operation.input.number"] == 4
    assert spans["outer"].attributes["agentlightning.operation.output.double"] == 8
    assert not trace.get_current_span().is_recording()


def test_an_operation_that_raises_is_an_error(tracer: WeaveTracer, operations: ModuleType) -> None:
    with pytest.raises(KeyError):
        tracer.trace_run(operations.fails)
    status = by_name(tracer)["fails"].status
    assert (status.status_code, status.description) == ("ERROR", "'lost'")


async def test_an_async_generator_is_one_operation(tracer: WeaveTracer, operations: ModuleType) -> None:
    async with tracer.trace_context():
        assert [number async for number in operations.counts(3)] == [0, 1, 2]
    assert [span.name for span in tracer.get_last_trace()] == ["counts"]


def test_an_unknown_integration_is_refused_with_those_that_there_are() -> None:
    code = """
from relight.tracer.weave import WeaveTracer
try:
    WeaveTracer(patch=["opnai"]).init_worker(0)
except ValueError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "'opnai' is no integration of weave; there are anthropic" in done.stdout


def test_without_the_library_the_error_says_how_to_install_it() -> None:
    code = """
import sys
sys.modules["weave"] = None
from relight.tracer.weave import WeaveTracer
try:
    WeaveTracer().init_worker(0)
except ImportError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "pip install 'relight[weave]'" in done.stdout
