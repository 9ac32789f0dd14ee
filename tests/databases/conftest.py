"""Tests with real PostgreSQL and MariaDB servers: `make databases`."""

import pytest

from .servers import SERVERS, DatabaseServer, server


@pytest.fixture(params=sorted(SERVERS))
def database(request: pytest.FixtureRequest) -> DatabaseServer:
    """A running server of each kind."""
    return server(request.param)
