"""Admin: requests of operators and tools to name servers and brokers.

A query to several brokers returns `Gathered`: the answers in `found`, and the errors of brokers that did not answer or
refused in `failures`. Changes return the same, with the outcome for each broker, queue or name server. Only methods
with these names or prefixes change anything: create_, set_, elect_, restart_, update_, delete_, reset_, clone_,
clean_, wipe_, add_, kv_put, kv_delete, consume_directly, recall_, resend_, resume_, skip_.
"""

from .access import AdminAccess
from .backlog import ClusterLag
from .delays import BrokerDelays, DelayReading
from .half_messages import BrokerHalfMessages, HalfReading
from .handed_out import BrokerPops, PopReading
from .lag import LagReading
from .waiting import WaitingMessages


class Admin(AdminAccess):
    """Queries and changes a cluster. Use it with `async with`, from one event loop.

    Where a method has both arguments, `broker` selects one broker by name or address (host:port) and `cluster` all
    masters of a cluster. Without either, all masters are selected.
    """

    async def lag(self, group: str | None = None, *, over_ms: int | None = None, oldest_count: int = 0) -> ClusterLag:
        """What groups (group: only this one) still have to read, in messages and in time. Raises NoNameServer.

        over_ms: read twice with this pause, for the trend. oldest_count: with a group, also return so many of the
        messages that have waited longest, at most 32. What brokers do not tell is None, with its reason.
        """
        return await LagReading(self, group).read(over_ms, oldest_count)

    async def waiting_at(self, broker_name: str) -> list[str]:
        """What of a master's messages is not consumed or delivered yet, or not known to be, in words; empty: nothing.

        Half messages whose transaction has not ended are left out.
        """
        return await WaitingMessages(self, broker_name).read()

    async def delays(self) -> tuple[list[BrokerDelays], tuple[str, ...]]:
        """The delayed messages of each master, and a sentence for each unknown or unread part. NoNameServer."""
        return await DelayReading(self).read()

    async def half_messages(self) -> tuple[list[BrokerHalfMessages], tuple[str, ...]]:
        """The half messages of each master whose transaction has not ended, or that it gave up; and as above."""
        return await HalfReading(self).read()

    async def pops(self) -> tuple[list[BrokerPops], tuple[str, ...]]:
        """What the pops on each master handed out and is not acknowledged; and as above."""
        return await PopReading(self).read()
