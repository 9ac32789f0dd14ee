"""The labelled histories, judged by DuckDB in one run; and what must hold of any judgement."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import duckdb
import pytest
from tests.trail.histories import AS_OF_MS, HISTORIES, History, evidence

from mqtrail.lake import judge_rows


@dataclass(frozen=True)
class Judged:
    """All results, by cluster and id."""

    trajectories: dict[tuple[str, str], dict[str, Any]]
    verdicts: dict[tuple[str, str, str], dict[str, Any]]


def results(connection: duckdb.DuckDBPyConnection) -> Judged:
    """Read the results out of a connection that judged."""
    trajectories = connection.sql("SELECT * FROM trajectories").to_arrow_table().to_pylist()
    verdicts = connection.sql("SELECT * FROM verdicts").to_arrow_table().to_pylist()
    assert len({(t["cluster"], t["msg_id"]) for t in trajectories}) == len(trajectories)
    assert len({(v["cluster"], v["msg_id"], v["group_name"]) for v in verdicts}) == len(verdicts)
    return Judged(
        {(t["cluster"], t["msg_id"]): t for t in trajectories},
        {(v["cluster"], v["msg_id"], v["group_name"]): v for v in verdicts},
    )


@pytest.fixture(scope="module")
def judged() -> Judged:
    return results(judge_rows(evidence(), AS_OF_MS))


@pytest.mark.parametrize("history", HISTORIES, ids=lambda history: history.name)
def test_history(history: History, judged: Judged) -> None:
    """Each history gets exactly its expected codes, for exactly its messages and groups."""
    assert {i for c, i in judged.trajectories if c == history.name} == set(history.expected)
    for msg_id, expected in history.expected.items():
        trajectory = judged.trajectories[history.name, msg_id]
        groups = {g: v for (c, i, g), v in judged.verdicts.items() if (c, i) == (history.name, msg_id)}
        found = (trajectory["send_codes"], trajectory["message_codes"], {g: v["codes"] for g, v in groups.items()})
        why = trajectory["reasons"] + " | " + " | ".join(f"{g}: {v['reasons']}" for g, v in groups.items())
        assert found == (expected.send, expected.message, expected.groups), why
        assert trajectory["knowledge"] == expected.knowledge, why
        names = {reason.split("(")[0] for reason in trajectory["reasons"].split(";")}
        for reason in expected.reasons:
            assert (reason.removeprefix("!") in names) != reason.startswith("!"), why
        names = {reason.split("(")[0] for v in groups.values() for reason in v["reasons"].split(";")}
        for reason in expected.group_reasons:
            assert (reason.removeprefix("!") in names) != reason.startswith("!"), why
