"""Tests with real PostgreSQL and MariaDB servers: `make databases`."""

from collections.abc import Iterator

import pytest

from mqtrail.testing import Embedded, embedded

from .binlog_server import BinlogMariaDB
from .servers import SERVERS, DatabaseServer, server


@pytest.fixture(params=sorted(SERVERS))
def database(request: pytest.FixtureRequest) -> DatabaseServer:
    """A running server of each kind."""
    return server(request.param)


@pytest.fixture(scope="module")
def mariadb() -> Iterator[BinlogMariaDB]:
    """A MariaDB with a binlog, of one module."""
    with BinlogMariaDB.running() as running:
        yield running


@pytest.fixture(scope="module")
def broker() -> Iterator[Embedded]:
    """A broker of one module."""
    with embedded() as running:
        yield running


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run of `mqtrail binlog` knows sooner that the server has nothing new."""
    monkeypatch.setattr("mqtrail.binlog.stream.HEARTBEAT_S", 0.05)
