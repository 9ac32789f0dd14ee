"""Incidents kept in the lake: a search replaces those of its range, and the latest ones are kept."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mqtrail.lake import Lake, LakeBusy, LookUp, keep_incidents, record_incidents, relation_of, with_waiting
from mqtrail.trail.incidents import INCIDENTS, Incident

DAY_MS = 86_400_000


def an_incident(cluster: str, begin_ms: int) -> Incident:
    values: dict[str, Any] = {column.name: "" if column.type == "string" else 0 for column in INCIDENTS}
    values |= {"cluster": cluster, "incident_id": f"{cluster}{begin_ms}", "begin_ms": begin_ms, "end_ms": begin_ms + 1}
    return Incident(**values)


def kept(lake: Lake) -> list[tuple[str, int]]:
    """The cluster and begin of each incident in the lake."""
    rows = LookUp(lake).connection.sql(f"SELECT cluster, begin_ms FROM ({relation_of(lake[INCIDENTS.name])}) AS kept")
    return rows.order("cluster, begin_ms").fetchall()


def keep(lake: Lake, cluster: str, *begins: int, first_ms: int = 0, end_ms: int = DAY_MS) -> None:
    found = [an_incident(cluster, begin_ms) for begin_ms in begins]
    keep_incidents(lake, found, [cluster], first_ms, end_ms, now_ms=DAY_MS)


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake.create(tmp_path / "lake")


def test_a_search_replaces_its_range(lake: Lake) -> None:
    """Incidents of other clusters and times stay."""
    keep(lake, "a", 10, 20, 30)
    keep(lake, "b", 20)
    keep(lake, "a", 21, first_ms=20, end_ms=30)
    assert kept(lake) == [("a", 10), ("a", 21), ("a", 30), ("b", 20)]


def test_the_latest_ones_stay(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """The latest ones of all clusters together are kept, whatever the clusters' names."""
    monkeypatch.setattr("mqtrail.lake.incidents.ROWS_MAX", 3)
    keep(lake, "b", 1, 2, 3)
    keep(lake, "a", 4, 5)
    assert kept(lake) == [("a", 4), ("a", 5), ("b", 3)]


def test_a_search_waits_for_the_writer(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """Readers see what waits; the writer, or the next search without one, records it in order, and once."""
    keep(lake, "a", 10, 20)
    searching = Lake.open(lake.path)
    with lake.writing():
        keep(searching, "a", 21, first_ms=20, end_ms=30)
        keep(searching, "b", 5)
        assert kept(lake) == [("a", 10), ("a", 20)]
        rows = [one.row for one in (an_incident("a", 10), an_incident("a", 20))]
        seen = [(row["cluster"], row["begin_ms"]) for row in with_waiting(lake.path, rows)]
        assert sorted(seen) == [("a", 10), ("a", 21), ("b", 5)]
        monkeypatch.setattr("mqtrail.lake.incidents.WAITING_MAX", 2)
        with pytest.raises(LakeBusy, match="2 searches wait for it in"):
            keep(searching, "b", 6)
        (lake.path / "_incidents" / "0-damaged.json").write_bytes(b'{"rows": [{}]}')
        assert record_incidents(lake, now_ms=DAY_MS) == 2
        assert record_incidents(lake, now_ms=DAY_MS) == 0
        assert list((lake.path / "_incidents").iterdir()) == []
        keep(searching, "c", 1)
    assert kept(lake) == [("a", 10), ("a", 21), ("b", 5)]
    keep(lake, "d", 1)
    assert kept(lake) == [("a", 10), ("a", 21), ("b", 5), ("c", 1), ("d", 1)]
