"""Rules 11 to 14: a popped message returns if and only if it is not acknowledged in time.

A message's copies are distinguished by their delivery count: the topic's own has count 0, and each revival makes a copy
in the retry topic with the next count. So a copy needs a claim: a pop of a copy with the count before, that did not end
in time.
"""

from collections import defaultdict
from collections.abc import Iterator
from math import inf

from mqtrail.wire import DLQ_PREFIX, pop_retry_topic

from .facts import Facts
from .history import Claim, Place, Popped, Read
from .network import LATE_MS

CLOCK_SLACK_MS = 1.0  # clocks show whole ms
_Queue = tuple[str, str, int]  # broker, topic, queue id


class PopChecker:
    """Checks the groups that pop."""

    def __init__(self, facts: Facts) -> None:
        self._facts = facts
        self._history = facts.history
        self._at: dict[tuple[str, Place], list[Popped]] = defaultdict(list)
        for popped in self._history.popped:
            self._at[popped.group, popped.place].append(popped)

    def problems(self) -> Iterator[str]:
        yield from self._all_handled()
        yield from self._once_from_a_place()
        yield from self._revived_in_time()
        yield from self._closed_queues()

    # 11.

    def _all_handled(self) -> Iterator[str]:
        """Each message in the topic was processed and acknowledged by each group, or is among its dead letters.

        In both flush modes: a group's offset is saved when the check points before it are durable, not earlier.
        """
        done = {(one.group, one.number) for one in self._history.handled if one.as_ == "done"}
        done |= {
            (read.place.topic.removeprefix(DLQ_PREFIX), read.number)
            for read in self._facts.audit
            if read.number is not None and read.place.topic.startswith(DLQ_PREFIX)
        }
        for number, reads in self._facts.kept.items():
            for group in self._history.poppers.get(reads[0].place.topic, ()):
                if (group, number) not in done:
                    yield f"{group} is not done with {number}, which is at {reads[0].place}"

    # 12.

    def _once_from_a_place(self) -> Iterator[str]:
        """The broker delivers a position of a queue once, unless a power cut lost that knowledge. In order: see 14."""
        first: dict[tuple[str, Place], Popped] = {}
        for popped in self._history.popped:
            before = first.setdefault((popped.group, popped.place), popped)
            if before is not popped and not popped.in_order and self._facts.safe(popped.place.broker, before.at_ms):
                yield (
                    f"{popped.group} popped {popped.place} again at {popped.at_ms:.0f} ms, "
                    f"as {before.member} did at {before.at_ms:.0f} ms"
                )

    # 13.

    def _revived_in_time(self) -> Iterator[str]:
        """A message returns only if it was not acknowledged in time, and not before its time is up."""
        in_order = {popped.group for popped in self._history.popped if popped.in_order}
        for topic, groups in self._history.poppers.items():
            for group in groups:
                if group not in in_order:
                    yield from self._revived(topic, group)

    def _revived(self, topic: str, group: str) -> Iterator[str]:
        copies: dict[tuple[str, int], dict[Place, Read]] = defaultdict(dict)  # (broker, number) -> first seen as
        topics = topic, pop_retry_topic(topic, group)
        for read in self._history.reads:
            if read.number is not None and read.place.topic in topics and read.reader in (group, "audit"):
                copies[read.place.broker, read.number].setdefault(read.place, read)
        for (_, number), places in copies.items():
            claims = {place: self._claims(group, place, number) for place in places}
            for came in range(1, 1 + max(read.reconsume_times for read in places.values())):
                born_of = [place for place, read in places.items() if read.reconsume_times == came - 1]
                born = [read for read in places.values() if read.reconsume_times == came]
                yield from self._born(group, number, born, [claims[place] for place in born_of])

    def _claims(self, group: str, place: Place, number: int) -> list[Claim]:
        """Return the claims that the group has, or may have, on a message at a position.

        Under ASYNC_FLUSH a change for the position's message before a power cut also hides the new message; and a check
        point lost by a power cut lets the position be popped once more, which no client may have seen.
        """
        all_popped = self._at[group, place]
        found = [claim for popped in all_popped if popped.number == number for claim in popped.claims]
        if found and not self._history.sync_flush:
            found += [one for popped in all_popped if popped.number != number for one in popped.claims[1:]]
            if not all(self._facts.safe(place.broker, popped.at_ms) for popped in all_popped):
                found.append(Claim(0, None, -inf))
        return found

    def _born(self, group: str, number: int, born: list[Read], parents: list[list[Claim]]) -> Iterator[str]:
        """Match each copy with a possible claim: one claim per copy, plus one for each end of a process."""
        used: dict[int, int] = defaultdict(int)
        claims = [claim for parent in parents for claim in parent]
        claims += [self._twin(born[0].place.broker, claim) for parent in parents for claim in parent[1:]]
        claims += [Claim(0, None, -inf) for parent in parents if not parent]  # popped, but the reply was lost
        claims.sort(key=lambda claim: claim.visible_ms)
        for copy in sorted(born, key=lambda read: (read.stored_ms, read.at_ms)):
            broker, early_ms = copy.place.broker, inf
            for claim in claims:
                if self._ended_in_time(broker, claim):
                    continue
                clock_ms = min(copy.stored_ms, self._facts.clock_max(broker, claim.asked_ms, copy.at_ms))
                early_ms = min(early_ms, claim.visible_ms - clock_ms)
                if clock_ms >= claim.visible_ms and used[id(claim)] <= self._ends(broker, claim, copy):
                    used[id(claim)] += 1
                    break
            else:
                if 0 < early_ms < inf:
                    yield f"{group} got {number} again at {copy.place}, {early_ms:.0f} ms before its time was up"
                else:
                    yield f"{group} got {number} again at {copy.place}, which it had acknowledged"

    def _twin(self, broker: str, claim: Claim) -> Claim:
        """Return the claim from the duplicated frame of this change request. No client has its handle."""
        until_ms = claim.asked_ms + LATE_MS
        return Claim(claim.asked_ms, None, claim.visible_ms - self._facts.set_back(broker, claim.asked_ms, until_ms))

    def _ended_in_time(self, broker: str, claim: Claim) -> bool:
        """Return whether the broker must have received an ack, or a change, before the message was due to return."""
        if claim.ended_ms is None or not self._facts.safe(broker, claim.ended_ms):
            return False
        return self._facts.clock_max(broker, claim.asked_ms, claim.ended_ms) < claim.visible_ms

    def _ends(self, broker: str, claim: Claim, copy: Read) -> int:
        """Return how many processes ended after the message was due: each may have written an unrecorded copy."""
        return sum(
            one.broker == broker
            and claim.asked_ms <= one.at_ms <= copy.at_ms
            and self._facts.clock_max(broker, claim.asked_ms, one.at_ms) >= claim.visible_ms
            for one in self._history.ends
        )

    # 14.

    def _closed_queues(self) -> Iterator[str]:
        """A queue popped in order is blocked while a message is out; one acknowledged in time does not return.

        The end of a process unblocks it, because the messages that are out are saved only at intervals.
        """
        queues: dict[tuple[str, _Queue], list[tuple[float, Popped]]] = defaultdict(list)
        for popped in self._history.popped:
            if popped.in_order:
                broker, from_ms = popped.place.broker, popped.claims[0].asked_ms
                # Clocks show whole ms, so a pop may seem to be older than its request.
                popped_ms = max(from_ms, popped.pop_ms - self._facts.skew(broker, from_ms))
                queues[popped.group, popped.place[:3]].append((popped_ms, popped))
        for (group, _), all_popped in queues.items():
            all_popped.sort(key=lambda entry: (entry[0], entry[1].at_ms))
            for place, (popped_ms, popped) in enumerate(all_popped):
                if self._facts.was_set(popped.place.broker, popped.claims[0].asked_ms, popped.at_ms):
                    continue  # the time of the pop is unknown
                for before_ms, before in all_popped[:place]:
                    if before_ms == popped_ms and before.at_ms == popped.at_ms:
                        continue  # of the same pop
                    if any(self._is_out(before, claim, popped_ms) for claim in before.claims):
                        yield f"{group} got {popped.number} at {popped.place} while {before.member} had {before.number}"
                    if before.place == popped.place and any(
                        self._stays_acked(before, claim, popped_ms) for claim in before.claims
                    ):
                        if self._is_behind_open(before, all_popped, popped_ms):
                            continue
                        yield f"{group} got {popped.number} again at {popped.place}, which it had acknowledged"

    def _is_out(self, popped: Popped, claim: Claim, at_ms: float) -> bool:
        """Return whether the message certainly belongs to a member then."""
        broker = popped.place.broker
        return (
            claim.at_ms is not None
            and claim.at_ms <= at_ms
            and self._holds(popped, claim)
            and (claim.given_up_ms is None or claim.given_up_ms >= at_ms + CLOCK_SLACK_MS)
            and self._facts.clock_max(broker, claim.asked_ms, at_ms) + CLOCK_SLACK_MS < claim.visible_ms
            and not self._facts.ended(broker, popped.claims[0].asked_ms, at_ms)
        )

    def _is_behind_open(self, popped: Popped, all_popped: list[tuple[float, Popped]], at_ms: float) -> bool:
        """Return whether a process ended while an earlier message of the pop had no ack: the group's offset is still
        there."""
        broker, asked_ms = popped.place.broker, popped.claims[0].asked_ms
        return self._facts.ended(broker, asked_ms, at_ms) > 0 and any(
            one.at_ms == popped.at_ms and one.place.offset < popped.place.offset and one.claims[-1].ended_ms is None
            for _, one in all_popped
        )

    def _holds(self, popped: Popped, claim: Claim) -> bool:
        """Return whether the changes that made a claim were in time: late ones are answered without effect."""
        before = popped.claims[: popped.claims.index(claim)]
        return all(self._ended_in_time(popped.place.broker, one) for one in before)

    def _stays_acked(self, popped: Popped, claim: Claim, at_ms: float) -> bool:
        """Return whether the broker had certainly accepted the ack before. One ended by a change is another case."""
        broker = popped.place.broker
        return (
            claim is popped.claims[-1]
            and self._holds(popped, claim)
            and claim.ended_ms is not None
            and claim.ended_ms < at_ms
            and self._ended_in_time(broker, claim)
            and not self._facts.ended(broker, popped.claims[0].asked_ms, claim.ended_ms)
        )
