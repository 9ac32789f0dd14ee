"""POP as a whole: its concerns, clock, saves and start.

Source: BrokerController, apache/rocketmq 5.3.3 broker/.
"""

from collections.abc import Callable

from mqtrail.wire import Handler, PeerId, Send

from ..state import BrokerState
from ..tables import Arrived
from .acks import PopAcks
from .assignment import Assignments
from .checks import PopChecks
from .held_pops import HeldPop, HeldPops, WaitKey
from .notices import PopNotices
from .orders import OrderTable
from .pops import QUEUES_SEEN, PopMessages
from .positions import Positions
from .revive import Revive
from .revive_log import ReviveLog
from .state import PopState
from .timing import Timing

ServeHeldPop = Callable[[HeldPop, Handler, int], list[Send]]


class Pop:
    """POP as a whole. serve: answers a held request by a handler, with errors as answers."""

    def __init__(self, state: BrokerState, timers: Timing, serve: ServeHeldPop) -> None:
        self._store = state.store
        self._topics = state.topics
        self._groups = state.groups
        self._offsets = state.offsets
        self._writer = state.writer
        self._serve = serve
        self._opened: list[WaitKey] = []
        self._files = state.files
        self._first_save = 0  # number of the table change that every pop waits for
        self.orders = OrderTable(state.files)
        self.positions = Positions(state, self.orders)
        self.recovered_count = self.positions.recover()
        self.orders.catch_up(state.offsets.get)
        log = self.revive_log = ReviveLog(state, timers)
        self._pops, self._held_notices = _held(state), _held(state)
        shared = PopState(
            orders=self.orders,
            positions=self.positions,
            log=log,
            checks=PopChecks(state),
            pops=self._pops,
            notices=self._held_notices,
        )
        self.messages = PopMessages(state, shared, self._save_first)
        self.acks = PopAcks(state, shared, self._opened.append)
        self.notices = PopNotices(state, shared)
        self.assignments = Assignments(state)
        self.revive = Revive(state, log, timers, self._save_now)
        state.writer.on_revive_log(log.topic, self.revive.arrived)

    # Held requests.

    def settle(self, now_ms: int) -> list[Send]:
        """Serve held requests for messages that arrived, were left over or became available since the last call."""
        if not self._writer.watched and not self._opened and not self.messages.left_over:
            return []
        sends: list[Send] = []
        for arrival in self._writer.take_watched():
            sends += self._arrived(*arrival, now_ms)
        while self._opened or self.messages.left_over:
            opened, self._opened[:] = list(self._opened), []
            for topic, group, queue_id in opened:
                sends += self._arrived(topic, queue_id, None, now_ms, only_group=group)
            left_over, self.messages.left_over[:] = list(self.messages.left_over), []
            for key in left_over:
                pop = self._pops.take(key)
                if pop is not None:
                    sends += self._serve(pop, self.messages.handle, now_ms)
        return sends

    def _arrived(
        self, topic: str, queue_id: int, arrived: Arrived | None, now_ms: int, only_group: str | None = None
    ) -> list[Send]:
        sends: list[Send] = []
        for waited_for, group in self._writer.watched.waiting(topic):
            queue = queue_id if group is None else None  # messages of the retry topic may go to any pop of the group
            for held, handler in ((self._pops, self.messages.handle), (self._held_notices, self.notices.notify)):
                for pop in held.take_arrived(waited_for, queue, arrived, group or only_group):
                    pop.request.ext.pop(QUEUES_SEEN, None)  # the message may be in a queue that was read before
                    sends += self._serve(pop, handler, now_ms)
        return sends

    def disconnected(self, peer: PeerId) -> None:
        """Remove the held requests of a closed connection."""
        self._pops.disconnect(peer)
        self._held_notices.disconnect(peer)
        self.assignments.disconnect(peer)

    # The clock.

    def next_due_ms(self) -> int | None:
        """Return the epoch ms of the next `tick`; None: nothing waits."""
        times = [
            time_ms
            for time_ms in (
                self._pops.next_due_ms(),
                self._held_notices.next_due_ms(),
                self.orders.next_open_ms(),
                self.revive.next_due_ms(),
                self.assignments.next_due_ms(),
            )
            if time_ms is not None
        ]
        return min(times, default=None)

    def tick(self, now_ms: int) -> list[Send]:
        """Serve requests for queues that opened, and end those that timed out."""
        self._opened += self.orders.take_open(now_ms)
        sends = [] if self.assignments.next_due_ms() is None else self.assignments.tick(now_ms)
        for held, handler in ((self._pops, self.messages.handle), (self._held_notices, self.notices.notify)):
            for pop in held.take_due(now_ms):
                sends += self._serve(pop, handler, now_ms)
        return sends

    # Saves.

    def save(self, now_ms: int) -> None:
        """Save the orders and the ends of the logs, just before the offsets are saved."""
        self.orders.save(self._topics, self._groups, now_ms)
        self.positions.note()

    def _save_first(self, now_ms: int) -> None:
        """Save the ends of the logs before the first pop is answered, since a start needs them."""
        if self.positions.start():
            self.save(now_ms)
            self._offsets.save(
                now_ms, self._store.end_offset, self._store.flushed_offset, undo=self.positions.start_failed
            )
            self._first_save = self._files.dependency
            self.positions.started()
        self._files.depend_on(self._first_save)

    def _save_now(self, now_ms: int) -> None:
        self.save(now_ms)
        self._offsets.save(now_ms, self._store.end_offset, self._store.flushed_offset)


def _held(state: BrokerState) -> HeldPops:
    config = state.config
    return HeldPops(state.writer.watched, config.held_pops_max, config.held_pops_queue_max)
