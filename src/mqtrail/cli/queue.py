"""`send`, `consume`: send and consume messages from a shell."""

from __future__ import annotations

import asyncio
import base64
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .config import Config, Layer, assignments, load
from .exits import Exit, UsageError
from .options import ConfigFile, Json, Namesrv, duration_ms, moment_ms, queue_of
from .output import say, show_json, shown_body

if TYPE_CHECKING:
    from mqtrail.client import ConsumerConfig, Delivery
    from mqtrail.wire import MessageQueue


def send(
    topic: Annotated[str, typer.Argument(help="Topic to send to.")],
    body: Annotated[
        str | None, typer.Argument(help="Message body; '-' or omitted: read stdin, one message per line.")
    ] = None,
    tags: Annotated[str, typer.Option(help="Tag of the message.")] = "",
    key: Annotated[list[str] | None, typer.Option(help="Key of the message, for look-ups; repeatable.")] = None,
    prop: Annotated[
        list[str] | None,
        typer.Option("--property", metavar="NAME=VALUE", help="User property of the message; repeatable."),
    ] = None,
    delay_level: Annotated[int, typer.Option(min=0, help="Delay level of the broker; 0: no delay.")] = 0,
    delay: Annotated[str | None, typer.Option(help="Delay before delivery, for example 90s (brokers 5.x).")] = None,
    at: Annotated[
        str | None, typer.Option("--at", help="Time of delivery in UTC, for example 2026-11-21T10:00 (brokers 5.x).")
    ] = None,
    queue: Annotated[
        str | None, typer.Option("--queue", metavar="BROKER/QUEUE", help="Queue to send to, for example broker-a/0.")
    ] = None,
    order_key: Annotated[
        str | None, typer.Option(help="Send all messages with this order key to the same queue.")
    ] = None,
    group: Annotated[str, typer.Option(help="Producer group.")] = "mqtrail-cli",
    trace: Annotated[bool, typer.Option("--trace/--no-trace", help="Trace the send.")] = True,
    namesrv: Namesrv = None,
    config: ConfigFile = None,
    json: Json = False,
) -> int:
    """Send messages and print their ids. --json adds the recall handle of a delayed message."""
    from mqtrail.clock import now_ms
    from mqtrail.wire import Message

    settings = load(config)
    if sum(map(bool, (delay_level, delay, at))) > 1:
        raise UsageError("found more than one of --delay-level, --delay and --at, expected at most one")
    if queue and order_key:
        raise UsageError("found --queue and --order-key, expected at most one")
    delay_ms = duration_ms(delay, "--delay") if delay else 0
    deliver_at_ms = moment_ms(at, now_ms(), "--at") if at else 0
    properties = {name: str(value) for name, value in assignments(prop or [], "--property").items()}
    bodies = [body.encode()] if body not in (None, "-") else [line.rstrip(b"\n") for line in sys.stdin.buffer]
    messages = [
        Message(
            topic,
            one,
            tags=tags,
            keys=tuple(key or ()),
            delay_level=delay_level,
            delay_ms=delay_ms,
            deliver_at_ms=deliver_at_ms,
            properties=properties,
        )
        for one in bodies
    ]
    place = queue_of(topic, queue)
    return asyncio.run(_send(settings, namesrv, group, messages, place, order_key, trace, json))


async def _send(
    settings: Config,
    namesrv: str | None,
    group: str,
    messages: list[Any],
    queue: MessageQueue | None,
    order_key: str | None,
    trace: bool,
    json: bool,
) -> int:
    from mqtrail.client import Producer

    config = settings.client("producer")
    async with Producer(group, settings.namesrv(namesrv), trace=trace, config=config) as producer:
        for message in messages:
            sent = await producer.send(message, queue=queue, order_key=order_key)
            place = {"broker": sent.queue.broker_name, "queue": sent.queue.queue_id, "queue_offset": sent.queue_offset}
            if json:
                recall = {"recall_handle": sent.recall_handle} if sent.recall_handle else {}
                show_json({"msg_id": sent.msg_id, "status": sent.status.name, **place, **recall})
            else:
                say(f"{sent.msg_id}  {sent.status.name}  {place['broker']}/{place['queue']}@{place['queue_offset']}")
    return Exit.OK


def consume(
    topic: Annotated[str, typer.Argument(help="Topic to consume.")],
    group: Annotated[str, typer.Option(help="Consumer group to join; its offsets are committed.")] = "mqtrail-cli",
    tags: Annotated[str, typer.Option(help="Tag filter, for example 'PAID || REFUNDED'.")] = "*",
    count: Annotated[int, typer.Option(min=0, help="Stop after this many messages; 0: no limit.")] = 0,
    first: Annotated[
        bool, typer.Option("--from-first", help="Start a new group at the oldest message instead of at the end.")
    ] = False,
    wait_s: Annotated[
        float, typer.Option("--wait", min=0, help="Stop after this many seconds without a message; 0: never.")
    ] = 0,
    trace: Annotated[bool, typer.Option("--trace/--no-trace", help="Trace the deliveries.")] = False,
    namesrv: Namesrv = None,
    config: ConfigFile = None,
    json: Json = False,
) -> int:
    """Consume messages as a member of a consumer group, print and acknowledge them."""
    settings = load(config)
    layer = Layer("--from-first", {"consume_from": "CONSUME_FROM_FIRST_OFFSET"} if first else {})
    quieten()
    wanted: ConsumerConfig = settings.client("consumer", layer)
    return asyncio.run(_consume(settings.namesrv(namesrv), wanted, topic, group, tags, count, wait_s, trace, json))


def quieten(level: str = "warning") -> None:
    """Log only the client's events of this level and above, on standard error: standard output is for messages."""
    import structlog

    from mqtrail.net import log_processors

    structlog.configure(
        processors=log_processors(colors=sys.stderr.isatty()),
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )


async def _consume(
    namesrv: str,
    config: ConsumerConfig,
    topic: str,
    group: str,
    tags: str,
    count: int,
    wait_s: float,
    trace: bool,
    json: bool,
) -> int:
    from mqtrail.client import Consumer

    seen = 0
    async with Consumer(group, namesrv, {topic: tags}, trace=trace, config=config) as consumer:
        while not count or seen < count:
            try:
                async with asyncio.timeout(wait_s or None):
                    delivery = await anext(consumer)
            except (TimeoutError, StopAsyncIteration):
                break
            async with delivery.process():
                _print(delivery, json)
            seen += 1
    return Exit.OK if seen or not count else Exit.FAILED


def _print(delivery: Delivery, json: bool) -> None:
    message = delivery.message
    place = f"{message.broker_name}/{delivery.queue.topic}/{message.queue_id}@{message.queue_offset}"
    text = _text(message.body)
    if not json:
        keys = f"  keys {' '.join(message.keys)}" if message.keys else ""
        say(f"{message.msg_id}  {place}  tag {message.tags or '-'}{keys}  {shown_body(text or message.body)}")
        return
    body = {"body": text} if text is not None else {"body_base64": base64.b64encode(message.body).decode()}
    show_json(
        {
            "msg_id": message.msg_id,
            "topic": delivery.topic,
            "place": place,
            "tags": message.tags,
            "keys": list(message.keys),
            "attempt": delivery.attempt,
            "born_ms": message.born_timestamp_ms,
            "store_ms": message.store_timestamp_ms,
            "properties": message.properties,
            **body,
        }
    )


def _text(body: bytes) -> str | None:
    try:
        return body.decode()
    except UnicodeDecodeError:
        return None
