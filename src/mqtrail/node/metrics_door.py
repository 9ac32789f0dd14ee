"""The port that Prometheus asks: GET /metrics of the brokers in this process, as text.

One request a connection; everything is answered in the loop's thread, so nothing is counted for it in between.

Source: Prometheus text exposition format 0.0.4; BrokerMetricsManager, apache/rocketmq broker/.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from mqtrail.broker import METRICS, Broker, Histogram, samples
from mqtrail.net import BindError, Log, join_address
from mqtrail.node.clock import wall_clock_ms
from mqtrail.wire import visible

REQUEST_SIZE_MAX: Final = 8 * 1024
REQUEST_TIMEOUT_S: Final = 5.0
COMMON_LABELS: Final = ("cluster", "node_type", "node_id")
NODE_TYPE: Final = "broker"

log = Log()


class MetricsDoor:
    """`start` and `stop`. brokers: those that run now."""

    def __init__(self, brokers: Callable[[], Iterable[Broker]]) -> None:
        self._brokers = brokers
        self._listener: asyncio.Server | None = None
        self.address = ""

    async def start(self, host: str, port: int) -> None:
        """Open the port; 0 takes a free one (`address` tells). BindError."""
        try:
            self._listener = await asyncio.start_server(self._serve, host, port, limit=REQUEST_SIZE_MAX)
        except OSError as error:
            raise BindError(
                f"cannot listen on {join_address(host, port)} for metrics: {error.strerror or error}; choose another "
                "--metrics-port"
            ) from error
        self.address = join_address(host, self._listener.sockets[0].getsockname()[1])

    async def stop(self) -> None:
        """Close the port."""
        if self._listener is not None:
            self._listener.close()
            await self._listener.wait_closed()
            self._listener = None

    def text(self) -> bytes:
        """Return everything as of now."""
        return exposition(self._brokers, wall_clock_ms())

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(REQUEST_TIMEOUT_S):
                head = await reader.readuntil(b"\r\n\r\n")
                writer.write(self._answer(head))
                await writer.drain()
        except (TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, ConnectionError):
            pass  # no request, or nobody who waits for the answer
        except Exception:
            log.exception("metrics.failed")
        finally:
            writer.close()

    def _answer(self, head: bytes) -> bytes:
        method, _, rest = head.partition(b" ")
        path = rest.partition(b" ")[0].partition(b"?")[0]
        if method not in (b"GET", b"HEAD"):
            return _reply(b"405 Method Not Allowed", b"found another method, expected GET /metrics\n")
        if path not in (b"/metrics", b"/"):
            return _reply(b"404 Not Found", b"expected /metrics\n")
        return _reply(b"200 OK", self.text(), with_body=method == b"GET")


def _reply(status: bytes, body: bytes, *, with_body: bool = True) -> bytes:
    head = b"HTTP/1.1 %b\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\nContent-Length: %d\r\n" % (
        status,
        len(body),
    )
    return head + b"Connection: close\r\n\r\n" + (body if with_body else b"")


def exposition(brokers: Callable[[], Iterable[Broker]], now_ms: int) -> bytes:
    """Return every sample of some brokers as Prometheus reads it."""
    from prometheus_client import CollectorRegistry, generate_latest

    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collector(brokers, now_ms))  # type: ignore[arg-type]
    return generate_latest(registry)


class _Collector:
    """What prometheus_client asks for the families of one answer."""

    def __init__(self, brokers: Callable[[], Iterable[Broker]], now_ms: int) -> None:
        self._brokers = brokers
        self._now_ms = now_ms

    def collect(self) -> Iterator[object]:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

        kinds = {"counter": CounterMetricFamily, "gauge": GaugeMetricFamily, "histogram": HistogramMetricFamily}
        families: dict[str, CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily] = {}
        for broker in self._brokers():
            common = (broker.config.cluster_name, NODE_TYPE, broker.config.broker_name)
            for name, labels, value in samples(broker, self._now_ms):
                labels = tuple(map(visible, labels))  # names are others' text, and not all of it is UTF-8
                family = families.get(name)
                if family is None:
                    metric = METRICS[name]
                    family = families[name] = kinds[metric.kind](
                        name, metric.meaning, labels=(*COMMON_LABELS, *metric.labels)
                    )
                if isinstance(value, Histogram):
                    assert isinstance(family, HistogramMetricFamily), name
                    family.add_metric((*common, *labels), list(value.buckets()), value.total)
                else:
                    assert not isinstance(family, HistogramMetricFamily), name
                    family.add_metric((*common, *labels), value)
        yield from families.values()
