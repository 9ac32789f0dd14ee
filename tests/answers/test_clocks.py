"""The clocks of hosts in a lake: what the latest time says, and nothing that an earlier one said."""

from __future__ import annotations

from pathlib import Path

from mqtrail.answers import Answers
from tests.answers.lakes import AS_OF_MS, make_lake
from tests.trail.story import CLIENT, History, at


def test_what_the_latest_time_lacks_is_not_known(tmp_path: Path) -> None:
    """The producer's clock was known, and later only a trace message was read: that bounds it on one side."""
    found = History("c").scanned().group(CLIENT)
    found.pub(0.01, 0.02, trace_born_ms=at(0.5), stored=0.6).stored(0.02)
    found.pub(1_000, 0.02, msg=2, trace_born_ms=at(1_000.5), stored=1_000.7)
    make_lake(tmp_path / "lake", found.rows)
    [known] = Answers(tmp_path / "lake").clocks(AS_OF_MS, 0, at(500)).clocks
    [latest] = Answers(tmp_path / "lake").clocks(AS_OF_MS, 0, None).clocks
    assert (known.state, known.offset_ms, known.low_ms, known.high_ms) == ("KNOWN", 0, -11, 11)
    assert (latest.state, latest.offset_ms, latest.error_ms, latest.low_ms, latest.high_ms) == (
        "PARTLY", None, None, -201, None,
    )  # fmt: skip
