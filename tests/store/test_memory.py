"""Files in memory."""

from pathlib import Path

from mqtrail.store import MemoryFile

MIB = 1024 * 1024


def resident() -> int:
    """Return the bytes of this process in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def test_a_file_takes_memory_as_it_is_written() -> None:
    """A new file of any size takes almost no memory: a broker in memory starts with several."""
    before = resident()
    file = MemoryFile(256 * MIB)
    assert resident() - before < 64 * MIB
    file.write_at(200 * MIB, b"data")
    assert (file.read_at(200 * MIB, 6), len(file.data)) == (b"data\0\0", 256 * MIB)
    assert resident() - before < 64 * MIB


def test_an_empty_file() -> None:
    """A crash leaves such a file."""
    assert MemoryFile(0).read_at(0, 10) == b""
