"""The identity of a broker in controller mode: the id that the controller gave it, in two files beside the log.

    brokerIdentity        "<cluster>#<broker>#<id>"
    brokerIdentity-temp   the same and "#<check code>", while the id is being applied for

With the second one a broker that stops in between can apply for the same id again: the check code identifies it.
Source: BrokerMetadata, TempBrokerMetadata, apache/rocketmq store/ha/autoswitch/.
"""

from typing import Final, NamedTuple

from mqtrail.wire import InvalidParameter

IDENTITY_FILE: Final = "brokerIdentity"
APPLYING_FILE: Final = "brokerIdentity-temp"
SEPARATOR: Final = "#"
PARTS: Final = 3  # without the check code


class Identity(NamedTuple):
    """check_code: while the id is being applied for; else empty."""

    cluster_name: str
    broker_name: str
    broker_id: int
    check_code: str = ""

    def encode(self) -> bytes:
        """Return the content of its file."""
        parts = [self.cluster_name, self.broker_name, str(self.broker_id)]
        return SEPARATOR.join(parts + ([self.check_code] if self.check_code else [])).encode()


def decode_identity(data: bytes, cluster_name: str, broker_name: str) -> Identity:
    """Return the identity in a file. InvalidParameter: it is of another broker, or no broker wrote it."""
    parts = data.decode("utf-8", "replace").strip().split(SEPARATOR, PARTS)
    if len(parts) < PARTS or not (parts[2].isascii() and parts[2].isdigit()):
        raise InvalidParameter(
            f"found {data[:80]!r} in {IDENTITY_FILE}, expected cluster#broker#id: restore the file, or remove it and "
            "clean this broker's data at the controller"
        )
    found = Identity(parts[0], parts[1], int(parts[2]), parts[3] if len(parts) > PARTS else "")
    if (found.cluster_name, found.broker_name) != (cluster_name, broker_name):
        raise InvalidParameter(
            f"found the identity of {found.broker_name} of {found.cluster_name} in {IDENTITY_FILE}, expected "
            f"{broker_name} of {cluster_name}: correct brokerName and brokerClusterName, or choose another folder"
        )
    return found
