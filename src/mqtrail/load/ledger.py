"""The fate of each message, by its number: two bytes each, so that the counts are exact."""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from enum import IntEnum
from itertools import islice
from typing import Final

NAMED_MAX: Final = 100_000  # ids kept of acknowledged messages that are not consumed yet
SHOWN_MAX: Final = 20  # messages of one kind that a report names
SEEN_MAX: Final = 255
_ROOM: Final = 65_536  # messages that the tables grow by


class SendFate(IntEnum):
    """UNCERTAIN: without an answer, so it may be stored."""

    NOT_SENT = 0
    IN_FLIGHT = 1
    ACKNOWLEDGED = 2
    NOT_STORED = 3
    UNCERTAIN = 4


@dataclass(frozen=True, slots=True)
class Unread:
    """An acknowledged message that was not consumed. msg_id: '' if it is not known any more."""

    number: int
    msg_id: str


class Ledger:
    """Numbers are those of one run, from 0. keys: number of different keys; 0: order is not looked at."""

    def __init__(self, keys: int = 0) -> None:
        self._fates = bytearray()
        self._seen = bytearray()
        self._last = array("q", [-1]) * keys
        self._ids: dict[int, str] = {}
        self.counts = [0] * len(SendFate)
        self.consumed = 0  # different messages
        self.acknowledged_consumed = 0  # of them, those that are acknowledged
        self.repeated = 0  # deliveries beyond the first of a message
        self.out_of_order = 0  # first deliveries after that of a later message of the key
        self.unsent_seen = 0  # deliveries of numbers that were never sent

    def begin(self, number: int) -> None:
        """A message is sent now."""
        if number >= len(self._fates):
            more = bytes(number - len(self._fates) + _ROOM)
            self._fates += more
            self._seen += more
        self._fates[number] = SendFate.IN_FLIGHT
        self.counts[SendFate.IN_FLIGHT] += 1

    def settle(self, number: int, fate: SendFate, msg_id: str = "") -> None:
        """The send of a message has ended."""
        self.counts[SendFate.IN_FLIGHT] -= 1
        self.counts[fate] += 1
        self._fates[number] = fate
        if fate is SendFate.ACKNOWLEDGED:
            if self._seen[number]:
                self.acknowledged_consumed += 1
            elif len(self._ids) < NAMED_MAX:
                self._ids[number] = msg_id

    def deliver(self, number: int, key: int = 0) -> bool:
        """A message reached the handler. Return whether it is its first delivery."""
        if number >= len(self._fates) or self._fates[number] == SendFate.NOT_SENT:
            self.unsent_seen += 1
            return False
        seen = self._seen[number]
        if seen:
            self.repeated += 1
            self._seen[number] = min(SEEN_MAX, seen + 1)
            return False
        self._seen[number] = 1
        self.consumed += 1
        if self._fates[number] == SendFate.ACKNOWLEDGED:
            self.acknowledged_consumed += 1
            self._ids.pop(number, None)
        if key < len(self._last):
            if number < self._last[key]:
                self.out_of_order += 1
            else:
                self._last[key] = number
        return True

    @property
    def unread_count(self) -> int:
        """Number of acknowledged messages that were not consumed."""
        return self.counts[SendFate.ACKNOWLEDGED] - self.acknowledged_consumed

    def unread(self) -> tuple[Unread, ...]:
        """The first of them."""
        if not self.unread_count:
            return ()
        unread = (
            Unread(number, self._ids.get(number, ""))
            for number, fate in enumerate(self._fates)
            if fate == SendFate.ACKNOWLEDGED and not self._seen[number]
        )
        return tuple(islice(unread, SHOWN_MAX))

    def repeated_numbers(self) -> tuple[int, ...]:
        """The numbers of the first messages that were delivered more than once."""
        if not self.repeated:
            return ()
        return tuple(islice((number for number, seen in enumerate(self._seen) if seen > 1), SHOWN_MAX))

    def unsettled_read(self) -> int:
        """Number of messages that were consumed though their sends failed or had no answer."""
        return self.consumed - self.acknowledged_consumed
