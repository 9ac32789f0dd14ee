"""Pull replies of faulty or lying brokers: no reader skips unseen messages, or decodes far more than it requested."""

from collections.abc import Iterator
from dataclasses import replace

import pytest
from structlog.testing import capture_logs

from mqtrail.client import Admin, Consumer, LitePullConsumer, QueueReader, ReaderConfig, ReadFailed
from mqtrail.client.consumer import PullResult, PullStatus, read_pull_reply
from mqtrail.client.consumer.pull import OVERTAKE_MAX
from mqtrail.client.core.reply_records import EXTRA_RECORDS_MAX
from mqtrail.client.pop.calls import read_pop_reply
from mqtrail.net import ServerConnection
from mqtrail.wire import HeaderError, MessageQueue, RemotingCommand, RequestCode, ResponseCode
from tests.waiting import until

from ...loops import run
from ..fake_cluster import FakeBroker, fake_cluster
from ..pop.test_pop import record
from .test_consumer import QUICK, committed, consume, put
from .test_lite_pull import LITE

QUEUE = MessageQueue("orders", "broker-a", 0)
FAR = 1_000_000
CODES = {
    PullStatus.FOUND: ResponseCode.SUCCESS,
    PullStatus.NO_NEW_MESSAGE: ResponseCode.PULL_NOT_FOUND,
    PullStatus.NO_MATCHED_MESSAGE: ResponseCode.PULL_RETRY_IMMEDIATELY,
    PullStatus.OFFSET_MOVED: ResponseCode.PULL_OFFSET_MOVED,
}


def reply(status: PullStatus, next_offset: int, end: int, offsets: Iterator[int] | range = range(0)) -> RemotingCommand:
    ext = {
        "suggestWhichBrokerId": "0",
        "nextBeginOffset": str(next_offset),
        "minOffset": "0",
        "maxOffset": str(end),
    }
    body = b"".join(record("orders", 0, offset) for offset in offsets)
    return RemotingCommand(CODES[status], ext, body)


def offsets_of(result: PullResult, asked: int) -> list[int]:
    return [message.queue_offset for message in result.open(QUEUE, asked)]


@pytest.mark.parametrize(
    ("status", "asked", "next_offset", "end"),
    [
        (PullStatus.NO_MATCHED_MESSAGE, 10, 90, 100),  # the filter left nothing of 80 messages
        (PullStatus.NO_MATCHED_MESSAGE, 120, 120, 100),  # a slave that lags behind its master
        (PullStatus.NO_NEW_MESSAGE, 100, 100, 100),
        (PullStatus.OFFSET_MOVED, 120, 100, 100),
        (PullStatus.OFFSET_MOVED, 0, 40, 100),  # retention removed what is below
        (PullStatus.OFFSET_MOVED, 60, 3, 100),  # a reset of the group's offset by the broker
    ],
)
def test_what_brokers_legitimately_answer_is_followed(
    status: PullStatus, asked: int, next_offset: int, end: int
) -> None:
    """Each of these replies moves a reader of Apache's brokers."""
    assert read_pull_reply(reply(status, next_offset, end), QUEUE, asked, 32).next_offset == next_offset


def test_records_appended_since_the_end_was_read_are_taken() -> None:
    """The end in the reply is older than its records; with a filter, records beyond the certain range are pulled
    again."""
    with capture_logs() as logs:
        result = read_pull_reply(reply(PullStatus.FOUND, 103, 100, range(98, 103)), QUEUE, 98, 32)
        assert (result.next_offset, offsets_of(result, 98)) == (103, [98, 99, 100, 101, 102])
        result = read_pull_reply(reply(PullStatus.FOUND, 110, 100, iter((99, 105))), QUEUE, 98, 32)
        assert (result.next_offset, offsets_of(result, 98)) == (100, [99])
    assert not logs


def test_no_reply_moves_beyond_the_queues_end() -> None:
    """If the reply has records before the end, they are read and an error is logged; otherwise the reply is refused."""
    with capture_logs() as logs:
        result = read_pull_reply(reply(PullStatus.FOUND, FAR, 12, range(10, 12)), QUEUE, 10, 32)
        assert (result.next_offset, offsets_of(result, 10)) == (12, [10, 11])
        assert read_pull_reply(reply(PullStatus.NO_MATCHED_MESSAGE, FAR, 12), QUEUE, 10, 32).next_offset == 12
    assert [log["event"] for log in logs] == ["client.pull_past_the_end"] * 2
    for status, asked in [(PullStatus.OFFSET_MOVED, 10), (PullStatus.NO_NEW_MESSAGE, 12)]:
        with pytest.raises(HeaderError, match="nextBeginOffset 1000000"):
            read_pull_reply(reply(status, FAR, 12), QUEUE, asked, 32)
    with pytest.raises(HeaderError):
        read_pull_reply(reply(PullStatus.OFFSET_MOVED, -5, 12), QUEUE, 10, 32)
    assert FAR > 100 + OVERTAKE_MAX


@pytest.mark.parametrize("status", [PullStatus.NO_NEW_MESSAGE, PullStatus.NO_MATCHED_MESSAGE, PullStatus.FOUND])
def test_no_reply_moves_back(status: PullStatus) -> None:
    """Only OFFSET_MOVED may move back: otherwise a lite pull consumer would get the same messages for ever."""
    assert read_pull_reply(reply(status, 3, 100), QUEUE, 10, 32).next_offset == 10


def test_records_with_an_offset_below_the_requested_one_are_delivered() -> None:
    """No CRC covers a record's head: a flipped bit in the offset must not drop the message as an old one."""
    result = read_pull_reply(reply(PullStatus.FOUND, 13, 100, iter((10, 3, 12))), QUEUE, 10, 32)
    assert offsets_of(result, 10) == [10, 11, 12]


def test_far_more_records_than_requested_are_not_decoded() -> None:
    """Of 16 MiB of the smallest records few are decoded, and the next pull continues after them."""
    body = record("orders", 0, 0)
    count = (16 << 20) // len(body)
    command = reply(PullStatus.FOUND, count, count)
    command.body = b"".join(record("orders", 0, offset) for offset in range(200)) + body * (count - 200)
    with capture_logs() as logs:
        result = read_pull_reply(command, QUEUE, 0, 32)
    assert (len(result.records), result.next_offset) == (32 + EXTRA_RECORDS_MAX,) * 2
    assert [log["event"] for log in logs] == ["client.reply_oversized"]
    ext = {"popTime": "1", "invisibleTime": "60000", "reviveQid": "3", "restNum": "0"}
    ext |= {"startOffsetInfo": "0 0 0", "msgOffsetInfo": "0 0 " + ",".join(map(str, range(200)))}
    popped = read_pop_reply(RemotingCommand(0, ext, command.body), QUEUE, 32)
    assert len(popped.messages) == 32 + EXTRA_RECORDS_MAX


def lie(broker: FakeBroker, only_after: int = 0) -> None:
    """Answer pulls with the records and a next offset far beyond them."""
    plain = broker.pull

    def pull(connection: ServerConnection, command: RemotingCommand) -> RemotingCommand | None:
        found = plain(connection, command)
        if found is not None and int(command.ext["queueOffset"]) >= only_after:
            found.ext["nextBeginOffset"] = str(FAR)
        return found

    vars(broker)["pull"] = pull


async def test_consumers_lose_nothing_to_a_broker_that_lies() -> None:
    """Messages stored after the false reply are consumed, and the committed offset never passes the queue's end."""
    async with fake_cluster({"orders": 1}) as cluster:
        (broker,) = cluster.brokers
        put(broker, "orders", b"1", b"2")
        lie(broker)
        async with Consumer("CG", cluster.namesrv, {"orders": "*"}, config=QUICK) as consumer:
            assert await consume(consumer, 2) == [b"1", b"2"]
            put(broker, "orders", b"3")
            assert await consume(consumer, 1) == [b"3"]
            await until(lambda: committed(cluster) == {("broker-a", 0): 3})
        async with LitePullConsumer("LG", cluster.namesrv, {"orders": "*"}, config=LITE) as lite:
            bodies: list[bytes] = []
            while len(bodies) < 3:
                bodies += [message.body for message in await lite.poll()]
            put(broker, "orders", b"4")
            while len(bodies) < 4:
                bodies += [message.body for message in await lite.poll()]
            assert bodies == [b"1", b"2", b"3", b"4"]


def test_a_listing_that_stops_early_says_so() -> None:
    """The broker returns nothing below the queue's end: the operator learns that messages are missing."""

    async def main() -> None:
        async with fake_cluster({"orders": 1}) as cluster:
            (broker,) = cluster.brokers
            put(broker, "orders", *(b"%d" % number for number in range(40)))

            def script(command: RemotingCommand) -> RemotingCommand | None:
                if command.code == RequestCode.PULL_MESSAGE and int(command.ext["queueOffset"]) >= 32:
                    empty = reply(PullStatus.NO_NEW_MESSAGE, 32, 40)
                    return RemotingCommand.reply_to(command, empty.code, "scripted", empty.ext)
                return None

            broker.script = script
            listed = []
            async with Admin(cluster.namesrv) as admin:
                messages = admin.messages("orders")
                for _ in range(32):
                    listed.append((await anext(messages)).body)
                with pytest.raises(ReadFailed, match="offset 32 of"):
                    await anext(messages)
            assert listed == [b"%d" % number for number in range(32)]

    run(main())


def test_a_reader_that_makes_no_progress_says_so() -> None:
    """read_range ends at the range's end, or the queue's; anything else is an error."""
    config = ReaderConfig(namesrv="127.0.0.1:1")
    stuck = PullResult(PullStatus.NO_MATCHED_MESSAGE, (), 3, 0, 9)

    class Reader(QueueReader):
        def read(self, queue: MessageQueue, offset: int, count_max: int = 32, bytes_max: int = 0) -> PullResult:
            return stuck if offset == 3 else replace(stuck, status=PullStatus.FOUND, records=(b"x",))

    results = Reader(config).read_range(QUEUE, 0, 9)
    assert next(results).next_offset == 3
    with pytest.raises(ReadFailed, match="no progress at offset 3"):
        next(results)
