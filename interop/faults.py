"""Labelled faults on a cluster: makes the official client fail in known ways, and records the expected verdicts.

The truth consists of the client's commands and its handlers' events, without the trace. Delay levels must be those of
`story.SERVER_PROPERTIES`. Codes are those of docs/reference/verdicts.md.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from interop.driver import JavaClient, Json
from interop.probe import request, wait_until

TOPIC = "Faults"
MAIN, HANGING, FILTERING, DOWN = "FaultsMain", "FaultsHanging", "FaultsFiltering", "FaultsDown"
HUNG_AFTER_S = 45.0
QUERY_CONSUMER_OFFSET = 14
HOUR_LEVEL = 17
RECONSUME_MAX = 2
CONSUMED, FILTERED, NO_CONSUMER = frozenset({"CONSUMED"}), frozenset({"FILTERED"}), frozenset({"NO_CONSUMER"})
UNKNOWN = frozenset({"UNKNOWN"})
HUNG, WAITING = frozenset({"HUNG"}), frozenset({"WAITING"})


@dataclass(frozen=True)
class ExpectedVerdicts:
    """The expected verdicts of a message: exactly these codes of its send, of the message, of each group, and this
    knowledge."""

    send: frozenset[str]
    groups: Mapping[str, frozenset[str]]
    knowledge: str = "COMPLETE"
    message: frozenset[str] = frozenset()


@dataclass
class Faults:
    """The result: ids by label, and the expected verdicts of each."""

    ids: dict[str, str] = field(default_factory=dict)
    expected: dict[str, ExpectedVerdicts] = field(default_factory=dict)


# label -> action of the main group's handler, other fields of the message, codes of the main group
CASES: Mapping[str, tuple[str, Json, frozenset[str]]] = {
    "plain": ("ok", {"tags": "TagA", "keys": "order-1"}, CONSUMED),
    "fails-once": ("fail:1", {}, frozenset({"CONSUMED", "CONSUMED_AFTER_RETRY"})),
    "throws-once": ("exception:1", {}, frozenset({"CONSUMED", "CONSUMED_AFTER_RETRY"})),
    "null-once": ("null:1", {}, frozenset({"CONSUMED", "CONSUMED_AFTER_RETRY"})),
    "slow": ("slow:1300", {}, frozenset({"CONSUMED", "CONSUMED_SLOW"})),
    "poison": ("fail:99", {}, frozenset({"DEAD_LETTERED"})),
    "dead-at-once": ("dlq", {}, frozenset({"DEAD_LETTERED"})),
    "retrying": (f"later:{HOUR_LEVEL}", {}, frozenset({"RETRYING"})),
    "large": ("ok", {"bodySize": 20_000, "tags": "TagA"}, CONSUMED),
}
ATTEMPTS = {"fails-once": 2, "throws-once": 2, "null-once": 2, "poison": RECONSUME_MAX + 1}
FIRST, HANGS, WAITS = "first", "hangs", "waits-behind"
UNTRACED = frozenset({"oneway", "trace-off"})  # sends without a Pub record


def prepare(java: JavaClient, broker_address: str, *, timeout_s: float = 60.0) -> Faults:
    """Start the groups, and stop one that has committed an offset.

    Sample the cluster from now on: COMPLETE needs samples that show all groups of the message's time.
    """
    faults = Faults()
    java.producer("traced", group="FaultsProducer", trace=True)
    java.producer("untraced", group="FaultsUntraced")
    _send(java, faults, "traced", {FIRST: {"tags": "TagA"}})
    java.consumer("down", group=DOWN, topics={TOPIC: "*"}, trace=True)
    _wait_for(java, {(DOWN, FIRST): 1}, timeout_s)
    wait_until(lambda: _committed(broker_address, DOWN), "the offset of the group that goes down", 120)
    java.call("closeConsumer", name="down")
    # one thread: a hung handler blocks all later messages
    java.consumer("hanging", group=HANGING, topics={TOPIC: "Hang"}, trace=True, threads=1)
    java.consumer("filtering", group=FILTERING, topics={TOPIC: "TagA"}, trace=True)
    java.consumer("main", group=MAIN, topics={TOPIC: "*"}, trace=True, maxReconsume=RECONSUME_MAX)
    _wait_for(java, {(FILTERING, FIRST): 1, (MAIN, FIRST): 1}, timeout_s)
    return faults


def inject(java: JavaClient, faults: Faults, *, timeout_s: float = 120.0) -> None:
    """Cause all other faults, and return when each has happened and its trace has been sent.

    The consumers stay alive: the verdicts must be judged meanwhile.
    """
    _send(java, faults, "traced", {HANGS: {"tags": "Hang", "properties": {f"behave-{HANGING}": "slow:3600000"}}})
    java.wait(lambda events: any(_is(event, "began", HANGING, HANGS) for event in events), "the hanging handler")
    hung_at_s = time.monotonic() + HUNG_AFTER_S
    _send(java, faults, "traced", {WAITS: {"tags": "Hang"}})
    for label, (behaviour, fields, _) in CASES.items():
        _send(java, faults, "traced", {label: {**fields, "properties": {f"behave-{MAIN}": behaviour}}})
    _send(java, faults, "traced", {"delayed": {"delay": 2}, "scheduled": {"delay": HOUR_LEVEL}})
    _send(java, faults, "traced", {"oneway": {}}, "oneway")
    _send(java, faults, "untraced", {"trace-off": {}})
    _expect(faults)
    _wait_for(java, {(MAIN, label): ATTEMPTS.get(label, 1) for label in faults.ids if label != "scheduled"}, timeout_s)
    # the dispatcher sends every five seconds; a handler counts as hung after HUNG_AFTER_S
    wait_until(lambda: time.monotonic() > hung_at_s + 6, "the hanging handler to count as hung", HUNG_AFTER_S + 10, 0.5)


def _expect(faults: Faults) -> None:
    """Record the expected verdicts of each message, group by group."""
    for label in faults.ids:
        fields, main = CASES[label][1:] if label in CASES else ({}, CONSUMED)
        groups = {
            MAIN: main,
            FILTERING: CONSUMED if fields.get("tags") == "TagA" else FILTERED,
            DOWN: NO_CONSUMER,
            HANGING: {HANGS: HUNG, WAITS: WAITING}.get(label, FILTERED),
        }
        if label == FIRST:  # stored before the first sample: nothing shows whether the hanging group was there
            groups = {**dict.fromkeys((MAIN, FILTERING, DOWN), CONSUMED), HANGING: UNKNOWN}
        if label == "scheduled":  # it is stored, and not delivered before it is due
            groups[MAIN] = WAITING
        traced = label not in UNTRACED
        faults.expected[label] = ExpectedVerdicts(
            send=frozenset({"SEND_OK"}) if traced else frozenset(),
            groups=groups,
            knowledge="COMPLETE" if traced and label != FIRST else "INCOMPLETE",
            message=frozenset({"SCHEDULED"}) if label == "scheduled" else frozenset(),
        )


def _send(java: JavaClient, faults: Faults, producer: str, messages: Mapping[str, Json], mode: str = "sync") -> None:
    for label, fields in messages.items():
        properties = {**fields.get("properties", {}), "label": label}
        message = {"body": label, **fields, "topic": TOPIC, "properties": properties}
        [result] = java.send(producer, [message], mode)
        assert mode == "oneway" or result["status"] == "SEND_OK", result
        faults.ids[label] = result["uniqKey"]


def _wait_for(java: JavaClient, wanted: Mapping[tuple[str, str], int], timeout_s: float) -> None:
    """Return once this many calls of handlers have ended, by group and label."""

    def all_ended(events: list[Json]) -> bool:
        return all(
            sum(_is(event, "ended", group, label) for event in events) >= count
            for (group, label), count in wanted.items()
        )

    java.wait(all_ended, "the faults' attempts", timeout_s)


def _is(event: Json, kind: str, group: str, label: str) -> bool:
    return (event["event"], event["group"], event["properties"].get("label")) == (kind, group, label)


def _committed(broker_address: str, group: str) -> bool:
    """Return whether the group has committed an offset of a queue."""
    ext = {"consumerGroup": group, "topic": TOPIC, "setZeroIfNotFound": "false"}
    replies = [request(broker_address, QUERY_CONSUMER_OFFSET, {**ext, "queueId": str(n)})[0] for n in range(4)]
    return any(int(reply["extFields"]["offset"]) > 0 for reply in replies if reply["code"] == 0)
