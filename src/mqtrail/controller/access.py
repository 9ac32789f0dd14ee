"""Access control of a controller: which account each request code needs.

Looking at groups and at the controllers needs no account, as routes at a name server. Brokers and the other controllers
sign with one account; operators' changes need an administrator's. How a request proves its account:
mqtrail.wire.accounts. Apache's controllers check nothing; its brokers sign their requests to them since 5.3.
"""

from collections.abc import Mapping
from typing import Final

from mqtrail.wire import (
    Accounts,
    ElectMasterHeader,
    Level,
    NoPermission,
    RemotingCommand,
    RequestCode,
    address_matcher,
    check_account,
)

from .config import ControllerConfig

Code = RequestCode
LEVELS: Final[Mapping[int, Level]] = {
    Code.CONTROLLER_GET_REPLICA_INFO: Level.NONE,
    Code.CONTROLLER_GET_METADATA_INFO: Level.NONE,
    Code.CONTROLLER_GET_SYNC_STATE_DATA: Level.NONE,
    Code.CONTROLLER_GET_NEXT_BROKER_ID: Level.NONE,
    # Brokers.
    Code.BROKER_HEARTBEAT: Level.BROKER,
    Code.CONTROLLER_ALTER_SYNC_STATE_SET: Level.BROKER,
    Code.CONTROLLER_ELECT_MASTER: Level.BROKER,  # without a designated one
    Code.CONTROLLER_REGISTER_BROKER: Level.BROKER,
    Code.CONTROLLER_APPLY_BROKER_ID: Level.BROKER,
    # The other controllers.
    Code.CONTROLLER_CONSENSUS: Level.BROKER,
    # Operators.
    Code.CLEAN_BROKER_DATA: Level.ADMIN,
    Code.GET_CONTROLLER_CONFIG: Level.ADMIN,
    Code.UPDATE_CONTROLLER_CONFIG: Level.ADMIN,
}
"""A code that is not here is served to no one."""


class ControllerAccess:
    """Decides whether a request may be served. accounts: asked for each signed request."""

    def __init__(self, config: ControllerConfig, accounts: Accounts) -> None:
        self._config = config
        self._accounts = accounts
        self._is_trusted = address_matcher(config.trusted_addresses)

    def check(self, ip: str, command: RemotingCommand) -> None:
        """NoPermission: the request may not be served."""
        if not self._config.acl:
            return
        needed = LEVELS.get(command.code)
        if needed is None:
            raise NoPermission(f"request code {command.code} is not a controller's")
        if command.code == Code.CONTROLLER_ELECT_MASTER and ElectMasterHeader.from_ext(command.ext).designate_elect:
            needed = Level.ADMIN
        if needed is Level.NONE:
            return
        if needed is Level.BROKER and command.code != Code.CONTROLLER_CONSENSUS and self._is_trusted(ip):
            return
        check_account(command, needed, self._accounts, "controller")
