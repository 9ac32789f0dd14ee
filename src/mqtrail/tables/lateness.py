"""Why rows differ: the table has not read a change of them yet, or they are missing, extra or different.

A row is late if a change of it before the source's snapshot is in the topic behind the table's offsets, or in the
binlog behind what the topic has.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from typing import Any, Final

from mqtrail.binlog import (
    FILE_START,
    BinlogError,
    BinlogPlace,
    BinlogState,
    ChangesSince,
    SourceAway,
    changes_since,
    order_text,
    place_of_text,
)
from mqtrail.clock import now_ms
from mqtrail.pipeline import bounds_of, connect, parse_options, ranges_between, read_ranges, security_options
from mqtrail.wire import MessageQueue, MQError

from .changes import MESSAGE_COLUMNS
from .differences import CompareConfig, FoundRow, RowFault
from .target import DeltaTarget

PENDING_MAX: Final = 1_000_000  # messages that the table has not read yet, and changes that the topic has not


@dataclass(frozen=True, slots=True, kw_only=True)
class _Newest:
    """The newest change in a queue. Its run sends to each queue in the binlog's order."""

    order: str
    position: str
    op: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sent:
    """What the topic has: all changes before start, and in its file those up to `order`; none after `newest`.

    problem: why that is not known.
    """

    start: BinlogPlace | None = None
    order: str = ""
    newest: str = ""
    problem: str = ""


@dataclass(slots=True)
class _ReadSoFar:
    """What was read of the topic. pending: the changes that the table has not read. queues: None: no change."""

    pending: ChangesSince = field(default_factory=ChangesSince)
    queues: dict[MessageQueue, _Newest | None] = field(default_factory=dict)


class LateRows:
    """Distinguishes rows whose changes the table has not read yet from others."""

    def __init__(
        self, config: CompareConfig, target: DeltaTarget, place: BinlogPlace, state: BinlogState | None
    ) -> None:
        self._config = config
        self._target = target
        self._place = place
        self._until = order_text(place, 0)
        self._state = state
        self.notes: list[str] = []
        self._oldest_ms = 0

    @property
    def lag_ms(self) -> int:
        """Age of the oldest change that is late; 0: none is."""
        return max(now_ms() - self._oldest_ms, 0) if self._oldest_ms else 0

    def sorts(self, found: Sequence[FoundRow]) -> dict[str, RowFault]:
        """Return how each row differs."""
        if not found:
            return {}
        read = self._read()
        pending = read.pending
        sent = self._sent(read.queues)
        unsent = self._unsent(sent)
        is_known = not pending.problem and not unsent.problem
        self.notes += [one for one in (pending.problem, unsent.problem) if one]
        sorts = {}
        on_the_way = 0
        for row in found:
            change = pending.keys.get(row.key)
            if change is None and not pending.statement:
                change = unsent.keys.get(row.key)
                newest = max(unsent.statement, change[0] if change else "")
                if newest and newest <= sent.newest:
                    on_the_way += 1
                if not newest or newest <= sent.newest:
                    sorts[row.key] = _sort_of(row) if is_known and not newest else RowFault.UNKNOWN
                    continue
            sorts[row.key] = RowFault.LATE
            if change is not None:
                self._oldest_ms = min(self._oldest_ms or change[1], change[1])
        if on_the_way:
            self.notes.append(
                f"changes of {on_the_way} rows may be lost or still on their way to the topic: pass --state, which "
                "says what was sent"
            )
        return sorts

    def _read(self) -> _ReadSoFar:
        """Read what the table has not read of the topic, and the newest message of each queue."""
        read = _ReadSoFar()
        made = read.pending
        config, target = self._config, self._target
        options = parse_options(
            {
                "nameServer": config.namesrv,
                "topic": target.topic,
                "failOnDataLoss": "false",
                "retryTimeoutMs": str(config.retry_timeout_ms),
                **security_options(config.instance),
            }
        )
        try:
            with closing(connect(options.name_server, None, options.credentials, options.tls)) as cluster:
                bounds = bounds_of(cluster, [target.topic], config.retry_timeout_ms, hold_unreachable=False)
                starts = {queue: max(target.offset(queue) or 0, first) for queue, (first, _) in bounds.items()}
                ends = {queue: end for queue, (_, end) in bounds.items()}
                if not bounds or sum(each.count for each in ranges_between(starts, ends)) > PENDING_MAX:
                    made.problem = (
                        f"more than {PENDING_MAX} messages of the topic {target.topic} are not read by the table"
                        if bounds
                        else f"the topic {target.topic} is not there"
                    )
                    return read
                read.queues = dict.fromkeys(bounds)
                firsts = {queue: min(starts[queue], max(first, end - 1)) for queue, (first, end) in bounds.items()}
                for batch in read_ranges(cluster, ranges_between(firsts, ends), MESSAGE_COLUMNS, options):
                    for message in batch.to_pylist():
                        queue = MessageQueue(target.topic, message["broker_name"], message["queue_id"])
                        self._note(message, queue, read, is_new=message["queue_offset"] >= starts.get(queue, 0))
        except MQError as error:
            made.problem = f"the topic cannot be read: {error}"
        return read

    def _note(self, message: Mapping[str, Any], queue: MessageQueue, read: _ReadSoFar, *, is_new: bool) -> None:
        made = read.pending
        if message["body"] is None and is_new:
            made.problem = f"a message of {queue.broker_name}/{queue.queue_id} that the table has not read has no body"
        with suppress(ValueError, TypeError, KeyError, AttributeError):
            body = json.loads(message["body"])
            place_of_text(body["position"])  # ValueError: it is of another program
            read.queues[queue] = _Newest(order=body["order"], position=body["position"], op=body["op"])
            if not is_new or body["order"] > self._until:
                return  # the table has read it, or it is after the source's snapshot
            if body["op"] == "schema":
                source = self._target.source
                if not {source, source.partition(".")[0]}.isdisjoint(body["schema"]["names"]):
                    made.statement = body["order"]
            else:
                made.note(message["keys"], body["order"], body["time_ms"])

    def _sent(self, queues: Mapping[MessageQueue, _Newest | None]) -> _Sent:
        """Return what was sent: by the state, else by the queue that is behind the others."""
        state, target = self._state, self._target
        if state is not None:
            if not state.is_snapshot_done and target.source not in state.tables:
                return _Sent(problem=f"the snapshot of {target.source} is not complete: `mqtrail binlog run` sends it")
            return _Sent(start=place_of_text(state.place))
        newest = [one for one in queues.values() if one is not None]
        remedy = "it is not known what was sent: pass --state"
        if not newest or len(newest) < len(queues):
            without = len(queues) - len(newest)
            return _Sent(
                problem=f"{without} of {len(queues)} queues of {target.topic} end without a change, so {remedy}"
            )
        if all(one.op == "snapshot" for one in newest):
            return _Sent(problem=f"the topic {target.topic} ends with rows of the snapshot, so {remedy}")
        behind = min(newest, key=lambda one: one.order)
        place = place_of_text(behind.position)
        if behind.op != "snapshot":  # it is within a transaction, which begins in the same file
            place = BinlogPlace(place.file, FILE_START)
        return _Sent(start=place, order=behind.order, newest=max(one.order for one in newest))

    def _unsent(self, sent: _Sent) -> ChangesSince:
        """Return the changes in the binlog after those that are known to be in the topic."""
        if sent.start is None:
            return ChangesSince(problem=sent.problem)
        try:
            return changes_since(
                self._config.source, self._target.source, sent.start, self._place, PENDING_MAX, sent.order
            )
        except (BinlogError, SourceAway) as error:
            return ChangesSince(problem=f"what the topic does not have yet cannot be read: {error}")


def _sort_of(row: FoundRow) -> RowFault:
    """Return how a row differs that is not late."""
    if row.in_source and row.in_table:
        return RowFault.DIFFERENT
    return RowFault.MISSING if row.in_source else RowFault.EXTRA
