"""Replies as templates: the output of `encode_command` for an answer, with placeholders for its values.

A template is built from an answer of `handle` with marks in place of the values, so both always agree. `%` formatting
of bytes inserts the values; the two lengths of the frame are put before the result.
"""

from typing import Final

from mqtrail.wire import (
    FRAME_HEAD_SIZE,
    Peer,
    PeerId,
    PullResponseHeader,
    RemotingCommand,
    ResponseCode,
    SendResponseHeader,
    answer,
    encode_command,
)

from ..config import BrokerConfig

_OPAQUE_MARK: Final = 1_987_654_321


def send_template(config: BrokerConfig, msg_id: bytes) -> bytes:
    """Return the header of the answer to a send: % (msg_id in its own format, queue id, queue offset, unique id,
    opaque)."""
    header = SendResponseHeader(
        msg_id="@0@",
        queue_id=0,
        queue_offset=0,
        transaction_id="@3@",
        msg_region=config.region_id,
        trace_on=config.trace_on,
    )
    ext = header.to_ext() | {"queueId": "@1@", "queueOffset": "@2@"}
    return _template(config, ext, None, ((b"@0@", msg_id), (b"@1@", b"%d"), (b"@2@", b"%d"), (b"@3@", b"%b")))


def pull_template(config: BrokerConfig, remark: str) -> bytes:
    """Return the header of the answer to a pull: % (next, min, max offset, topic's and group's sysFlag, opaque)."""
    header = PullResponseHeader(0, 1, 1, 1, topic_sys_flag=1, group_sys_flag=1)
    names = ("nextBeginOffset", "minOffset", "maxOffset", "topicSysFlag", "groupSysFlag")
    ext = header.to_ext() | {name: f"@{place}@" for place, name in enumerate(names)}
    return _template(config, ext, remark, tuple((b"@%d@" % place, b"%d") for place in range(len(names))))


def _template(
    config: BrokerConfig, ext: dict[str, str], remark: str | None, holes: tuple[tuple[bytes, bytes], ...]
) -> bytes:
    request = RemotingCommand(0, opaque=_OPAQUE_MARK)
    peer = Peer(PeerId(0), config.address)
    (sent,) = answer(peer, request, ext, code=ResponseCode.SUCCESS, remark=remark)
    header = encode_command(sent.command)[FRAME_HEAD_SIZE:].replace(b"%", b"%%")
    places = []
    for mark, hole in (*holes, (b"%d" % _OPAQUE_MARK, b"%d")):
        places.append(header.index(mark))
        header = header.replace(mark, hole)
    assert places == sorted(places), "the order of the answer's fields has changed"
    return header
