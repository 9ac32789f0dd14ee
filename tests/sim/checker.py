"""The checker: which promises a history breaks. It uses only the history.

    problems = check(history)      # [] if every promise was kept

This module has the rules for every cluster, 1 to 8 of docs/design/simulation.md. Rules for one kind of consumer have
their own modules. Modelled on jepsen's checker of Kafka (tests/kafka.clj).
"""

from collections import defaultdict
from collections.abc import Iterator

from mqtrail.wire import DLQ_PREFIX, RETRY_PREFIX

from .check_broadcast import BroadcastChecker
from .check_order import OrderChecker
from .check_pop import PopChecker
from .facts import Facts
from .history import Handled, History, Place, Read

CLOCK_SLACK_MS = 1.0  # clocks show whole ms
TIMER_SLACK_MS = 1_000.0  # a timer's time is cut to the second before it, as in Apache's broker


def check(history: History) -> list[str]:
    """Return a sentence for every broken promise."""
    facts = Facts(history)
    kinds = (_Checker(facts), OrderChecker(facts), PopChecker(facts), BroadcastChecker(facts))
    return [problem for kind in kinds for problem in kind.problems()]


class _Checker:
    def __init__(self, facts: Facts) -> None:
        self._facts = facts
        self._history = facts.history
        self._audit, self._kept = facts.audit, facts.kept

    def problems(self) -> Iterator[str]:
        yield from self._only_what_was_sent()
        yield from self._one_body_a_place()
        yield from self._nothing_lost()
        yield from self._in_order()
        yield from self._transactions()
        yield from self._all_handled()
        yield from self._offsets_behind()
        yield from self._never_early()
        yield from self._history.forgotten

    # The promises.

    def _only_what_was_sent(self) -> Iterator[str]:
        for read in self._history.reads:
            sent = None if read.number is None else self._history.sent.get(read.number)
            if sent is None:
                yield f"{read.reader} read {read.body[:30]!r} at {read.place}, which was never sent"
            elif sent.at_ms > read.at_ms:
                yield f"{read.reader} read {read.number} at {read.place} before it was sent"
            elif not read.place.topic.startswith((RETRY_PREFIX, DLQ_PREFIX)) and read.place.topic != sent.topic:
                yield f"{read.reader} read {read.number} at {read.place}, sent to {sent.topic}"

    def _one_body_a_place(self) -> Iterator[str]:
        known: dict[Place, tuple[int | None, float]] = {}
        bound = [(read.at_ms, read.place, read.number, True) for read in self._history.reads]
        bound += [
            (sent.acked_ms, sent.place, sent.number, sent.waits)
            for sent in self._history.sent.values()
            if sent.place is not None and sent.acked_ms is not None
        ]
        for at_ms, place, number, waits in sorted(bound, key=lambda one: one[0]):
            before = known.get(place)
            if before is not None and before[0] != number and self._facts.safe(place.broker, before[1]):
                yield f"{place} was {before[0]} at {before[1]:.0f} ms and is {number} at {at_ms:.0f} ms"
            if (
                waits or not self._history.sync_flush
            ):  # under SYNC_FLUSH, messages whose reply did not wait for the flush may be lost
                known[place] = (number, at_ms)

    def _nothing_lost(self) -> Iterator[str]:
        for sent in self._history.sent.values():
            if sent.in_transaction or not self._facts.had_to_be_kept(sent) or self._kept.get(sent.number):
                continue
            kind = f"delayed {sent.delay_ms} ms, " if sent.delay_ms else ""
            yield f"{sent.number} is lost: {kind}acked at {sent.acked_ms:.0f} ms by {sent.acked_by}, {sent.place}"

    def _in_order(self) -> Iterator[str]:
        """A message sent after another was acknowledged is stored after it."""
        queues: dict[tuple[str, str, int], list[Read]] = defaultdict(list)
        for read in self._audit:
            if not read.place.topic.startswith((RETRY_PREFIX, DLQ_PREFIX)):
                queues[read.place[:3]].append(read)
        for reads in queues.values():
            first_acked_ms = float("inf")  # of the later ones
            for read in sorted(reads, key=lambda read: -read.place.offset):
                sent = self._history.sent.get(read.number if read.number is not None else -1)
                if sent is None or sent.delay_ms or sent.in_transaction:
                    continue
                if sent.at_ms > first_acked_ms:
                    yield f"{sent.number} at {read.place} is before one acknowledged earlier than it was sent"
                if sent.place == read.place and sent.acked_ms is not None:
                    first_acked_ms = min(first_acked_ms, sent.acked_ms)

    def _transactions(self) -> Iterator[str]:
        for read in self._history.reads:
            sent = self._history.sent.get(read.number if read.number is not None else -1)
            if sent is None or not sent.in_transaction:
                continue
            if sent.decided != "commit" or sent.decided_ms is None or sent.decided_ms > read.at_ms:
                yield f"{read.reader} read {sent.number} of a transaction ({sent.decided or 'open'}) at {read.place}"
        for sent in self._history.sent.values():
            owed = sent.in_transaction and sent.decided == "commit" and self._facts.had_to_be_kept(sent)
            if owed and not self._kept.get(sent.number):
                yield f"{sent.number} was committed and is lost, acknowledged at {sent.acked_ms:.0f} ms"

        # A send may leave a half message for each attempt, and two if its frame was duplicated. A check appends the
        # half message again and later records that the old one is done: if the process ends in between, both remain and
        # each can be committed, though one was committed before. So 1 + 2 + 4 … commits of each, one more term for each
        # end of a process.
        ends = len(self._history.ends)
        most = 2 ** (ends + 1) - 1
        for number, copies in self._kept.items():
            sent = self._history.sent.get(number)
            if sent is not None and sent.in_transaction and len(copies) > 2 * sent.attempts * most:
                yield f"{number} was committed {len(copies)} times, sent {sent.attempts} times, {ends} processes ended"

    def _all_handled(self) -> Iterator[str]:
        """Each message in the topic was processed by each group, or is in its retry topic or among its dead letters."""
        done = {(one.group, one.number) for one in self._history.handled if one.as_ == "done"}
        dead = {(read.place.topic.removeprefix(DLQ_PREFIX), read.number) for read in self._audit}
        for one in self._history.handled:
            if one.as_ == "sent back" and not self._facts.safe(one.place.broker, one.at_ms):
                done.add((one.group, one.number))  # its copy could be lost with unflushed data
        for number, reads in self._kept.items():
            for group in self._history.groups.get(reads[0].place.topic, ()):
                copies = reads + self._facts.retried[group, number]
                if (
                    (group, number) not in done
                    and (group, number) not in dead
                    and not self._facts.reused(group, copies)
                ):
                    yield f"{group} is not done with {number}, which is at {reads[0].place}"

    def _offsets_behind(self) -> Iterator[str]:
        handled: dict[tuple[str, Place], float] = {}
        for one in self._history.handled:
            if one.as_ == "asked back":
                continue
            key = one.group, one.place
            handled[key] = min(handled.get(key, one.at_ms), one.at_ms)
        acked: dict[tuple[str, str, int], list[tuple[Place, float, int]]] = defaultdict(list)
        for sent in self._history.sent.values():
            if sent.place is not None and sent.acked_ms is not None and self._facts.had_to_be_kept(sent):
                acked[sent.place[:3]].append((sent.place, sent.acked_ms, sent.number))
        for seen in self._history.offsets:
            for place, acked_ms, number in acked[seen.broker, seen.topic, seen.queue_id]:
                if (
                    place.offset < seen.offset
                    and acked_ms < seen.at_ms
                    and handled.get((seen.group, place), float("inf")) > seen.at_ms
                ):
                    yield f"{seen.group} had committed {seen.offset} and was not done with {number} at {place}"

    def _never_early(self) -> Iterator[str]:
        for read in self._history.reads:
            sent = self._history.sent.get(read.number if read.number is not None else -1)
            if sent is None or not sent.delay_ms or read.place.topic != sent.topic:
                continue
            early_ms = sent.at_ms + sent.delay_ms - read.at_ms - (TIMER_SLACK_MS if sent.is_timer else 0)
            if early_ms > self._facts.set_forward(read.place.broker, sent.at_ms, read.at_ms) + CLOCK_SLACK_MS:
                yield f"{read.reader} read {sent.number} at {read.place} {early_ms:.0f} ms before its delay was over"
        first: dict[tuple[str, int, int], Read] = {}
        for read in self._history.reads:
            if read.place.topic.startswith(RETRY_PREFIX) and read.number is not None and read.reader != "audit":
                first.setdefault((read.reader, read.number, read.reconsume_times), read)
        all_asked = self._asked_back()
        for (group, number, _), read in first.items():
            asked = [one for one in all_asked[group, number] if one.at_ms < read.at_ms]
            least = min((one.due_ms for one in asked), default=0.0)
            since = min((one.at_ms for one in asked), default=0.0)
            if least - read.at_ms > self._facts.set_forward(read.place.broker, since, read.at_ms) + CLOCK_SLACK_MS:
                yield f"{group} got {number} back at {read.place} {least - read.at_ms:.0f} ms early"

    def _asked_back(self) -> dict[tuple[str, int], list[Handled]]:
        """Return the send-backs of each group, by the messages that they may have meant.

        A send-back names a physical offset. Under ASYNC_FLUSH another message may be there since a power cut.
        """
        physical: dict[tuple[str, Place, int], int] = {}
        standing: dict[tuple[str, int], set[int]] = defaultdict(set)  # (broker, physical offset) -> messages
        for read in self._history.reads:
            if read.number is not None:
                physical[read.reader, read.place, read.number] = read.physical
                standing[read.place.broker, read.physical].add(read.number)
        asked: dict[tuple[str, int], list[Handled]] = defaultdict(list)
        for one in self._history.handled:
            if one.as_ != "asked back":
                continue
            numbers = {one.number}
            at = physical.get((one.group, one.place, one.number))
            if at is not None and not self._history.sync_flush:
                numbers |= standing[one.place.broker, at]
            for number in numbers:
                asked[one.group, number].append(one)
        return asked
