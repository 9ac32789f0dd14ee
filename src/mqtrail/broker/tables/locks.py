"""Queue locks: at most one client of a group consumes a queue in order (41 LOCK_BATCH_MQ, 42 UNLOCK_BATCH_MQ).

A lock belongs to a client id, not to a connection, and expires if it is not renewed for lock_ttl_ms.

Source: RebalanceLockManager, apache/rocketmq broker/client/rebalance/.
"""

from collections.abc import Iterable
from typing import Final

from mqtrail.wire import MessageQueue, SystemBusy

SWEEP_MS: Final = 1_000  # minimum time between two searches for expired locks


class LockTable:
    """Owner and last renewal of each queue lock, by group."""

    def __init__(self, ttl_ms: int, locks_max: int) -> None:
        self._ttl_ms = ttl_ms
        self._locks_max = locks_max
        self._locks: dict[str, dict[MessageQueue, tuple[str, int]]] = {}
        self._count = 0
        self._full_until_ms = 0

    def lock(self, group: str, client_id: str, queues: Iterable[MessageQueue], now_ms: int) -> list[MessageQueue]:
        """Lock or renew queues for client_id; return those that it holds now. Expired locks change their owner."""
        locks = self._locks.get(group, {})
        held = []
        for queue in queues:
            owner, renewed_ms = locks.get(queue, (client_id, now_ms))
            if owner == client_id or now_ms - renewed_ms > self._ttl_ms:
                if queue not in locks:
                    self._make_room(now_ms)
                    self._count += 1
                    self._locks[group] = locks
                locks[queue] = (client_id, now_ms)
                held.append(queue)
        return held

    def unlock(self, group: str, client_id: str, queues: Iterable[MessageQueue]) -> None:
        """Release the locks of client_id on these queues; other owners keep theirs."""
        locks = self._locks.get(group, {})
        for queue in queues:
            if queue in locks and locks[queue][0] == client_id:
                del locks[queue]
                self._count -= 1
        if not locks:
            self._locks.pop(group, None)

    def is_any_held(self, group: str, now_ms: int) -> bool:
        """Return whether a member of the group holds a lock, and so consumes in order."""
        return any(now_ms - renewed_ms <= self._ttl_ms for _, renewed_ms in self._locks.get(group, {}).values())

    def _make_room(self, now_ms: int) -> None:
        if self._count < self._locks_max:
            return
        if now_ms >= self._full_until_ms:
            self._drop_lapsed(now_ms)
        if self._count >= self._locks_max:
            raise SystemBusy(
                f"found {self._locks_max} held queue locks, expected fewer: consume fewer queues in order on one broker"
            )

    def _drop_lapsed(self, now_ms: int) -> None:
        """Remove expired locks; if there are none, do not search again for SWEEP_MS."""
        for group, locks in list(self._locks.items()):
            for queue in [queue for queue, lock in locks.items() if now_ms - lock[1] > self._ttl_ms]:
                del locks[queue]
                self._count -= 1
            if not locks:
                del self._locks[group]
        if self._count >= self._locks_max:
            self._full_until_ms = now_ms + SWEEP_MS
