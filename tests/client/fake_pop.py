"""POP for a FakeBroker: a script that assigns queues, delivers messages, and records acknowledgements.

Texts are those of the protocol's description (broker.md §11 of the references): startOffsetInfo, msgOffsetInfo, POP_CK.
"""

from collections import deque

from mqtrail.clock import now_ms
from mqtrail.wire import (
    MessageQueue,
    QueryAssignmentBody,
    QueueAssignment,
    QueueAssignments,
    RemotingCommand,
    RequestCode,
    ResponseCode,
    decode_record,
)

from .fake_cluster import FakeBroker


class FakePop:
    """Adds POP to a broker. mode: the mode that it assigns. assigned: queue ids (-1: any), None for a reply without a
    list."""

    def __init__(self, broker: FakeBroker, mode: str = "POP") -> None:
        self.broker = broker
        self.age_ms = 0  # how long ago the clock says a pop was
        self.mode = mode
        self.assigned: list[int] | None = [-1]
        self.acked: list[tuple[str, int, int]] = []
        self.acked_handles: list[str] = []
        self.invisible: list[tuple[str, int, int, int]] = []
        self.asked: list[QueryAssignmentBody] = []
        self.retries: deque[bytes] = deque()  # records of the group's pop retry topic
        self._next: dict[tuple[str, int], int] = {}
        broker.script = self.script

    def script(self, command: RemotingCommand) -> RemotingCommand | None:
        ext = command.ext
        match command.code:
            case RequestCode.QUERY_ASSIGNMENT:
                body = QueryAssignmentBody.decode(command.body)
                self.asked.append(body)
                found = None
                if self.assigned is not None:
                    found = tuple(
                        QueueAssignment(MessageQueue(body.topic, self.broker.name, queue_id), self.mode)
                        for queue_id in ([] if body.topic.startswith("%RETRY%") else self.assigned)
                    )
                return RemotingCommand.reply_to(command, 0, body=QueueAssignments(found).encode())
            case RequestCode.POP_MESSAGE:
                return self.pop(command)
            case RequestCode.ACK_MESSAGE:
                self.acked.append((ext["topic"], int(ext["queueId"]), int(ext["offset"])))
                self.acked_handles.append(ext["extraInfo"])
                return RemotingCommand.reply_to(command, 0)
            case RequestCode.CHANGE_MESSAGE_INVISIBLETIME:
                self.invisible.append(
                    (ext["topic"], int(ext["queueId"]), int(ext["offset"]), int(ext["invisibleTime"]))
                )
                header = {"popTime": str(now_ms()), "invisibleTime": ext["invisibleTime"], "reviveQid": "5"}
                return RemotingCommand.reply_to(command, 0, None, header)
        return None

    def pop(self, command: RemotingCommand) -> RemotingCommand:
        """Return messages that were not popped yet; if there are none, reply at once, as after the poll time."""
        ext = command.ext
        topic, count = ext["topic"], int(ext["maxMsgNums"])
        starts, offsets, records = [], [], []
        if self.retries:
            record = self.retries.popleft()
            message, _ = decode_record(record)
            starts.append(f"1 {message.queue_id} {message.queue_offset}")
            offsets.append(f"1 {message.queue_id} {message.queue_offset}")
            records.append(record)
        for (name, queue_id), queue in sorted(self.broker.queues.items()):
            first = self._next.get((name, queue_id), 0)
            taken = queue.records[first : first + count - len(records)] if name == topic else []
            if taken:
                self._next[name, queue_id] = first + len(taken)
                starts.append(f"0 {queue_id} {first}")
                offsets.append(f"0 {queue_id} " + ",".join(str(first + place) for place in range(len(taken))))
                records += taken
        reply = {
            "popTime": str(now_ms() - self.age_ms),
            "invisibleTime": ext["invisibleTime"],
            "reviveQid": "3",
            "restNum": "0",
        }
        if not records:
            return RemotingCommand.reply_to(command, ResponseCode.POLLING_TIMEOUT, "timeout", reply)
        reply |= {"startOffsetInfo": ";".join(starts), "msgOffsetInfo": ";".join(offsets)}
        return RemotingCommand.reply_to(command, 0, None, reply, b"".join(records))
