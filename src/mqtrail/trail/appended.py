"""Reads the current results from tables to which every judgement appends its rows.

Trajectories, verdicts and open ids: the rows of the latest judgement of a message are current, except rows that mark a
removal. Counts (latency, keys, folds over groups): the rows of one key are summed; a sum of 0 means that it is removed.
"""

from __future__ import annotations

from collections.abc import Sequence

from .columns import Relation
from .results import GROUP_FOLDS, KEY_INDEX, LATENCY_MINUTE, OPEN_IDS, TRAJECTORIES, VERDICTS
from .watches import SETTLED

_GONE = {
    TRAJECTORIES.name: "knowledge = ''",
    VERDICTS.name: "group_name = ''",
    OPEN_IDS.name: f"state = '{SETTLED}'",
}
APPENDED = (TRAJECTORIES, VERDICTS, LATENCY_MINUTE, KEY_INDEX, OPEN_IDS, GROUP_FOLDS)
"""The relations of which a judgement appends rows."""


def latest_sql(
    relation: Relation, source: str, *, keep_gone: bool = False, columns: Sequence[str] | None = None
) -> str:
    """SQL: the current rows of one of APPENDED. columns: those of the source, if it lacks columns not needed for this.

    keep_gone: keep rows that mark a removal, because source has only some of the rows and the others may be older.
    """
    names = ", ".join(columns or relation.names)
    if relation.name in _GONE:
        last = "as_of_ms = max(as_of_ms) OVER (PARTITION BY cluster, publish_hour, msg_id)"
        gone = "" if keep_gone else f" WHERE NOT ({_GONE[relation.name]})"
        return f"SELECT {names} FROM (SELECT * FROM {source} AS judged QUALIFY {last}) AS latest{gone}"
    *keys, count = relation.names
    key = ", ".join(keys)
    left = "<> 0" if keep_gone else "> 0"
    return (
        f"SELECT {key}, sum({count})::bigint AS {count} FROM {source} AS counts GROUP BY {key} "
        f"HAVING sum({count}) {left}"
    )
