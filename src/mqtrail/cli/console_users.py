"""`console user` and `console token`: the accounts of a console. A running console sees each change at once."""

from __future__ import annotations

import getpass
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .acl import PasswordFile, password_of
from .config import Config, load
from .exits import Exit
from .operate import table
from .options import ConfigFile, Json, duration_ms
from .output import say, show_json

if TYPE_CHECKING:
    from mqtrail.answers.access import Accounts

USERS_FILE = "console-users.json"  # in the data folder
Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of the user.")]
TokenName = Annotated[str, typer.Argument(metavar="TOKEN", help="Name of the token.")]
Roles = Annotated[
    list[str],
    typer.Option("--role", help="ROLE[+bodies][@CLUSTER][/TOPIC]: viewer, operator or admin; repeatable."),
]


def accounts_of(settings: Config) -> Accounts:
    """Return the accounts that the settings name."""
    from mqtrail.answers.access import Accounts

    named = settings.room("console").users
    return Accounts(Path(named).expanduser() if named else settings.data(None) / USERS_FILE)


@contextmanager
def _noted(settings: Config, action: str, **parameters: str) -> Iterator[Accounts]:
    """Change accounts in the block, and note it in the audit log."""
    from mqtrail.answers.changes import Actor, AuditLog
    from mqtrail.net import AUDIT_FILE

    log = AuditLog(settings.data(None) / AUDIT_FILE)
    yield accounts_of(settings)
    log.note(Actor(getpass.getuser(), "", "command"), action, parameters)


def user_add(
    name: Name,
    role: Roles,
    password_stdin: PasswordFile = False,
    external: Annotated[
        bool,
        typer.Option(
            "--external", help="Add a user without a password: an OpenID provider or a proxy logs the user in."
        ),
    ] = False,
    config: ConfigFile = None,
) -> int:
    """Add a user of the console."""
    from mqtrail.answers.access import Grant

    settings = load(config)
    grants = tuple(map(Grant.parse, role))
    password = "" if external else password_of(password_stdin)
    with _noted(settings, "add-user", user=name, roles=", ".join(role)) as accounts:
        accounts.add(name, grants, password)
    say(f"user {name} added to {accounts.path}")
    return Exit.OK


def user_list(config: ConfigFile = None, json: Json = False) -> int:
    """List the users of the console with their roles and API tokens."""
    found = accounts_of(load(config)).all()
    rows = [
        {
            "user": one.name,
            "roles": [str(grant) for grant in one.grants],
            "has_password": bool(one.password),
            "tokens": [{"name": each.name, "ends_ms": each.ends_ms or None} for each in one.tokens],
        }
        for _, one in sorted(found.items())
    ]
    if json:
        show_json(rows)
    else:
        shown = [
            (
                one.name,
                ", ".join(map(str, one.grants)),
                "yes" if one.password else "no",
                ", ".join(t.name for t in one.tokens),
            )
            for _, one in sorted(found.items())
        ]
        table(("user", "roles", "password", "tokens"), shown)
    return Exit.OK


def user_remove(name: Name, config: ConfigFile = None) -> int:
    """Remove a user; its sessions and API tokens end at once."""
    with _noted(load(config), "remove-user", user=name) as accounts:
        accounts.remove(name)
    say(f"user {name} removed")
    return Exit.OK


def user_password(name: Name, password_stdin: PasswordFile = False, config: ConfigFile = None) -> int:
    """Set the password of a user; its sessions end at once."""
    settings, password = load(config), password_of(password_stdin)
    with _noted(settings, "set-password", user=name) as accounts:
        accounts.set_password(name, password)
    say(f"password of {name} set")
    return Exit.OK


def user_role(name: Name, role: Roles, config: ConfigFile = None) -> int:
    """Replace the roles of a user, with effect at once."""
    from mqtrail.answers.access import Grant

    grants = tuple(map(Grant.parse, role))
    with _noted(load(config), "set-roles", user=name, roles=", ".join(role)) as accounts:
        accounts.set_grants(name, grants)
    say(f"roles of {name}: {', '.join(map(str, grants))}")
    return Exit.OK


def token_add(
    name: Name,
    token: TokenName,
    within: Annotated[str, typer.Option(help="Time until it expires, for example 30d.")] = "90d",
    config: ConfigFile = None,
) -> int:
    """Create an API token of a user, and print it. It is shown once."""
    from mqtrail.clock import now_ms

    ends_ms = now_ms() + duration_ms(within, "--within")
    with _noted(load(config), "add-token", user=name, token=token) as accounts:
        made = accounts.add_token(name, token, now_ms(), ends_ms)
    say(made)
    return Exit.OK


def token_remove(name: Name, token: TokenName, config: ConfigFile = None) -> int:
    """Remove an API token of a user."""
    with _noted(load(config), "remove-token", user=name, token=token) as accounts:
        accounts.remove_token(name, token)
    say(f"token {token} of {name} removed")
    return Exit.OK
