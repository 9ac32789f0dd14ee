"""How a leader brings one member's log to its own: compare until a place matches, cut off what is behind it, append.

    COMPARE ---- (TRUNCATE) ---- APPEND, COMMIT
       ^                            |
       +------ inconsistent, lost --+

The place is searched by bisection: entries match up to some index and differ behind it. Apache's leader goes down one
entry at a time; its members answer both alike.

Apache's member that does not follow this leader calls every entry inconsistent. So nothing is compared before it
follows. Nothing is cut off unless it calls the first entry behind the place inconsistent after it knew the place.

Source: DLedgerEntryPusher.EntryDispatcher, openmessaging/dledger 0.3.1.2.
"""

from collections.abc import Callable, Sequence
from enum import Enum, auto
from typing import Final

from mqtrail.wire import LedgerEntry, LedgerPushReply, LedgerStatus, PushType

from .config import LedgerConfig
from .storage import LedgerStorage

NEVER_MS: Final = 1 << 62
Send = Callable[[PushType, Sequence[LedgerEntry]], int]


class PushState(Enum):
    COMPARE = auto()
    TRUNCATE = auto()
    APPEND = auto()


class Pushing:
    """The log of one member, as its leader knows it. match_index: up to there it is the leader's; -1: not known.

    is_batching: requests may have many entries, since the member is one of mqtrail. follows: whether the member
    answered a heartbeat of this leader; one of mqtrail need not.
    """

    def __init__(self, log: LedgerStorage, config: LedgerConfig, send: Send) -> None:
        """send: sends a PUSH to the member, and returns the number of the call."""
        self._log = log
        self._config = config
        self._send = send
        self.match_index = -1
        self.is_batching = False
        self.follows = False
        self._flight: dict[int, tuple[int, int]] = {}  # number of a call -> last index, bytes
        self._flight_size = 0
        self._next_index = 0
        self._asked: int | None = None  # the call of a COMPARE or TRUNCATE on its way
        self._commit_sent = -1
        self._commit_ms = 0
        self._begin_compare(0)

    def next_ms(self) -> int:
        """Return when `step` should be called, whatever else happens."""
        if not (self.follows or self.is_batching):
            return NEVER_MS
        if self.state is not PushState.APPEND:
            return self._retry_ms if self._asked is None else NEVER_MS
        tells = self._log.committed_index > self._commit_sent and not self._flight
        return self._commit_ms if tells else NEVER_MS

    def hurry(self) -> None:
        """Wait for nothing any more: the clock was set back."""
        self._retry_ms = self._commit_ms = 0

    def pause(self, now_ms: int) -> None:
        """Compare once more, later: what should be sent cannot be read."""
        self._begin_compare(now_ms + self._config.compare_retry_ms)

    def step(self, now_ms: int) -> None:
        """Send what may be sent now."""
        if not (self.follows or self.is_batching):
            return
        if self.state is PushState.APPEND:
            self._append(now_ms)
        elif self._asked is None and now_ms >= self._retry_ms:
            self._ask(now_ms)

    def answered(self, number: int, reply: LedgerPushReply | None, now_ms: int) -> None:
        """Note a reply; None: there is none."""
        if number == self._asked:
            self._asked = None
            if reply is None:
                self._begin_compare(now_ms + self._config.compare_retry_ms)
            elif self.state is PushState.COMPARE:
                self._compared(reply, now_ms)
            else:
                self._truncated(reply, now_ms)
        elif (flown := self._flight.pop(number, None)) is not None:
            self._flight_size -= flown[1]
            if reply is not None and reply.code == LedgerStatus.SUCCESS:
                self.match_index = max(self.match_index, flown[0])
            else:
                at_once = reply is not None and reply.code == LedgerStatus.INCONSISTENT_STATE
                self._begin_compare(now_ms + (0 if at_once else self._config.compare_retry_ms))

    # Comparing.

    def _begin_compare(self, retry_ms: int) -> None:
        self.state = PushState.COMPARE
        self._retry_ms = retry_ms
        self._asked = None
        self.match_index = -1  # the member may have lost some: it counts again when it is compared
        self._flight.clear()
        self._flight_size = 0
        self._low = self._log.begin_index - 1  # below this nothing can be compared
        self._high = self._log.end_index + 1  # from here on entries differ, or one log has none
        self._found: int | None = None  # the highest entry that matches
        self._is_sure = False  # whether the last answer called the entry behind it inconsistent
        self._compare_index = self._log.end_index

    def _ask(self, now_ms: int) -> None:
        index = self._compare_index
        entry = self._log.entry(index)
        if entry is None:  # removed since, or there is none
            self._begin_compare(now_ms + self._config.compare_retry_ms)
            return
        kind = PushType.COMPARE if self.state is PushState.COMPARE else PushType.TRUNCATE
        self._asked = self._send(kind, (entry,))

    def _compared(self, reply: LedgerPushReply, now_ms: int) -> None:
        log, index = self._log, self._compare_index
        begin = log.begin_index
        if reply.code == LedgerStatus.SUCCESS:
            if index >= self._high:  # it does match: the member did not follow when it said otherwise
                self._begin_compare(now_ms)
                return
            self._found = self._low = index
            self._is_sure = False
            if index == reply.end_index:
                self._begin_append(index)
                return
        elif reply.code != LedgerStatus.INCONSISTENT_STATE:
            self._begin_compare(now_ms + self._config.compare_retry_ms)
            return
        else:
            self._high = min(self._high, index, reply.end_index + 1)
            self._is_sure = True
            if self._found is None:
                self._low = max(self._low, reply.begin_index - 1)
        if self._high - self._low > 1:
            tries_end = self._found is None and index > reply.end_index
            self._compare_index = self._high - 1 if tries_end else (self._low + self._high) // 2
            self._retry_ms = now_ms
            return
        if self._found is not None and not self._is_sure and self._high <= log.end_index:
            self._compare_index = self._high
            self._retry_ms = now_ms
            return
        self.state = PushState.TRUNCATE
        self._compare_index = begin if self._found is None else self._found
        self._retry_ms = now_ms

    def _truncated(self, reply: LedgerPushReply, now_ms: int) -> None:
        if reply.code == LedgerStatus.SUCCESS:
            self._begin_append(self._compare_index)
        else:
            self._begin_compare(now_ms + self._config.compare_retry_ms)

    # Appending.

    def _begin_append(self, match_index: int) -> None:
        self.state = PushState.APPEND
        self.match_index = match_index
        self._next_index = match_index + 1
        self._commit_sent, self._commit_ms = -1, 0

    def _append(self, now_ms: int) -> None:
        config, log = self._config, self._log
        count_max = config.push_count_max if self.is_batching else 1
        while self._next_index <= log.end_index:
            if len(self._flight) >= config.flight_count_max or self._flight_size >= config.flight_size_max:
                return
            entries = log.entries(self._next_index, count_max, config.push_size_max)
            if not entries:  # removed since: the member is too far behind
                self._begin_compare(now_ms)
                return
            size = sum(entry.size for entry in entries)
            number = self._send(PushType.APPEND, entries)
            self._flight[number] = (entries[-1].index, size)
            self._flight_size += size
            self._next_index = entries[-1].index + 1
            self._note_commit(now_ms)
        if log.committed_index > self._commit_sent and now_ms >= self._commit_ms and not self._flight:
            self._send(PushType.COMMIT, ())  # its reply says nothing
            self._note_commit(now_ms)

    def _note_commit(self, now_ms: int) -> None:
        self._commit_sent = self._log.committed_index
        self._commit_ms = now_ms + self._config.commit_push_ms
