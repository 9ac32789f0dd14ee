"""Benchmarks of the broker under the load generator: sends, CPU per send, synchronous flush, batches, pulls."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from bench.apache import create_topic
from bench.load import BATCH, DEEP, ONE64, PULL, SYNC64, Load, Shape, run_load
from bench.registry import figure
from bench.rows import Bar, Row
from bench.session import APACHE_VERSION, PULL_TOPIC, Pair, Session, Setting, two_cores

PEER = f"Apache RocketMQ {APACHE_VERSION}"
# Further servers of ours, measured with plain shapes only: the cost of index, statistics and broker trace.
VARIANTS = {"bare": {"index": False, "statistics": False}, "traced": {"broker_trace": True}}
STATE = {
    "ours": "index and statistics on, broker trace off",
    "bare": "index and statistics off, broker trace off",
    "traced": "index, statistics and broker trace on",
}
SEND_BARS = {SYNC64.name: 1.1, ONE64.name: 2.4, DEEP.name: 3.0}
CPU_BARS = {SYNC64.name: 0.8, ONE64.name: 0.4, DEEP.name: 0.4}
CPU_SECONDS_MAX = 1.0
IDLE_S = 2.0
WARMUP_S = 0.3
LOADGEN_FULL = 0.9  # of its core
BOTH_CORES = Setting("both-cores")
SYNC_FLUSH = Setting("sync-flush", sync_flush=True)


def one_core() -> Setting:
    """Servers on one core, the load generator on another. CannotMeasure: there is only one core."""
    server, load = two_cores()
    return Setting("one-core", (server,), (load,), variants=VARIANTS)


@dataclass
class Rounds:
    """The rounds of one server in one shape."""

    loads: list[Load] = field(default_factory=list)
    cpu_us: list[float] = field(default_factory=list)
    settle_s: list[float] = field(default_factory=list)

    @property
    def rates(self) -> list[float]:
        """Messages per second that were accepted or delivered, without error replies."""
        return [load.message_rate for load in self.loads]

    @property
    def errors(self) -> int:
        return sum(load.errors for load in self.loads)

    @property
    def error(self) -> str:
        return next((load.error for load in self.loads if load.errors), "")

    def p99_us(self) -> float:
        return statistics.median(load.p99_us for load in self.loads)

    def loadgen_share(self) -> float:
        """The largest share of its core that the load generator used in a round; near 1 it was the bottleneck."""
        return round(max(load.loadgen_share for load in self.loads), 2)


def play(
    session: Session, pair: Pair, shape: Shape, names: Sequence[str], *, topic: str = "BenchTopic"
) -> dict[str, Rounds]:
    """Run the rounds of one shape on the servers in turn."""
    rounds = {name: Rounds() for name in names}
    for number in range(session.rounds):
        for name in session.order(number, names):
            with pair.only(name) as server:
                load = run_load(
                    server.broker_address,
                    shape,
                    seconds=session.seconds,
                    warmup=WARMUP_S,
                    topic=topic,
                    cpus=pair.load_cpus,
                )
            rounds[name].loads.append(load)
    return rounds


def row(name: str, what: str, ours: Rounds, apache: Rounds, bar: Bar | None) -> Row:
    """Return the row of a rate."""
    more: dict[str, object] = {
        "p99_us": {"ours": ours.p99_us(), "peer": apache.p99_us()},
        "loadgen_share": {"ours": ours.loadgen_share(), "peer": apache.loadgen_share()},
    }
    if error := ours.error or apache.error:
        more["error"] = error
    if max(ours.loadgen_share(), apache.loadgen_share()) >= LOADGEN_FULL:
        what += " (the load generator was full: at least)"
    return Row(
        name, what, "messages/s", ours.rates, apache.rates, PEER, bar, errors=(ours.errors, apache.errors), more=more
    )


@figure("pulls", "pulls of 32, server on one core", seconds=95)
def pulls(session: Session) -> Iterator[Row]:
    """Runs first on a pair: the pulled messages must be recent, or Apache treats them as messages on disk."""
    pair = session.pair(one_core())
    for name in ("ours", "apache"):
        with pair.only(name) as server:
            create_topic(server.broker_address, PULL_TOPIC)
            run_load(server.broker_address, DEEP, seconds=2, warmup=0, topic=PULL_TOPIC, cpus=pair.load_cpus)
            pair.settle(name)
    rounds = play(session, pair, PULL, ("ours", "apache"), topic=PULL_TOPIC)
    what = "messages/s in pulls of 32, 16 × 1, server on one core"
    yield row("pull32/16x1", what, rounds["ours"], rounds["apache"], Bar(">=", 1.0))


@figure(
    "sends", "sends/s, server on one core: three shapes, both headers, both id sizes, state on and off", seconds=275
)
def sends(session: Session) -> Iterator[Row]:
    """Slow shapes come first: the index work left by a fast one would disturb the next."""
    pair = session.pair(one_core())
    for shape in (SYNC64, ONE64, DEEP):
        bar = Bar(">=", SEND_BARS[shape.name])
        rounds = play(session, pair, shape, ("ours", "apache", *VARIANTS))
        yield row(f"sends/{shape.name}/json/id32", _sends(shape, "ours"), rounds["ours"], rounds["apache"], bar)
        for name in VARIANTS:
            full = f"sends/{shape.name}/json/id32/{name}"
            yield row(full, _sends(shape, name), rounds[name], rounds["apache"], None)
        for other in (shape.with_binary(), shape.with_long_ids(), shape.with_binary().with_long_ids()):
            rounds = play(session, pair, other, ("ours", "apache"))
            full = f"sends/{shape.name}/{other.header}/id{other.id_size}"
            yield row(full, _sends(other, "ours"), rounds["ours"], rounds["apache"], bar)


def _sends(shape: Shape, name: str) -> str:
    header = f"{shape.header} headers, {shape.id_size}-character ids"
    return f"sends/s, server on one core, {shape.connections} × {shape.outstanding}, {header}; {STATE[name]}"


@figure("batches", "batches of 32, server on one core", seconds=20)
def batches(session: Session) -> Iterator[Row]:
    """Runs last on a pair: it leaves much index work."""
    pair = session.pair(one_core())
    rounds = play(session, pair, BATCH, ("ours", "apache"))
    what = "messages/s in batches of 32, 4 × 4, server on one core"
    yield row("batch32/4x4", what, rounds["ours"], rounds["apache"], Bar(">=", 0.8))


@figure("sync-flush", "sends/s with SYNC_FLUSH, 64 × 1", seconds=70)
def sync_flush(session: Session) -> Iterator[Row]:
    pair = session.pair(SYNC_FLUSH)
    rounds = play(session, pair, SYNC64, ("ours", "apache"))
    what = "sends/s, SYNC_FLUSH, both cores shared, 64 × 1, JSON headers"
    yield row("sync-flush/64x1", what, rounds["ours"], rounds["apache"], Bar(">=", 1.5))


@figure("cpu", "server CPU a send, both cores shared, and the rate there", seconds=140)
def cpu(session: Session) -> Iterator[Row]:
    pair = session.pair(BOTH_CORES)
    idle = {name: idle_share(pair, name) for name in ("ours", "apache")}
    for shape in (SYNC64, ONE64, DEEP):
        rounds = {"ours": Rounds(), "apache": Rounds()}
        for number in range(session.rounds):
            for name in session.order(number, ("ours", "apache")):
                load, cpu_us, settle_s = cpu_of_sends(session, pair, name, shape, idle[name])
                rounds[name].loads.append(load)
                rounds[name].cpu_us.append(cpu_us)
                rounds[name].settle_s.append(settle_s)
        ours, apache = rounds["ours"], rounds["apache"]
        place = f"both cores shared, {shape.connections} × {shape.outstanding}, JSON headers; {STATE['ours']}"
        errors = (ours.errors, apache.errors)
        bar = Bar("<=", CPU_BARS[shape.name])
        what = f"server CPU a send, {place}"
        settled = {"ours": statistics.median(ours.settle_s), "peer": statistics.median(apache.settle_s)}
        more = {"settle_s": settled, "idle_share": {"ours": idle["ours"], "peer": idle["apache"]}}
        yield Row(f"cpu/{shape.name}", what, "µs", ours.cpu_us, apache.cpu_us, PEER, bar, errors=errors, more=more)
        yield row(f"sends-both-cores/{shape.name}", f"sends/s, {place}", ours, apache, None)


def cpu_of_sends(session: Session, pair: Pair, name: str, shape: Shape, idle: float) -> tuple[Load, float, float]:
    """Return one load, the server's CPU time per send in µs, and how long it continued to work after the load, in
    seconds. // The CPU time includes work deferred until after the load, but not idle use (`idle`, of a core) in that
    time. Apache's name server is excluded; ours is in the broker's process and included.
    """
    seconds = min(session.seconds, CPU_SECONDS_MAX)
    with pair.only(name) as server, server.measured() as usage:
        load = run_load(server.broker_address, shape, seconds=seconds, warmup=0, cpus=pair.load_cpus)
        settle_s = pair.settle(name)
    return load, (usage.cpu_s - idle * settle_s) / max(1, load.requests - load.errors) * 1e6, settle_s


def idle_share(pair: Pair, name: str) -> float:
    """Return the share of a core that an idle server uses."""
    with pair.only(name) as server:
        pair.settle(name)
        with server.measured() as usage:
            time.sleep(IDLE_S)
    return round(usage.cpu_s / usage.elapsed_s, 3)
