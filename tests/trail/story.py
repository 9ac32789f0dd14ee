"""Builder of a small history: each method adds one row of evidence, by default with the values of a plain success.

Times are seconds after BASE_MS. Each history is a separate cluster, so that one run can judge many.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

BASE_MS = 1_700_000_000_000
AS_OF = 600.0
AS_OF_MS = BASE_MS + int(AS_OF * 1000)
MONTH_START_MS = 1_698_796_800_000  # 2023-11-01, the month of BASE_MS

TOPIC = "orders"
GROUP = "CG"
PRODUCER = "10.0.0.1:5001"
CONSUMER = "10.0.0.2:6001"
CLIENT = "10.0.0.2@77#1"
BROKER = "broker-a"

Row = dict[str, Any]


def at(seconds: float) -> int:
    """Milliseconds since the epoch of a time in a history."""
    return BASE_MS + round(seconds * 1000)


def unique_id(number: int) -> str:
    """An id of 32 characters made at BASE_MS, as a Java client makes them."""
    return f"0A000001004D18B4AAC2{BASE_MS - MONTH_START_MS:08X}{number:04X}"


def offset_id(number: int) -> str:
    """The offset id of copy `number` of a history."""
    return f"0A00000900002A9F{number:016X}"


@dataclass(frozen=True)
class Expected:
    """The expected codes of one message, comma-joined in their order, and names of reasons that must be there."""

    send: str
    message: str
    knowledge: str
    reasons: tuple[str, ...]
    group_reasons: tuple[str, ...]
    groups: dict[str, str]


@dataclass
class History:
    """Rows by relation, and what is expected of each message."""

    name: str
    rows: dict[str, list[Row]] = field(default_factory=dict)
    expected: dict[str, Expected] = field(default_factory=dict)
    records: int = 0

    def __post_init__(self) -> None:
        """All groups are sampled from before the history to its end; `unsampled` takes that back."""
        for broker in ("", BROKER):
            self.sampled("samples", -65, what="GROUPS", broker_name=broker, status="OK")
            self.sampled("samples", -65, what="GAP", broker_name=broker, status="FAILED")
        self.sampled("samples", AS_OF - 1, what="SAMPLE", status="OK", keyframe_ms=0)

    def expect(
        self,
        send: str = "SEND_OK",
        message: str = "",
        knowledge: str = "COMPLETE",
        reasons: tuple[str, ...] = (),
        msg: int = 1,
        group_reasons: tuple[str, ...] = (),
        of: Mapping[str, str] | None = None,
        **groups: str,
    ) -> Self:
        """Label message number `msg`. A reason that begins with '!' must not be there. of: groups with other names than
        Python's."""
        codes = {**groups, **(of or {})}
        self.expected[unique_id(msg)] = Expected(send, message, knowledge, reasons, group_reasons, codes)
        return self

    # --- trace records

    def trace(self, record_type: str, time: float, **values: Any) -> Self:
        """One record, alone in its trace message, by default stored 0.2 s after its time."""
        stored = values.pop("stored", time + 0.2)
        row = {
            "cluster": self.name,
            "broker_name": BROKER,
            "trace_topic": "RMQ_SYS_TRACE_TOPIC",
            "queue_id": 0,
            "queue_offset": self.records,
            "record_no": 0,
            "item_no": 0,
            "item_count": 1,
            "trace_born_ms": at(stored) - 1,
            "trace_store_ms": at(stored),
            "trace_born_host": CONSUMER if record_type.startswith("Sub") else PRODUCER,
            "record_type": record_type,
            "event_ms": at(time),
            "region_id": "DefaultRegion",
        }
        self.records += 1
        self.rows.setdefault("trace_events", []).append({**row, **values})
        return self

    def pub(self, time: float = 0.0, cost: float = 0.005, msg: int = 1, **values: Any) -> Self:
        """An acknowledged send."""
        row = {"msg_id": unique_id(msg), "group_name": "PG", "topic": TOPIC, "cost_ms": round(cost * 1000)}
        row |= {"success": True, "store_host": "10.0.0.9:10911", "body_size": 10, "msg_type": 0}
        return self.trace("Pub", time, **(row | values))

    def tried(
        self, time: float, attempt: int, outcome: str, final: bool = False, cost: float = 0.01, **values: Any
    ) -> Self:
        """One attempt of a send, as our client records it."""
        row = {"msg_id": unique_id(1), "group_name": "PG", "topic": TOPIC, "cost_ms": round(cost * 1000)}
        row |= {"send_id": "S1", "attempt": attempt, "attempt_max": 3, "outcome": outcome, "is_final": final}
        row |= {"client_id": "10.0.0.1@5#1", "store_host": "10.0.0.9:10911"}
        return self.trace("PubAttempt", time, **(row | values))

    def before(
        self, time: float = 0.02, request: str = "R1", times: int = 0, group: str = GROUP, msg: int = 1, **values: Any
    ) -> Self:
        """Handed to a handler."""
        row = {"msg_id": unique_id(msg), "group_name": group, "request_id": request, "retry_times": times}
        return self.trace("SubBefore", time, **(row | values))

    def after(
        self,
        time: float = 0.03,
        request: str = "R1",
        success: bool = True,
        cost: float = 0.01,
        group: str = GROUP,
        msg: int = 1,
        code: int | None = None,
        **values: Any,
    ) -> Self:
        """The handler ended."""
        row = {"msg_id": unique_id(msg), "group_name": group, "request_id": request, "success": success}
        row |= {"cost_ms": round(cost * 1000), "context_code": (0 if success else 4) if code is None else code}
        return self.trace("SubAfter", time, **(row | values))

    def handled(
        self,
        time: float = 0.02,
        cost: float = 0.01,
        success: bool = True,
        request: str = "R1",
        times: int = 0,
        group: str = GROUP,
        msg: int = 1,
        **values: Any,
    ) -> Self:
        """Handed over and ended."""
        self.before(time, request, times, group, msg, **values)
        return self.after(time + cost, request, success, cost, group, msg, **values)

    def handled_at_once(self, count: int, *keys: str, request: str = "R1", msg: int = 99) -> Self:
        """Messages with one id, handed over in one call: their records are in one trace message, in order."""
        for kind in (self.before, self.after):
            first = self.records
            for number in range(count):
                kind(request=request, msg=msg, keys=keys[number] if keys else "", queue_offset=first, record_no=number)
        return self

    def result(
        self,
        time: float,
        result: str,
        request: str = "R1",
        times: int = 0,
        cost: float = 0.01,
        msg: int = 1,
        offset: int = 7,
    ) -> Self:
        """The result of one message, as our client records it."""
        row: dict[str, Any] = {"msg_id": unique_id(msg), "group_name": GROUP, "topic": TOPIC, "request_id": request}
        row |= {"retry_times": times, "result": result, "cost_ms": round(cost * 1000), "client_id": CLIENT}
        row |= {"store_broker_name": BROKER, "store_queue_id": 0, "store_queue_offset": offset}
        return self.trace("SubResult", time, **row, detail="" if result == "SUCCESS" else "ValueError: no")

    def numbered(self, time: float, sequence: int, client: str = CLIENT, dropped: int = 0) -> Self:
        """The head of a trace message of our client."""
        row = {"client_id": client, "start_id": "A", "sequence": sequence, "dropped_total": dropped}
        host = CONSUMER if client == CLIENT else PRODUCER
        return self.trace("TraceBatch", time, **row, trace_client_id=client, trace_born_host=host)

    def ended_well(self, time: float, client: str, group: str = GROUP) -> Self:
        """The last record of our consumer."""
        row = {"client_id": client, "start_id": "A", "group_name": group}
        return self.trace("TraceEnd", time, **row, trace_client_id=client)

    def loss(self, first: float, last: float, reason: str = "SPOOL_FULL") -> Self:
        """Records that the consumer's client could not keep."""
        row = {"client_id": CLIENT, "start_id": "A", "from_ms": at(first), "to_ms": at(last), "lost_count": 9}
        return self.trace("TraceLoss", 5, **row, reason=reason)

    # --- stored copies

    def stored(
        self,
        time: float = 0.004,
        kind: str = "NORMAL",
        topic: str = TOPIC,
        offset: int = 7,
        msg: int = 1,
        **values: Any,
    ) -> Self:
        """A copy, as read from its queue."""
        copies = self.rows.setdefault("message_meta", [])
        row = {
            "cluster": self.name,
            "broker_name": BROKER,
            "topic": topic,
            "queue_id": 0,
            "queue_offset": offset,
            "physical_offset": 1000 + 200 * len(copies),
            "offset_msg_id": offset_id(len(copies)),
            "own_unique_key": unique_id(msg),
            "last_unique_key": unique_id(msg),
            "tags": "TagA",
            "born_ms": at(0),
            "born_host": PRODUCER,
            "store_ms": at(time),
            "store_size": 200,
            "body_size": 10,
            "body_crc": 1,
            "sys_flag": 0,
            "reconsume_times": 0,
            "stored_kind": kind,
            "read_ms": at(AS_OF - 1),
            "trace_on": "true",
        }
        copies.append({**row, **values})
        return self

    def delay_wait(self, due: float, level: int) -> Self:
        """A copy that waits for its time in the schedule topic."""
        row: dict[str, Any] = {
            "real_topic": TOPIC,
            "delay_level": level,
            "delay_ms": round(due * 1000),
            "due_ms": at(due),
        }
        return self.stored(0, "DELAY_WAIT", "SCHEDULE_TOPIC_XXXX", **row)

    def retry_copy(
        self, time: float, times: int, waits: bool = False, due: float | None = None, msg: int = 1, **values: Any
    ) -> Self:
        """A copy in %RETRY%CG, or on its way there."""
        row = {"group_name": GROUP, "retry_topic": TOPIC, "reconsume_times": times, "delay_level": 2 + times}
        row |= {"due_ms": at(due) if due is not None else None}
        if waits:
            row |= {"real_topic": f"%RETRY%{GROUP}"}
        topic = "SCHEDULE_TOPIC_XXXX" if waits else f"%RETRY%{GROUP}"
        return self.stored(time, "RETRY_WAIT" if waits else "RETRY", topic, times, msg, **(row | values))

    def put_back(self, time: float, offset: int) -> Self:
        """A dead letter that an operator sent to the group's retry topic."""
        row: dict[str, Any] = {"group_name": GROUP, "retry_topic": TOPIC, "origin_msg_id": offset_id(0)}
        return self.stored(time, "RETRY", f"%RETRY%{GROUP}", offset, born_ms=at(time), **row)

    def dead_copy(self, time: float, times: int, delay_level: int = 0) -> Self:
        """A copy in %DLQ%CG."""
        row: dict[str, Any] = {"group_name": GROUP, "retry_topic": TOPIC, "reconsume_times": times}
        row |= {"delay_level": delay_level}
        return self.stored(time, "DLQ", f"%DLQ%{GROUP}", 0, **row)

    def half(self, time: float = 0.003, offset: int = 0, kind: str = "HALF_READ", **values: Any) -> Self:
        """A half message; its offset id is that of its queue offset."""
        row: dict[str, Any] = {
            "real_topic": TOPIC,
            "offset_msg_id": offset_id(9_000 + offset),
            "physical_offset": 90_000 + offset,
        }
        return self.stored(time, kind, "RMQ_SYS_TRANS_HALF_TOPIC", offset, **(row | values))

    def ended(self, time: float, offset: int = 0, **values: Any) -> Self:
        """An op record: the half message at an offset was committed or rolled back."""
        row: dict[str, Any] = {"real_topic": TOPIC, "tags": "", "origin_msg_id": offset_id(9_000 + offset)}
        return self.stored(time, "OP", "RMQ_SYS_TRANS_OP_HALF_TOPIC", offset, **(row | values))

    def given_up(self, time: float) -> Self:
        """A half message that is no longer checked."""
        return self.stored(time, "CHECK_MAX", "TRANS_CHECK_MAX_TIME_TOPIC", real_topic=TOPIC, physical_offset=95_000)

    def asked(self, time: float, state: str) -> Self:
        """A producer's request to end its transaction."""
        row: dict[str, Any] = {"msg_id": unique_id(1), "group_name": "PG", "topic": TOPIC}
        return self.trace("EndTransaction", time, **row, transaction_state=state)

    def timer_wait(self, due: float) -> Self:
        """A copy that waits for its time in the timer topic."""
        row: dict[str, Any] = {"real_topic": TOPIC, "due_ms": at(due)}
        return self.stored(0, "DELAY_WAIT", "rmq_sys_wheel_timer", **row)

    def recall(self, time: float, due: float) -> Self:
        """The record of the timer that removes the message due at that time."""
        row: dict[str, Any] = {"real_topic": TOPIC, "due_ms": at(due), "tags": "_RECALL_TAG_"}
        return self.stored(time, "RECALL", "rmq_sys_wheel_timer", 8, **row, born_host="10.0.0.7:1")

    # --- samples

    def sampled(self, relation: str, time: float, **values: Any) -> Self:
        """One row of a sampled relation."""
        self.rows.setdefault(relation, []).append({"cluster": self.name, "sampled_ms": at(time), **values})
        return self

    def offset(self, offset: int, time: float = AS_OF - 1, group: str = GROUP, topic: str = TOPIC) -> Self:
        """A committed offset."""
        row = {"group_name": group, "topic": topic, "broker_name": BROKER, "queue_id": 0, "consumer_offset": offset}
        return self.sampled("group_offsets", time, **row)

    def group(
        self,
        *clients: str,
        offset: int | None = 8,
        group: str = GROUP,
        known: float = -60,
        time: float = AS_OF - 1,
        model: str = "CLUSTERING",
        expression: str = "*",
        expression_type: str = "TAG",
        consume_type: str = "CONSUME_PASSIVELY",
    ) -> Self:
        """A group known since `known`, its clients, and its offset since shortly after the message was stored."""
        row = {"group_name": group, "topic": TOPIC, "expression_type": expression_type, "expression": expression}
        for sample in (known, time):
            self.sampled("subscriptions", sample, **row, consume_type=consume_type, message_model=model)
        self.rows["clients"] = [r for r in self.rows.get("clients", []) if r["group_name"] != group]
        for client in clients:
            row = {"group_name": group, "status": "OK", "client_id": client, "client_host": CONSUMER}
            self.sampled("clients", time, **row, language="JAVA", version=479, ordered="false")
        if not clients:
            self.sampled("clients", time, group_name=group, status="OFFLINE")
        if offset is not None:
            self.offset(min(offset, 7), known, group)
            self.offset(offset, 60, group)
            self.offset(offset, time, group)
        return self

    def vanished(
        self, last: float, gone: float, client: str = "10.0.0.3@9#5", host: str = "10.0.0.3:7001", group: str = GROUP
    ) -> Self:
        """Another client of the group was in the sample `last`, and not in the next one. Call it after `group`."""
        of_group = [row for row in self.rows["clients"] if row["group_name"] == group]
        of_group = [row for row in of_group if row["sampled_ms"] == max(each["sampled_ms"] for each in of_group)]
        row = {"group_name": group, "status": "OK", "client_id": client, "client_host": host, "ordered": "false"}
        self.sampled("clients", last, **row, language="JAVA", version=479)
        self.rows["clients"] += [each | {"sampled_ms": at(gone)} for each in of_group]
        return self

    def says(self, ordered: str, group: str = GROUP) -> Self:
        """The clients of the group say whether they consume in order."""
        for row in self.rows["clients"]:
            row["ordered"] = ordered if row["group_name"] == group else row.get("ordered", "")
        return self

    def unsampled(self, first: float | None = None, last: float = AS_OF - 1, broker: str | None = None) -> Self:
        """No sample of a broker's groups between two times, by default of all brokers and none before `last`."""
        seen = None if first is None else at(first)
        for name in ("", BROKER) if broker is None else (broker,):
            self.sampled("samples", last, what="GAP", broker_name=name, status="FAILED", seen_ms=seen)
        return self

    def trace_not_read(
        self, since: float | None, time: float = AS_OF - 1, status: str = "FAILED", broker: str = BROKER
    ) -> Self:
        """The trace of a broker was read up to a sample, and not further at a later time. GONE: nor is it there."""
        seen = None if since is None else at(since)
        return self.sampled("samples", time, what="TRACE", broker_name=broker, status=status, seen_ms=seen)

    def never_sampled(self) -> Self:
        """No sample at all."""
        for relation in ("samples", "group_offsets", "subscriptions", "clients"):
            self.rows.pop(relation, None)
        return self

    def scanned(self, topic: str = TOPIC, time: float = AS_OF - 1) -> Self:
        """The pipeline reads the topic."""
        row = {"broker_name": BROKER, "topic": topic, "queue_id": 0, "min_offset": 0}
        return self.sampled("queue_ranges", time, **row, max_offset=100, read_offset=100)

    def scanned_ends(self, time: float = AS_OF - 1) -> Self:
        """The pipeline reads the topic and the op records of transactions."""
        return self.scanned(time=time).scanned("RMQ_SYS_TRANS_OP_HALF_TOPIC", time)

    def unread(
        self,
        kind: str,
        first: int,
        end: int | None,
        time: float = 60,
        live: int | None = 0,
        group: str = GROUP,
        topic: str = TOPIC,
    ) -> Self:
        """A range that a group had not read when it was removed, or when the group's offset passed it."""
        row = {"kind": kind, "group_name": group, "topic": topic, "broker_name": BROKER, "queue_id": 0}
        row |= {"first_offset": first, "end_offset": end, "live_count": live}
        return self.sampled("unread_ranges", time, **row)

    def left_out(self, until: float, topic: str = "RMQ_SYS_TRACE_TOPIC") -> Self:
        """What a broker had removed of a queue before its first read: it was stored before `until`."""
        self.gap(0, until, topic)
        self.rows["gaps"][-1] |= {"first_offset": 0, "end_offset": 5, "from_ms": None, "reason": "NOT_READ"}
        return self

    def gap(self, first: float, last: float, topic: str = "RMQ_SYS_TRACE_TOPIC") -> Self:
        """A range of a topic that was gone before it could be read."""
        row = {"broker_name": BROKER, "topic": topic, "queue_id": 0, "first_offset": 5, "end_offset": 9}
        row |= {"cluster": self.name, "from_ms": at(first), "to_ms": at(last), "detected_ms": at(20)}
        self.rows.setdefault("gaps", []).append(row | {"reason": "EXPIRED"})
        return self
