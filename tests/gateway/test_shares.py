"""The share of places that one client address may hold."""

import pytest

from mqtrail.gateway.shares import AddressShares, owner_of


def test_an_address_has_its_share() -> None:
    """What it gives back it can have again, and others do not notice."""
    shares = AddressShares(8, 25)
    assert [shares.take("10.0.0.1") for _ in range(3)] == [True, True, False]
    assert shares.take("10.0.0.2")
    shares.give_back("10.0.0.1")
    assert shares.take("10.0.0.1")
    for _ in range(2):
        shares.give_back("10.0.0.1")
    shares.give_back("10.0.0.2")
    assert not shares._counts, "nothing is kept of an address that holds no place"


@pytest.mark.parametrize("ip", ["127.0.0.1", "::1", "::ffff:127.0.0.1", "127.9.9.9", "10.1.0.7"])
def test_who_stands_for_many_clients_has_no_bound(ip: str) -> None:
    """This machine, where a proxy may be, and the proxies that are named."""
    shares = AddressShares(8, 25, "10.1.0.{7,8}")
    assert all(shares.take(ip) for _ in range(9))


def test_there_may_be_no_bound() -> None:
    shares = AddressShares(2)
    assert all(shares.take("10.0.0.1") for _ in range(3))


def test_few_places_leave_one() -> None:
    assert AddressShares(2, 1).take("10.0.0.1")


@pytest.mark.parametrize(
    ("ip", "owner"),
    [
        ("10.0.0.1", "10.0.0.1"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::"),
        ("fe80::1%eth0", "fe80::"),
        ("testclient", "testclient"),
    ],
)
def test_a_network_of_ipv6_is_one_client(ip: str, owner: str) -> None:
    """A client can choose any address of it."""
    assert owner_of(ip) == owner
