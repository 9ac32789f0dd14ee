"""The state file of a bridge."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from mqtrail.migrate import BridgeState, HeaderRule, KafkaRecord, MigrateError, is_running, read_bridge
from mqtrail.migrate.bridge import Transit, _remedy
from mqtrail.migrate.messages import RecordEncoder
from mqtrail.migrate.state import BRIDGE, alone, save_bridge


def test_the_state_file(tmp_path: Path) -> None:
    """It comes back as it was; another file, version or process is refused."""
    assert read_bridge(tmp_path) is None
    assert not is_running(tmp_path)
    state = BridgeState(cluster="c", topic="t", target="t", order="key", headers="encode", queues=["b/0"])
    assert state.lag() is None
    state.next_offsets, state.ends, state.ends_ms = {"0": 7}, {"0": 9, "1": 3}, 1
    save_bridge(tmp_path, state)
    assert read_bridge(tmp_path) == state
    assert state.lag() == 5
    with alone(tmp_path):
        assert is_running(tmp_path)
        with pytest.raises(MigrateError, match="found another bridge"), alone(tmp_path):
            pass
    assert not is_running(tmp_path)
    for text, found in (("", "JSONDecodeError"), ("[]", "AttributeError"), ('{"version":1}', "other fields")):
        (tmp_path / BRIDGE).write_text(text)
        with pytest.raises(MigrateError, match=found):
            read_bridge(tmp_path)
    (tmp_path / BRIDGE).write_text('{"version": 9}')
    with pytest.raises(MigrateError, match="version 9"):
        read_bridge(tmp_path)


@pytest.mark.parametrize("wrong", [{"queues": 5}, {"ends": {"x": 1}}, {"next_offsets": {"0": "7"}}, {"started_ms": []}])
def test_a_state_with_other_values_is_refused(tmp_path: Path, wrong: dict[str, object]) -> None:
    """It would end a run later, with a traceback."""
    state = BridgeState(cluster="c", topic="t", target="t", order="key", headers="encode", queues=["b/0"])
    (tmp_path / BRIDGE).write_text(json.dumps(asdict(state) | wrong))
    with pytest.raises(MigrateError, match="other fields"):
        read_bridge(tmp_path)


def test_a_refused_record_is_named() -> None:
    """By its place and size, with the option that leaves it out."""
    record = KafkaRecord("t", 0, 5, 0, b"k", b"55555")
    message = RecordEncoder("t", HeaderRule.ENCODE).encode(record)
    assert _remedy(Transit(record, message)).endswith("leave it out with --skip-record t:0:5")
