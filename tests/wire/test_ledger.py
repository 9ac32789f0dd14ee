"""DLedger's entries and requests: bytes that members of Apache's sent each other and stored."""

import base64
import json
import zlib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqtrail.wire import (
    LEDGER_BATCH_COUNT_MAX,
    LEDGER_HEAD_SIZE,
    LEDGER_UNIT,
    BodyError,
    LedgerCode,
    LedgerEntry,
    LedgerHeartbeat,
    LedgerMetadata,
    LedgerPush,
    LedgerReply,
    LedgerRequest,
    LedgerVote,
    LedgerVoteReply,
    PushType,
    RecordError,
    VoteResult,
    check_record,
    decode_ledger_entry,
    decode_ledger_head,
    decode_ledger_reply,
    decode_ledger_request,
    encode_ledger_entry,
    ledger_padding,
    ledger_unit,
)

GOLDEN = Path(__file__).parents[1] / "golden"
FRAMES: list[dict[str, Any]] = [json.loads(line) for line in (GOLDEN / "dledger.jsonl").read_text().splitlines()]
STORE = json.loads((GOLDEN / "dledger-store.json").read_text())
ENTRY = LedgerEntry(2, 1, 4_096, b"body", channel=3, chain_crc=4, body_crc=5)
ENTRY_HEX = (
    "00000001 00000034 0000000000000002 0000000000000001 0000000000001000 00000003 00000004 00000005 00000004 626f6479"
)


def stored(path: str) -> bytes:
    return zlib.decompress(base64.b64decode(STORE["files"][path]["zlib_base64"]))


def decoded(frame: dict[str, Any]) -> LedgerRequest | LedgerReply:
    body = bytes.fromhex(frame["body_hex"])
    if frame["kind"] == "reply":
        return decode_ledger_reply(frame["request_code"], body)
    request = decode_ledger_request(frame["code"], body)
    assert request is not None
    assert request.request_code == frame["code"]
    return request


@pytest.mark.parametrize("frame", FRAMES, ids=lambda frame: f"{frame['request_code']}-{frame['kind']}")
def test_golden_requests(frame: dict[str, Any]) -> None:
    """What Apache's members sent is read, and written again as they wrote it."""
    assert decoded(frame).encode() == bytes.fromhex(frame["body_hex"])


def test_golden_requests_have_each_kind() -> None:
    """Votes with several answers, heartbeats, all kinds of PUSH, a hand-over."""
    found = [decoded(frame) for frame in FRAMES]
    assert {one.type for one in found if isinstance(one, LedgerPush)} == set(PushType)
    results = {one.vote_result for one in found if isinstance(one, LedgerVoteReply)}
    assert results >= {VoteResult.ACCEPT, VoteResult.REJECT_TERM_NOT_READY, VoteResult.REJECT_EXPIRED_LEDGER_TERM}
    codes = {frame["request_code"] for frame in FRAMES}
    assert codes == {LedgerCode.VOTE, LedgerCode.HEART_BEAT, LedgerCode.PUSH, LedgerCode.LEADERSHIP_TRANSFER}


def test_golden_entries() -> None:
    """Every entry of a data file of Apache's, its record and its unit in the index; padding at the file's end."""
    size = STORE["segment_size"]
    units = stored("dledger-n0/index/00000000000000000000")
    index = at = start = 0
    data = stored("dledger-n0/data/00000000000000000000").ljust(size, b"\0")
    while index <= STORE["end_index"]:
        head = decode_ledger_head(data, at)
        if head.is_padding:
            assert data[at:] == ledger_padding(size - at)
            start, at = size, 0
            data = stored(f"dledger-n0/data/{start:020}")
            continue
        entry = decode_ledger_entry(data, at)
        assert (entry.index, entry.position) == (index, start + at)
        assert encode_ledger_entry(entry) == data[at : at + entry.size]
        assert ledger_unit(entry) == units[index * 32 : index * 32 + 32]
        assert check_record(entry.body).physical_offset == entry.position + LEDGER_HEAD_SIZE
        index, at = index + 1, at + entry.size
    assert start + at == STORE["end_position"]


def test_the_layout_of_an_entry() -> None:
    """All fields, those that Apache's members leave 0 too."""
    data = bytes.fromhex(ENTRY_HEX)
    assert encode_ledger_entry(ENTRY) == data
    assert decode_ledger_entry(data) == ENTRY
    assert (ENTRY.size, ENTRY.end) == (52, 4_148)
    assert LEDGER_UNIT.unpack(ledger_unit(ENTRY)) == (1, 4_096, 52, 2, 1)


@pytest.mark.parametrize("cut", [0, 7, 47, 51])
def test_a_part_of_an_entry_is_refused(cut: int) -> None:
    with pytest.raises(RecordError):
        decode_ledger_entry(bytes.fromhex(ENTRY_HEX)[:cut])


def test_an_entry_of_a_later_version_is_refused() -> None:
    data = bytes.fromhex(ENTRY_HEX.replace("00000001 00000034", "00000002 00000034"))
    assert not decode_ledger_head(data).is_known
    with pytest.raises(RecordError, match="magic 2"):
        decode_ledger_entry(data)
    with pytest.raises(RecordError, match="out of its field's range"):
        encode_ledger_entry(LedgerEntry(1 << 63, 1, 0, b""))


@given(st.binary(max_size=120))
def test_any_bytes_give_an_entry_or_an_error(data: bytes) -> None:
    try:
        entry = decode_ledger_entry(data)
    except RecordError:
        return
    assert encode_ledger_entry(entry) == data[: entry.size]


def test_a_list_of_entries() -> None:
    """As Apache's leader sends it with enableBatchPush: in order, without gaps, and not too long."""
    entries = tuple(LedgerEntry(index, 1, 100 * index, b"x") for index in range(3))
    push = LedgerPush(group="g", entries=entries, is_batch=True)
    assert decode_ledger_request(LedgerCode.PUSH, push.encode()) == push
    assert b'"batch":true' in push.encode()
    assert b'"totalSize":147' in push.encode()
    with pytest.raises(BodyError, match="expected entry 1"):
        decode_ledger_request(LedgerCode.PUSH, LedgerPush(entries=(entries[0], entries[2]), is_batch=True).encode())
    many = b'{"batchEntry":[%b]}' % b",".join([b"{}"] * (LEDGER_BATCH_COUNT_MAX + 1))
    with pytest.raises(BodyError):
        decode_ledger_request(LedgerCode.PUSH, many)


def test_members_of_mqtrail_say_so() -> None:
    """Java ignores the member; a pre-vote has a code of its own, which Apache's members refuse."""
    vote = LedgerVote(group="g", leader_id="n0", term=3, mqtrail=1, is_pre_vote=True)
    assert vote.request_code == LedgerCode.PRE_VOTE
    assert b'"mqtrail":1' in vote.encode()
    assert b"isPreVote" not in vote.encode()
    assert decode_ledger_request(LedgerCode.PRE_VOTE, vote.encode()) == vote
    assert b"mqtrail" not in LedgerHeartbeat(group="g").encode()
    assert decode_ledger_request(LedgerCode.METADATA, b'{"group":"g"}') == LedgerMetadata(group="g")


@pytest.mark.parametrize("code", [LedgerCode.APPEND, LedgerCode.GET, LedgerCode.PULL, 10])
def test_requests_that_no_member_serves(code: int) -> None:
    """APPEND would write bytes of anybody into the log."""
    assert decode_ledger_request(code, b"{}") is None


@pytest.mark.parametrize(
    "body", [b"", b"[]", b'{"term":"x"}', b'{"entry":3}', b'{"entry":{"body":"%"}}', b'{"type":"SNAPSHOT"}']
)
def test_other_bodies_are_refused(body: bytes) -> None:
    with pytest.raises(BodyError):
        decode_ledger_request(LedgerCode.PUSH, body)
