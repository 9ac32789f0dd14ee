"""Options that several commands share."""

from __future__ import annotations

import pytest

from mqtrail.cli.exits import UsageError
from mqtrail.cli.options import time_range

NOW_MS = 1_800_000_000_000


@pytest.mark.parametrize(("since", "until"), [("2026-12-01", "2026-11-01"), ("1h", "2h"), ("1h", "60m")])
def test_a_time_without_an_instant_is_refused(since: str, until: str) -> None:
    """Nothing is searched between a time and an earlier one: an answer would look as if nothing were there."""
    with pytest.raises(UsageError, match=rf"--to: found '{until}', expected a time after --from '{since}'"):
        time_range(since, until, NOW_MS)


def test_an_open_time() -> None:
    """Either end can be left out."""
    hour_ms = 3_600_000
    assert time_range("2h", "1h", NOW_MS) == (NOW_MS - 2 * hour_ms, NOW_MS - hour_ms)
    assert time_range("2h", "", NOW_MS) == (NOW_MS - 2 * hour_ms, None)
    assert time_range("", "1h", NOW_MS) == (None, NOW_MS - hour_ms)
