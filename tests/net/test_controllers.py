"""Which controller leads: the first that one of them names."""

import pytest

from mqtrail.net import ConnectError, ConnectionPool, ControllerError, leading_controller
from mqtrail.wire import RemotingCommand, RequestCode, ResponseCode


class Controllers(ConnectionPool):
    """Controllers by address: the ext fields that one answers with; None: it cannot be reached."""

    def __init__(self, answers: dict[str, dict[str, str] | None]) -> None:
        super().__init__()
        self.answers = answers
        self.asked: list[str] = []

    async def request(self, address: str, command: RemotingCommand, timeout_ms: int) -> RemotingCommand:
        assert (command.code, timeout_ms) == (RequestCode.CONTROLLER_GET_METADATA_INFO, 500)
        self.asked.append(address)
        ext = self.answers[address]
        if ext is None:
            raise ConnectError("connection refused")
        return RemotingCommand(ResponseCode.SUCCESS, dict(ext))


async def test_the_first_controller_that_names_a_leader_is_believed() -> None:
    """Those that cannot be reached or know no leader are passed over."""
    pool = Controllers({"a": None, "b": {}, "c": {"controllerLeaderAddress": "d:1"}, "d": None})
    assert await leading_controller(pool, pool.answers, 500) == "d:1"
    assert pool.asked == ["a", "b", "c"]


async def test_the_error_says_what_each_controller_answered() -> None:
    pool = Controllers({"a": None, "b": {}})
    with pytest.raises(ControllerError, match=r"\(a: connection refused; b: it knows no leader\)") as failed:
        await leading_controller(pool, ["a", "b"], 500)
    assert failed.value.code == 0
