"""An outgoing message, and the broker's answer to it.

Source: DefaultMQProducerImpl and MQClientAPIImpl.processSendResponse, RocketMQ client.
"""

from typing import NamedTuple

from mqtrail.wire import (
    EXT_MSG_REGION,
    EXT_TRACE_ON,
    REGION_DEFAULT,
    MessageQueue,
    RemotingCommand,
    RequestCode,
    ResponseCode,
    SendStatus,
)

from .numbers import long_of

MSG_TYPE_NORMAL = 0
MSG_TYPE_HALF = 1
MSG_TYPE_DELAY = 3

SEND = int(RequestCode.SEND_MESSAGE_V2)
SEND_BATCH = int(RequestCode.SEND_BATCH_MESSAGE)
SEND_REPLY = int(RequestCode.SEND_REPLY_MESSAGE_V2)


class SendResult(NamedTuple):
    """The broker's answer for a stored message.

    msg_id: the client's id; of a batch, the ids joined by commas. offset_msg_id: the broker's id, likewise.
    queue_offset: of a batch, that of its first message. status other than SEND_OK: stored, but less safely than
    requested, or with `degrade` not yet sent (DEGRADED: offset_msg_id is empty, queue_offset -1, the queue's id -1
    unless the caller chose it). recall_handle: of a delayed message, from brokers >= 5.3.2.
    """

    status: SendStatus
    msg_id: str
    offset_msg_id: str
    queue: MessageQueue
    queue_offset: int
    transaction_id: str = ""
    region_id: str = REGION_DEFAULT
    trace_on: bool = True
    recall_handle: str = ""

    @property
    def msg_ids(self) -> list[str]:
        """The ids of all messages of a batch; a list of one id for a single message."""
        return self.msg_id.split(",")


class Outgoing:
    """One send in progress: what goes over the wire, and the current attempt.

    body, sys_flag and properties are as sent (compressed); body is released once the message is stored. The
    producer changes the fields below the line from attempt to attempt; hooks read them.
    """

    __slots__ = (
        "address",
        "attempt",
        "attempt_max",
        "batch",
        "body",
        "body_size",
        "code",
        "degradable",
        "flag",
        "keys",
        "msg_id",
        "msg_type",
        "properties",
        "queue",
        "reconsume_times",
        "reconsume_times_max",
        "send_id",
        "started_ms",
        "sys_flag",
        "tags",
        "topic",
        "wire_topic",
    )

    def __init__(
        self,
        topic: str,
        body: bytes,
        properties: str,
        msg_id: str,
        *,
        tags: str = "",
        keys: str = "",
        flag: int = 0,
        sys_flag: int = 0,
        msg_type: int = MSG_TYPE_NORMAL,
        code: int = SEND,
        wire_topic: str = "",
    ) -> None:
        self.topic = topic
        self.wire_topic = wire_topic or topic  # with the namespace
        self.body = body
        self.body_size = len(body)
        self.properties = properties
        self.msg_id = msg_id
        self.tags = tags
        self.keys = keys
        self.flag = flag
        self.sys_flag = sys_flag
        self.msg_type = msg_type
        self.code = code
        self.batch = code == SEND_BATCH
        self.reconsume_times = 0  # of a copy for a %RETRY% topic
        self.reconsume_times_max: int | None = None
        # ----
        self.attempt = 0
        self.attempt_max = 1
        self.queue: MessageQueue | None = None
        self.address = ""
        self.started_ms = 0  # epoch
        self.degradable = False  # if all attempts fail, a local file keeps it: the last failure is not the end
        self.send_id = ""  # set when a record of this send needs it


STATUS_OF_CODE = {
    int(ResponseCode.SUCCESS): SendStatus.SEND_OK,
    int(ResponseCode.FLUSH_DISK_TIMEOUT): SendStatus.FLUSH_DISK_TIMEOUT,
    int(ResponseCode.FLUSH_SLAVE_TIMEOUT): SendStatus.FLUSH_SLAVE_TIMEOUT,
    int(ResponseCode.SLAVE_NOT_AVAILABLE): SendStatus.SLAVE_NOT_AVAILABLE,
}


def send_result(out: Outgoing, queue: MessageQueue, reply: RemotingCommand) -> SendResult | None:
    """Return the result in the reply to a send; None if its code is an error.

    A success with unreadable fields is still a success: the message is stored, so nothing is raised here.
    """
    status = STATUS_OF_CODE.get(reply.code)
    if status is None:
        return None
    ext = reply.ext
    get = ext.get
    queue_id, queue_offset = long_of(get("queueId")), long_of(get("queueOffset"))
    if queue_id is None or queue_offset is None:
        queue_id, queue_offset = queue.queue_id, -1
    if queue_id != queue.queue_id or queue.topic != out.topic:
        queue = MessageQueue(out.topic, queue.broker_name, queue_id)
    return SendResult(
        status,
        get("batchUniqId") or out.msg_id,
        get("msgId", ""),
        queue,
        queue_offset,
        get("transactionId", ""),
        get(EXT_MSG_REGION) or REGION_DEFAULT,
        get(EXT_TRACE_ON) != "false",
        get("recallHandle", ""),
    )
