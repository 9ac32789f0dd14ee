"""The spool file: appended messages are read back after any torn tail of a crash."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from mqtrail.client.trace.shared_spool import SharedSpool
from mqtrail.client.trace.spool import (
    DAMAGED_MAX,
    MAGIC,
    Spool,
    SpooledMessage,
    SpoolError,
    SpoolFull,
    orphans,
    read_entries,
)

MESSAGE = SpooledMessage("RMQ_SYS_TRACE_TOPIC", "id-1 key-1", b"Pub\x01...\x02", 3, "start", "orders")

NAMESRV = ("127.0.0.1:9876",)
FOLDER = "127.0.0.1_9876"


def numbered(number: int, size: int = 20) -> SpooledMessage:
    return SpooledMessage("T", f"id-{number}", bytes(size), number, "start", "orders")


def taken(spool: Spool) -> list[SpooledMessage]:
    """Take all messages."""
    found = []
    while (entry := spool.peek()) is not None:
        found.append(entry[0])
        spool.drop(*entry)
    return found


def test_messages_come_out_in_the_order_they_went_in(tmp_path: Path) -> None:
    """The spool is a queue; its file is emptied when all messages are taken."""
    spool = Spool(tmp_path / "a.spool", 10_000)
    messages = [numbered(number) for number in range(5)]
    for message in messages:
        spool.append(message)
    assert (spool.message_count, spool.record_count) == (5, 10)
    assert taken(spool) == messages
    assert (spool.message_count, spool.record_count, spool.size) == (0, 0, 0)
    assert spool.path.stat().st_size == len(MAGIC)
    spool.close()
    assert not spool.path.exists()


def test_close_keeps_what_was_not_taken(tmp_path: Path) -> None:
    """The next start finds exactly the unsent messages."""
    spool = Spool(tmp_path / "a.spool", 10_000)
    for number in range(5):
        spool.append(numbered(number))
    for _ in range(2):
        entry = spool.peek()
        assert entry is not None
        spool.drop(*entry)
    spool.close()
    again = Spool.adopt(tmp_path / "a.spool", 10_000)
    assert again is not None
    assert taken(again) == [numbered(number) for number in range(2, 5)]


@given(cut=st.integers(min_value=0, max_value=400), garbage=st.binary(max_size=40))
def test_a_torn_tail_costs_only_itself(tmp_path_factory: pytest.TempPathFactory, cut: int, garbage: bytes) -> None:
    """However many bytes of the end are missing or damaged, exactly the whole entries before them are read."""
    path = tmp_path_factory.mktemp("spool") / "a.spool"
    spool = Spool(path, 10_000)
    messages = [numbered(number) for number in range(6)]
    ends = []
    for message in messages:
        spool.append(message)
        ends.append(path.stat().st_size)
    spool.abandon()
    kept = max(len(MAGIC), path.stat().st_size - cut)
    os.truncate(path, kept)
    with path.open("ab") as file:
        file.write(garbage)
    again = Spool.adopt(path, 10_000)
    assert again is not None
    whole = [message for message, end in zip(messages, ends, strict=True) if end <= kept]
    assert taken(again)[: len(whole)] == whole
    assert again.message_count == 0
    again.append(MESSAGE)
    assert taken(again) == [MESSAGE]
    again.close()


@given(position=st.integers(min_value=len(MAGIC), max_value=200), value=st.integers(min_value=0, max_value=255))
def test_a_changed_byte_is_never_read_as_a_message(
    tmp_path_factory: pytest.TempPathFactory, position: int, value: int
) -> None:
    """Only written messages are read, in order: damage loses one entry, or all entries after it."""
    path = tmp_path_factory.mktemp("spool") / "a.spool"
    spool = Spool(path, 10_000)
    messages = [numbered(number) for number in range(4)]
    for message in messages:
        spool.append(message)
    spool.abandon()
    data = bytearray(path.read_bytes())
    data[min(position, len(data) - 1)] = value
    path.write_bytes(data)
    with path.open("rb") as file:
        found = [message for message, _ in read_entries(file.fileno())]
    assert found == [message for message in messages if message in found]
    assert len(found) >= (position - len(MAGIC)) // ((len(data) - len(MAGIC)) // 4) - 1


def test_the_bound_holds_and_leaves_room_for_a_note(tmp_path: Path) -> None:
    """A full spool refuses messages with its name; the count of lost messages still fits."""
    spool = Spool(tmp_path / "a.spool", 300)
    while spool.size < 230:
        spool.append(numbered(spool.message_count))
    with pytest.raises(SpoolFull, match="at most 300"):
        spool.append(numbered(0, 100))
    spool.append(MESSAGE, note=True)
    assert taken(spool)[-1] == MESSAGE
    spool.close()


def test_a_disk_that_refuses_leaves_whole_entries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """ENOSPC and short writes raise SpoolError, and the earlier content is kept."""
    spool = Spool(tmp_path / "a.spool", 10_000)
    spool.append(numbered(0))
    real = os.pwrite
    with monkeypatch.context() as patched:
        patched.setattr(os, "pwrite", lambda file, data, position: real(file, data[:5], position))
        with pytest.raises(SpoolError, match="only 5 of"):
            spool.append(numbered(1))
    with monkeypatch.context() as patched:

        def full(file: int, data: bytes, position: int) -> int:
            raise OSError(28, "No space left on device")

        patched.setattr(os, "pwrite", full)
        with pytest.raises(SpoolError, match="No space left"):
            spool.append(numbered(2))
    spool.append(numbered(3))
    assert taken(spool) == [numbered(0), numbered(3)]
    spool.close()


def test_a_damaged_entry_costs_only_itself_and_is_reported(tmp_path: Path) -> None:
    """A flipped bit loses one entry: the others are read; the log names the file and the lost bytes."""
    path = tmp_path / "a.spool"
    spool = Spool(path, 10_000)
    for number in range(5):
        spool.append(numbered(number))
    spool.abandon()
    data = bytearray(path.read_bytes())
    size = (len(data) - len(MAGIC)) // 5
    data[len(MAGIC) + size + 20] ^= 1
    path.write_bytes(data + bytes(1 << 20))  # and a tail of zeros, as a power failure may leave it
    with capture_logs() as logs:
        again = Spool.adopt(path, 10_000)
    assert again is not None
    [entry] = logs
    assert (entry["event"], entry["lost_size"], entry["kept_count"]) == ("trace.spool_damaged", size + (1 << 20), 4)
    assert taken(again) == [numbered(number) for number in (0, 2, 3, 4)]
    assert again.message_count == 0
    again.close()
    assert not path.exists()


def test_a_file_of_damage_ends_the_reading(tmp_path: Path) -> None:
    """The limit counts damaged entries, not bytes: any amount of damage takes as long as DAMAGED_MAX entries."""
    path = tmp_path / "a.spool"
    path.write_bytes(MAGIC + (b"\x00\x00\x00\x01" + bytes(5)) * (3 * DAMAGED_MAX))
    with path.open("rb") as file, capture_logs():
        assert list(read_entries(file.fileno())) == []
        spool = Spool.adopt(path, 10_000)
    assert spool is not None
    spool.close()
    assert not path.exists()


@pytest.mark.parametrize("kind", ["folder", "loop", "pipe"])
def test_what_is_no_file_is_left_alone(tmp_path: Path, kind: str) -> None:
    """A folder, a looping symbolic link or a pipe with a spool's name neither stops nor blocks the other files."""
    path = tmp_path / "a.spool"
    make: dict[str, Callable[[], object]] = {
        "folder": path.mkdir,
        "loop": lambda: path.symlink_to(path.name),
        "pipe": lambda: os.mkfifo(path),
    }
    make[kind]()
    other = Spool(tmp_path / "b.spool", 10_000)
    other.append(MESSAGE)
    other.abandon()
    before = len(os.listdir("/proc/self/fd"))
    with capture_logs() as logs:
        assert Spool.adopt(path, 10_000) is None
        assert [entry["event"] for entry in logs] == ["trace.spool_unusable"]
    assert len(os.listdir("/proc/self/fd")) == before
    found = Spool.adopt(other.path, 10_000)
    assert found is not None
    assert taken(found) == [MESSAGE]
    found.close()


def test_a_foreign_file_is_left_alone(tmp_path: Path) -> None:
    """A file that is no spool is neither read nor emptied."""
    path = tmp_path / "a.spool"
    path.write_bytes(b"something else entirely")
    with capture_logs() as logs:
        assert Spool.adopt(path, 10_000) is None
    assert [entry["event"] for entry in logs] == ["trace.spool_unusable"]
    assert path.read_bytes() == b"something else entirely"


def test_a_living_owner_keeps_its_file(tmp_path: Path) -> None:
    """A file whose owner holds the lock is not adopted; after the owner is killed, its whole entries are."""
    script = (
        "import sys, time\n"
        "from pathlib import Path\n"
        "from mqtrail.client.trace.spool import Spool, SpooledMessage\n"
        f"spool = Spool(Path({str(tmp_path)!r}) / 'theirs.spool', 10000)\n"
        "spool.append(SpooledMessage('T', 'k', b'body', 7, 's', 'orders'))\n"
        "print('ready', flush=True)\n"
        "time.sleep(60)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == "ready\n"
        (path,) = orphans(tmp_path)
        assert Spool.adopt(path, 10_000) is None
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
    adopted = Spool.adopt(path, 10_000)
    assert adopted is not None
    assert [message.record_count for message in taken(adopted)] == [7]
    adopted.close()
    assert orphans(tmp_path) == []


def test_one_process_shares_one_file(tmp_path: Path) -> None:
    """Two dispatchers of a process share one file; it is removed when both are closed and it is empty."""
    first, second = SharedSpool.acquire(tmp_path, NAMESRV, 10_000), SharedSpool.acquire(tmp_path, NAMESRV, 10_000)
    assert first is second
    first.append(numbered(1))
    ticket = second.take()
    assert ticket is not None
    assert second.take() is None, "one message is out at a time"
    ticket.back()
    ticket = second.take()
    assert ticket is not None
    assert ticket.message == numbered(1)
    ticket.done()
    first.release()
    assert len(list((tmp_path / FOLDER).iterdir())) == 1
    second.release()
    assert list((tmp_path / FOLDER).iterdir()) == []


def test_a_child_after_fork_leaves_the_spool_to_its_parent(tmp_path: Path) -> None:
    """A child cannot change the parent's file; it opens its own."""
    spool = SharedSpool.acquire(tmp_path, NAMESRV, 10_000)
    spool.append(numbered(1))
    pid = os.fork()
    if pid == 0:  # pragma: no cover
        own = SharedSpool.acquire(tmp_path, NAMESRV, 10_000)
        os._exit(0 if own is not spool and own.path != spool.path else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    ticket = spool.take()
    assert ticket is not None
    ticket.done()
    spool.release()


def test_each_cluster_has_a_spool_of_its_own(tmp_path: Path) -> None:
    """Messages for one cluster are never sent to another; the order of name servers makes no difference."""
    ours = SharedSpool.acquire(tmp_path, ("a:1", "b:2"), 10_000)
    same = SharedSpool.acquire(tmp_path, ("b:2", "a:1"), 10_000)
    other = SharedSpool.acquire(tmp_path, ("a:1",), 10_000)
    try:
        assert ours is same
        assert other.folder != ours.folder
        ours.append(numbered(1))
        assert other.take() is None
    finally:
        for spool in (ours, same, other):
            spool.release()
