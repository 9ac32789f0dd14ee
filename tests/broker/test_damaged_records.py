"""Records that are damaged while the broker runs: the other messages are delivered, and the damaged one is settled."""

from contextlib import suppress

import pytest

from mqtrail.broker import Lane
from mqtrail.wire import (
    PopResponseHeader,
    RecordError,
    RemotingCommand,
    RequestCode,
    ResponseCode,
    cut_records,
    encode_command,
)

from .helpers import NOW_MS, PEER, Bench
from .pop.helpers import INVISIBLE_MS, RETRY, SETTLED_MS, ack, ask_pop, bodies, pop, popped_of, send

MAGIC = 4  # offsets in a record
QUEUE_OFFSET = 20
BODY_SIZE = 84


@pytest.fixture
def bench() -> Bench:
    return Bench()


def damage(bench: Bench, queue_offset: int, at: int, *, queue_id: int = 0, is_checked: bool = False) -> None:
    """Change a byte of a message's record. is_checked: as of an old one, whose reader checks it."""
    log = bench.store._log
    record = bench.store.read("orders", queue_id, queue_offset, 1, 1).records[0]
    physical_offset = int.from_bytes(record[28:36], "big")
    log.put(physical_offset + at, bytes([record[at] ^ 0x55]))
    if is_checked:
        log.checked_from = log.end_offset


@pytest.mark.parametrize("at", [0, 3, MAGIC, QUEUE_OFFSET, QUEUE_OFFSET + 7, BODY_SIZE])
@pytest.mark.parametrize("bad", range(3))
def test_a_pop_gives_a_damaged_message_alone(bench: Bench, at: int, bad: int) -> None:
    """Its bytes have the offset that no other message has, so that a consumer can settle it."""
    send(bench, "m0", "m1", "m2", TAGS="a")
    damage(bench, bad, at)
    found: list[str] = []
    offsets: list[str] = []
    while (reply := ask_pop(bench, exp="a" if bad == 1 else "*")).code == ResponseCode.SUCCESS:
        header = PopResponseHeader.from_ext(reply.ext)
        places = str(header.msg_offset_info).rpartition(" ")[2]
        offsets += places.split(",")
        if places == str(bad):
            assert len(cut_records(reply.body)) == 1
        else:
            found += bodies(popped_of(reply))
    assert offsets == ["0", "1", "2"]
    assert found == [f"m{number}" for number in range(3) if number != bad]


def test_a_damaged_queue_does_not_stop_pops_of_others(bench: Bench) -> None:
    """The damage is reported once nothing else can be popped."""
    for queue_id in range(4):
        send(bench, f"m{queue_id}", queue_id=queue_id)
    damage(bench, 0, BODY_SIZE, queue_id=1, is_checked=True)
    assert sorted(bodies(pop(bench))) == ["m0", "m2", "m3"]
    reply = ask_pop(bench)
    assert reply.code == ResponseCode.SYSTEM_ERROR
    assert "found damage in the CommitLog at physical offset" in str(reply.remark)
    send(bench, "later", queue_id=3)
    assert bodies(pop(bench)) == ["later"]


def test_a_message_damaged_after_its_pop_does_not_stop_redelivery(bench: Bench) -> None:
    """Its copy is tried again later; those of the same and of later pops come back in time."""
    send(bench, "m0", "m1")
    assert len(pop(bench)) == 2
    send(bench, "m2")
    (third,) = pop(bench)
    damage(bench, 0, BODY_SIZE)
    with pytest.raises(RecordError):  # the node logs it
        bench.advance(INVISIBLE_MS + SETTLED_MS)
    with suppress(RecordError):
        bench.advance(INVISIBLE_MS + SETTLED_MS)
    again = [one.body.decode() for one in bench.messages(RETRY)]
    assert sorted(again) == ["m1", "m2"]
    assert ack(bench, third).code in (ResponseCode.SUCCESS, ResponseCode.NO_MESSAGE)


@pytest.mark.parametrize("is_checked", [False, True])
def test_a_group_starts_on_a_queue_whose_first_message_is_damaged(bench: Bench, is_checked: bool) -> None:
    """The age of the queue comes from the next message."""
    send(bench, "m0", "m1")
    damage(bench, 0, BODY_SIZE, is_checked=is_checked)
    ext = {"consumerGroup": "g", "topic": "orders", "queueId": "0"}
    reply = bench.ask(RequestCode.QUERY_CONSUMER_OFFSET, ext)
    assert (reply.code, reply.ext["offset"]) == (ResponseCode.SUCCESS, "0")


def test_the_lane_answers_a_pull_of_damage_and_the_sends_beside_it(bench: Bench) -> None:
    """The connection goes on: each request of the piece has its answer."""
    send(bench, "m0", "m1")
    bench.heartbeat(topics={"orders": "*"})
    damage(bench, 0, BODY_SIZE, is_checked=True)
    pull = RemotingCommand(RequestCode.PULL_MESSAGE, bench.pull_ext(), b"", opaque=7)
    good = RemotingCommand(RequestCode.PULL_MESSAGE, bench.pull_ext(queue_offset=1), b"", opaque=8)
    piece = encode_command(good) + encode_command(pull) + encode_command(good)
    served = Lane(bench.broker).process(PEER, piece, 0, len(piece), NOW_MS)
    assert served.position == len(piece)
    refused = {send.command.opaque: send.command for send in served.sends}
    assert refused[7].code == ResponseCode.SYSTEM_ERROR
    assert "found damage" in str(refused[7].remark)
    assert served.replies.count(b"m1") + sum(send.command.body.count(b"m1") for send in served.sends) == 2
