"""The members of a DLedger group, as the settings of a broker name them."""

import pytest

from mqtrail.client import ClientError, Gathered, LedgerReport
from mqtrail.client.admin.ledger_groups import LedgerGroup, is_ledger
from mqtrail.net import RequestTimeout
from mqtrail.wire import LedgerMetadataReply

SETTINGS = {
    "enableDLegerCommitLog": "true",
    "dLegerPeers": "n0-10.0.0.1:40911;n1-[::1]:40911; n2-h:3;",
    "dLegerSelfId": "n1",
    "dLegerGroup": "",
}


def test_members_and_broker_ids() -> None:
    """The broker of member nK has id K + 1 while it does not lead; the group has the broker's name by default."""
    assert is_ledger(SETTINGS)
    assert not is_ledger({"enableControllerMode": "true"})
    group = LedgerGroup.of("broker-a", SETTINGS)
    assert (group.name, group.self_id) == ("broker-a", "n1")
    assert (group.member_of(1), group.member_address(2)) == ("n0", "[::1]:40911")
    assert LedgerGroup.of("broker-a", SETTINGS | {"dLegerGroup": "g"}).name == "g"
    with pytest.raises(ClientError, match="correct dLegerPeers of broker broker-a"):
        LedgerGroup.of("broker-a", SETTINGS | {"dLegerPeers": "n0"})
    with pytest.raises(ClientError, match="expected 1, 2, 3"):
        group.member_of(4)
    with pytest.raises(ClientError, match="expected n0, n1"):
        group.number_of("x")


@pytest.mark.parametrize(
    ("others", "broker_id"),
    [
        ([1, 3], 2),  # the master was asked
        ([1], 2),
        ([1, 2], 3),  # it has ended: broker 2 was asked
        ([2], 0),  # it has ended, and so has another one before it
    ],
)
def test_id_of_the_master(others: list[int], broker_id: int) -> None:
    """Routes show it as 0. The id of the broker that was asked is not its id if that one is a slave."""
    assert LedgerGroup.of("broker-a", SETTINGS).leader_id(others) == broker_id


def test_what_members_answer() -> None:
    """The member in the latest term knows who leads. Apache's tell neither term nor positions."""
    ledger = LedgerGroup.of("broker-a", SETTINGS)
    ours = LedgerMetadataReply(leader_id="n1", term=5, end_position=900, committed_position=800)
    apaches = LedgerMetadataReply(leader_id="n0")
    silent = RequestTimeout("found no answer")
    found = LedgerReport.of(ledger, Gathered({"n0": apaches, "n1": ours}, {"n2": silent}))
    assert (found.leader, found.term) == ("n1", 5)
    assert [(one.member, one.broker_id, one.end_position, one.committed_position) for one in found.members] == [
        ("n0", 1, None, None),
        ("n1", 2, 900, 800),
        ("n2", 3, None, None),
    ]
    assert [one.error for one in found.members] == [None, None, silent]
    alone = LedgerReport.of(ledger, Gathered({"n0": apaches}))
    assert (alone.leader, alone.term) == ("n0", None)
    none = LedgerReport.of(ledger, Gathered({}))
    assert (none.leader, none.term, len(none.members)) == (None, None, 3)
