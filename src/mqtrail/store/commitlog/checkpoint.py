"""Checkpoints: up to this physical offset all derived files are on disk, so the next start reads the log from here.

Buffered data is written in slices, in the caller's thread; syncing runs in any thread. A checkpoint is for the log's
end when its slices began. Queues may grow meanwhile: the end of each is noted in its slice, and the log is synced up to
its end after the last slice, so a note never has more than is on disk.

Source of the file `checkpoint`: StoreCheckpoint, apache/rocketmq store/.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Generator, Mapping

from ..disk import Disk, File
from .index import Index
from .log import CommitLog
from .notes import QueueKey, write_notes
from .queue import ConsumeQueue

CHECKPOINT = struct.Struct(">qqqqq")  # physic, logics, index timestamps (ms), master flushed offset, confirm offset
CHECKPOINT_SIZE = 4096
QUEUES_A_SLICE = 1_000  # checked for unwritten entries
QUEUES_WRITTEN_A_SLICE = 8  # each may make a file


def index_clean_ms(checkpoint: bytes | None) -> int:
    """Return the store time (ms) up to which the index is known to be on disk."""
    return CHECKPOINT.unpack_from(checkpoint)[2] if checkpoint is not None and len(checkpoint) >= CHECKPOINT.size else 0


def _checkpoint(store_ms: int, index_ms: int) -> bytes:
    data = CHECKPOINT.pack(store_ms, store_ms, index_ms, 0, 0)
    return data + bytes(CHECKPOINT_SIZE - len(data))


class Checkpoints:
    """Makes the checkpoints of one store.

    dispatched: the physical offset up to which queues are on disk. is_frozen: a derived file could not be synced, so no
    checkpoint is made until the store is opened again.
    """

    def __init__(
        self, disk: Disk, log: CommitLog, index: Index, queues: Mapping[QueueKey, ConsumeQueue], index_ms: int
    ) -> None:
        self._disk = disk
        self._log = log
        self._index = index
        self._queues = queues
        self._index_ms = index_ms  # store time up to which the index is on disk
        self._unsynced: list[File] = []  # of queues, on their way to the disk
        mark = log.mark
        self.dispatched = min(mark.dispatched_offset, log.end_offset) if mark is not None else 0
        self.is_frozen = False

    def in_slices(self, store_ms: int, *, index: bool) -> Generator[None, None, Callable[[], None]]:
        """Write buffered data; return a function that syncs it and moves the checkpoint, one at a time.

        store_ms: the last store time. index: the index too; a start after a crash rebuilds what is not on disk.
        StoreFull, OSError: there is no checkpoint this time.
        """
        end, log_first = self._log.end_offset, self._log.first_offset
        index_write = (yield from self._index.write_in_slices()) if index else None
        # Files of a checkpoint that failed or has not ended are synced again.
        unsynced = self._unsynced = self._unsynced[:]
        ends: list[tuple[str, int, int, int]] = []
        written = 0
        for number, queue in enumerate(list(self._queues.values()), 1):
            if self._queues.get((queue.topic, queue.queue_id)) is not queue:
                continue  # deleted since
            if queue.buffered_size:
                queue.write()
                written += 1
            unsynced += queue.take_unsynced()
            ends.append((queue.topic, queue.queue_id, queue.next_offset, queue.file_first))
            if number % QUEUES_A_SLICE == 0 or written >= QUEUES_WRITTEN_A_SLICE:
                written = 0
                yield
        flush, flush_end = self._log.begin_flush(self.dispatched), self._log.end_offset

        def sync() -> None:
            if flush() < flush_end:
                return  # an append was undone meanwhile; the next checkpoint does it
            try:
                for file in unsynced:
                    file.sync()
                if index_write is not None:
                    index_write.sync()
            except OSError:
                # The kernel may have dropped the written data, and the next sync would succeed. The next start must
                # read from the last complete checkpoint.
                self.is_frozen = True
                raise
            if self.is_frozen:
                return
            if index_write is not None:
                index_write.settle()
                self._index_ms = index_write.end_ms
            checkpoint = _checkpoint(store_ms, self._index_ms)
            write_notes(self._disk, ends, checkpoint, log_first)
            self._disk.replace("checkpoint", checkpoint)
            self.dispatched = end
            unsynced.clear()

        return sync
