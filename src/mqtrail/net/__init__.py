"""Remoting over TCP, both sides.

`ConnectionPool` and `Connection` are the client side, `Server` the server side. They turn bytes into `RemotingCommand`
and back; other rooms decide what a command means. Errors state whether the peer may have received the request. Also
here: what several doors need, such as the structured log and the audit log of changes.
"""

from .address import NAMESRV_DEFAULT, address_list, host_address, join_address, parse_namesrv, split_address
from .audit import AUDIT_FILE, Actor, AuditAnswer, AuditedChange, AuditFailed, AuditLog, read_audit
from .child_environment import child_environment, is_ours
from .client import Connection
from .controllers import ControllerError, leading_controller
from .durable_files import replace_file, sync_folder
from .errors import ConnectError, ConnectionClosed, NetError, RequestTimeout
from .file_locks import hold_lock, is_lock_held, wait_for_lock
from .garbage import collect_rarely, collected_rarely
from .log import Log, log_processors
from .loops import loop_factory, stop_on_signals
from .metrics_port import MetricsPort
from .pool import ConnectionPool
from .secret_files import mode_open_to_others
from .server import BindError, Server, accept_no_more, bound_socket, why_not_bound
from .server_config import ServerConfig
from .server_connection import Application, ServerConnection, next_command
from .stderr_guard import guard_stderr
from .tls import (
    ClientAuth,
    TlsClientConfig,
    TlsError,
    TlsMode,
    TlsProperties,
    TlsServerConfig,
    read_tls_properties,
    tls_settings,
)
from .tls_session import tls_failure

__all__ = [
    "AUDIT_FILE",
    "NAMESRV_DEFAULT",
    "Actor",
    "Application",
    "AuditAnswer",
    "AuditFailed",
    "AuditLog",
    "AuditedChange",
    "BindError",
    "ClientAuth",
    "ConnectError",
    "Connection",
    "ConnectionClosed",
    "ConnectionPool",
    "ControllerError",
    "Log",
    "MetricsPort",
    "NetError",
    "RequestTimeout",
    "Server",
    "ServerConfig",
    "ServerConnection",
    "TlsClientConfig",
    "TlsError",
    "TlsMode",
    "TlsProperties",
    "TlsServerConfig",
    "accept_no_more",
    "address_list",
    "bound_socket",
    "child_environment",
    "collect_rarely",
    "collected_rarely",
    "guard_stderr",
    "hold_lock",
    "host_address",
    "is_lock_held",
    "is_ours",
    "join_address",
    "leading_controller",
    "log_processors",
    "loop_factory",
    "mode_open_to_others",
    "next_command",
    "parse_namesrv",
    "read_audit",
    "read_tls_properties",
    "replace_file",
    "split_address",
    "stop_on_signals",
    "sync_folder",
    "tls_failure",
    "tls_settings",
    "wait_for_lock",
    "why_not_bound",
]
