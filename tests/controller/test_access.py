"""Access control of a controller: who may ask it for what, and whose messages of consensus count."""

from collections.abc import Iterator

import pytest

from mqtrail.controller.controller import REQUESTS
from mqtrail.raft import MessageKind, RaftMessage, encode_message
from mqtrail.wire import AccountKey, Credentials, Level, RemotingCommand, RequestCode, ResponseCode

from .trio import BROKER, CLUSTER, GROUP, Trio

Code = RequestCode
OPERATOR = Credentials(access_key="operator", secret_key="a secret of operators")
USER = Credentials(access_key="user", secret_key="a secret of a user")
FORGED = Credentials(access_key="brokers", secret_key="a guess")
LEVEL_OF = {None: Level.NONE, USER: Level.ACCOUNT, BROKER: Level.BROKER, OPERATOR: Level.ADMIN}


def accounts(access_key: str) -> Iterator[AccountKey]:
    for one, level in LEVEL_OF.items():
        if one is not None and one.access_key == access_key:
            yield AccountKey(one.secret_key.encode(), level)


@pytest.fixture(scope="module")
def trio() -> Trio:
    return Trio(1, acl=True, accounts=accounts)


def request_of(code: int) -> tuple[dict[str, str], bytes]:
    ext = {"clusterName": CLUSTER, "brokerName": GROUP, "brokerId": "1", "brokerAddr": "a:1", "brokerAddress": "a:1"}
    ext |= {"masterBrokerId": "1", "masterEpoch": "1", "appliedBrokerId": "1", "registerCheckCode": "a:1;1"}
    body = {Code.CONTROLLER_ALTER_SYNC_STATE_SET: b"{}", Code.CONTROLLER_GET_SYNC_STATE_DATA: b"[]"}
    return ext, body.get(Code(code), b"")


@pytest.mark.parametrize("who", LEVEL_OF, ids=str)
@pytest.mark.parametrize("code", sorted(REQUESTS.keys() - {Code.CONTROLLER_CONSENSUS}))
def test_each_code_needs_its_level(trio: Trio, code: int, who: Credentials | None) -> None:
    ext, body = request_of(code)
    reply = trio.ask(code, ext, body, as_=who)
    assert (reply.code != ResponseCode.NO_PERMISSION) == (LEVEL_OF[who] >= REQUESTS[code].level), reply.remark


@pytest.mark.parametrize("code", [1, 10, 9_999])
def test_other_codes_are_refused(trio: Trio, code: int) -> None:
    assert trio.ask(code, as_=OPERATOR).code == ResponseCode.NO_PERMISSION


def test_only_an_operator_designates_a_master(trio: Trio) -> None:
    """A broker asks for any election; which one wins is up to the controller."""
    ext = request_of(Code.CONTROLLER_ELECT_MASTER)[0] | {"designateElect": "true"}
    refused = trio.ask(Code.CONTROLLER_ELECT_MASTER, ext, as_=BROKER)
    assert refused.code == ResponseCode.NO_PERMISSION
    assert "an administrator" in str(refused.remark)
    assert trio.ask(Code.CONTROLLER_ELECT_MASTER, ext, as_=OPERATOR).code != ResponseCode.NO_PERMISSION


def test_a_trusted_address_need_not_sign() -> None:
    """For brokers up to 5.2. It is no operator, and no controller."""
    trio = Trio(1, acl=True, accounts=accounts, trusted_addresses="127.0.0.1")
    for code, row in REQUESTS.items():
        if code != Code.CONTROLLER_CONSENSUS:
            reply = trio.ask(code, *request_of(code))
            assert (reply.code == ResponseCode.NO_PERMISSION) == (row.level is Level.ADMIN), code


def forged(trio: Trio, sender: str, target: str) -> RemotingCommand:
    """A member's message with a term that deposes each leader."""
    members = sorted(trio.configs)
    message = RaftMessage(
        kind=MessageKind.VOTE,
        sender=sender,
        target=target,
        term=trio.controllers[target].raft.term + 5,
        group_key=trio.configs[target].raft().group_key,
        index=1_000,
        log_term=1_000,
    )
    return RemotingCommand(Code.CONTROLLER_CONSENSUS, {}, encode_message(message, members))


@pytest.mark.parametrize("who", [None, FORGED, USER], ids=str)
def test_messages_of_consensus_need_the_group_s_account(who: Credentials | None) -> None:
    """Without it, whoever reaches a controller could depose its leader, or put entries into its log."""
    trio = Trio(acl=True, accounts=accounts)
    leader, term = trio.leader, trio.controllers[trio.leader].raft.term
    sender = next(name for name in trio.configs if name != leader)
    body = forged(trio, sender, leader).body
    reply = trio.ask(Code.CONTROLLER_CONSENSUS, body=body, at=leader, as_=who)
    assert reply.code == ResponseCode.NO_PERMISSION
    assert (trio.leader, trio.controllers[leader].raft.term) == (leader, term)
    ((address, why),) = trio.controllers[leader].take_refusals()
    assert address.startswith("127.0.0.1:")
    assert "signature" in why or "needs the account" in why


def test_without_access_control_nothing_is_checked() -> None:
    trio = Trio(1)
    assert trio.ask(Code.GET_CONTROLLER_CONFIG).code == ResponseCode.SUCCESS
