"""Name servers by HTTP: an endpoint that returns their addresses, for clusters whose name servers move.

    GET http://jmenv.tbsite.net:8080/rocketmq/nsaddr   ->   10.0.0.5:9876;10.0.0.6:9876

Source: DefaultTopAddressing, MixAll.getWSAddr, apache/rocketmq common/.
"""

import asyncio
import urllib.error
import urllib.request
from collections.abc import Sequence
from typing import Final

from mqtrail.net import parse_namesrv

from .config import InstanceConfig
from .errors import NoNameServer

ANSWER_SIZE_MAX: Final = 64 * 1024  # bytes
FETCH_TIMEOUT_MS: Final = 3_000
PORT_DEFAULT: Final = 8080


def endpoint_url(namesrv: str | Sequence[str], config: InstanceConfig) -> str | None:
    """Return the URL to ask for name servers: namesrv itself where it is one with a path, else that of the domain.

    None: namesrv lists the name servers themselves.
    """
    text = namesrv.strip() if isinstance(namesrv, str) else ""
    scheme, separator, rest = text.partition("://")
    if separator and scheme in ("http", "https") and rest.partition("/")[2]:
        return text
    if text or not isinstance(namesrv, str) or not config.namesrv_domain:
        return None
    domain = config.namesrv_domain
    port = "" if ":" in domain else f":{PORT_DEFAULT}"
    unit = f"-{config.unit_name}?nofix=1" if config.unit_name else ""
    return f"http://{domain}{port}/rocketmq/{config.namesrv_subgroup}{unit}"


async def fetch_addresses(url: str, timeout_ms: int = FETCH_TIMEOUT_MS) -> tuple[str, ...]:
    """As `ask_addresses`, in a thread."""
    return await asyncio.to_thread(ask_addresses, url, timeout_ms)


def ask_addresses(url: str, timeout_ms: int = FETCH_TIMEOUT_MS) -> tuple[str, ...]:
    """Ask url for the name servers: the first line of the answer. Raises NoNameServer with what was found."""
    try:
        text = _get(url, timeout_ms)
        return parse_namesrv(text.strip().partition("\n")[0].strip())
    except (OSError, ValueError) as error:  # URLError is an OSError
        raise NoNameServer(
            f"the end point {url} returned no name servers: {error}; expected the answer host:port;host:port"
        ) from error


def _get(url: str, timeout_ms: int) -> str:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # the endpoint is in the local network
    try:
        with opener.open(url, timeout=timeout_ms / 1000) as reply:
            return str(reply.read(ANSWER_SIZE_MAX), "utf-8", "replace")
    except urllib.error.HTTPError as error:
        with error:
            raise ValueError(f"HTTP status {error.code}") from None
