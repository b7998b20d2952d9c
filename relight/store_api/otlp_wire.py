"""Splits an OTLP trace request into its spans, without parsing all of it at once.

Two bytes of a request can be a message of hundreds of bytes in memory, so only the envelopes are parsed here, and spans
are returned as they were sent. An invalid span then affects no other.
"""

from __future__ import annotations

from collections.abc import Iterator

from relight.errors import InvalidRequestError

VARINT, FIXED64, LENGTH, FIXED32 = 0, 1, 2, 5
"""Wire types; the two others are groups, which are obsolete."""
RESOURCE_SPANS, RESOURCE, SCOPE_SPANS, SCHEMA_URL, SPANS = 1, 1, 2, 3, 2


MOST_FIELDS = 10_000
"""Fields of a request beside two for each span that it may hold."""


class MalformedError(InvalidRequestError):
    """The body is not an ExportTraceServiceRequest."""


class TooLargeError(InvalidRequestError, http_status=413):
    """The body is too large."""


class Walker:
    """Reads a limited number of fields of messages in one buffer, since a field may have only two bytes."""

    def __init__(self, data: bytes, most_fields: int) -> None:
        self.data = data
        self._left = most_fields

    def fields(self, at: int, end: int) -> Iterator[tuple[int, int, int]]:
        """Number, start and end of each field with a length; other fields are skipped.

        Raises:
            MalformedError: it is not a message.
            TooLargeError: it has too many fields.
        """
        while at < end:
            self._left -= 1
            if self._left < 0:
                raise TooLargeError("the body has too many parts; send fewer at a time")
            tag, at = self._varint(at, end)
            kind = tag & 7
            if kind == LENGTH:
                size, at = self._varint(at, end)
                if size > end - at:
                    break
                yield tag >> 3, at, at + size
                at += size
            elif kind == VARINT:
                _, at = self._varint(at, end)
            elif kind in (FIXED64, FIXED32):
                at += 8 if kind == FIXED64 else 4
            else:
                raise MalformedError(f"wire type {kind}")
        if at != end:
            raise MalformedError("a field that is longer than its message")

    def _varint(self, at: int, end: int) -> tuple[int, int]:
        value = shift = 0
        while at < end and shift < 64:
            byte = self.data[at]
            at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value, at
            shift += 7
        raise MalformedError("a number without an end")


def split_spans(data: bytes, most: int) -> Iterator[tuple[bytes, str, list[bytes]]]:
    """Resource, schema URL and spans of each part of a request that has any, as they were sent.

    Raises:
        MalformedError: it is not such a message.
        TooLargeError: there are more than `most`.
    """
    walker = Walker(data, MOST_FIELDS + 2 * most)
    left = most
    for number, start, end in walker.fields(0, len(data)):
        if number == RESOURCE_SPANS:
            resource, schema_url, spans = _resource_spans(walker, start, end)
            left -= len(spans)
            if left < 0:
                raise TooLargeError(f"the body has more than {most} spans; send fewer at a time")
            if spans:
                yield resource, schema_url, spans


def _resource_spans(walker: Walker, start: int, end: int) -> tuple[bytes, str, list[bytes]]:
    schema_url = ""
    resources: list[bytes] = []
    spans: list[bytes] = []
    for number, at, stop in walker.fields(start, end):
        if number == RESOURCE:
            resources.append(walker.data[at:stop])
        elif number == SCHEMA_URL:
            schema_url = walker.data[at:stop].decode("utf-8", "replace")
        elif number == SCOPE_SPANS:
            inner = walker.fields(at, stop)
            spans += [walker.data[first:last] for field, first, last in inner if field == SPANS]
    return b"".join(resources), schema_url, spans  # a message that comes in parts is their concatenation
