"""POP consumers, without queues and offsets: a member requests messages from brokers and returns the handle of each.

Processed messages are acknowledged, alone or in batches. If one takes longer, its invisible time is extended first. A
failed one returns after its invisible time.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from math import inf

from mqtrail.client.pop.calls import handle_of, read_pop_reply
from mqtrail.wire import (
    AckHeader,
    BatchAck,
    BatchAckBody,
    ChangeInvisibleHeader,
    ChangeInvisibleResponseHeader,
    MessageExt,
    MessageQueue,
    PopHandle,
    PopHeader,
    RemotingCommand,
    RequestCode,
    ResponseCode,
    SendBackHeader,
    topic_of_marker,
)

from .clients import PAUSE_MS, note_read, number_of
from .consumers import HOLD_MS, PULL_TIMEOUT_MS, RECONSUME_MAX, Member
from .engine import START_MS, Engine
from .history import Claim, History, Place, Popped, Worked
from .network import Network

INVISIBLE_MS = (1_500, 2_500, 4_000)  # a pop's
HIDE_MS = (500, 1_500, 3_000)  # a failed message
WORK_MS = (1.0, 300.0)
ORDERED_WORK_MS = (1.0, 40.0)
BATCH_MS = 40.0  # time in which acks are collected
ACK_TRIES = 3
HELD_MAX = 64  # most messages of a member at a time


@dataclass(slots=True, eq=False)
class Hold:
    """A popped message of a member, with its latest handle."""

    message: MessageExt
    handle: PopHandle
    popped: Popped
    broker: str
    is_noted: bool = False

    @property
    def claim(self) -> Claim:
        return self.popped.claims[-1]


class PopConsumer(Member):
    """One member of a group that pops."""

    IN_ORDER = False

    def __init__(
        self, engine: Engine, network: Network, history: History, name: str, namesrv: str, group: str, topic: str
    ) -> None:
        super().__init__(engine, network, history, name, namesrv, group, topic)
        self.topic = topic
        self._popping: set[str] = set()
        self._seen: set[tuple[int, PopHandle]] = set()  # with the numbers of the requests
        self._pops: dict[int, tuple[str, float]] = {}  # number of the request -> broker, time of the request
        self._held = 0
        self._acks: dict[str, list[Hold]] = {}  # broker -> acks of the next batch
        self._every(PAUSE_MS, self._look)

    # Popping.

    def _look(self) -> None:
        for broker in self.addresses:
            if broker not in self._popping:
                self._popping.add(broker)
                self._pop(broker)

    def _pop(self, broker: str) -> None:
        if self._held >= HELD_MAX:
            self.later(PAUSE_MS, lambda: self._pop(broker))
            return
        chance, now_ms = self.engine.chance, self.engine.now_ms
        header = PopHeader(
            self.group,
            self.topic,
            -1,
            chance.choice((1, 4, 16)),
            chance.choice(INVISIBLE_MS),
            HOLD_MS,
            chance.choice(
                (0, self.engine.start_ms + int(now_ms))
            ),  # 0: use the time of the broker, whose clock may be wrong
            0,
            "TAG",
            "*",
            self.IN_ORDER,
        )
        command = RemotingCommand(RequestCode.POP_MESSAGE, header.to_ext())
        answered = partial(self._popped, broker, now_ms)
        self._pops[self.request(self.addresses[broker], command, answered, PULL_TIMEOUT_MS)] = broker, now_ms

    def _popped(self, broker: str, asked_ms: float, reply: RemotingCommand | None) -> None:
        pause_ms = PAUSE_MS
        if reply is not None and reply.code == ResponseCode.SUCCESS:
            pause_ms = 1
            holds = self._take(broker, asked_ms, reply)
            self._held += len(holds)
            self.work_on(holds)
        elif reply is not None and reply.code == ResponseCode.POLLING_TIMEOUT:
            pause_ms = 1
        self.later(pause_ms, lambda: self._pop(broker))

    def stray(self, reply: RemotingCommand) -> None:
        """Record the messages of a duplicated pop, or of a late reply: no member processes them."""
        if reply.opaque in self._pops and reply.code == ResponseCode.SUCCESS:
            self._take(*self._pops[reply.opaque], reply)

    def _take(self, broker: str, asked_ms: float, reply: RemotingCommand) -> list[Hold]:
        """Return the messages of a pop."""
        holds = []
        for message in read_pop_reply(reply, MessageQueue(self.topic, broker, -1)).messages:
            handle = handle_of(message)
            assert handle.queue_offset is not None
            if (reply.opaque, handle) in self._seen:
                continue  # a duplicated reply
            self._seen.add((reply.opaque, handle))
            topic = topic_of_marker(handle.marker, self.topic, self.group)
            place = Place(broker, topic, handle.queue_id, handle.queue_offset)
            number, now_ms = number_of(message.body), self.engine.now_ms
            note_read(self.history, now_ms, self.group, place, message)
            popped = Popped(
                self.group,
                self.name,
                place,
                -1 if number is None else number,
                message.reconsume_times,
                self.IN_ORDER,
                now_ms,
                float(handle.pop_time_ms - START_MS),
                [Claim(asked_ms, now_ms, _visible_ms(handle.pop_time_ms, handle.invisible_ms))],
            )
            self.history.popped.append(popped)
            holds.append(Hold(message, handle, popped, broker))
        return holds

    # Processing.

    def work_on(self, holds: list[Hold]) -> None:
        for hold in holds:
            duration = WORK_MS
            if self.engine.happens(0.05):
                duration = 0.5 * hold.handle.invisible_ms, 1.5 * hold.handle.invisible_ms
            self.later(self.engine.between(*duration), partial(self._worked, hold))

    def _worked(self, hold: Hold) -> None:
        """Record the result."""
        self._held -= 1
        is_late = self.engine.now_ms - hold.popped.at_ms >= hold.handle.invisible_ms
        if is_late and self.engine.happens(0.7):
            return  # its invisible time is up
        if self.engine.happens(0.15):
            if hold.message.reconsume_times >= RECONSUME_MAX:
                self._bury(hold)
            elif self.engine.happens(0.5):
                self._hide(hold, self.engine.chance.choice(HIDE_MS), None)
        elif self.engine.happens(0.1):
            self._hide(hold, self.engine.chance.choice(INVISIBLE_MS), lambda: self._ack_later(hold))
        else:
            self._ack(hold)

    def _ack_later(self, hold: Hold) -> None:
        """Continue with a message whose invisible time was extended."""
        self.later(self.engine.between(1, 1_000), lambda: self._ack(hold))

    # Requests to the broker.

    def _ack(self, hold: Hold) -> None:
        self.done(hold)
        if not self.engine.happens(0.4):
            self._ack_alone(hold, ACK_TRIES)
            return
        waiting = self._acks.setdefault(hold.broker, [])
        waiting.append(hold)
        if len(waiting) == 1:
            self.later(BATCH_MS, lambda: self._ack_batch(hold.broker))

    def done(self, hold: Hold) -> None:
        """Record that a message was processed, and acknowledge it."""
        if not hold.is_noted:
            hold.is_noted = True
            self.note(hold.popped.place, hold.popped.number, "done")

    def _ack_alone(self, hold: Hold, tries: int, on_taken: Callable[[], None] = lambda: None) -> None:
        place, claim = hold.popped.place, hold.claim
        header = AckHeader(self.group, place.topic, place.queue_id, hold.handle.encode(), place.offset)

        def answered(reply: RemotingCommand | None) -> None:
            if reply is None and tries > 1:
                self.later(100, lambda: self._ack_alone(hold, tries - 1, on_taken))
            elif reply is not None and reply.code == ResponseCode.SUCCESS:
                self._ended(claim)
                on_taken()

        self._give_up(claim)
        command = RemotingCommand(RequestCode.ACK_MESSAGE, header.to_ext())
        self.request(self.addresses[hold.broker], command, answered)

    def _ack_batch(self, broker: str) -> None:
        holds = self._acks.pop(broker)
        holds.sort(key=_point_of)
        acks = []
        for point, one in groupby(holds, _point_of):
            marker, queue_id, start_offset, revive_queue_id, pop_time_ms, invisible_ms = point
            diffs = [hold.popped.place.offset - start_offset for hold in one]
            acks.append(
                BatchAck(
                    self.group,
                    self.topic,
                    marker,
                    start_offset,
                    queue_id,
                    revive_queue_id,
                    pop_time_ms,
                    invisible_ms,
                    BatchAck.pack(diffs),
                )
            )
        claims = [hold.claim for hold in holds]

        def answered(reply: RemotingCommand | None) -> None:
            if reply is not None and reply.code == ResponseCode.SUCCESS:
                for claim in claims:
                    self._ended(claim)

        for claim in claims:
            self._give_up(claim)
        body = BatchAckBody(broker, tuple(acks)).encode()
        self.request(self.addresses[broker], RemotingCommand(RequestCode.BATCH_ACK_MESSAGE, {}, body), answered)

    def _hide(self, hold: Hold, invisible_ms: int, on_taken: Callable[[], None] | None) -> None:
        """Let the message return this much later. on_taken: continue with it then."""
        place, before = hold.popped.place, hold.claim
        header = ChangeInvisibleHeader(
            self.group, place.topic, place.queue_id, hold.handle.encode(), place.offset, invisible_ms
        )
        claim = Claim(self.engine.now_ms, None, -inf)
        hold.popped.claims.append(claim)
        self._give_up(before)

        def answered(reply: RemotingCommand | None) -> None:
            if reply is None or reply.code != ResponseCode.SUCCESS:
                return
            header = ChangeInvisibleResponseHeader.from_ext(reply.ext)
            claim.at_ms = self.engine.now_ms
            claim.visible_ms = _visible_ms(header.pop_time, header.invisible_time)
            hold.handle = hold.handle._replace(
                start_offset=place.offset,
                pop_time_ms=header.pop_time,
                invisible_ms=header.invisible_time,
                revive_queue_id=header.revive_qid,
            )
            self._ended(before)
            if on_taken is not None:
                on_taken()

        command = RemotingCommand(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, header.to_ext())
        self.request(self.addresses[hold.broker], command, answered)

    def _bury(self, hold: Hold) -> None:
        """Make it a dead letter, and acknowledge it afterwards."""
        number = hold.popped.number
        header = SendBackHeader(
            hold.message.physical_offset,
            self.group,
            -1,
            origin_msg_id=hold.message.properties.get("UNIQ_KEY", ""),
            origin_topic=hold.popped.place.topic,
            max_reconsume_times=RECONSUME_MAX,
        )

        def answered(reply: RemotingCommand | None) -> None:
            if reply is not None and reply.code == ResponseCode.SUCCESS:
                self.note(hold.popped.place, number, "sent back")
                self._ack_alone(hold, ACK_TRIES)

        command = RemotingCommand(RequestCode.CONSUMER_SEND_MSG_BACK, header.to_ext())
        self.request(self.addresses[hold.broker], command, answered)

    def _give_up(self, claim: Claim) -> None:
        if claim.given_up_ms is None:
            claim.given_up_ms = self.engine.now_ms

    def _ended(self, claim: Claim) -> None:
        if claim.ended_ms is None:
            claim.ended_ms = self.engine.now_ms


class OrderedPopConsumer(PopConsumer):
    """One member of a group that pops in order."""

    IN_ORDER = True

    def work_on(self, holds: list[Hold]) -> None:
        self._held -= len(holds)  # a queue is blocked until its messages are finished, so there are never many
        for _, of_queue in groupby(holds, lambda hold: hold.popped.place[:3]):
            self._begin(list(of_queue))

    def kill(self) -> None:
        super().kill()
        for one in self.history.worked:
            if one.member == self.name:
                one.to_ms = min(one.to_ms, self.engine.now_ms)

    def _begin(self, holds: list[Hold]) -> None:
        """Process the first message of a queue, then the others, until their invisible time is up."""
        if not holds or self.engine.now_ms - holds[0].popped.at_ms >= 0.8 * holds[0].handle.invisible_ms:
            return
        popped = holds[0].popped
        worked = Worked(self.group, self.name, popped.place, popped.number, self.engine.now_ms)
        self.history.worked.append(worked)
        self.later(self.engine.between(*ORDERED_WORK_MS), lambda: self._went(holds, worked))

    def _went(self, holds: list[Hold], worked: Worked) -> None:
        worked.to_ms = self.engine.now_ms
        hold, *rest = holds
        if not self.engine.happens(0.03):
            self.done(hold)
            self._ack_alone(hold, ACK_TRIES, lambda: self._begin(rest))
        elif self.engine.happens(0.5):
            self._hide(hold, self.engine.chance.choice(HIDE_MS), None)


def _visible_ms(pop_time_ms: int, invisible_ms: int) -> float:
    return float(pop_time_ms + invisible_ms - START_MS)


def _point_of(hold: Hold) -> tuple[str, int, int, int, int, int]:
    """Return the key by which a batch names a check point."""
    handle = hold.handle
    return (
        handle.marker,
        handle.queue_id,
        handle.start_offset,
        handle.revive_queue_id,
        handle.pop_time_ms,
        handle.invisible_ms,
    )
