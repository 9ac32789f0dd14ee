"""Compares the verdicts of one way of looking with what is owed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from mqtrail import trail
from mqtrail.lake import Lake, connect, relation_of

from .scene import Owed

TIMING = frozenset({"SEND_SLOW", "CONSUMED_SLOW", "DELIVERED_LATE"})
"""Codes that a busy machine may add."""


@dataclass(frozen=True)
class Found:
    """What a lake says of one message."""

    send: frozenset[str]
    message: frozenset[str]
    groups: dict[str, frozenset[str]]
    knowledge: str
    shown: str


def found_in(lake: Lake) -> dict[str, Found]:
    """Message id -> what the lake says."""
    lake.refresh()
    duck = connect()

    def rows(relation: trail.Relation) -> list[dict[str, Any]]:
        latest = trail.latest_sql(relation, f"({relation_of(lake[relation.name])})")
        found: list[dict[str, Any]] = duck.sql(f"SELECT * FROM ({latest}) AS latest").to_arrow_table().to_pylist()
        return found

    groups: dict[str, dict[str, dict[str, Any]]] = {}
    for row in rows(trail.VERDICTS):
        groups.setdefault(row["msg_id"], {})[row["group_name"]] = row
    found = {}
    for row in rows(trail.TRAJECTORIES):
        own = groups.get(row["msg_id"], {})
        shown = f"{row['send_codes']} / {row['message_codes']} / {row['knowledge']} {row['reasons']} " + " ".join(
            f"\n      {name}: {one['codes']} {one['reasons']}" for name, one in sorted(own.items())
        )
        found[row["msg_id"]] = Found(
            _codes(row["send_codes"]),
            _codes(row["message_codes"]),
            {name: _codes(one["codes"]) for name, one in own.items()},
            row["knowledge"],
            shown,
        )
    return found


def _codes(text: str) -> frozenset[str]:
    return frozenset(filter(None, text.split(",")))


SAMPLER_PAUSED = "GROUPS_NOT_KNOWN(from_ms="
"""On a busy machine the sampler can pause for so long that the groups of that time are not known."""
OPEN_LATER = {
    "WAITING": ("NO_CONSUMER",),
    "HUNG": ("NO_CONSUMER", "RETRYING"),
    "IN_FLIGHT": ("NO_CONSUMER", "RETRYING"),
}
"""What an open state becomes once all clients are gone: the broker hands the message out again. A consumer that ends
records the handlers that it cancels as failed."""


def wrong(owed: Owed, found: Found | None, *, is_live: bool, is_later: bool = False) -> list[str]:
    """What is wrong in one verdict. is_live: everything that differs, otherwise what is false. is_later: all clients
    of applications ended since."""
    if found is None:
        return [f"{owed.name}: not judged"]
    parts = [("send", owed.send, found.send), ("message", owed.message, found.message)]
    parts += [(name, codes, found.groups.get(name, frozenset({"UNKNOWN"}))) for name, codes in owed.groups.items()]
    parts += [(name, codes, found.groups[name]) for name, codes in owed.others.items() if name in found.groups]
    known = owed.groups.keys() | owed.others.keys()
    parts += [(name, "UNKNOWN", codes) for name, codes in found.groups.items() if name not in known]
    problems, differs = [], False
    for what, true, said in parts:
        choices = [_codes(one) for one in true.removeprefix("?").split("|")]
        if is_later:
            choices += [one - {code} | {now} for one in choices for code in one for now in OPEN_LATER.get(code, ())]
        equal = any(said - (TIMING - one) == one for one in choices)
        differs = differs or not equal
        is_true = any(said - {"UNKNOWN"} - (TIMING - one) <= one for one in choices)
        if not (equal if is_live and not true.startswith("?") else is_true):
            problems.append(f"{what}: said {','.join(sorted(said))}, owed {true}")
    if found.knowledge == "COMPLETE" and (owed.complete is False or differs):
        problems.append("COMPLETE is not true")
    if is_live and owed.complete and found.knowledge != "COMPLETE" and SAMPLER_PAUSED not in found.shown:
        problems.append("is COMPLETE, and not said")
    return [f"{owed.name}: {'; '.join(problems)}\n    {found.shown}"] if problems else []
