"""`acl`: users and policies of 5.x brokers, and the accounts of 4.9's ACL files."""

from __future__ import annotations

import os
import sys
from typing import Annotated, Any

import typer

from .config import load
from .exits import Exit, UsageError
from .operate import Broker, Cluster, Yes, admin_of, confirm_change, failures_of, report_answer, report_change, table
from .options import ConfigFile, Json, Namesrv

PASSWORD_VARIABLE = "MQTRAIL_PASSWORD"
ACTIONS = ("Pub", "Sub", "Create", "Update", "Delete", "Get", "List", "All")

User = Annotated[str, typer.Argument(help="User name.")]
Subject = Annotated[str, typer.Argument(help="User name, or User:name.")]
PasswordFile = Annotated[
    bool,
    typer.Option("--password-stdin", help="Read the password from stdin. [default: MQTRAIL_PASSWORD, or a prompt]"),
]
Resource = Annotated[
    list[str],
    typer.Option("--resource", help="Topic:name, Group:name or Cluster:name; a final * matches any rest; repeatable."),
]
Action = Annotated[
    list[str], typer.Option("--action", help="Action: Pub, Sub, Create, Update, Delete, Get, List or All; repeatable.")
]


def password_of(from_stdin: bool) -> str:
    """Read a password from standard input, the environment or a prompt; never from the command line."""
    if from_stdin:
        text = sys.stdin.readline().rstrip("\n")
    else:
        text = os.environ.get(PASSWORD_VARIABLE, "")
        if not text and sys.stdin.isatty():
            text = str(typer.prompt("Password", hide_input=True, confirmation_prompt=True, err=True))
    if not text:
        raise UsageError(f"found no password, expected it in {PASSWORD_VARIABLE} or on stdin with --password-stdin")
    return text


def user_list(
    part: Annotated[str | None, typer.Argument(help="Show only users whose name contains this text.")] = None,
    broker: Broker = None,
    namesrv: Namesrv = None,
    config: ConfigFile = None,
    json: Json = False,
) -> int:
    """List the users of each broker."""
    with admin_of(load(config), namesrv) as admin:
        found = admin.users(part, broker=broker)
    rows = [
        {"broker": name, "user": user.username, "type": user.user_type, "status": user.user_status}
        for name, users in sorted(found.found.items())
        for user in users
    ]
    if not json:
        table(("broker", "user", "type", "status"), [list(row.values()) for row in rows])
    return report_answer({"users": rows}, failures_of(found), json)


def user_create(
    user: User,
    superuser: Annotated[bool, typer.Option("--super", help="Allow every action.")] = False,
    password_stdin: PasswordFile = False,
    cluster: Cluster = None,
    broker: Broker = None,
    namesrv: Namesrv = None,
    config: ConfigFile = None,
    json: Json = False,
) -> int:
    """Create a user on every broker."""
    password = password_of(password_stdin)
    with admin_of(load(config), namesrv) as admin:
        kind = "Super" if superuser else "Normal"
        done = admin.create_user(user, password, user_type=kind, cluster=cluster, broker=broker)
    return report_change(done, f"user {user}", f"did not create {user!r}", json, user=user)


def user_update(
    user: User,
    password: Annotated[
        bool, typer.Option("--password", help="Change the password; it is read from MQTRAIL_PASSWORD or prompted for.")
    ] = False,
    password_stdin: PasswordFile = False,
    status: Annotated[str | None, typer.Option(help="New status: enable or disable.")] = None,
    kind: Annotated[str | None, typer.Option("--type", help="New type: Normal or Super.")] = None,
    cluster: Cluster = None,
    broker: Broker = None,
    namesrv: Namesrv = None,
    config: ConfigFile = None,
    json: Json = False,
) -> int:
    """Change the password, type or status of a user on every broker."""
    if status not in (None, "enable", "disable"):
        raise UsageError(f"--status: found {status!r}, expected enable or disable")
    if kind not in (None, "Normal", "Super"):
        raise UsageError(f"--type: found {kind!r}, expected Normal or Super")
    secret = password_of(password_stdin) if password or password_stdin else None
    if secret is None and status is None and kind is None:
        raise UsageError("found nothing to change, expected --password, --status or --type")
    with admin_of(load(config), namesrv) as admin:
        done = admin.update_user(
            user, password=secret, user_type=kind, user_status=status, cluster=cluster, broker=broker
        )
    return report_change(done, f"changed {user}", f"did not change {user!r}", json, user=user)


def user_delete(
    user: User,
    cluster: Cluster = None,
    broker: Broker = None,
    yes: Yes = False,
    namesrv: Namesrv = None,
    config: ConfigFile = None,
    json: Json = False,
) -> int:
    """Delete a user on every broker."""
    confirm_change(f"delete user {user!r}", yes)
    with admin_of(load(config), namesrv) as admin:
        done = admin.delete_user(user, cluster=cluster, broker=broker)
    return report_change(done, f"deleted {user}", f"did not delete {user!r}", json, user=user)


def policy_list(
    subject: Annotated[str | None, typer.Argument(help="Show only subjects whose name contains this text.")] = None,
    resource: Annotated[
        str | None, typer.Option("--resource", help="Show only resources whose name contains this text.")
    ] = None,
    broker: Broker = None,
    namesrv: Namesrv = None,
    config: ConfigFile = None,
    json: Json = False,
) -> int:
    """List the policies of each broker: the actions that subjects may perform on resources."""
    with admin_of(load(config), namesrv) as admin:
        found = admin.acls(subject, resource, broker=broker)
    rows: list[dict[str, Any]] = [
        {
            "broker": name,
            "subject": acl.subject,
            "policy": policy.policy_type,
            "resource": entry.resource,
            "actions": list(entry.actions),
            "from": list(entry.source_ips or ()),
            "decision": entry.decision,
        }
        for name, acls in sorted(found.found.items())
        for acl in acls
        for policy in acl.policies
        for entry in policy.entries
    ]
    if not json:
        cells = [[", ".join(cell) if isinstance(cell, list) else cell for cell in row.values()] for row in rows]
        table(("broker", "subject", "policy", "resource", "actions", "from", "decision"), cells)
    return report_answer({"policies": rows}, failures_of(found), json)


def policy_set(
    subject: Subject,
    resource: Resource,
    action: Action,
    deny: Annotated[bool, typer.Option("--deny", help="Deny the actions instead of allowing them.")] = False,
    source: Annotated[
        list[str] | None,
        typer.Option("--from", help="Apply only to connections from this address or network; repeatable."),
    ] = None,
    cluster: Cluster = None,
    broker: Broker = None,
    namesrv: Namesrv = None,
    config: ConfigFile = None,
    json: Json = False,
) -> int:
    """Allow or deny a user actions on resources. Replaces the entries of the same resources."""
    from mqtrail.client import Gathered

    actions = [_action(text) for text in action]
    for text in resource:
        if text != "*" and text.partition(":")[0] not in ("Topic", "Group", "Cluster"):
            raise UsageError(f"--resource: found {text!r}, expected Topic:name, Group:name, Cluster:name, or *")
    who = _subject(subject)
    decision, sources = "Deny" if deny else "Allow", source or ()
    with admin_of(load(config), namesrv) as admin:
        found: dict[str, str] = {}
        failures: dict[str, Exception] = {}
        for name, address in admin.account_targets(cluster, broker).items():
            there = admin.acl(who, broker=address)
            change = admin.update_acl if any(there.values()) else admin.create_acl
            done = change(who, resource, actions, decision=decision, source_ips=sources, broker=address)
            if done.complete:
                found[name] = address
            for error in done.failures.values():
                failures[name] = error
    text = f"{who} {'must not' if deny else 'may'} {', '.join(actions)} {', '.join(resource)}"
    return report_change(Gathered(found, failures), text, "did not change the policy", json, subject=who)


def _action(text: str) -> str:
    for action in ACTIONS:
        if text.lower() == action.lower():
            return action
    raise UsageError(f"--action: found {text!r}, expected one of {', '.join(ACTIONS)}")


def _subject(text: str) -> str:
    return text if ":" in text else f"User:{text}"


def policy_delete(
    subject: Subject,
    resource: Annotated[str | None, typer.Option("--resource", help="Delete only the entry of this resource.")] = None,
    cluster: Cluster = None,
    broker: Broker = None,
    yes: Yes = False,
    namesrv: Namesrv = None,
    config: ConfigFile = None,
    json: Json = False,
) -> int:
    """Delete all policies of a user, or the entry of one resource."""
    who = _subject(subject)
    confirm_change(f"delete {f'the entry of {resource}' if resource else 'all policies'} of {who}", yes)
    with admin_of(load(config), namesrv) as admin:
        done = admin.delete_acl(who, resource=resource, cluster=cluster, broker=broker)
    return report_change(done, f"deleted policies of {who}", f"did not delete policies of {who}", json, subject=who)


def account_set(
    access_key: Annotated[str, typer.Argument(metavar="KEY", help="Access key, at least 7 characters.")],
    admin_account: Annotated[bool, typer.Option("--admin", help="Allow every action.")] = False,
    topics: Annotated[
        str | None, typer.Option(help="Permissions per topic, for example orders=PUB|SUB,bills=DENY.")
    ] = None,
    groups: Annotated[str | None, typer.Option(help="Permissions per group, for example billing=SUB.")] = None,
    topic_default: Annotated[
        str | None, typer.Option(help="Permission for other topics: DENY, PUB, SUB or PUB|SUB.")
    ] = None,
    group_default: Annotated[str | None, typer.Option(help="Permission for other groups: DENY or SUB.")] = None,
    white: Annotated[str | None, typer.Option(help="Addresses that need no signature, for example 10.0.0.*")] = None,
    password_stdin: PasswordFile = False,
    cluster: Cluster = None,
    broker: Broker = None,
    namesrv: Namesrv = None,
    config: ConfigFile = None,
    json: Json = False,
) -> int:
    """Create or change an account in the ACL files of 4.9. The password is its secret key."""
    from mqtrail.wire import AclAccountHeader

    account = AclAccountHeader(
        access_key, password_of(password_stdin), white, admin_account, topic_default, group_default, topics, groups
    )
    with admin_of(load(config), namesrv) as admin:
        done = admin.set_acl_account(account, cluster=cluster, broker=broker)
    return report_change(done, f"account {access_key}", f"did not set {access_key!r}", json, account=access_key)


def account_delete(
    access_key: Annotated[str, typer.Argument(metavar="KEY", help="Access key.")],
    cluster: Cluster = None,
    broker: Broker = None,
    yes: Yes = False,
    namesrv: Namesrv = None,
    config: ConfigFile = None,
    json: Json = False,
) -> int:
    """Delete an account from the ACL files of 4.9."""
    confirm_change(f"delete account {access_key!r}", yes)
    with admin_of(load(config), namesrv) as admin:
        done = admin.delete_acl_account(access_key, cluster=cluster, broker=broker)
    return report_change(done, f"deleted {access_key}", f"did not delete {access_key!r}", json, account=access_key)


def account_white(
    addresses: Annotated[list[str], typer.Argument(help="Addresses, for example 10.0.0.* or 192.168.1.10-20.")],
    cluster: Cluster = None,
    broker: Broker = None,
    yes: Yes = False,
    namesrv: Namesrv = None,
    config: ConfigFile = None,
    json: Json = False,
) -> int:
    """Set the addresses that need no signature (ACL files of 4.9). Replaces the list."""
    confirm_change(f"accept unsigned requests from {', '.join(addresses)}, and from no other address", yes)
    with admin_of(load(config), namesrv) as admin:
        done = admin.set_white_addresses(addresses, cluster=cluster, broker=broker)
    return report_change(
        done,
        f"accepts unsigned requests from {', '.join(addresses)}",
        "did not change the addresses",
        json,
        addresses=addresses,
    )


def account_version(
    cluster: Cluster = None,
    broker: Broker = None,
    namesrv: Namesrv = None,
    config: ConfigFile = None,
    json: Json = False,
) -> int:
    """Show the version of the ACL files on each broker."""
    with admin_of(load(config), namesrv) as admin:
        found = admin.acl_versions(cluster=cluster, broker=broker)
    rows = [{"broker": name, "versions": one.versions} for name, one in sorted(found.found.items())]
    if not json:
        table(("broker", "versions"), [list(row.values()) for row in rows])
    code = report_answer({"brokers": rows}, failures_of(found), json)
    return code if code != Exit.OK or rows else Exit.FAILED
