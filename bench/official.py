"""Figures with the official Java client: its sends on either broker, and latency beside our broker and client."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator

from interop.driver import JavaClient

from bench import our_client
from bench.apache import JVM_BENCH, TOPIC, measured
from bench.broker import BOTH_CORES, PEER
from bench.registry import figure
from bench.rows import Bar, Json, Row
from bench.session import APACHE_VERSION, Pair, Session

THREADS = 64
BODY_SIZE = 500
PER_S = 200
# The client's JVM warms up as slowly as a server's, so it lives through all rounds.
CLIENT_WARM_S, CLIENT_WARM_QUICK_S = 20.0, 2.0
ROUND_WARM_S = 1.0
LATENCY_S, LATENCY_WARM_S = 5.0, 1.0


class OfficialClient:
    """A JVM with the official client, connected to one server of a pair. It is suspended outside of its turns."""

    def __init__(self, session: Session, pair: Pair, server: str, *, binary_headers: bool = False) -> None:
        self._pair, self._server = pair, server
        namesrv = (pair.apache if server == "apache" else pair.ours).namesrv_address
        self._java = JavaClient(
            APACHE_VERSION,
            session.fresh_folder(f"java-{server}"),
            namesrv,
            binary_headers=binary_headers,
            jvm=JVM_BENCH,
        )

    def open(self, *, trace: bool = False) -> None:
        """Start a producer; its name shows whether it traces."""
        name = "traced" if trace else "plain"
        self._java.producer(name, group=f"BenchProducer-{name}", trace=trace)

    def throughput(self, *, warm_s: float, seconds: float, trace: bool = False) -> Json:
        """Return {sends, sendsPerS, sendP99Ms, failures, clientCpuS, serverCpuS}. CPU times are of the whole time."""
        pid = self._pair.pid(self._server)
        with measured(self._java.process.pid) as client, measured(pid) as server:
            found = self._java.call(
                "throughput",
                name="traced" if trace else "plain",
                topic=TOPIC,
                threads=THREADS,
                bodySize=BODY_SIZE,
                warmS=warm_s,
                seconds=seconds,
                timeout_s=warm_s + seconds + 60,
            )
        return {**found, "clientCpuS": client.cpu_s, "serverCpuS": server.cpu_s}

    def latency(self, *, warm_s: float, seconds: float) -> Json:
        """Return p50 and p99 of send and of send → handler on a new topic."""
        name = f"BenchLatency{time.time_ns()}"
        return self._java.call(
            "latency",
            name="plain",
            namesrv=self._java.namesrv_address,
            group=name,
            topic=name,
            bodySize=BODY_SIZE,
            perS=PER_S,
            warmS=warm_s,
            seconds=seconds,
            timeout_s=warm_s + seconds + 90,
        )

    def suspend(self) -> None:
        os.kill(self._java.process.pid, signal.SIGSTOP)

    def resume(self) -> None:
        os.kill(self._java.process.pid, signal.SIGCONT)

    def close(self) -> None:
        self._java.kill()


@figure("java", "the official Java client's sends/s, 64 threads on one producer, binary headers", seconds=115)
def java(session: Session) -> Iterator[Row]:
    """Also with trace on Apache's broker: the cost of tracing there."""
    pair = session.pair(BOTH_CORES)
    warm_s = CLIENT_WARM_QUICK_S if session.quick else CLIENT_WARM_S
    clients: dict[str, OfficialClient] = {}
    found: dict[str, list[Json]] = {"ours": [], "apache": [], "traced": []}
    try:
        for name in ("ours", "apache"):
            with pair.only(name):
                clients[name] = client = OfficialClient(session, pair, name, binary_headers=True)
                client.open()
                client.throughput(warm_s=0, seconds=warm_s)
                if name == "apache":
                    client.open(trace=True)
                    client.throughput(warm_s=0, seconds=warm_s / 4, trace=True)
                client.suspend()
        for number in range(session.rounds):
            for name in session.order(number, ("ours", "apache", "traced")):
                server = "ours" if name == "ours" else "apache"
                with pair.only(server):
                    clients[server].resume()
                    turn = clients[server].throughput(
                        warm_s=ROUND_WARM_S, seconds=2.5 * session.seconds, trace=name == "traced"
                    )
                    clients[server].suspend()
                found[name].append(turn)
    finally:
        for client in clients.values():
            client.close()
    yield Row(
        "java/64-threads",
        f"sends/s of the Java client {APACHE_VERSION}, 64 threads on one producer, binary headers",
        "sends/s",
        [one["sendsPerS"] for one in found["ours"]],
        [one["sendsPerS"] for one in found["apache"]],
        PEER,
        Bar(">=", 1.4),
        errors=(failed(found["ours"]), failed(found["apache"])),
        more={"send_p99_ms": {who: [one.get("sendP99Ms") for one in found[who]] for who in ("ours", "apache")}},
    )
    yield Row(
        "java/trace-cost",
        "sends/s of the Java client on Apache's broker, its trace on; the peer is the same with trace off",
        "sends/s",
        [one["sendsPerS"] for one in found["traced"]],
        [one["sendsPerS"] for one in found["apache"]],
        "the same without trace",
        errors=(failed(found["traced"]), failed(found["apache"])),
    )


@figure("latency", "send → handler at 200/s: our broker and client beside Apache's", seconds=105)
def latency(session: Session) -> Iterator[Row]:
    pair = session.pair(BOTH_CORES)
    warm_s = CLIENT_WARM_QUICK_S if session.quick else CLIENT_WARM_S
    seconds = 1.0 if session.quick else LATENCY_S
    found: dict[str, list[Json]] = {"ours": [], "apache": []}
    with pair.only("ours"):
        pair.settle("ours")
    with pair.only("apache"):
        client = OfficialClient(session, pair, "apache")
        client.open()
        client.throughput(warm_s=0, seconds=warm_s)
        client.suspend()
        pair.settle("apache")
    try:
        for number in range(session.rounds):
            for name in session.order(number, ("ours", "apache")):
                with pair.only(name) as server:
                    if name == "apache":
                        client.resume()
                        turn = client.latency(warm_s=LATENCY_WARM_S, seconds=seconds)
                        client.suspend()
                    else:
                        turn = our_client.latency(
                            server.namesrv_address,
                            topic=f"BenchLatency{time.time_ns()}",
                            per_s=PER_S,
                            warm_s=LATENCY_WARM_S,
                            seconds=seconds,
                        )
                found[name].append(turn)
    finally:
        client.close()
    for key, what, bar in (
        ("handledP50Ms", "send → handler at 200/s, p50", Bar("<=", 0.7)),
        ("handledP99Ms", "send → handler at 200/s, p99", Bar("<=", 0.7)),
        ("sendP50Ms", "send at 200/s, p50", None),
        ("sendP99Ms", "send at 200/s, p99", None),
    ):
        yield Row(
            f"latency/{key.removesuffix('Ms').lower()}",
            what,
            "ms",
            [one[key] for one in found["ours"]],
            [one[key] for one in found["apache"]],
            f"{PEER} with its Java client",
            bar,
            errors=(missing(found["ours"]), missing(found["apache"])),
        )


def failed(turns: list[Json]) -> int:
    """Return the number of failed sends, by kind or in total."""
    counts = [one["failures"] for one in turns]
    return sum(int(sum(count.values()) if isinstance(count, dict) else count) for count in counts)


def missing(turns: list[Json]) -> int:
    """Return the number of sends that failed or were not handled in time."""
    return failed(turns) + sum(int(one["sent"]) - int(one["handled"]) for one in turns)
