"""A judgement of what changed: messages with new records, and those whose verdict the state of the cluster changed.

    new attempts ──▶ their messages ──▶ facts, folds ──▶ state ──┐
                                                                 ├─▶ who else is due ──▶ verdicts ──▶ rows to append
    the state of the last judgement ─────────────────────────────┘

Results are appended: the latest judgement of a message counts, and rows that add up get rows that take away what the
message's last judgement had added. So the results together equal those of judging everything at once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import duckdb

from mqtrail import trail
from mqtrail.trail import Settings, Stage

from .duck import define, define_overtaken, has_orders, run_stages
from .parquet import empty_rows, parquet_of

BULK_RESULTS = (trail.TRAJECTORIES, trail.VERDICTS, trail.OPEN_IDS, trail.KEY_INDEX)
"""Results that a bulk writes to files of their tables."""
_ATTEMPTS_GUESSED = 20  # of a message: if due messages may have too many for memory, they are counted first
_KNOWN_COLUMNS = {  # of the last judgements: what the difference to the new ones needs
    trail.TRAJECTORIES: (
        "cluster", "publish_hour", "msg_id", "batch_id", "as_of_ms", "topic", "keys", "traceparent", "broker_name",
        "send_start_ms", "send_ms", "knowledge", "is_open",
    ),
    trail.VERDICTS: (
        "cluster", "publish_hour", "msg_id", "group_name", "topic", "as_of_ms", "state", "first_delivered_ms",
        "success_start_ms", "done_ms", "visible_ms", "to_stored_ms", "delay_ms", "to_delivered_ms", "retry_ms",
        "handler_ms", "total_ms",
    ),
}  # fmt: skip


StatePrint = tuple[int, int | None]
"""Number of rows of a relation, and the sum of their hashes: relations with equal ones have the same rows."""


@dataclass(frozen=True, slots=True)
class LastJudgement:
    """What a judgement needs of the one before it."""

    as_of_ms: int
    settings: dict[str, int]
    only_until: bool
    prints: Mapping[str, StatePrint] = field(default_factory=dict)
    """Of the relations of trail.STATE as it saw them; empty: not known."""


class Known(Protocol):
    """Returns SQL for the rows that a judgement reads. hours: rows of other publish hours may be left out."""

    is_state_lost: bool
    """Whether the state of the last judgement cannot be read: then all attempts are new, and none are judged."""

    def new_count(self) -> int:
        """Number of attempts that no judgement has seen."""

    def new_attempts(self) -> str:
        """Attempts that no judgement has seen."""

    def judged_attempts(self, hours: Collection[int] | None = None) -> str:
        """Attempts that earlier judgements have seen. None: of every hour."""

    def batch_items(self, hours: Collection[int]) -> str:
        """Of all attempts, at least those with a batch_id."""

    def results(self, name: str, hours: Collection[int] | None = None) -> str:
        """Rows of a relation of results; outdated ones may be among them."""

    def state(self, name: str) -> str:
        """A relation of trail.STATE as of the last judgement."""

    def samples(self, name: str, horizon_ms: int) -> str:
        """An input of the judgement that is read as a whole, for every instant from horizon_ms on."""


class Bulk(Protocol):
    """Judges many messages with new records outside of this DuckDB."""

    @property
    def rows_min(self) -> int:
        """Number of attempts from which on the bulk is used."""

    def judge(
        self, attempts: str, group_folds: str, compared: Mapping[str, str], *, batches: bool, counted: bool
    ) -> Mapping[str, Sequence[str]]:
        """Judge messages; return the Parquet files of each of BULK_RESULTS and of latency_minute.

        counted: judge those of attempts; group_folds counts all messages. Otherwise judge those of the new attempts
        too, with the folds of all other messages; return also the files of folds and of trail.STATE.
        compared: name of each relation of trail.COMPARED -> SQL of its rows.
        """

    def count(self, attempts: str, until_ms: int | None, *, batches: bool) -> Sequence[str]:
        """Return the Parquet files of fold_counts (`trail.fact_stages`) of these attempts."""


class Cycle:
    """One judgement in one DuckDB, of which a bulk can do the larger part."""

    def __init__(
        self,
        duck: duckdb.DuckDBPyConnection,
        known: Known,
        as_of_ms: int,
        settings: Settings,
        last: LastJudgement | None,
        *,
        only_until: bool = False,
        bulk: Bulk | None = None,
    ) -> None:
        """only_until: leave out attempts that begin later than as_of_ms. bulk: for many attempts."""
        assert last is None or last.as_of_ms < as_of_ms, f"{as_of_ms} is not after the last judgement"
        self._duck = duck
        self._known = known
        self._as_of_ms = as_of_ms
        self._settings = settings
        self._last = last
        self._only_until = only_until
        self._bulk = bulk
        self._batches = False
        self._has_before = known.is_state_lost
        self._before_count = 0  # rows of attempts_before
        self.bulk_files: dict[str, list[str]] = {}
        """What a bulk made: the files of BULK_RESULTS are to be appended too."""
        self.prints: dict[str, StatePrint] = {}
        """Of the state that this judgement sees."""

    def run(self) -> int:
        """Judge; return the number of messages. The rows to append are relations named by `append_…`."""
        self._find_new()
        if (bulk := self._bulk_for(self._known.new_count() + self._before_count)) is not None:
            self._judge_in_bulk(bulk)
        else:
            self._judge_here()
        if not self._number("SELECT count(*) FROM due_ids"):
            self._append_nothing()
            return 0
        self._append()
        return self._number(f"SELECT count(*) FROM ({self._judged(trail.TRAJECTORIES)})")

    def _judge_here(self) -> None:
        has_new = self._number("SELECT count(*) FROM due_ids") > 0
        if has_new or self._known.is_state_lost:
            self._count_before()
            self._count()
        else:
            self._table("folded", empty_rows(trail.GROUP_FOLDS))
        self._compute_state()
        if self._find_changed():
            self._pick()
            self._judge_counted(self._known.new_count() + self._before_count)
        elif has_new:
            self._judge_facts()

    def _judge_in_bulk(self, bulk: Bulk) -> None:
        """Let the bulk judge the messages with new records; then judge the others that the state concerns.

        No batch has messages of both kinds, so each kind can be judged separately.
        """
        self._count_before()
        compared = self._compare()
        self._add_files(
            bulk.judge("attempts_before", self._folds_of_others(), compared, batches=self._batches, counted=False)
        )
        self._read_state_of_bulk()
        self._table("judged_ids", "SELECT * FROM due_ids")
        is_changed = self._find_changed()
        self._duck.execute("DELETE FROM due_ids WHERE (cluster, msg_id) IN (SELECT (cluster, msg_id) FROM judged_ids)")
        if is_changed:
            self._pick()
            self._judge_counted(self._before_count)
        else:
            self._judge_none()
        self._duck.execute("INSERT INTO due_ids SELECT * FROM judged_ids")

    def _judge_counted(self, attempt_count: int) -> None:
        """Judge the due messages, which the folds and the state contain. attempt_count: the most that they can have."""
        bulk = self._bulk_for(attempt_count)
        if bulk is None:
            self._facts("attempts_due", self._until)
            self._judge_facts()
            return
        every = f"{self._known.results(trail.GROUP_FOLDS.name)} UNION ALL SELECT {_FOLD}, row_count FROM folded"
        folds = f"SELECT {_FOLD}, sum(row_count)::bigint AS row_count FROM ({every}) AS counts GROUP BY {_FOLD}"
        made = dict(bulk.judge("attempts_due", folds, self._compare(), batches=self._batches, counted=True))
        self._judge_none()
        # Tokens of keys rarely change: those that the messages had before are not appended again.
        self._view(trail.KEY_INDEX.name, self._rows_in(made.pop(trail.KEY_INDEX.name), trail.KEY_INDEX))
        self._add_files(made)

    def _judge_none(self) -> None:
        """Make the relations of results without rows: a bulk makes the results."""
        for relation in (*BULK_RESULTS, trail.LATENCY_MINUTE):
            name = "latency_counts" if relation == trail.LATENCY_MINUTE else relation.name
            self._table(name, empty_rows(relation))

    def _bulk_for(self, attempt_count: int) -> Bulk | None:
        """The bulk, if it is to judge so many attempts."""
        return self._bulk if self._bulk is not None and attempt_count >= self._bulk.rows_min else None

    def _add_files(self, made: Mapping[str, Sequence[str]]) -> None:
        for name, files in made.items():
            self.bulk_files.setdefault(name, []).extend(files)

    def _judge_facts(self) -> None:
        self._compare()
        run_stages(
            self._duck,
            trail.verdict_stages(self._as_of_ms, self._settings, only_until=self._only_until),
            also_read=("trajectories", "verdicts", "open_ids", "latency_counts", "key_index") * 2,
        )

    @property
    def _horizon_ms(self) -> int:
        return self._as_of_ms - self._settings.trace_delay_ms

    @property
    def _until(self) -> int | None:
        return self._as_of_ms if self._only_until else None

    # -- messages with new records ---------------------------------------------------------------------------------

    def _find_new(self) -> None:
        new = f"SELECT * FROM ({self._known.new_attempts()})"
        if self._bulk_for(self._known.new_count()) is not None:
            self._view("new_attempts", new)
        else:
            self._table("new_attempts", new)
        left = "SELECT cluster, publish_hour, msg_id FROM new_attempts"
        if self._last is not None and self._last.only_until:
            left += f" UNION ALL {self._left_out(self._last.as_of_ms)}"
        if self._only_until:
            left += f" UNION ALL {self._later()}"
        self._table("due_ids", f"SELECT DISTINCT cluster, publish_hour, msg_id FROM ({left}) AS due")
        self._find_alike()
        self._find_overtaken()
        self._pick()

    def _left_out(self, last_ms: int) -> str:
        """SQL: messages with attempts that the last judgement left out. The folds do not contain these attempts."""
        return f"""SELECT cluster, publish_hour, msg_id FROM ({self._known.results(trail.OPEN_IDS.name)}) AS waiting
          WHERE as_of_ms = {last_ms} AND look_ms = {last_ms + 1}"""

    def _later(self) -> str:
        """SQL: messages with attempts that this judgement leaves out and earlier ones counted in the folds.

        Each column alone is compared, so that DuckDB skips row groups by their statistics.
        """
        judged = self._known.judged_attempts()
        places = f"SELECT cluster, publish_hour, msg_id FROM ({judged}) AS judged WHERE"
        late = f"> {self._as_of_ms}"
        return f"{places} start_ms {late} UNION ALL {places} start_ms IS NULL AND end_ms {late}"

    def _find_alike(self) -> None:
        """Make alike_found from the copies that no judgement has compared, and add its messages to those due."""
        copies = trail.alike_copies_sql("new_attempts", self._until)
        if self._last is not None and self._last.only_until:
            left = f"({self._known.judged_attempts(self._hours())}) AS judged"
            copies += f" UNION {trail.alike_copies_sql(left, self._until)} AND start_ms > {self._last.as_of_ms}"
        self._table("alike_new", copies)
        window_ms = self._settings.duplicate_send_ms
        [(first_ms, last_ms)] = self._duck.execute("SELECT min(at_ms), max(at_ms) FROM alike_new").fetchall()
        near = "SELECT * FROM alike_new"
        if first_ms is not None:
            judged = trail.alike_copies_sql(f"({self._known.judged_attempts(self._hours())}) AS judged", self._until)
            near += f""" UNION SELECT j.* FROM (
              {judged} AND start_ms BETWEEN {first_ms - window_ms} AND {last_ms + window_ms}) j
              SEMI JOIN alike_new n ON j.cluster = n.cluster AND j.print = n.print"""
        self._table("alike_copies", near)
        self._table("alike_found", trail.alike_found_sql("alike_copies", window_ms))
        self._duck.execute(
            """INSERT INTO due_ids SELECT cluster, publish_hour, msg_id FROM alike_found
            WHERE (cluster, msg_id) NOT IN (SELECT (cluster, msg_id) FROM due_ids)"""
        )

    def _find_overtaken(self) -> None:
        """Add the messages that an ordered group finished after a message that is due."""
        clients = f"({self._known.samples(trail.CLIENTS.name, self._horizon_ms)}) AS sampled"
        self._table("orders_now", trail.group_orders_sql(clients, self._as_of_ms))
        if not has_orders(self._duck):
            return
        self._define_overtaken()
        self._duck.execute(
            """INSERT INTO due_ids SELECT DISTINCT cluster, publish_hour, msg_id FROM overtaken_found
            WHERE (cluster, later_id) IN (SELECT (cluster, msg_id) FROM due_ids)
              AND (cluster, msg_id) NOT IN (SELECT (cluster, msg_id) FROM due_ids)"""
        )

    def _define_overtaken(self) -> None:
        columns = ", ".join(trail.ATTEMPTS.names)
        judged = self._known.judged_attempts(self._hours())
        self._view(
            "attempts_near", f"SELECT {columns} FROM ({judged}) AS judged UNION ALL SELECT {columns} FROM new_attempts"
        )
        define_overtaken(self._duck, "attempts_near", self._settings, self._until)

    def _compare(self) -> dict[str, str]:
        """Make trail.COMPARED of the due messages; return SQL of the rows of each."""
        self._find_sent_before()
        if has_orders(self._duck):
            self._define_overtaken()
            self._table(trail.OVERTAKEN.name, trail.overtaken_sql("overtaken_found"))
        else:
            self._table(trail.OVERTAKEN.name, empty_rows(trail.OVERTAKEN))
        return {relation.name: f"SELECT * FROM {relation.name}" for relation in trail.COMPARED}

    def _find_sent_before(self) -> None:
        """Make the table sent_before of the due messages, from what was found now and in their last judgements."""
        known = empty_rows(trail.SENT_BEFORE)
        if self._has_before:
            rows = self._known.results(trail.TRAJECTORIES.name, self._hours())
            due = f"(SELECT r.* FROM ({rows}) r SEMI JOIN due_ids d ON r.cluster = d.cluster AND r.msg_id = d.msg_id)"
            known = trail.alike_known_sql(f"{due} AS due")
        self._table("sent_before", trail.sent_before_sql("alike_found", f"({known}) AS known"))

    def _pick(self) -> None:
        """Make attempts_due: all attempts of due messages and of messages in the same batches."""
        self._close_over_batches()
        hours = self._hours()
        due = "SEMI JOIN due_ids d ON a.cluster = d.cluster AND a.msg_id = d.msg_id"
        self._before_count = self._define_before(f"SELECT a.* FROM ({self._known.judged_attempts(hours)}) a {due}")
        self._has_before = self._has_before or self._before_count > 0
        self._view("attempts_due", f"SELECT * FROM attempts_before UNION ALL SELECT a.* FROM new_attempts a {due}")

    def _define_before(self, rows: str) -> int:
        """Make attempts_before: a table of few rows, a view of those that a bulk judges. Return the number of rows."""
        ids = self._number("SELECT count(*) FROM due_ids")
        if self._bulk_for(ids * _ATTEMPTS_GUESSED) is not None:
            self._view("attempts_before", rows)
            count = self._number("SELECT count(*) FROM attempts_before")
            if self._bulk_for(count) is not None:
                return count
        return self._table("attempts_before", rows)

    def _close_over_batches(self) -> None:
        """Add the batch of each due item and the items of each due batch, until there are no more."""
        while True:
            hours = self._hours()
            found = f"""SELECT DISTINCT cluster, publish_hour, msg_id, batch_id FROM (
              SELECT cluster, publish_hour, msg_id, batch_id FROM ({self._known.batch_items(hours)})
              UNION ALL SELECT cluster, publish_hour, msg_id, batch_id FROM new_attempts) AS items WHERE batch_id <> ''
              AND ((cluster, msg_id) IN (SELECT (cluster, msg_id) FROM due_ids)
                OR (cluster, batch_id) IN (SELECT (cluster, msg_id) FROM due_ids))"""
            self._batches = self._table("items_due", found) > 0
            added = self._number(
                """INSERT INTO due_ids SELECT cluster, publish_hour, msg_id FROM (
                  SELECT cluster, publish_hour, msg_id FROM items_due
                  UNION SELECT cluster, publish_hour, batch_id FROM items_due) AS linked
                WHERE (cluster, publish_hour, msg_id) NOT IN
                  (SELECT (cluster, publish_hour, msg_id) FROM due_ids)"""
            )
            if not added:
                return

    def _hours(self) -> set[int]:
        """The publish hours of due messages, with those beside them: a batch can be younger than its items."""
        rows = self._duck.execute("SELECT DISTINCT publish_hour FROM due_ids").fetchall()
        return {int(hour) + step for (hour,) in rows for step in (-1, 0, 1)}

    # -- facts, folds, state ---------------------------------------------------------------------------------------

    def _facts(self, attempts: str, until_ms: int | None) -> None:
        self._view("attempts", f"SELECT * FROM {attempts}")
        kept = ("resolved", "carriers", "message_facts", "hand_overs", "rounds", "group_copies", "fold_counts")
        run_stages(self._duck, trail.fact_stages(until_ms, self._batches), also_read=kept * 2)

    def _count_before(self) -> None:
        """Make fold_counts_before: the counts of the messages with new records as of the last judgement."""
        if self._known.is_state_lost:
            kept = self._known.results(trail.GROUP_FOLDS.name)
            self._table("fold_counts_before", f"SELECT {_FOLD}, row_count FROM ({kept})")
        elif self._last is not None and self._before_count:
            until_ms = self._last.as_of_ms if self._last.only_until else None
            counts = "fold_counts"
            if (bulk := self._bulk_for(self._before_count)) is not None:
                counts = parquet_of(bulk.count("attempts_before", until_ms, batches=self._batches))
            else:
                self._facts("attempts_before", until_ms)
            self._table("fold_counts_before", f"SELECT {_FOLD}, row_count FROM {counts}")
        else:
            self._table("fold_counts_before", f"SELECT {_FOLD}, row_count FROM ({empty_rows(trail.GROUP_FOLDS)})")

    def _count(self) -> None:
        """Make folded: the counts of the messages with new records now, less their counts before."""
        self._facts("attempts_due", self._until)
        self._table("folded", _sum_of("fold_counts", "fold_counts_before"))

    def _folds_of_others(self) -> str:
        """SQL: the folds without the messages with new records."""
        return _sum_of(f"({self._known.results(trail.GROUP_FOLDS.name)})", "fold_counts_before")

    def _read_state_of_bulk(self) -> None:
        """Make folded and trail.STATE as `_count` and `_compute_state` do, from the files of a bulk."""
        for name in ("folds", *trail.STATE):
            self._table(name, f"SELECT * FROM {parquet_of(self.bulk_files[name])}")
        self._table("folded", _sum_of("folds", f"({self._known.results(trail.GROUP_FOLDS.name)})"))

    def _compute_state(self) -> None:
        folds = trail.GROUP_FOLDS.name
        columns = ", ".join(trail.GROUP_FOLDS.names)
        stages = trail.state_stages(self._as_of_ms, self._settings)
        readers = Counter(name for stage in stages for name in stage.reads)
        for name in trail.READ_WHOLE:
            # Samples are in many small files, and keyframes bound their rows: read once what several stages read.
            is_table = name in trail.SAMPLED and readers[name] > 1
            define(self._duck, Stage(name, self._known.samples(name, self._horizon_ms), ()), table=is_table)
        self._view(
            folds, f"SELECT {columns} FROM ({self._known.results(folds)}) UNION ALL SELECT {columns} FROM folded"
        )
        run_stages(self._duck, stages, also_read=trail.STATE * 2)

    # -- messages that are due by the state ------------------------------------------------------------------------

    def _find_changed(self) -> bool:
        """Add the messages whose verdict the state can have changed; return whether there are any."""
        last = self._last
        self.prints = self._print_state()
        if last is None or self._known.is_state_lost:
            return False
        settings = "true" if last.settings != self._settings.values() else "false"
        found = f"SELECT cluster, publish_hour, msg_id, as_of_ms FROM ({self._known.results(trail.OPEN_IDS.name)})"
        self._table("found_open", f"{found} AS every WHERE {settings}")
        self._table("found_ids", "SELECT * FROM found_open WHERE false")
        for cause in self._causes(last):
            changes = Stage(f"changed_{cause.name}", cause.changes, ())
            if define(self._duck, changes, table=True, recurs=True):
                relation = cause.reads.removesuffix("_before")
                self._view(cause.reads, self._known.results(relation))
                target = "found_open" if relation == trail.OPEN_IDS.name else "found_ids"
                self._duck.execute(f"INSERT INTO {target} {cause.finds}")
        self._drop_outdated()
        added = self._number(
            """INSERT INTO due_ids SELECT DISTINCT cluster, publish_hour, msg_id FROM found_ids
            WHERE (cluster, msg_id) NOT IN (SELECT (cluster, msg_id) FROM due_ids)"""
        )
        return added > 0

    def _causes(self, last: LastJudgement) -> list[trail.Cause]:
        """The causes that can have found something, the state of the last judgement being readable for them."""
        same = frozenset(name for name, found in self.prints.items() if last.prints.get(name) == found)
        empty = frozenset(name for name, (count, _) in self.prints.items() if not count)
        every = trail.causes(last.as_of_ms, self._as_of_ms, self._settings)
        causes = [cause for cause in every if cause.may_change(same, empty)]
        for name in frozenset().union(*(cause.state for cause in causes)):
            self._view(f"last_{name}", self._known.state(name))
        return causes

    def _print_state(self) -> dict[str, StatePrint]:
        rows = " UNION ALL ".join(
            f"SELECT '{name}', count(*), sum(hash(state_row)::hugeint) FROM {name} AS state_row" for name in trail.STATE
        )
        return {name: (count, hashes) for name, count, hashes in self._duck.execute(rows).fetchall()}

    def _drop_outdated(self) -> None:
        """Keep the found rows of open_ids that no later judgement replaced."""
        [(first_ms,)] = self._duck.execute("SELECT min(as_of_ms) FROM found_open").fetchall()
        if first_ms is None:
            return
        self._duck.execute(
            f"""INSERT INTO found_ids SELECT f.* FROM found_open f JOIN (
              SELECT cluster, msg_id, max(as_of_ms) AS as_of_ms
              FROM ({self._known.results(trail.OPEN_IDS.name)}) AS kept
              WHERE as_of_ms >= {first_ms} AND (cluster, msg_id) IN (SELECT (cluster, msg_id) FROM found_open)
              GROUP BY cluster, msg_id) AS latest
            ON f.cluster = latest.cluster AND f.msg_id = latest.msg_id AND f.as_of_ms = latest.as_of_ms"""
        )

    # -- rows to append --------------------------------------------------------------------------------------------

    def _append(self) -> None:
        """Make the relations `append_…`: new rows, rows that mark removed results, and differences of counts."""
        self._known_results()
        place = "cluster, publish_hour, msg_id"
        for relation in (trail.TRAJECTORIES, trail.VERDICTS):
            columns = ", ".join(relation.names)
            gone = f"""SELECT {_gone(relation, self._as_of_ms)} FROM (SELECT DISTINCT {place} FROM {relation.name}_known
              EXCEPT SELECT {place} FROM ({self._judged(relation)})) AS gone"""
            self._view(f"append_{relation.name}", f"SELECT {columns} FROM {relation.name} UNION ALL {gone}")
        settled = f"""SELECT {_gone(trail.OPEN_IDS, self._as_of_ms, state=trail.SETTLED)} FROM (
          SELECT {place} FROM trajectories_known WHERE is_open = 1
          EXCEPT SELECT {place} FROM ({self._judged(trail.OPEN_IDS)})) AS settled"""
        self._view("append_open_ids", f"SELECT {', '.join(trail.OPEN_IDS.names)} FROM open_ids UNION ALL {settled}")
        counts = ", ".join(trail.LATENCY_MINUTE.names)
        self._difference(
            trail.LATENCY_MINUTE,
            f"SELECT {counts} FROM latency_counts UNION ALL {self._of_bulk(trail.LATENCY_MINUTE)}",
            trail.latency_counts("trajectories_known", "verdicts_known"),
        )
        # A bulk has appended all tokens of its messages: remove those that they had before.
        self._difference(trail.KEY_INDEX, "SELECT * FROM key_index", trail.key_tokens("trajectories_known"))
        self._view("append_group_folds", "SELECT * FROM folded")

    def clock_bounds(self) -> str:
        """SQL: rows of trail.CLOCK_BOUNDS of the messages that were judged."""
        self._view("trajectories_judged", self._judged(trail.TRAJECTORIES))
        self._view("verdicts_judged", self._judged(trail.VERDICTS))
        return trail.judged_bounds_sql("trajectories_judged", "verdicts_judged")

    def _append_nothing(self) -> None:
        """Make the relations `append_…` if no message is due."""
        for relation in trail.APPENDED:
            rows = "SELECT * FROM folded" if relation == trail.GROUP_FOLDS else empty_rows(relation)
            self._view(f"append_{relation.name}", rows)

    def _judged(self, relation: trail.Relation) -> str:
        """SQL: the new rows of a result, with those that a bulk has appended."""
        return f"SELECT {', '.join(relation.names)} FROM {relation.name} UNION ALL {self._of_bulk(relation)}"

    def _of_bulk(self, relation: trail.Relation) -> str:
        return self._rows_in(self.bulk_files.get(relation.name, ()), relation)

    @staticmethod
    def _rows_in(files: Sequence[str], relation: trail.Relation) -> str:
        return f"SELECT {', '.join(relation.names)} FROM {parquet_of(files)}" if files else empty_rows(relation)

    def _known_results(self) -> None:
        """Make trajectories_known and verdicts_known: the last judgements of the due messages."""
        hours = self._hours() if self._has_before else ()
        due = "SEMI JOIN due_ids d ON r.cluster = d.cluster AND r.msg_id = d.msg_id"
        for relation, columns in _KNOWN_COLUMNS.items():
            picked = ", ".join(f"r.{name} AS {name}" for name in columns)
            rows = f"(SELECT {picked} FROM ({self._known.results(relation.name, hours)}) r {due})"
            self._table(f"{relation.name}_known", trail.latest_sql(relation, rows, columns=columns))

    def _difference(self, relation: trail.Relation, after: str, before: str) -> None:
        *names, count = relation.names
        key = ", ".join(names)
        self._table(  # which is counted and written
            f"append_{relation.name}",
            f"""SELECT {relation.typed()} FROM (SELECT {key}, sum({count}) AS {count} FROM (
              SELECT {key}, {count} FROM ({after}) AS now UNION ALL SELECT {key}, -{count} FROM ({before}) AS before)
              GROUP BY {key} HAVING sum({count}) <> 0) AS changed""",
        )

    # -- DuckDB ----------------------------------------------------------------------------------------------------

    def _table(self, name: str, sql: str) -> int:
        """Make a table; return how many rows it has."""
        return define(self._duck, Stage(name, sql, ()), table=True)

    def _view(self, name: str, sql: str) -> None:
        define(self._duck, Stage(name, sql, ()))

    def _number(self, sql: str) -> int:
        """The number that a statement gives: of INSERT, how many rows."""
        [(number,)] = self._duck.execute(sql).fetchall()
        return int(number)


_FOLD = ", ".join(name for name in trail.GROUP_FOLDS.names if name != "row_count")


def _sum_of(plus: str, minus: str) -> str:
    """SQL: columns of GROUP_FOLDS, the counts of one relation less those of another."""
    return (
        f"SELECT {_FOLD}, sum(row_count)::bigint AS row_count FROM (SELECT {_FOLD}, row_count FROM {plus} AS added "
        f"UNION ALL SELECT {_FOLD}, -row_count FROM {minus} AS taken) AS counts "
        f"GROUP BY {_FOLD} HAVING sum(row_count) <> 0"
    )


def _gone(relation: trail.Relation, as_of_ms: int, **texts: str) -> str:
    """SQL: the columns of a row that marks a removed result, from its place."""
    own = {name: name for name in ("cluster", "publish_hour", "msg_id")}
    own |= {"as_of_ms": str(as_of_ms)} | {name: f"'{value}'" for name, value in texts.items()}
    return relation.typed({c.name: own.get(c.name, "''" if c.type == "string" else "NULL") for c in relation})
