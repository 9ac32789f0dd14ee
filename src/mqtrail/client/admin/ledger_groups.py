"""What an operator needs to know of a DLedger group: its members, from the settings of one of its brokers."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Self

from mqtrail.wire import InvalidParameter, LedgerMetadataReply, parse_peers

from ..core import ClientError
from .base import Gathered


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
        """Return the number in a member's id. ClientError: the id has no number."""
        if not self_id[1:].isdigit():
            raise ClientError(f"found the id {self_id!r} of a DLedger member, expected n0, n1, …")
        return int(self_id[1:])

    def leader_id(self, others: Iterable[int]) -> int:
        """Return the broker id, while it does not lead, of the broker that routes show as master. 0: unknown.

        others: the ids of the other brokers in the routes. If the master has ended, another broker was asked, and the
        master has the only id that is left.
        """
        ids = {self.number_of(one) + 1 for one in self.members} - set(others)
        own = self.number_of(self.self_id) + 1
        return own if own in ids else ids.pop() if len(ids) == 1 else 0

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


@dataclass(frozen=True, slots=True)
class LedgerMemberInfo:
    """A member as it reports itself. broker_id: of its broker while it does not lead.

    end_position, committed_position: where its log ends, and up to where it knows it to be committed, in bytes. None:
    unknown, since it is one of Apache's, or it did not answer; error says why.
    """

    member: str
    address: str
    broker_id: int
    end_position: int | None = None
    committed_position: int | None = None
    error: Exception | None = None


@dataclass(frozen=True, slots=True)
class LedgerReport:
    """A DLedger group. leader: id of the member that leads, None: none does. term: None: only Apache's answered."""

    group: str
    leader: str | None
    term: int | None
    members: tuple[LedgerMemberInfo, ...]

    @classmethod
    def of(cls, ledger: LedgerGroup, answers: Gathered[LedgerMetadataReply]) -> Self:
        """Return what the members answered, by id. The one in the latest term knows best who leads."""
        latest = max(answers.values(), key=lambda one: (one.term, one.leader_id is not None), default=None)
        members = []
        for name, address in ledger.members.items():
            found = answers.found.get(name)
            end, committed = (None, None) if found is None else (found.end_position, found.committed_position)
            error = answers.failures.get(name)
            members.append(LedgerMemberInfo(name, address, ledger.number_of(name) + 1, end, committed, error))
        term = None if latest is None or latest.term < 0 else latest.term
        return cls(ledger.name, None if latest is None else latest.leader_id, term, tuple(members))
