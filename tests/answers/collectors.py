"""A collector of spans that answers what a test says."""

from __future__ import annotations

import gzip
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span as OtlpSpan

Answer = tuple[int, dict[str, str], bytes]
OK: Answer = (200, {}, b"")


@dataclass
class FakeCollector:
    """Answers what `answers` says, then 200. It decodes with OpenTelemetry's own classes."""

    port: int = 0
    answers: list[Answer] = field(default_factory=list)
    received: list[OtlpSpan] = field(default_factory=list)  # of requests answered 200
    headers: list[dict[str, str]] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    on_spans: Callable[[], object] | None = None  # called with each request answered 200

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def messages(self) -> list[str]:
        """The ids of the messages whose root span was received."""
        roots = [span for span in self.received if not span.parent_span_id]
        return [
            next(a.value.string_value for a in span.attributes if a.key == "messaging.message.id") for span in roots
        ]


@pytest.fixture
def collector() -> Iterator[FakeCollector]:
    fake = FakeCollector()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = gzip.decompress(self.rfile.read(int(self.headers["Content-Length"])))
            request = ExportTraceServiceRequest.FromString(body)
            fake.headers.append(dict(self.headers.items()))
            fake.paths.append(self.path)
            status, headers, answer = fake.answers.pop(0) if fake.answers else OK
            if status == 200:
                spans = [span for of in request.resource_spans for scope in of.scope_spans for span in scope.spans]
                fake.received.extend(spans)
                if fake.on_spans is not None:
                    fake.on_spans()
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_: object) -> None:
            """Print nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    fake.port = server.server_address[1]
    thread = Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    yield fake
    server.shutdown()
    server.server_close()
    thread.join()


__all__ = ["OK", "Answer", "FakeCollector", "collector"]
