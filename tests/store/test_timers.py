"""The timer store's files: their bytes, and their recovery at a start."""

import struct
from collections.abc import Iterator
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mqtrail.store import MemoryDisk, StoreError, TimerCheckpoint, TimerFiles, UnitMagic, floor_ms
from mqtrail.store.timers.layout import CHECKPOINT_FILE_SIZE, UNIT, WHEEL_SIZE
from tests.store.hard_disk import HardDisk
from tests.store.spoiling import WAYS, spoil

NOW_MS = 1_700_000_000_000
HASH = 99_162_322  # Java's "hello".hashCode()
FILE_SIZE = 52 * 8 + 16
LOG_FILE = "timerlog/" + "0" * 20
END = 1 << 40  # of a CommitLog that holds all there is


def opened(disk: MemoryDisk, end_offset: int = END, *, file_size: int = FILE_SIZE, queue_first: int = 0) -> TimerFiles:
    """Return the files as a start finds them. Records have the queue offset physical offset / 100."""
    files = TimerFiles(disk, file_size)
    held = range(queue_first * 100, end_offset)
    files.recover(end_offset, lambda offset: offset // 100 if offset in held else None, queue_first)
    return files


def put(files: TimerFiles, number: int, slot_ms: int, *, magic: int = UnitMagic.DEFAULT, put_ms: int = NOW_MS) -> int:
    """Put message `number` into a slot, as the broker does."""
    slot = files.wheel.slot(slot_ms)
    position = files.log.append(-1 if slot is None else slot.last, magic, put_ms, slot_ms, number * 100, 90, HASH)
    files.wheel.put(slot_ms, position, -1 if magic & UnitMagic.DELETE else 1)
    return position


def chain(files: TimerFiles, slot_ms: int) -> list[int]:
    """Return the messages of a slot, newest first."""
    slot = files.wheel.slot(slot_ms)
    position = -1 if slot is None else slot.last
    numbers = []
    while position >= 0:
        unit = files.log.unit(position)
        assert unit is not None
        assert unit.slot_ms == slot_ms
        numbers.append(unit.physical_offset // 100)
        position = unit.previous
    return numbers


def slots(files: TimerFiles, from_ms: int = NOW_MS) -> Iterator[tuple[int, list[int]]]:
    slot_ms = files.wheel.next(from_ms)
    while slot_ms is not None:
        yield slot_ms, chain(files, slot_ms)
        slot_ms = files.wheel.next(slot_ms + 1_000)


def test_golden_bytes() -> None:
    """Units, slots and checkpoint lie where Apache's classes put them (store.md §13, TimerLog, TimerWheel, Slot)."""
    disk = MemoryDisk()
    files = opened(disk)
    put(files, 10, NOW_MS + 5_000)
    put(files, 11, NOW_MS + 5_000, magic=UnitMagic.DEFAULT | UnitMagic.DELETE)
    files.save(TimerCheckpoint(NOW_MS, files.log.end, 12, (0, NOW_MS, 3)), exact=False)
    first = "00000034 ffffffffffffffff 00000001 0000018bcfe56800 00001388 00000000000003e8 0000005a 05e918d2"
    second = "00000034 0000000000000000 00000005 0000018bcfe56800 00001388 000000000000044c 0000005a 05e918d2"
    found = disk.open(LOG_FILE, FILE_SIZE).read_at(0, 104)
    assert found == bytes.fromhex(first) + bytes(8) + bytes.fromhex(second) + bytes(8)
    wheel = disk.open("timerwheel", WHEEL_SIZE)
    assert WHEEL_SIZE == 38_707_200
    place = 1_700_000_005 % (7 * 86_400 * 2) * 32
    slot = "000000006553f105 0000000000000000 0000000000000034 00000000 00000000"
    assert wheel.read_at(place, 32) == bytes.fromhex(slot)
    data = disk.read("config/timercheck")
    assert data is not None
    assert len(data) == CHECKPOINT_FILE_SIZE == 4096
    checkpoint = "0000018bcfe56800 0000000000000068 000000000000000c 000000000000000c"
    assert data[:56] == bytes.fromhex(checkpoint) + struct.pack(">qqq", 0, NOW_MS, 3)
    assert not any(data[56:])


def test_a_full_file_ends_in_a_filler() -> None:
    """Where 52 + 16 bytes do not fit, the rest is named, and the next unit begins the next file."""
    disk = MemoryDisk()
    files = opened(disk, file_size=52 * 2 + 40)
    positions = [put(files, number, NOW_MS + 1_000) for number in range(5)]
    assert positions == [0, 52, 144, 196, 288]
    files.log.write()
    filler = disk.open(LOG_FILE, 144).read_at(104, 40)
    assert filler == bytes.fromhex("00000028 0000000000000000 cbd43194") + bytes(24)
    assert chain(files, NOW_MS + 1_000) == [4, 3, 2, 1, 0]
    files.save(TimerCheckpoint(NOW_MS, files.log.end, 5), exact=False)
    assert dict(slots(opened(disk, file_size=144))) == {NOW_MS + 1_000: [4, 3, 2, 1, 0]}


def test_a_clean_stop_reads_no_units(monkeypatch: pytest.MonkeyPatch) -> None:
    """The wheel's file is used unchanged; only the last unit of the log is read."""
    disk = MemoryDisk()
    files = opened(disk)
    for number in range(40):
        put(files, number, NOW_MS + number % 7 * 1_000)
    files.save(TimerCheckpoint(NOW_MS, files.log.end, 40), exact=True)
    expected = dict(slots(files))
    with monkeypatch.context() as patch:
        patch.setattr(TimerFiles, "_fill_wheel", None)
        again = opened(disk)
    assert dict(slots(again)) == expected
    assert again.wheel.count(NOW_MS, NOW_MS + 7_000) == 40
    ends_ms = [NOW_MS + 2_000, NOW_MS + 3_000, NOW_MS + 9_000]
    counts = [again.wheel.count(start, end) for start, end in zip([NOW_MS, *ends_ms], ends_ms, strict=False)]
    assert again.wheel.counts(NOW_MS, ends_ms) == counts
    assert again.wheel.counts(NOW_MS + 1_000, ends_ms)[0] < counts[0]
    assert again.report is None


def test_units_behind_the_checkpoint_are_kept() -> None:
    """A kill leaves units that are in no checkpoint: they count, and their messages are not read again."""
    disk = MemoryDisk()
    files = opened(disk)
    put(files, 0, NOW_MS + 1_000)
    files.save(TimerCheckpoint(NOW_MS, files.log.end, 1), exact=True)
    put(files, 1, NOW_MS + 1_000)
    put(files, 2, NOW_MS + 2_000)
    files.log.write()
    again = opened(disk)
    assert dict(slots(again)) == {NOW_MS + 1_000: [1, 0], NOW_MS + 2_000: [2]}
    assert again.checkpoint is not None
    assert again.checkpoint.queue_offset == 3


def test_a_wheel_that_was_written_to_is_not_taken_as_exact() -> None:
    """A save that is cut off after the wheel leaves slots of units that no longer exist: they are rebuilt."""
    disk = MemoryDisk()
    files = opened(disk)
    put(files, 0, NOW_MS + 1_000)
    files.save(TimerCheckpoint(NOW_MS, files.log.end, 1), exact=True)
    files = opened(disk)
    put(files, 1, NOW_MS + 1_000)

    def fail() -> None:
        raise OSError("gone")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(disk.files[LOG_FILE], "sync", fail)
        with pytest.raises(OSError, match="gone"):
            files.save(TimerCheckpoint(NOW_MS, files.log.end, 2), exact=True)
    disk.files[LOG_FILE].write_at(52, bytes(52))  # the power cut lost the unit
    assert dict(slots(opened(disk))) == {NOW_MS + 1_000: [0]}


def test_a_wheel_that_is_gone_is_not_taken_as_exact() -> None:
    """A start that puts units into an empty wheel, and ends there, leaves the next one to do the same."""
    disk = MemoryDisk()
    files = opened(disk)
    put(files, 0, NOW_MS + 1_000)
    files.save(TimerCheckpoint(NOW_MS, files.log.end, 1), exact=True)
    put(files, 1, NOW_MS + 2_000)
    files.log.write()
    opened(disk).close()
    disk.files[LOG_FILE].write_at(52, bytes(52))
    again = opened(disk)
    assert dict(slots(again)) == {NOW_MS + 1_000: [0]}
    assert again.checkpoint is not None
    assert again.checkpoint.queue_offset == 1, "the message whose unit is gone is taken in again"


def test_units_of_lost_messages_are_dropped() -> None:
    """Units of records that a power loss removed are dropped: another record may be written there."""
    disk = MemoryDisk()
    files = opened(disk)
    for number in range(4):
        put(files, number, NOW_MS + 1_000)
    files.save(TimerCheckpoint(NOW_MS, files.log.end, 4), exact=True)
    again = opened(disk, end_offset=2 * 100)
    assert dict(slots(again)) == {NOW_MS + 1_000: [1, 0]}
    assert again.log.end == 2 * 52


def test_delivered_slots_do_not_come_back() -> None:
    """What was delivered before the checkpoint stays out of the wheel when it is filled again."""
    disk = MemoryDisk()
    files = opened(disk)
    put(files, 0, NOW_MS + 1_000)
    put(files, 1, NOW_MS + 2_000)
    files.save(TimerCheckpoint(NOW_MS + 2_000, files.log.end, 2), exact=False)
    assert dict(slots(opened(disk))) == {NOW_MS + 2_000: [1]}


@pytest.mark.parametrize("content", [b"short", b"\xff" * 4096, None])
def test_a_lost_checkpoint_begins_anew(content: bytes | None) -> None:
    """The progress is unknown then: the log is dropped, and the report states the consequence."""
    disk = MemoryDisk()
    files = opened(disk)
    put(files, 0, NOW_MS + 1_000)
    files.save(TimerCheckpoint(NOW_MS, files.log.end, 1), exact=True)
    disk.remove("config/timercheck")
    if content is not None:
        disk.replace("config/timercheck", content)
    again = opened(disk)
    assert again.checkpoint is None
    assert not again.must_rebuild
    assert again.report is not None
    assert "delivered again" in again.report
    assert dict(slots(again)) == {}
    assert opened(MemoryDisk()).report is None  # a new folder is not a damaged one


def test_a_lost_log_is_reported() -> None:
    """The checkpoint still has what was delivered; the broker reads the queue again."""
    disk = MemoryDisk()
    files = opened(disk)
    put(files, 0, NOW_MS + 1_000)
    files.save(TimerCheckpoint(NOW_MS, files.log.end, 1), exact=True)
    disk.remove("timerlog")
    again = opened(disk)
    assert again.must_rebuild
    assert again.report is not None
    assert (again.log.end, dict(slots(again))) == (0, {})
    for number in range(3):
        put(again, number, NOW_MS + 1_000)
    again.log.write()
    half_built = opened(disk)  # and after a kill in the middle of that, once more
    assert half_built.must_rebuild
    assert dict(slots(half_built)) == {}
    put(half_built, 0, NOW_MS + 1_000)
    half_built.save(TimerCheckpoint(NOW_MS, half_built.log.end, 1), exact=False)
    assert not opened(disk).must_rebuild


@pytest.mark.parametrize("how", [*WAYS, "changed"])
def test_a_damaged_wheel_is_built_from_the_log(how: str) -> None:
    """After a clean stop too: no unit is lost, the report names the file, and the next start is silent."""
    disk = MemoryDisk()
    files = opened(disk)
    for number in range(10):
        put(files, number, NOW_MS + number % 3 * 1_000)
    files.save(TimerCheckpoint(NOW_MS, files.log.end, 10), exact=True)
    expected = dict(slots(files))
    files.close()
    place = NOW_MS // 1_000 % (WHEEL_SIZE // 32) * 32
    if how == "changed":  # the position of the first second's last unit
        disk.files["timerwheel"].write_at(place + 16, (52).to_bytes(8, "big"))
    else:
        spoil(disk, "timerwheel", how, place)
    again = opened(disk)
    assert dict(slots(again)) == expected
    assert again.report is not None
    assert again.report.startswith("found timerwheel with the checksum ")
    again.save(TimerCheckpoint(NOW_MS, again.log.end, 10), exact=True)
    assert opened(disk).report is None


@pytest.mark.parametrize("how", WAYS)
def test_a_damaged_log_is_built_again(how: str) -> None:
    """A start that scans it finds what is no unit, or a file of another size; the broker reads the queue again."""
    disk = MemoryDisk()
    files = opened(disk, file_size=FILE_SIZE * 4)
    for number in range(10):
        put(files, number, NOW_MS + number % 3 * 1_000)
    checkpoint = TimerCheckpoint(NOW_MS, files.log.end, 10)
    files.save(checkpoint, exact=False)
    files.close()
    spoil(disk, LOG_FILE, how)
    again = opened(disk, file_size=FILE_SIZE * 4)
    assert again.must_rebuild
    assert again.checkpoint == checkpoint
    assert again.report is not None
    assert "timer messages are read again, none is lost" in again.report
    assert (again.log.end, dict(slots(again))) == (0, {})
    for number in range(10):
        put(again, number, NOW_MS + number % 3 * 1_000)
    again.save(checkpoint._replace(log_position=again.log.end), exact=True)
    assert opened(disk, file_size=FILE_SIZE * 4).report is None


@pytest.mark.parametrize("queue_first", [0, 7, 8, 9, 16])
def test_a_missing_first_file_of_the_log_is_no_expired_one(queue_first: int) -> None:
    """Units of messages that the queue still has are missed, after a clean stop too; those of expired ones are not."""
    disk = MemoryDisk()
    files = opened(disk)
    for number in range(20):  # 8 in a file
        put(files, number, NOW_MS + 1_000)
    checkpoint = TimerCheckpoint(NOW_MS, files.log.end, 20)
    files.save(checkpoint, exact=True)
    files.close()
    spoil(disk, LOG_FILE, "gone")
    again = opened(disk, queue_first=queue_first)
    assert again.must_rebuild == (queue_first < 8)
    if again.must_rebuild:
        assert again.report is not None
        assert again.report.startswith(f"found timerlog/ to begin at {FILE_SIZE}, expected the units of all ")
        assert again.report.endswith("timer messages are read again, none is lost")
        assert (again.log.end, dict(slots(again)), again.checkpoint) == (0, {}, checkpoint)
    else:
        assert again.report is None
        assert again.log.first == FILE_SIZE


def test_apaches_files_are_taken_over() -> None:
    """Apache's checkpoint runs behind its log, its wheel behind both: the units count, and the last of them marks the
    end.

    TimerMessageStore takes lastTimerLogFlushPos before it flushes, and does not flush the wheel when it stops.
    """
    disk = MemoryDisk()
    files = opened(disk)
    for number in range(6):
        put(files, number, NOW_MS + number % 2 * 1_000)
    files.log.write()
    apache = struct.pack(">qqqqqqq", NOW_MS, 2 * 52, 5, 5, 0, NOW_MS, 1)
    disk.replace("config/timercheck", apache + bytes(4096 - 56))
    disk.open("timerwheel", WHEEL_SIZE)
    again = opened(disk)
    assert dict(slots(again)) == {NOW_MS: [4, 2, 0], NOW_MS + 1_000: [5, 3, 1]}
    assert again.checkpoint is not None
    assert again.checkpoint.queue_offset == 6


def test_files_of_expired_messages_go() -> None:
    """A file goes when its last unit names a message that the CommitLog no longer has; the last file stays."""
    disk = MemoryDisk()
    files = opened(disk)
    for number in range(20):
        put(files, number, NOW_MS + 1_000)
    files.log.write()
    assert files.expire(7 * 100) == 0
    assert files.expire(8 * 100) == FILE_SIZE
    assert disk.list("timerlog") == [f"{FILE_SIZE:020}", f"{2 * FILE_SIZE:020}"]
    assert files.log.unit(0) is None
    assert files.expire(1 << 40) == FILE_SIZE


def test_the_wheel_forgets_what_is_over() -> None:
    """Memory holds parts with something to come: a wheel that turns for weeks does not grow."""
    files = opened(MemoryDisk())
    for day in range(30):
        now_ms = NOW_MS + day * 86_400_000
        put(files, day, now_ms, put_ms=now_ms)
        files.wheel.write(now_ms)
        assert len(files.wheel._parts) <= 2
        assert files.wheel.next(now_ms) == now_ms


def test_a_failed_sync_is_the_last_word() -> None:
    """Data whose sync failed never counts as durable later: the checkpoint stays as it was."""
    disk = MemoryDisk()
    files = opened(disk)
    put(files, 0, NOW_MS)
    files.save(TimerCheckpoint(NOW_MS, files.log.end, 1), exact=False)
    before = disk.read("config/timercheck")
    put(files, 1, NOW_MS)
    files.log.write()

    def fail() -> None:
        raise OSError("gone")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(disk.files[LOG_FILE], "sync", fail)
        with pytest.raises(OSError, match="gone"):
            files.save(TimerCheckpoint(NOW_MS, files.log.end, 2), exact=True)
    files.save(TimerCheckpoint(NOW_MS, files.log.end, 2), exact=True)
    assert disk.read("config/timercheck") == before


def test_a_file_that_holds_nothing_is_refused() -> None:
    """A size below one unit and its filler is a mistake of the settings."""
    with pytest.raises(StoreError, match="at least 68"):
        TimerFiles(MemoryDisk(), 60)


@settings(max_examples=40)
@given(
    puts=st.lists(st.tuples(st.integers(0, 30), st.integers(0, 5)), max_size=60),
    saves=st.sets(st.integers(0, 60)),
    exact=st.booleans(),
)
def test_any_life_is_found_again(puts: list[tuple[int, int]], saves: set[int], exact: bool) -> None:
    """Whatever was put in is found in its slot, in order, after a kill: from the wheel or from the log alone."""
    disk = MemoryDisk()
    files = opened(disk)
    expected: dict[int, list[int]] = {}
    for number, (second, late) in enumerate(puts):
        slot_ms = NOW_MS + second * 1_000
        put(files, number, slot_ms, put_ms=floor_ms(NOW_MS + late * 1_000))
        expected.setdefault(slot_ms, []).insert(0, number)
        if number in saves:
            files.save(TimerCheckpoint(NOW_MS, files.log.end, number + 1), exact=False)
    files.save(TimerCheckpoint(NOW_MS, files.log.end, len(puts)), exact=exact)
    again = opened(disk)
    assert dict(slots(again)) == expected
    assert again.log.end == files.log.end
    for slot_ms, numbers in expected.items():
        slot = again.wheel.slot(slot_ms)
        assert slot is not None
        assert slot.waiting == len(numbers)
    assert UNIT.size == 52


@given(
    steps=st.lists(st.tuples(st.sampled_from(["put", "clear", "ask"]), st.integers(0, 8 * 86_400)), max_size=30),
    spread=st.sampled_from([1, 60, 3_600]),
)
def test_the_next_second_is_found(steps: list[tuple[str, int]], spread: int) -> None:
    """Whatever was put and taken, `next` names the first second that something waits for, as a search of all does."""
    wheel = opened(MemoryDisk()).wheel
    waiting: set[int] = set()
    for step, number in steps:
        time_ms = NOW_MS + number // spread * spread * 1_000
        if step == "put":
            wheel.put(time_ms, 52, 1)
            waiting.add(time_ms)
        elif step == "clear":
            wheel.clear_slot(time_ms)
            waiting.discard(time_ms)
        else:
            expected = min((slot_ms for slot_ms in waiting if slot_ms >= time_ms), default=None)
            if expected is not None and expected - time_ms >= 7 * 86_400_000:
                expected = None
            assert wheel.next(time_ms) == expected


@pytest.mark.parametrize("seed", range(40))
def test_units_of_two_lives_do_not_mix(seed: int) -> None:
    """A unit has no checksum, and a power cut keeps some sectors of a write: each slot's chain must stay its own."""
    disk, chance = HardDisk(Random(seed)), Random(seed)
    files = opened(disk, 0, file_size=52 * 40 + 16)
    put(files, 0, NOW_MS + 1_000)
    files.save(TimerCheckpoint(NOW_MS, files.log.end, 1), exact=False)
    count = 1  # messages that the CommitLog kept
    for _ in range(6):
        disk.stop(power=True)
        files = opened(disk, count * 100, file_size=52 * 40 + 16)
        assert files.checkpoint is not None
        taken = files.checkpoint.queue_offset
        chains = [number for _, numbers in slots(files) for number in numbers]  # asserts that units are of their slot
        assert sorted(chains) == list(range(taken))
        for number in range(taken, count + 60):
            put(files, number, NOW_MS + chance.choice((1_000, 2_000, 3_000)))
        files.log.write()
        count += chance.randrange(60)
