"""`mqtrail rejects` over a lake of histories."""

from __future__ import annotations

from pathlib import Path

from mqtrail.answers import RejectedRecord, RejectsAnswer, Scope
from mqtrail.cli.draw_rejects import rejected_records
from mqtrail.cli.output import stdout_console
from tests.cli.conftest import Command


def test_rejects_of_a_lake(mqtrail: Command, lake_path: Path) -> None:
    """The count is of all, the list of some."""
    found = mqtrail("rejects", "--lake", str(lake_path), "--limit", "1", "--json")
    assert (found.json["reject_count"], len(found.json["rejects"])) == (2, 1)
    assert (
        "1 of 2 trace records that did not decode" in mqtrail("rejects", "--lake", str(lake_path), "--limit", "1").out
    )


def test_the_text_of_a_record_is_harmless() -> None:
    """Control characters are escaped; the place can be read with `message show`."""
    one = RejectedRecord(
        cluster="shop",
        broker_name="broker-a",
        trace_topic="TRACE",
        queue_id=1,
        queue_offset=42,
        record_no=3,
        stored_ms=0,
        host="10.0.0.7",
        reason="found 5 fields",
        text="Pub\x1b[31m",
    )
    console = stdout_console()
    with console.capture() as captured:
        console.print(rejected_records(RejectsAnswer(Scope(0), 1, (one,))))
    assert "broker-a/TRACE/1@42 record 3  from 10.0.0.7" in captured.get()
    assert "found 5 fields" in captured.get()
    assert "\x1b[31m" not in captured.get()
