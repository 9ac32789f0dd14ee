"""The evidence of a judgement: bronze rows, one relation per source.

Each row is one report of one source; no row is derived from others. `trace_events` comes from the trace topic,
`message_meta` from the messages themselves, without bodies. The others are samples of the brokers, recorded as changes
(see `samples`).
"""

from __future__ import annotations

from .columns import Relation, flag, number, text

TRACE_EVENTS = Relation(
    "trace_events",
    "One row per item of a decoded trace record. A record about n messages (Pub, PubAttempt of a batch: comma-joined "
    "msgId; Delivered: comma-joined offsets) becomes n rows that differ in item_no, msg_id, offset_msg_id and "
    "store_queue_offset. Key: cluster, broker_name, trace_topic, queue_id, queue_offset, record_no, item_no.",
    (
        text("cluster", "name of the cluster in the pipeline's settings"),
        text("broker_name", "broker that stores the trace message"),
        text("trace_topic", "topic of the trace message"),
        number("queue_id", "queue of the trace message"),
        number("queue_offset", "offset of the trace message in its queue"),
        number("record_no", "index of the record in the trace message, from 0, including rejects"),
        number("item_no", "index of the item in the record, from 0; 0 if the record has one item"),
        number("item_count", "number of items in the record, at least 1"),
        number("trace_born_ms", "when the trace message was created, by the clock of the traced client"),
        number("trace_store_ms", "when the broker stored the trace message"),
        text("trace_born_host", "ip:port of the connection that sent the trace message"),
        text("trace_client_id", "client id in the TraceBatch that begins the trace message; '' from other clients"),
        text("record_type", "field 0 of the record: Pub, SubBefore, SubAfter, EndTransaction, Recall or of mqtrail"),
        number("event_ms", "timeStamp of the record; NULL if the layout has none (SubAfter of 7 fields)"),
        text(
            "msg_id", "the id in the record; of a batch in Pub one of its ids, in Sub… the batch's own id; '' if none"
        ),
        text("group_name", "producer group (Pub…), consumer group (Sub…); '' if the layout has none"),
        text("topic", "topic in the record; '' in SubBefore and SubAfter"),
        text("region_id", "regionId"),
        text("tags", "TAGS of the message"),
        text("keys", "KEYS of the message, blank-joined"),
        text("store_host", "ip:port of the broker in the record (Pub: the address that the client connected to)"),
        text("client_host", "clientHost of the 15-field Pub and the 9-field SubBefore"),
        number("body_size", "bodyLength: bytes as sent (compressed); for a batch those of the whole batch"),
        number("cost_ms", "costTime; in SubAfter the average of the listener's batch"),
        number("msg_type", "msgType ordinal: 0 normal, 1 half, 2 commit, 3 delay, 4 order"),
        text("offset_msg_id", "offset id in the broker's answer; for a batch one of them"),
        flag("success", "isSuccess"),
        text("request_id", "requestId: the same in SubBefore, SubAfter and SubResult of one delivery"),
        number("retry_times", "retryTimes: reconsumeTimes of the delivered copy"),
        number("context_code", "contextCode: 0 SUCCESS, 1 TIME_OUT, 2 EXCEPTION, 3 RETURNNULL, 4 FAILED"),
        text("transaction_id", "transactionId"),
        text("transaction_state", "transactionState name"),
        flag("from_transaction_check", "fromTransactionCheck"),
        text("client_id", "clientId of mqtrail's records"),
        text("start_id", "startId of TraceBatch, TraceLoss and TraceEnd: one run of one client"),
        number("sequence", "sequence of TraceBatch: 1, 2, 3… per startId; a missing number is a lost trace message"),
        number("dropped_total", "droppedTotal of TraceBatch: number of records that this run has dropped so far"),
        number("from_ms", "fromMs of TraceLoss"),
        number("to_ms", "toMs of TraceLoss"),
        number("lost_count", "count of TraceLoss"),
        text("reason", "reason of TraceLoss"),
        text("send_id", "sendId of PubAttempt: one send of the application"),
        number("attempt", "attempt of PubAttempt, from 1"),
        number("attempt_max", "attemptMax of PubAttempt"),
        text("outcome", "outcome of PubAttempt: OK, ERROR, TIMEOUT, CONNECT, NOT_SENT, ONEWAY"),
        number("response_code", "responseCode of PubAttempt"),
        flag("is_final", "isFinal of PubAttempt: no further attempt of this send follows"),
        text("result", "result of SubResult: SUCCESS, FAILED, EXCEPTION, TIME_OUT, RETURNNULL"),
        text("detail", "detail of SubResult: short error text"),
        text("store_broker_name", "brokerName of mqtrail's records: broker of the message's queue"),
        number("store_queue_id", "queueId of mqtrail's records: the message's queue"),
        number("store_queue_offset", "queueOffset of mqtrail's records (Delivered: one of offsets)"),
        number("physical_offset", "physicalOffset of Stored: byte in the CommitLog"),
        number("store_size", "size of Stored: bytes of the whole record"),
        number("consumer_offset", "consumerOffset of OffsetCommit"),
        number("born_ms", "bornTimestamp of Stored"),
        text("born_host", "bornHost of Stored"),
        number("store_ms", "storeTimestamp of Stored"),
        text("stored_kind", "kind of Stored: NORMAL, BATCH, DELAY, RETRY, DLQ, HALF, COMMIT, RECALL"),
        text("origin_msg_id", "originMsgId of SentBack and DeadLettered"),
        number("reconsume_times", "reconsumeTimes of SentBack and DeadLettered"),
        number("delay_level", "delayLevel of SentBack"),
        number("due_ms", "dueMs of SentBack"),
        text("cause", "cause of DeadLettered: ATTEMPTS_EXHAUSTED, BY_HANDLER, ORDERED_GIVE_UP"),
    ),
)

TRACE_COLUMN_OF = {
    "time_stamp": "event_ms",
    "body_length": "body_size",
    "cost_time": "cost_ms",
    "is_success": "success",
    "count": "lost_count",
    "broker_name": "store_broker_name",
    "queue_id": "store_queue_id",
    "queue_offset": "store_queue_offset",
    "size": "store_size",
    "born_timestamp": "born_ms",
    "store_timestamp": "store_ms",
    "kind": "stored_kind",
}
"""Attributes of wire's trace records whose column of trace_events has another name."""

TRACE_REJECTS = Relation(
    "trace_rejects",
    "One row per trace record, or whole trace message (record_no -1), that cannot be decoded.",
    (
        text("cluster", "as in trace_events"),
        text("broker_name", "as in trace_events"),
        text("trace_topic", "as in trace_events"),
        number("queue_id", "as in trace_events"),
        number("queue_offset", "as in trace_events"),
        number("record_no", "as in trace_events; -1: the body as a whole (compression, UTF-8)"),
        number("trace_store_ms", "as in trace_events"),
        text("trace_born_host", "as in trace_events"),
        text("reason", "what was found and what was expected"),
        text("record_text", "the record, at most 2 000 characters of it"),
    ),
)

MESSAGE_META = Relation(
    "message_meta",
    "One row per stored copy of a message in a business topic, %RETRY%, %DLQ%, SCHEDULE_TOPIC_XXXX, the timer topic or "
    "the half and check-max topics of transactions. An op record has one row for each half message that it ended: its "
    "own place and times, with the id of the half message. So has a record of POP for each message that it names. Key: "
    "cluster, broker_name, topic, queue_id, queue_offset, origin_msg_id.",
    (
        text("cluster", "as in trace_events"),
        text("broker_name", "broker that stores the copy"),
        text("topic", "topic of the copy's queue (SCHEDULE_TOPIC_XXXX for a waiting copy)"),
        number("queue_id", "its queue"),
        number("queue_offset", "its offset in the queue"),
        number("physical_offset", "its byte in the CommitLog"),
        text("offset_msg_id", "offset id: store host and physical offset"),
        text("own_unique_key", "the first UNIQ_KEY of the raw property text: a batch item's own id; '' if none"),
        text("last_unique_key", "the last UNIQ_KEY, the msgId for consumers: in a batch the batch's id; '' if none"),
        text("keys", "KEYS, joined by blanks"),
        text("tags", "TAGS"),
        text("traceparent", "context of OpenTelemetry in the properties (W3C traceparent); '' if none or invalid"),
        number("born_ms", "bornTimestamp; POP_CK, POP_ACK: when the message was popped"),
        text("born_host", "ip:port of the connection that sent it"),
        number("store_ms", "storeTimestamp of this copy"),
        text("store_host", "ip:port of the broker"),
        number("store_size", "bytes of the whole record"),
        number("body_size", "bytes of the body as stored"),
        number("body_crc", "bodyCRC"),
        number("sys_flag", "sysFlag"),
        number("reconsume_times", "reconsumeTimes: attempts made before this copy was stored"),
        text("stored_kind", "kind of the copy (trail/kinds.py)"),
        text("real_topic", "REAL_TOPIC: target topic of a waiting copy; '' if none"),
        text("retry_topic", "RETRY_TOPIC: the business topic of a %RETRY% or %DLQ% copy; '' if none"),
        text(
            "group_name",
            "consumer group of a %RETRY% or %DLQ% copy, also while it waits, or that popped the message; '' otherwise",
        ),
        text(
            "origin_msg_id",
            "ORIGIN_MESSAGE_ID: offset id (sent back by the broker) or UNIQ_KEY (by the client); of an op record the "
            "offset id of the half message, of a pop that of the popped message",
        ),
        number("delay_level", "DELAY; NULL if none"),
        number("delay_ms", "delay of the level by messageDelayLevel; NULL without a level"),
        number(
            "due_ms", "when a waiting copy is due: store time + level, or TIMER_OUT_MS; of a pop its end; NULL: unknown"
        ),
        text("trace_on", "TRACE_ON of the properties: 'true', 'false' or ''"),
        text("sharding_key", "__SHARDINGKEY of the properties; '' if none"),
        text("properties", "all properties, as name ␁ value ␂, of topics with a subscription by SQL92; '' otherwise"),
        number("read_ms", "when the pipeline read it"),
    ),
)

GROUP_OFFSETS = Relation(
    "group_offsets",
    "One row per committed offset that changed in a sample. A queue without a committed offset has no row (never 0). "
    "Key: cluster, sampled_ms, group_name, topic, broker_name, queue_id.",
    (
        text("cluster", "as in trace_events"),
        number("sampled_ms", "time of the sample"),
        text("group_name", "consumer group"),
        text("topic", "business or %RETRY% topic"),
        text("broker_name", "broker of the queue"),
        number("queue_id", "queue"),
        number("consumer_offset", "the next queue_offset that the group will read"),
        text("change", "'' in this sample; SEEN since this sample; GONE since this sample"),
        number("first_ms", "first sample with an offset of this queue; only in its first row and in keyframes"),
        number("first_offset", "the consumer_offset in that sample"),
        number("seen_ms", "GONE: last sample with the offset"),
    ),
)

CLIENTS = Relation(
    "clients",
    "One row per consumer client that appeared or disappeared in a sample; a group without clients has a row with "
    "client_id ''. "
    "Key: cluster, sampled_ms, group_name, client_id.",
    (
        text("cluster", "as in trace_events"),
        number("sampled_ms", "time of the sample"),
        text("group_name", "consumer group"),
        text("status", "OK (live clients), OFFLINE (queried, it has none), ERROR (no broker could be queried)"),
        text("client_id", "client id; '' if status is not OK"),
        text("client_host", "ip:port of its connection to the broker; '' if unknown"),
        text("language", "its language; '' if unknown"),
        number("version", "its MQVersion ordinal"),
        text("ordered", "'true' or 'false': whether it reports that it consumes in order; '' if unknown"),
        text("change", "'' in this sample; SEEN since this sample; GONE since this sample"),
        number("first_ms", "first sample with the same row; in its first row and in keyframes"),
        number("seen_ms", "GONE: last sample with it"),
    ),
)

SUBSCRIPTIONS = Relation(
    "subscriptions",
    "One row per subscription that appeared or disappeared in a sample; several per group if its clients differ. Key: "
    "cluster, sampled_ms, group_name, topic, expression_type, expression.",
    (
        text("cluster", "as in trace_events"),
        number("sampled_ms", "time of the sample"),
        text("group_name", "consumer group"),
        text("topic", "subscribed topic"),
        text("expression_type", "TAG or SQL92"),
        text("expression", "as subscribed: '*' or 'A || B'"),
        text("consume_type", "CONSUME_PASSIVELY (push) or CONSUME_ACTIVELY (lite pull, pull); '' if unknown"),
        text("message_model", "CLUSTERING or BROADCASTING; '' if unknown"),
        text("change", "'' in this sample; SEEN since this sample; GONE since this sample"),
        number("first_ms", "first sample with the same row; in its first row and in keyframes"),
        number("seen_ms", "GONE: last sample with it"),
    ),
)

QUEUE_RANGES = Relation(
    "queue_ranges",
    "One row per queue whose range [min_offset, max_offset) changed in a sample. Key: cluster, sampled_ms, "
    "broker_name, topic, queue_id.",
    (
        text("cluster", "as in trace_events"),
        number("sampled_ms", "time of the sample"),
        text("broker_name", "broker"),
        text("topic", "topic, including trace topics"),
        number("queue_id", "queue"),
        number("min_offset", "first kept queue_offset"),
        number("max_offset", "next queue_offset to be written"),
        number("read_offset", "next queue_offset to be read; NULL: not read, or in samples (READ)"),
        text("change", "'' in this sample; SEEN since this sample; GONE since this sample"),
        number("seen_ms", "GONE: last sample with the queue"),
    ),
)

SAMPLES = Relation(
    "samples",
    "One row per sample (what: SAMPLE), per query whose state changed in a sample, per sample up to which the pipeline "
    "has read (READ, topic ''), per broker and time in which its groups were not sampled (GAP; keyframes repeat "
    "them), and per change in whether the trace topics of a broker are read to their ends (TRACE; keyframes repeat "
    "them). Key: cluster, sampled_ms, what, broker_name, topic.",
    (
        text("cluster", "as in trace_events"),
        number("sampled_ms", "time of the sample; GAP: of the sample after it; TRACE: of the change"),
        text(
            "what",
            "SAMPLE; OFFSETS, GROUPS of a broker; RANGES of a topic on a broker; READ of a topic's messages; GAP; "
            "TRACE of a broker",
        ),
        text("broker_name", "queried broker; GROUPS, GAP: '' is all brokers; '' in other rows"),
        text("topic", "queried or read topic; '' in other rows"),
        text(
            "status",
            "OK: answered (READ, TRACE: read) since this sample; FAILED: not since this sample; GONE (TRACE): the "
            "broker or its trace topic is gone since then, before all of it was read",
        ),
        number(
            "seen_ms",
            "FAILED, GONE and GAP: last answered (TRACE: read) sample before it, NULL: none; READ: sample up to which "
            "messages are read",
        ),
        number("keyframe_ms", "SAMPLE: the last keyframe, in a keyframe sampled_ms itself; NULL in other rows"),
        text("reason", "why the state is FAILED, or why no sample was taken"),
    ),
)

GAPS = Relation(
    "gaps",
    "One row per range [first_offset, end_offset) of a queue that was lost before it could be read, or (NOT_READ) was "
    "left out by the first read of its queue. Key: cluster, broker_name, topic, queue_id, first_offset.",
    (
        text("cluster", "as in trace_events"),
        text("broker_name", "broker"),
        text("topic", "trace topic or a topic of message_meta"),
        number("queue_id", "queue"),
        number("first_offset", "first missing queue_offset"),
        number("end_offset", "queue_offset after the last missing one"),
        number("from_ms", "store time of the last record read before the range; NULL: none (unbounded)"),
        number("to_ms", "store time of the first record read after the range; NOT_READ: all of it was stored before"),
        number("detected_ms", "when the pipeline detected it"),
        text("reason", "why: EXPIRED (the queue's minimum moved), RECREATED (the maximum fell), UNREADABLE, NOT_READ"),
    ),
)

UNREAD_RANGES = Relation(
    "unread_ranges",
    "One row per range [first_offset, end_offset) of a queue that a group had not read when it was removed or "
    "replaced, or that the offset of a group passed while the group had no client. Key: cluster, sampled_ms, kind, "
    "group_name, broker_name, topic, queue_id.",
    (
        text("cluster", "as in trace_events"),
        number(
            "sampled_ms",
            "time of the sample that shows it; the sample before does not. TRUNCATED, RECREATED: before the first of "
            "the messages that replaced them was stored",
        ),
        text(
            "kind",
            "EXPIRED: the queue's minimum rose above the group's offset. TOPIC_DELETED: no broker has the topic. "
            "OFFSET_MOVED: the group's offset rose, and the group had no client in this sample and in the one before. "
            "TRUNCATED: the queue kept the messages before the range, and has others in it, or the CommitLog has others"
            " in their place. RECREATED: the queue has other messages only. SHORTENED: the queue ends before the range,"
            " or is gone with everything of its broker",
        ),
        text("group_name", "consumer group; '' (not EXPIRED, OFFSET_MOVED): any group without an offset in the queue"),
        text("topic", "business or %RETRY% topic"),
        text("broker_name", "broker of the queue"),
        number("queue_id", "queue"),
        number("first_offset", "first queue_offset"),
        number("end_offset", "queue_offset after the last one; NULL: no end"),
        number(
            "live_count",
            "clients of the group in this sample and in the one before (TRUNCATED, RECREATED: since the first of the "
            "messages was stored); NULL: unknown",
        ),
    ),
)

RANGE_NOT_READ = "RANGE_NOT_READ:"
"""What the reason of a loss begins with that is a row of GAPS; its topic follows."""
OF_MESSAGES = "messages"
"""Host of a loss of messages of a topic, in which no trace is."""
TRACE_NOT_READ = "TRACE_NOT_READ:"
"""What the reason of a loss begins with that may end: the trace topics of a broker are not read; its name follows."""
CLIENT_VANISHED = "CLIENT_VANISHED"
"""Reason of a loss that is only possible: a client is no longer there, and it may have been killed."""
CLIENT_NOT_TRACED = "CLIENT_NOT_TRACED"
"""Reason of a loss that is only possible: a client of a traced group has no record at all, so its trace may be off."""

EVIDENCE = (
    TRACE_EVENTS,
    TRACE_REJECTS,
    MESSAGE_META,
    GROUP_OFFSETS,
    CLIENTS,
    SUBSCRIPTIONS,
    QUEUE_RANGES,
    SAMPLES,
    GAPS,
    UNREAD_RANGES,
)
"""Every bronze relation, in the order of the docs."""

PROBLEMS = Relation(
    "problems",
    "One row per problem that began or ended in a cycle of the pipeline: what it could not read or ask. No judgement "
    "reads it. Key: cluster, noted_ms, problem.",
    (
        text("cluster", "as in trace_events"),
        number("noted_ms", "end of the first cycle with the problem, or of the first one without it"),
        text("problem", "the problem in one sentence; counts in it are those of its first cycle"),
        text("status", "BEGUN: the problem began; ENDED: it is over"),
    ),
)
