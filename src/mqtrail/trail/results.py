"""Relations derived from the evidence: silver attempts and indexes of bronze; gold trajectories and verdicts."""

from __future__ import annotations

from .columns import Column, Relation, number, text

ATTEMPTS = Relation(
    "attempts",
    "One row per attempt: a send, one try of a send, a stored copy, a delivery to a handler, its result, a send-back, "
    "a dead letter, the end of a transaction, a recall. "
    "Partial rows of one key are merged by the fold of each column; any value replaces NULL.",
    (
        text("cluster", "as in trace_events", "key"),
        number("publish_hour", "creation hour of its id, hours since the epoch (trail/hours.py); -1: unknown", "key"),
        text("msg_id", "the id in its source (for consumers that of a batch, which is resolved before gold)", "key"),
        text(
            "kind", "SEND, SEND_TRY, STORED, HANDLED, RESULT, SENT_BACK, DEAD_LETTERED, END_TRANSACTION, RECALL", "key"
        ),
        text("attempt_key", "distinguishes attempts of one kind; trail/attempts.py defines it per kind", "key"),
        text("group_name", "producer group of sends, otherwise consumer group"),
        text("topic", "business topic; '' if the records contain none"),
        text("stored_topic", "STORED: topic of its queue"),
        text("keys", "KEYS"),
        text("tags", "TAGS"),
        text("traceparent", "STORED: traceparent of message_meta"),
        number("start_ms", "start of the send or delivery; STORED: store time", "min"),
        number("end_ms", "acknowledgement of the send, or end of the handler"),
        number("cost_ms", "duration in its record (HANDLED: average of the listener's batch)"),
        number("succeeded", "1: a record reports success"),
        number("failed", "1: a record reports failure"),
        number("context_code", "HANDLED: contextCode"),
        text("outcome", "SEND_TRY: outcome; RESULT: result"),
        number("response_code", "SEND_TRY: the broker's code"),
        number("is_final", "SEND_TRY: 1: no try follows"),
        number("attempt_no", "SEND_TRY: from 1"),
        text("send_id", "SEND_TRY: the application's send"),
        text("request_id", "HANDLED, RESULT: the delivery; '' in HANDLED: attempt_key is the same"),
        number("retry_times", "HANDLED, RESULT: reconsumeTimes of the copy; STORED, SENT_BACK, DEAD_LETTERED: its own"),
        number("has_before", "HANDLED: 1: SubBefore was read"),
        number("has_after", "HANDLED: 1: SubAfter was read"),
        number("item_count", "SEND: number of messages in the batch"),
        text("batch_id", "STORED: the batch's id if it differs from the item's; '' otherwise"),
        text("stored_kind", "STORED: kind of the copy"),
        text("broker_name", "broker of the message"),
        number("queue_id", "its queue"),
        number("queue_offset", "its queue offset"),
        number("physical_offset", "its byte in the CommitLog"),
        text("offset_msg_id", "its offset id"),
        text("store_host", "broker address in the record"),
        text("origin_msg_id", "ORIGIN_MESSAGE_ID"),
        text("real_topic", "STORED: target topic of a waiting copy"),
        number("body_size", "bytes of the body"),
        number("body_crc", "STORED: bodyCRC"),
        number("born_ms", "STORED: bornTimestamp"),
        number("due_ms", "STORED, SENT_BACK: when it is due"),
        number("delay_level", "STORED, SENT_BACK: level"),
        number("delay_ms", "STORED: delay of the level"),
        text("trace_on", "STORED: TRACE_ON"),
        text("sharding_key", "STORED: __SHARDINGKEY"),
        text("properties", "STORED: properties of message_meta"),
        text("cause", "DEAD_LETTERED: cause"),
        text("detail", "RESULT: short error text"),
        text("client_host", "ip:port that sent the trace message; STORED: born host"),
        text("client_id", "client id, if known"),
        number("seen_ms", "when its latest record was stored in the trace topic, or read"),
        text(
            "evidence",
            "one of its sources: trace:broker/queue@offset#record or message:broker/topic/queue@offset",
            "min",
        ),
    ),
)

CLIENT_RECORDS = Relation(
    "client_records",
    "One row a trace record about a client: TraceBatch, TraceLoss, TraceEnd, OffsetCommit. TraceBatches of one start "
    "that follow each other without a hole, and without records dropped in between, become one row; of OffsetCommits "
    "that every judgement has seen, the first and the last of a queue are kept.",
    (
        text("cluster", "as in trace_events"),
        text("record_type", "TraceBatch, TraceLoss, TraceEnd or OffsetCommit"),
        number("trace_store_ms", "when the broker stored the trace message, the last one of a row"),
        number("event_ms", "timeStamp of the record, the last one of a row"),
        text("client_id", "clientId"),
        text("start_id", "startId of TraceBatch, TraceLoss and TraceEnd"),
        number("first_sequence", "TraceBatch: first sequence of the row"),
        number("sequence", "TraceBatch: last sequence of the row"),
        number("first_ms", "TraceBatch: timeStamp of the first"),
        text("trace_born_host", "ip:port of the connection that sent the trace message, the first one of a row"),
        number("dropped_total", "droppedTotal of TraceBatch"),
        number("from_ms", "fromMs of TraceLoss"),
        number("to_ms", "toMs of TraceLoss"),
        number("lost_count", "count of TraceLoss"),
        text("reason", "reason of TraceLoss"),
        text("group_name", "consumer group of OffsetCommit and TraceEnd"),
        text("topic", "topic of OffsetCommit"),
        text("store_broker_name", "brokerName of OffsetCommit"),
        number("store_queue_id", "queueId of OffsetCommit"),
        number("consumer_offset", "consumerOffset of OffsetCommit"),
    ),
)

QUEUE_SPANS = Relation(
    "queue_spans",
    "Where message_meta has a message: one row a queue and minute of store time, or hour of older ones, in what was "
    "read at once. Rows of one queue can overlap; an offset between those of a row need not exist.",
    (
        text("cluster", "as in trace_events"),
        text("topic", "topic"),
        text("broker_name", "broker"),
        number("queue_id", "queue"),
        number("first_offset", "least queue_offset"),
        number("last_offset", "greatest queue_offset"),
        number("first_ms", "least store_ms"),
        number("last_ms", "greatest store_ms"),
    ),
)

CLOCK_BOUNDS = Relation(
    "clock_bounds",
    "Bounds of the clock of a host minus the clock of a broker, in windows of 5 min of the broker's time, of what was "
    "read or judged at once. Rows of one key merge: the greatest low_ms, the least high_ms. Key: cluster, host, "
    "broker_name, window_ms.",
    (
        text("cluster", "as in trace_events"),
        text("host", "IP address of a client's host, as the broker sees it or as in client ids"),
        text("broker_name", "broker"),
        number("window_ms", "begin of the window"),
        number("low_ms", "least difference that sends and trace messages allow; NULL: none"),
        number("high_ms", "greatest difference that answers and deliveries allow; NULL: none"),
    ),
)

EVENT_FIELDS = (
    number("at_ms", "time of the event; 0 if unknown"),
    text("kind", "kind of the attempt"),
    text("group_name", "group"),
    text("outcome", "OK, FAILED, OPEN, the kind of a stored copy, or the outcome of the record"),
    text("place", "broker/topic/queue@offset, client or store host"),
    text("detail", "error text or cause"),
    text("evidence", "as in attempts"),
    number("duration_ms", "duration; NULL if unknown"),
    number("retry_times", "reconsumeTimes; NULL if it has none"),
)
"""Fields of one event of a trajectory. The column `events` is a list of events, sorted by these fields."""

PUBLISHED_FROM = ("send_start_ms", "stored_ms", "visible_ms", "last_event_ms")
"""Columns of TRAJECTORIES: the first one that is known is the time at which a message was published."""

TRAJECTORIES = Relation(
    "trajectories",
    "One row per message and judgement: its history as of as_of_ms. The row with the latest as_of_ms is current. "
    "knowledge '' removes the message: its id was that of a batch. Key: cluster, msg_id, as_of_ms.",
    (
        text("cluster", "as in trace_events"),
        number("publish_hour", "as in attempts"),
        text("msg_id", "the message's own id"),
        text("batch_id", "the batch it was sent in; '' if none"),
        number("as_of_ms", "time of the judgement"),
        text("topic", "business topic"),
        text("keys", "KEYS"),
        text("tags", "TAGS"),
        text("traceparent", "context of OpenTelemetry that a copy carries (W3C traceparent); '' if none was read"),
        text("producer_group", "producer group; '' without a send record"),
        text("producer_host", "ip:port of the producer"),
        text("broker_name", "broker of the first visible copy; '' if none was read"),
        number("queue_id", "its queue"),
        number("queue_offset", "its queue offset"),
        text("offset_msg_id", "its offset id, or the one in the answer to the send"),
        number("body_size", "bytes of the body as stored, else as sent"),
        number("send_start_ms", "time of the first try of the first send"),
        number("acked_ms", "time of the first acknowledgement"),
        number("send_ms", "longest time from the first try of a send to its acknowledgement"),
        number("send_count", "number of sends of the application with a record"),
        number("try_count", "highest number of tries of one send"),
        number("born_ms", "bornTimestamp"),
        number("stored_ms", "time of the first stored copy, including waiting copies"),
        number("due_ms", "due time by delay level or timer; NULL: not delayed"),
        number("visible_ms", "time of the first stored copy in its own topic"),
        number("copy_count", "number of stored copies in its own topic"),
        number("group_count", "number of judged groups"),
        number("last_event_ms", "time of the latest event of any kind"),
        number("seen_ms", "latest evidence: store time of the trace, or time of reading"),
        text("send_codes", "codes about sending, joined by commas"),
        text("message_codes", "codes about the message, joined by commas"),
        text("group_codes", "distinct codes of its groups, joined by commas, for searches"),
        text("knowledge", "COMPLETE, INCOMPLETE or UNKNOWN"),
        text("reasons", "what is missing and why: NAME(parameter=value,…), joined by ';'"),
        number("is_open", "1: a later judgement may differ without new records"),
        Column("events", "events", "every attempt: a list of EVENT_FIELDS"),
    ),
)

VERDICTS = Relation(
    "verdicts",
    "One row per message, group and judgement. All groups of a message are judged together; the rows with the latest "
    "as_of_ms are current. group_name '': no group is left. Key: cluster, msg_id, group_name, as_of_ms. total_ms = "
    "to_stored_ms + delay_ms + to_delivered_ms + retry_ms + handler_ms; parts may be negative if the clocks of hosts "
    "differ.",
    (
        text("cluster", "as in trace_events"),
        number("publish_hour", "as in attempts"),
        text("msg_id", "the message's own id"),
        text("group_name", "consumer group"),
        text("topic", "business topic"),
        number("as_of_ms", "time of the judgement"),
        text("state", "the state of the group"),
        text("codes", "the state, then additional codes, joined by commas"),
        text("reasons", "why UNKNOWN, what is missing, what was found: NAME(parameter=value,…), joined by ';'"),
        number("is_open", "1: a later judgement may differ without new records"),
        text("message_model", "CLUSTERING, BROADCASTING or ''"),
        number("delivery_count", "number of deliveries with a record"),
        number("success_count", "number of deliveries that succeeded"),
        number("failure_count", "number of deliveries that failed"),
        number("retry_times", "highest reconsumeTimes in the records"),
        number("first_delivered_ms", "time of the first delivery"),
        number("last_delivered_ms", "time of the latest delivery"),
        number("success_start_ms", "start of the first successful delivery"),
        number("done_ms", "end of the first successful delivery"),
        number("retry_due_ms", "due time of the latest retry copy"),
        number("dead_ms", "when it was stored in %DLQ%"),
        text("dead_cause", "ATTEMPTS_EXHAUSTED, BY_HANDLER, ORDERED_GIVE_UP or '' (unknown)"),
        text("detail", "error text of the latest failure"),
        text("client", "client id, else ip:port, of the latest delivery"),
        number("visible_ms", "when the message became visible"),
        number("to_stored_ms", "send start → stored"),
        number("delay_ms", "stored → visible (delay level or timer)"),
        number("to_delivered_ms", "visible → first delivery"),
        number("retry_ms", "first delivery → first successful delivery"),
        number("handler_ms", "start → end of the first successful delivery"),
        number("total_ms", "send start → end of the first successful delivery"),
        number("handler_cost_ms", "duration of the handler in its record; average of the listener's batch"),
    ),
)

LATENCY_MINUTE = Relation(
    "latency_minute",
    "Logarithmic histograms, one row per bucket; rows can be summed. bucket = floor(log2(ms + 1) * 8), 9 % wide. "
    "Negative times are in bucket -1.",
    (
        text("cluster", "as in trace_events"),
        number("publish_hour", "as in attempts"),
        number("minute_ms", "start of the minute in which the segment began"),
        text("topic", "business topic"),
        text("broker_name", "broker of the visible copy; '' if unknown"),
        text("group_name", "consumer group; '' for send"),
        text("segment", "send, to_stored, delay, to_delivered, retry, handler, total"),
        number("bucket", "bucket of the histogram"),
        number("message_count", "change of the number of messages in the bucket: sum all rows of a bucket"),
    ),
)

LAG = Relation(
    "lag",
    "One row per queue and group in one sample. Key: cluster, sampled_ms, group_name, topic, broker_name, queue_id.",
    (
        text("cluster", "as in trace_events"),
        number("sampled_ms", "time of the sample"),
        text("group_name", "consumer group"),
        text("topic", "topic"),
        text("broker_name", "broker"),
        number("queue_id", "queue"),
        number("consumer_offset", "next queue_offset that the group will read; NULL: it has no committed offset"),
        number("min_offset", "first kept queue_offset"),
        number("max_offset", "next queue_offset to be written"),
        number(
            "lag_count",
            "number of kept messages that the group has not read; NULL: its offset is past the end, or it has none, "
            "which in a retry topic means the first message",
        ),
        number("lag_ms", "age of the oldest of them at the sample; 0 without lag, NULL if unknown"),
    ),
)

KEY_INDEX = Relation(
    "key_index",
    "One row per message and blank-separated token of KEYS, one for the id of its batch and one for its trace id of "
    "OpenTelemetry; sum the row_count of all rows of a key. Key: cluster, key_token, msg_id.",
    (
        text("cluster", "as in trace_events"),
        number("publish_hour", "as in attempts"),
        text("key_token", "one token of KEYS, the id of the batch, or the trace id of OpenTelemetry"),
        text("msg_id", "the message's own id"),
        text("topic", "business topic"),
        number("row_count", "1, or -1 if a later judgement removed the token: read with HAVING sum(row_count) > 0"),
    ),
)

OPEN_IDS = Relation(
    "open_ids",
    "One row per message and group whose judgement can change without new records of the message, with what it waits "
    "for; group_name '' is the message itself. All rows of an id are written together; those with the latest as_of_ms "
    "are current. An id that waits for nothing has one row with the state GONE. Key: cluster, msg_id, group_name, "
    "as_of_ms.",
    (
        text("cluster", "as in trace_events"),
        number("publish_hour", "as in attempts"),
        text("msg_id", "the message's own id"),
        text("group_name", "consumer group; '' for the message"),
        text("topic", "business topic"),
        number("as_of_ms", "time of the judgement"),
        text(
            "state",
            "state of the group, without losses of trace records; '' in a row of the message, TX: of its transaction, "
            "GONE: settled",
        ),
        text("broker_name", "broker of the message that the group's offset must pass"),
        number("queue_id", "its queue"),
        number("queue_offset", "its queue offset; NULL: the judgement does not depend on the offset"),
        text("retry_broker", "broker of the copy in the group's retry topic"),
        number("retry_queue", "its queue"),
        number("retry_offset", "its queue offset; NULL: the judgement does not depend on the offset"),
        text("holder", "client with the open delivery: its id, or ip: and address; '' if none"),
        number("sample_ms", "a sample of offsets or clients at this time or later can change it; NULL: none can"),
        number("look_ms", "the next time at which the passing of time can change it; NULL: none"),
    ),
)

GROUP_FOLDS = Relation(
    "group_folds",
    "Facts about groups and hosts from all messages, as signed counts: sum all rows of a key. A judgement subtracts "
    "the earlier counts of its messages. Key: cluster, kind, group_name, name, value.",
    (
        text("cluster", "as in trace_events"),
        text(
            "kind",
            "SPAN: ended deliveries that took `value` ms. HANDED: deliveries to client `name`. CHAIN: messages that "
            "reached `value` attempts. READ: messages of topic `name` with a delivery or retry copy in hour `value` "
            "since the epoch. HOST: traced messages of producer address `name`",
        ),
        text("group_name", "consumer group; '' for HOST"),
        text("name", "client id, ip:port or topic; '' for SPAN and CHAIN"),
        number("value", "ms, attempts or hours; 0 for HANDED and HOST"),
        number("row_count", "change of the count"),
    ),
)

INDEXES = (CLIENT_RECORDS, QUEUE_SPANS, CLOCK_BOUNDS)
"""Relations that say in few rows what judgements and answers need of bronze."""

RESULTS = (ATTEMPTS, *INDEXES, TRAJECTORIES, VERDICTS, LATENCY_MINUTE, LAG, KEY_INDEX, OPEN_IDS, GROUP_FOLDS)
"""Every derived relation, silver first."""
