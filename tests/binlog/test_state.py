"""The state file of a run: what it keeps, and what may change from run to run."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from mqtrail.binlog import BinlogError, BinlogState, is_running, read_state
from mqtrail.binlog.messages import Checkpoint, Outbound
from mqtrail.binlog.model import BinlogPlace
from mqtrail.binlog.run import _different, _remedy
from mqtrail.binlog.state import alone, save_state, with_gtid
from mqtrail.wire import Message


def state() -> BinlogState:
    return BinlogState(
        source="7", wish={"topic": "cdc"}, queues=["broker-a/0"], place="bin.000001:4", counts={"insert": 2}
    )


def test_the_state_file(tmp_path: Path) -> None:
    """It comes back as it was; another file, version or process is refused."""
    path = tmp_path / "state.json"
    assert read_state(path) is None
    assert not is_running(path)
    save_state(path, state())
    assert read_state(path) == state()
    with alone(path):
        assert is_running(path)
        with pytest.raises(BinlogError, match="found another run"), alone(path):
            pass
    assert not is_running(path)
    for text, found in (("", "JSONDecodeError"), ("[]", "AttributeError"), ('{"version":1}', "other fields")):
        path.write_text(text)
        with pytest.raises(BinlogError, match=found):
            read_state(path)
    path.write_text('{"version": 9}')
    with pytest.raises(BinlogError, match="version 9"):
        read_state(path)


@pytest.mark.parametrize(
    "wrong", [{"queues": 5}, {"place": "nowhere"}, {"tables": {"a.b": "bin:x"}}, {"done": "7"}, {"counts": []}]
)
def test_a_state_with_other_values_is_refused(tmp_path: Path, wrong: dict[str, object]) -> None:
    """It would end a run later, with a traceback."""
    path = tmp_path / "state.json"
    path.write_text(json.dumps(asdict(state()) | wrong))
    with pytest.raises(
        BinlogError, match="expected a file of `mqtrail binlog run`: restore it, or pass another --state"
    ):
        read_state(path)


def test_lag_is_in_binlog_time() -> None:
    """Unknown before the first change, zero while the server has nothing new, else the age of the last change."""
    found = state()
    assert found.lag_ms(10_000) is None
    found.event_ms, found.saved_ms = 7_000, 9_000
    assert found.lag_ms(10_000) == 3_000
    found.idle_ms = 9_000
    assert found.lag_ms(10_000) == 0
    assert found.lag_ms(60_000) == 51_000, "nobody has looked since"
    found.event_ms = 9_500
    assert found.lag_ms(10_000) == 500


def test_gtids_have_the_last_one_of_each_domain() -> None:
    """As BINLOG_GTID_POS lists them."""
    found = with_gtid(with_gtid(with_gtid("", "0-1-5"), "3-1-9"), "0-2-6")
    assert found == "0-2-6,3-1-9"


def test_more_may_be_left_out_of_a_state_but_not_less() -> None:
    """Less would leave a gap: the rows that were left out before."""
    known = {"topic": "cdc", "tables": ["a.*"], "excluded": ["a.b"], "columns": []}
    assert _different(known | {"excluded": ["a.b", "a.c"]}, known) == ({}, {})
    assert _different(known | {"excluded": []}, known) == ({"excluded": []}, {"excluded": ["a.b"]})
    assert _different(known | {"tables": ["a.*", "b.*"]}, known)[0] == {"tables": ["a.*", "b.*"]}


def test_a_refused_message_is_named() -> None:
    """By its table, key, place and size."""
    item: Outbound | Checkpoint = Outbound(Message("cdc", b"123456789"), "d.t:1", "77", "d.t")
    assert _remedy(item).startswith("the message of d.t, key d.t:1, order 77, has a body of 9 bytes")
    with pytest.raises(AssertionError):
        _remedy(Checkpoint(BinlogPlace("bin.1", 4), "", 0))
