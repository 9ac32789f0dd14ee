"""Log-in, the first admin, a user's own account: plain forms without a script, so that their policy allows none."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from html import escape
from http import HTTPStatus
from typing import Final

from fastapi import FastAPI, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response
from starlette.datastructures import FormData

from mqtrail.answers.access import AccessDesk, InvalidAccount, TooManyTries, Visitor
from mqtrail.answers.http import LOGIN, PROVIDER, cookie_name, forwarded_for, visitor_of
from mqtrail.clock import now_ms
from mqtrail.gateway import Problem
from mqtrail.trail import DAY_MS
from mqtrail.wire import MQError, visible

from .frame import MARKS, STYLE, THEMES, PageReader
from .looks import moment

POLICY: Final = (
    "default-src 'none'; style-src 'self'; img-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
FIELD_SIZE_MAX: Final = 1_000
DAYS: Final = (7, 30, 90, 365)
Field = tuple[str, str, str]  # name, type, name of its text


def add_login(app: FastAPI, access: AccessDesk) -> None:
    """Add the pages. They are outside the API's description."""
    forms = _Forms(access)
    for path, ask in (
        (LOGIN, forms.log_in),
        ("/login/first", forms.first),
        ("/logout", forms.log_out),
        ("/account", forms.account),
    ):
        app.add_api_route(path, ask, methods=["GET", "POST"], include_in_schema=False, response_model=None)
    if access.config.oidc_issuer:
        from .provider import make_provider  # late: it needs the extra `oidc`

        app.mount(PROVIDER, make_provider(access, forms.begun, forms.address))
    app.add_api_route("/login.css", _style, include_in_schema=False, response_model=None)


async def _style() -> Response:
    return Response(STYLE, media_type="text/css")


class _Forms:
    def __init__(self, access: AccessDesk) -> None:
        self._access = access

    async def log_in(self, request: Request, to: str = "/") -> Response:
        """Show the form, or begin a session."""
        reader = PageReader.of(request)
        wrong, status = "", HTTPStatus.OK
        if request.method == "POST":
            form = await _form(request)
            to = _text(form, "to")
            try:
                token = await self._access.log_in(_text(form, "name"), _text(form, "password"), self.address(request))
                return self.begun(token, to)
            except TooManyTries as error:
                wrong, status = reader.say("too_many_tries", seconds=error.wait_s), HTTPStatus.TOO_MANY_REQUESTS
            except InvalidAccount:
                wrong, status = reader.say("wrong_password"), HTTPStatus.FORBIDDEN
        fields = (("name", "text", "user_name"), ("password", "password", "password"))
        with_provider = bool(self._access.config.oidc_issuer)
        more = f'<p><a class="button" href="{PROVIDER}/begin">{escape(reader.say("by_provider"))}</a></p>'
        body = _fields(reader, LOGIN, "log_in", fields, {"to": to}) + (more if with_provider else "")
        return _page(reader, "log_in", body, wrong, status)

    async def first(self, request: Request) -> Response:
        """Make the first admin with the token of the terminal."""
        reader = PageReader.of(request)
        if self._access.accounts.all():
            return RedirectResponse(LOGIN, HTTPStatus.SEE_OTHER)
        wrong, status = "", HTTPStatus.OK
        if request.method == "POST":
            form = await _form(request)
            token, name, password = (_text(form, name) for name in ("token", "name", "password"))
            try:
                return self.begun(await self._access.make_first(token, name, password, self.address(request)), "/")
            except InvalidAccount as error:
                wrong, status = str(error), HTTPStatus.FORBIDDEN
        fields = (
            ("token", "text", "first_token"),
            ("name", "text", "user_name"),
            ("password", "password", "new_password"),
        )
        return _page(reader, "first_admin", _fields(reader, "/login/first", "first_admin", fields, {}), wrong, status)

    async def log_out(self, request: Request) -> Response:
        """End the session."""
        if request.method == "POST":
            visitor = visitor_of(request)
            _check(visitor, await _form(request))
            await self._access.log_out(request.cookies.get(cookie_name(self._access), ""), visitor)
        answer = RedirectResponse(LOGIN, HTTPStatus.SEE_OTHER)
        answer.delete_cookie(cookie_name(self._access), secure=self._access.config.is_secure, httponly=True)
        return answer

    async def account(self, request: Request) -> Response:
        """Show one's own roles and tokens; change the password, make and remove tokens."""
        reader, visitor = PageReader.of(request), visitor_of(request)
        wrong, status, made = "", HTTPStatus.OK, ""
        if request.method == "POST":
            form = await _form(request)
            _check(visitor, form)
            try:
                match _text(form, "action"):
                    case "password":
                        old, new = _text(form, "password"), _text(form, "new_password")
                        address = self.address(request)
                        return self.begun(await self._access.set_password(reader.name, old, new, address), "/account")
                    case "add-token":
                        days = _text(form, "days")
                        ends_ms = now_ms() + int(days) * DAY_MS if days in map(str, DAYS) else now_ms() + DAY_MS
                        made = await self._access.add_token(visitor, _text(form, "token"), ends_ms)
                    case "remove-token":
                        await self._access.remove_token(visitor, _text(form, "token"))
            except TooManyTries as error:
                wrong, status = reader.say("too_many_tries", seconds=error.wait_s), HTTPStatus.TOO_MANY_REQUESTS
            except MQError as error:
                wrong, status = str(error), HTTPStatus.UNPROCESSABLE_ENTITY
        return _page(reader, "account", self._account(reader, visitor, made), wrong, status)

    def _account(self, reader: PageReader, visitor: Visitor, made: str) -> str:
        person, own = visitor.now(), self._access.accounts.find(reader.name)
        csrf = {"csrf": visitor.csrf}
        roles = ", ".join(map(str, person.grants))
        parts = [f"<p>{_shown(person.name)} · {escape(reader.say('roles'))}: {_shown(roles)}</p>"]
        if own is None or not visitor.csrf:
            return "".join(parts)
        if made:
            parts.append(
                f'<p role="status">{escape(reader.say("token_made"))}</p><pre tabindex="0">{_shown(made)}</pre>'
            )
        if own.password:
            both = (("password", "password", "password"), ("new_password", "password", "new_password"))
            parts.append(_fields(reader, "/account", "change_password", both, {**csrf, "action": "password"}))
        parts.append(f"<h2>{escape(reader.say('tokens'))}</h2><p>{escape(reader.say('tokens_text'))}</p>")
        for one in own.tokens:
            until = moment(one.ends_ms or None, reader.zone)
            hidden = {**csrf, "action": "remove-token", "token": one.name}
            parts.append(f"<p>{_shown(one.name)} · {escape(reader.say('until', time=until))}</p>")
            parts.append(_fields(reader, "/account", "remove_token", (), hidden))
        choices = "".join(f"<option>{days}</option>" for days in DAYS)
        days_label = escape(reader.say("days"))
        select = f'<label>{days_label} <select name="days">{choices}</select></label>'
        fields = (("token", "text", "token_name"),)
        parts.append(_fields(reader, "/account", "add_token", fields, {**csrf, "action": "add-token"}, select))
        return "".join(parts)

    def begun(self, token: str, to: str) -> Response:
        """Answer with the cookie of a session, and lead to a page of this server."""
        is_ours = to.startswith("/") and not to.startswith(("//", "/\\"))
        answer = RedirectResponse(to if is_ours else "/", HTTPStatus.SEE_OTHER)
        name, is_secure = cookie_name(self._access), self._access.config.is_secure
        answer.set_cookie(
            name, token, secure=is_secure, httponly=True, samesite="lax"
        )  # lax: links of others open pages
        return answer

    def address(self, request: Request) -> str:
        """Return the address of who asks."""
        peer = request.client.host if request.client else ""
        return self._access.address_of(peer, forwarded_for(request))


async def _form(request: Request) -> FormData:
    return await request.form(max_files=0, max_fields=20)


def _text(form: FormData, name: str) -> str:
    found = form.get(name, "")
    return found[:FIELD_SIZE_MAX] if isinstance(found, str) else ""


def _check(visitor: Visitor, form: FormData) -> None:
    """Raise Problem unless the form is one of this session."""
    if not visitor.csrf or not secrets.compare_digest(_text(form, "csrf").encode(), visitor.csrf.encode()):
        raise Problem(HTTPStatus.FORBIDDEN, "found a form of another session: load the page again")


def _shown(words: str) -> str:
    return escape(visible(words))


def _fields(
    reader: PageReader, action: str, button: str, fields: Sequence[Field], hidden: dict[str, str], more: str = ""
) -> str:
    """Return a form as HTML."""
    rows = [f'<input type="hidden" name="{name}" value="{escape(value)}">' for name, value in hidden.items()]
    for name, kind, words in fields:
        filled = {"password": "current-password", "new_password": "new-password", "name": "username"}.get(name, "off")
        rows.append(
            f'<p><label>{escape(reader.say(words))}<br><input name="{name}" type="{kind}" required '
            f'maxlength="{FIELD_SIZE_MAX}" autocomplete="{filled}"></label></p>'
        )
    rows.append(f'<p>{more} <button type="submit">{escape(reader.say(button))}</button></p>')
    return f'<form action="{action}" method="post">{"".join(rows)}</form>'


def _page(reader: PageReader, title: str, body: str, wrong: str, status: HTTPStatus) -> HTMLResponse:
    words = escape(reader.say(title))
    problem = f'<div class="problem" role="alert">{MARKS["error"]} {_shown(wrong)}</div>' if wrong else ""
    dark = " body--dark" if THEMES.get(reader.theme) else ""
    home = f'<p><a href="/">{escape(reader.say("home"))}</a></p>' if reader.name else ""
    text = (
        f'<!doctype html><html lang="{reader.language}"><head><meta charset="utf-8"><title>{words} – mqtrail</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1"><link rel="stylesheet" href="/login.css">'
        f'</head><body class="page{dark}"><main><h1>{words}</h1>{problem}{body}{home}</main></body></html>'
    )
    return HTMLResponse(text, status, headers={"Content-Security-Policy": POLICY, "Cache-Control": "no-store"})
