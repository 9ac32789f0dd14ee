"""Whether a Delta table has the rows of its source.

table at a version ─┐
source in a snapshot ┴→ checksums of parts → rows of parts that differ → why: late, or missing, extra, different
                                      comparing                              lateness
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import Final

from mqtrail.binlog import BinlogPlace, BinlogSource, BinlogState, SourceTable, order_text, read_state
from mqtrail.client import SyncAdmin
from mqtrail.trail import ProofResult
from mqtrail.wire import MQError

from .comparing import RowComparison
from .differences import CompareConfig, FoundRow, RowDifference, RowFault, TableComparison, hint_of
from .lateness import LateRows
from .model import DELETED, MSG_ID, OP, POSITION, TableError
from .target import DeltaTarget

MESSAGES_MAX: Final = 8  # ids of messages that are looked up for one row
MESSAGE_LOOKS_MAX: Final = 20  # rows for which they are


def compare(config: CompareConfig, say: Callable[[str], None] = lambda text: None) -> TableComparison:
    """Compare a table with its source now. TableError, TableUnreadable, BinlogError, SourceAway, MQError."""
    begun = time.monotonic()
    target = DeltaTarget.open(config.table)  # before the source: it cannot be ahead of it
    if target is None:
        raise TableError(f"{config.table}: found no table, expected one of `mqtrail pipeline table`: pass --table")
    _, position = target.read_to()
    source = BinlogSource(config.source)
    identity = source.identity()
    state = None if config.state is None else _state(config.state, identity, target.topic)
    with SourceTable.opened(source, target.source, config.excluded) as one:
        _check_ahead(target, one.place)
        with closing(target.connected()) as connection:
            comparing = RowComparison(one, connection, target)
            comparing.run(say)
            late = LateRows(config, target, one.place, state)
            sorts = late.sorts(comparing.found)
            examples = _examples(comparing, sorts, config.rows_max)
            examples = _with_messages(config, target.topic, examples)
        notes = [*comparing.notes, *late.notes]
        counts = Counter(str(sort) for sort in sorts.values())
        faults = sum(counts[sort] for sort in (RowFault.MISSING, RowFault.EXTRA, RowFault.DIFFERENT))
        open_ = counts[RowFault.LATE] + counts[RowFault.UNKNOWN]
        return TableComparison(
            outcome=ProofResult.FOUND if faults else ProofResult.CANNOT_TELL if open_ else ProofResult.NONE,
            source=target.source,
            topic=target.topic,
            table=str(config.table),
            version=target.version,
            source_rows=comparing.source_rows,
            table_rows=comparing.table_rows,
            source_place=str(one.place),
            read_to=position,
            parts=comparing.parts,
            parts_different=comparing.parts_different,
            counts={str(sort): counts[sort] for sort in RowFault},
            columns=dict(
                Counter(
                    name for row in comparing.found if sorts[row.key] is RowFault.DIFFERENT for name in row.columns
                ).most_common()
            ),
            rows=tuple(examples),
            out_of_order=target.late_messages(),
            is_cut=comparing.is_cut,
            lag_ms=late.lag_ms,
            notes=tuple(notes),
            seconds=round(time.monotonic() - begun, 3),
        )


def _state(path: Path, identity: str, topic: str) -> BinlogState:
    """Return the state of the run that sends to the table's topic. TableError: it is of another run."""
    state = read_state(path)
    if state is None:
        raise TableError(f"found no state {str(path)!r}, expected that of `mqtrail binlog run`: pass --state")
    if state.source != identity or state.wish.get("topic") != topic:
        raise TableError(
            f"found the state {str(path)!r} of a run from the server {state.source} to the topic "
            f"{state.wish.get('topic')}, expected one from {identity} to {topic}: pass the --state of the run that "
            "sends to the table's topic"
        )
    return state


def _check_ahead(target: DeltaTarget, place: BinlogPlace) -> None:
    """TableError: the table has changes that the source does not have yet."""
    order, position = target.read_to()
    if order > order_text(place, 0):
        raise TableError(
            f"{target.path}: found changes up to {position}, expected none after {place}, where the binlog of the "
            "source ends: the table is ahead of this server, which is another one, or was restored, or RESET MASTER "
            "was called; pass the right server, or build a new table from a new snapshot: `mqtrail binlog run` with a "
            "new --state and a new topic"
        )


def _examples(comparing: RowComparison, sorts: Mapping[str, RowFault], rows_max: int) -> list[RowDifference]:
    chosen: list[FoundRow] = []
    for sort in RowFault:
        chosen += [row for row in comparing.found if sorts[row.key] is sort][:rows_max]
    about = comparing.about([row.key for row in chosen])
    made = []
    for row in chosen:
        has = about.get(row.key, {})
        hint = next((text for pair in row.columns.values() if (text := hint_of(*pair))), "")
        if not row.in_table and has.get(DELETED):
            hint = f"the table has a {'statement' if has[OP] == 'schema' else 'deletion'} of it"
        made.append(
            RowDifference(
                sort=sorts[row.key],
                key=row.key,
                columns=row.columns,
                position=has.get(POSITION) or "",
                msg_id=has.get(MSG_ID) or "",
                hint=hint,
            )
        )
    return made


def _with_messages(config: CompareConfig, topic: str, rows: Sequence[RowDifference]) -> list[RowDifference]:
    """Look up the messages of the first rows by their keys. Without an answer there are none."""
    made = list(rows)
    with suppress(MQError, OSError), SyncAdmin(config.namesrv, config=config.instance) as admin:
        for number, row in enumerate(made[:MESSAGE_LOOKS_MAX]):
            found = admin.query(topic, row.key, count_max=32).messages
            ids = tuple(one.msg_id for one in found)[-MESSAGES_MAX:]
            made[number] = replace(row, messages=ids)
    return made
