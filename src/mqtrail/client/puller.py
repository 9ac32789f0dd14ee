"""Pulling one queue: one request out at a time, within the bounds of what may wait unsettled.

Source: DefaultMQPushConsumerImpl.pullMessage, PullAPIWrapper, RocketMQ 5.x client.
"""

import asyncio
from collections.abc import Callable, Sequence

from mqtrail.client.config import ConsumerConfig
from mqtrail.client.errors import BrokerUnknown
from mqtrail.client.identity import now_ms
from mqtrail.client.instance import ClientInstance
from mqtrail.client.offsets import OffsetStore
from mqtrail.client.process_queue import ProcessQueue
from mqtrail.client.pull import PullResult, PullStatus, read_pull_reply
from mqtrail.client.routes import queue_name
from mqtrail.net import Log
from mqtrail.wire import (
    MASTER_ID,
    FlowControl,
    MessageExt,
    MessageQueue,
    MQError,
    PullSysFlag,
    RemotingCommand,
    RequestCode,
    SubscriptionData,
    SubscriptionNotExist,
    SubscriptionNotLatest,
)

log = Log()

OnMessages = Callable[[ProcessQueue, Sequence[MessageExt]], None]


class Puller:
    """Pulls one queue until it is dropped, and hands what it finds to on_messages."""

    def __init__(
        self,
        client: ClientInstance,
        group: str,
        subscription: Callable[[], SubscriptionData],
        process_queue: ProcessQueue,
        offset: int,
        offsets: OffsetStore,
        on_messages: OnMessages,
        config: ConsumerConfig,
        *,
        commits: bool,
        may_pull: Callable[[ProcessQueue], bool] = lambda _: True,
    ) -> None:
        self._client = client
        self._group = group
        self._subscription = subscription
        self._process_queue = process_queue
        self._offset = offset
        self._offsets = offsets
        self._on_messages = on_messages
        self._config = config
        self._commits = commits
        self._may_pull = may_pull
        self._broker_id = MASTER_ID
        self._room = asyncio.Event()
        self.last_pull_ms = 0

    def wake(self) -> None:
        """Something was settled: there may be room again."""
        self._room.set()

    async def run(self) -> None:
        """Pull until cancelled or the queue is dropped."""
        held = self._process_queue
        while not held.dropped:
            if not self._may_pull(held):
                await asyncio.sleep(self._config.pull_error_ms / 1000)
                continue
            if self._is_full():
                await self._wait_for_room()
                continue
            try:
                await self._pull()
            except FlowControl:
                await asyncio.sleep(self._config.broker_flow_control_ms / 1000)
            except (SubscriptionNotExist, SubscriptionNotLatest) as refusal:
                log.info(
                    "consumer.subscription_unknown", group=self._group, queue=queue_name(held.queue), error=str(refusal)
                )
                await self._client.heartbeat()
                await asyncio.sleep(self._config.pull_error_ms / 1000)
            except (MQError, OSError) as error:
                if not held.dropped:
                    log.warning(
                        "consumer.pull_failed", group=self._group, queue=queue_name(held.queue), error=str(error)
                    )
                await asyncio.sleep(self._config.pull_error_ms / 1000)
            else:
                # One turn of the loop at least, so that a queue that always answers at once starves nobody.
                await asyncio.sleep(self._config.pull_interval_ms / 1000)

    def _is_full(self) -> bool:
        held, config = self._process_queue, self._config
        return (
            held.count >= config.queue_count_max
            or held.size >= config.queue_size_max
            or (not config.ordered and held.span > config.span_max)
        )

    async def _wait_for_room(self) -> None:
        self._room.clear()
        try:
            async with asyncio.timeout(self._config.flow_control_ms / 1000):
                await self._room.wait()
        except TimeoutError:
            pass

    async def _pull(self) -> None:
        held = self._process_queue
        offset = self._offset
        address = self._address(held.queue)
        command = RemotingCommand(RequestCode.PULL_MESSAGE, self._ext(offset))
        self.last_pull_ms = now_ms()
        reply = await self._client.pool.request(address, command, self._config.poll_timeout_ms)
        result = read_pull_reply(reply)
        if held.dropped:
            return  # given up while the pull was out
        self._broker_id = result.suggested_broker_id
        self._take(result)

    def _take(self, result: PullResult) -> None:
        held = self._process_queue
        if result.status is PullStatus.OFFSET_MOVED:
            log.warning(
                "consumer.offset_moved",
                group=self._group,
                queue=queue_name(held.queue),
                asked=self._offset,
                next=result.next_offset,
                kept=f"[{result.min_offset}, {result.max_offset})",
            )
            held.clear()
            self._offsets.update(held.queue, result.next_offset, only_up=False)
            self._offset = result.next_offset
            return
        self._offset = result.next_offset
        if result.status is PullStatus.FOUND:
            subscription = self._subscription()
            messages = result.messages(held.queue.broker_name)
            if not subscription.is_all:
                # The broker compares hashes only.
                messages = [message for message in messages if subscription.matches_tag(message.tags)]
            new = held.put(messages, result.next_offset)
            if new:
                self._on_messages(held, new)
        else:
            held.put((), result.next_offset)
        if not held.count:
            self._offsets.update(held.queue, result.next_offset)

    def _address(self, queue: MessageQueue) -> str:
        route = self._client.known_route(queue.topic)
        address = route.address(queue.broker_name, self._broker_id) if route is not None else None
        if address is None:
            raise BrokerUnknown(f"no address of broker {queue.broker_name!r} in the route of {queue.topic!r}")
        return address

    def _ext(self, offset: int) -> dict[str, str]:
        queue = self._process_queue.queue
        subscription = self._subscription()
        commit = self._offsets.noted(queue) if self._commits and self._broker_id == MASTER_ID else None
        flags = PullSysFlag.SUSPEND | (PullSysFlag.COMMIT_OFFSET if commit else 0)
        return {
            "consumerGroup": self._group,
            "topic": queue.topic,
            "queueId": str(queue.queue_id),
            "queueOffset": str(offset),
            "maxMsgNums": str(self._config.pull_batch_count),
            "sysFlag": str(flags),
            "commitOffset": str(commit or 0),
            "suspendTimeoutMillis": str(self._config.poll_suspend_ms),
            "subscription": subscription.sub_string,
            "subVersion": str(subscription.sub_version),
            "expressionType": subscription.expression_type,
            "maxMsgBytes": str(self._config.pull_batch_size),
            "bname": queue.broker_name,
        }
