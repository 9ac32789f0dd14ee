"""The broker's tables on disk: Apache's JSON, the previous file kept, and never a partial file."""

import pytest

from mqtrail.store import ConfigFileStore, MemoryDisk, StoreError
from mqtrail.store.config_file import UNDONE_A_SLICE
from mqtrail.wire import SystemBusy

APACHE_OFFSETS = (
    b'{\n\t"dataVersion":{"counter":3,"stateVersion":0,"timestamp":1},\n\t"offsetTable":{"orders@g":{0:5,1:6}}\n}'
)


def test_reads_what_apache_writes() -> None:
    """Java's files have integer member names without quotes."""
    disk = MemoryDisk()
    disk.replace("config/consumerOffset.json", APACHE_OFFSETS)
    assert ConfigFileStore(disk).load("consumerOffset.json") == {
        "dataVersion": {"counter": 3, "stateVersion": 0, "timestamp": 1},
        "offsetTable": {"orders@g": {0: 5, 1: 6}},
    }


def test_save_and_load() -> None:
    """The saved document is loaded; the previous one is kept beside it."""
    disk = MemoryDisk()
    files = ConfigFileStore(disk)
    assert files.load("delayOffset.json") is None
    files.save("delayOffset.json", {"offsetTable": {1: 12, 3: 7}})
    files.save("delayOffset.json", {"offsetTable": {1: 13}})
    assert files.load("delayOffset.json") == {"offsetTable": {1: 13}}
    assert disk.read("config/delayOffset.json") == b'{"offsetTable":{1:13}}'
    assert disk.read("config/delayOffset.json.bak") == b'{"offsetTable":{1:12,3:7}}'


@pytest.mark.parametrize("damage", [b"", b"{", b"[1]", b"\xff\xfe", b"{}garbage"])
def test_a_damaged_file_falls_back(damage: bytes) -> None:
    """The previous content is loaded instead."""
    disk = MemoryDisk()
    files = ConfigFileStore(disk)
    files.save("topics.json", {"a": 1})
    files.save("topics.json", {"a": 2})
    disk.replace("config/topics.json", damage)
    assert files.load("topics.json") == {"a": 1}


def test_damage_without_a_way_back_is_named() -> None:
    """Two unreadable files do not count as no file: starting empty would lose every offset."""
    disk = MemoryDisk()
    disk.replace("config/topics.json", b"{")
    disk.replace("config/topics.json.bak", b"x")
    with pytest.raises(StoreError, match=r"topics\.json.*topics\.json\.bak.*repair"):
        ConfigFileStore(disk).load("topics.json")


def test_a_damaged_file_does_not_displace_the_good_one() -> None:
    """Saving over a damaged file keeps the last readable content as .bak."""
    disk = MemoryDisk()
    files = ConfigFileStore(disk)
    files.save("topics.json", {"a": 1})
    files.save("topics.json", {"a": 2})
    disk.replace("config/topics.json", b"")
    files.save("topics.json", {"a": 3})
    assert files.load("topics.json") == {"a": 3}
    disk.replace("config/topics.json", b"")
    assert files.load("topics.json") == {"a": 1}


@pytest.mark.parametrize("content", [b"", b"  \n\t", b'{"a":'])
def test_a_file_without_content_is_not_as_good_as_none(content: bytes) -> None:
    """For a truncated or empty file without a backup, the start fails with the finding and the remedy."""
    disk = MemoryDisk()
    disk.replace("config/topics.json", content)
    with pytest.raises(StoreError, match=r"cannot read config/topics\.json: .*repair one of them by hand"):
        ConfigFileStore(disk).load("topics.json")


@pytest.mark.parametrize("content", [None, b"", b" "])
def test_use_of_the_bak_is_reported(content: bytes | None) -> None:
    """It is reported also if the table's file is missing."""
    disk = MemoryDisk()
    files = ConfigFileStore(disk)
    files.save("topics.json", {"a": 1})
    files.save("topics.json", {"a": 2})
    disk.remove("config/topics.json")
    if content is not None:
        disk.replace("config/topics.json", content)
    found = ConfigFileStore(disk)
    assert found.load("topics.json") == {"a": 1}
    assert "using config/topics.json.bak" in found.report[0]


def test_changes_of_a_failed_save_are_undone_in_slices() -> None:
    """The last change is undone first. A change made in between would be overwritten, so it is refused and undone."""
    files = ConfigFileStore(MemoryDisk(), gathers=True)
    table = [0]

    def change(value: int) -> int:
        before = table[0]
        table[0] = value
        return files.change("t.json", lambda: lambda: b"{}", lambda: table.__setitem__(0, before))

    count = 3 * UNDONE_A_SLICE
    last = [change(value) for value in range(1, count + 1)][-1]
    assert files.begin_save() is not None
    ending = files.end_save_in_slices(failed=True)
    next(ending)
    assert (table, files.settled) == ([count - UNDONE_A_SLICE], 0)
    with pytest.raises(SystemBusy, match="could not be saved"):
        change(-1)
    assert table == [count - UNDONE_A_SLICE]
    assert sum(1 for _ in ending) == 2
    assert (table, files.settled) == ([0], last)
    assert change(7) == last + 1
    files.finish()
    assert table == [7]
