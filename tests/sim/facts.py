"""Facts derived from a history: messages at the end, and effects that faults explain.

Promises (docs/design/store.md): kill -9 loses no acknowledged message. A power cut loses none under SYNC_FLUSH, and
under ASYNC_FLUSH only messages acknowledged since the start of the last successful flush.
"""

from collections import defaultdict

from mqtrail.wire import DLQ_PREFIX, RETRY_PREFIX

from .history import History, Read, Sent


class Facts:
    """The end of a history, and explanations by faults."""

    def __init__(self, history: History) -> None:
        self.history = history
        self.audit = [read for read in history.reads if read.reader == "audit"]
        self.kept: dict[int, list[Read]] = defaultdict(list)  # number -> copies in its own topic at the end
        self.retried: dict[tuple[str, int], list[Read]] = defaultdict(list)  # (group, number) -> copies for a retry
        for read in self.audit:
            if read.number is None:
                continue
            if read.place.topic.startswith(RETRY_PREFIX):
                self.retried[read.place.topic.removeprefix(RETRY_PREFIX), read.number].append(read)
            elif not read.place.topic.startswith(DLQ_PREFIX):
                self.kept[read.number].append(read)

    # What may be lost.

    def safe(self, broker: str, at_ms: float, waits: bool = True) -> bool:
        """Return whether messages acknowledged at that time had to survive all later faults."""
        if self.history.sync_flush and waits:
            return True
        for cut in self.history.lost:
            if cut.broker == broker and cut.at_ms >= at_ms:
                flushed = (f for f in self.history.flushed if f.broker == broker)
                if not any(at_ms < f.began_ms and f.at_ms <= cut.at_ms for f in flushed):
                    return False
        return True

    def had_to_be_kept(self, sent: Sent) -> bool:
        return sent.acked_ms is not None and self.safe(sent.acked_by, sent.acked_ms, sent.waits)

    def reused(self, group: str, copies: list[Read]) -> bool:
        """Return whether a message's position was freed by a power cut after the group had read it, or is after such a
        one.

        Only under ASYNC_FLUSH: a running consumer may then request the following messages. No broker can detect that.
        """
        if self.history.sync_flush:
            return False
        return any(
            read.reader == group
            and read.place[:3] == copy.place[:3]
            and read.place.offset >= copy.place.offset
            and any(cut.broker == read.place.broker and cut.at_ms >= read.at_ms for cut in self.history.lost)
            and not self.safe(read.place.broker, read.at_ms)
            for copy in copies
            for read in self.history.reads
        )

    # Clocks and processes.

    def set_forward(self, broker: str, from_ms: float, to_ms: float) -> float:
        """Return by how much the broker's clock was set forward meanwhile, and so ran ahead."""
        return sum(
            jump.by_ms
            for jump in self.history.jumps
            if jump.broker == broker and jump.by_ms > 0 and from_ms <= jump.at_ms <= to_ms
        )

    def set_back(self, broker: str, from_ms: float, to_ms: float) -> float:
        """Return by how much the broker's clock was set back meanwhile."""
        jumps = (jump for jump in self.history.jumps if jump.broker == broker and from_ms <= jump.at_ms <= to_ms)
        return -sum(jump.by_ms for jump in jumps if jump.by_ms < 0)

    def clock_max(self, broker: str, from_ms: float, to_ms: float) -> float:
        """Return the latest time of the broker's clock meanwhile."""
        skew = self.skew(broker, from_ms)
        latest_ms = from_ms + skew
        for jump in self.history.jumps:
            if jump.broker == broker and from_ms < jump.at_ms <= to_ms:
                latest_ms = max(latest_ms, jump.at_ms + skew)
                skew += jump.by_ms
                latest_ms = max(latest_ms, jump.at_ms + skew)
        return max(latest_ms, to_ms + skew)

    def skew(self, broker: str, at_ms: float) -> float:
        """Return by how much the broker's clock was ahead then."""
        return sum(jump.by_ms for jump in self.history.jumps if jump.broker == broker and jump.at_ms <= at_ms)

    def was_set(self, broker: str, from_ms: float, to_ms: float) -> bool:
        """Return whether the broker's clock was set meanwhile."""
        return any(jump.broker == broker and from_ms <= jump.at_ms <= to_ms for jump in self.history.jumps)

    def ended(self, broker: str, from_ms: float, to_ms: float) -> int:
        """Return how many processes of the broker ended meanwhile."""
        return sum(one.broker == broker and from_ms <= one.at_ms <= to_ms for one in self.history.ends)
