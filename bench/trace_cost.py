"""Benchmarks of the cost of our client's trace for an application: sends/s and p99 with and without trace."""

from __future__ import annotations

from collections.abc import Iterator

from bench import our_client
from bench.apache import TOPIC
from bench.broker import BOTH_CORES
from bench.official import PER_S, failed
from bench.registry import figure
from bench.rows import Bar, Json, Row
from bench.session import Session

WARM_S = 1.0
STEADY_S = 5.0


@figure("trace-cost", "our client, trace on beside trace off: sends/s, p99 at 200/s", seconds=115)
def trace_cost(session: Session) -> Iterator[Row]:
    """Each round is a new process, so that no round pays for another's trace. The broker is ours; Apache is stopped."""
    pair = session.pair(BOTH_CORES)
    full: dict[str, list[Json]] = {"off": [], "on": []}
    steady: dict[str, list[Json]] = {"off": [], "on": []}
    seconds = 1.0 if session.quick else STEADY_S
    with pair.only("ours") as server:
        namesrv = server.namesrv_address
        pair.settle("ours")
        for number in range(session.rounds):
            for state in session.order(number, ("off", "on")):
                trace = state == "on"
                full[state].append(
                    our_client.throughput(
                        namesrv, topic=TOPIC, trace=trace, warm_s=WARM_S, seconds=2.5 * session.seconds
                    )
                )
                steady[state].append(
                    our_client.steady(namesrv, topic=TOPIC, trace=trace, per_s=PER_S, warm_s=WARM_S, seconds=seconds)
                )
    for name, what, unit, key, turns, bar in (
        ("trace-cost/sends", "sends/s of our client, 64 tasks", "sends/s", "sendsPerS", full, Bar(">=", 0.95)),
        ("trace-cost/p99", "send p99 of our client at 200/s", "ms", "sendP99Ms", steady, Bar("<=", 1.10)),
    ):
        counts = {
            part: sum(one[part] for one in turns["on"]) for part in ("traceRecorded", "traceSpooled", "traceLost")
        }
        yield Row(
            name,
            f"{what}, trace on; the peer is the same with trace off",
            unit,
            [one[key] for one in turns["on"]],
            [one[key] for one in turns["off"]],
            "the same without trace",
            bar,
            # a dropped trace record counts as an error: dropping must not look like speed
            errors=(failed(turns["on"]) + counts["traceLost"], failed(turns["off"])),
            more=counts,
        )
