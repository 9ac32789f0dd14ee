"""Access control of the name server: which account each request code needs.

Reading routes needs no account unless `protect_routes` is set. Registration needs a broker's account, and operators'
changes need an administrator's account. The level of each request code is in its row (requests). How a request proves
its account: mqtrail.wire.accounts.
"""

from mqtrail.wire import (
    Accounts,
    Level,
    NoPermission,
    RemotingCommand,
    address_matcher,
    check_account,
    no_accounts,
)

from .config import NameServerConfig


class NameServerAccess:
    """Decides whether a request may be served. accounts: asked for each signed request."""

    def __init__(self, config: NameServerConfig, accounts: Accounts = no_accounts) -> None:
        self._config = config
        self._accounts = accounts
        self._is_trusted = address_matcher(config.trusted_addresses)
        self.refused = 0  # requests since the start

    def check(self, ip: str, command: RemotingCommand, needed: Level) -> None:
        """Check that a request that needs a level may be served. NoPermission: it may not; it is counted.

        Level.NONE: routes, which need an account with protect_routes.
        """
        try:
            self._check(ip, command, needed)
        except NoPermission:
            self.refused += 1
            raise

    def _check(self, ip: str, command: RemotingCommand, needed: Level) -> None:
        if not self._config.acl:
            return
        if needed is Level.NONE:
            if not self._config.protect_routes:
                return
            needed = Level.ACCOUNT
        if needed <= Level.BROKER and self._is_trusted(ip):
            return
        check_account(command, needed, self._accounts, "name server")
