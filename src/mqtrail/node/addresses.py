"""Which IP address a node advertises, and which addresses are loopback."""

import ipaddress
import socket

from mqtrail.net import host_address
from mqtrail.wire import InvalidParameter


def advertised_ip(host: str, advertise: str | None) -> str:
    """Return the IP address that the node advertises: `advertise`, or else the address of `host`. InvalidParameter.

    If host is a wildcard address (0.0.0.0, ::), return the source address of this machine's default route.
    """
    name = advertise or host
    try:
        found = str(host_address(name, None)[3][0])
    except (OSError, UnicodeError) as error:  # UnicodeError: a label that is no valid host name
        option = "--advertise" if advertise else "--host"
        raise InvalidParameter(f"found {option} {name!r} ({error}), expected an IP address of this machine") from error
    if not ipaddress.ip_address(found).is_unspecified:
        return found
    if advertise:
        raise InvalidParameter(
            f"found --advertise {advertise}, expected an IP address at which clients reach this machine"
        )
    family, probe = (socket.AF_INET6, "2001:db8::1") if ":" in found else (socket.AF_INET, "192.0.2.1")
    with socket.socket(family, socket.SOCK_DGRAM) as sock:
        try:
            sock.connect((probe, 9))  # sends nothing: connect() of a UDP socket only looks up the route
            return str(sock.getsockname()[0])
        except OSError:
            return "::1" if family == socket.AF_INET6 else "127.0.0.1"
