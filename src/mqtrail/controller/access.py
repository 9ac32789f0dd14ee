"""Access control of a controller: whether a request has the account that its row needs (requests).

Looking at groups and at the controllers needs no account, as routes at a name server. Brokers and the other controllers
sign with one account; operators' changes need an administrator's. How a request proves its account:
mqtrail.wire.accounts. Apache's controllers check nothing; its brokers sign their requests to them since 5.3.
"""

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


class ControllerAccess:
    """Decides whether a request may be served. accounts: asked for each signed request."""

    def __init__(self, config: ControllerConfig, accounts: Accounts) -> None:
        self._config = config
        self._accounts = accounts
        self._is_trusted = address_matcher(config.trusted_addresses)

    def check(self, ip: str, command: RemotingCommand, needed: Level | None) -> None:
        """NoPermission: the request may not be served. needed: the level of its row; None: it has none."""
        if not self._config.acl:
            return
        if needed is None:
            raise NoPermission(f"request code {command.code} is not a controller's")
        if (
            command.code == RequestCode.CONTROLLER_ELECT_MASTER
            and ElectMasterHeader.from_ext(command.ext).designate_elect
        ):
            needed = Level.ADMIN
        if needed is Level.NONE:
            return
        if needed is Level.BROKER and command.code != RequestCode.CONTROLLER_CONSENSUS and self._is_trusted(ip):
            return
        check_account(command, needed, self._accounts, "controller")
