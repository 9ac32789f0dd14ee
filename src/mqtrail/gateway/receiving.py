"""Receiving: POP requests. The broker keeps who has which message, until when, and what is delivered again.

A message whose deliveries exceed the retries of its group becomes a dead letter here, as in RocketMQ's proxy: the
broker's POP itself delivers without end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Final

import msgspec

from mqtrail.clock import now_ms
from mqtrail.wire import (
    ALL_QUEUES,
    INIT_FROM_MAX,
    INIT_FROM_MIN,
    PROPERTY_KEYS,
    PROPERTY_MSG_REGION,
    PROPERTY_POP_CK,
    PROPERTY_TRACE_ON,
    REGION_DEFAULT,
    RESERVED_PROPERTIES,
    TRACE_DETAIL_LENGTH_MAX,
    AckHeader,
    ChangeInvisibleHeader,
    ChangeInvisibleResponseHeader,
    ConsumeReturnType,
    Host,
    MessageExt,
    MQError,
    PopHandle,
    PopHeader,
    PopResponseHeader,
    RemotingCommand,
    RequestCode,
    ResponseCode,
    SendBackHeader,
    SubAfter,
    SubBefore,
    SubResult,
    SubscriptionGroupConfig,
    cut_records,
    open_records,
    refusal_for,
    topic_of_marker,
    with_handles,
)

from .caller import ASK_TIMEOUT_MS, Caller, problem_of_error, succeed
from .config import CLIENT_ID, DoorConfig
from .member_names import origin_of
from .problems import Problem
from .publishing import PROPERTY_IDEMPOTENCY, TOKEN_PREFIX
from .receipts import Receipt
from .shapes import Receive, Received, ReceivedMessages, Settled, body_of, retry_delay_s
from .tracer import Tracer

FULL_PAUSE_MS: Final = 1_000  # slow_down_ms of a receive that could not wait


class Receiver:
    """Serves receive, ack, nack and extend. next_id: makes request ids. broker_name: of the broker behind the door."""

    def __init__(
        self, caller: Caller, tracer: Tracer, next_id: Callable[[], str], broker_name: str, config: DoorConfig
    ) -> None:
        self._caller = caller
        self._tracer = tracer
        self._next_id = next_id
        self._broker_name = broker_name
        self._config = config
        self._shares = config.shares(config.receives_max)
        self.waiting_count = 0

    async def receive(self, group: str, wanted: Receive, host: Host) -> ReceivedMessages:
        """Take messages for a group, or wait for the first. Problem. If the task is cancelled, nothing is taken."""
        may_wait = self.waiting_count < self._config.receives_max and self._shares.has_room(host.ip)
        wait_ms = int(wanted.wait_s * 1000) if may_wait else 0
        self.waiting_count += 1
        self._shares.add(host.ip)
        try:
            deadline_ms = now_ms() + wait_ms
            while True:
                reply = await self._pop(group, wanted, max(0, deadline_ms - now_ms()), host)
                if reply.code in (ResponseCode.POLLING_FULL, ResponseCode.POLLING_TIMEOUT, ResponseCode.PULL_NOT_FOUND):
                    is_full = reply.code == ResponseCode.POLLING_FULL or (wanted.wait_s > 0 and not may_wait)
                    return ReceivedMessages([], FULL_PAUSE_MS if is_full else 0)
                if reply.code != ResponseCode.SUCCESS:
                    raise refusal_for(reply.code, reply.remark)
                messages = await self._deliverable(group, self._popped(reply, wanted.topic), host)
                if messages:
                    return ReceivedMessages(self._received(group, messages, wanted.topic), 0)
        except (MQError, TimeoutError) as error:
            raise problem_of_error(error) from error
        finally:
            self.waiting_count -= 1
            self._shares.give_back(host.ip)

    async def _pop(self, group: str, wanted: Receive, wait_ms: int, host: Host) -> RemotingCommand:
        header = PopHeader(
            consumer_group=group,
            topic=wanted.topic,
            queue_id=ALL_QUEUES,
            max_msg_nums=wanted.max,
            invisible_time=int(wanted.invisible_s * 1000),
            poll_time=wait_ms,
            born_time=now_ms(),
            init_mode=INIT_FROM_MIN if wanted.from_first else INIT_FROM_MAX,
            exp_type="TAG",
            exp=wanted.tag or "*",
        )
        command = RemotingCommand(RequestCode.POP_MESSAGE, header.to_ext())
        return await self._caller.ask_held(command, host, wait_ms + ASK_TIMEOUT_MS)

    def _popped(self, reply: RemotingCommand, topic: str) -> list[MessageExt]:
        header = PopResponseHeader.from_ext(reply.ext)
        opened = list(open_records(cut_records(reply.body), self._broker_name))
        return [message for _, message in with_handles(opened, header, topic, self._broker_name)]

    async def _deliverable(self, group: str, messages: Sequence[MessageExt], host: Host) -> list[MessageExt]:
        """Return messages with deliveries left; make the others dead letters."""
        if not any(message.reconsume_times for message in messages):
            return list(messages)
        reply = await succeed(
            self._caller, RemotingCommand(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, {"group": group}), host
        )
        config = SubscriptionGroupConfig.decode(reply.body)
        kept = []
        for message in messages:
            if config.gives_up(message.reconsume_times):
                with suppress(MQError, TimeoutError):
                    await self._dead_letter(group, message, host)
            else:
                kept.append(message)
        return kept

    async def _dead_letter(self, group: str, message: MessageExt, host: Host) -> None:
        """Move a message to the dead-letter topic. If that fails, it is delivered again after its invisible time.

        Dead letters of a member are kept with those of its group: its own group ends with it.
        """
        header = SendBackHeader(
            offset=message.physical_offset,
            group=origin_of(group),
            delay_level=-1,
            origin_msg_id=message.msg_id,
            origin_topic=message.topic,
        )
        await succeed(self._caller, RemotingCommand(RequestCode.CONSUMER_SEND_MSG_BACK, header.to_ext()), host)
        await self._acknowledge(group, message.topic, PopHandle.decode(message.properties[PROPERTY_POP_CK]), host)

    def _received(self, group: str, messages: Sequence[MessageExt], topic: str) -> list[Received]:
        request_id, started_ms = self._next_id(), now_ms()
        found = []
        for message in messages:
            properties = message.properties
            handle = PopHandle.decode(properties[PROPERTY_POP_CK])
            is_traced = properties.get(PROPERTY_TRACE_ON) != "false"
            keys = properties.get(PROPERTY_KEYS, "")
            receipt = Receipt(
                topic=topic,
                handle_text=handle.encode(),
                msg_id=message.msg_id,
                keys=keys,
                times=message.reconsume_times,
                request_id=request_id,
                started_ms=started_ms,
                region=properties.get(PROPERTY_MSG_REGION, REGION_DEFAULT) if is_traced else "",
            )
            text, encoded = body_of(message)
            found.append(
                Received(
                    receipt=receipt.encode(),
                    id=message.msg_id,
                    topic=topic,
                    queue=message.queue_id,
                    offset=message.queue_offset,
                    attempt=message.reconsume_times + 1,
                    born_ms=message.born_timestamp_ms,
                    stored_ms=message.store_timestamp_ms,
                    visible_again_ms=handle.pop_time_ms + handle.invisible_ms,
                    key=" ".join(word for word in keys.split() if not word.startswith(TOKEN_PREFIX)),
                    tag=message.tags,
                    headers={name: value for name, value in properties.items() if _is_of_application(name)},
                    body=text,
                    body_base64=encoded,
                )
            )
            if is_traced:
                self._tracer.record(
                    SubBefore(
                        time_stamp=started_ms,
                        region_id=receipt.region,
                        group_name=group,
                        request_id=request_id,
                        msg_id=message.msg_id,
                        retry_times=message.reconsume_times,
                        keys=keys,
                    )
                )
        return found

    # Settling.

    async def ack(self, group: str, receipts: Sequence[str], host: Host) -> list[Settled]:
        """Acknowledge messages. Problem: none of them could be."""

        async def act(receipt: Receipt, text: str) -> str:
            await self._acknowledge(group, receipt.topic, receipt.handle, host)
            self._trace_end(group, receipt, ConsumeReturnType.SUCCESS, "")
            return text

        return await _settled(receipts, act)

    async def nack(
        self, group: str, receipts: Sequence[str], delay_s: float | None, reason: str, host: Host
    ) -> list[Settled]:
        """Have messages delivered again after delay_s; None: by the number of their deliveries. Problem."""

        async def act(receipt: Receipt, text: str) -> str:
            delay_ms = int(1000 * (retry_delay_s(receipt.times + 1) if delay_s is None else delay_s))
            await self._hide(group, receipt, delay_ms, host)
            self._trace_end(group, receipt, ConsumeReturnType.FAILED, reason)
            return text

        return await _settled(receipts, act)

    async def extend(self, group: str, receipts: Sequence[str], invisible_s: float, host: Host) -> list[Settled]:
        """Give messages more time; the outcomes have the new receipts. Problem."""

        async def act(receipt: Receipt, text: str) -> str:
            handle = await self._hide(group, receipt, int(1000 * invisible_s), host)
            return msgspec.structs.replace(receipt, handle_text=handle.encode()).encode()

        return await _settled(receipts, act)

    async def _acknowledge(self, group: str, topic: str, handle: PopHandle, host: Host) -> None:
        assert handle.queue_offset is not None
        header = AckHeader(
            consumer_group=group,
            topic=topic_of_marker(handle.marker, topic, group),
            queue_id=handle.queue_id,
            extra_info=handle.encode(),
            offset=handle.queue_offset,
        )
        await succeed(self._caller, RemotingCommand(RequestCode.ACK_MESSAGE, header.to_ext()), host)

    async def _hide(self, group: str, receipt: Receipt, invisible_ms: int, host: Host) -> PopHandle:
        """Have a message delivered again after invisible_ms; return its new handle."""
        handle = receipt.handle
        assert handle.queue_offset is not None
        header = ChangeInvisibleHeader(
            consumer_group=group,
            topic=topic_of_marker(handle.marker, receipt.topic, group),
            queue_id=handle.queue_id,
            extra_info=handle.encode(),
            offset=handle.queue_offset,
            invisible_time=invisible_ms,
        )
        command = RemotingCommand(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, header.to_ext())
        changed = ChangeInvisibleResponseHeader.from_ext((await succeed(self._caller, command, host)).ext)
        return handle._replace(
            start_offset=handle.queue_offset,
            pop_time_ms=changed.pop_time,
            invisible_ms=changed.invisible_time,
            revive_queue_id=changed.revive_qid,
        )

    def _trace_end(self, group: str, receipt: Receipt, result: ConsumeReturnType, reason: str) -> None:
        if not receipt.region:
            return
        ended_ms, handle = now_ms(), receipt.handle
        cost_ms = max(0, ended_ms - receipt.started_ms)
        self._tracer.record(
            SubAfter(
                request_id=receipt.request_id,
                msg_id=receipt.msg_id,
                cost_time=cost_ms,
                is_success=result is ConsumeReturnType.SUCCESS,
                keys=receipt.keys,
                context_code=result,
                time_stamp=ended_ms,
                group_name=group,
            ),
            SubResult(
                request_id=receipt.request_id,
                msg_id=receipt.msg_id,
                group_name=group,
                topic=receipt.topic,
                broker_name=handle.broker_name,
                queue_id=handle.queue_id,
                queue_offset=handle.queue_offset,
                retry_times=receipt.times,
                result=result.name,
                cost_time=cost_ms,
                time_stamp=ended_ms,
                client_id=CLIENT_ID,
                detail=reason[:TRACE_DETAIL_LENGTH_MAX] or None,
            ),
        )


async def _settled(receipts: Sequence[str], act: Callable[[Receipt, str], Awaitable[str]]) -> list[Settled]:
    """Settle messages together, so that their records share a commit. act: returns the receipt for the answer. Problem:
    nothing was done."""

    async def settle(text: str) -> Settled | tuple[Settled, Problem]:
        try:
            return Settled(await act(Receipt.decode(text), text))
        except (MQError, TimeoutError) as error:
            problem = problem_of_error(error)
            return Settled(text, problem.detail), problem

    found = await asyncio.gather(*map(settle, receipts))
    problems = [one[1] for one in found if isinstance(one, tuple)]
    if problems and len(problems) == len(found):
        first = problems[0]
        raise Problem(first.status, f"none of {len(found)} receipts was taken: {first.detail}")
    return [one[0] if isinstance(one, tuple) else one for one in found]


def _is_of_application(name: str) -> bool:
    return name not in RESERVED_PROPERTIES and name != PROPERTY_IDEMPOTENCY
