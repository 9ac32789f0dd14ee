"""Administration of users and policies: 3001 to 3010, as mqadmin 5.3 sends them.

Source: AdminBrokerProcessor, AuthenticationMetadataManagerImpl, AuthorizationMetadataManagerImpl,
apache/rocketmq broker/ and auth/ of 5.3.3.
"""

from mqtrail.wire import (
    EXT_ACCESS_KEY,
    AclFilterHeader,
    AclInfo,
    InvalidParameter,
    NoPermission,
    Peer,
    RemotingCommand,
    Send,
    SubjectHeader,
    SystemError_,
    UserFilterHeader,
    UserHeader,
    UserInfo,
    Work,
    answer,
    dumps,
    dumps_in_slices,
)

from ..jobs import ENTRIES_A_SLICE
from .auth import Auth, read_user, user_status_of, user_type_of
from .policies import USER_SUBJECT, Acl, Resource, User, UserType


class AuthRequests:
    """Serves requests about users and policies."""

    def __init__(self, auth: Auth) -> None:
        self._auth = auth

    # Users.

    def create_user(self, peer: Peer, request: RemotingCommand, now_ms: int) -> list[Send]:
        """3001."""
        name, info = self._user_of(request)
        if user_type_of(info) == UserType.SUPER and not self._is_super(request):
            raise SystemError_("The super user can only be create by super user")
        user = read_user(name, info)
        if name in self._auth.users:
            raise NoPermission(f"The user is existed: found {name}, change it with updateUser")
        self._auth.put_user(user)
        return answer(peer, request)

    def update_user(self, peer: Peer, request: RemotingCommand, now_ms: int) -> list[Send]:
        """3002: fields absent from the body stay unchanged."""
        name, info = self._user_of(request)
        kind = user_type_of(info)
        if kind == UserType.SUPER and not self._is_super(request):
            raise SystemError_("The super user can only be update by super user")
        old = self._auth.users.get(name)
        if old is None:
            raise NoPermission(f"The user is not exist: found {name}, create it with createUser")
        if old.user_type == UserType.SUPER and not self._is_super(request):
            raise NoPermission("The super user can only be update by super user")
        password = info.password if info.password and info.password.strip() else old.password
        self._auth.put_user(User(name, password, kind or old.user_type, user_status_of(info) or old.user_status))
        return answer(peer, request)

    def delete_user(self, peer: Peer, request: RemotingCommand, now_ms: int) -> list[Send]:
        """3003: with its policies."""
        name = UserHeader.from_ext(request.ext).username
        if not name.strip():
            raise NoPermission("username can not be blank")
        user = self._auth.users.get(name)
        if user is not None:
            if user.user_type == UserType.SUPER and not self._is_super(request):
                raise NoPermission("The super user can only be update by super user")
            self._auth.delete_user(name)
        return answer(peer, request)

    def get_user(self, peer: Peer, request: RemotingCommand, now_ms: int) -> list[Send]:
        """3004, without the password; no body if the user does not exist."""
        name = UserHeader.from_ext(request.ext).username
        if not name.strip():
            raise InvalidParameter("The username is blank")
        user = self._auth.users.get(name)
        return answer(peer, request, body=b"" if user is None else user.shown().encode())

    def list_users(self, peer: Peer, request: RemotingCommand, now_ms: int) -> Work:
        """3005, without passwords."""
        part = UserFilterHeader.from_ext(request.ext).filter or ""
        names = sorted(name for name in self._auth.users if part in name)
        users = (user.shown() for name in names if (user := self._auth.users.get(name)) is not None)
        return answer(peer, request, body=(yield from dumps_in_slices(users, ENTRIES_A_SLICE)) if names else b"")

    # Policies.

    def put_acl(self, peer: Peer, request: RemotingCommand, now_ms: int) -> list[Send]:
        """3006 and 3007: add entries; replace those for the same resource."""
        info = AclInfo.decode(request.body) if request.body else AclInfo()
        if not info.policies:
            raise SystemError_("The body of acl is null: expected policies")
        subject = self._subject(info.subject or SubjectHeader.from_ext(request.ext).subject)
        acl = Acl.read(info.policies)
        if subject.removeprefix(USER_SUBJECT) not in self._auth.users:
            raise NoPermission(f"The subject of {subject} is not exist.")
        old = self._auth.acls.get(subject)
        self._auth.put_acl(subject, acl if old is None else old.merged(acl))
        return answer(peer, request)

    def delete_acl(self, peer: Peer, request: RemotingCommand, now_ms: int) -> list[Send]:
        """3008: delete all entries of a subject, or the entry for one resource."""
        header = SubjectHeader.from_ext(request.ext)
        subject = self._known(header.subject)
        acl = self._auth.acls.get(subject)
        if acl is None:
            raise NoPermission("The acl is not exist.")
        if not header.resource:
            self._auth.delete_acl(subject)
            return answer(peer, request)
        is_default = (header.policy_type or "").lower() == "default"
        acl = acl.without(Resource.read(header.resource), is_default=is_default)
        if acl.custom or acl.default:
            self._auth.put_acl(subject, acl)
        else:
            self._auth.delete_acl(subject)
        return answer(peer, request)

    def get_acl(self, peer: Peer, request: RemotingCommand, now_ms: int) -> list[Send]:
        """3009: no body if the subject has no policies."""
        subject = self._known(SubjectHeader.from_ext(request.ext).subject)
        acl = self._auth.acls.get(subject)
        return answer(peer, request, body=b"" if acl is None else acl.info(subject).encode())

    def list_acls(self, peer: Peer, request: RemotingCommand, now_ms: int) -> Work:
        """3010. As in Apache, a resource filter that is part of the subject's name does not filter its entries."""
        header = AclFilterHeader.from_ext(request.ext)
        found = []
        weight = 0
        for subject in sorted(subject for subject in self._auth.acls if (header.subject_filter or "") in subject):
            acl = self._auth.acls.get(subject)
            if acl is None:  # deleted since the list was read
                continue
            weight += 1 + len(acl.custom) + len(acl.default)
            if weight >= ENTRIES_A_SLICE:
                weight = 0
                yield
            resource = header.resource_filter or ""
            info = acl.info(subject, None if resource in subject else resource)
            if info.policies:
                found.append(dumps(info.members()))
        return answer(peer, request, body=b"[%b]" % b",".join(found) if found else b"")

    # Helpers.

    def _user_of(self, request: RemotingCommand) -> tuple[str, UserInfo]:
        name = UserHeader.from_ext(request.ext).username
        if not name:
            raise InvalidParameter("The username is blank")
        return name, UserInfo.decode(request.body or b"{}")

    def _is_super(self, request: RemotingCommand) -> bool:
        """Return whether the request is from a Super user; without authentication, every request counts as such."""
        name = request.ext.get(EXT_ACCESS_KEY, "")
        if not name:
            return True
        user = self._auth.users.get(name)
        if user is None:
            raise NoPermission(f"{USER_SUBJECT}{name} is not found")
        return user.user_type == UserType.SUPER

    def _subject(self, text: str) -> str:
        kind, colon, name = text.partition(":")
        if not colon or kind.lower() != "user" or not name:
            raise NoPermission(f"The subject type is null: found {text!r}, expected User:name")
        return USER_SUBJECT + name

    def _known(self, text: str) -> str:
        subject = self._subject(text)
        if subject.removeprefix(USER_SUBJECT) not in self._auth.users:
            raise NoPermission(f"The subject is not exist: found {text!r}, expected a user that createUser made")
        return subject
