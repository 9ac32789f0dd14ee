"""A fixed sequence of sends, handlings and queries by the official client, for any server.

It runs on Apache's broker and on ours with the same names, and all values are compared. Each message has its label as a
property. Delay levels must be short (see `SERVER_PROPERTIES`).
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from interop.driver import JavaClient, JavaError, Json

# Levels 1 to 4, and so a first retry (level 3), take a second; the others must exist, but are not used.
SERVER_PROPERTIES: Mapping[str, str] = {
    "messageDelayLevel": "1s 2s 1s 1s 1s 2s 3s 4s 5s 6s 7s 8s 9s 10s 20s 30s 1h 2h",
    "traceTopicEnable": "true",
}
TRACE_TOPIC = "RMQ_SYS_TRACE_TOPIC"
DELAY_LEVEL, DELAY_MS = 2, 2000
RECONSUME_MAX = 2
LARGE_SIZE = 20_000
BATCH_COUNT = 5
# The handler's action for each message in the main group, and its number of attempts.
BEHAVIOURS: Mapping[str, tuple[str, int]] = {
    "fails-once": ("fail:1", 2),
    "throws-once": ("exception:1", 2),
    "null-once": ("null:1", 2),
    "poison": ("fail:99", RECONSUME_MAX + 1),
    "dead-at-once": ("dlq", 1),
    "slow": ("slow:1200", 1),
}
# Properties whose values do not depend on time, place or chance.
STEADY = ("KEYS", "TAGS", "WAIT", "DELAY", "REAL_TOPIC", "RETRY_TOPIC", "MSG_REGION", "TRACE_ON", "CLUSTER", "label")


@dataclass
class Story:
    """The results. sent: label -> send result. attempts: group -> label -> handlings."""

    topic: str
    group: str
    tag_group: str
    began_ms: int
    sent: dict[str, Json] = field(default_factory=dict)
    batch: Json = field(default_factory=dict)
    attempts: dict[str, dict[str, list[Json]]] = field(default_factory=dict)
    dead: dict[str, Json] = field(default_factory=dict)
    route: Json = field(default_factory=dict)
    queues: list[Json] = field(default_factory=list)
    by_key: list[Json] = field(default_factory=list)
    by_unique_key: Json = field(default_factory=dict)
    by_offset_id: Json = field(default_factory=dict)
    not_found: dict[str, int | None] = field(default_factory=dict)
    trace_bodies: dict[str, list[str]] = field(default_factory=dict)

    @property
    def outcomes(self) -> dict[str, list[str]]:
        """The main group's outcomes by label, attempt by attempt."""
        return {
            label: [attempt["outcome"] for attempt in attempts] for label, attempts in self.attempts[self.group].items()
        }

    def comparable(self) -> Json:
        """Return everything that must be equal on a second server."""
        return {
            "route": [
                {name: queue[name] for name in ("readQueueNums", "writeQueueNums", "perm", "topicSysFlag")}
                for queue in self.route["queueDatas"]
            ],
            "sent": {label: result["status"] for label, result in self.sent.items() if "status" in result},
            "regions": sorted({result["regionId"] for result in self.sent.values() if "status" in result}),
            "batch": (self.batch["status"], self.batch["msgId"].count(","), self.batch["offsetMsgId"].count(",")),
            "attempts": {
                group: {
                    label: [_shape(attempt, sized=not label.startswith("batch-")) for attempt in attempts]
                    for label, attempts in sorted(labels.items())
                }
                for group, labels in self.attempts.items()
            },
            "dead": {label: _shape(message) for label, message in sorted(self.dead.items())},
            "found": [_shape(message) for message in (*self.by_key, self.by_unique_key, self.by_offset_id)],
            "not_found": self.not_found,
            "traces": sorted(self.trace_bodies),
        }


def live(java: JavaClient, name: str, *, timeout_s: float = 90.0) -> Story:
    """Send, consume, fail, retry, dead-letter, query: everything, with topic and groups derived from `name`."""
    story = Story(f"Story_{name}", f"Group_{name}", f"TagGroup_{name}", int(time.time() * 1000))
    java.producer("story", group=f"Producer_{name}", trace=True)
    try:
        _send_first(java, story)
        topics = {story.group: "*", story.tag_group: "TagA || TagB"}
        for group, expression in topics.items():
            java.consumer(
                group, group=group, topics={story.topic: expression}, trace=True, maxReconsume=RECONSUME_MAX, threads=8
            )
        _send_rest(java, story)
        wanted = _wanted_attempts(story)

        def all_made(events: list[Json]) -> bool:
            return _counts(events) == wanted

        try:
            java.wait(all_made, "every attempt of the story", timeout_s)
        except TimeoutError as error:
            counts = _counts(java.events())
            keys = sorted(wanted.keys() | counts.keys())
            differ = {key: (counts.get(key, 0), wanted.get(key, 0)) for key in keys}
            differ = {key: pair for key, pair in differ.items() if pair[0] != pair[1]}
            raise TimeoutError(f"{error}; (group, label): (made, wanted) {differ}") from None
        for event in java.events("ended"):
            labels = story.attempts.setdefault(event["group"], {})
            labels.setdefault(event["properties"]["label"], []).append(event)
        _ask(java, story, timeout_s)
        for group in topics:
            java.call("closeConsumer", name=group)
    finally:
        java.call("closeProducer", name="story")
    return story


def read_traces(java: JavaClient, story: Story, *, timeout_s: float = 30.0) -> None:
    """Fill `trace_bodies`: for each label the trace messages of the message's id, once all are stored."""
    java.producer("reader", group="Reader")
    deadline = time.monotonic() + timeout_s
    try:
        for label, result in story.sent.items():
            # every attempt writes SubBefore and SubAfter, an acknowledged send a Pub
            attempts = sum(len(labels.get(label, ())) for labels in story.attempts.values())
            records = 2 * attempts + ("status" in result)
            while True:
                bodies = [message["body"] for message in _query(java, "reader", TRACE_TOPIC, result["uniqKey"])]
                found = sum(result["uniqKey"] in record for body in bodies for record in body.split("\x02"))
                if found >= records:
                    break
                if time.monotonic() > deadline:
                    raise TimeoutError(f"{label}: {found} of {records} trace records within {timeout_s:g} s")
                time.sleep(0.2)
            story.trace_bodies[label] = bodies
    finally:
        java.call("closeProducer", name="reader")


def _send_first(java: JavaClient, story: Story) -> None:
    """Send one message alone, which creates the topic, so that later sends know its route."""
    _send(java, story, "sync", {"sync": {"body": "päyload €", "tags": "TagA", "keys": "key-1 key-2", "flag": 7}})


def _send_rest(java: JavaClient, story: Story) -> None:
    _send(
        java,
        story,
        "sync",
        {
            "delayed": {"body": "later", "delay": DELAY_LEVEL, "keys": "key-delayed"},
            "large": {"bodySize": LARGE_SIZE, "tags": "TagB"},
            "unsubscribed": {"body": "for nobody with a tag", "tags": "TagC"},
            **{
                label: {
                    "body": label,
                    "keys": f"key-{label}",
                    "properties": {f"behave-{story.group}": behaviour},
                }
                for label, (behaviour, _) in BEHAVIOURS.items()
            },
        },
    )
    _send(java, story, "async", {f"async-{i}": {"body": f"async {i}", "tags": "TagA"} for i in range(4)})
    _send(java, story, "oneway", {f"oneway-{i}": {"body": f"one way {i}"} for i in range(3)})
    _send(java, story, "ordered", {f"ordered-{i}": {"body": f"{i}"} for i in range(3)}, orderKey="customer-17")
    items = [_labelled(story, f"batch-{i}", {"body": f"item {i}", "keys": f"item-{i}"}) for i in range(BATCH_COUNT)]
    [story.batch] = java.send("story", items, "batch")


def _send(java: JavaClient, story: Story, mode: str, messages: Mapping[str, Json], **options: str) -> None:
    results = java.send("story", [_labelled(story, *item) for item in messages.items()], mode, **options)
    failed = [result for result in results if "error" in result]
    if failed:
        raise AssertionError(f"{len(failed)} of {len(results)} sends failed: {failed[0]}")
    story.sent.update(zip(messages, results, strict=True))


def _labelled(story: Story, label: str, message: Json) -> Json:
    return {**message, "topic": story.topic, "properties": {**message.get("properties", {}), "label": label}}


def _wanted_attempts(story: Story) -> dict[tuple[str, str], int]:
    """Return the number of attempts of each group for each label."""
    labels = [*story.sent, *(f"batch-{i}" for i in range(BATCH_COUNT))]
    main = {(story.group, label): BEHAVIOURS[label][1] if label in BEHAVIOURS else 1 for label in labels}
    tagged = {(story.tag_group, label): 1 for label in ("sync", "large", *(f"async-{i}" for i in range(4)))}
    return {**main, **tagged}


def _counts(events: list[Json]) -> dict[tuple[str, str], int]:
    counts: dict[tuple[str, str], int] = {}
    for event in events:
        if event["event"] == "ended":
            key = (event["group"], event["properties"]["label"])
            counts[key] = counts.get(key, 0) + 1
    return counts


def _ask(java: JavaClient, story: Story, timeout_s: float) -> None:
    """Run every look-up of a client, and read the dead letters, which are stored a moment later."""
    sync = story.sent["sync"]
    story.route = java.call("route", name="story", topic=story.topic)["route"]
    story.queues = java.call("queues", name="story", topic=story.topic, timestampMs=story.began_ms - 1000)["queues"]
    story.by_key = _query(java, "story", story.topic, "key-2")
    story.by_unique_key = java.call("view", name="story", topic=story.topic, msgId=sync["msgId"])["message"]
    story.by_offset_id = java.call("view", name="story", topic=story.topic, msgId=sync["offsetMsgId"])["message"]
    past_the_end = sync["offsetMsgId"][:-16] + f"{1 << 40:016X}"
    for what, msg_id in {"unique key": "0" * 32, "offset id": past_the_end}.items():
        try:
            java.call("view", name="story", topic=story.topic, msgId=msg_id)
        except JavaError as error:
            story.not_found[what] = error.code
    deadline = time.monotonic() + timeout_s
    for label in ("poison", "dead-at-once"):
        while not (found := _query(java, "story", f"%DLQ%{story.group}", f"key-{label}")):
            if time.monotonic() > deadline:
                raise TimeoutError(f"no dead letter of {label} within {timeout_s:g} s")
            time.sleep(0.1)
        [story.dead[label]] = found


def _query(java: JavaClient, name: str, topic: str, key: str) -> list[Json]:
    end_ms = int(time.time() * 1000) + 60_000
    try:
        found: list[Json] = java.call("queryKey", name=name, topic=topic, key=key, max=64, beginMs=0, endMs=end_ms)[
            "messages"
        ]
    except JavaError as error:
        # no message (208), or its topic has no route yet (17)
        if error.code in (208, 17):
            return []
        raise
    return found


def _shape(message: Json, *, sized: bool = True) -> Json:
    """Return the parts of a message that must be equal on both servers.

    The size of a batch's items is not (docs: deviations).
    """
    shape = {name: message[name] for name in ("topic", "bodyCRC", "flag", "sysFlag", "reconsumeTimes")}
    if sized:
        shape["storeSize"] = message["storeSize"]
    shape["propertyNames"] = sorted(message["properties"])
    shape["properties"] = {name: message["properties"].get(name) for name in STEADY}
    if "outcome" in message:
        shape["outcome"] = message["outcome"]
    return shape
