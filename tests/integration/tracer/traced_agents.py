"""Agents whose spans reach the store, each by another way."""

from __future__ import annotations

import subprocess
import sys
import threading
from typing import Any

import openai
from openai.types.chat import ChatCompletionUserMessageParam
from opentelemetry import trace

from relight import LLM, rollout
from relight.emitter import emit_message, emit_reward
from relight.tracer import OtelTracer

QUESTION = [ChatCompletionUserMessageParam(role="user", content="7*8?")]
FOREIGN = """
from anthropic import Anthropic
from openai import OpenAI
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor

provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(OTLPSpanExporter()))
with provider.get_tracer("plain").start_as_current_span("plain program", attributes={"answer": 56}):
    OpenAI().chat.completions.create(model="policy", messages=[{"role": "user", "content": "7*8?"}])
    message = [{"role": "user", "content": "7*8?"}]
    Anthropic().messages.create(model="policy", messages=message, max_tokens=4)
"""
"""Knows nothing of Relight, and is told nothing: the environment says it all."""


@rollout
def foreign(task: Any) -> float:
    """Starts a program of its own, as an agent in another language would be."""
    subprocess.run([sys.executable, "-c", FOREIGN], check=True, timeout=60)
    return 1.0


def ask(llm: LLM) -> None:
    with openai.OpenAI(base_url=llm.endpoint, api_key=llm.api_key) as client:
        client.chat.completions.create(model=llm.model, messages=QUESTION)


@rollout
def ordered(task: Any, llm: LLM) -> None:
    emit_reward(0.25)
    ask(llm)
    emit_reward(0.75)
    ask(llm)


@rollout
async def ordered_async(task: Any, llm: LLM) -> None:
    emit_reward(0.25)
    async with openai.AsyncOpenAI(base_url=llm.endpoint, api_key=llm.api_key) as client:
        await client.chat.completions.create(model=llm.model, messages=QUESTION)
        emit_reward(0.75)
        await client.chat.completions.create(model=llm.model, messages=QUESTION)


@rollout
def instrumented(task: Any, llm: LLM) -> float:
    with trace.get_tracer("agent").start_as_current_span("agent"):
        ask(llm)
        emit_message("asked")
    thread = threading.Thread(target=lambda: trace.get_tracer("agent").start_span("thread").end())
    thread.start()
    thread.join()
    return 1.0


instrumented.tracer = OtelTracer(instrument=["openai"])
