"""Relations derived from the evidence: silver attempts; gold trajectories, verdicts, latency, lag and keys."""

from __future__ import annotations

from .columns import Column, Relation, number, text

ATTEMPTS = Relation(
    "attempts",
    "One row an attempt: a send, one try of a send, a stored copy, a hand-over to a handler, its result, a send-back, "
    "a dead letter, the end of a transaction, a recall. "
    "Partial rows of one key merge by each column's fold; NULL loses.",
    (
        text("cluster", "as in trace_events", "key"),
        number("publish_hour", "hours since the epoch when its id was made (publish_hour_select); -1: unknown", "key"),
        text("msg_id", "as its source names it (a batch id on consumer sides: resolved on the way to gold)", "key"),
        text(
            "kind", "SEND, SEND_TRY, STORED, HANDLED, RESULT, SENT_BACK, DEAD_LETTERED, END_TRANSACTION, RECALL", "key"
        ),
        text("attempt_key", "distinguishes attempts of one kind: see trail.attempts", "key"),
        text("group_name", "producer group of sends, consumer group elsewhere"),
        text("topic", "business topic; '' where the records name none"),
        text("stored_topic", "STORED: topic of its queue"),
        text("keys", "KEYS"),
        text("tags", "TAGS"),
        number("start_ms", "began: send, hand-over; STORED: store time", "min"),
        number("end_ms", "ended: acknowledged, handler done"),
        number("cost_ms", "duration from its record (HANDLED: a listener batch's average)"),
        number("succeeded", "1 when a record reports success"),
        number("failed", "1 when a record reports failure"),
        number("context_code", "HANDLED: contextCode"),
        text("outcome", "SEND_TRY: outcome; RESULT: result"),
        number("response_code", "SEND_TRY: the broker's code"),
        number("is_final", "SEND_TRY: 1 when nothing more follows"),
        number("attempt_no", "SEND_TRY: from 1"),
        text("send_id", "SEND_TRY: the application's send"),
        text("request_id", "HANDLED, RESULT: the hand-over"),
        number("retry_times", "HANDLED, RESULT: reconsumeTimes of the copy; STORED, SENT_BACK, DEAD_LETTERED: its own"),
        number("has_before", "HANDLED: 1 when SubBefore was read"),
        number("has_after", "HANDLED: 1 when SubAfter was read"),
        number("item_count", "SEND: messages in the batch"),
        text("batch_id", "STORED: the batch's id where it differs from the item's; '' otherwise"),
        text("stored_kind", "STORED: kind of the copy"),
        text("broker_name", "broker of the message"),
        number("queue_id", "its queue"),
        number("queue_offset", "its place"),
        number("physical_offset", "its CommitLog byte"),
        text("offset_msg_id", "its offset id"),
        text("store_host", "broker address as the record names it"),
        text("origin_msg_id", "ORIGIN_MESSAGE_ID"),
        text("real_topic", "STORED: where a waiting copy goes"),
        number("body_size", "bytes of the body"),
        number("body_crc", "STORED: bodyCRC"),
        number("born_ms", "STORED: bornTimestamp"),
        number("due_ms", "STORED, SENT_BACK: when it is due"),
        number("delay_level", "STORED, SENT_BACK: level"),
        number("delay_ms", "STORED: what the level means"),
        text("trace_on", "STORED: TRACE_ON"),
        text("cause", "DEAD_LETTERED: cause"),
        text("detail", "RESULT: short error text"),
        text("client_host", "ip:port the trace message came from; STORED: born host"),
        text("client_id", "client id where one is known"),
        number("seen_ms", "when the latest record of it was stored on the trace topic, or read"),
        text(
            "evidence",
            "one place to look: trace:broker/queue@offset#record or message:broker/topic/queue@offset",
            "min",
        ),
    ),
)

EVENT_FIELDS = (
    number("at_ms", "when; 0 if unknown"),
    text("kind", "kind of the attempt"),
    text("group_name", "group"),
    text("outcome", "OK, FAILED, OPEN, the kind of a stored copy, or the outcome of the record"),
    text("place", "broker/topic/queue@offset, client or store host"),
    text("detail", "error text or cause"),
    text("evidence", "as in attempts"),
    number("duration_ms", "how long; NULL if unknown"),
    number("retry_times", "reconsumeTimes; NULL elsewhere"),
)
"""Fields of one event of a trajectory; `events` is a list of these, ordered by them."""

TRAJECTORIES = Relation(
    "trajectories",
    "One row a message and judgement: where it went, as of as_of_ms. The latest as_of_ms counts. A row with knowledge "
    "'' says that the message is no longer one (a batch's id). Key: cluster, msg_id, as_of_ms.",
    (
        text("cluster", "as in trace_events"),
        number("publish_hour", "as in attempts"),
        text("msg_id", "the message's own id"),
        text("batch_id", "the batch it was sent in; '' if none"),
        number("as_of_ms", "instant of the judgement"),
        text("topic", "business topic"),
        text("keys", "KEYS"),
        text("tags", "TAGS"),
        text("producer_group", "producer group; '' without a send record"),
        text("producer_host", "ip:port of the producer"),
        text("broker_name", "broker of the first visible copy; '' if none was read"),
        number("queue_id", "its queue"),
        number("queue_offset", "its place"),
        text("offset_msg_id", "its offset id, or the one the send was answered with"),
        number("body_size", "bytes of the body as stored, else as sent"),
        number("send_start_ms", "first try of the first send"),
        number("acked_ms", "first acknowledgement"),
        number("send_ms", "longest acknowledged send: first try to acknowledgement"),
        number("send_count", "sends of the application that left a record"),
        number("try_count", "tries of the send with the most tries"),
        number("born_ms", "bornTimestamp"),
        number("stored_ms", "first stored, also when it only waits"),
        number("due_ms", "due by delay level or timer; NULL when not delayed"),
        number("visible_ms", "first stored in its own topic"),
        number("copy_count", "stored copies in its own topic"),
        number("group_count", "groups judged"),
        number("last_event_ms", "latest event of any kind"),
        number("seen_ms", "latest evidence, store time of the trace or time of reading"),
        text("send_codes", "comma-joined codes about sending"),
        text("message_codes", "comma-joined codes about the message"),
        text("group_codes", "comma-joined distinct codes of its groups, for searching"),
        text("knowledge", "COMPLETE, INCOMPLETE or UNKNOWN"),
        text("reasons", "what is missing and why, ';'-joined NAME(parameter=value,…)"),
        number("is_open", "1 when a later judgement may differ without new records"),
        Column("events", "events", "every attempt, as EVENT_FIELDS"),
    ),
)

VERDICTS = Relation(
    "verdicts",
    "One row a message, group and judgement. All verdicts of a message are judged together; those with the latest "
    "as_of_ms count. group_name '': no group is left. Key: cluster, msg_id, group_name, as_of_ms. The split adds up: "
    "total_ms = to_stored_ms + delay_ms + to_delivered_ms + retry_ms + handler_ms; parts may be negative where clocks "
    "of hosts differ.",
    (
        text("cluster", "as in trace_events"),
        number("publish_hour", "as in attempts"),
        text("msg_id", "the message's own id"),
        text("group_name", "consumer group"),
        text("topic", "business topic"),
        number("as_of_ms", "instant of the judgement"),
        text("state", "the one state of the group"),
        text("codes", "comma-joined: the state first, then additional codes"),
        text("reasons", "';'-joined NAME(parameter=value,…): why UNKNOWN, what lacks, what was found"),
        number("is_open", "1 when a later judgement may differ without new records"),
        text("message_model", "CLUSTERING, BROADCASTING or ''"),
        number("delivery_count", "hand-overs that left a record"),
        number("success_count", "hand-overs that succeeded"),
        number("failure_count", "hand-overs that failed"),
        number("retry_times", "highest reconsumeTimes seen"),
        number("first_delivered_ms", "first hand-over"),
        number("last_delivered_ms", "latest hand-over"),
        number("success_start_ms", "hand-over of the first success"),
        number("done_ms", "its end"),
        number("retry_due_ms", "when the latest retry copy is or was due"),
        number("dead_ms", "when it was stored in %DLQ%"),
        text("dead_cause", "ATTEMPTS_EXHAUSTED, BY_HANDLER, ORDERED_GIVE_UP or '' (unknown)"),
        text("detail", "error text of the latest failure"),
        text("client", "client id, else ip:port, of the latest hand-over"),
        number("visible_ms", "when the message became visible, the start of waiting"),
        number("to_stored_ms", "send start → stored"),
        number("delay_ms", "stored → visible (delay level or timer)"),
        number("to_delivered_ms", "visible → first hand-over"),
        number("retry_ms", "first hand-over → hand-over that succeeded"),
        number("handler_ms", "that hand-over → done"),
        number("total_ms", "send start → done"),
        number("handler_cost_ms", "duration of the handler from its record; a listener batch's average"),
    ),
)

LATENCY_MINUTE = Relation(
    "latency_minute",
    "Log histograms, one row a bucket: they sum. bucket = floor(log2(ms + 1) * 8): 9 % wide, exact counts. Negative "
    "times count in bucket -1.",
    (
        text("cluster", "as in trace_events"),
        number("publish_hour", "as in attempts"),
        number("minute_ms", "start of the minute in which the segment began"),
        text("topic", "business topic"),
        text("broker_name", "broker of the visible copy; '' if unknown"),
        text("group_name", "consumer group; '' for send"),
        text("segment", "send, to_stored, delay, to_delivered, retry, handler, total"),
        number("bucket", "of the log histogram"),
        number("message_count", "messages in it, signed: rows of one bucket add up"),
    ),
)

LAG = Relation(
    "lag",
    "One row a queue and group in one sample. Key: cluster, sampled_ms, group_name, topic, broker_name, queue_id.",
    (
        text("cluster", "as in trace_events"),
        number("sampled_ms", "time of the sample"),
        text("group_name", "consumer group"),
        text("topic", "topic"),
        text("broker_name", "broker"),
        number("queue_id", "queue"),
        number("consumer_offset", "next queue_offset the group will read"),
        number("min_offset", "first kept"),
        number("max_offset", "next to be written"),
        number("lag_count", "messages not read, of those still kept"),
        number("lag_ms", "age of the oldest of them at the sample; 0 without lag, NULL when its copy was not read"),
    ),
)

KEY_INDEX = Relation(
    "key_index",
    "One row a blank-separated token of KEYS and a message. Rows of one token and message add up. Key: cluster, "
    "key_token, msg_id.",
    (
        text("cluster", "as in trace_events"),
        number("publish_hour", "as in attempts"),
        text("key_token", "one token of KEYS"),
        text("msg_id", "the message's own id"),
        text("topic", "business topic"),
        number(
            "row_count", "1, or -1 where a later judgement took the token away: read with HAVING sum(row_count) > 0"
        ),
    ),
)

OPEN_IDS = Relation(
    "open_ids",
    "One row a message and group whose judgement can change without new records of the message, and what it waits for; "
    "group_name '' is the message itself. All rows of an id are written together; the latest as_of_ms counts, and an "
    "id that waits for nothing any more has one row that says so. Key: cluster, msg_id, group_name, as_of_ms.",
    (
        text("cluster", "as in trace_events"),
        number("publish_hour", "as in attempts"),
        text("msg_id", "the message's own id"),
        text("group_name", "consumer group; '' for the message"),
        text("topic", "business topic"),
        number("as_of_ms", "instant of the judgement"),
        text("state", "state of the group before losses are looked at; '' in a row of the message, GONE: settled"),
        text("broker_name", "broker of the place that the group's offset has to pass"),
        number("queue_id", "its queue"),
        number("queue_offset", "its place; NULL: no offset matters"),
        text("retry_broker", "the same of the copy in the group's retry topic"),
        number("retry_queue", "its queue"),
        number("retry_offset", "its place; NULL: no offset matters"),
        text("holder", "client that holds the open hand-over: id, or ip: and address; '' if none"),
        number("sample_ms", "a sample of its offsets or clients of this time or later can change it; NULL: none can"),
        number("look_ms", "the next instant at which time alone can change it; NULL: none"),
    ),
)

GROUP_FOLDS = Relation(
    "group_folds",
    "What all messages together show of groups and hosts, as signed counts: rows add up, and a judgement subtracts "
    "what it counted of a message before. Key: cluster, kind, group_name, name, value.",
    (
        text("cluster", "as in trace_events"),
        text(
            "kind",
            "SPAN: ended hand-overs that took `value` ms. HANDED: hand-overs to client `name`. CHAIN: messages that "
            "reached `value` attempts. HOST: traced messages of producer address `name`",
        ),
        text("group_name", "consumer group; '' for HOST"),
        text("name", "client id or ip:port; '' elsewhere"),
        number("value", "ms or attempts; 0 elsewhere"),
        number("row_count", "how many, signed"),
    ),
)

RESULTS = (ATTEMPTS, TRAJECTORIES, VERDICTS, LATENCY_MINUTE, LAG, KEY_INDEX, OPEN_IDS, GROUP_FOLDS)
"""Every derived relation, silver first."""
