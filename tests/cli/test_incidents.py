"""`mqtrail incidents`: search, save, show and query; with busy and with older lakes."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from mqtrail.cli import output
from mqtrail.lake import Lake, SchemaVersionError, migrate, record_incidents
from mqtrail.trail.incidents import INCIDENTS
from tests.cli.conftest import Command
from tests.trail.incident_faults import FAULTS
from tests.trail.incident_lakes import CLUSTER, IncidentLake, commit_all

KINDS = ("reopen", "unmute", "mute", "acknowledge")
EXPECTED: dict[str, str] = {}


@pytest.fixture(scope="session")
def faulty_lake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small lake with one bad host."""
    made = IncidentLake(3, messages=6_000)
    EXPECTED["where"] = FAULTS["bad host"].put(made, "G1a", 15)
    path = tmp_path_factory.mktemp("incidents") / "lake"
    commit_all(made, path)
    return path


@pytest.fixture
def lake(faulty_lake: Path, tmp_path: Path) -> Path:
    """A copy that a test may change."""
    return Path(shutil.copytree(faulty_lake, tmp_path / "lake"))


@pytest.mark.slow
def test_listed_kept_and_shown(mqtrail: Command, lake: Path) -> None:
    """The list keeps its incidents; `show` and `sql` read them from the lake, and a second list changes nothing."""
    listed = mqtrail("incidents", "--lake", str(lake), "--json")
    assert (listed.code, listed.err) == (0, "")
    [one] = listed.json["incidents"]
    assert (one["cause"], one["conditions"]) == ("BAD_HOST", [EXPECTED["where"]])
    shown = mqtrail("incidents", "show", one["incident_id"][:4], "--lake", str(lake), "--json")
    assert (shown.code, shown.json["incident_id"]) == (0, one["incident_id"])
    assert shown.json["examples"]
    query = "SELECT incident_id, cause, conditions, lift FROM incidents"
    [row] = mqtrail("sql", query, "--lake", str(lake), "--json").rows
    assert row["incident_id"] == one["incident_id"]
    assert row["conditions"] == [EXPECTED["where"]]
    [found] = mqtrail("incidents", "list", "--lake", str(lake), "--json").json["incidents"]
    assert found | {"found_ms": 0} == one | {"found_ms": 0}
    [again] = mqtrail("sql", query, "--lake", str(lake), "--json").rows
    assert again == row


def test_text_fits_80_columns(mqtrail: Command, lake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Names of causes and codes are whole, and no line is longer than 80 columns."""
    narrow = output._safe_console()(width=80)
    monkeypatch.setattr(output, "stdout_console", lambda: narrow)
    listed = mqtrail("incidents", "--lake", str(lake))
    incident_id = next(line.split()[0] for line in listed.out.splitlines() if "BAD_HOST" in line)
    shown = mqtrail("incidents", "show", incident_id, "--lake", str(lake))
    for result in (listed, shown):
        assert max(map(len, result.out.splitlines())) <= 80
        assert "BAD_HOST" in result.out
        assert EXPECTED["where"].split(" = ")[1] in result.out
    assert "CONSUMED_AFTER_RETRY" in shown.out
    assert "to do" in shown.out


@pytest.mark.slow
def test_only_chosen_codes_and_times(mqtrail: Command, lake: Path) -> None:
    """Codes without incidents, and a time without messages, have none; what is kept stays."""
    mqtrail("incidents", "--lake", str(lake))
    assert mqtrail("incidents", "--lake", str(lake), "--status", "HUNG", "--json").json["incidents"] == []
    result = mqtrail("incidents", "--lake", str(lake), "--from", "2020-01-01", "--to", "2020-01-02", "--json")
    assert result.json["incidents"] == []
    assert len(mqtrail("sql", "SELECT * FROM incidents", "--lake", str(lake), "--json").rows) == 1
    assert mqtrail("incidents", "--lake", str(lake), "--cluster", CLUSTER, "--json").json["incidents"]


def test_acknowledged_and_muted(mqtrail: Command, lake: Path) -> None:
    """The acts are shown with the incident, with who did them and why; the file and the audit log are in the data
    folder.
    """
    [one] = mqtrail("incidents", "--lake", str(lake), "--json").json["incidents"]
    name, where = one["incident_id"], ("--lake", str(lake))
    assert one["handling"] == {"acknowledged": None, "muted": None, "history": []}
    assert "acknowledged by" in mqtrail("incidents", "ack", name[:5], "--why", "disk is full", *where).out
    assert mqtrail("incidents", "mute", name, *where).code == 2
    assert mqtrail("incidents", "mute", name, "--why", "known", "--for", "91d", *where).code == 2
    muted = mqtrail("incidents", "mute", name, "--why", "known", "--for", "2h", *where, "--json").json
    assert muted["muted"]["until_ms"] - muted["muted"]["at_ms"] == pytest.approx(7_200_000, abs=60_000)
    shown = mqtrail("incidents", "show", name, *where)
    assert "(disk is full)" in shown.out
    assert "muted by" in shown.out
    assert mqtrail("incidents", "unmute", name, *where).code == 0
    assert mqtrail("incidents", "unmute", name, *where).code == 2
    assert mqtrail("incidents", "reopen", name, *where).out == f"{name}: open\n"
    audited = mqtrail("audit", "--json").json["changes"]
    assert [each["action"] for each in audited] == [f"{kind}-incident" for kind in KINDS]


def test_wrong_questions(mqtrail: Command, lake: Path) -> None:
    """An unknown code, an unknown cluster and an unknown id are errors."""
    assert mqtrail("incidents", "--lake", str(lake), "--status", "BROKEN").code == 2
    assert mqtrail("incidents", "--lake", str(lake), "--cluster", "other").code == 3
    result = mqtrail("incidents", "show", "zzzz", "--lake", str(lake))
    assert result.code == 1
    assert "zzzz" in result.err


@pytest.mark.slow
def test_a_pipeline_writes_the_lake(mqtrail: Command, lake: Path) -> None:
    """The incidents are printed at once, shown by their id, and in the table when the writer has recorded them."""
    with Lake.create(lake).writing():
        result = mqtrail("incidents", "--lake", str(lake), "--json")
        [one] = result.json["incidents"]
        assert "not kept" not in result.err
        shown = mqtrail("incidents", "show", one["incident_id"], "--lake", str(lake), "--json")
        assert (shown.json["cause"], shown.err) == (one["cause"], "")
    assert mqtrail("sql", "SELECT * FROM incidents", "--lake", str(lake), "--json").rows == []
    assert record_incidents(Lake.create(lake), now_ms=one["found_ms"]) == 1
    [kept] = mqtrail("sql", "SELECT incident_id FROM incidents", "--lake", str(lake), "--json").rows
    assert kept["incident_id"] == one["incident_id"]


@pytest.mark.slow
def test_damaged_lake_keeps_what_it_knew(mqtrail: Command, lake: Path) -> None:
    """A search without the verdicts finds nothing. It does not replace what an earlier one found, and says so."""
    [one] = mqtrail("incidents", "--lake", str(lake), "--json").json["incidents"]
    for file in (lake / "verdicts").rglob("*.parquet"):
        file.unlink()
    result = mqtrail("incidents", "--lake", str(lake), "--json")
    assert (result.code, result.json["incidents"]) == (3, [])
    assert "not kept in the lake: a part of the lake could not be read" in result.err
    assert mqtrail("incidents", "show", one["incident_id"], "--lake", str(lake), "--json").json["cause"] == "BAD_HOST"


def test_lake_of_an_earlier_version_gets_the_table(lake: Path) -> None:
    """A reader refuses a lake without the table and names the remedy; a migration and a writer create it."""
    for remedy in ("migrate", "create"):
        shutil.rmtree(lake / INCIDENTS.name)
        (lake / "_marks" / f"{INCIDENTS.name}.json").unlink(missing_ok=True)
        with pytest.raises(SchemaVersionError, match="pipeline migrate"):
            Lake.open(lake)
        if remedy == "migrate":
            assert any(INCIDENTS.name in line for line in migrate(lake))
        else:
            Lake.create(lake)
        assert Lake.open(lake)[INCIDENTS.name].files() == []
