"""The file with the epochs of a log: damage is reported with what to do, and the copy beside it is used."""

import pytest

from mqtrail.broker import EPOCH_FILE, Epoch, EpochError, Epochs
from mqtrail.node.epoch_file import read_epochs, write_epochs
from mqtrail.store import MemoryDisk


def test_a_file_with_a_bad_checksum() -> None:
    """The start goes on with the copy; without a good one it is refused, and names both, and the remedy."""
    disk = MemoryDisk()
    write_epochs(disk, Epochs([Epoch(1, 0)]))
    write_epochs(disk, Epochs([Epoch(1, 0), Epoch(2, 500)]))
    whole = disk.read(EPOCH_FILE)
    assert whole is not None
    disk.replace(EPOCH_FILE, whole.replace(b"2-500", b"2-501"))
    assert read_epochs(disk).all() == [(1, 0)]
    disk.replace(f"{EPOCH_FILE}.bak", b"x")
    with pytest.raises(EpochError) as caught:
        read_epochs(disk)
    text = str(caught.value)
    assert f"{EPOCH_FILE}: found epochs with checksum" in text
    assert f"{EPOCH_FILE}.bak: found b'x', expected a count" in text
    assert "Restore the file from a copy, or remove it" in text
