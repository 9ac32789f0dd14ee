"""All ConsumeQueues of a store, by topic and id; those of deleted topics stay until their files are removed.

A deleted topic's queues are forgotten at once. Their files are removed later, in slices, or when a new queue takes the
place of one. Until then `deleted` has the physical offset below which the topic's records belong to no queue.
"""

from __future__ import annotations

from collections.abc import Iterator

from ..disk import UNCLEAN_FILE, Disk
from ..errors import StoreError
from .checkpoint import QUEUES_A_SLICE, QUEUES_WRITTEN_A_SLICE
from .deleted import DeletedTopics
from .foreign import refuse_bad_name
from .log import CommitLog
from .notes import NOTES_FILE, Noted, QueueKey
from .queue import ConsumeQueue
from .recovery import is_right

QUEUE_BUFFER_SIZE = 16 * 1024  # bytes of one queue's entries kept in memory by recovery


class ConsumeQueues:
    """by_key, by_topic: the queues that exist. deleted: the deleted topics."""

    def __init__(self, disk: Disk, log: CommitLog, file_size: int) -> None:
        self._disk = disk
        self._log = log
        self._file_size = file_size
        self.by_key: dict[QueueKey, ConsumeQueue] = {}
        self.by_topic: dict[str, dict[int, ConsumeQueue]] = {}
        self._leaving: dict[str, dict[int, ConsumeQueue]] = {}  # of deleted topics: their files are to be removed
        self.deleted = DeletedTopics(disk, log.sync_too)

    # -- start -----------------------------------------------------------------------------------------------------

    def deleted_since_noted(self) -> list[str]:
        """Return the topics that were, or may have been, deleted after the last checkpoint."""
        mark = self._log.mark
        noted_end = 0 if mark is None else mark.dispatched_offset
        return [topic for topic, end in self.deleted.ends.items() if end >= noted_end]

    def load(self, noted: Noted, unclean: bool) -> list[str]:
        """Open every queue; return reports of damaged ones, which are empty now."""
        lost = [f"{noted.damage}: all queues are built again from the CommitLog"] if noted.damage else []
        for topic in self._disk.list("consumequeue"):
            for queue_id in self._disk.list(f"consumequeue/{topic}"):
                if not queue_id.isdigit():
                    raise StoreError(f"found consumequeue/{topic}/{queue_id}, expected only folders named by queue ids")
                try:
                    queue = self.open(topic, int(queue_id))
                except StoreError as error:
                    if self._log.is_foreign:
                        raise  # Apache's, probably with other settings than ours
                    self._clear(topic, int(queue_id), f"{error}", lost)
                    continue
                if self._is_deleted(queue):
                    self._leave(topic, int(queue_id))
                    continue
                if not unclean and queue.next_offset > queue.first_offset and not self._ends_right(queue):
                    self._clear(topic, int(queue_id), "found a last entry that names another record", lost)
        if self._log.segments.starts:
            for (topic, number), expected in noted.ends.items():
                if any(text.startswith(f"consumequeue/{topic}/{number}:") for text in lost):
                    continue
                known = self.by_key.get((topic, number))
                found, first = (0, 0) if known is None else (known.next_offset, known.file_first)
                expected_first = noted.firsts.get((topic, number), first)
                if found < expected:
                    why = f"found entries up to queue offset {found}, expected {expected}"
                    self._clear(topic, number, why, lost)
                elif first > expected_first and self._log.first_offset == noted.log_first:
                    why = f"found entries from queue offset {first} on, expected {expected_first}"
                    self._clear(topic, number, why, lost)
        return lost

    def _is_deleted(self, queue: ConsumeQueue) -> bool:
        """Return whether a queue found at the start belongs to a deleted topic, and not to a new one with the same
        name, by its first entry. A new topic's first entry is durable, or this start adds it again from the log.
        """
        end = self.deleted.ends.get(queue.topic, 0)
        return queue.next_offset > queue.first_offset and queue.entry(queue.first_offset)[0] < end

    def _ends_right(self, queue: ConsumeQueue) -> bool:
        # Entries of records that are gone are blank.
        return queue.is_blank(queue.next_offset - 1) or is_right(queue, queue.next_offset - 1, self._log)

    def _clear(self, topic: str, queue_id: int, why: str, lost: list[str]) -> None:
        """Remove a damaged queue's files; it is rebuilt from the log."""
        self._disk.replace(UNCLEAN_FILE, b"")  # if this start does not complete it, a later one must
        if (queue := self.by_key.pop((topic, queue_id), None)) is not None:
            queue.close()
        self._disk.remove(f"consumequeue/{topic}/{queue_id}")
        self.open(topic, queue_id)
        lost.append(f"consumequeue/{topic}/{queue_id}: {why}: built again from the CommitLog")

    def restore_ends(self, noted: Noted) -> None:
        """Let rebuilt queues continue at their noted ends, even if their last records have expired."""
        for key, expected in noted.ends.items():
            queue = self.by_key.get(key)
            if queue is not None and queue.next_offset < expected:
                queue.go_on_from(expected)

    def put_entry(self, topic: str, queue_id: int, queue_offset: int, physical: int, size: int, tags_code: int) -> None:
        """Add a queue entry for a record that is in the log. Recovery calls it."""
        queue = self.by_key.get((topic, queue_id)) or self.open(topic, queue_id)
        queue.put(queue_offset, physical, size, tags_code)
        if queue.buffered_size > QUEUE_BUFFER_SIZE:
            queue.write()

    # -- one queue -------------------------------------------------------------------------------------------------

    def open(self, topic: str, queue_id: int) -> ConsumeQueue:
        """Open a queue, or make it."""
        refuse_bad_name(topic)
        if topic in self._leaving and queue_id in self._leaving[topic]:
            self._remove_files(topic, queue_id)
        if not self.deleted.is_settled and self.deleted.is_waiting(topic):
            self.note_deleted()
        queue = ConsumeQueue(self._disk, "consumequeue", topic, queue_id, self._file_size)
        self.by_key[topic, queue_id] = queue
        self.by_topic.setdefault(topic, {})[queue_id] = queue
        return queue

    def entries(self, topic: str, queue_id: int, queue_offset: int, count_max: int) -> list[tuple[int, int, int]]:
        """Return a queue's entries from queue_offset on; see the contract."""
        queue = self.by_key.get((topic, queue_id))
        if queue is None or not queue.first_offset <= queue_offset < queue.next_offset:
            return []
        end = min(queue.next_offset, queue_offset + count_max)
        return [queue.entry(at) for at in range(queue_offset, end)]

    # -- all queues ------------------------------------------------------------------------------------------------

    def write_in_slices(self) -> Iterator[None]:
        """Write buffered entries; yield now and then. StoreFull, OSError: a later call does the rest."""
        written = 0
        for number, queue in enumerate(list(self.by_key.values()), 1):
            if queue.buffered_size and self.by_key.get((queue.topic, queue.queue_id)) is queue:  # not deleted meanwhile
                queue.write()
                written += 1
                if written % QUEUES_WRITTEN_A_SLICE == 0:
                    yield
            if number % QUEUES_A_SLICE == 0:
                yield

    def clean(self) -> Iterator[None]:
        """Forget queue entries whose records expired, and files that hold nothing else; yield now and then."""
        for number, queue in enumerate(list(self.by_key.values()), 1):
            if self.by_key.get((queue.topic, queue.queue_id)) is queue:  # not deleted meanwhile
                queue.correct_first(self._log.first_offset)
            if number % QUEUES_A_SLICE == 0:
                yield

    def close(self) -> None:
        """Close the files."""
        for queue in (*self.by_key.values(), *(queue for left in self._leaving.values() for queue in left.values())):
            queue.close()
        self.deleted.close()

    # -- deleted topics --------------------------------------------------------------------------------------------

    def delete_topic(self, topic: str, end_offset: int | None = None) -> None:
        """Remove the topic's queues. Records stay in the log until they expire; see the contract.

        end_offset: below it records are void; None: the log's end.
        """
        if topic in self.by_topic:
            self.deleted.add(topic, self._log.end_offset if end_offset is None else end_offset)
            queues = self.by_topic.pop(topic)
            for queue_id in queues:
                del self.by_key[topic, queue_id]
            self._leaving.setdefault(topic, {}).update(queues)  # their files are removed later, in slices

    def _leave(self, topic: str, queue_id: int) -> None:
        """Forget a queue. Its files are removed later, in slices, or when a new queue takes its place."""
        queue = self.by_key.pop((topic, queue_id))
        queues = self.by_topic[topic]
        del queues[queue_id]
        if not queues:
            del self.by_topic[topic]
        self._leaving.setdefault(topic, {})[queue_id] = queue

    def is_spent(self, queue: ConsumeQueue) -> bool:
        """Whether the log has none of a queue's records any more."""
        return queue.newest_physical_offset < self._log.first_offset

    def begin_again(self, queue: ConsumeQueue) -> None:
        """Let a spent queue begin anew, at any queue offset: Apache's broker removes one whose records all expired.

        The notes of the last checkpoint have its old end, so a start would take the new one for damaged.
        """
        self._disk.remove(NOTES_FILE)
        self._leave(queue.topic, queue.queue_id)

    def note_deleted(self) -> None:
        """Write deletions that could not be written before. StoreFull, OSError: they still cannot be written."""
        if self.deleted.is_settled:
            return
        if self.deleted.is_full:
            self._log.sync_mark()  # it frees slots
        mark = self._log.mark
        self.deleted.settle(self._log.first_offset, 0 if mark is None else mark.dispatched_offset)

    def remove_left(self) -> Iterator[None]:
        """Remove the files of deleted topics' queues; yield now and then. StoreFull, OSError: the rest stays."""
        self.note_deleted()
        removed = 0
        for topic, queues in list(self._leaving.items()):
            for queue_id in list(queues):
                if queue_id in self._leaving.get(topic, ()):
                    self._remove_files(topic, queue_id)
                    removed += 1
                if removed % QUEUES_WRITTEN_A_SLICE == 0:
                    yield

    def _remove_files(self, topic: str, queue_id: int) -> None:
        """Remove the files of a removed queue. OSError: they stay for a later call."""
        queues = self._leaving[topic]
        queues[queue_id].destroy()
        del queues[queue_id]
        if not queues:
            del self._leaving[topic]
            if topic not in self.by_topic:
                self._disk.remove(f"consumequeue/{topic}")
