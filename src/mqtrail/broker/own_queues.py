"""Reads the broker's own queues: waiting messages, half messages, op records, check points and acknowledgements.

Only the broker reads them, one record after another. A damaged record must not stop those behind it: it is passed,
counted, and reported once. Damage of a queue's files is not passed, since they can be built again without a loss: it is
reported once, and the reader tries again.
"""

from collections import Counter, OrderedDict
from collections.abc import Callable
from typing import Final, NamedTuple

from mqtrail.store import DamagedRecord, MessageStore, StoreAway, StoreError
from mqtrail.wire import Buffer, RecordError, RecordHead, check_record

EARLY_MAX: Final = 100  # reports kept until somebody asks for them; later ones are only counted
KNOWN_MAX: Final = 1_000  # reports remembered, to make none twice


class OwnRecords(NamedTuple):
    """Whole records with their heads, and the queue offset of the next read."""

    records: list[tuple[Buffer, RecordHead]]
    next_queue_offset: int


class OwnQueues:
    """One broker's reader. passed: topic -> damaged records passed since the start."""

    def __init__(self, store: MessageStore) -> None:
        self._store = store
        self._report: Callable[[str], None] | None = None
        self._early: list[str] = []
        self._known: OrderedDict[str, None] = OrderedDict()
        self.passed: Counter[str] = Counter()

    def report_to(self, report: Callable[[str], None]) -> None:
        """Call report with each finding, also with those made before."""
        self._report = report
        early, self._early = self._early, []
        for found in early:
            report(found)

    def read(
        self,
        topic: str,
        queue_id: int,
        queue_offset: int,
        count_max: int,
        size_max: int,
        tags_codes: frozenset[int] | None = None,
    ) -> OwnRecords:
        """Return records as the store's read does, without damaged ones. StoreError: the queue's files are damaged."""
        try:
            found = self._store.read(topic, queue_id, queue_offset, count_max, size_max, tags_codes)
        except DamagedRecord as error:
            self.pass_by(topic, str(error))
            return OwnRecords([], max(queue_offset, error.queue_offset) + 1)
        except StoreAway:
            raise
        except StoreError as error:
            self.note(f"{topic}/{queue_id} is not read on: {error}")
            raise
        next_offset = found.next_queue_offset
        has_gaps = len(found.records) < next_offset - queue_offset
        records = []
        for number, record in enumerate(found.records):
            try:
                head = check_record(record)
                if (head.topic, head.queue_id) != (topic, queue_id) or not (
                    self._is_named(head, queue_offset, next_offset)
                    if has_gaps
                    else head.queue_offset == queue_offset + number
                ):
                    raise RecordError(f"found queue offset {head.queue_offset} of {head.topic}/{head.queue_id}")
            except RecordError as error:
                where = f"between queue offsets {queue_offset} and {next_offset} of {topic}/{queue_id}"
                self.pass_by(
                    topic, f"found damage in record {number} {where} ({error}), expected a record of this queue"
                )
            else:
                records.append((record, head))
        return OwnRecords(records, next_offset)

    def _is_named(self, head: RecordHead, first: int, end: int) -> bool:
        """Return whether a record is where its queue names it, in [first, end)."""
        if not first <= head.queue_offset < end:
            return False
        entries = self._store.entries(head.topic, head.queue_id, head.queue_offset, 1)
        return bool(entries) and entries[0][0] == head.physical_offset

    def pass_by(self, topic: str, found: str) -> None:
        """Count and report a damaged record of one of the broker's own topics."""
        if self.note(f"{found}: the record is passed"):
            self.passed[topic] += 1

    def note(self, found: str) -> bool:
        """Report a finding, and return whether it is new."""
        if found in self._known:
            return False
        self._known[found] = None
        if len(self._known) > KNOWN_MAX:
            self._known.popitem(last=False)
        if self._report is not None:
            self._report(found)
        elif len(self._early) < EARLY_MAX:
            self._early.append(found)
        return True
