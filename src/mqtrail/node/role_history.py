"""What a broker writes of its roles (BrokerEvent records), and who was master before it.

A broker that is killed, or deposed, writes nothing of that. So the next master writes who was master before, and until
when it knew that. Events of a slave go to its master (TableCopier); those that were not written when a role ends go to
the next role.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import msgspec

from mqtrail.broker import Broker
from mqtrail.wire import BrokerEvent, BrokerEventKind

from .clock import wall_clock_ms


@dataclass(frozen=True, slots=True)
class KnownMaster:
    """A master of the group, and when it was last known to be that. epoch: or its term."""

    broker_id: str
    address: str
    epoch: int
    seen_ms: int


class RoleHistory:
    """The roles of one broker since its process started."""

    def __init__(self, clock: Callable[[], int] = wall_clock_ms) -> None:
        self._clock = clock
        self._known: KnownMaster | None = None
        self._role: tuple[bool, int] | None = None  # whether it is master, and in which epoch
        self._kept: list[BrokerEvent] = []

    def saw(self, broker_id: str, address: str, epoch: int) -> None:
        """Note that another broker is master now."""
        self._known = KnownMaster(broker_id, address, epoch, self._clock())

    def heard(self, at_ms: int) -> None:
        """Note when the last bytes of the known master came."""
        if self._known is not None and at_ms > self._known.seen_ms:
            self._known = replace(self._known, seen_ms=at_ms)

    def master_before(self, epoch: int | None) -> str:
        """Return the id of the master known of an earlier epoch; "": none is known."""
        known = self._known
        return "" if known is None or epoch is None or known.epoch >= epoch else known.broker_id

    def note(self, event: BrokerEvent) -> None:
        """Keep an event of now for the role that begins next."""
        self._kept.append(msgspec.structs.replace(event, time_stamp=self._clock()))

    def begin(
        self, core: Broker, *, broker_id: str, epoch: int | None, reason: str = "", at_ms: int | None = None
    ) -> None:
        """Write what a role begins with. epoch: of this broker as master; None: it is a slave, or no group chooses.
        at_ms: when it began; None: now.

        The same role in the same epoch again is no event: the broker was started anew to remove the end of its log.
        """
        events, now_ms = core.events, self._clock() if at_ms is None else at_ms
        if events is None:
            return
        kept, self._kept = self._kept, []
        if self._role is None:
            kept.append(BrokerEvent(event=BrokerEventKind.STARTED))
        is_master = not core.config.is_slave
        role = is_master, epoch or 0
        if role != self._role:
            kept.append(self._began(core, epoch, reason))
        self._role = role
        for event in kept:
            events.add(msgspec.structs.replace(event, broker_id=event.broker_id or broker_id), now_ms)
        if is_master:
            self._known = KnownMaster(broker_id, str(core.config.address), epoch or 0, now_ms)

    def _began(self, core: Broker, epoch: int | None, reason: str) -> BrokerEvent:
        known, was_master = self._known, self._role is not None and self._role[0]
        if core.config.is_slave:
            return BrokerEvent(event=BrokerEventKind.BECAME_SLAVE, reason=reason or ("deposed" if was_master else None))
        event = BrokerEvent(
            event=BrokerEventKind.BECAME_MASTER, epoch=epoch, reason=reason, from_offset=core.store.end_offset
        )
        if known is None or known.epoch >= (epoch or 0):
            return event
        return msgspec.structs.replace(
            event,
            before_id=known.broker_id,
            before_address=known.address,
            before_epoch=known.epoch,
            before_until_ms=known.seen_ms,
        )

    def stopping(self, core: Broker) -> None:
        """Write that the process ends: a master outside of a group that chooses its master.

        In a group the replicas might not get the record, and the next master says until when this one was known.
        """
        if core.events is not None and not core.config.is_slave:
            broker_id = "" if self._known is None else self._known.broker_id
            core.events.add(BrokerEvent(event=BrokerEventKind.STOPPED, broker_id=broker_id), self._clock())

    def leave(self, core: Broker) -> None:
        """Keep what a role that ends has not written. Its last act was to follow, or to be, the known master."""
        if self._role is not None and self._role[0]:
            self.heard(self._clock())
        self.heard(core.replicas.following.read_ms)
        if core.events is not None:
            self._kept += core.events.take()
