"""Rows of a group's clients and subscriptions from the replies of brokers."""

from mqtrail import trail
from mqtrail.wire import ClientConnection, ConsumerConnections, SubscriptionData


def answer(*clients: str, expression: str = "*") -> ConsumerConnections:
    return ConsumerConnections(
        tuple(ClientConnection(client_id=client, client_addr="10.0.0.1:5") for client in clients),
        {"orders": SubscriptionData("orders", expression)},
        "CONSUME_PASSIVELY",
        "CLUSTERING",
    )


def test_each_client_and_subscription_has_one_row() -> None:
    """Clients of several brokers count once; a subscription that differs between brokers has two rows."""
    rows = trail.group_rows("g", [answer("a", "b"), answer("b", expression="x")], is_complete=False)
    found = [(relation.name, row.get("client_id"), row.get("status"), row.get("expression")) for relation, row in rows]
    assert found == [
        ("clients", "a", "OK", None),
        ("clients", "b", "OK", None),
        ("subscriptions", None, None, "*"),
        ("subscriptions", None, None, "x"),
    ]


def test_a_group_without_clients_is_offline_only_if_all_brokers_answered() -> None:
    """A broker that did not answer may have clients of the group."""
    for is_complete, status in ((True, "OFFLINE"), (False, "ERROR")):
        [(relation, row)] = trail.group_rows("g", [], is_complete=is_complete)
        assert (relation, row["client_id"], row["status"]) == (trail.CLIENTS, "", status)
