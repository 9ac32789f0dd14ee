"""Address patterns of ACL files and blocks of policies."""

import pytest

from mqtrail.wire import InvalidParameter
from mqtrail.wire.addresses import address_matcher, block_matcher, parse_peers

HOLDS = [
    ("*", "10.0.0.1"),
    ("*.*.*.*", "fe80::1"),
    ("*:*:*:*:*:*:*:*", "10.0.0.1"),
    ("10.0.0.1", "10.0.0.1"),
    ("FE80::1", "fe80:0:0:0:0:0:0:1"),
    ("10.0.0.{1,3}", "10.0.0.3"),
    ("fe80::{1,2f}", "fe80::2f"),
    ("10.0.0.1,10.0.0.9", "10.0.0.9"),
    ("10.0.0.*", "10.0.0.200"),
    ("10.0.*.*", "10.0.7.200"),
    ("10.*.*.*", "10.9.7.200"),
    ("10.0.0.5-20", "10.0.0.20"),
    ("10.0.5-20.*", "10.0.6.1"),
    ("fe80:*", "fe80:99::1"),
    ("2::ac5:78:1-200:*", "2::ac5:78:200:7"),
    ("2::ac5:78:1-200", "2::ac5:78:1ff"),
]
NOT = [
    ("", "10.0.0.1"),
    ("  ", "10.0.0.1"),
    ("10.0.0.1", "10.0.0.2"),
    ("10.0.0.{1,3}", "10.0.0.2"),
    ("10.0.0.1,10.0.0.9", "10.0.0.2"),
    ("10.0.0.*", "10.0.1.1"),
    ("10.0.0.*", "fe80::1"),
    ("10.0.0.5-20", "10.0.0.21"),
    ("2::ac5:78:1-200:*", "2::ac5:78:201:7"),
    ("2::ac5:78:1-200", "2::ac5:79:1"),
    ("fe80:*", "10.0.0.1"),
    ("10.0.0.1", "no address"),
]


@pytest.mark.parametrize(("pattern", "ip"), HOLDS)
def test_pattern_holds(pattern: str, ip: str) -> None:
    """Each form of a pattern matches its addresses."""
    assert address_matcher(pattern)(ip)


@pytest.mark.parametrize(("pattern", "ip"), NOT)
def test_pattern_does_not_hold(pattern: str, ip: str) -> None:
    """Patterns match no other addresses; a blank pattern matches none."""
    assert not address_matcher(pattern)(ip)


@pytest.mark.parametrize(
    "pattern",
    ["10.0.0", "10.0.0.256", "10.0.0.20-5", "10.0.0.5-300", "10.0.0.1{2,3}", "host", "10.0.0.1,host", "10.*.0.1",
     "*.1.1.1", "10.0.0.-5", "fe80::g-h", "1:2:3:4:5:6:7:8:*", "}", "10.0.0.{}"],
)  # fmt: skip
def test_wrong_pattern_is_refused(pattern: str) -> None:
    """An invalid pattern is rejected and named when the file is read."""
    with pytest.raises(InvalidParameter, match="Netaddress examine"):
        address_matcher(pattern)


@pytest.mark.parametrize(
    ("block", "ip", "holds"),
    [
        ("10.0.0.1", "10.0.0.1", True),
        ("10.0.0.0/24", "10.0.0.77", True),
        ("10.0.0.9/24", "10.0.0.77", True),
        ("10.0.0.0/24", "10.0.1.77", False),
        ("fe80::/16", "fe80::7", True),
        ("fe80::/16", "10.0.0.1", False),
        ("10.0.0.0/8", "no address", False),
    ],
)
def test_block(block: str, ip: str, holds: bool) -> None:
    """A policy's source is an address or a CIDR block of either family."""
    assert block_matcher(block)(ip) is holds


@pytest.mark.parametrize("block", ["10.0.0", "10.0.0.0/33", "*", "", "a/b"])
def test_wrong_block_is_refused(block: str) -> None:
    """All other sources are rejected."""
    with pytest.raises(InvalidParameter, match="source ip is invalid"):
        block_matcher(block)


def test_members_of_a_group() -> None:
    """Ids with their addresses; a malformed list is refused."""
    assert parse_peers("n0-h:1; n1-[::1]:2;") == {"n0": "h:1", "n1": "[::1]:2"}
    for text in ("n0", "n0-h", "n0-h:x", "n0-h:1;n0-h:2"):
        with pytest.raises(InvalidParameter, match="expected <id>-<host>:<port>"):
            parse_peers(text)
