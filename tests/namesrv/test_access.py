"""Access control of the name server: each request code needs the level of its row."""

from typing import Any

import pytest

from mqtrail.namesrv import NameServer, NameServerConfig
from mqtrail.wire import (
    AccountKey,
    Credentials,
    Host,
    InvalidParameter,
    Level,
    Peer,
    PeerId,
    RegisterBrokerBody,
    RegisterBrokerHeader,
    RemotingCommand,
    RequestCode,
    ResponseCode,
    TopicConfig,
    TopicConfigTable,
    sign,
)

NOW_MS = 1_700_000_000_000
PEER = Peer(PeerId(1), Host("10.0.0.1", 5001))
ACCOUNTS = {
    "seller1": [AccountKey(b"seller123", Level.ACCOUNT)],
    "broker1": [AccountKey(b"broker123", Level.BROKER)],
    "operator": [AccountKey(b"operator1", Level.ADMIN)],
    "both": [AccountKey(b"asbroker", Level.BROKER), AccountKey(b"asadmin1", Level.ADMIN)],
}
KEYS = {"seller1": "seller123", "broker1": "broker123", "operator": "operator1"}
ALL_CODES = sorted({*range(1_100), *map(int, RequestCode), *range(2_990, 3_020)})
LEVELS = {
    **dict.fromkeys((105, 106, 206, 224, 304, 311, 312, 313, 901), Level.NONE),
    **dict.fromkeys((101, 219), Level.ACCOUNT),
    **dict.fromkeys((103, 104, 217, 322, 904), Level.BROKER),
    **dict.fromkeys((100, 102, 205, 216, 318, 319, 327), Level.ADMIN),
}
REFUSED = {ResponseCode.NO_PERMISSION, ResponseCode.REQUEST_CODE_NOT_SUPPORTED}


def name_server(**settings: Any) -> NameServer:
    config = NameServerConfig(acl=True, **settings)
    return NameServer(config, now_ms=NOW_MS, accounts=lambda name: ACCOUNTS.get(name, []))


def registration(topic: str = "orders") -> RemotingCommand:
    header = RegisterBrokerHeader("a", "1.1.1.1:10911", "C", "1.1.1.1:10912", 0)
    body = RegisterBrokerBody(TopicConfigTable({name: TopicConfig(name, 4, 4) for name in (topic, "TBW102")})).encode()
    return RemotingCommand(RequestCode.REGISTER_BROKER, header.to_ext(), body)


def ask(server: NameServer, command: RemotingCommand, who: str = "", secret: str = "", peer: Peer = PEER) -> int:
    """The reply's code; -1 without a reply."""
    if who:
        sign(command, Credentials(access_key=who, secret_key=secret or KEYS[who]))
    sends = server.handle(peer, command, NOW_MS)
    return sends[0].command.code if sends else -1


@pytest.mark.parametrize("protect_routes", [False, True])
@pytest.mark.parametrize("who", ["", "seller1", "broker1", "operator"])
def test_all_codes_as_every_kind_of_account(who: str, protect_routes: bool) -> None:
    """For every code, an account is served exactly if its level is high enough."""
    level = {"": Level.NONE, "seller1": Level.ACCOUNT, "broker1": Level.BROKER, "operator": Level.ADMIN}[who]
    server = name_server(protect_routes=protect_routes)
    for code in ALL_CODES:
        needed = LEVELS.get(code)
        if needed is Level.NONE and protect_routes:
            needed = Level.ACCOUNT
        found = ask(server, RemotingCommand(code, {"topic": "orders"}), who)
        if needed is None:
            assert found in REFUSED, code
        else:
            assert (found == ResponseCode.NO_PERMISSION) is (level < needed), code


def test_refused_changes_change_nothing() -> None:
    """Registrations unsigned, by a user, or with a wrong secret add no route, also if they are one-way."""
    server = name_server()
    assert ask(server, registration()) == ResponseCode.NO_PERMISSION
    assert ask(server, registration(), "seller1") == ResponseCode.NO_PERMISSION
    assert ask(server, registration(), "broker1", "wrong123") == ResponseCode.NO_PERMISSION
    assert ask(server, registration(), "nobody", "broker123") == ResponseCode.NO_PERMISSION
    oneway = registration()
    oneway.flag |= 2
    assert oneway.is_oneway
    assert ask(server, oneway) == -1
    assert server.refused == 5
    assert server.routes.route("orders") is None
    assert ask(server, registration(), "broker1") == ResponseCode.SUCCESS
    assert server.routes.route("orders") is not None
    wipe = RemotingCommand(RequestCode.DELETE_TOPIC_IN_NAMESRV, {"topic": "orders"})
    assert ask(server, wipe, "broker1") == ResponseCode.NO_PERMISSION
    assert server.routes.route("orders") is not None
    assert ask(server, wipe, "operator") == ResponseCode.SUCCESS
    assert server.routes.route("orders") is None


def test_a_body_changed_after_signing_is_refused() -> None:
    """The signature covers fields and body."""
    server, command = name_server(), registration()
    sign(command, Credentials(access_key="broker1", secret_key=KEYS["broker1"]))
    command.body = registration("elsewhere").body
    assert ask(server, command) == ResponseCode.NO_PERMISSION


def test_keys_of_one_name_have_their_own_levels() -> None:
    """The level is that of the key that signed the request, not of the access key."""
    put = {"namespace": "N", "key": "k", "value": "v"}
    assert ask(name_server(), RemotingCommand(RequestCode.PUT_KV_CONFIG, dict(put)), "both", "asbroker") == 16
    assert ask(name_server(), RemotingCommand(RequestCode.PUT_KV_CONFIG, dict(put)), "both", "asadmin1") == 0


def test_trusted_addresses_register_unsigned_and_no_more() -> None:
    """Brokers of RocketMQ 4.9 cannot sign: they may register from trusted addresses, and change nothing else."""
    server = name_server(trusted_addresses="10.0.0.{1,2}", protect_routes=True)
    assert ask(server, registration()) == ResponseCode.SUCCESS
    assert ask(server, RemotingCommand(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "orders"})) == ResponseCode.SUCCESS
    delete = RemotingCommand(RequestCode.DELETE_TOPIC_IN_NAMESRV, {"topic": "orders"})
    assert ask(server, delete) == ResponseCode.NO_PERMISSION
    other = Peer(PeerId(2), Host("10.0.0.3", 5002))
    assert ask(server, registration(), peer=other) == ResponseCode.NO_PERMISSION
    with pytest.raises(InvalidParameter, match="10\\.0"):
        NameServerConfig(trusted_addresses="10.0.0.x")


def test_without_acl_everybody_is_served() -> None:
    """Without acl everything is served, as by Apache's name server."""
    server = NameServer(NameServerConfig(), now_ms=NOW_MS)
    assert ask(server, registration()) == ResponseCode.SUCCESS
