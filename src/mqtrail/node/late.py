"""Answers whose flush takes too long: SYNC_FLUSH, syncFlushTimeout.

A send is told 10 (FLUSH_DISK_TIMEOUT): it is stored, and may be lost with the power. Whatever else waits in the same
bytes (a pull that hands out the message) goes on waiting, for nobody may consume what is not yet safe.

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
    """Return (what is to be written now, what goes on waiting) of encoded replies that waited too long."""
    told: list[bytes] = []
    waiting: list[bytes] = []
    start = 0
    while start < len(data):
        end = frame_end(data, start, len(data), REPLY_HEADER_SIZE_MAX)
        command = decode_command(cut_frame(data, start, end))
        if _stored(command):
            command.code = ResponseCode.FLUSH_DISK_TIMEOUT
            told.append(encode_command(command))
        else:
            waiting.append(data[start:end])
        start = end
    return b"".join(told), b"".join(waiting)


def _stored(command: RemotingCommand) -> bool:
    """Whether it is the good answer to a send: these alone have a message id."""
    return command.is_response and command.code == ResponseCode.SUCCESS and "msgId" in command.ext
