"""Special consumers of the official clients: ordered, broadcasting, with SQL92, in a namespace."""

from __future__ import annotations

from typing import Any

import pytest
from interop.driver import Json
from interop.stage import CLIENTS, Part, Stage, by_label, labels, refusal, wait_for

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]

KEYS = ("red", "green", "blue", "white")
RECONSUME_MAX = 2


def in_order(part: Part) -> Json:
    """Ordered consumption with a suspension and a poison message, then a second member that takes over queues."""
    topic, group = part.named("Ordered"), part.named("OrderGroup")
    part.make_topic(topic)
    part.producer("p", group=part.named("OrderProducer"))
    behave = {"red-1": "fail:1", "green-1": "fail:99", "blue-1": "fail:2"}

    def send(first: int, count: int) -> None:
        for key in KEYS:
            messages = [
                {
                    "topic": topic,
                    "body": f"{key}-{i}",
                    "keys": f"key-{key}-{i}",
                    "properties": {"label": f"{key}-{i}", "behave": behave.get(f"{key}-{i}", "ok")},
                }
                for i in range(first, first + count)
            ]
            part.send("p", messages, "ordered", orderKey=key)

    send(0, 4)
    options: dict[str, Any] = {
        "group": group,
        "topics": {topic: "*"},
        "orderly": True,
        "maxReconsume": RECONSUME_MAX,
        "threads": 4,
    }
    part.consumer("a", **options)
    dead_letters = f"%DLQ%{group}"
    wait_for(lambda: bool(part.query("p", dead_letters, "key-green-1")), f"the dead letter on {part.kind}")
    last = {f"{key}-3" for key in KEYS}
    wait_for(lambda: last <= {event["body"] for event in part.handled("a")}, f"the first part on {part.kind}")
    first = list(part.handled("a"))
    part.consumer("b", **options)
    wait_for(lambda: _newcomer_has_queues(part, topic), f"locks of the newcomer on {part.kind}", interval_s=1.0)
    send(4, 4)
    sent = {f"{key}-{i}" for key in KEYS for i in range(4, 8)}
    wait_for(lambda: sent <= {event["body"] for event in part.handled("a", "b")}, f"the second part on {part.kind}")
    second = [event for event in part.handled("a", "b") if event["body"] in sent]  # rounds may come again meanwhile
    return {
        "first": _by_key(first),
        "second": _by_key(second),
        "shared": sorted({event["consumer"].rpartition(":")[2] for event in second}),
        "queues of one member each": all(
            len({event["consumer"] for event in second if event["queueId"] == queue}) <= 1 for queue in range(4)
        ),
        "dead": by_label(part.query("p", dead_letters, "key-green-1")),
        "shape": by_label(event for event in first if event["body"] in ("red-1", "white-0")),
    }


def _newcomer_has_queues(part: Part, topic: str) -> bool:
    """Send one message to each queue; return whether the new member has handled any."""
    before = len(part.handled("a", "b"))
    part.labelled("p", topic, {f"round-{i}": {} for i in range(4)})
    part.wait_handled(before + 4, "a", "b")
    return bool(part.handled("b"))


def _by_key(events: list[Json]) -> dict[str, list[tuple[str, str, int]]]:
    """The attempts of each order key, in order."""
    reported: dict[str, list[tuple[str, str, int]]] = {}
    for event in events:
        reported.setdefault(event["body"].partition("-")[0], []).append(
            (event["body"], event["outcome"], event["reconsumeTimes"])
        )
    return dict(sorted(reported.items()))


@pytest.mark.parametrize("client", CLIENTS)
def test_in_order(stage: Stage, client: str) -> None:
    """One member handles a queue, in order; a failure blocks its queue; a poison message becomes a dead letter."""
    ours, apache = stage.play(in_order, client)
    assert ours == apache
    done = "SUCCESS"
    assert [body for body, outcome, _ in ours["first"]["red"] if outcome == done] == [f"red-{i}" for i in range(4)]
    assert ours["second"] == {key: [(f"{key}-{i}", done, 0) for i in range(4, 8)] for key in sorted(KEYS)}
    assert ours["shared"] == ["a", "b"]
    assert ours["queues of one member each"]
    assert ours["dead"]


def broadcast(part: Part) -> Json:
    """Two members that both get every message, a failure that is not retried, and a restart that continues."""
    topic, group = part.named("Broadcast"), part.named("BroadcastGroup")
    part.make_topic(topic)
    part.producer("p", group=part.named("BroadcastProducer"))
    for name in ("one", "two"):
        _broadcasting(part, name, group, topic)
    part.labelled("p", topic, {f"m{i}": {"properties": {"behave": "fail:9"}} if i == 1 else {} for i in range(6)})
    first = {name: part.wait_handled(6, name) for name in ("one", "two")}
    part.close("one")
    part.labelled("p", topic, {f"later-{i}": {} for i in range(4)})
    part.wait_handled(10, "two")
    _broadcasting(part, "one", group, topic)
    part.wait_handled(10, "one")
    return {
        "first": {name: by_label(events) for name, events in first.items()},
        "all": {name: sorted(labels(part.handled(name))) for name in ("one", "two")},
    }


def _broadcasting(part: Part, name: str, group: str, topic: str) -> None:
    instance = f"{part.kind}-{name}"  # local offsets are kept by it
    part.consumer(name, group=group, topics={topic: "*"}, broadcast=True, instance=instance)


@pytest.mark.parametrize("client", CLIENTS)
def test_broadcast(stage: Stage, client: str) -> None:
    """Every member handles every message once, and continues where it stopped."""
    ours, apache = stage.play(broadcast, client)
    assert ours == apache
    everything = sorted([f"m{i}" for i in range(6)] + [f"later-{i}" for i in range(4)])
    assert ours["all"] == {"one": everything, "two": everything}


def sql(part: Part) -> Json:
    """A subscription by SQL92, an invalid one, and both on a broker without filters."""
    topic = part.named("Filtered")
    part.make_topic(topic)
    part.producer("p", group=part.named("FilterProducer"))
    rows: dict[str, Json] = {
        "ten": {"tags": "A", "properties": {"n": 10, "colour": "red"}},
        "five": {"tags": "A", "properties": {"n": 5, "colour": "red"}},
        "text": {"tags": "A", "properties": {"n": "many", "colour": "red"}},
        "blue": {"tags": "B", "properties": {"n": 20, "colour": "blue"}},
        "none": {"tags": "A"},
        "last": {"tags": "A", "properties": {"n": 7, "colour": "green"}},
    }
    part.labelled("p", topic, rows)
    part.consumer(
        "c",
        group=part.named("SqlGroup"),
        topics={topic: "(n BETWEEN 6 AND 19 AND colour IN ('red', 'green')) OR TAGS = 'B'"},
        sql=True,
    )
    part.wait_handled(3, "c")
    # later messages have passed the filter, so no earlier one can still be under way
    part.labelled("p", topic, {f"more-{i}": {"properties": {"n": 8, "colour": "red"}} for i in range(4)})
    handled = part.wait_handled(7, "c")

    def subscribe(name: str, expression: str) -> tuple[str, int | None]:
        return refusal(
            lambda: part.consumer(name, group=part.named(f"Group{name}"), topics={topic: expression}, sql=True)
        )

    broken = subscribe("Broken", "n >")
    part.set_broker("enablePropertyFilter", "false")
    try:
        off = subscribe("Off", "n > 5")
    finally:
        part.set_broker("enablePropertyFilter", "true")
    return {"handled": by_label(handled), "broken": broken, "off": off}


@pytest.mark.parametrize("client", CLIENTS)
def test_sql(stage: Stage, client: str) -> None:
    """Matching messages are delivered; invalid and unsupported filters are refused as Apache refuses them."""
    ours, apache = stage.play(sql, client)
    assert ours == apache
    assert sorted(ours["handled"]) == ["blue", "last", "more-0", "more-1", "more-2", "more-3", "ten"]
    assert ours["broken"][1] is not None
    assert ours["off"][1] is not None


def namespace(part: Part) -> Json:
    """A producer and a consumer in a namespace, with a retry and a batch, and a consumer without a namespace."""
    topic, group = part.named("Spaced"), part.named("SpacedGroup")
    part.make_topic(f"NS%{topic}")
    part.make_topic(topic)
    part.producer("p", group=part.named("SpacedProducer"), namespace="NS")
    part.consumer("c", group=group, topics={topic: "*"}, namespace="NS")
    part.consumer("outside", group=part.named("Outside"), topics={f"NS%{topic}": "*"})
    part.consumer("beside", group=part.named("Beside"), topics={topic: "*"})
    sent = part.labelled("p", topic, {"plain": {}, "retried": {"properties": {f"behave-{group}": "fail:1"}}})
    sent += part.labelled("p", topic, {f"batch-{i}": {"keys": f"item-{i}"} for i in range(3)}, "batch")
    handled = part.wait_handled(6, "c")
    outside = part.wait_handled(5, "outside")
    batch = tuple(f"batch-{i}" for i in range(3))
    return {
        "sent": [(result["status"], result["queue"]["topic"]) for result in sent],
        # a batch's items have names of properties of their own here (docs: deviations)
        "handled": by_label(event for event in handled if event["properties"]["label"] not in batch),
        "items": sorted(label for label in labels(handled) if label in batch),
        "outside": sorted({(event["topic"], label) for event, label in zip(outside, labels(outside), strict=True)}),
        "beside": labels(part.handled("beside")),
    }


@pytest.mark.parametrize("client", CLIENTS)
def test_namespace(stage: Stage, client: str) -> None:
    """The client's user sees names without the namespace, everyone else sees NS%…."""
    ours, apache = stage.play(namespace, client)
    assert ours == apache
    assert [attempt["reconsumeTimes"] for attempt in ours["handled"]["retried"]] == [0, 1]
    assert ours["beside"] == []
