"""What is read from an attempt: training rows from generations; triplets and messages from spans."""

from relight.adapter.base import Adapter, OtelTraceAdapter, TraceAdapter
from relight.adapter.messages import TraceToMessages
from relight.adapter.triplet import LlmProxyTraceToTriplet, TracerTraceToTriplet, TraceToTripletBase

__all__ = [
    "Adapter",
    "LlmProxyTraceToTriplet",
    "OtelTraceAdapter",
    "TraceAdapter",
    "TraceToMessages",
    "TraceToTripletBase",
    "TracerTraceToTriplet",
]
