"""The port that Prometheus asks: GET /metrics of the brokers in this process, as text.

One request a connection. Samples are read in the loop's thread, a few milliseconds at a time, and made into text in
another one. Whoever asks while an answer is made gets that one.

Source: Prometheus text exposition format 0.0.4; BrokerMetricsManager, apache/rocketmq broker/.
"""

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Final, NamedTuple

from mqtrail.broker import METRICS, Broker, Histogram, samples
from mqtrail.net import BindError, Log, join_address
from mqtrail.wire import visible

from .clock import wall_clock_ms

REQUEST_SIZE_MAX: Final = 8 * 1024
REQUEST_TIMEOUT_S: Final = 5.0  # to send a request, and as long to take the answer
SLICE_S: Final = 0.005  # of reading samples, between which others are served
COMMON_LABELS: Final = ("cluster", "node_type", "node_id")
NODE_TYPE: Final = "broker"

log = Log()


class MetricsDoor:
    """`start` and `stop`. brokers: those that run now."""

    def __init__(self, brokers: Callable[[], Iterable[Broker]]) -> None:
        self._brokers = brokers
        self._listener: asyncio.Server | None = None
        self._making: asyncio.Task[bytes] | None = None
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
        if self._making is not None:
            self._making.cancel()
            await asyncio.wait([self._making])

    async def text(self) -> bytes:
        """Return everything as of now, or of the moment when the answer that is under way began."""
        if self._making is None:
            self._making = asyncio.create_task(self._make())
            self._making.add_done_callback(self._made)
        return await asyncio.shield(self._making)

    async def _make(self) -> bytes:
        gathered: list[_Gathered] = []
        began_s = time.monotonic()
        for sample in _gather(self._brokers, wall_clock_ms()):
            if sample is not None:
                gathered.append(sample)
            if time.monotonic() - began_s >= SLICE_S:
                await asyncio.sleep(0)
                began_s = time.monotonic()
        return await asyncio.to_thread(_text, gathered)

    def _made(self, making: "asyncio.Task[bytes]") -> None:
        self._making = None
        if not making.cancelled():
            making.exception()  # those who wait for it say so

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(REQUEST_TIMEOUT_S):
                head = await reader.readuntil(b"\r\n\r\n")
            writer.write(await self._answer(head))
            async with asyncio.timeout(REQUEST_TIMEOUT_S):
                await writer.drain()
        except (TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, ConnectionError):
            pass  # no request, or nobody who waits for the answer
        except Exception:
            log.exception("metrics.failed")
        finally:
            writer.close()

    async def _answer(self, head: bytes) -> bytes:
        method, _, rest = head.partition(b" ")
        path = rest.partition(b" ")[0].partition(b"?")[0]
        if method not in (b"GET", b"HEAD"):
            return _reply(b"405 Method Not Allowed", b"found another method, expected GET /metrics\n")
        if path not in (b"/metrics", b"/"):
            return _reply(b"404 Not Found", b"expected /metrics\n")
        return _reply(b"200 OK", await self.text(), with_body=method == b"GET")


def _reply(status: bytes, body: bytes, *, with_body: bool = True) -> bytes:
    head = b"HTTP/1.1 %b\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\nContent-Length: %d\r\n" % (
        status,
        len(body),
    )
    return head + b"Connection: close\r\n\r\n" + (body if with_body else b"")


_Value = float | tuple[list[tuple[str, int]], float]
"""A number, or a histogram's buckets and sum."""


class _Gathered(NamedTuple):
    """A sample of one of the brokers. labels: with those that all have."""

    name: str
    labels: tuple[str, ...]
    value: _Value


def _gather(brokers: Callable[[], Iterable[Broker]], now_ms: int) -> Iterator[_Gathered | None]:
    """Yield every sample of some brokers; None: a good place to pause."""
    for broker in list(brokers()):
        common = (broker.config.cluster_name, NODE_TYPE, broker.config.broker_name)
        for sample in samples(broker, now_ms):
            if sample is None:
                yield None
                continue
            name, labels, value = sample
            values = (list(value.buckets()), value.total) if isinstance(value, Histogram) else value
            yield _Gathered(name, (*common, *labels), values)


def exposition(brokers: Callable[[], Iterable[Broker]], now_ms: int) -> bytes:
    """Return every sample of some brokers as Prometheus reads it."""
    return _text([sample for sample in _gather(brokers, now_ms) if sample is not None])


def _text(gathered: Iterable[_Gathered]) -> bytes:
    """Return samples as Prometheus reads them, in any thread."""
    from prometheus_client import CollectorRegistry, generate_latest

    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collector(gathered))  # type: ignore[arg-type]
    return generate_latest(registry)


class _Collector:
    """What prometheus_client asks for the families of one answer."""

    def __init__(self, gathered: Iterable[_Gathered]) -> None:
        self._gathered = gathered

    def collect(self) -> Iterator[object]:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

        kinds = {"counter": CounterMetricFamily, "gauge": GaugeMetricFamily, "histogram": HistogramMetricFamily}
        families: dict[str, CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily] = {}
        for name, labels, value in self._gathered:
            labels = tuple(map(visible, labels))  # names are others' text, and not all of it is UTF-8
            family = families.get(name)
            if family is None:
                metric = METRICS[name]
                family = families[name] = kinds[metric.kind](
                    name, metric.meaning, labels=(*COMMON_LABELS, *metric.labels)
                )
            if isinstance(value, tuple):
                assert isinstance(family, HistogramMetricFamily), name
                family.add_metric(labels, *value)
            else:
                assert not isinstance(family, HistogramMetricFamily), name
                family.add_metric(labels, value)
        yield from families.values()
