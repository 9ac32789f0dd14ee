"""Namespaces of 4.x: names of topics and groups get the prefix `NAMESPACE%` on the wire, removed on arrival.

    orders           ->  shop%orders
    %RETRY%billing   ->  %RETRY%shop%billing

System topics and groups get no prefix, nor does a name that already has it. The namespaces of 5.x
(`namespace_v2`) leave names alone and travel as the fields `ns` and `nsd` of each request.
Source: NamespaceUtil, NamespaceRpcHook, apache/rocketmq remoting/ and client/.
"""

from typing import Final

from mqtrail.wire import DLQ_PREFIX, RETRY_PREFIX, is_system_group, is_system_topic

NAMESPACE_SEPARATOR: Final = "%"
EXT_NAMESPACE: Final = "ns"
EXT_NAMESPACED: Final = "nsd"


def with_namespace(namespace: str, name: str) -> str:
    """Return the topic's or group's name on the wire; unchanged without a namespace."""
    if not namespace or not name or is_system_topic(name) or is_system_group(name):
        return name
    prefix, rest = _split(name)
    if rest.startswith(namespace + NAMESPACE_SEPARATOR):
        return name
    return f"{prefix}{namespace}{NAMESPACE_SEPARATOR}{rest}"


def without_namespace(namespace: str, name: str) -> str:
    """Return the topic's or group's name for the application; unchanged if it has another namespace."""
    prefix, rest = _split(name)
    if namespace and rest.startswith(namespace + NAMESPACE_SEPARATOR):
        return prefix + rest[len(namespace) + 1 :]
    return name


def _split(name: str) -> tuple[str, str]:
    for prefix in (RETRY_PREFIX, DLQ_PREFIX):
        if name.startswith(prefix):
            return prefix, name[len(prefix) :]
    return "", name
