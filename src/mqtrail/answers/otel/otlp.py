"""Sends spans to an OpenTelemetry collector: OTLP over HTTP, protobuf, gzip.

Source: opentelemetry.io/docs/specs/otlp, sections OTLP/HTTP (paths, statuses, Retry-After, partial success).
"""

from __future__ import annotations

import gzip
import http.client
import ssl
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final
from urllib.parse import urlsplit, urlunsplit

from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, ArrayValue, InstrumentationScope, KeyValue
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.proto.trace.v1 import trace_pb2

import mqtrail
from mqtrail.wire import MQError

from .spans import Attributes, AttributeValue, Span

PATH: Final = "/v1/traces"  # added to an endpoint without a path
TIMEOUT_S: Final = 10.0  # of a request
TRIES_MAX: Final = 5
WAIT_S_MAX: Final = 30.0  # between two tries, also if the collector asks for more
ANSWER_SIZE_MAX: Final = 65_536  # bytes of an answer that are read
TEXT_SIZE_MAX: Final = 200  # characters of an error's text that are shown
_RETRYABLE: Final = (429, 502, 503, 504)
_NS: Final = 1_000_000  # in a ms
_MS_MAX: Final = (1 << 64) // _NS - 1  # OTLP's times are unsigned 64-bit ns
SERVICE: Final = "mqtrail"


class CollectorError(MQError):
    """The collector could not be reached, or did not accept spans."""


class Collector:
    """A collector at an endpoint: http://HOST:4318, or the whole URL. headers: of each request.

    ValueError: the endpoint is no such URL. pause: waits so many seconds between tries.
    """

    def __init__(
        self, endpoint: str, headers: Mapping[str, str] | None = None, pause: Callable[[float], object] = time.sleep
    ) -> None:
        try:
            parts = urlsplit(endpoint)
            host, port = parts.hostname, parts.port
        except ValueError:
            parts, host, port = urlsplit(""), None, None
        if parts.scheme not in ("http", "https") or not host:
            raise ValueError(f"found {endpoint!r}, expected http://HOST:PORT or https://HOST:PORT")
        self._host, self._port, self._is_tls = host, port, parts.scheme == "https"
        path = parts.path if parts.path not in ("", "/") else PATH
        self.url = urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], path, "", ""))
        self._target = path + (f"?{parts.query}" if parts.query else "")
        self._headers = dict(headers or {})
        self._pause = pause

    def send(self, spans: Sequence[Span]) -> None:
        """Return when the collector has accepted all spans. CollectorError: it has not, or not all of them."""
        body = gzip.compress(_request(spans).SerializeToString(), compresslevel=1)
        problem = ""
        for number in range(TRIES_MAX):
            wait_s = float(2**number)
            try:
                status, retry_after, answer = self._post(body)
            except (OSError, http.client.HTTPException) as error:
                problem = f"found {type(error).__name__}: {error}"
            else:
                if status == 200:
                    return self._check(answer, len(spans))
                problem = f"found status {status} {_text(answer)}".rstrip()
                if status not in _RETRYABLE:
                    break
                wait_s = max(wait_s, retry_after)
            if number + 1 < TRIES_MAX:
                self._pause(min(wait_s, WAIT_S_MAX))
        raise CollectorError(
            f"{self.url}: {problem}, expected an OpenTelemetry collector that accepts OTLP over HTTP: "
            "check the endpoint and its log; the next export continues where this one ended"
        )

    def _post(self, body: bytes) -> tuple[int, float, bytes]:
        """Return the status, the seconds of Retry-After, and the beginning of the answer."""
        made = (
            http.client.HTTPSConnection(self._host, self._port, timeout=TIMEOUT_S, context=ssl.create_default_context())
            if self._is_tls
            else http.client.HTTPConnection(self._host, self._port, timeout=TIMEOUT_S)
        )
        try:
            headers = {"Content-Type": "application/x-protobuf", "Content-Encoding": "gzip", **self._headers}
            made.request("POST", self._target, body, headers)
            answer = made.getresponse()
            after = answer.getheader("Retry-After") or ""
            return answer.status, float(after) if after.isdigit() else 0.0, answer.read(ANSWER_SIZE_MAX)
        finally:
            made.close()

    def _check(self, answer: bytes, count: int) -> None:
        try:
            partial = ExportTraceServiceResponse.FromString(answer).partial_success
        except DecodeError:
            raise CollectorError(
                f"{self.url}: found an answer that is not OTLP, expected a collector: check the endpoint"
            ) from None
        if partial.rejected_spans:
            raise CollectorError(
                f"{self.url}: found {partial.rejected_spans} of {count} spans rejected "
                f"({_text(partial.error_message.encode())}), expected all to be accepted: see the collector's log"
            )


def _text(answer: bytes) -> str:
    return answer.decode("utf-8", "replace")[:TEXT_SIZE_MAX].strip()


def _request(spans: Sequence[Span]) -> ExportTraceServiceRequest:
    scope = InstrumentationScope(name=SERVICE, version=mqtrail.__version__)
    return ExportTraceServiceRequest(
        resource_spans=[
            trace_pb2.ResourceSpans(
                resource=Resource(attributes=_attributes({"service.name": SERVICE})),
                scope_spans=[trace_pb2.ScopeSpans(scope=scope, spans=[_span(span) for span in spans])],
            )
        ]
    )


def _span(span: Span) -> trace_pb2.Span:
    status = trace_pb2.Status()
    if span.error is not None:
        status = trace_pb2.Status(code=trace_pb2.Status.STATUS_CODE_ERROR, message=span.error)
    return trace_pb2.Span(
        trace_id=span.trace_id,
        span_id=span.span_id,
        parent_span_id=span.parent_id,
        name=span.name,
        kind=trace_pb2.Span.SpanKind.Value(f"SPAN_KIND_{span.kind}"),
        start_time_unix_nano=_ns(span.start_ms),
        end_time_unix_nano=_ns(span.end_ms),
        attributes=_attributes(span.attributes),
        events=[
            trace_pb2.Span.Event(
                name=event.name, time_unix_nano=_ns(event.at_ms), attributes=_attributes(event.attributes)
            )
            for event in span.events
        ],
        links=[trace_pb2.Span.Link(trace_id=link.trace_id, span_id=link.span_id) for link in span.links],
        status=status,
    )


def _ns(at_ms: int) -> int:
    return min(max(at_ms, 0), _MS_MAX) * _NS


def _attributes(values: Attributes) -> list[KeyValue]:
    return [KeyValue(key=name, value=_value(value)) for name, value in values.items()]


def _value(value: AttributeValue) -> AnyValue:
    if isinstance(value, tuple):
        return AnyValue(array_value=ArrayValue(values=[AnyValue(string_value=one) for one in value]))
    if isinstance(value, int):
        return AnyValue(int_value=value)
    return AnyValue(string_value=value)
