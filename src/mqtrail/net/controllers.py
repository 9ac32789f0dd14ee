"""Which of a group's controllers leads: brokers and tools ask here before any other request to the controllers."""

from collections.abc import Iterable

from mqtrail.wire import ControllerMetadataReply, MQError, RemotingCommand, RequestCode

from .pool import ConnectionPool


class ControllerError(MQError):
    """A controller refused a request, or none leads. code: its answer; 0: there was none."""

    def __init__(self, text: str, code: int = 0) -> None:
        super().__init__(text)
        self.code = code


async def leading_controller(pool: ConnectionPool, addresses: Iterable[str], timeout_ms: int) -> str:
    """Return the address of the leading controller: the first that one of addresses names. ControllerError: none does.

    timeout_ms: for each of addresses.
    """
    found = []
    for address in addresses:
        try:
            command = RemotingCommand(RequestCode.CONTROLLER_GET_METADATA_INFO)
            reply = await pool.request(address, command, timeout_ms)
            leader = ControllerMetadataReply.from_ext(reply.ext).controller_leader_address
        except MQError as error:
            found.append(f"{address}: {error}")
        else:
            if leader:
                return leader
            found.append(f"{address}: it knows no leader")
    raise ControllerError(
        f"found no leading controller ({'; '.join(found)}), expected one: start a majority of those in controllerAddr"
    )
