"""Results are appended at each judgement. How their rows become what holds now.

Trajectories, verdicts and open ids: the rows of a message's latest judgement; a row that says what is gone is none.
Counts (latency, keys, folds over groups): rows of one key add up; what adds up to nothing is gone.
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
    """SQL: what holds now, from rows of one of APPENDED. columns: of the source, if it lacks some that do not decide.

    keep_gone: for some of the rows: others may be older.
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
