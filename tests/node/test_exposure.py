"""The warnings about ports that nothing protects, before any of them is opened."""

from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from mqtrail.broker import BrokerConfig
from mqtrail.namesrv import NameServerConfig
from mqtrail.net import ServerConfig, TlsServerConfig
from mqtrail.node import NodeConfig
from mqtrail.node.exposure import warn_if_open
from mqtrail.node.group_node import with_own_slaves

CHECKED = {"acl": True}
TLS = ServerConfig(tls=TlsServerConfig(self_signed=True))


@pytest.mark.parametrize(
    ("broker", "fields", "is_warned_of"),
    [
        ({"broker_role": "ASYNC_MASTER", **CHECKED}, {}, True),
        ({"broker_role": "SYNC_MASTER"}, {"server": TLS}, True),
        (CHECKED, {"ha_port": 10_912}, True),
        ({"controller_mode": True, "controller_addresses": "127.0.0.1:9878", **CHECKED}, {}, True),
        ({"broker_role": "SLAVE", "broker_id": 1, **CHECKED}, {}, False),  # it takes the port and does not listen
        (CHECKED, {}, False),
        ({"broker_role": "ASYNC_MASTER", "slave_addresses": "10.0.0.{1,2}", **CHECKED}, {}, False),
        ({"broker_role": "ASYNC_MASTER"}, {}, False),  # `node.open_to_others` says more
        ({"broker_role": "ASYNC_MASTER", **CHECKED}, {"host": "127.0.0.1"}, False),
    ],
)
def test_the_port_for_slaves(
    tmp_path: Path, broker: dict[str, Any], fields: dict[str, Any], is_warned_of: bool
) -> None:
    """It has neither TLS nor access control, so a node that has either for its other ports warns of it."""
    settings: dict[str, Any] = {"data": tmp_path, "host": "0.0.0.0", **fields}
    with capture_logs() as logs:
        warn_if_open(NodeConfig(broker=BrokerConfig(**broker), **settings))
    found = [line for line in logs if line["event"] == "node.ha_port_open"]
    assert bool(found) is is_warned_of
    assert all("enableControllerMode" in line["remedy"] for line in found)


@pytest.mark.parametrize(
    ("broker", "expected"),
    [
        ({}, ""),
        (CHECKED, "127.0.0.1,10.0.0.5"),
        ({"authentication": True}, "127.0.0.1,10.0.0.5"),
        ({"slave_addresses": "*", **CHECKED}, "*"),
    ],
)
def test_a_group_on_one_machine_takes_slaves_of_it_alone(broker: dict[str, Any], expected: str) -> None:
    """With access control on, and no addresses named."""
    config = with_own_slaves(NodeConfig(broker=BrokerConfig(**broker)), "10.0.0.5")
    assert config.broker.slave_addresses == expected


@pytest.mark.parametrize(
    ("namesrv", "http_port", "expected"),
    [
        (True, None, []),
        (True, 0, ["http_rules"]),
        (False, None, ["[namesrv_server]"]),
        (False, 0, ["[namesrv_server]", "http_rules"]),
    ],
)
def test_servers_that_access_control_leaves_open(
    tmp_path: Path, namesrv: bool, http_port: int | None, expected: list[str]
) -> None:
    """Each is named with its own remedy: the door acts with the broker's account, whoever asks it."""
    config = NodeConfig(
        data=tmp_path,
        host="0.0.0.0",
        broker=BrokerConfig(acl=True),
        namesrv=NameServerConfig(acl=namesrv),
        http_port=http_port,
        store_url="sqlite:///x.db",
    )
    with capture_logs() as logs:
        warn_if_open(config)
    remedies = [line["remedy"] for line in logs if line["event"] == "node.open_to_others"]
    assert [word for word in ("[namesrv_server]", "http_rules") if any(word in one for one in remedies)] == expected
