"""The front of access control: checks requests.

ACL files (aclEnable) and users with policies (authenticationEnabled, authorizationEnabled) may both be on; then both
must allow a request. `version` increases with every change, to invalidate caches.
"""

from collections.abc import Mapping

from mqtrail.store import ConfigFileStore
from mqtrail.wire import EXT_ACCESS_KEY, RETRY_PREFIX, Credentials, Peer, Refusal, RemotingCommand, is_signed_with

from ..config import BrokerConfig
from .auth import Auth, inner_credentials
from .context import AccessContext, Need
from .keys import Key, keys_of
from .plain import PlainRules, check_permissions
from .plain_requests import AclFiles, PlainAcl
from .policies import topic_resource


class Access:
    """Checks requests. acl_files: writes ACL files."""

    def __init__(
        self, config: BrokerConfig, files: ConfigFileStore, context: AccessContext, acl_files: AclFiles | None = None
    ) -> None:
        self._config = config
        self._context = context
        self.version = 0
        self.refused = 0  # requests since the start
        self.plain = PlainAcl(config, acl_files, self._changed)
        self.auth = Auth(config, files, self._changed)
        self._member: Credentials | None = None

    def trust(self, credentials: Credentials) -> None:
        """Serve all requests that these sign: the key that the members of a group on one machine share."""
        self._member = credentials
        self._changed()

    def _is_of_member(self, command: RemotingCommand, *, signed: bool) -> bool:
        member = self._member
        if member is None or command.ext.get(EXT_ACCESS_KEY) != member.access_key:
            return False
        return not signed or is_signed_with(command, member.secret_key.encode())

    @property
    def on(self) -> bool:
        """Whether requests are checked."""
        return self._config.acl or self.auth.on

    @property
    def reads_acl_files(self) -> bool:
        """Whether the shell must pass ACL files."""
        return self._config.acl or self._config.migrate_acl

    def load_acl(self, texts: Mapping[str, str]) -> tuple[str, ...]:
        """Load ACL files (name -> YAML); return the ignored parts.

        InvalidParameter: a file is invalid; the previous rules stay in force.
        """
        ignored = self.plain.load(texts)
        if self._config.migrate_acl:
            self.auth.migrate(self.plain.rules)
        return ignored

    def own_credentials(self) -> Credentials | None:
        """Return the credentials of the broker itself for its own requests."""
        return inner_credentials(self._config)

    def keys_of(self, access_key: str) -> list[Key]:
        """Return the keys of a user or an account, of the enabled kinds."""
        users = self.auth.users if self.auth.on else {}
        rules = self.plain.rules if self._config.acl else PlainRules()
        return list(keys_of(access_key, users, rules))

    def warnings(self) -> list[str]:
        """Return warnings about the settings for the operator."""
        found = []
        if self._config.authorization and not self._config.authentication:
            found.append(
                "authorizationEnabled without authenticationEnabled: user names are accepted without a signature; "
                "enable both"
            )
        if self._config.authentication and not self.auth.users:
            found.append(
                "authenticationEnabled, but there are no users, so all requests are refused: set the first user in "
                "initAuthenticationUser"
            )
        if self._config.acl and not self.plain.rules.accounts:
            found.append(
                "aclEnable, but no ACL file has an account, so requests from addresses that are not white-listed are "
                "refused: add an account to plain_acl.yml"
            )
        return found

    def check(self, peer: Peer, command: RemotingCommand, *, signed: bool = True) -> Refusal | None:
        """Return why a request is refused; None: it is allowed.

        signed False: do not verify the signature, which was valid when the request arrived.
        """
        if self._is_of_member(command, signed=signed):
            return None
        try:
            if self._config.acl:
                self.plain.rules.check(peer.address.ip, command, self._context, signed=signed)
            if self.auth.on:
                self.auth.check(peer.address.ip, command, self._context, signed=signed)
        except Refusal as refusal:
            self.refused += 1
            # Who keeps it is a frame of the traceback: this cycle would keep the request, up to 16 MiB, until the next
            # garbage collection.
            refusal.__traceback__ = refusal.__cause__ = refusal.__context__ = None
            return refusal
        return None

    def account_of(self, command: RemotingCommand) -> str:
        """Return the access key of an allowed request; empty: the request has no key, or it was not checked."""
        if not self.on or not (self._config.acl or self.auth.is_known(command.code)):
            return ""
        return command.ext.get(EXT_ACCESS_KEY, "")

    def may_publish(self, peer: Peer, account: str, topic: str) -> bool:
        """Return whether an account may read a half message of a topic: it needs permission to publish."""
        if not self.on or self._config.acl_like_apache:
            return True
        need, ip = Need(topic_resource(topic), ("Pub",)), peer.address.ip
        if self._config.acl and not self.plain.rules.allows(ip, account, need):
            return False
        return not self.auth.on or self.auth.allows(ip, account, need)

    def secret_key(self, peer: Peer, command: RemotingCommand) -> bytes | None:
        """Return the key that must sign requests like this one; None: they need `check`.

        For callers that verify many similar signatures. All but the signature is checked here; the result is valid for
        the same code, address, access key, topic and group until `version` changes.
        """
        ip = peer.address.ip
        try:
            if self._config.acl == self._config.authentication:
                return None  # both kinds, or authorization only: `handle` decides
            if command.ext.get("topic", "").startswith(RETRY_PREFIX):
                return None  # its owner depends on the existing groups
            name = command.ext.get(EXT_ACCESS_KEY, "")
            if self._config.acl:
                account = self.plain.rules.accounts.get(name)
                if self._config.authorization or account is None or account.is_white(ip):
                    return None
                if self.plain.rules.is_white(ip):
                    return None
                check_permissions(account, command, self._context)
                return account.secret_key
            user = self.auth.enabled_user(name)
            self.auth.authorize(ip, command, self._context)
            return user.password.encode()
        except Refusal:
            return None

    def _changed(self) -> None:
        self.version += 1
