"""`cluster ha`: the row of a DLedger group, in JSON and in words."""

from mqtrail.cli.replicas import _ledger, _ledger_sentence
from mqtrail.client import LedgerMemberInfo, LedgerReport
from mqtrail.net import RequestTimeout


def test_a_dledger_group() -> None:
    """Leader, term, and how far the log of each member goes and is committed; what is unknown is named so."""
    silent = RequestTimeout("found no answer")
    members = (LedgerMemberInfo("n0", "h:1", 1, error=silent), LedgerMemberInfo("n1", "h:2", 2, 900, 800))
    row = _ledger("broker-a", LedgerReport("broker-a", "n1", 5, members))
    assert (row["mode"], row["master"], row["leader"], row["term"]) == ("dledger", 2, "n1", 5)
    assert row["members"] == [
        {"member": "n0", "id": 1, "address": "h:1", "end_position": None, "committed_position": None},
        {"member": "n1", "id": 2, "address": "h:2", "end_position": 900, "committed_position": 800},
    ]
    words = "members, with what is committed of their logs: n0 (id 1) unknown, n1 (id 2) 800/900"
    assert _ledger_sentence(row) == f"broker-a: n1 leads, term 5; {words}"
    none = _ledger("broker-a", LedgerReport("broker-a", None, None, members))
    assert none["master"] is None
    assert _ledger_sentence(none) == f"broker-a: no member leads, term unknown; {words}"
