"""The metrics of the brokers and the name server in this process, served for Prometheus.

The event loop's thread reads the samples, a few milliseconds at a time; another
thread formats them. Requests that arrive meanwhile share the answer.

Source: BrokerMetricsManager, apache/rocketmq broker/.
"""

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain
from typing import Final, NamedTuple

from mqtrail.broker import METRICS, Broker, Histogram, samples
from mqtrail.net import MetricsPort, join_address
from mqtrail.wire import visible

from .clock import wall_clock_ms
from .namesrv_node import NameServerNode

SLICE_S: Final = 0.005  # longest time of reading samples before other work runs
COMMON_LABELS: Final = ("cluster", "node_type", "node_id")
BROKER_TYPE: Final = "broker"
NAMESRV_TYPE: Final = "namesrv"


class MetricsExporter:
    """`start`, then `stop`. brokers: returns the running brokers. namesrv: the name server, None: elsewhere.

    mails: returns those of the HTTP door by outcome, {} without one.
    """

    def __init__(
        self,
        brokers: Callable[[], Iterable[Broker]],
        namesrv: NameServerNode | None = None,
        mails: Callable[[], Mapping[str, int]] = dict,
    ) -> None:
        self._brokers = brokers
        self._namesrv = namesrv
        self._mails = mails
        self._making: asyncio.Task[bytes] | None = None
        self._port = MetricsPort(self.text)

    @property
    def address(self) -> str:
        """host:port, once it is open."""
        return self._port.address

    async def start(self, host: str, port: int) -> None:
        """Open the port; 0: any free one, see `address`. BindError."""
        await self._port.start(host, port)

    async def stop(self) -> None:
        """Close the port."""
        await self._port.stop()
        if self._making is not None:
            self._making.cancel()
            await asyncio.wait([self._making])

    async def text(self) -> bytes:
        """Return all metrics as text: a new answer, or the one under way."""
        if self._making is None:
            self._making = asyncio.create_task(self._make())
            self._making.add_done_callback(self._made)
        return await asyncio.shield(self._making)

    async def _make(self) -> bytes:
        gathered: list[_Gathered] = []
        began_s = time.monotonic()
        door = _gather_mails(self._brokers, self._mails())
        for sample in chain(_gather(self._brokers, wall_clock_ms()), _gather_namesrv(self._namesrv), door):
            if sample is not None:
                gathered.append(sample)
            if time.monotonic() - began_s >= SLICE_S:
                await asyncio.sleep(0)
                began_s = time.monotonic()
        return await asyncio.to_thread(_text, gathered)

    def _made(self, making: "asyncio.Task[bytes]") -> None:
        self._making = None
        if not making.cancelled():
            making.exception()  # mark as retrieved: the port logs it


_Value = float | tuple[list[tuple[str, int]], float]
"""A number, or a histogram's buckets and sum."""


class _Gathered(NamedTuple):
    """A sample of one broker. labels: the common ones first."""

    name: str
    labels: tuple[str, ...]
    value: _Value


def _gather(brokers: Callable[[], Iterable[Broker]], now_ms: int) -> Iterator[_Gathered | None]:
    """Yield every sample of the brokers; None where the caller may pause."""
    for broker in list(brokers()):
        common = (broker.config.cluster_name, BROKER_TYPE, broker.config.broker_name)
        for sample in samples(broker, now_ms):
            if sample is None:
                yield None
                continue
            name, labels, value = sample
            values = (list(value.buckets()), value.total) if isinstance(value, Histogram) else value
            yield _Gathered(name, (*common, *labels), values)


def _gather_namesrv(namesrv: NameServerNode | None) -> Iterator[_Gathered]:
    """Yield every sample of a name server, which belongs to no cluster."""
    if namesrv is None:
        return
    common = ("", NAMESRV_TYPE, join_address(namesrv.host, namesrv.port))
    yield _Gathered("mqtrail_access_refused_total", common, namesrv.core.refused)
    for work, (times, took_ms, cpu_ms) in list(namesrv.core.stalls.items()):
        yield _Gathered("mqtrail_loop_stalls_total", (*common, work), times)
        yield _Gathered("mqtrail_loop_stalled_milliseconds_total", (*common, work), took_ms)
        yield _Gathered("mqtrail_loop_stalled_cpu_milliseconds_total", (*common, work), cpu_ms)


def _gather_mails(brokers: Callable[[], Iterable[Broker]], mails: Mapping[str, int]) -> Iterator[_Gathered]:
    """Yield the mails of the HTTP door, which is that of the one broker."""
    for broker in list(brokers()) if mails else ():
        common = (broker.config.cluster_name, BROKER_TYPE, broker.config.broker_name)
        for outcome, count in list(mails.items()):
            yield _Gathered("mqtrail_door_mails_total", (*common, outcome), count)


def exposition(brokers: Callable[[], Iterable[Broker]], now_ms: int) -> bytes:
    """Return every sample of the brokers in the text exposition format."""
    return _text([sample for sample in _gather(brokers, now_ms) if sample is not None])


def _text(gathered: Iterable[_Gathered]) -> bytes:
    """Return samples in the text exposition format. Any thread may call this."""
    from prometheus_client import CollectorRegistry, generate_latest

    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collector(gathered))  # type: ignore[arg-type]
    return generate_latest(registry)


class _Collector:
    """Gives prometheus_client the metric families of one answer."""

    def __init__(self, gathered: Iterable[_Gathered]) -> None:
        self._gathered = gathered

    def collect(self) -> Iterator[object]:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

        kinds = {"counter": CounterMetricFamily, "gauge": GaugeMetricFamily, "histogram": HistogramMetricFamily}
        families: dict[str, CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily] = {}
        for name, labels, value in self._gathered:
            labels = tuple(map(visible, labels))  # topic and group names come from clients and may be invalid UTF-8
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
