"""Apache RocketMQ as the peer of a benchmark: started, warmed, paused while another is measured, weighed.

    with ApachePeer("5.3.3", folder, cpus=[0]) as peer:
        peer.warm(seconds=40)
        with peer.measured() as figures:
            load(peer.broker_address)
        print(figures.cpu_s, peer.anonymous_bytes())
        peer.suspend()          # while ours is measured; then peer.resume()

A JVM is warm after at least 30 s of load. It is stopped by SIGSTOP while another server is measured: an idle one takes
a fifth of its core. Memory is compared as anonymous pages: mapped log pages do not count for either server.
"""

from __future__ import annotations

import base64
import hmac
import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from interop.apache import ApacheBroker, ApacheNameServer
from interop.driver import JavaClient, Json
from interop.probe import request, wait_until

UPDATE_AND_CREATE_TOPIC, GET_ROUTE, SEND_MESSAGE_V2 = 17, 105, 310
TOPIC, QUEUE_COUNT = "BenchTopic", 16
WARM_S_MIN = 30.0
# Apache's own scripts ask for 8 GiB; on two cores this does the same work (no full collection in any round).
JVM_BENCH = ("-Xms1g", "-Xmx1g", "-XX:MaxDirectMemorySize=1g")
# For figures of memory: the smallest heap that works well.
JVM_LEAN = ("-Xms64m", "-Xmx512m")
BENCH_PROPERTIES: Mapping[str, str] = {
    "mappedFileSizeCommitLog": str(1 << 30),
    "waitTimeMillsInSendQueue": "200",  # the default: the benchmark counts refusals
    "traceTopicEnable": "true",
    # After a pause the name server has dropped the broker until its next registration: this is the shortest interval.
    "registerNameServerPeriod": "10000",
    "timerFlushIntervalMs": "1000",  # its default
}
CLOCK_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@dataclass
class Usage:
    """Resources that a process used between two moments, in seconds; filled when the block ends."""

    cpu_s: float = 0.0
    elapsed_s: float = 0.0


def cpu_seconds(pid: int) -> float:
    """Return user and system time of all threads of the process, including ended ones, in seconds."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / CLOCK_TICKS_PER_S


def anonymous_bytes(pid: int) -> int:
    """Return the resident anonymous memory of the process in bytes: heap and stacks, without mapped files."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    raise ValueError(f"/proc/{pid}/status has no RssAnon line: Linux 4.5 or newer is needed")


@contextmanager
def measured(*pids: int) -> Iterator[Usage]:
    """Yield the CPU time that the processes use inside the block, and the elapsed time."""
    usage = Usage()
    began_s, cpu_s = time.monotonic(), sum(map(cpu_seconds, pids))
    yield usage
    usage.cpu_s = sum(map(cpu_seconds, pids)) - cpu_s
    usage.elapsed_s = time.monotonic() - began_s


class ApachePeer:
    """A name server and a broker of one version, pinned to `cpus` (None: all), with a topic of 16 queues."""

    def __init__(
        self,
        version: str,
        folder: Path,
        *,
        cpus: Sequence[int] | None = None,
        properties: Mapping[str, str] | None = None,
        jvm: Sequence[str] = JVM_BENCH,
        credentials: tuple[str, str] = ("", ""),
    ) -> None:
        """properties: override BENCH_PROPERTIES, for example flushDiskType=SYNC_FLUSH. credentials: sign with these."""
        self._credentials = credentials
        self.version, self.folder = version, folder
        self.namesrv = ApacheNameServer(version, folder / "namesrv", cpus=cpus)
        self.broker = ApacheBroker(
            version,
            folder / "broker",
            self.namesrv.address,
            properties={**BENCH_PROPERTIES, **(properties or {})},
            jvm=jvm,
            cpus=cpus,
        )

    @property
    def namesrv_address(self) -> str:
        """The name server address for clients, "ip:port"."""
        return self.namesrv.address

    @property
    def broker_address(self) -> str:
        """The broker address for the load generator, "ip:port"."""
        return self.broker.address

    def start(self) -> float:
        """Start both and make the topic; return the seconds from the first fork to the first stored send."""
        began_s = time.monotonic()
        self.namesrv.launch()
        self.namesrv.wait_ready()
        self.broker.launch()
        self.broker.wait_ready()
        wait_until(
            lambda: send_one(self.broker_address, credentials=self._credentials) == 0, "the first stored send", 60, 0.01
        )
        first_send_s = time.monotonic() - began_s
        create_topic(self.broker_address, credentials=self._credentials)
        wait_until(lambda: has_route(self.namesrv_address), "the topic's route", 30)
        return first_send_s

    def warm(self, seconds: float = 40.0) -> Json:
        """Put load on it with the official client until it is warm; return the figures of that run."""
        assert seconds >= WARM_S_MIN, f"a JVM is warm after {WARM_S_MIN:g} s, not {seconds:g}"
        return java_throughput("5.3.3", self.folder / "warm", self.namesrv_address, warm_s=seconds - 1, seconds=1)

    @contextmanager
    def measured(self) -> Iterator[Usage]:
        """Yield the broker's CPU time inside the block."""
        with measured(self.broker.pid) as usage:
            yield usage

    def anonymous_bytes(self, *, with_namesrv: bool = True) -> int:
        """Return the anonymous memory of broker and name server together, because `mqtrail up` is one process."""
        namesrv = anonymous_bytes(self.namesrv.pid) if with_namesrv else 0
        return anonymous_bytes(self.broker.pid) + namesrv

    def suspend(self) -> None:
        """Stop both by SIGSTOP while another server is measured. After more than a minute their connections end."""
        for server in (self.broker, self.namesrv):
            server.suspend()

    def resume(self) -> None:
        """Continue both, and wait until the broker answers."""
        for server in (self.namesrv, self.broker):
            server.resume()
        wait_until(
            lambda: send_one(self.broker_address, credentials=self._credentials) == 0,
            "the broker's answer after SIGCONT",
            60,
        )
        wait_until(lambda: has_route(self.namesrv_address), "the topic's route after SIGCONT", 60)

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.broker.kill()
        self.namesrv.kill()


def create_topic(
    broker_address: str, topic: str = TOPIC, queue_count: int = QUEUE_COUNT, credentials: tuple[str, str] = ("", "")
) -> None:
    """Create the topic on the broker (code 17). Apache's `BenchmarkTest` has 1024 queues; 16 are more comparable."""
    ext = {
        "topic": topic,
        "defaultTopic": "TBW102",
        "readQueueNums": str(queue_count),
        "writeQueueNums": str(queue_count),
        "perm": "6",
        "topicFilterType": "SINGLE_TAG",
        "topicSysFlag": "0",
        "order": "false",
    }
    header, _ = request(broker_address, UPDATE_AND_CREATE_TOPIC, signed(ext, b"", credentials))
    assert header["code"] == 0, f"the broker refused the topic: {header}"


def signed(ext: Mapping[str, str], body: bytes, credentials: tuple[str, str]) -> dict[str, str]:
    """Return the fields of a request with its signature; unchanged without credentials (access key, secret key)."""
    access_key, secret_key = credentials
    if not access_key:
        return dict(ext)
    fields = {**ext, "AccessKey": access_key}
    content = "".join(fields[name] for name in sorted(fields)).encode() + body
    digest = hmac.digest(secret_key.encode(), content, "sha1")
    return {**fields, "Signature": base64.b64encode(digest).decode()}


def has_route(namesrv_address: str, topic: str = TOPIC) -> bool:
    """Return whether the name server knows the topic."""
    header, _ = request(namesrv_address, GET_ROUTE, {"topic": topic})
    return bool(header["code"] == 0)


def send_one(
    broker_address: str, topic: str = TOPIC, body_size: int = 500, credentials: tuple[str, str] = ("", "")
) -> int:
    """Send one message on a new connection and return the reply code. The broker creates the topic."""
    ext = {
        "a": "BenchProducer",
        "b": topic,
        "c": "TBW102",
        "d": str(QUEUE_COUNT),
        "e": "0",
        "f": "0",
        "g": str(int(time.time() * 1000)),
        "h": "0",
        "i": "",
        "j": "0",
        "k": "false",
        "m": "false",
    }
    body = b"x" * body_size
    header, _ = request(broker_address, SEND_MESSAGE_V2, signed(ext, body, credentials), body=body)
    return int(header["code"])


def java_throughput(
    version: str,
    folder: Path,
    namesrv_address: str,
    *,
    topic: str = TOPIC,
    threads: int = 64,
    body_size: int = 500,
    warm_s: float,
    seconds: float,
    binary_headers: bool = True,
    trace: bool = False,
    cpus: Sequence[int] | None = None,
    server_pids: Sequence[int] = (),
) -> Json:
    """Return {sends, sendsPerS, sendP50Ms, sendP99Ms, failures, clientCpuS, serverCpuS} of one official producer.

    All threads share it and send synchronously. warm_s and seconds (counted) are of this JVM: the client itself warms
    as slowly as the server. The CPU times are of the counted seconds.
    """
    with JavaClient(version, folder, namesrv_address, binary_headers=binary_headers, jvm=JVM_BENCH, cpus=cpus) as java:
        java.producer("bench", group="BenchProducer", trace=trace)
        running = java.begin(
            "throughput",
            name="bench",
            topic=topic,
            threads=threads,
            bodySize=body_size,
            warmS=warm_s,
            seconds=seconds,
        )
        java.wait(lambda events: bool(events), "the client's warm-up", warm_s + 60)
        with measured(java.process.pid) as client, measured(*server_pids) as server:
            result = java.end(running, timeout_s=seconds + 60)
        return {**result, "clientCpuS": client.cpu_s, "serverCpuS": server.cpu_s}


def java_latency(
    version: str,
    folder: Path,
    namesrv_address: str,
    *,
    per_s: int = 200,
    body_size: int = 500,
    warm_s: float,
    seconds: float,
    cpus: Sequence[int] | None = None,
) -> Json:
    """Return p50 and p99 of the send and of send → handler, official producer and push consumer in one JVM.

    Uses a new topic, created by the first send, because a backlog would add to the latency.
    """
    name = f"BenchLatency{time.time_ns()}"
    with JavaClient(version, folder, namesrv_address, jvm=JVM_BENCH, cpus=cpus) as java:
        java.producer("bench", group="BenchProducer")
        return java.call(
            "latency",
            name="bench",
            namesrv=namesrv_address,
            group=name,
            topic=name,
            bodySize=body_size,
            perS=per_s,
            warmS=warm_s,
            seconds=seconds,
            timeout_s=warm_s + seconds + 90,
        )


def java_pull_all(version: str, folder: Path, namesrv_address: str, topic: str, *, count: int = 32) -> Json:
    """Return {messages, bodyBytes, seconds} of the official pull consumer's plain loop over the whole topic."""
    with JavaClient(version, folder, namesrv_address, jvm=JVM_BENCH) as java:
        return java.call("pullAll", namesrv=namesrv_address, group="BenchPull", topic=topic, count=count, timeout_s=600)


if __name__ == "__main__":
    import tempfile

    with tempfile.TemporaryDirectory() as folder, ApachePeer("5.3.3", Path(folder)) as peer:
        print(json.dumps({"anonymousBytes": peer.anonymous_bytes()}))
        print(json.dumps(peer.warm(WARM_S_MIN)))
