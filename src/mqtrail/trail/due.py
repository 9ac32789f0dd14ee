"""Finds the messages to judge again without new records, because the state of the cluster changed.

The state (`STATE`, small relations) of the last judgement is compared with the new one. Each kind of change finds its
messages in the cheapest relation:

    time, an offset that passes a message, a sample, changed clients    →  open_ids
    a group or topic seen for the first time, losses, filters, limits   →  the last trajectories and verdicts

A kind of change may find messages whose verdict stays the same; they are judged without need. It must not miss a
message: verdicts would then depend on the times of the judgements. A test with random histories and random splits into
cycles checks this.
"""

from __future__ import annotations

from dataclasses import dataclass

from .broadcasts import REASON as BROADCAST_REASON
from .context import IN_ORDER
from .ends import TX_STATE, TX_TOPICS
from .evidence import CLIENT_NOT_TRACED, CLIENT_VANISHED, RANGE_NOT_READ
from .judgement import NEVER_HANDED, NOT_ENDED, REDELIVERY_MS_MIN
from .kinds import quoted
from .messages import has_code
from .pops import of_retry_topic, retry_topics
from .settings import Settings

STATE = (
    "whole_samples", "sample_gaps",
    "topic_groups", "broadcast_clients", "offsets_at", "offset_samples", "group_clients", "live_clients",
    "group_orders", "filter_runs",
    "scanned_topics", "end_scans", "losses", "group_losses", "hung_limits", "group_limits", "traced_groups",
    "traced_hosts", "unread_at",
)  # fmt: skip
"""Relations of the state of the cluster and its groups: all inputs of a verdict except the message's own records."""

LAST = "last_"
"""Prefix of the same relations in the state of the last judgement."""

OPEN_IDS, TRAJECTORIES, VERDICTS = "open_ids_before", "trajectories_before", "verdicts_before"
"""Relations of results of earlier judgements. Outdated rows in them do no harm."""

_NEVER_MS = 1 << 62
_HANDLER_MARGIN_MS = 86_400_000  # maximum time from the last event with a time to the end of a handler


@dataclass(frozen=True, slots=True)
class Cause:
    """One kind of change: SQL that finds changes, and SQL that finds the messages that they concern."""

    name: str
    changes: str
    """SQL: the changes between the two states. Its relation is called `changed_<name>`."""
    finds: str
    """SQL: cluster, publish_hour and msg_id of messages, and as_of_ms of the row in which they were found."""
    reads: str
    """The relation that `finds` reads: OPEN_IDS, TRAJECTORIES or VERDICTS."""
    by_time: bool = False
    """Whether time alone makes a change, if the state has rows."""

    @property
    def state(self) -> frozenset[str]:
        """At least the relations of STATE that `changes` compares."""
        return frozenset(name for name in STATE if name in self.changes)

    def may_change(self, same: frozenset[str], empty: frozenset[str]) -> bool:
        """Whether there can be changes. same, empty: relations with the rows of the last judgement, and without any."""
        return not self.state or not self.state <= (same & empty if self.by_time else same)


def causes(last_ms: int, as_of_ms: int, settings: Settings) -> list[Cause]:
    """Return every kind of change between the judgements as of last_ms and as_of_ms."""
    return [
        *_of_open_ids(last_ms, as_of_ms, settings),
        *_of_whole_samples(),
        _of_transactions(last_ms, as_of_ms, settings),
        *_of_groups(),
        _of_late_groups(),
        _of_broadcasts(),
        *_of_sources(),
        *_of_offsets(),
        *_of_losses(last_ms, as_of_ms, settings),
        _subscriptions(settings),
        *_of_unread(),
        _of_copies(settings),
    ]


def _both(name: str, keys: tuple[str, ...], values: tuple[str, ...], where: str) -> str:
    """SQL: changed rows of a relation: its keys, and each value in the new state (n_) and the old one (o_)."""
    picks = [f"coalesce(n.{key}, o.{key}) AS {key}" for key in keys]
    picks += [f"n.{value} AS n_{value}, o.{value} AS o_{value}" for value in values]
    on = " AND ".join(f"n.{key} = o.{key}" for key in keys)
    joined = f"SELECT {', '.join(picks)} FROM {name} n FULL JOIN {LAST}{name} o ON {on}"
    return f"SELECT * FROM ({joined}) AS both_states WHERE {where}"


def _differs(*values: str) -> str:
    return "(" + " OR ".join(f"n_{value} IS DISTINCT FROM o_{value}" for value in values) + ")"


def _found(alias: str) -> str:
    return f"{alias}.cluster, {alias}.publish_hour, {alias}.msg_id, {alias}.as_of_ms"


_GROUP = ("cluster", "group_name")
_QUEUE = ("cluster", "topic", "broker_name", "queue_id")
_OFFSETS = ("now_ms", "now_offset", "then_ms", "then_offset")


_SAME_GROUP = "w.cluster = c.cluster AND w.group_name = c.group_name"


def _between_samples(*times: str) -> str:
    """SQL: whether the sample that an open id waits for is between the sample of the last judgement and the new one."""
    return " OR ".join(f"w.sample_ms BETWEEN coalesce(c.o_{ms}, -1) AND c.n_{ms}" for ms in times)


def _of_open_ids(last_ms: int, as_of_ms: int, settings: Settings) -> list[Cause]:
    """Changes that open ids wait for: time, offsets, clients."""
    return [
        Cause(
            "time",
            "SELECT 1 AS passed",
            f"SELECT {_found('w')} FROM {OPEN_IDS} w WHERE w.look_ms > {last_ms} AND w.look_ms <= {as_of_ms}",
            OPEN_IDS,
        ),
        _of_passed_offsets(),
        *_of_members(last_ms, as_of_ms, settings),
    ]


def _of_passed_offsets() -> Cause:
    """An offset passed the message of an open id, or its copy in the retry topic."""

    def passes(offset: str) -> str:
        return " OR ".join(
            f"(coalesce(c.o_{at}_offset, -1) > w.{offset}) <> (coalesce(c.n_{at}_offset, -1) > w.{offset})"
            for at in ("now", "then")
        )

    queue = "w.broker_name = c.broker_name AND w.queue_id = c.queue_id"
    retry_queue = "w.retry_broker = c.broker_name AND w.retry_queue = c.queue_id"
    a_sample = _between_samples("now_ms", "then_ms")
    return Cause(
        "offsets",
        _both("offsets_at", ("group_name", *_QUEUE), _OFFSETS, _differs(*_OFFSETS)),
        f"""SELECT {_found("w")} FROM {OPEN_IDS} w JOIN changed_offsets c ON {_SAME_GROUP} AND w.topic = c.topic
          AND {queue} WHERE {passes("queue_offset")} OR {a_sample}
        UNION ALL SELECT {_found("w")} FROM {OPEN_IDS} w JOIN changed_offsets c ON {_SAME_GROUP}
          AND c.topic IN ({retry_topics("w.group_name", "w.topic")}) AND {retry_queue}
          WHERE {passes("retry_offset")} OR {a_sample}""",
        OPEN_IDS,
    )


def _of_members(last_ms: int, as_of_ms: int, settings: Settings) -> list[Cause]:
    """Changed clients of a group, outdated samples, and changed handling times."""

    def idle(side: str, instant_ms: int) -> str:
        return f"""CASE WHEN {side}_clients_sampled_ms IS NULL OR {side}_live_count IS NULL THEN 'not sampled'
          WHEN {side}_clients_sampled_ms < {instant_ms - settings.state_age_ms_max} THEN 'stale'
          WHEN {side}_live_count > 0 THEN 'live' ELSE 'none' END"""

    def stale(side: str, instant_ms: int) -> str:
        return f"coalesce({side}_offsets_sampled_ms < {instant_ms - settings.state_age_ms_max}, true)"

    clients = ("clients_sampled_ms", "live_count")
    flipped = f"{idle('n', as_of_ms)} <> {idle('o', last_ms)}"
    return [
        Cause(
            "clients",
            _both("group_clients", _GROUP, clients, f"{_differs('clients_sampled_ms')} OR {flipped}"),
            f"""SELECT {_found("w")} FROM {OPEN_IDS} w JOIN changed_clients c ON {_SAME_GROUP}
              WHERE {flipped} OR {_between_samples("clients_sampled_ms")}""",
            OPEN_IDS,
            by_time=True,
        ),
        Cause(
            "holders",
            _both("live_clients", (*_GROUP, "client"), ("live",), "coalesce(n_live, 0) <> coalesce(o_live, 0)"),
            f"SELECT {_found('w')} FROM {OPEN_IDS} w JOIN changed_holders c ON {_SAME_GROUP} AND w.holder = c.client",
            OPEN_IDS,
        ),
        Cause(
            "sampling",
            _both(
                "offset_samples", ("cluster", "broker_name"), ("offsets_sampled_ms",),
                f"{stale('n', as_of_ms)} <> {stale('o', last_ms)}",
            ),
            f"SELECT {_found('w')} FROM {OPEN_IDS} w JOIN changed_sampling c ON w.cluster = c.cluster"
            " AND w.broker_name = c.broker_name",
            OPEN_IDS,
            by_time=True,
        ),
        Cause(
            "handling_times",
            _both("hung_limits", _GROUP, ("hung_ms",), _differs("hung_ms")),
            f"""SELECT {_found("w")} FROM {OPEN_IDS} w JOIN changed_handling_times c ON {_SAME_GROUP}
              WHERE w.sample_ms > {last_ms} - greatest({settings.hung_ms}, coalesce(c.n_hung_ms, 0),
                coalesce(c.o_hung_ms, 0))""",
            OPEN_IDS,
        ),
    ]  # fmt: skip


_STORED_MS = "coalesce(t.visible_ms, t.stored_ms)"
_OFFERED_FROM = f"coalesce({_STORED_MS}, least(t.acked_ms, 0))"
_OFFERED_TO = f"coalesce({_STORED_MS}, CASE WHEN t.acked_ms IS NOT NULL THEN greatest(t.acked_ms, t.seen_ms) END)"
"""SQL over trajectories: times that the message became readable after and before; wider than `messages` has them."""


def _of_whole_samples() -> list[Cause]:
    """A broker reported all its groups again: messages that wait for that. The others: rows that came in disorder."""
    here = "w.cluster = c.cluster AND w.broker_name = c.broker_name"
    there = here.replace("w.", "t.")
    new, old = "SELECT * FROM sample_gaps", f"SELECT * FROM {LAST}sample_gaps"
    return [
        Cause(
            "whole_samples",
            _both("whole_samples", ("cluster", "broker_name"), ("whole_ms",), _differs("whole_ms")),
            f"""SELECT {_found("w")} FROM {OPEN_IDS} w JOIN changed_whole_samples c ON {here}
              WHERE w.group_name = '' AND ({_between_samples("whole_ms")})""",
            OPEN_IDS,
        ),
        Cause(
            "samples_back",
            _both(
                "whole_samples", ("cluster", "broker_name"), ("whole_ms",),
                "n_whole_ms < o_whole_ms OR n_whole_ms IS NULL",
            ),
            f"""SELECT {_found("t")} FROM {TRAJECTORIES} t JOIN changed_samples_back c ON {there}
              WHERE {_OFFERED_TO} > coalesce(c.n_whole_ms, 0)""",
            TRAJECTORIES,
        ),
        Cause(
            "late_gaps",
            f"""SELECT g.* FROM (({new} EXCEPT {old}) UNION ALL ({old} EXCEPT {new})) AS g
            LEFT JOIN {LAST}whole_samples o ON g.cluster = o.cluster AND g.broker_name = o.broker_name
            WHERE o.whole_ms IS NULL OR g.from_ms < o.whole_ms""",
            f"""SELECT {_found("t")} FROM {TRAJECTORIES} t JOIN changed_late_gaps c ON {there}
              WHERE {_OFFERED_TO} > c.from_ms AND {_OFFERED_FROM} < c.to_ms""",
            TRAJECTORIES,
        ),
    ]  # fmt: skip


def _of_transactions(last_ms: int, as_of_ms: int, settings: Settings) -> Cause:
    """Messages and op records were read up to a time that an open transaction waits for, or are read again."""

    def stale(side: str, instant_ms: int) -> str:
        return f"coalesce(c.{side}_read_to_ms < {instant_ms - settings.state_age_ms_max}, true)"

    return Cause(
        "transactions",
        _both("end_scans", ("cluster", "topic"), ("read_to_ms", "topic_to_ms"), _differs("read_to_ms", "topic_to_ms")),
        f"""SELECT {_found("w")} FROM {OPEN_IDS} w JOIN changed_transactions c ON w.cluster = c.cluster
          AND w.topic = c.topic WHERE w.state = '{TX_STATE}' AND (
            (coalesce(c.o_read_to_ms, -1) >= w.sample_ms) <> (coalesce(c.n_read_to_ms, -1) >= w.sample_ms)
            OR (coalesce(c.o_topic_to_ms, -1) >= w.sample_ms) <> (coalesce(c.n_topic_to_ms, -1) >= w.sample_ms)
            OR (c.o_read_to_ms IS NULL) <> (c.n_read_to_ms IS NULL)
            OR {stale("n", as_of_ms)} <> {stale("o", last_ms)})""",
        OPEN_IDS,
    )


def _ordered(side: str) -> str:
    return f"coalesce({side}_consume_order = '{IN_ORDER}', false)"


def _of_groups() -> list[Cause]:
    """A new group of a topic, a group that is known to consume in order, changed limits of a group."""
    first, known = ([f"coalesce(c.{side}_{ms}, {_NEVER_MS})" for side in ("n", "o")] for ms in ("since_ms", "known_ms"))
    return [
        Cause(
            "known_groups",
            _both(
                "topic_groups", ("cluster", "topic", "group_name"), ("known_ms", "since_ms"),
                _differs("known_ms", "since_ms"),
            ),
            f"""SELECT {_found("t")} FROM {TRAJECTORIES} t JOIN changed_known_groups c ON t.cluster = c.cluster
              AND t.topic = c.topic WHERE {_OFFERED_TO} > least({", ".join(first)})
              AND {_OFFERED_FROM} < greatest({", ".join(known)})""",
            TRAJECTORIES,
        ),
        Cause(
            "models",
            _both(
                "topic_groups", ("cluster", "topic", "group_name"), ("message_model", "consume_type"),
                _differs("message_model", "consume_type"),
            ),
            f"""SELECT {_found("v")} FROM {VERDICTS} v JOIN changed_models c ON v.cluster = c.cluster
              AND v.topic = c.topic AND v.group_name = c.group_name""",
            VERDICTS,
        ),
        Cause(
            "excluded_groups",
            _both(
                "topic_groups", ("cluster", "topic", "group_name"), ("message_model",),
                "o_message_model IS NOT NULL"
                " AND (n_message_model = 'BROADCASTING') <> (o_message_model = 'BROADCASTING')",
            ),
            f"""SELECT {_found("t")} FROM {TRAJECTORIES} t JOIN changed_excluded_groups c ON t.cluster = c.cluster
              AND t.topic = c.topic""",
            TRAJECTORIES,
        ),
        Cause(
            "orders",
            _both("group_orders", _GROUP, ("consume_order",), f"{_ordered('n')} <> {_ordered('o')}"),
            f"""SELECT {_found("v")} FROM {VERDICTS} v JOIN changed_orders c ON v.cluster = c.cluster
              AND v.group_name = c.group_name
              WHERE v.state = 'CONSUMED' OR v.delivery_count > 1""",
            VERDICTS,
        ),
        Cause(
            "chains",
            _both("group_limits", _GROUP, ("handed_times_max",), _differs("handed_times_max")),
            f"""SELECT {_found("v")} FROM {VERDICTS} v JOIN changed_chains c ON v.cluster = c.cluster
              AND v.group_name = c.group_name
              WHERE v.reasons LIKE '%CAUSE_INFERRED%' OR v.delivery_count > 1""",
            VERDICTS,
        ),
    ]  # fmt: skip


def _of_late_groups() -> Cause:
    """A group that is not traced, and came after a message, or is traced after all."""
    return Cause(
        "late_groups",
        _both(
            "topic_groups",
            ("cluster", "topic", "group_name"),
            ("reads_back", "known_ms"),
            "coalesce(n_reads_back, 0) <> coalesce(o_reads_back, 0)",
        ),
        f"""SELECT {_found("t")} FROM {TRAJECTORIES} t JOIN changed_late_groups c ON t.cluster = c.cluster
          AND t.topic = c.topic WHERE {_OFFERED_FROM} < greatest(c.n_known_ms, c.o_known_ms)""",
        TRAJECTORIES,
    )


def _of_broadcasts() -> Cause:
    """The times in which clients of broadcasting groups were there: messages of times that were added to them, and
    those that lacked a record of times that were taken away."""
    now, before = (
        f"coalesce({_OFFERED_TO} >= c.{side}_from_ms AND {_OFFERED_FROM} <= c.{side}_to_ms, false)"
        for side in ("n", "o")
    )
    return Cause(
        "broadcasts",
        _both(
            "broadcast_clients", ("cluster", "group_name", "client_id"), ("from_ms", "to_ms"),
            _differs("from_ms", "to_ms"),
        ),
        f"""SELECT {_found("t")} FROM {TRAJECTORIES} t JOIN topic_groups g ON t.cluster = g.cluster
          AND t.topic = g.topic AND g.message_model = 'BROADCASTING'
          JOIN changed_broadcasts c ON g.cluster = c.cluster AND g.group_name = c.group_name
          WHERE {now} AND NOT {before} OR {before} AND t.reasons LIKE '%{BROADCAST_REASON}%'""",
        TRAJECTORIES,
    )  # fmt: skip


def _of_sources() -> list[Cause]:
    """Groups and hosts that are traced or no longer traced, topics that are read or no longer read."""
    return [
        Cause(
            "tracing",
            f"""SELECT coalesce(n.cluster, o.cluster) AS cluster, coalesce(n.group_name, o.group_name) AS group_name
            FROM traced_groups n FULL JOIN {LAST}traced_groups o ON n.cluster = o.cluster
              AND n.group_name = o.group_name WHERE n.cluster IS NULL OR o.cluster IS NULL""",
            f"""SELECT {_found("v")} FROM {VERDICTS} v JOIN changed_tracing c ON v.cluster = c.cluster
              AND v.group_name = c.group_name
              WHERE v.reasons LIKE '%GROUP_NOT_TRACED%' OR v.reasons LIKE '%PASSED_UNTRACED%'
                OR v.reasons LIKE '%FILTER_SAMPLED_AT%' OR v.reasons LIKE '%TRUNCATED%'
                OR v.state IN ('WAITING', 'NO_CONSUMER', 'EXPIRED', 'SKIPPED', 'LOST')
                OR v.reasons LIKE '%TOPIC_DELETED%' OR v.reasons LIKE '%REMOVED_UNREAD%'""",
            VERDICTS,
        ),
        Cause(
            "hosts",
            f"""SELECT coalesce(n.cluster, o.cluster) AS cluster, coalesce(n.born_host, o.born_host) AS born_host
            FROM traced_hosts n FULL JOIN {LAST}traced_hosts o ON n.cluster = o.cluster AND n.born_host = o.born_host
            WHERE n.cluster IS NULL OR o.cluster IS NULL""",
            f"""SELECT {_found("t")} FROM {TRAJECTORIES} t JOIN changed_hosts c ON t.cluster = c.cluster
              AND t.producer_host = c.born_host
              WHERE t.reasons LIKE '%PRODUCER_NOT_TRACED%' OR t.reasons LIKE '%NO_SEND_RECORD%'""",
            TRAJECTORIES,
        ),
        Cause(
            "topics",
            f"""SELECT coalesce(n.cluster, o.cluster) AS cluster, coalesce(n.topic, o.topic) AS topic
            FROM scanned_topics n FULL JOIN {LAST}scanned_topics o ON n.cluster = o.cluster AND n.topic = o.topic
            WHERE n.cluster IS NULL OR o.cluster IS NULL""",
            f"""SELECT {_found("t")} FROM {TRAJECTORIES} t JOIN changed_topics c ON t.cluster = c.cluster
              AND t.topic = c.topic WHERE t.stored_ms IS NULL OR t.reasons LIKE '%RECALL_NOT_CONFIRMED%'""",
            TRAJECTORIES,
        ),
    ]  # fmt: skip


def _of_offsets() -> list[Cause]:
    """Changed first offsets, which decide for which messages a group is judged; and offsets that were set back.

    The first one that is known decides for all earlier messages of the queue, if the group can have read them
    (`reads_back`).
    """
    at_place = " AND ".join(f"t.{name} = c.{name}" for name in _QUEUE)
    back = " OR ".join(f"n_{at}_offset < o_{at}_offset" for at in ("now", "then"))
    first = [f"coalesce(c.{side}_first_offset, {_NEVER_MS})" for side in ("n", "o")]
    between = " OR ".join(
        f"(t.queue_offset >= c.n_{at}_offset AND t.queue_offset < c.o_{at}_offset)" for at in ("now", "then")
    )
    return [
        Cause(
            "first_offsets",
            f"""SELECT c.*, g.known_ms AS back_from_ms
            FROM ({_both("offsets_at", ("group_name", *_QUEUE), ("first_offset",), _differs("first_offset"))}) c
            LEFT JOIN topic_groups g ON c.cluster = g.cluster AND c.topic = g.topic AND c.group_name = g.group_name
              AND g.reads_back = 1 AND (c.n_first_offset IS NULL OR c.o_first_offset IS NULL)""",
            f"""SELECT {_found("t")} FROM {TRAJECTORIES} t JOIN changed_first_offsets c ON {at_place}
              WHERE t.queue_offset >= least({", ".join(first)}) AND t.queue_offset < greatest({", ".join(first)})
                OR {_OFFERED_FROM} < c.back_from_ms""",
            TRAJECTORIES,
        ),
        Cause(
            "reset_offsets",
            _both("offsets_at", ("group_name", *_QUEUE), _OFFSETS, back),
            f"""SELECT {_found("t")} FROM {TRAJECTORIES} t JOIN changed_reset_offsets c ON {at_place}
              WHERE {between}""",
            TRAJECTORIES,
        ),
        Cause(
            "reset_retries",
            _both("offsets_at", ("group_name", *_QUEUE), _OFFSETS, f"({back}) AND {of_retry_topic()}"),
            f"""SELECT {_found("v")} FROM {VERDICTS} v JOIN changed_reset_retries c ON v.cluster = c.cluster
              AND v.group_name = c.group_name
              WHERE v.reasons LIKE '%RETRY_PASSED_UNTRACED%' OR v.reasons LIKE '%END_NOT_TRACED%'
                OR v.reasons LIKE '%ATTEMPTS_NOT_TRACED%'
                OR v.state IN ('EXPIRED', 'SKIPPED', 'LOST')""",
            VERDICTS,
        ),
    ]


def _of_losses(last_ms: int, as_of_ms: int, settings: Settings) -> list[Cause]:
    """New, removed, changed or beginning losses of trace records: messages with missing records in that time."""

    def changed(name: str, columns: str) -> str:
        new, old = f"SELECT {columns} FROM {name}", f"SELECT {columns} FROM {LAST}{name}"
        begun = f"{new} WHERE from_ms > {last_ms} AND from_ms <= {as_of_ms}"
        return f"({new} EXCEPT {old}) UNION ALL ({old} EXCEPT {new}) UNION ALL {begun}"

    margin = max(settings.loss_window_ms, settings.trace_delay_ms) + _HANDLER_MARGIN_MS
    columns = "cluster, client_id, from_ms, to_ms, lost_count, reason"
    unbounded = " OR ".join(f"v.reasons LIKE '%{reason}%'" for reason in _LOSS_SINCE)
    return [
        Cause(
            "group_losses",
            changed("group_losses", f"{columns}, group_name"),
            f"""SELECT {_found("f")} FROM (
              SELECT {_found("v")}, v.reasons, v.delivery_count, c.from_ms, c.reason,
                max(v.as_of_ms) OVER (PARTITION BY v.cluster, v.msg_id, v.group_name) AS latest_ms
              FROM {VERDICTS} v JOIN (SELECT cluster, group_name, reason, min(from_ms) AS from_ms, max(to_ms) AS to_ms
                FROM changed_group_losses
                GROUP BY cluster, group_name, reason, CASE WHEN reason <> '{CLIENT_VANISHED}' THEN (from_ms, to_ms) END
              ) c ON v.cluster = c.cluster AND v.group_name = c.group_name
              AND c.to_ms >= coalesce(least(v.visible_ms, v.first_delivered_ms), 0)
              WHERE v.state IN {(*NOT_ENDED, *NEVER_HANDED)} OR v.state = 'UNKNOWN' AND ({unbounded})
                OR (v.is_open = 1 OR v.reasons LIKE '%NOT_TRACED%')
                  AND coalesce(c.from_ms <= greatest(v.visible_ms, v.last_delivered_ms) + {margin}, true)) f
            WHERE f.reason NOT IN ({quoted(_POSSIBLE)}) OR f.delivery_count > 0
              OR f.as_of_ms = f.latest_ms AND coalesce(f.from_ms <= {_NAMED_FROM_MS}, true)""",
            VERDICTS,
            by_time=True,
        ),
        Cause(
            "redeliveries",
            f"""SELECT * FROM ({changed("group_losses", f"{columns}, group_name")}) AS lost
            WHERE reason = '{CLIENT_VANISHED}'""",
            f"""SELECT {_found("v")} FROM {VERDICTS} v JOIN changed_redeliveries c ON v.cluster = c.cluster
              AND v.group_name = c.group_name AND v.last_delivered_ms >= c.from_ms + {settings.trace_delay_ms}
              AND coalesce(v.visible_ms, 0) < least(c.to_ms, v.last_delivered_ms - {REDELIVERY_MS_MIN - 1})""",
            VERDICTS,
            by_time=True,
        ),
        Cause(
            "losses",
            changed("losses", f"{columns}, host"),
            f"""SELECT {_found("t")} FROM {TRAJECTORIES} t JOIN changed_losses c ON t.cluster = c.cluster
              WHERE t.knowledge = 'INCOMPLETE' AND c.from_ms <= t.last_event_ms + {margin}""",
            TRAJECTORIES,
            by_time=True,
        ),
        _of_lost_ranges(changed("losses", "cluster, from_ms, to_ms, reason")),
    ]  # fmt: skip


_POSSIBLE = (CLIENT_VANISHED, CLIENT_NOT_TRACED)
_NAMED_FROM_MS = f"try_cast(regexp_extract(f.reasons, '({'|'.join(_POSSIBLE)})\\(from_ms=(\\d+)', 2) AS bigint)"
"""SQL: the begin of a loss that is only possible, if that is a reason. A later one changes nothing, unless
the named one is of a second hand-over."""
_LOSS_SINCE = (
    "END_MAY_BE_LOST",
    "REMOVED_UNREAD",
    "TOPIC_DELETED",
    "OFFSET_MOVED",
    "TRUNCATED",
)
"""Reasons of UNKNOWN that a loss at any time since the message was offered can give."""


def _of_lost_ranges(changed: str) -> Cause:
    """Ranges of queues that were not read: messages of their topic without a copy, transactions of it or of all."""
    of_all = quoted(RANGE_NOT_READ + topic for topic in TX_TOPICS)
    return Cause(
        "lost_ranges",
        changed,
        f"""SELECT {_found("t")} FROM {TRAJECTORIES} t JOIN changed_lost_ranges c ON t.cluster = c.cluster
          AND c.reason IN ('{RANGE_NOT_READ}' || t.topic, {of_all})
          WHERE t.message_codes LIKE '%TX_%' OR t.reasons LIKE '%TRANSACTION_NOT_KNOWN%' OR t.stored_ms IS NULL""",
        TRAJECTORIES,
        by_time=True,
    )


def _subscriptions(settings: Settings) -> Cause:
    """Changed expressions of a group with a filter: messages from the first time whose expression is another one now.

    An expression that the latest sample has counts from then on, too, so a later sample with it changes nothing. Beside
    other expressions a run reaches a sample interval beyond its ends (`filter_runs`).
    """
    return Cause(
        "subscriptions",
        _changed_expressions(settings),
        f"""SELECT {_found("t")} FROM {TRAJECTORIES} t JOIN changed_subscriptions c ON t.cluster = c.cluster
          AND t.topic = c.topic WHERE {_OFFERED_TO} >= c.since_ms""",
        TRAJECTORIES,
    )


def _changed_expressions(settings: Settings) -> str:
    """SQL: cluster, topic and since when expressions of a group are others now."""
    keys = ("cluster", "topic", "group_name", "expression_type", "expression")
    runs = _both("filter_runs", keys, ("first_ms", "last_ms", "until_ms"), "true")
    per_group = "OVER (PARTITION BY cluster, topic, group_name)"
    since = f"""CASE WHEN n_first_ms IS DISTINCT FROM o_first_ms AND (o_first_ms IS NOT NULL OR NOT was_known) THEN 0
      WHEN o_first_ms IS NULL THEN least(n_first_ms, others_ms) - {settings.sample_pause_ms_max}
      WHEN n_until_ms IS DISTINCT FROM o_until_ms OR n_until_ms IS NOT NULL AND n_last_ms IS DISTINCT FROM o_last_ms
        THEN least(n_last_ms, o_last_ms) - {settings.sample_pause_ms_max} END"""
    return f"""
        SELECT cluster, topic, min({since}) AS since_ms
        FROM (SELECT *, max(o_last_ms) {per_group} AS others_ms,
            bool_or(o_first_ms IS NOT NULL) {per_group} AS was_known,
            bool_or(expression_type <> 'TAG' OR expression NOT IN ('*', '')) {per_group} AS filters
          FROM ({runs}) AS runs) AS grouped WHERE filters
        GROUP BY cluster, topic, group_name HAVING min({since}) IS NOT NULL"""


_SEVERAL = f"(t.copy_count > 1 OR t.send_count > 1 OR {has_code('t.group_codes', 'RESENT')})"
"""SQL over trajectories: whether a message may be stored several times. Few are."""


def _of_copies(settings: Settings) -> Cause:
    """Any change in the topics of messages that are stored several times: their rows have one place and time only."""
    groups = ("known_ms", "since_ms", "message_model", "reads_back")
    back = " OR ".join(f"n_{at}_offset < o_{at}_offset" for at in ("now", "then"))
    readers = _both("broadcast_clients", ("cluster", "group_name", "client_id"), ("from_ms", "to_ms"),
                    _differs("from_ms", "to_ms"))  # fmt: skip
    offsets = _both("offsets_at", ("group_name", *_QUEUE), (*_OFFSETS, "first_offset"),
                    f"{_differs('first_offset')} OR {back}")  # fmt: skip
    changed = [
        _both("topic_groups", ("cluster", "topic", "group_name"), groups, _differs(*groups)),
        f"SELECT g.topic, c.* FROM ({readers}) c JOIN topic_groups g ON c.cluster = g.cluster"
        " AND c.group_name = g.group_name",
        offsets,
        f"SELECT * FROM ({_changed_expressions(settings)}) AS expressions",
        _both_ways("unread_at"),
        f"SELECT cluster, '' AS topic FROM ({_both_ways('sample_gaps')}) AS gaps",
        "SELECT cluster, '' AS topic FROM ("
        + _both("whole_samples", ("cluster", "broker_name"), ("whole_ms",), "n_whole_ms < o_whole_ms")
        + ") AS backwards",
    ]
    return Cause(
        "copies",
        "SELECT DISTINCT cluster, topic FROM ("
        + " UNION ALL ".join(f"SELECT cluster, topic FROM ({each}) AS changes" for each in changed)
        + ") AS every",
        f"""SELECT {_found("t")} FROM (SELECT * FROM {TRAJECTORIES} t WHERE {_SEVERAL}) t
          JOIN changed_copies c ON t.cluster = c.cluster
          WHERE c.topic IN ('', t.topic) OR instr(t.reasons, 'STORED_IN(topic=' || c.topic || ')') > 0""",
        TRAJECTORIES,
    )


def _both_ways(name: str) -> str:
    """SQL: rows of a relation that only one of the two states has."""
    new, old = f"SELECT * FROM {name}", f"SELECT * FROM {LAST}{name}"
    return f"({new} EXCEPT {old}) UNION ALL ({old} EXCEPT {new})"


def _of_unread() -> list[Cause]:
    """Ranges that a group did not read: messages in them, and messages whose retry copies can be in them."""
    changes = _both_ways("unread_at")
    at_place = " AND ".join(f"t.{name} = c.{name}" for name in _QUEUE)
    begun = (
        "(n_first_offset IS NULL OR o_first_offset IS NULL) AND EXISTS (SELECT 1 FROM unread_at WHERE group_name = '')"
    )
    return [
        Cause(
            "first_commits",
            _both("offsets_at", ("group_name", *_QUEUE), ("first_offset",), begun),
            f"""SELECT {_found("v")} FROM {VERDICTS} v JOIN changed_first_commits c ON v.cluster = c.cluster
              AND v.topic = c.topic AND v.group_name = c.group_name
              WHERE v.reasons LIKE '%TOPIC_DELETED%' OR v.reasons LIKE '%TRUNCATED%' OR v.reasons LIKE '%RECREATED%'
                OR v.reasons LIKE '%SHORTENED%'""",
            VERDICTS,
        ),
        Cause(
            "unread",
            changes,
            f"""SELECT {_found("t")} FROM {TRAJECTORIES} t JOIN changed_unread c ON {at_place}
              AND t.queue_offset >= c.first_offset AND t.queue_offset < c.end_offset""",
            TRAJECTORIES,
        ),
        Cause(
            "unread_retries",
            f"SELECT * FROM ({changes}) AS ranges WHERE {of_retry_topic()}",
            f"""SELECT {_found("v")} FROM {VERDICTS} v JOIN changed_unread_retries c ON v.cluster = c.cluster
              AND v.group_name = c.group_name
              WHERE v.state IN ('RETRYING', 'UNKNOWN', 'EXPIRED', 'SKIPPED', 'LOST')""",
            VERDICTS,
        ),
    ]
