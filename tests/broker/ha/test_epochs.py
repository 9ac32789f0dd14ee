"""The epochs of a log, and their file. The bytes were written by a broker of 5.3.3."""

import pytest

from mqtrail.broker.ha import Epoch, EpochError, Epochs, decode_epochs


def epochs(*pairs: tuple[int, int]) -> Epochs:
    return Epochs(Epoch(*pair) for pair in pairs)


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"1\n1725254278\n1-0\n", [(1, 0)]),
        (b"2\n2000752627\n1-0\n5-654\n", [(1, 0), (5, 654)]),
    ],
)
def test_golden_files(data: bytes, expected: list[tuple[int, int]]) -> None:
    """Decoding the recorded files and encoding the result gives the same bytes."""
    assert decode_epochs(data).all() == expected
    assert epochs(*expected).encode() == data


def test_a_file_without_checksum() -> None:
    """Apache's broker does not compare a checksum of 0."""
    assert decode_epochs(b"1\n0\n3-70\n").all() == [(3, 70)]


@pytest.mark.parametrize(
    ("data", "found"),
    [
        (b"", "found b''"),
        (b"x\n1\n1-0\n", "expected a count"),
        (b"1\n1725254278\n1-0-0\n", "expected a count"),
        (b"2\n1725254278\n1-0\n", "found 1 epochs, expected 2"),
        (b"1\n1725254279\n1-0\n", "found epochs with checksum 1725254278, expected 1725254279"),
        (b"2\n0\n1-0\n1-5\n", "found epoch 1-5 after 1-0"),
        (b"2\n0\n1-7\n2-7\n", "found epoch 2-7 after 1-7"),
        (b"1\n0\n1-\xff\n", "expected a count"),
    ],
)
def test_damaged_files(data: bytes, found: str) -> None:
    with pytest.raises(EpochError, match=found):
        decode_epochs(data)


def test_a_new_epoch_begins() -> None:
    """Numbers rise; an epoch without bytes is replaced; an epoch that begins before the last one is refused."""
    log = epochs((1, 0))
    assert log.begin(Epoch(3, 100))
    assert not log.begin(Epoch(3, 200))
    assert not log.begin(Epoch(2, 300))
    assert log.begin(Epoch(4, 100))
    assert log.all() == [(1, 0), (4, 100)]
    assert log.last_number == 4
    with pytest.raises(EpochError, match="found epoch 5-99 after 4-100"):
        log.begin(Epoch(5, 99))


def test_a_cut_forgets_epochs_without_bytes() -> None:
    log = epochs((1, 0), (2, 100), (3, 200))
    assert not log.cut(201)
    assert log.cut(200)
    assert log.all() == [(1, 0), (2, 100)]


@pytest.mark.parametrize(
    ("ours", "end", "theirs", "their_end", "expected"),
    [
        ([(1, 0)], 150, [(1, 0)], 100, 100),
        ([(1, 0)], 100, [(1, 0)], 150, 100),
        # This was master, with a tail that the next master does not have.
        ([(1, 0)], 150, [(1, 0), (2, 100)], 130, 100),
        ([(1, 0), (2, 100)], 150, [(1, 0), (2, 100), (3, 140)], 160, 140),
        # Both went on after a common epoch, each as master for a while.
        ([(1, 0), (2, 100)], 150, [(1, 0), (3, 90)], 160, 90),
        # The older epochs of the master have expired.
        ([(1, 0), (2, 100)], 150, [(2, 100), (3, 140)], 160, 140),
        # Nothing in common: from their first byte on, or in a part that one of them does not know.
        ([(1, 0)], 150, [(2, 0)], 100, 0),
        ([(1, 50)], 150, [(2, 0)], 100, None),
        ([(1, 50)], 150, [(2, 50)], 100, None),
        ([(1, 0)], 150, [], 100, 0),
    ],
)
def test_where_two_logs_part(
    ours: list[tuple[int, int]], end: int, theirs: list[tuple[int, int]], their_end: int, expected: int | None
) -> None:
    assert epochs(*ours).common_end(end, epochs(*theirs), their_end) == expected
