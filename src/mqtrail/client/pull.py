"""What a pull brings back, shared by consumer and reader: status, raw records, where the queue begins and ends."""

from dataclasses import dataclass
from enum import StrEnum

from mqtrail.wire import (
    MessageExt,
    PullResponseHeader,
    RemotingCommand,
    ResponseCode,
    decode_records,
    refusal_for,
    split_records,
)


class PullStatus(StrEnum):
    """What a pull found."""

    FOUND = "FOUND"
    NO_NEW_MESSAGE = "NO_NEW_MESSAGE"  # the queue's end
    NO_MATCHED_MESSAGE = "NO_MATCHED_MESSAGE"  # the filter left nothing: go on at next_offset
    OFFSET_MOVED = "OFFSET_MOVED"  # the offset is outside what the queue keeps: next_offset is inside


_STATUS = {
    int(ResponseCode.SUCCESS): PullStatus.FOUND,
    int(ResponseCode.PULL_NOT_FOUND): PullStatus.NO_NEW_MESSAGE,
    int(ResponseCode.PULL_RETRY_IMMEDIATELY): PullStatus.NO_MATCHED_MESSAGE,
    int(ResponseCode.PULL_OFFSET_MOVED): PullStatus.OFFSET_MOVED,
}


@dataclass(frozen=True, slots=True)
class PullResult:
    """Records of [asked offset, next_offset), as stored; the queue held [min_offset, max_offset) at that time.

    suggested_broker_id: where the broker would rather have the next pull (0: the master).
    """

    status: PullStatus
    records: tuple[bytes, ...]
    next_offset: int
    min_offset: int
    max_offset: int
    suggested_broker_id: int = 0

    def messages(self, broker_name: str = "") -> list[MessageExt]:
        """Decode the records, bodies decompressed. broker_name: of the queue, for a record does not hold it."""
        return decode_records(b"".join(self.records), broker_name)


def read_pull_reply(reply: RemotingCommand) -> PullResult:
    """Return what a pull's reply says. Raises the Refusal of any other code, RecordError or HeaderError for damage."""
    status = _STATUS.get(reply.code)
    if status is None:
        raise refusal_for(reply.code, reply.remark)
    header = PullResponseHeader.from_ext(reply.ext)
    records = tuple(split_records(reply.body)) if status is PullStatus.FOUND else ()
    return PullResult(
        status,
        records,
        header.next_begin_offset,
        header.min_offset,
        header.max_offset,
        header.suggest_which_broker_id,
    )
