"""Rows of a group's clients and subscriptions, from the answers of brokers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from mqtrail.wire import EXPRESSION_TAG, ConsumerConnections

from .columns import Relation
from .evidence import CLIENTS, SUBSCRIPTIONS

Row = dict[str, Any]


def group_rows(
    group: str, answers: Iterable[ConsumerConnections], *, is_complete: bool, ordered: Mapping[str, str] | None = None
) -> list[tuple[Relation, Row]]:
    """Return the rows of a group without cluster and time of the sample.

    answers: from brokers on which the group is online. is_complete: all other brokers answered that it is offline
    there. If not, a group without clients has the status ERROR instead of OFFLINE, since it may have unknown clients.
    ordered: client id -> whether it reports that it consumes in order.
    """
    clients: dict[str, Row] = {}
    subscriptions: dict[tuple[str, str, str], Row] = {}
    for answer in answers:
        for client in answer.connection_set:
            clients[client.client_id] = {
                "group_name": group,
                "status": "OK",
                "client_id": client.client_id,
                "client_host": client.client_addr or "",
                "language": str(client.language or ""),
                "version": client.version,
                "ordered": (ordered or {}).get(client.client_id, ""),
            }
        for topic, subscription in answer.subscription_table.items():
            kind = subscription.expression_type or EXPRESSION_TAG
            subscriptions[topic, kind, subscription.sub_string] = {
                "group_name": group,
                "topic": topic,
                "expression_type": kind,
                "expression": subscription.sub_string,
                "consume_type": answer.consume_type or "",
                "message_model": answer.message_model or "",
            }
    if not clients:
        status = "OFFLINE" if is_complete else "ERROR"
        nothing = {"client_id": "", "client_host": "", "language": "", "version": None, "ordered": ""}
        clients[""] = {"group_name": group, "status": status, **nothing}
    return [
        *((CLIENTS, row) for row in clients.values()),
        *((SUBSCRIPTIONS, row) for row in subscriptions.values()),
    ]
