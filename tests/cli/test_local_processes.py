"""Which process listens on an address."""

import os
import socket

import pytest

from mqtrail.cli.local_processes import listening_processes


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
def test_the_process_of_a_listening_socket(host: str) -> None:
    """Also of one that listens on all addresses. Other machines, other addresses and closed ports have none."""
    with socket.create_server((host, 0)) as server, socket.create_server(("127.0.0.3", 0)) as other:
        port, other_port = server.getsockname()[1], other.getsockname()[1]
        address = f"127.0.0.1:{port}"
        others = [f"127.0.0.1:{other_port}", f"203.0.113.77:{port}", f"no-address:{port}"]
        assert listening_processes([address, *others]) == {address: os.getpid()}
    assert listening_processes([address]) == {}
