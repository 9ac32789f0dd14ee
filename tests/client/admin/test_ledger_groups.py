"""The members of a DLedger group, as the settings of a broker name them."""

import pytest

from mqtrail.client import ClientError
from mqtrail.client.admin.ledger_groups import LedgerGroup, is_ledger

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
