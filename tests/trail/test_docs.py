"""The design pages match the code: every code, reason, setting, table and column has its entry."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

from mqtrail import trail
from mqtrail.lake import TABLES
from mqtrail.trail.incidents import INCIDENT_CAUSES, SYMPTOMS
from mqtrail.wire import INNER_TOPICS, SYSTEM_GROUPS

DESIGN = Path(__file__).parents[2] / "docs" / "design"
VERDICTS = (DESIGN / "verdicts.md").read_text()
LAKE = (DESIGN / "lake.md").read_text()


def test_every_code_is_explained() -> None:
    """Every code is on the page of verdicts."""
    assert [name for name in trail.CODES if not re.search(rf"\b{name}\b", VERDICTS)] == []


def test_every_setting_is_documented_with_its_default() -> None:
    """The page has each threshold with its default in the code."""
    for setting in fields(trail.Settings):
        assert f"| `{setting.name}` | {setting.default} |" in VERDICTS


def test_every_reason_is_explained() -> None:
    """Each reason that can appear in a text is in the table of reasons."""
    speaking = ("losses", "messages", "filters", "filter_runs", "group_states", "group_verdicts", "trajectories")
    texts = " ".join(stage.sql for stage in trail.judge(0) if stage.name in speaking)
    found = set(re.findall(r"'(?:UNKNOWN:|WAITING:)?([A-Z]+(?:_[A-Z0-9]+)+)'", texts))
    known = {*trail.CODES, "ATTEMPTS_EXHAUSTED", "BY_HANDLER", "ORDERED_GIVE_UP"} | INNER_TOPICS | SYSTEM_GROUPS
    reasons = {name for name in found - known if not name.endswith("_")}
    assert len(reasons) > 20
    assert [name for name in sorted(reasons) if not re.search(rf"\b{name}\b", VERDICTS)] == []


def test_every_column_is_in_the_tables() -> None:
    """The tables of the lake's page are those of the code, with the same meanings."""
    for table in TABLES.values():
        section = LAKE[LAKE.index(f"### {table.name}\n") :].split("\n### ")[0]
        rows = re.findall(r"^\| `(\w+)` \| (\w+)[^|]*\| (.*) \|$", section, re.MULTILINE)
        assert rows == [(c.name, c.type, c.doc.replace("||", "//")) for c in table.relation], table.name
        assert section.split("\n")[2].endswith(f". {table.relation.doc}"), table.name


def test_every_cause_and_symptom_is_explained() -> None:
    """The page about incidents has a row for each cause and symptom."""
    page = (DESIGN.parent / "how-to" / "incidents.md").read_text()
    names = [*INCIDENT_CAUSES, *(symptom.name for symptom in SYMPTOMS)]
    assert [name for name in names if not re.search(rf"\b{name}\b", page)] == []
