"""Replies whose flush takes too long: SYNC_FLUSH, syncFlushTimeout.

A send gets code 10 (FLUSH_DISK_TIMEOUT): the message is stored, but a power failure may lose it. Other replies in the
same bytes (a pull that delivers the message) continue to wait, because a message must be durable before it is consumed.

Source: GroupCommitService, SendMessageProcessor.handlePutMessageResult, apache/rocketmq store/ and broker/.
"""

from mqtrail.wire import (
    REPLY_HEADER_SIZE_MAX,
    RemotingCommand,
    ResponseCode,
    cut_frame,
    decode_command,
    encode_command,
    frame_end,
)


def late_replies(data: bytes) -> tuple[bytes, bytes]:
    """Divide encoded replies that waited too long into (those to write now, those that continue to wait)."""
    late: list[bytes] = []
    waiting: list[bytes] = []
    start = 0
    while start < len(data):
        end = frame_end(data, start, len(data), REPLY_HEADER_SIZE_MAX)
        command = decode_command(cut_frame(data, start, end))
        if _stored(command):
            command.code = ResponseCode.FLUSH_DISK_TIMEOUT
            late.append(encode_command(command))
        else:
            waiting.append(data[start:end])
        start = end
    return b"".join(late), b"".join(waiting)


def _stored(command: RemotingCommand) -> bool:
    """Return whether it is a successful reply to a send: only those have a message id."""
    return command.is_response and command.code == ResponseCode.SUCCESS and "msgId" in command.ext
