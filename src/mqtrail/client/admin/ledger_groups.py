"""What an operator needs to know of a DLedger group: its members, from the settings of one of its brokers."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from mqtrail.wire import InvalidParameter, parse_peers

from ..core import ClientError


def is_ledger(settings: Mapping[str, str]) -> bool:
    """Whether a broker with these settings is a member of a DLedger group."""
    return settings.get("enableDLegerCommitLog") == "true"


@dataclass(frozen=True, slots=True)
class LedgerGroup:
    """name: of the group. members: id -> host:port of the member. self_id: of the broker that was asked."""

    name: str
    members: Mapping[str, str]
    self_id: str

    @classmethod
    def of(cls, broker_name: str, settings: Mapping[str, str]) -> Self:
        """Return the group in a broker's settings. ClientError: its list of members cannot be read."""
        try:
            members = parse_peers(settings.get("dLegerPeers", ""))
        except InvalidParameter as error:
            raise ClientError(f"{error}: correct dLegerPeers of broker {broker_name}") from error
        return cls(settings.get("dLegerGroup") or broker_name, members, settings.get("dLegerSelfId", ""))

    @staticmethod
    def number_of(self_id: str) -> int:
        """Return the number in a member's id. ClientError: it has none."""
        if not self_id[1:].isdigit():
            raise ClientError(f"found the id {self_id!r} of a DLedger member, expected n0, n1, …")
        return int(self_id[1:])

    def member_of(self, broker_id: int) -> str:
        """Return the member of the broker that has this id while it does not lead. ClientError: there is none."""
        found = f"n{broker_id - 1}"
        if found not in self.members:
            ids = ", ".join(str(self.number_of(one) + 1) for one in self.members)
            raise ClientError(f"found no member of the DLedger group with broker id {broker_id}, expected {ids}")
        return found

    def member_address(self, broker_id: int) -> str:
        """Return host:port of that member. ClientError: there is none."""
        return self.members[self.member_of(broker_id)]
