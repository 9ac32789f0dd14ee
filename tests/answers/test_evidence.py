"""The place of a piece of evidence, from what an event says of it."""

from __future__ import annotations

import pytest

from mqtrail.answers import EvidencePlace, evidence_place


@pytest.mark.parametrize(
    ("evidence", "expected"),
    [
        ("trace:broker-a/0@51#18", EvidencePlace("TRACE", "broker-a", 0, 51, 18)),
        ("message:broker-a/%RETRY%billing/3@202", EvidencePlace("%RETRY%billing", "broker-a", 3, 202)),
        ("message:broker-a/0@51", None),
        ("trace:broker-a/-1@51#18", None),
        ("trace:broker-a/0@51#18 ", None),
        ("", None),
    ],
)
def test_places(evidence: str, expected: EvidencePlace | None) -> None:
    """A trace record is in the trace topic; evidence without a position has no place."""
    assert evidence_place(evidence, "TRACE") == expected


def test_a_place_is_read_as_the_cluster_reads_it() -> None:
    assert EvidencePlace("orders", "broker-a", 0, 7).place == "broker-a/orders/0@7"
