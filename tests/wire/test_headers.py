"""Header classes: every recorded request and reply of a known code reads, and loses nothing on the way."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqtrail import wire
from mqtrail.wire import (
    FLAG_RESPONSE,
    CreateTopicHeader,
    GetMaxOffsetHeader,
    HeaderError,
    PullHeader,
    QueryMessageHeader,
    SendMessageHeader,
    SendResponseHeader,
    UnregisterClientHeader,
    decode_command,
)
from mqtrail.wire.header import Header

from .conftest import RecordedFrame

# Fields of every 5.x request that no class holds: stream type, and the broker's name where nothing depends on it.
COMMON = {"ReqT", "bname", "lo"}

REQUESTS: dict[int, type[Header]] = {
    11: wire.PullHeader,
    361: wire.PullHeader,
    12: wire.QueryMessageHeader,
    14: wire.QueryConsumerOffsetHeader,
    15: wire.UpdateConsumerOffsetHeader,
    17: wire.CreateTopicHeader,
    29: wire.SearchOffsetHeader,
    30: wire.GetMaxOffsetHeader,
    31: wire.QueueHeader,
    33: wire.ViewMessageHeader,
    35: wire.UnregisterClientHeader,
    36: wire.SendBackHeader,
    37: wire.EndTransactionHeader,
    38: wire.ConsumerGroupHeader,
    39: wire.CheckTransactionStateHeader,
    40: wire.ConsumerGroupHeader,
    100: wire.KvHeader,
    101: wire.KvHeader,
    102: wire.KvHeader,
    103: wire.RegisterBrokerHeader,
    104: wire.BrokerHeader,
    105: wire.RouteHeader,
    202: wire.TopicHeader,
    203: wire.ConsumerGroupHeader,
    204: wire.ProducerGroupHeader,
    205: wire.BrokerNameHeader,
    207: wire.DeleteGroupHeader,
    208: wire.ConsumeStatsHeader,
    215: wire.TopicHeader,
    216: wire.DeleteTopicInNamesrvHeader,
    220: wire.ResetOffsetHeader,
    222: wire.ResetOffsetHeader,
    300: wire.TopicHeader,
    307: wire.ConsumerRunningInfoHeader,
    309: wire.ConsumeMessageDirectlyHeader,
    310: wire.SendMessageHeader,
    315: wire.ViewBrokerStatsHeader,
    317: wire.BrokerConsumeStatsHeader,
    320: wire.SendMessageHeader,
    321: wire.QueryConsumeQueueHeader,
    325: wire.SendMessageHeader,
    326: wire.ReplyMessageHeader,
    327: wire.BrokerNameHeader,
    351: wire.TopicHeader,
}
REPLIES: dict[int, type[Header]] = {
    11: wire.PullResponseHeader,
    361: wire.PullResponseHeader,
    12: wire.QueryMessageResponseHeader,
    14: wire.OffsetResponseHeader,
    26: wire.BrokerConfigResponseHeader,
    29: wire.OffsetResponseHeader,
    30: wire.OffsetResponseHeader,
    31: wire.OffsetResponseHeader,
    101: wire.KvResponseHeader,
    205: wire.WipeWritePermResponseHeader,
    310: wire.SendResponseHeader,
    320: wire.SendResponseHeader,
    325: wire.SendResponseHeader,
    327: wire.AddWritePermResponseHeader,
}


def test_recorded_headers_are_read_and_written(recorded: list[RecordedFrame]) -> None:
    """Every recorded ext field of Apache's peers is in our class, with the same text."""
    seen = set()
    for line in recorded:
        command = decode_command(line.frame)
        kind = (REPLIES if line.is_reply else REQUESTS).get(line.request_code)
        if kind is None or not command.ext:
            continue
        header = kind.from_ext(command.ext)
        ext = header.to_ext_v2() if isinstance(header, SendMessageHeader) else header.to_ext()
        for name, text in command.ext.items():
            assert name in COMMON or ext[name] == text, (line.request_code, name)
        assert kind.from_ext(ext) == header
        seen.add((line.is_reply, line.request_code))
    assert {code for is_reply, code in seen if not is_reply} == set(REQUESTS)
    assert {code for is_reply, code in seen if is_reply} == set(REPLIES)


def header_classes() -> list[type[Header]]:
    return [kind for kind in vars(wire).values() if isinstance(kind, type) and issubclass(kind, Header)]


@pytest.mark.parametrize("kind", header_classes())
def test_every_header_survives_the_round_trip(kind: type[Header]) -> None:
    """Required fields alone, and all fields: written and read back the same."""
    for fill_optional in (False, True):
        values = {
            field.name: "text" if "str" in str(field.type) else True if "bool" in str(field.type) else 7
            for field in msgspec.structs.fields(kind)
            if fill_optional or field.required
        }
        header = kind(**values)
        assert kind.from_ext(header.to_ext()) == header


def test_send_headers_have_two_namings() -> None:
    """One class reads 10's long names and 310's letters; the broker's name differs too."""
    header = SendMessageHeader(
        "PG", "T", queue_id=3, born_timestamp=5, properties="a\x011\x02", max_reconsume_times=2, broker_name="b"
    )
    long, short = header.to_ext_v1(), header.to_ext_v2()
    assert set(short) == set("abcdefghijklmn")
    assert long["bname"] == short["n"] == "b"
    assert long["queueId"] == short["e"] == "3"
    assert SendMessageHeader.from_ext(long) == SendMessageHeader.from_ext(short) == header
    with pytest.raises(HeaderError, match="producerGroup"):
        SendMessageHeader.from_ext({"b": "T"})


def test_the_c_plus_plus_clients_send_header() -> None:
    """Its numbers are texts, its booleans 0 and 1: only "true" is true, as in Boolean.parseBoolean."""
    ext = {"producerGroup": "PG", "topic": "T", "queueId": "3", "batch": "1", "unitMode": "0", "OnsChannel": "ALIYUN"}
    header = SendMessageHeader.from_ext(ext)
    assert (header.queue_id, header.batch, header.unit_mode, header.default_topic) == (3, False, False, "TBW102")


@pytest.mark.parametrize("text", ["", " 1", "1.0", "x", "0x1", "1_0", "²", "2147483648", "-2147483649", "9" * 30])
def test_numbers_are_read_as_java_reads_them(text: str) -> None:
    """Integer.parseInt's strictness; the message names the field. An empty text counts as missing."""
    with pytest.raises(HeaderError, match="queueId"):
        GetMaxOffsetHeader.from_ext({"topic": "T", "queueId": text})


@pytest.mark.parametrize(("text", "value"), [("+5", 5), ("-0", 0), ("2147483647", 2**31 - 1), ("007", 7)])
def test_numbers_that_java_reads(text: str, value: int) -> None:
    assert GetMaxOffsetHeader.from_ext({"topic": "T", "queueId": text}).queue_id == value


def test_longs_have_64_bits() -> None:
    ext = {"topic": "T", "key": "k", "maxNum": "64", "beginTimestamp": "0", "endTimestamp": str(2**63 - 1)}
    assert QueryMessageHeader.from_ext(ext).end_timestamp == 2**63 - 1
    with pytest.raises(HeaderError, match="int64"):
        QueryMessageHeader.from_ext({**ext, "endTimestamp": str(2**63)})


def test_names_that_do_not_follow_the_rule() -> None:
    assert UnregisterClientHeader("c", producer_group="PG").to_ext() == {"clientID": "c", "producerGroup": "PG"}
    header = SendResponseHeader("M", 3, 4, msg_region="DefaultRegion", trace_on=True)
    assert header.to_ext() == {
        "msgId": "M",
        "queueId": "3",
        "queueOffset": "4",
        "MSG_REGION": "DefaultRegion",
        "TRACE_ON": "true",
    }


def test_empty_texts_count_where_text_is_meant() -> None:
    """attributes="" is valid, as mqadmin writes it; an empty number or boolean is invalid."""
    ext = {"topic": "T", "readQueueNums": "4", "writeQueueNums": "4", "perm": "6", "attributes": "", "order": ""}
    header = CreateTopicHeader.from_ext(ext)
    assert (header.attributes, header.order) == ("", False)


@given(st.dictionaries(st.sampled_from(["consumerGroup", "topic", "queueId", "queueOffset", "x"]), st.text(max_size=4)))
def test_any_ext_is_read_or_refused(ext: dict[str, str]) -> None:
    with pytest.raises(HeaderError):
        PullHeader.from_ext(ext)


def test_flags_of_recorded_replies(recorded: list[RecordedFrame]) -> None:
    assert all(decode_command(line.frame).flag == FLAG_RESPONSE for line in recorded if line.is_reply)
