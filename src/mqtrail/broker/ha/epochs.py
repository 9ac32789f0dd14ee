"""Epochs of a log in controller mode: which master wrote which part of it.

Each master writes in an epoch of its own, with a number that the controller raised. Two logs have the same bytes up to
the end of the last epoch that begins at one place in both; what is behind that differs.

    epochFileCheckpoint, text: "<count of epochs>\\n<CRC-32 of what follows, without its first bit>\\n", then a line for
    each epoch: "<epoch>-<physical offset of its first byte>\\n"

Source: EpochFileCache, CheckpointFile, apache/rocketmq store/ha/autoswitch/ and common/.
"""

from bisect import bisect_right
from collections.abc import Iterable
from itertools import pairwise
from typing import Final, NamedTuple
from zlib import crc32

from mqtrail.wire import MQError

EPOCH_FILE: Final = "epochFileCheckpoint"
CRC_MASK: Final = 0x7FFF_FFFF
CRC_UNCHECKED: Final = 0  # Apache's broker does not compare this value
EPOCHS_MAX: Final = 1_000  # what Apache's broker can send in a handshake


class EpochError(MQError):
    """The epochs of a log make no sense. The text names found, expected and remedy."""


class Epoch(NamedTuple):
    """start_offset: physical offset of the epoch's first byte."""

    number: int
    start_offset: int


class Epochs:
    """The epochs of one log, oldest first: numbers and offsets rise."""

    def __init__(self, epochs: Iterable[Epoch] = ()) -> None:
        """EpochError: they do not rise, or there are too many."""
        self._epochs = list(epochs)
        for before, after in pairwise(self._epochs):
            if not (before.number < after.number and before.start_offset < after.start_offset):
                raise EpochError(
                    f"found epoch {_text(after)} after {_text(before)}, expected rising numbers and offsets"
                )
        if any(epoch.number < 0 or epoch.start_offset < 0 for epoch in self._epochs):
            raise EpochError(f"found epochs {', '.join(map(_text, self._epochs))}, expected numbers of 0 or more")
        if len(self._epochs) > EPOCHS_MAX:
            raise EpochError(f"found {len(self._epochs)} epochs, expected at most {EPOCHS_MAX}")

    def all(self) -> list[Epoch]:
        """Return the epochs, oldest first."""
        return list(self._epochs)

    @property
    def last(self) -> Epoch | None:
        """The epoch of the last bytes; None: there are no epochs."""
        return self._epochs[-1] if self._epochs else None

    @property
    def last_number(self) -> int:
        """The last epoch's number; -1: there are no epochs."""
        return self._epochs[-1].number if self._epochs else -1

    def after(self, number: int) -> list[Epoch]:
        """Return the epochs with larger numbers, oldest first."""
        return self._epochs[bisect_right(self._epochs, number, key=lambda epoch: epoch.number) :]

    def begin(self, epoch: Epoch) -> bool:
        """Add an epoch that begins; return whether that changed anything. EpochError: it begins before the last one.

        An epoch without a byte is replaced. Apache's broker keeps it and drops the new one; then the log of a master
        that wrote in the older epoch, and was deposed, counts as equal to what the new master wrote instead.
        """
        last = self.last
        if last is not None:
            if epoch.number <= last.number:
                return False
            if epoch.start_offset < last.start_offset:
                raise EpochError(
                    f"found epoch {_text(epoch)} after {_text(last)}, expected it to begin at or after that"
                )
            if epoch.start_offset == last.start_offset:
                self._epochs.pop()
        self._epochs.append(epoch)
        del self._epochs[:-EPOCHS_MAX]
        return True

    def cut(self, end_offset: int) -> bool:
        """Forget the epochs without a byte in a log that ends at end_offset; return whether there were any."""
        kept = [epoch for epoch in self._epochs if epoch.start_offset < end_offset]
        changed = len(kept) < len(self._epochs)
        self._epochs = kept
        return changed

    def end_of(self, index: int, log_end: int) -> int:
        """Return where an epoch ends, in a log that ends at log_end."""
        return self._epochs[index + 1].start_offset if index + 1 < len(self._epochs) else log_end

    def common_end(self, log_end: int, other: "Epochs", other_end: int) -> int | None:
        """Return the physical offset up to which both logs have the same bytes; None: that is unknown.

        log_end, other_end: where the logs end.
        """
        theirs = {epoch: index for index, epoch in enumerate(other.all())}
        for index in reversed(range(len(self._epochs))):
            found = theirs.get(self._epochs[index])
            if found is not None:
                return min(self.end_of(index, log_end), other.end_of(found, other_end))
        firsts = {epochs[0].start_offset for epochs in (self._epochs, other.all()) if epochs}
        return 0 if firsts == {0} else None  # both know all their masters, and had none in common

    def encode(self) -> bytes:
        """Return the content of the file."""
        lines = "".join(f"{_text(epoch)}\n" for epoch in self._epochs).encode()
        return b"%d\n%d\n%b" % (len(self._epochs), crc32(lines) & CRC_MASK, lines)


def decode_epochs(data: bytes) -> Epochs:
    """Return the epochs in the content of a file. EpochError: no broker wrote it."""
    try:
        count, crc, lines = data.split(b"\n", 2)
        epochs = [_epoch(line) for line in lines.decode("ascii").splitlines()]
        expected_count, expected_crc = int(count), int(crc)
    except ValueError as error:
        raise EpochError(f"found {data[:80]!r}, expected a count, a checksum, and lines epoch-offset") from error
    if len(epochs) != expected_count:
        raise EpochError(f"found {len(epochs)} epochs, expected {expected_count}, as the first line says")
    found_crc = crc32(lines) & CRC_MASK
    if expected_crc not in (found_crc, CRC_UNCHECKED):
        raise EpochError(f"found epochs with checksum {found_crc}, expected {expected_crc}, as the second line says")
    return Epochs(epochs)


def _epoch(line: str) -> Epoch:
    number, start_offset = line.split("-")
    return Epoch(int(number), int(start_offset))


def _text(epoch: Epoch) -> str:
    return f"{epoch.number}-{epoch.start_offset}"
