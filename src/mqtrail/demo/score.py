"""Compares the verdicts with the truth: expected and reported codes of each message, precision and recall per code.

The truth consists of the notes of the application, its handlers and the injector (`truth.py`), and of the brokers'
content at the end. The rules from the truth to codes are those of docs/design/verdicts.md. They are implemented here a
second time on purpose: a scorer that used `trail` would always agree with it.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from .truth import HandlerResult, HandlingEnded, HandlingStarted, Note, SeenOutcome, Sent


@dataclass(frozen=True, slots=True, kw_only=True)
class Thresholds:
    """Limits above which a message counts as slow, hung or late, in ms."""

    send_slow_ms: int
    consumed_slow_ms: int
    hung_ms: int
    late_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterFacts:
    """The measured state of brokers and clients at the time of judgement."""

    as_of_ms: int
    thresholds: Thresholds
    tags: Mapping[str, Mapping[str, frozenset[str]]]  # topic -> group -> the tags it takes, empty for all
    live_groups: frozenset[str]
    live_processes: frozenset[int]
    dead_letters: Mapping[str, frozenset[str]]  # group -> keys in its %DLQ%
    stored: frozenset[str]  # keys with a copy in their topic or in the schedule topic
    visible_ms: Mapping[str, int]  # key -> when a delayed message reached its topic
    due_ms: Mapping[str, int] = field(default_factory=dict)  # key -> when its scheduled copy was due, by the broker
    send_counts: Mapping[str, int] = field(default_factory=dict)  # key -> how often it was stored, if more than once
    unscored: frozenset[str] = (
        frozenset()
    )  # keys whose knowledge code is unpredictable (a client or a broker was killed)
    incomplete: frozenset[str] = frozenset()  # keys whose trace the injector dropped
    unjudged_sends: frozenset[str] = frozenset()  # keys whose send record the injector dropped


@dataclass(slots=True)
class Codes:
    """The codes of one message, expected or reported."""

    send: set[str] = field(default_factory=set)
    message: set[str] = field(default_factory=set)
    groups: dict[str, set[str]] = field(default_factory=dict)
    knowledge: set[str] = field(default_factory=set)

    def flat(self) -> set[tuple[str, str]]:
        """Return (code, group) pairs; group is '' for codes of the message."""
        pairs = {(code, "") for code in self.send | self.message | self.knowledge}
        return pairs | {(code, group) for group, codes in self.groups.items() for code in codes}


@dataclass(slots=True)
class _Handling:
    started: HandlingStarted
    ended: HandlingEnded | None = None

    @property
    def succeeded(self) -> bool:
        return self.ended is not None and self.ended.result is HandlerResult.SUCCESS

    @property
    def failed(self) -> bool:
        return self.ended is not None and not self.succeeded


def expected_codes(notes: Iterable[Note], facts: ClusterFacts) -> dict[str, Codes]:
    """Return key -> codes that the verdicts should have."""
    sends: dict[str, Sent] = {}
    by_number: dict[tuple[int, int], _Handling] = {}
    handlings: dict[tuple[str, str], list[_Handling]] = defaultdict(list)
    for note in notes:
        if not isinstance(note, Sent) and _known_at_ms(note, by_number) > facts.as_of_ms:
            continue  # it happened after the judgement
        match note:
            case Sent():
                sends[note.key] = note
            case HandlingStarted():
                handling = _Handling(note)
                by_number[note.process, note.number] = handling
                handlings[note.key, note.group].append(handling)
            case HandlingEnded():
                if (note.process, note.number) in by_number:
                    by_number[note.process, note.number].ended = note
    for several in handlings.values():
        several.sort(key=lambda handling: handling.started.at_ms)
    expected: dict[str, Codes] = {}
    for key, sent in sends.items():
        codes = Codes(send=_send_codes(sent, facts), message=_message_codes(sent, facts))
        if key in facts.stored:
            for group, tags in facts.tags.get(sent.topic, {}).items():
                codes.groups[group] = _group_codes(sent, group, tags, handlings.get((key, group), []), facts)
        if key not in facts.unscored:
            incomplete = key in facts.incomplete or not sent.traced
            codes.knowledge = {"INCOMPLETE" if incomplete else "COMPLETE"}
        expected[key] = codes
    return expected


def _known_at_ms(note: Note, by_number: Mapping[tuple[int, int], _Handling]) -> float:
    """Return when a note was written."""
    if isinstance(note, HandlingEnded):
        handling = by_number.get((note.process, note.number))
        return 0 if handling is None else handling.started.at_ms + note.took_ms
    return note.at_ms


def _send_codes(sent: Sent, facts: ClusterFacts) -> set[str]:
    if not sent.traced or sent.key in facts.unjudged_sends:
        return set()  # without a record of the send, no code of it is expected
    codes = {
        SeenOutcome.OK: {"SEND_OK"},
        SeenOutcome.REFUSED: {"SEND_FAILED"},
        SeenOutcome.UNCERTAIN: {"SEND_UNCERTAIN"},
        SeenOutcome.ONEWAY: {"SEND_UNCERTAIN"},  # not acknowledged, and it may have arrived
    }[sent.outcome].copy()
    if sent.outcome is SeenOutcome.OK and sent.acknowledged_ms >= facts.thresholds.send_slow_ms:
        codes.add("SEND_SLOW")
    if sent.attempts > 1:
        codes.add("SEND_RETRIED")
    return codes


def _message_codes(sent: Sent, facts: ClusterFacts) -> set[str]:
    codes = {"DUPLICATE_SEND"} if sent.key in facts.send_counts else set()
    return codes | _delay_codes(sent, facts)


def _delay_codes(sent: Sent, facts: ClusterFacts) -> set[str]:
    if not sent.due_ms or sent.key not in facts.stored:
        return set()
    visible_ms = facts.visible_ms.get(sent.key)
    due_ms = facts.due_ms.get(sent.key, sent.due_ms)
    if visible_ms is None:
        return {"SCHEDULED"} if due_ms > facts.as_of_ms else set()
    return {"DELIVERED_LATE"} if visible_ms - due_ms >= facts.thresholds.late_ms else set()


def _group_codes(
    sent: Sent, group: str, tags: frozenset[str], handlings: list[_Handling], facts: ClusterFacts
) -> set[str]:
    if tags and sent.tag not in tags:
        return {"FILTERED"}
    if not handlings:
        return {"WAITING" if group in facts.live_groups else "NO_CONSUMER"}
    codes: set[str] = set()
    successes = [handling for handling in handlings if handling.succeeded]
    by_retry = Counter(handling.started.retry for handling in handlings)
    if max(by_retry.values()) > facts.send_counts.get(sent.key, 1):
        codes.add("DUPLICATE_DELIVERY")  # a failed attempt asks for a delivery with the next number
    if len(successes) > 1:
        codes.add("DUPLICATE_PROCESSING")
    if successes:
        codes.add("CONSUMED")
        if any(_took_ms(handling) >= facts.thresholds.consumed_slow_ms for handling in successes):
            codes.add("CONSUMED_SLOW")
        if any(handling.failed for handling in handlings[: handlings.index(successes[0])]):
            codes.add("CONSUMED_AFTER_RETRY")
        return codes
    if sent.key in facts.dead_letters.get(group, frozenset()):
        return codes | {"DEAD_LETTERED"}
    last = handlings[-1]
    if last.failed:
        return codes | {"RETRYING"}
    if last.started.process not in facts.live_processes:
        return codes | {"WAITING" if group in facts.live_groups else "NO_CONSUMER"}
    hung = facts.as_of_ms - last.started.at_ms >= facts.thresholds.hung_ms
    return codes | {"HUNG" if hung else "IN_FLIGHT"}


def _took_ms(handling: _Handling) -> float:
    return handling.ended.took_ms if handling.ended is not None else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeScore:
    """Precision and recall of one code."""

    code: str
    expected: int
    found: int  # expected and reported
    wrong: int  # reported, not expected
    missed: tuple[str, ...]  # examples of keys (and groups) where it was expected and not reported
    spurious: tuple[str, ...]

    @property
    def precision(self) -> float | None:
        """Return found / reported, None if it was never reported."""
        reported = self.found + self.wrong
        return self.found / reported if reported else None

    @property
    def recall(self) -> float | None:
        """Return found / expected, None if it was never expected."""
        return self.found / self.expected if self.expected else None


def score(expected: Mapping[str, Codes], reported: Mapping[str, Codes], *, examples_max: int = 3) -> list[CodeScore]:
    """Compare message by message. Return one row per code that was expected or reported, sorted by name.

    A message whose knowledge is not scored has no expected knowledge code; a reported one is not counted.
    """
    expected_at: dict[str, set[tuple[str, str]]] = defaultdict(set)
    reported_at: dict[str, set[tuple[str, str]]] = defaultdict(set)
    for key, codes in expected.items():
        for code, where in codes.flat():
            expected_at[code].add((key, where))
    for key, codes in reported.items():
        known = (
            codes if key not in expected or expected[key].knowledge else Codes(codes.send, codes.message, codes.groups)
        )
        for code, where in known.flat():
            if code != "UNKNOWN":  # UNKNOWN cannot be wrong; the expected code counts as missed
                reported_at[code].add((key, where))
    rows = []
    for code in sorted(expected_at.keys() | reported_at.keys()):
        missed, spurious = expected_at[code] - reported_at[code], reported_at[code] - expected_at[code]
        rows.append(
            CodeScore(
                code=code,
                expected=len(expected_at[code]),
                found=len(expected_at[code] & reported_at[code]),
                wrong=len(spurious),
                missed=_examples(missed, examples_max),
                spurious=_examples(spurious, examples_max),
            )
        )
    return rows


def _examples(places: set[tuple[str, str]], count: int) -> tuple[str, ...]:
    return tuple(f"{key} ({where})" if where else key for key, where in sorted(places)[:count])
