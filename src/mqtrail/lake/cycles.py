"""A judgement of what changed: messages with new records, and those whose verdict the state of the cluster changed.

    new attempts ──▶ their messages ──▶ facts, folds ──▶ state ──┐
                                                                 ├─▶ who else is due ──▶ verdicts ──▶ rows to append
    the state of the last judgement ─────────────────────────────┘

Results are appended: the latest judgement of a message counts, and rows that add up get rows that take away what the
message's last judgement had added. So the results together equal those of judging everything at once.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Protocol

import duckdb

from mqtrail import trail
from mqtrail.trail import Settings, Stage

from .duck import define, run_stages

_SAMPLES = tuple(name for name in trail.INPUTS if name not in (trail.ATTEMPTS.name, trail.GROUP_FOLDS.name))


@dataclass(frozen=True, slots=True)
class LastJudgement:
    """What a judgement needs of the one before it."""

    as_of_ms: int
    settings: dict[str, int]
    only_until: bool


class Known(Protocol):
    """What is there: SQL of rows, by whoever keeps them. hours: publish hours that suffice."""

    is_state_lost: bool
    """Whether the state of the last judgement cannot be read: then new_attempts has all attempts."""

    def new_attempts(self) -> str:
        """Attempts that no judgement has seen."""

    def judged_attempts(self, hours: Collection[int]) -> str:
        """Attempts that earlier judgements have seen."""

    def batch_items(self, hours: Collection[int]) -> str:
        """Of all attempts, at least those with a batch_id."""

    def results(self, name: str, hours: Collection[int] | None = None) -> str:
        """Rows of a relation of results; outdated ones may be among them."""

    def state(self, name: str) -> str:
        """A relation of trail.STATE, as the last judgement had it."""

    def samples(self, name: str, horizon_ms: int) -> str:
        """An input of the judgement that is read as a whole, for every instant from horizon_ms on."""


class Cycle:
    """One judgement in one DuckDB."""

    def __init__(
        self,
        duck: duckdb.DuckDBPyConnection,
        known: Known,
        as_of_ms: int,
        settings: Settings,
        last: LastJudgement | None,
        *,
        only_until: bool = False,
    ) -> None:
        """only_until: leave out attempts that begin later than as_of_ms."""
        assert last is None or last.as_of_ms < as_of_ms, f"{as_of_ms} is not after the last judgement"
        self._duck = duck
        self._known = known
        self._as_of_ms = as_of_ms
        self._settings = settings
        self._last = last
        self._only_until = only_until
        self._batches = False

    def run(self) -> int:
        """Judge; return the number of messages. The rows to append are relations named by `appended`."""
        self._find_new()
        self._count()
        self._see_state()
        if self._last is not None and not self._known.is_state_lost and self._find_changed(self._last):
            self._pick()
            self._facts("attempts_due", self._until)
        run_stages(
            self._duck,
            trail.verdict_stages(self._as_of_ms, self._settings, only_until=self._only_until),
            also_read=("trajectories", "verdicts", "open_ids", "latency_counts", "key_index") * 2,
        )
        self._append()
        return self._number("SELECT count(*) FROM trajectories")

    @property
    def _until(self) -> int | None:
        return self._as_of_ms if self._only_until else None

    # -- messages with new records ---------------------------------------------------------------------------------

    def _find_new(self) -> None:
        self._table("new_attempts", f"SELECT * FROM ({self._known.new_attempts()})")
        self._table("due_ids", "SELECT DISTINCT cluster, publish_hour, msg_id FROM new_attempts")
        self._pick()

    def _pick(self) -> None:
        """Make attempts_due: all attempts of due messages, with whoever shares a batch with them."""
        self._close_over_batches()
        hours = self._hours()
        due = "SEMI JOIN due_ids d ON a.cluster = d.cluster AND a.msg_id = d.msg_id"
        self._table("attempts_before", f"SELECT a.* FROM ({self._known.judged_attempts(hours)}) a {due}")
        self._view("attempts_due", f"SELECT * FROM attempts_before UNION ALL SELECT a.* FROM new_attempts a {due}")

    def _close_over_batches(self) -> None:
        """Add the batch of each due item and the items of each due batch, until there are no more."""
        while True:
            hours = self._hours()
            found = f"""SELECT DISTINCT cluster, publish_hour, msg_id, batch_id FROM (
              SELECT cluster, publish_hour, msg_id, batch_id FROM ({self._known.batch_items(hours)})
              UNION ALL SELECT cluster, publish_hour, msg_id, batch_id FROM new_attempts) AS items WHERE batch_id <> ''
              AND ((cluster, msg_id) IN (SELECT (cluster, msg_id) FROM due_ids)
                OR (cluster, batch_id) IN (SELECT (cluster, msg_id) FROM due_ids))"""
            self._table("items_due", found)
            before = self._number("SELECT count(*) FROM due_ids")
            self._duck.execute(
                """INSERT INTO due_ids SELECT cluster, publish_hour, msg_id FROM (
                  SELECT cluster, publish_hour, msg_id FROM items_due
                  UNION SELECT cluster, publish_hour, batch_id FROM items_due) AS linked
                WHERE (cluster, publish_hour, msg_id) NOT IN
                  (SELECT (cluster, publish_hour, msg_id) FROM due_ids)"""
            )
            self._batches = self._number("SELECT count(*) FROM items_due") > 0
            if self._number("SELECT count(*) FROM due_ids") == before:
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

    def _count(self) -> None:
        """Make folded: what the messages with new records show now, less what they showed before."""
        names = ", ".join(name for name in trail.GROUP_FOLDS.names if name != "row_count")
        counts = f"SELECT {names}, row_count FROM fold_counts"
        before = f"SELECT {names}, row_count FROM fold_counts WHERE false"
        if self._last is not None and self._number("SELECT count(*) FROM attempts_before"):
            self._facts("attempts_before", self._last.as_of_ms if self._last.only_until else None)
            self._table("fold_counts_before", counts)
            before = f"SELECT {names}, -row_count FROM fold_counts_before"
        self._facts("attempts_due", self._until)
        self._table(
            "folded",
            f"SELECT {names}, sum(row_count)::bigint AS row_count FROM ({counts} UNION ALL {before}) AS both_counts "
            f"GROUP BY {names} HAVING sum(row_count) <> 0",
        )

    def _see_state(self) -> None:
        folds = trail.GROUP_FOLDS.name
        columns = ", ".join(trail.GROUP_FOLDS.names)
        horizon_ms = self._as_of_ms - self._settings.trace_delay_ms
        for name in _SAMPLES:
            self._view(name, self._known.samples(name, horizon_ms))
        self._view(
            folds, f"SELECT {columns} FROM ({self._known.results(folds)}) UNION ALL SELECT {columns} FROM folded"
        )
        run_stages(self._duck, trail.state_stages(self._as_of_ms, self._settings), also_read=trail.STATE * 2)

    # -- messages that are due by the state ------------------------------------------------------------------------

    def _find_changed(self, last: LastJudgement) -> bool:
        """Add the messages whose verdict the state can have changed; return whether there are any."""
        for name in trail.STATE:
            self._view(f"last_{name}", self._known.state(name))
        settings = "true" if last.settings != self._settings.values() else "false"
        found = f"SELECT cluster, publish_hour, msg_id, as_of_ms FROM ({self._known.results(trail.OPEN_IDS.name)})"
        self._table("found_open", f"{found} AS every WHERE {settings}")
        self._table("found_ids", "SELECT * FROM found_open WHERE false")
        for cause in trail.causes(last.as_of_ms, self._as_of_ms, self._settings):
            self._table(f"changed_{cause.name}", cause.changes)
            if self._number(f"SELECT count(*) FROM changed_{cause.name}"):
                relation = cause.reads.removesuffix("_before")
                self._view(cause.reads, self._known.results(relation))
                target = "found_open" if relation == trail.OPEN_IDS.name else "found_ids"
                self._duck.execute(f"INSERT INTO {target} {cause.finds}")
        self._drop_outdated()
        before = self._number("SELECT count(*) FROM due_ids")
        self._duck.execute(
            """INSERT INTO due_ids SELECT DISTINCT cluster, publish_hour, msg_id FROM found_ids
            WHERE (cluster, msg_id) NOT IN (SELECT (cluster, msg_id) FROM due_ids)"""
        )
        return self._number("SELECT count(*) FROM due_ids") > before

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

    # -- what to append --------------------------------------------------------------------------------------------

    def _append(self) -> None:
        """Make the relations `append_…`: new rows, rows that say what is gone, and differences of counts."""
        self._known_results()
        place = "cluster, publish_hour, msg_id"
        for relation in (trail.TRAJECTORIES, trail.VERDICTS):
            columns = ", ".join(relation.names)
            gone = f"""SELECT {_gone(relation, self._as_of_ms)} FROM (SELECT DISTINCT {place} FROM {relation.name}_known
              EXCEPT SELECT {place} FROM {relation.name}) AS gone"""
            self._view(f"append_{relation.name}", f"SELECT {columns} FROM {relation.name} UNION ALL {gone}")
        settled = f"""SELECT {_gone(trail.OPEN_IDS, self._as_of_ms, state=trail.SETTLED)} FROM (
          SELECT {place} FROM trajectories_known WHERE is_open = 1 EXCEPT SELECT {place} FROM open_ids) AS settled"""
        self._view("append_open_ids", f"SELECT {', '.join(trail.OPEN_IDS.names)} FROM open_ids UNION ALL {settled}")
        self._difference(
            trail.LATENCY_MINUTE,
            "SELECT * FROM latency_counts",
            trail.latency_counts("trajectories_known", "verdicts_known"),
        )
        self._difference(trail.KEY_INDEX, "SELECT * FROM key_index", trail.key_tokens("trajectories_known"))
        self._view("append_group_folds", "SELECT * FROM folded")

    def _known_results(self) -> None:
        """Make trajectories_known and verdicts_known: the last judgements of the due messages."""
        hours = self._hours() if self._number("SELECT count(*) FROM attempts_before") else ()
        due = "SEMI JOIN due_ids d ON r.cluster = d.cluster AND r.msg_id = d.msg_id"
        for relation in (trail.TRAJECTORIES, trail.VERDICTS):
            rows = f"SELECT r.* FROM ({self._known.results(relation.name, hours)}) r {due}"
            self._table(f"{relation.name}_known", trail.latest_sql(relation, f"({rows})"))

    def _difference(self, relation: trail.Relation, after: str, before: str) -> None:
        *names, count = relation.names
        key = ", ".join(names)
        self._view(
            f"append_{relation.name}",
            f"""SELECT {relation.typed()} FROM (SELECT {key}, sum({count}) AS {count} FROM (
              SELECT {key}, {count} FROM ({after}) AS now UNION ALL SELECT {key}, -{count} FROM ({before}) AS before)
              GROUP BY {key} HAVING sum({count}) <> 0) AS changed""",
        )

    # -- DuckDB ----------------------------------------------------------------------------------------------------

    def _table(self, name: str, sql: str) -> None:
        define(self._duck, Stage(name, sql, ()), table=True)

    def _view(self, name: str, sql: str) -> None:
        define(self._duck, Stage(name, sql, ()))

    def _number(self, sql: str) -> int:
        [(number,)] = self._duck.execute(sql).fetchall()
        return int(number)


def _gone(relation: trail.Relation, as_of_ms: int, **texts: str) -> str:
    """SQL: the columns of a row that says what is gone, from its place."""
    own = {name: name for name in ("cluster", "publish_hour", "msg_id")}
    own |= {"as_of_ms": str(as_of_ms)} | {name: f"'{value}'" for name, value in texts.items()}
    return relation.typed({c.name: own.get(c.name, "''" if c.type == "string" else "NULL") for c in relation})
