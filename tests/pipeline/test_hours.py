"""The file of the hours that are due: damaged, every hour is judged again; none is forgotten."""

from pathlib import Path

import pytest

from mqtrail.pipeline.hours import JudgedHours

DAMAGES = [
    b"", b"{", b"{}", b"[]", b"null", b"0", bytes(50), b"\xff\xfe{", b"[" * 100_000, b'{"pending":[5]}',
    b'{"pending":null,"open":[]}', b'{"pending":[1e999],"open":[]}', b'{"pending":["x"],"open":[]}',
    b'{"pending":5,"open":[]}', b'{"pending":[[5]],"open":[]}',
]  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_file_makes_every_hour_due(tmp_path: Path, damage: bytes) -> None:
    """Empty, cut, of another shape or encoding: judging again is harmless, not judging loses verdicts."""
    file = tmp_path / "hours.json"
    file.write_bytes(damage)
    hours = JudgedHours(file, lambda: (1, 2, 3))
    assert hours.is_rebuilt
    assert hours.due == {1, 2, 3}


def test_without_a_file_no_hour_is_due(tmp_path: Path) -> None:
    """The first start has judged nothing, and has nothing to judge."""
    hours = JudgedHours(tmp_path / "hours.json", lambda: (1, 2, 3))
    assert not hours.is_rebuilt
    assert hours.due == set()
    hours.add_pending((7,))
    assert JudgedHours(tmp_path / "hours.json").due == {7}
