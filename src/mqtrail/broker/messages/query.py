"""Queries: by key or unique id (12), by the physical offset in an offset message id (33).

Source: QueryMessageProcessor, apache/rocketmq broker/processor/.
"""

from typing import Final

from mqtrail.wire import (
    Peer,
    QueryMessageHeader,
    QueryMessageResponseHeader,
    QueryNotFound,
    RemotingCommand,
    Send,
    SystemError_,
    ViewMessageHeader,
    Work,
    answer,
)

from ..state import BrokerState

CUT_REMEDY: Final = "; older entries were not searched: give a narrower time range, or the unique id"


class QueryMessages:
    """Finds messages by the index and the log of the store."""

    def __init__(self, state: BrokerState) -> None:
        self._config = state.config
        self._store = state.store

    def by_key(self, peer: Peer, request: RemotingCommand, now_ms: int) -> Work:
        """12: the newest records under topic and key, in the log's order. QueryNotFound: none.

        If the store did not read all entries of the index, the remark states it. SystemError_: then it found none.
        """
        header = QueryMessageHeader.from_ext(request.ext)
        count = self._config.query_count_default if header.unique_key else header.max_num
        count = max(0, min(count, self._config.query_count_max))
        found = yield from self._store.query_in_slices(
            header.topic, header.key, count, header.begin_timestamp, header.end_timestamp
        )
        ext = QueryMessageResponseHeader(found.index_timestamp_ms, found.index_physical_offset).to_ext()
        if not found.records and found.is_cut:
            raise SystemError_(f"found no message among the newest entries of the index{CUT_REMEDY}")
        if not found.records:
            return answer(
                peer, request, ext, code=QueryNotFound.code, remark="can not find message, maybe time range not correct"
            )
        remark = f"found {len(found.records)} messages among the newest entries of the index{CUT_REMEDY}"
        return answer(peer, request, ext, remark=remark if found.is_cut else None, body=b"".join(found.records))

    def by_offset(self, peer: Peer, request: RemotingCommand, now_ms: int) -> list[Send]:
        """33: the record at a CommitLog offset. SystemError_: no record starts there (the code of 5.3.3)."""
        header = ViewMessageHeader.from_ext(request.ext)
        try:
            record = self._store.read_at(header.offset)
        except QueryNotFound as error:
            raise SystemError_(f"can not find message by the offset, {header.offset}: {error.remark}") from error
        return answer(peer, request, body=bytes(record))
