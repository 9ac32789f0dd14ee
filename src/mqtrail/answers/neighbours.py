"""Messages of the lake that belong to a message: of its batch, of its OpenTelemetry trace, or with one of its keys."""

from __future__ import annotations

from typing import Any, Final

from .lakeview import LakeView
from .model import trajectory_of
from .summaries import NeighbourMessage, NeighbourRelation, NeighboursAnswer

NEIGHBOURS_MAX: Final = 20  # with one key, batch or trace
TOKENS_MAX: Final = 20


def neighbours(view: LakeView, msg_id: str, now_ms: int) -> NeighboursAnswer:
    """Return the newest messages that share a batch, a trace or a key with the message."""
    found: dict[tuple[str, str], NeighbourMessage] = {}
    omissions: list[str] = []
    for row in view.lookup.trajectories(msg_id).rows:
        if view.cluster not in ("", row["cluster"]):
            continue
        tokens = list(_tokens(row).items())
        if len(tokens) > TOKENS_MAX:
            omissions.append(f"the message has {len(tokens)} keys, of which {TOKENS_MAX} were searched")
        for token, relation in tokens[:TOKENS_MAX]:
            for one in _of_token(view, row["cluster"], msg_id, token, relation, omissions):
                found.setdefault((one.cluster, one.msg_id), one)
    return NeighboursAnswer(view.scope(now_ms, tuple(dict.fromkeys(omissions))), msg_id, tuple(found.values()))


def _tokens(row: dict[str, Any]) -> dict[str, NeighbourRelation]:
    """Return what the key index has of a message: batch and trace first."""
    tokens = {row["batch_id"] or "": NeighbourRelation.BATCH}
    parts = (row["traceparent"] or "").split("-")
    tokens |= {parts[1]: NeighbourRelation.TRACE} if len(parts) >= 4 else {}
    for key in (row["keys"] or "").split(" "):
        tokens.setdefault(key, NeighbourRelation.KEY)
    tokens.pop("", None)
    return tokens


def _of_token(
    view: LakeView, cluster: str, msg_id: str, token: str, relation: NeighbourRelation, omissions: list[str]
) -> list[NeighbourMessage]:
    rows = view.lookup.ids_of_key(token, NEIGHBOURS_MAX + 2).rows
    ids = list(dict.fromkeys(row["msg_id"] for row in rows if row["cluster"] == cluster and row["msg_id"] != msg_id))
    if len(ids) > NEIGHBOURS_MAX:
        omissions.append(f"{token!r} is on more than {NEIGHBOURS_MAX} other messages, the newest are shown")
    found = []
    for one in ids[:NEIGHBOURS_MAX]:
        of_id = [row for row in view.lookup.trajectories(one).rows if row["cluster"] == cluster]
        verdicts = [row for row in view.lookup.verdicts(one).rows if row["cluster"] == cluster]
        for row in of_id[:1]:
            known = trajectory_of(row, verdicts)
            codes = (*known.send_codes, *known.message_codes, *(code for group in known.groups for code in group.codes))
            codes = tuple(dict.fromkeys(codes))
            sent_ms = known.send_start_ms
            found.append(NeighbourMessage(relation, token, cluster, one, known.topic, known.tags, sent_ms, codes))
    return found
