"""Replies whose flush or replication takes too long: SYNC_FLUSH, syncFlushTimeout; SYNC_MASTER, slaveTimeout.

A send gets code 10 (FLUSH_DISK_TIMEOUT): the message is stored, but a power failure may lose it. It gets 12
(FLUSH_SLAVE_TIMEOUT) if slaves do not have it, and 11 (SLAVE_NOT_AVAILABLE) if there are none. Other replies in the
same bytes (a pull that delivers the message) continue to wait, because a message must be durable before it is consumed.
If too many replies wait for a flush, a further send gets code 10 at once, and another request code 2 (SYSTEM_BUSY).

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

_BUSY = "found too many replies waiting for the disk, expected fewer: try again later"


def late_replies(data: bytes, code: ResponseCode = ResponseCode.FLUSH_DISK_TIMEOUT) -> tuple[bytes, bytes]:
    """Divide encoded replies that waited too long into (those to write now, with this code; those that continue to
    wait)."""
    late: list[bytes] = []
    waiting: list[bytes] = []
    start = 0
    while start < len(data):
        end = frame_end(data, start, len(data), REPLY_HEADER_SIZE_MAX)
        command = decode_command(cut_frame(data, start, end))
        if _stored(command):
            command.code = code
            late.append(encode_command(command))
        else:
            waiting.append(data[start:end])
        start = end
    return b"".join(late), b"".join(waiting)


def refused_replies(data: bytes) -> bytes:
    """Return the replies to write at once in place of these, which should have waited for a flush."""
    late, waiting = late_replies(data)
    found = [late]
    start = 0
    while start < len(waiting):
        end = frame_end(waiting, start, len(waiting), REPLY_HEADER_SIZE_MAX)
        command = decode_command(cut_frame(waiting, start, end))
        if command.is_response:
            found.append(encode_command(RemotingCommand.reply_to(command, ResponseCode.SYSTEM_BUSY, _BUSY)))
        start = end
    return b"".join(found)


def _stored(command: RemotingCommand) -> bool:
    """Return whether it is a successful reply to a send: only those have a message id."""
    return command.is_response and command.code == ResponseCode.SUCCESS and "msgId" in command.ext
