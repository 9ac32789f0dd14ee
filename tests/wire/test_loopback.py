"""Which addresses only this machine reaches."""

import pytest

from mqtrail.wire import is_loopback


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1", "localhost", "::1%lo"])
def test_loopback(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "::ffff:10.0.0.1", "fe80::1%eth0", "shop.example", ""])
def test_reachable_by_others(host: str) -> None:
    """Also a name that is not resolved here."""
    assert not is_loopback(host)
