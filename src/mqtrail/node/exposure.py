"""What other machines and other users of this machine can do without authentication, and the warnings about it."""

from mqtrail.net import ClientAuth, Log, TlsMode
from mqtrail.wire import is_loopback

from .config import GroupMode, NodeConfig
from .files import warn_if_open_to_others
from .namesrv_access import controllers_check

log = Log()


def open_servers(config: NodeConfig) -> list[str]:
    """Return which servers accept unauthenticated peers from other machines.

    "brokers", "name server", "controllers", "HTTP door".

    config: as `with_namesrv_access` returns it.
    """
    if is_loopback(config.host):
        return []
    broker, tls = config.broker, config.server.tls
    if tls.mode is TlsMode.ENFORCING and tls.client_auth is ClientAuth.REQUIRE:
        return []
    found = []
    if not (broker.acl or broker.authentication):
        found.append("brokers")
    if config.namesrv_port is not None and not config.namesrv.acl:
        found.append("name server")
    group = config.group
    if group is not None and group.mode is GroupMode.CONTROLLER and not controllers_check(config):
        found.append("controllers")
    if config.http_port is not None:
        found.append("HTTP door")
    return found


def warn_if_open(config: NodeConfig) -> None:
    """Log a warning for unauthenticated ports, for optional client certificates, and for key files others can read."""
    keys = {config.server.tls.key_path, config.tls.key_path}
    warn_if_open_to_others(sorted(path for path in keys if path is not None))
    if config.server.tls.lets_plain_pass:
        log.warning(
            "node.plain_connections",
            found="client certificates are required, but connections without TLS need none (PERMISSIVE)",
            remedy='set mode = "ENFORCING" in [tls_server]',
        )
    broker = config.broker
    is_member = broker.controller_mode or broker.ledger_mode
    takes_slaves = (broker.broker_role or is_member or config.ha_port is not None) and not broker.is_slave
    is_guarded = broker.acl or broker.authentication or config.server.tls.on
    if takes_slaves and is_guarded and not is_loopback(config.host) and not broker.slave_addresses:
        log.warning(
            "node.ha_port_open",
            found="the port for slaves, or of a DLedger member, has no access control: anyone who reaches it "
            "can read all messages, or write some",
            remedy="set slave_addresses (slaveAddresses) to the addresses of the group's brokers and let only them "
            "reach the port, or run without brokerRole, haListenPort, enableControllerMode and enableDLegerCommitLog",
        )
    servers = open_servers(config)
    if "brokers" in servers:
        log.warning(
            "node.open_to_others",
            host=config.host,
            open=servers,
            remedy="listen on --host 127.0.0.1, or enable access control (aclEnable, or authenticationEnabled and "
            "authorizationEnabled): anyone who reaches these ports can read and write every message",
        )
    elif servers:
        log.warning("node.open_to_others", host=config.host, open=servers, remedy="; ".join(map(_remedy, servers)))


def _remedy(server: str) -> str:
    """Return what to do about a server that is open although the brokers are not."""
    if server == "name server":
        return (
            "listen on --host 127.0.0.1, or remove acl = false from [namesrv_server]: anyone who reaches the name "
            "server can register brokers, and change or delete routes"
        )
    if server == "controllers":
        return (
            "set inner_credentials in [broker], and remove acl = false from [controller]: anyone who reaches a "
            "controller can change masters"
        )
    return (
        "set http_rules in [node]: the HTTP door acts with the broker's own account, so anyone who reaches it can read "
        "and write the messages of each topic and group without rules"
    )
