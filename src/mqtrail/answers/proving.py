"""Proofs over a lake: what was lost, doubled, late or out of order, and what could not be covered."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any, Final

from mqtrail import trail
from mqtrail.lake import fetch
from mqtrail.trail import ProofResult, literal, proofs

from .lakeview import LakeView
from .summaries import ClaimProof, ProofAnswer, Shown
from .views import PUBLISHED_MS

_COUNTED: Final = {proofs.MESSAGES: "message_profiles", proofs.PAIRS: "pair_profiles"}


def prove(
    view: LakeView, topic: str, now_ms: int, first_ms: int | None, end_ms: int | None, examples_max: int
) -> ProofAnswer:
    """Examine every claim about messages of a topic ('': all) published in [first_ms, end_ms)."""
    view.define_views()
    _define_subjects(view, topic, first_ms, end_ms)
    duck = view.connection
    [(message_count, copy_count)] = duck.execute(
        f"SELECT coalesce(sum({proofs.COUNT}), 0)::bigint, coalesce(sum({proofs.COUNT}) FILTER (has_copy), 0)::bigint "
        f"FROM {_COUNTED[proofs.MESSAGES]}"
    ).fetchall()
    [(pair_count,)] = duck.execute(
        f"SELECT coalesce(sum({proofs.COUNT}), 0)::bigint FROM {_COUNTED[proofs.PAIRS]}"
    ).fetchall()
    limits = tuple(_limits(view, topic, message_count, copy_count, first_ms, end_ms))
    claims = tuple(_claim(view, claim, examples_max, is_whole=not limits) for claim in proofs.CLAIMS)
    outcomes = {claim.outcome for claim in claims}
    return ProofAnswer(
        scope=view.scope(now_ms),
        topic=topic,
        first_ms=first_ms,
        end_ms=end_ms,
        message_count=message_count,
        pair_count=pair_count,
        words=_words(view),
        claims=claims,
        limits=limits,
        outcome=next(one for one in (ProofResult.FOUND, ProofResult.CANNOT_TELL, ProofResult.NONE) if one in outcomes),
    )


def _define_subjects(view: LakeView, topic: str, first_ms: int | None, end_ms: int | None) -> None:
    """Define the subjects, and count their profiles: one pass over the messages, one over the pairs."""
    duck = view.connection
    first, end = first_ms or 0, 1 << 62 if end_ms is None else end_ms
    of_topic = f"topic = {literal(topic)}" if topic else "true"
    columns = (
        "cluster, msg_id, batch_id, topic, broker_name, queue_id, queue_offset, copy_count, send_codes, message_codes, "
        "reasons, send_start_ms, stored_ms, visible_ms, due_ms"
    )
    messages = (
        f"SELECT {columns} FROM trajectories AS t WHERE t.knowledge <> '' AND {of_topic} "
        f"AND {PUBLISHED_MS} >= {first} AND {PUBLISHED_MS} < {end}"
    )
    subjects = {
        "asked_messages": messages,
        proofs.MESSAGES: proofs.message_subjects("asked_messages AS t", trail.Settings().delivered_late_ms),
        proofs.PAIRS: proofs.pair_subjects(f"(SELECT * FROM verdicts WHERE {of_topic})", "asked_messages", "clients"),
    }
    for name, sql in subjects.items():
        duck.execute(f"CREATE OR REPLACE TEMP VIEW {name} AS {sql}")
    for name, counted in _COUNTED.items():
        duck.execute(f"CREATE OR REPLACE TEMP TABLE {counted} AS {proofs.profiles(name)}")


def _limits(
    view: LakeView, topic: str, message_count: int, copy_count: int, first_ms: int | None, end_ms: int | None
) -> Iterable[str]:
    """Yield a sentence for each thing that may hide messages or records of these."""
    if not message_count:
        yield "the lake has no message of this topic and time"
    elif not copy_count:
        yield f"no stored copy was read: messages of {topic or 'these topics'} without trace are not known"
    first, end = first_ms or 0, 1 << 62 if end_ms is None else end_ms
    rows = fetch(
        view.connection,
        "SELECT count(*) AS n, sum(end_offset - first_offset)::bigint AS lost FROM gaps AS g "
        f"WHERE coalesce(to_ms, ?) >= ? AND coalesce(from_ms, 0) < ? AND {_concerns(topic)}",
        [1 << 62, first, end],
    )
    if rows[0]["n"]:
        missing = f"{_count(rows[0]['lost'], 'message')} in {_count(rows[0]['n'], 'range')} of queues"
        yield f"{missing}: not read in this time"
    rows = fetch(view.connection, "SELECT count(*) AS n FROM trace_rejects WHERE trace_store_ms >= ?", [first])
    if rows[0]["n"]:
        yield f"{_count(rows[0]['n'], 'trace record')} stored since then: not decoded"
    if view.damage:
        yield f"{len(view.damage)} files or tables of the lake could not be read"


def _concerns(topic: str) -> str:
    """SQL of a gap: whether it can hide messages of the topic, or records of them. Messages of another topic cannot:
    one that was read, so no trace is in it. Clients with a namespace name NAMESPACE%topic without the namespace.
    """
    if not topic:
        return "true"
    own = f"(g.topic = {literal(topic)} OR ends_with(g.topic, {literal('%' + topic)}))"
    read = "SELECT topic FROM samples WHERE what = 'READ'"
    read += " UNION SELECT topic FROM queue_ranges WHERE read_offset IS NOT NULL"
    return f"({own} OR NOT ({trail.business_topic('g.topic')} AND g.topic IN ({read})))"


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def _claim(view: LakeView, claim: proofs.Claim, examples_max: int, *, is_whole: bool) -> ClaimProof:
    covered = found = 0
    uncovered: Counter[str] = Counter()
    for row in fetch(view.connection, proofs.evaluation(claim, _COUNTED)):
        count = row[proofs.COUNT]
        if row["is_found"]:
            found += count
        elif not row["why"]:
            covered += count
        else:
            uncovered[row["why"]] += count
    is_excluded = is_whole and not uncovered
    return ClaimProof(
        name=claim.name,
        meaning=claim.meaning,
        outcome=ProofResult.FOUND if found else ProofResult.NONE if is_excluded else ProofResult.CANNOT_TELL,
        found_count=found,
        covered_count=covered,
        uncovered=dict(uncovered.most_common()),
        examples=_examples(view, claim, examples_max) if found else (),
    )


def _examples(view: LakeView, claim: proofs.Claim, count_max: int) -> tuple[Shown, ...]:
    places = "t.broker_name || '/' || t.topic || '/' || t.queue_id || '@' || t.queue_offset"
    rows = fetch(
        view.connection,
        f"""WITH shown AS ({proofs.examples(claim, count_max)})
        SELECT s.cluster, s.msg_id, s.group_name, t.topic, t.keys, coalesce({places}, '') AS place,
          coalesce(v.codes, t.message_codes) AS codes, coalesce(v.reasons, t.reasons) AS reasons
        FROM shown AS s JOIN trajectories AS t USING (cluster, msg_id)
        LEFT JOIN verdicts AS v ON s.cluster = v.cluster AND s.msg_id = v.msg_id AND s.group_name = v.group_name
        ORDER BY s.cluster, s.msg_id, s.group_name""",
    )
    return tuple(Shown(**row) for row in rows)


def _words(view: LakeView) -> dict[str, int]:
    sums = ", ".join(
        f"coalesce(sum({proofs.COUNT}) FILTER ({condition}), 0)::bigint AS {word}"
        for word, condition in proofs.WORDS.items()
    )
    row: dict[str, Any] = fetch(view.connection, f"SELECT {sums} FROM {_COUNTED[proofs.MESSAGES]}")[0]
    return row
