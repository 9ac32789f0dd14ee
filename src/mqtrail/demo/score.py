"""Hold the verdicts against the truth: what each message was owed, what it was given, precision and recall per code.

The truth is what the application, its handlers and the injector noted (`truth.py`) and what the brokers hold at the
end; the rules that turn it into codes are those of docs/design/verdicts.md, written here a second time on purpose:
a scorer that called the judge would only agree with itself.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from .truth import HandlerResult, HandlingEnded, HandlingStarted, Note, SendOutcome, Sent


@dataclass(frozen=True, slots=True, kw_only=True)
class Thresholds:
    """From when on something is called slow, hung or late, in ms."""

    send_slow_ms: int
    consumed_slow_ms: int
    hung_ms: int
    late_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """What the brokers and the clients were measured to be at the time of judgement."""

    as_of_ms: int
    thresholds: Thresholds
    tags: Mapping[str, Mapping[str, frozenset[str]]]  # topic -> group -> the tags it takes, empty for all
    live_groups: frozenset[str]
    live_processes: frozenset[int]
    dead_letters: Mapping[str, frozenset[str]]  # group -> keys in its %DLQ%
    stored: frozenset[str]  # keys with a copy in their topic or still waiting for it
    visible_ms: Mapping[str, int]  # key -> when a delayed message reached its topic
    due_ms: Mapping[str, int] = field(default_factory=dict)  # key -> when its waiting copy was due, by the broker
    unscored: frozenset[str] = frozenset()  # keys whose knowledge the truth cannot tell (a client was killed)
    incomplete: frozenset[str] = frozenset()  # keys whose trace the injector took away
    unjudged_sends: frozenset[str] = frozenset()  # keys whose own send record the injector took away


@dataclass(slots=True)
class Codes:
    """The codes of one message, owed or given."""

    send: set[str] = field(default_factory=set)
    message: set[str] = field(default_factory=set)
    groups: dict[str, set[str]] = field(default_factory=dict)
    knowledge: set[str] = field(default_factory=set)

    def flat(self) -> set[tuple[str, str]]:
        """Return (code, where) pairs; where is the group's name or empty."""
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


def owed_codes(notes: Iterable[Note], scene: Scene) -> dict[str, Codes]:
    """Return the codes each message is owed, by key."""
    sends: dict[str, Sent] = {}
    by_number: dict[tuple[int, int], _Handling] = {}
    handlings: dict[tuple[str, str], list[_Handling]] = defaultdict(list)
    for note in notes:
        if not isinstance(note, Sent) and _known_at_ms(note, by_number) > scene.as_of_ms:
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
    owed: dict[str, Codes] = {}
    for key, sent in sends.items():
        codes = Codes(send=_send_codes(sent, scene), message=_message_codes(sent, scene))
        if key in scene.stored:
            for group, tags in scene.tags.get(sent.topic, {}).items():
                codes.groups[group] = _group_codes(sent, group, tags, handlings.get((key, group), []), scene)
        if key not in scene.unscored:
            incomplete = key in scene.incomplete or not sent.traced
            codes.knowledge = {"INCOMPLETE" if incomplete else "COMPLETE"}
        owed[key] = codes
    return owed


def _known_at_ms(note: Note, by_number: Mapping[tuple[int, int], _Handling]) -> float:
    """When a note was written."""
    if isinstance(note, HandlingEnded):
        handling = by_number.get((note.process, note.number))
        return 0 if handling is None else handling.started.at_ms + note.took_ms
    return note.at_ms


def _send_codes(sent: Sent, scene: Scene) -> set[str]:
    if not sent.traced or sent.key in scene.unjudged_sends:
        return set()  # no record of the send: none of its codes is owed
    codes = {
        SendOutcome.OK: {"SEND_OK"},
        SendOutcome.REFUSED: {"SEND_FAILED"},
        SendOutcome.UNCERTAIN: {"SEND_UNCERTAIN"},
        SendOutcome.ONEWAY: {"SEND_UNCERTAIN"},  # nobody acknowledged it, and it may have arrived
    }[sent.outcome].copy()
    if sent.outcome is SendOutcome.OK and sent.acknowledged_ms >= scene.thresholds.send_slow_ms:
        codes.add("SEND_SLOW")
    if sent.attempts > 1:
        codes.add("SEND_RETRIED")
    return codes


def _message_codes(sent: Sent, scene: Scene) -> set[str]:
    if not sent.due_ms or sent.key not in scene.stored:
        return set()
    visible_ms = scene.visible_ms.get(sent.key)
    due_ms = scene.due_ms.get(sent.key, sent.due_ms)
    if visible_ms is None:
        return {"SCHEDULED"} if due_ms > scene.as_of_ms else set()
    return {"DELIVERED_LATE"} if visible_ms - due_ms >= scene.thresholds.late_ms else set()


def _group_codes(sent: Sent, group: str, tags: frozenset[str], handlings: list[_Handling], scene: Scene) -> set[str]:
    if tags and sent.tag not in tags:
        return {"FILTERED"}
    if not handlings:
        return {"WAITING" if group in scene.live_groups else "NO_CONSUMER"}
    codes: set[str] = set()
    successes = [handling for handling in handlings if handling.succeeded]
    if any(not earlier.failed for earlier in handlings[:-1]):
        codes.add("DUPLICATE_DELIVERY")
    if len(successes) > 1:
        codes.add("DUPLICATE_PROCESSING")
    if successes:
        codes.add("CONSUMED")
        if any(_took_ms(handling) >= scene.thresholds.consumed_slow_ms for handling in successes):
            codes.add("CONSUMED_SLOW")
        if any(handling.failed for handling in handlings[: handlings.index(successes[0])]):
            codes.add("CONSUMED_AFTER_RETRY")
        return codes
    if sent.key in scene.dead_letters.get(group, frozenset()):
        return codes | {"DEAD_LETTERED"}
    last = handlings[-1]
    if last.failed:
        return codes | {"RETRYING"}
    if last.started.process not in scene.live_processes:
        return codes | {"WAITING" if group in scene.live_groups else "NO_CONSUMER"}
    hung = scene.as_of_ms - last.started.at_ms >= scene.thresholds.hung_ms
    return codes | {"HUNG" if hung else "IN_FLIGHT"}


def _took_ms(handling: _Handling) -> float:
    return handling.ended.took_ms if handling.ended is not None else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeScore:
    """How well one code was found."""

    code: str
    owed: int
    found: int  # owed and given
    wrong: int  # given, not owed
    missed: tuple[str, ...]  # some keys (and groups) where it was owed and not given
    spurious: tuple[str, ...]

    @property
    def precision(self) -> float | None:
        """Return found / given, None when it was never given."""
        given = self.found + self.wrong
        return self.found / given if given else None

    @property
    def recall(self) -> float | None:
        """Return found / owed, None when it was never owed."""
        return self.found / self.owed if self.owed else None


def score(owed: Mapping[str, Codes], given: Mapping[str, Codes], *, examples_max: int = 3) -> list[CodeScore]:
    """Compare message by message; one row a code that was owed or given, by name.

    A message whose knowledge is not scored has no owed knowledge code, and what it was given there is not counted.
    """
    owed_at: dict[str, set[tuple[str, str]]] = defaultdict(set)
    given_at: dict[str, set[tuple[str, str]]] = defaultdict(set)
    for key, codes in owed.items():
        for code, where in codes.flat():
            owed_at[code].add((key, where))
    for key, codes in given.items():
        known = codes if key not in owed or owed[key].knowledge else Codes(codes.send, codes.message, codes.groups)
        for code, where in known.flat():
            if code != "UNKNOWN":  # says nothing that could be wrong; what it should have said is missed
                given_at[code].add((key, where))
    rows = []
    for code in sorted(owed_at.keys() | given_at.keys()):
        missed, spurious = owed_at[code] - given_at[code], given_at[code] - owed_at[code]
        rows.append(
            CodeScore(
                code=code,
                owed=len(owed_at[code]),
                found=len(owed_at[code] & given_at[code]),
                wrong=len(spurious),
                missed=_examples(missed, examples_max),
                spurious=_examples(spurious, examples_max),
            )
        )
    return rows


def _examples(places: set[tuple[str, str]], count: int) -> tuple[str, ...]:
    return tuple(f"{key} ({where})" if where else key for key, where in sorted(places)[:count])
