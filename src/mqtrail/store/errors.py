"""The store's errors: a full disk, a failed disk, and unusable files."""

from __future__ import annotations

from mqtrail.wire import MQError, ServiceNotAvailable


class StoreFull(ServiceNotAvailable):
    """There is no space to append: nothing of the call was stored."""


class StoreBroken(ServiceNotAvailable):
    """The disk failed, so durability is no longer certain: the store accepts nothing until it is opened again."""

    def __init__(self, what: str) -> None:
        super().__init__(
            f"found that {what}; the store rejects writes, stored messages remain readable: check the disk and the "
            "kernel's log, then restart the broker"
        )


class StoreError(MQError):
    """The files on disk cannot be opened or continued. The text names what was found and the remedy."""


class DamagedRecord(StoreError):
    """A record of a queue is damaged, while others of it can be read. queue_offset: its place."""

    def __init__(self, what: str, queue_offset: int) -> None:
        super().__init__(what)
        self.queue_offset = queue_offset


class StoreAway(StoreError):
    """The database of a table store does not answer. Nothing is lost: what waits is committed when it does."""

    def __init__(self, what: str) -> None:
        super().__init__(
            f"found that the database does not answer ({what}), expected a reply: start it or check the network; the "
            "broker tries again by itself"
        )


class StoreBusy(StoreAway):
    """The database works, but another transaction of this process has taken too long: nothing was done."""

    def __init__(self) -> None:
        StoreError.__init__(
            self,
            "found that another commit to the database takes long, expected its end: the broker tries again by itself",
        )


class NodeClosed(StoreError):
    """An operator has closed the node of a queue. Other queues can be read."""


class LogDiffers(StoreError):
    """Bytes copied from another store do not continue this log: they were not stored."""
