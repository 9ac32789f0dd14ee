"""Random evidence of one cluster: not plausible as a whole, but with every kind of row."""

from __future__ import annotations

import random
from typing import Any

from mqtrail.trail import Settings
from tests.trail.histories import BASE_MS, Row, unique_id

SETTINGS = Settings(
    hung_ms=30_000,
    hung_p99_samples=5,
    state_age_ms_max=60_000,
    next_attempt_ms_max=200_000,
    loss_window_ms=60_000,
)
LENGTH_MS = 900_000
SAMPLE_EVERY_MS = 25_000
CLUSTER, BROKER = "shop", "broker-a"
TOPICS = ("orders", "bills")
QUEUES = (0, 1)
EXPRESSIONS = (("TAG", "A"), ("TAG", "B"), ("TAG", "*"), ("SQL92", "a > 1"), ("SQL92", "a = 1"), ("SQL92", "a >"))
PROPERTIES = ("", "a\x011\x02", "a\x012\x02")
FEATURES = (
    "losses", "resets", "filters", "late groups", "errors", "batches", "lite pulls", "gaps in samples", "transactions",
    "repeats",
)  # fmt: skip
"""What makes many messages due at once: a story has some of it, so that in others few are."""
HOSTS = ("10.0.0.1:5001", "10.0.0.2:5002", "10.0.0.3:5003")


class Story:
    """The rows of one random story."""

    def __init__(self, chance: random.Random, messages: int) -> None:
        self.chance = chance
        self.rows: dict[str, list[Row]] = {}
        self.records = self.copies = 0
        self.ends = dict.fromkeys([(topic, queue) for topic in TOPICS for queue in QUEUES], 0)
        self.retry_ends: dict[str, int] = {}
        self.has = {name for name in FEATURES if chance.random() < 0.4}
        self.groups = {f"G{number}": self._group() for number in range(3)}
        number = 0
        while number < messages:
            number += self._batch(number) if "batches" in self.has and chance.random() < 0.1 else self._message(number)
        for group, about in self.groups.items():
            self._samples(group, about)
        self._samples_taken()
        self._clients_records()
        if chance.random() < 0.6:
            self._unread_ranges()

    def _group(self) -> dict[str, Any]:
        chance = self.chance
        return {
            "topics": chance.sample(TOPICS, chance.choice((1, 2))),
            "known": chance.choice((0, chance.randrange(LENGTH_MS))) if "late groups" in self.has else 0,
            "model": chance.choice(("CLUSTERING", "CLUSTERING", "BROADCASTING", "")),
            "model known": chance.choice((0, 0, chance.randrange(LENGTH_MS))),
            "type": chance.choice(("CONSUME_ACTIVELY", "")) if "lite pulls" in self.has else "CONSUME_PASSIVELY",
            "slow": chance.choice((20, 20, 20_000)),
            "status": chance.choice(("OK", "OK", "OFFLINE")),
            "traced": chance.random() < 0.8,
            "filters": "filters" in self.has and chance.random() < 0.6,
        }

    def add(self, relation: str, **row: Any) -> None:
        self.rows.setdefault(relation, []).append({"cluster": CLUSTER, **row})

    def trace(self, record_type: str, at_ms: int, host: str, **row: Any) -> None:
        self.add(
            "trace_events",
            broker_name=BROKER,
            trace_topic="RMQ_SYS_TRACE_TOPIC",
            queue_id=0,
            queue_offset=self.records,
            record_no=0,
            trace_store_ms=BASE_MS + at_ms + self.chance.choice((200, 2_000, 15_000)),
            trace_born_host=host,
            record_type=record_type,
            event_ms=BASE_MS + at_ms,
            **{"item_count": 1, "item_no": 0} | row,
        )
        self.records += 1

    def copy(self, at_ms: int, kind: str, topic: str, queue: int, offset: int, msg_id: str, **row: Any) -> str:
        place = f"0A00000900002A9F{self.copies:016X}"
        base: dict[str, Any] = {
            "own_unique_key": msg_id,
            "last_unique_key": msg_id,
            "tags": self.chance.choice(("A", "B")),
            "body_crc": 1,
        }
        base |= {"born_ms": BASE_MS + at_ms, "trace_on": self.chance.choice(("true", "true", "false", ""))}
        self.add(
            "message_meta",
            broker_name=BROKER,
            topic=topic,
            queue_id=queue,
            queue_offset=offset,
            physical_offset=1000 + 200 * self.copies,
            offset_msg_id=place,
            store_ms=BASE_MS + at_ms,
            read_ms=BASE_MS + at_ms,
            stored_kind=kind,
            body_size=10,
            reconsume_times=row.pop("times", 0),
            **base | row,
        )
        self.copies += 1
        return place

    def _placed(self, topic: str) -> tuple[int, int]:
        queue = self.chance.choice(QUEUES)
        offset = self.ends[topic, queue]
        self.ends[topic, queue] += 1
        return queue, offset

    # -- messages --------------------------------------------------------------------------------------------------

    def _message(self, number: int) -> int:
        chance, msg_id = self.chance, unique_id(number)
        at, topic, host = chance.randrange(LENGTH_MS), chance.choice(TOPICS), chance.choice(HOSTS)
        keys = chance.choice(("", f"k{number}", f"k{number} shared"))
        if (chance.random() < 0.7 and host != HOSTS[2]) or chance.random() < 0.05:
            pub = {"msg_id": msg_id, "group_name": "PG", "topic": topic, "cost_ms": 5, "success": True, "keys": keys}
            self.trace("Pub", at, host, **pub)
        for attempt in range(1, chance.choice((1, 1, 1, 3))):
            outcome = chance.choice(("OK", "TIMEOUT", "ERROR"))
            row: Row = {"msg_id": msg_id, "group_name": "PG", "topic": topic, "cost_ms": 10, "send_id": f"S{number}"}
            row |= {"attempt": attempt, "outcome": outcome, "is_final": chance.random() < 0.5}
            self.trace("PubAttempt", at + attempt * 20, host, **row)
        stored = at + 4
        if "transactions" in self.has and chance.random() < 0.3:
            return self._transaction(number, at, topic)
        if chance.random() < 0.9:
            if chance.random() < 0.15:
                due = at + chance.choice((30_000, 300_000))
                row = {"real_topic": topic, "delay_ms": due - at, "due_ms": BASE_MS + due, "born_host": host}
                self.copy(at, "DELAY_WAIT", "SCHEDULE_TOPIC_XXXX", 0, number, msg_id, keys=keys, **row)
                stored = due + chance.choice((0, 5_000))
            if stored < LENGTH_MS and chance.random() < 0.95:
                row = {"born_host": host, "keys": keys, "properties": chance.choice(PROPERTIES)}
                row |= {"sharding_key": "" if number % 3 else "a key"}
                self.copy(stored, "NORMAL", topic, *self._placed(topic), msg_id, **row)
                if "repeats" in self.has and chance.random() < 0.5:
                    self._repeat(number, stored, topic, msg_id, keys)
        for group, about in self.groups.items():
            if topic in about["topics"] and about["traced"] and chance.random() < 0.7:
                self._handled(group, about, msg_id, stored + chance.choice((20, 3_000, 60_000)), f"{number}")
        return 1

    def _transaction(self, number: int, at: int, topic: str) -> int:
        """Add a half message, perhaps checked and ended or given up; or a timer message that is recalled."""
        chance, msg_id, begun = self.chance, unique_id(number), at
        if chance.random() < 0.3:
            due = at + chance.choice((30_000, 300_000))
            row = {"real_topic": topic, "due_ms": BASE_MS + due}
            self.copy(at, "DELAY_WAIT", "rmq_sys_wheel_timer", 0, 2 * number, msg_id, **row)
            row |= {"due_ms": BASE_MS + due + chance.choice((0, 0, 1_000)), "tags": "_RECALL_TAG_"}
            self.copy(at + 9_000, "RECALL", "rmq_sys_wheel_timer", 0, 2 * number + 1, msg_id, **row)
            if chance.random() < 0.2:
                self.copy(due, "DELAYED", topic, *self._placed(topic), msg_id)
            return 1
        kind = chance.choice(("HALF_READ", "HALF_READ", "HALF"))
        for check in range(chance.choice((1, 1, 3))):
            place = self.copy(at, kind, "RMQ_SYS_TRANS_HALF_TOPIC", 0, 5 * number + check, msg_id, real_topic=topic)
            at += chance.choice((50, 30_000))
        if chance.random() < 0.4:
            asked = {"msg_id": msg_id, "group_name": "PG", "topic": topic}
            self.trace("EndTransaction", at, HOSTS[0], **asked, transaction_state="COMMIT_MESSAGE")
        end = chance.choice(("commit", "commit", "roll back", "give up", "nothing"))
        if end == "commit":
            self.copy(at, "COMMIT", topic, *self._placed(topic), msg_id)
        if end in ("commit", "roll back") and chance.random() < 0.9:
            row = {"real_topic": topic, "tags": "", "origin_msg_id": place}
            self.copy(at + 3_000, "OP", "RMQ_SYS_TRANS_OP_HALF_TOPIC", 0, number, msg_id, **row)
        if end == "give up":
            self.copy(at, "CHECK_MAX", "TRANS_CHECK_MAX_TIME_TOPIC", 0, number, msg_id, real_topic=topic)
        if chance.random() < 0.8:
            pub = {"msg_id": msg_id, "group_name": "PG", "topic": topic, "cost_ms": 5, "success": True, "msg_type": 1}
            self.trace("Pub", begun, HOSTS[0], **pub)
        return 1

    def _repeat(self, number: int, stored: int, topic: str, msg_id: str, keys: str) -> None:
        """Store it again under its id or another one, or put it back."""
        chance = self.chance
        for _ in range(chance.choice((1, 2, 3))):
            own = chance.choice((msg_id, unique_id(20_000 + number), unique_id(30_000 + number)))
            at = min(max(stored + chance.choice((-9_000, 1, 4_000, 11_000, 100_000)), 0), LENGTH_MS - 1)
            row: dict[str, Any] = {
                "born_host": chance.choice(HOSTS),
                "keys": keys,
                "tags": "A",
                "body_crc": chance.choice((1, 1, 2)),
            }
            if chance.random() < 0.3:
                offset_id = self.copy(at, "RESENT", topic, *self._placed(topic), msg_id, origin_msg_id="X", **row)
            else:
                offset_id = self.copy(at, "NORMAL", topic, *self._placed(topic), own, **row)
            if chance.random() < 0.4:
                pub = {"msg_id": own, "group_name": "PG", "topic": topic, "cost_ms": 5, "success": True}
                self.trace("Pub", at, HOSTS[0], **pub, offset_msg_id=offset_id, keys=keys)
            if chance.random() < 0.3:
                group = chance.choice(sorted(self.groups))
                place = self.retry_ends[group] = self.retry_ends.get(group, -1) + 1
                row = {"group_name": group, "retry_topic": topic, "times": 0}
                self.copy(at, "RETRY", f"%RETRY%{group}", 0, place, msg_id, **row)

    def _handled(self, group: str, about: dict[str, Any], msg_id: str, at: int, name: str) -> None:
        chance = self.chance
        host = f"10.0.1.{group[1:]}:600{chance.choice((1, 2))}"
        for times in range(chance.choice((1, 1, 1, 2, 4))):
            cost = chance.choice((0, 10, about["slow"]))
            good = chance.random() < 0.6
            ids = {"msg_id": msg_id, "group_name": group, "request_id": f"{group}/{name}/{times}"}
            if chance.random() < 0.95:
                self.trace("SubBefore", at, host, **ids, retry_times=times)
            if chance.random() < 0.85:
                ended = {"success": good, "cost_ms": cost, "context_code": 0 if good else 4}
                self.trace("SubAfter", at + cost, host, **ids, **ended)
            if chance.random() < 0.2:
                row = {"result": chance.choice(("SUCCESS", "FAILED")), "cost_ms": cost, "client_id": f"c{group}"}
                self.trace("SubResult", at + cost, host, **ids, retry_times=times, **row)
            if good:
                return
            at += cost + 1_000
            if chance.random() < 0.8:
                offset = self.retry_ends[group] = self.retry_ends.get(group, -1) + 1
                row = {"group_name": group, "retry_topic": "orders", "times": times + 1}
                dead = chance.random() < 0.15
                row |= {} if dead else {"due_ms": BASE_MS + at + 10_000}
                kind, topic = ("DLQ", f"%DLQ%{group}") if dead else ("RETRY", f"%RETRY%{group}")
                self.copy(at, kind, topic, 0, offset, msg_id, **row)
                if dead:
                    return
            at += chance.choice((1_000, 40_000))

    def _batch(self, number: int) -> int:
        chance, topic, batch_id, host = self.chance, self.chance.choice(TOPICS), unique_id(5_000 + number), HOSTS[0]
        at, count = chance.randrange(LENGTH_MS), 3
        queue, offset = self._placed(topic)
        self.ends[topic, queue] += count - 1
        all_late = chance.choice((0, 0, 100_000, 300_000))  # until then the batch's id looks like a message's
        for item in range(count):
            own, keys = unique_id(number + item), chance.choice((f"b{number + item}", f"b{number}"))
            pub = {"msg_id": own, "group_name": "PG", "topic": topic, "cost_ms": 5, "success": True, "item_no": item}
            self.trace("Pub", at, host, **pub, item_count=count)
            row = {"last_unique_key": batch_id, "born_host": host, "keys": keys}
            late = all_late + chance.choice((0, 0, 100_000))
            self.copy(at + 4 + late, "BATCH", topic, queue, offset + item, own, **row)
        for group, about in self.groups.items():
            if topic in about["topics"] and about["traced"]:
                for hand in range(chance.choice((1, 3))):
                    keys = chance.choice(("", f"b{number + hand}"))
                    ids = {"msg_id": batch_id, "group_name": group, "request_id": f"{group}/b{number}/{hand}"}
                    begun = at + chance.choice((20, 30_000))
                    self.trace("SubBefore", begun, "10.0.1.9:6001", **ids, retry_times=0, keys=keys)
                    if chance.random() < 0.8:
                        good = {"success": chance.random() < 0.8, "cost_ms": 10, "context_code": 0}
                        self.trace("SubAfter", begun + 10, "10.0.1.9:6001", **ids, **good, keys=keys)
                    if chance.random() < 0.3:
                        one: Row = {"result": "SUCCESS", "cost_ms": 10, "client_id": f"c{group}"}
                        one |= {"store_queue_id": queue} | {
                            "store_broker_name": BROKER,
                            "store_queue_offset": offset + hand,
                        }
                        self.trace("SubResult", begun + 10, "10.0.1.9:6001", **ids, retry_times=0, **one)
        return count

    # -- samples ---------------------------------------------------------------------------------------------------

    def _samples(self, group: str, about: dict[str, Any]) -> None:
        chance = self.chance
        places = [(topic, queue) for topic in about["topics"] for queue in QUEUES]
        offsets = dict.fromkeys(places, 0) | {(f"%RETRY%{group}", 0): 0}
        ends = self.ends | {(f"%RETRY%{group}", 0): self.retry_ends.get(group, -1) + 1}
        kind, expression = "TAG", chance.choice(("*", "A"))
        silent = range(chance.randrange(LENGTH_MS), LENGTH_MS) if "gaps in samples" in self.has else range(0)
        for at in range(0, LENGTH_MS, SAMPLE_EVERY_MS):
            if at < about["known"] or at in silent or ("gaps in samples" in self.has and chance.random() < 0.1):
                continue
            sampled = {"sampled_ms": BASE_MS + at, "group_name": group}
            for (topic, queue), offset in offsets.items():
                step = chance.choice((0, 0, 1, 2, 5))
                offsets[topic, queue] = min(ends[topic, queue], offset + step)
                if "resets" in self.has and chance.random() < 0.03:
                    offsets[topic, queue] = chance.randrange(offset + 1)
                if about["model"] != "BROADCASTING" and (offset or chance.random() < 0.5):
                    row = {"topic": topic, "broker_name": BROKER, "queue_id": queue, "consumer_offset": offset}
                    self.add("group_offsets", **sampled, **row)
                if "resets" in self.has and chance.random() < 0.1:
                    row = {"store_broker_name": BROKER, "store_queue_id": queue, "consumer_offset": offset}
                    commit = {"topic": topic, "group_name": group, "client_id": f"c{group}"}
                    self.trace("OffsetCommit", max(0, at - 3_000), "10.0.1.9:6001", **row, **commit)
            status = chance.choice(("OK", "OK", "OFFLINE", "ERROR")) if "errors" in self.has else about["status"]
            for number in range(2 if status == "OK" else 1):
                row = {"client_id": "", "client_host": ""}
                if status == "OK":
                    row = {"client_id": f"c{group}" + "x" * number, "client_host": f"10.0.1.{group[1:]}:600{number}"}
                    row |= {"ordered": _ordered(group, at)}
                self.add("clients", **sampled, status=status, **row)
            if about["filters"] and chance.random() < 0.1:
                kind, expression = chance.choice(EXPRESSIONS)
            if status == "OK" and chance.random() < 0.8:
                for topic in about["topics"]:
                    model = about["model"] if at >= about["model known"] else ""
                    row = {"topic": topic, "expression_type": kind, "message_model": model}
                    row |= {"expression": expression if about["filters"] else "*", "consume_type": about["type"]}
                    self.add("subscriptions", **sampled, **row)

    def _samples_taken(self) -> None:
        """Add samples of the groups on all brokers, with gaps in some stories."""
        chance = self.chance
        since = chance.choice((0, 0, chance.randrange(LENGTH_MS)))
        for broker in ("", BROKER):
            if chance.random() < 0.9:
                row = {"sampled_ms": BASE_MS + since, "broker_name": broker}
                self.add("samples", what="GROUPS", status="OK", **row)
                self.add("samples", what="GAP", status="FAILED", **row)
            for _ in range(chance.choice((0, 1, 2)) if "gaps in samples" in self.has else 0):
                at = chance.randrange(LENGTH_MS)
                ended = min(at + chance.choice((30_000, 200_000)), LENGTH_MS - 1)
                row = {"sampled_ms": BASE_MS + ended, "broker_name": broker, "seen_ms": BASE_MS + at}
                self.add("samples", what="GAP", status="FAILED", **row)
        for at in range(since, LENGTH_MS, SAMPLE_EVERY_MS):
            self.add("samples", what="SAMPLE", status="OK", sampled_ms=BASE_MS + at, keyframe_ms=0)

    def _clients_records(self) -> None:
        chance = self.chance
        for group in self.groups:
            client, dropped = f"c{group}", 0
            for sequence in range(1, 20):
                at = sequence * 40_000
                dropped += 2 if "losses" in self.has and chance.random() < 0.1 else 0
                if "losses" not in self.has or chance.random() < 0.85:
                    row = {"client_id": client, "start_id": "A", "sequence": sequence, "dropped_total": dropped}
                    self.trace("TraceBatch", at, f"10.0.1.{group[1:]}:6001", **row)
            if "losses" in self.has and chance.random() < 0.4:
                at = chance.randrange(LENGTH_MS)
                lost = {"from_ms": BASE_MS + at, "to_ms": BASE_MS + at + 50_000, "lost_count": 9}
                row = {"client_id": client, "start_id": "A", "reason": "SPOOL_FULL", **lost}
                self.trace("TraceLoss", at + chance.choice((-50_000, 50_000)), "10.0.1.9:6001", **row)
        for topic in (*TOPICS, "RMQ_SYS_TRANS_OP_HALF_TOPIC"):
            since = chance.choice((0, chance.randrange(LENGTH_MS)))
            for at in range(since, LENGTH_MS, 100_000):
                row = {"broker_name": BROKER, "topic": topic, "queue_id": 0, "min_offset": 0, "max_offset": 99}
                self.add("queue_ranges", sampled_ms=BASE_MS + at, **row, read_offset=99)
        if "losses" in self.has:
            at = chance.randrange(LENGTH_MS)
            row = {"broker_name": BROKER, "topic": "RMQ_SYS_TRACE_TOPIC", "queue_id": 0, "first_offset": 5}
            times = {"from_ms": BASE_MS + at, "to_ms": BASE_MS + at + 60_000, "detected_ms": BASE_MS + at + 90_000}
            self.add("gaps", **row, **times, end_offset=9, reason="EXPIRED")

    def _unread_ranges(self) -> None:
        """Add ranges of queues and retry topics that groups did not read, with any offsets and clients."""
        chance = self.chance
        for group in ("", *self.groups):
            for _ in range(chance.choice((0, 1, 3))):
                topic, queue = chance.choice((*self.ends, (f"%RETRY%{group}", 0)))
                first = chance.randrange(max(self.ends.get((topic, queue), 4), 1))
                end = chance.choice((None, first + 1, first + 5))
                of_any = ("TRUNCATED", "RECREATED", "TOPIC_DELETED")
                kind = chance.choice(("EXPIRED", "OFFSET_MOVED", *of_any) if group else of_any)
                row = {"kind": kind, "group_name": group, "topic": topic, "broker_name": BROKER, "queue_id": queue}
                row |= {"first_offset": first, "end_offset": end, "live_count": chance.choice((0, 0, 1, None))}
                self.add("unread_ranges", sampled_ms=BASE_MS + chance.randrange(LENGTH_MS), **row)


def _ordered(group: str, at_ms: int) -> str:
    """What the clients of a group say of their order: one group says nothing for a while, one changes it."""
    is_late = at_ms > LENGTH_MS * 2 // 3
    return {"G0": "true", "G1": "true" if is_late else "", "G2": "false" if is_late else "true"}[group]


def story(seed: int, messages: int = 80) -> tuple[dict[str, list[Row]], int, int, Settings]:
    """The rows of a story, its first and last instant, and the thresholds that it is judged with."""
    rows = Story(random.Random(seed), messages).rows
    return rows, BASE_MS, BASE_MS + LENGTH_MS + 60_000, SETTINGS


def small_stories(seed: int, count: int = 20, messages: int = 8) -> tuple[dict[str, list[Row]], int, Settings]:
    """The rows of stories in clusters of their own, the last instant of all, and their thresholds."""
    rows: dict[str, list[Row]] = {}
    for number in range(count):
        for name, some in Story(random.Random(f"{seed}/{number}"), messages).rows.items():
            rows.setdefault(name, []).extend({**row, "cluster": f"{CLUSTER}-{number}"} for row in some)
    return rows, BASE_MS + LENGTH_MS, SETTINGS
