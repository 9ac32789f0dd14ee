"""Rule 15: a member of a broadcasting group processes all messages after its start, independently of other members."""

from collections import defaultdict
from collections.abc import Iterator

from mqtrail.wire import DLQ_PREFIX, RETRY_PREFIX

from .facts import Facts
from .history import Begun, Read

_Queue = tuple[str, str, int]  # broker, topic, queue id


class BroadcastChecker:
    """Checks the members of broadcasting groups that were alive at the end."""

    def __init__(self, facts: Facts) -> None:
        self._facts = facts
        self._history = facts.history

    def problems(self) -> Iterator[str]:
        queues: dict[_Queue, list[Read]] = defaultdict(list)
        for read in self._facts.audit:
            if read.number is not None and not read.place.topic.startswith((RETRY_PREFIX, DLQ_PREFIX)):
                queues[read.place[:3]].append(read)
        first: dict[tuple[str, _Queue], Begun] = {}
        for begun in self._history.begun:
            first.setdefault((begun.member, (begun.broker, begun.topic, begun.queue_id)), begun)
        done = {(one.member, one.place, one.number) for one in self._history.handled}
        for member, topic in self._history.broadcasts.items():
            for queue, reads in queues.items():
                if queue[1] != topic:
                    continue
                start = first.get((member, queue))
                if start is None:
                    yield f"{member} never began to read {queue}"
                    continue
                for read in reads:
                    assert read.number is not None
                    if read.place.offset < start.offset:
                        yield from self._passed_by(member, start, read)
                    elif (member, read.place, read.number) not in done and not self._facts.reused(member, [read]):
                        yield f"{member} skipped {read.number} at {read.place}"

    def _passed_by(self, member: str, start: Begun, read: Read) -> Iterator[str]:
        """A message sent after the member learned a queue's end is stored after that end.

        A power cut is the exception: it may free positions before that end, of messages that were not durable yet.
        """
        sent = self._history.sent.get(read.number if read.number is not None else -1)
        if sent is not None and sent.at_ms > start.at_ms and self._facts.safe(read.place.broker, start.at_ms, False):
            yield f"{member} began at {start.offset}, and {read.number} was sent later to {read.place}"
