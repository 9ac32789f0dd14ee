"""Transactions through the fast lane against `Broker.handle`: stored records, tables, replies and checks are equal."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqtrail.broker.lane import half_messages
from mqtrail.store import StoreFull
from mqtrail.wire import (
    HALF_TOPIC,
    OP_HALF_TOPIC,
    EndTransactionHeader,
    Frame,
    Host,
    Peer,
    PeerId,
    RemotingCommand,
    RequestCode,
    SendMessageHeader,
    SerializeType,
    cut_frame,
    decode_command,
    encode_command,
    encode_frame,
    parse_offset_msg_id,
)

from ..helpers import OTHER, PEER, Bench
from .test_lane import FRAMES, Twins

COMMIT, ROLLBACK, PREPARED = 8, 12, 4
PEER_V6 = Peer(PeerId(3), Host("2001:db8::1", 40003))
TEXTS = (
    "TRAN_MSG\x01true\x02UNIQ_KEY\x01{id}\x02WAIT\x01true\x02PGROUP\x01pg\x02TAGS\x01TagA\x02",  # Java's
    "KEYS\x01k1 k2\x02TRAN_MSG\x01true\x02UNIQ_KEY\x01{id}\x02WAIT\x01false\x02PGROUP\x01pg",
    "TRAN_MSG\x01true\x02UNIQ_KEY\x01{id}\x02PGROUP\x01other\x02",
)
ODD_TEXTS = (
    "TRAN_MSG\x01true\x02UNIQ_KEY\x01{id}\x02",  # no group
    "TRAN_MSG\x01false\x02UNIQ_KEY\x01{id}\x02PGROUP\x01pg\x02",
    "TRAN_MSG\x01true\x02UNIQ_KEY\x01{id}\x02PGROUP\x01pg\x02PGROUP\x01other\x02",
    "TRAN_MSG\x01true\x02UNIQ_KEY\x01{id}\x02PGROUP\x01pg\x02REAL_TOPIC\x01mine\x02",
    "TRAN_MSG\x01true\x02UNIQ_KEY\x01{id}\x02PGROUP\x01pg\x02__transactionId__\x01mine\x02",
    "TRAN_MSG\x01true\x02UNIQ_KEY\x01{id}\x02PGROUP\x01pg\x02CHECK_IMMUNITY_TIME_IN_SECONDS\x015\x02",
    "TRAN_MSG\x01true\x02UNIQ_KEY\x01{id}\x02PGROUP\x01pg\x02DELAY\x013\x02",
    "TRAN_MSG\x01true\x02UNIQ_KEY\x01{id}\x02PGROUP\x01pg\x02empty\x01\x02",
    "TRAN_MSG\x01true\x02UNIQ_KEY\x01{id}\x02PGROUP\x01pg\x02\x02no separator\x02",
    "TRAN_MSG\x01true\x02PGROUP\x01pg\x02",
    "UNIQ_KEY\x01{id}\x02WAIT\x01true\x02",
)


def half(
    number: int,
    text: str = TEXTS[0],
    *,
    binary: bool = True,
    topic: str = "orders",
    flag: int = PREPARED,
    **fields: Any,
) -> bytes:
    """Return a half message as clients send it."""
    header = SendMessageHeader(
        "pg",
        topic,
        queue_id=number % 4,
        sys_flag=flag,
        born_timestamp=1_700_000_000_000 + number // 3,
        properties=text.replace("{id}", f"7F0000014A3218B4AAC22F1C{number:08X}"),
    )
    command = RemotingCommand(
        RequestCode.SEND_MESSAGE_V2, header.to_ext_v2(), b"half %d" % number, opaque=number, **fields
    )
    command.serialize = SerializeType.ROCKETMQ if binary else SerializeType.JSON
    return encode_command(command)


def end(place: tuple[int, int], outcome: int = COMMIT, *, binary: bool = True, flag: int = 2, **ext: str) -> bytes:
    """Return the end of the half message at (physical offset, queue offset), as Java's client of 5.x sends it."""
    header = EndTransactionHeader("pg", place[1], place[0], outcome, "ID", False, "ID", "orders", "broker-a")
    command = RemotingCommand(RequestCode.END_TRANSACTION, header.to_ext() | ext, opaque=7, flag=flag)
    command.serialize = SerializeType.ROCKETMQ if binary else SerializeType.JSON
    return encode_command(command)


class Pairs(Twins):
    """Twins with transactions, whose shell moves its timer only on demand."""

    def __init__(self, **config: Any) -> None:
        super().__init__(**config)
        self._timer_ms = self.fast.broker.next_tick_ms()

    def _feed_fast(self, piece: bytes, peer: Peer) -> None:
        handled = self.handled
        super()._feed_fast(piece, peer)
        due_ms = self.fast.broker.next_tick_ms()
        assert self.handled > handled or due_ms >= self._timer_ms, "the timer was not checked"
        self._timer_ms = due_ms

    def places(self) -> list[tuple[int, int]]:
        """Return the positions of half messages as in replies and checks: (physical offset, queue offset)."""
        found = []
        for _, frame, _ in self.written[1]:
            command = decode_command(cut_frame(frame, 0, len(frame)))
            if command.code == RequestCode.CHECK_TRANSACTION_STATE:
                found.append((int(command.ext["commitLogOffset"]), int(command.ext["tranStateTableOffset"])))
            elif "queueOffset" in command.ext:
                found.append((parse_offset_msg_id(command.ext["msgId"])[1], int(command.ext["queueOffset"])))
        return found

    def advance(self, ms: int) -> None:
        for bench, written in zip((self.fast, self.general), self.written, strict=True):
            sends = bench.advance(ms)
            written += [(send.peer, encode_command(send.command), send.after_offset) for send in sends]
        self._timer_ms = self.fast.broker.next_tick_ms()

    def check(self) -> None:
        super().check()
        assert noted(self.fast) == noted(self.general)


def noted(bench: Bench) -> tuple[Any, ...]:
    """Return the transaction tables of a broker."""
    of = bench.broker.transactions
    latencies_s = {topic: list(found.buckets()) for topic, found in of.counts.latencies_s.items()}
    counts = of.counts.commits, of.counts.rollbacks, latencies_s
    return of._ends, of._ends_count, of._ends_size, of._ends_due_ms, of._ended._ended, of._ended._copies, counts


HALVES = st.builds(
    half,
    st.integers(0, 50),
    st.sampled_from((*TEXTS, *TEXTS, *ODD_TEXTS)),
    binary=st.booleans(),
    topic=st.sampled_from(["orders", "orders", "multi", "fresh", "%RETRY%g"]),
    flag=st.sampled_from([PREPARED, PREPARED, PREPARED, 0, 8, 5]),
)
OUTCOME = st.sampled_from([COMMIT, COMMIT, COMMIT, ROLLBACK, 0, 3])
EXT: st.SearchStrategy[dict[str, str]] = st.one_of(
    st.just({}),
    st.just({}),
    st.sampled_from(
        [
            {"producerGroup": "other"},
            {"tranStateTableOffset": "1"},
            {"tranStateTableOffset": "x"},
            {"commitLogOffset": "+1"},
            {"commitLogOffset": "99999999999999999999"},
            {"fromTransactionCheck": "true"},
            {"fromTransactionCheck": "yes"},
            {"msgId": "é"},
            {"topic": "elsewhere"},
            {"more": "x"},
        ]
    ),
)
STEP = st.one_of(
    st.tuples(st.just("half"), st.lists(HALVES, min_size=1, max_size=4), st.sampled_from([PEER, OTHER, PEER_V6])),
    st.tuples(
        st.just("end"),
        st.lists(
            st.tuples(st.integers(0, 9), OUTCOME, st.booleans(), st.sampled_from([2, 2, 2, 0, 1]), EXT),
            min_size=1,
            max_size=5,
        ),
        st.sampled_from([PEER, OTHER]),
    ),
    st.tuples(st.just("advance"), st.sampled_from([1, 3_000, 40_000]), st.just(PEER)),
)


@given(st.lists(STEP, min_size=2, max_size=8), st.booleans())
def test_any_transactions_are_served_alike(steps: list[tuple[str, Any, Peer]], traced: bool) -> None:
    """Valid and invalid half messages and ends of both headers, with time between them, give one log, one state and
    equal replies."""
    twins = Pairs(broker_trace=traced, transaction_op_size_max=20)
    for kind, what, peer in steps:
        match kind:
            case "half":
                twins.feed(b"".join(what), peer)
            case "end":
                places = twins.places() or [(0, 0)]
                twins.feed(
                    b"".join(
                        end(places[at % len(places)], outcome, binary=binary, flag=flag, **ext)
                        for at, outcome, binary, flag, ext in what
                    ),
                    peer,
                )
            case "advance":
                twins.advance(what)
        twins.check()
    twins.advance(40_000)
    twins.check()


@pytest.mark.parametrize("binary", [False, True])
@pytest.mark.parametrize("outcome", [COMMIT, ROLLBACK])
def test_transactions_take_the_lane(binary: bool, outcome: int) -> None:
    """`handle` gets neither half messages nor their ends; the timer is checked at the first of each."""
    twins = Pairs()
    called: list[int] = []
    twins.lane._handle = lambda peer, command, now_ms: called.append(command.code) or []
    for number in range(5):
        twins.feed(half(number, binary=binary))
    assert twins.handled == 1
    for place in twins.places():
        twins.feed(end(place, outcome, binary=binary))
    assert called == []
    assert twins.handled == 2
    twins.check()
    twins.advance(10_000)
    twins.check()
    assert [message.body for message in twins.fast.messages(OP_HALF_TOPIC)] == [b"0,1,2,3,4,"]
    committed = [message for queue_id in range(4) for message in twins.fast.messages("orders", queue_id)]
    assert len(committed) == (5 if outcome == COMMIT else 0)


def test_recorded_transactions_take_the_lane() -> None:
    """The lane serves half messages and ends recorded from Apache's clients of both releases, in both headers."""
    twins = Pairs()
    called: list[RemotingCommand] = []
    twins.lane._handle = lambda peer, command, now_ms: called.append(command) or []
    kinds = set()
    for row in map(json.loads, FRAMES.read_text().splitlines()):
        binary = row["serialize"] != "JSON"
        if row["direction"] != "client>broker" or row["code"] not in (37, 310):
            continue
        header = bytes.fromhex(row["header_hex"]) if binary else row["header"].encode()
        if row["code"] == 310 and b"TRAN_MSG" in header:
            twins.feed(encode_frame(Frame(int(binary), header, bytes.fromhex(row["body_hex"]))))
        elif row["code"] == 37:
            recorded = decode_command(Frame(int(binary), header, b""))
            twins.feed(half(0, TEXTS[0].replace("\x01pg\x02", f"\x01{recorded.ext['producerGroup']}\x02")))
            physical_offset, queue_offset = twins.places()[-1]
            recorded.ext |= {"commitLogOffset": str(physical_offset), "tranStateTableOffset": str(queue_offset)}
            twins.feed(encode_command(recorded))
        else:
            continue
        kinds.add((row["release"], row["code"], binary))
    assert called == []
    assert {(release, 37, binary) for release in ("4.9.7", "5.3.3") for binary in (False, True)} <= kinds
    assert ("5.3.3", 310, False) in kinds
    twins.check()


def test_a_piece_of_commits_is_one_append(monkeypatch: pytest.MonkeyPatch) -> None:
    """The half messages and commits of one socket read are appended at once."""
    twins = Pairs()
    twins.feed(b"".join(half(number) for number in range(3)))
    piece = b"".join(map(end, twins.places())) + half(3)
    counts = []
    append = twins.fast.store.append

    def counted(records: Any, now_ms: int) -> Any:
        counts.append(len(records))
        return append(records, now_ms)

    monkeypatch.setattr(twins.fast.store, "append", counted)
    twins.feed(piece)
    assert counts == [4]
    twins.check()


def test_a_second_end_of_a_piece_does_nothing() -> None:
    """The lane applies the first end; the second takes the general path and finds the transaction ended."""
    twins = Pairs()
    twins.feed(half(0))
    (place,) = twins.places()
    twins.feed(end(place) + end(place, ROLLBACK) + end(place, flag=0))
    twins.check()
    assert len(twins.fast.messages("orders")) == 1


def test_a_refused_append_leaves_halves_open(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commits that the store refuses do not end a transaction: they can be repeated on the general path."""
    twins = Pairs()
    twins.feed(half(0) + half(1))
    places = twins.places()

    def full(*_: object) -> None:
        raise StoreFull("full")

    with monkeypatch.context() as patch:
        for bench in (twins.fast, twins.general):
            patch.setattr(bench.store, "append", full)
        twins.feed(b"".join(map(end, places)))
    twins.check()
    twins.feed(b"".join(map(end, places)))
    twins.check()
    assert len(twins.fast.messages("orders", 0)) == len(twins.fast.messages("orders", 1)) == 1


def test_what_was_forgotten_is_read_from_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cached half messages are bounded in number and bytes; a change of the topic drops them without visible effect."""
    monkeypatch.setattr(half_messages, "HALF_MESSAGES_MAX", 3)
    twins = Pairs()
    twins.feed(b"".join(half(number) for number in range(8)))
    assert len(twins.lane._half_messages._kept) == 2
    twins.feed(b"".join(map(end, twins.places())))
    twins.check()
    assert twins.lane._half_messages._kept == {}
    assert twins.lane._half_messages._size == 0
    monkeypatch.setattr(half_messages, "HALF_MESSAGES_SIZE_MAX", 1_000)
    twins.feed(b"".join(half(number) for number in range(8)))
    assert 0 < twins.lane._half_messages._size <= 1_000
    monkeypatch.setattr(half_messages, "HALF_SIZE_MAX", 10)
    twins.lane._half_messages.clear()
    twins.feed(half(9))
    assert twins.lane._half_messages._kept == {}
    twins.check()


def test_half_messages_are_refused_while_the_setting_says_so() -> None:
    """rejectTransactionMessage, changed while the broker runs, applies to later requests of the same piece."""
    twins = Pairs()
    twins.feed(half(0))
    change = RemotingCommand(RequestCode.UPDATE_BROKER_CONFIG, {}, b"rejectTransactionMessage=true")
    twins.feed(encode_command(change) + half(1))
    twins.feed(half(2))
    twins.check()
    assert len(twins.fast.messages(HALF_TOPIC)) == 1


def test_sync_flush_holds_the_answer_of_a_half_message() -> None:
    """The reply to a half message waits for its record; a piece with only commits has no reply to wait."""
    twins = Pairs(sync_flush=True)
    twins.feed(half(0))
    assert {after for _, _, after in twins.written[0]} == {twins.fast.store.end_offset}
    (place,) = twins.places()
    served = twins.lane.process(PEER, end(place), 0, len(end(place)), twins.fast.now_ms)
    assert (served.replies, served.after_offset, served.sends, served.stored) == (b"", 0, [], True)


@pytest.mark.parametrize("outcome", [COMMIT, ROLLBACK])
def test_a_commit_wakes_held_pulls(outcome: int) -> None:
    """A consumer that waits on the real queue gets the message when it is committed, not before."""
    twins = Pairs()
    held = RemotingCommand(11, twins.fast.pull_ext("orders", 0, hold_ms=15_000, tags="TagA"), opaque=77)
    twins.feed(encode_command(held), OTHER)
    twins.feed(half(0))
    assert not [peer for peer, _, _ in twins.written[0] if peer == OTHER.id]
    twins.feed(end(twins.places()[0], outcome))
    twins.check()
    assert len([peer for peer, _, _ in twins.written[0] if peer == OTHER.id]) == (outcome == COMMIT)
