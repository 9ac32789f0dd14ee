"""A master that starts takes back the offsets that consumers committed at its slaves while it was gone.

It asks before it registers, so that no consumer finds the older ones. A slave that does not answer is logged and left
out: its consumers then read some messages again.
Source: BrokerPreOnlineService, apache/rocketmq broker/.
"""

from collections.abc import Awaitable, Callable

from mqtrail.broker import Broker
from mqtrail.net import ConnectionPool, Log, NetError
from mqtrail.store import MessageStore
from mqtrail.wire import (
    MASTER_ID,
    BodyError,
    ClusterInfo,
    ConsumerOffsetTable,
    RemotingCommand,
    RequestCode,
    ResponseCode,
)

TIMEOUT_MS = 3_000

log = Log()


async def take_back_offsets(
    core: Broker,
    store: MessageStore,
    pool: ConnectionPool,
    ask: Callable[[RemotingCommand], Awaitable[RemotingCommand | None]],
) -> None:
    """ask: sends a request to the first name server that answers; None if none does. Closes pool."""
    name = core.config.broker_name
    try:
        for address in await _slaves(name, ask):
            try:
                reply = await pool.request(address, RemotingCommand(RequestCode.GET_ALL_CONSUMER_OFFSET), TIMEOUT_MS)
                if reply.code != ResponseCode.SUCCESS:
                    raise BodyError(f"found answer {reply.code} ({reply.remark}), expected success")
                count = core.offsets.take_back(ConsumerOffsetTable.decode(reply.body), store.max_offset)
            except (NetError, BodyError) as error:
                log.warning(
                    "ha.offsets_not_handed_back",
                    broker=name,
                    slave=address,
                    found=str(error),
                    remedy="none needed: consumers that read from this slave may get messages again",
                )
            else:
                if count:
                    log.info("ha.offsets_handed_back", broker=name, slave=address, count=count)
    finally:
        await pool.close()


async def _slaves(name: str, ask: Callable[[RemotingCommand], Awaitable[RemotingCommand | None]]) -> list[str]:
    """Return the addresses of the slaves that a name server knows."""
    reply = await ask(RemotingCommand(RequestCode.GET_BROKER_CLUSTER_INFO))
    if reply is None or reply.code != ResponseCode.SUCCESS:
        return []
    try:
        data = ClusterInfo.decode(reply.body).broker_addr_table.get(name)
    except BodyError:
        return []
    return [] if data is None else [at for broker_id, at in data.broker_addrs.items() if broker_id != MASTER_ID]
