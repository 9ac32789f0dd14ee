"""Administration of ACL files: 50 creates or changes an account, 51 deletes one, 52 and 54 show, 53 sets white
addresses.

A change is checked as a whole, written to its file through AclFiles, and then applied. Each change increases the
dataVersion of the file. Comments in the file are lost, as in Apache's broker.

Source: AdminBrokerProcessor, PlainPermissionManager, apache/rocketmq broker/ and acl/ of 4.9.8 (54: of 4.9.2).
"""

import copy
import json
from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol

from mqtrail.wire import (
    AclAccountHeader,
    AclAddressesHeader,
    AclKeyHeader,
    BodyError,
    DataVersion,
    InvalidParameter,
    Peer,
    RemotingCommand,
    Send,
    UnknownRefusal,
    answer,
)

from ..config import BrokerConfig
from ..files import next_version
from .plain import KEY_LENGTH_MIN, PERMISSIONS, PlainRules, read_rules, rules_of

UPDATE_FAILED: Final = 209  # UPDATE_AND_CREATE_ACL_CONFIG_FAILED of 4.9
DELETE_FAILED: Final = 210  # DELETE_ACL_CONFIG_FAILED
WHITE_FAILED: Final = 211  # UPDATE_GLOBAL_WHITE_ADDRS_CONFIG_FAILED


class AclFiles(Protocol):
    """Writes ACL files; the node implements it."""

    default: str  # name of plain_acl.yml, the file of new accounts

    def write(self, name: str, text: str) -> None:
        """Replace a file durably; its folder exists. OSError."""
        ...


class PlainAcl:
    """The current rules of the ACL files."""

    def __init__(self, config: BrokerConfig, files: AclFiles | None, on_change: Callable[[], None]) -> None:
        self._config = config
        self._files = files
        self._on_change = on_change
        self.rules = PlainRules()

    def load(self, texts: Mapping[str, str]) -> tuple[str, ...]:
        """Load the files; return the ignored parts. InvalidParameter: the old rules stay in force."""
        self.rules = read_rules(texts)
        self._on_change()
        return self.rules.problems

    # Requests.

    def update(self, peer: Peer, request: RemotingCommand, now_ms: int) -> list[Send]:
        """50."""
        wanted = AclAccountHeader.from_ext(request.ext)
        try:
            self._write_account(wanted, now_ms)
        except (InvalidParameter, OSError) as error:
            raise UnknownRefusal(_why(error), UPDATE_FAILED) from error
        return answer(peer, request)

    def delete(self, peer: Peer, request: RemotingCommand, now_ms: int) -> list[Send]:
        """51."""
        access_key = AclKeyHeader.from_ext(request.ext).access_key
        name = self.rules.file_of.get(access_key)
        if name is None:
            raise UnknownRefusal(
                f"The accesskey[{access_key}] corresponding to accessConfig has been deleted failed: found no such "
                "account",
                DELETE_FAILED,
            )
        document = self._copy(name)
        document["accounts"] = [entry for entry in document["accounts"] if str(entry["accessKey"]) != access_key]
        try:
            self._write(name, document, now_ms)
        except (InvalidParameter, OSError) as error:
            raise UnknownRefusal(_why(error), DELETE_FAILED) from error
        return answer(peer, request)

    def set_white(self, peer: Peer, request: RemotingCommand, now_ms: int) -> list[Send]:
        """53."""
        header = AclAddressesHeader.from_ext(request.ext)
        try:
            default = self._writable().default
            name = header.acl_file_full_path or default
            if name not in self.rules.documents and name != default:
                raise InvalidParameter(
                    f"found file {name}, expected one of {', '.join([default, *self.rules.documents])}"
                )
            document = self._copy(name)
            document["globalWhiteRemoteAddresses"] = [
                address for part in header.global_white_addrs.split(",") if (address := part.strip())
            ]
            self._write(name, document, now_ms)
        except (InvalidParameter, OSError) as error:
            raise UnknownRefusal(
                f"The globalWhiteAddresses[{header.global_white_addrs}] has been updated failed: {_why(error)}",
                WHITE_FAILED,
            ) from error
        return answer(peer, request)

    def versions(self, peer: Peer, request: RemotingCommand, now_ms: int) -> list[Send]:
        """52: number of changes of each file by requests."""
        versions = {name: _version(document).members() for name, document in self.rules.documents.items()}
        default = {} if self._files is None else versions.get(self._files.default, DataVersion(0).members())
        config = self._config
        return answer(
            peer,
            request,
            {
                "version": json.dumps(default, separators=(",", ":")),
                "allAclFileVersion": json.dumps(versions, separators=(",", ":")),
                "brokerAddr": str(config.address),
                "brokerName": config.broker_name,
                "clusterName": config.cluster_name,
            },
        )

    def show(self, peer: Peer, request: RemotingCommand, now_ms: int) -> list[Send]:
        """54: all accounts without secrets, which 4.9.2 sends in clear text."""
        accounts = []
        white: list[str] = []
        for name, document in self.rules.documents.items():
            white += [str(text) for text in document.get("globalWhiteRemoteAddresses") or ()]
            accounts += [
                {key: value for key, value in entry.items() if key != "secretKey"}
                for entry in document.get("accounts") or ()
                if self.rules.file_of.get(str(entry["accessKey"])) == name
            ]
        body = {"globalWhiteAddrs": white, "plainAccessConfigs": accounts}
        return answer(peer, request, body=json.dumps(body, default=str, separators=(",", ":")).encode())

    # Helpers.

    def _write_account(self, wanted: AclAccountHeader, now_ms: int) -> None:
        access_key, secret_key = wanted.access_key, wanted.secret_key
        if len(access_key) < KEY_LENGTH_MIN or len(secret_key) < KEY_LENGTH_MIN:
            raise InvalidParameter(
                f"The accessKey={access_key} and its secretKey cannot be null and length should longer than 6"
            )
        topics, groups = _permissions(wanted.topic_perms), _permissions(wanted.group_perms)
        name = self.rules.file_of.get(access_key, self._writable().default)
        document = self._copy(name)
        entries = document.setdefault("accounts", []) or []
        document["accounts"] = entries
        entry = next((one for one in entries if str(one["accessKey"]) == access_key), None)
        if entry is None:
            entry = {"accessKey": access_key}
            entries.append(entry)
        fields: dict[str, object] = {
            "secretKey": secret_key,
            "whiteRemoteAddress": wanted.white_remote_address,
            "admin": wanted.admin,
            "defaultTopicPerm": wanted.default_topic_perm or None,
            "defaultGroupPerm": wanted.default_group_perm or None,
            "topicPerms": topics,
            "groupPerms": groups,
        }
        entry |= {key: value for key, value in fields.items() if value is not None}
        self._write(name, document, now_ms)

    def _writable(self) -> AclFiles:
        if self._files is None:
            raise InvalidParameter("found a broker without a folder for ACL files, expected one started with --data")
        return self._files

    def _copy(self, name: str) -> dict[str, Any]:
        return copy.deepcopy(dict(self.rules.documents.get(name, {})))

    def _write(self, name: str, document: dict[str, Any], now_ms: int) -> None:
        """Check, write and apply a change, in this order, so that an invalid file is never written."""
        from .yaml_text import write_yaml  # loads the YAML writer only when it is needed

        version = next_version(_version(document), now_ms)
        document["dataVersion"] = [{"counter": version.counter, "timestamp": version.timestamp}]
        rules = rules_of({**self.rules.documents, name: document})
        self._writable().write(name, write_yaml(document))
        self.rules = rules
        self._on_change()


def _version(document: Mapping[str, Any]) -> DataVersion:
    fields = document.get("dataVersion") or [{}]
    try:
        return DataVersion(int(fields[0].get("timestamp", 0)), int(fields[0].get("counter", 0)))
    except (AttributeError, KeyError, IndexError, TypeError, ValueError, BodyError):
        return DataVersion(0)


def _permissions(text: str | None) -> list[str] | None:
    """Return the name=permission texts of a header; None: absent. InvalidParameter."""
    if text is None:
        return None
    found = []
    for part in (part.strip() for part in text.split(",") if part.strip()):
        name, _, permission = part.partition("=")
        if not name or permission.strip() not in PERMISSIONS:
            raise InvalidParameter(
                f"Parse resource permission error for {part}: The expected permissions are 'SUB' or 'PUB' or "
                "'SUB|PUB' or 'PUB|SUB', as in topicA=SUB"
            )
        found.append(part)
    return found


def _why(error: Exception) -> str:
    return error.remark if isinstance(error, InvalidParameter) else f"the file was not written: {error}"
