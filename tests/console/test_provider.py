"""Log-in by an OpenID Connect provider: a small real one, with keys and tokens of its own."""

from __future__ import annotations

import base64
import hashlib
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlencode

import httpx
import httpx2
import pytest
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, RedirectResponse
from joserfc import jwt
from joserfc.jwk import RSAKey

from mqtrail.answers import Sources
from mqtrail.answers.access import AccessConfig, AccessDesk, Accounts, Grant
from mqtrail.answers.changes import AuditLog
from mqtrail.answers.http import API_PREFIX, make_api
from mqtrail.console.login import add_login
from tests.answers.serving import serving

CONSOLE = "http://console.example"
KEY = RSAKey.generate_key(2048, parameters={"kid": "one", "use": "sig", "alg": "RS256"})
OTHER_KEY = RSAKey.generate_key(2048, parameters={"kid": "one", "use": "sig", "alg": "RS256"})


@dataclass
class Provider:
    """An OpenID provider. claims: what it says of its user. wrong: claims that replace those that are right."""

    url: str = ""
    claims: dict[str, Any] = field(default_factory=dict)
    wrong: dict[str, Any] = field(default_factory=dict)
    key: RSAKey = field(default_factory=lambda: KEY)
    asked: dict[str, dict[str, str]] = field(default_factory=dict)

    def app(self) -> FastAPI:
        """Return its application: discovery, keys, and the code flow with PKCE."""
        app = FastAPI()

        @app.get("/.well-known/openid-configuration")
        async def discovery() -> dict[str, Any]:
            ends = {"authorization": "authorize", "token": "token"}
            found: dict[str, Any] = {f"{name}_endpoint": f"{self.url}/{path}" for name, path in ends.items()}
            return {"issuer": self.url, "jwks_uri": f"{self.url}/keys", **found}

        @app.get("/keys")
        async def keys() -> dict[str, Any]:
            return {"keys": [KEY.as_dict(private=False)]}

        @app.get("/authorize")
        async def authorize(request: Request) -> RedirectResponse:
            asked = dict(request.query_params)
            code = f"code-{len(self.asked)}"
            self.asked[code] = asked
            return RedirectResponse(f"{asked['redirect_uri']}?{urlencode({'code': code, 'state': asked['state']})}")

        @app.post("/token")
        async def token(request: Request) -> JSONResponse:
            form = {name: values[0] for name, values in parse_qs((await request.body()).decode()).items()}
            asked = self.asked.pop(form.get("code", ""), None)
            digest = hashlib.sha256(form.get("code_verifier", "").encode()).digest()
            expected = base64.b64encode(b"mqtrail:hidden").decode()
            if (
                asked is None
                or base64.urlsafe_b64encode(digest).rstrip(b"=").decode() != asked["code_challenge"]
                or request.headers.get("authorization") != f"Basic {expected}"
            ):
                return JSONResponse({"error": "invalid_grant"}, 400)
            now = int(time.time())
            said = {"iss": self.url, "aud": "mqtrail", "sub": "1", "iat": now, "exp": now + 60, "nonce": asked["nonce"]}
            signed = jwt.encode({"alg": "RS256", "kid": "one"}, {**said, **self.claims, **self.wrong}, self.key)
            return JSONResponse({"access_token": "x", "token_type": "Bearer", "id_token": signed})

        return app


@pytest.fixture
def provider() -> Iterator[Provider]:
    one = Provider(claims={"preferred_username": "ann", "groups": ["support"]})
    with serving(one.app()) as url:
        one.url = url
        yield one


@pytest.fixture
def client(provider: Provider, tmp_path: Path) -> Iterator[httpx.Client]:
    """A browser at a console that trusts the provider."""
    config = AccessConfig(
        url=CONSOLE,
        oidc_issuer=provider.url,
        oidc_client_id="mqtrail",
        oidc_client_secret="hidden",
        group_roles=("support=viewer+bodies/orders", "ops=operator"),
    )
    access = AccessDesk(config, Accounts(tmp_path / "users.json"), AuditLog(tmp_path / "audit.jsonl"))
    access.accounts.add("bob", (Grant.parse("admin"),), "")
    app = make_api(Sources.open(None, "127.0.0.1:1"), None, None, access)
    add_login(app, access)
    with serving(app) as served, httpx.Client(base_url=served, timeout=60) as one:
        yield one


def log_in(client: httpx.Client) -> httpx.Response:
    """Go to the provider and back; return the console's answer."""
    return client.get(way_back(client))


def way_back(client: httpx.Client) -> str:
    """Go to the provider; return the address that it leads to."""
    back = client.get(client.get("/login/provider/begin").headers["location"]).headers["location"]
    assert back.startswith(f"{CONSOLE}/login/provider/back?")
    return str(back.replace(CONSOLE, str(client.base_url).rstrip("/")))


def roles(client: httpx.Client) -> tuple[str, list[str]]:
    me = client.get(f"{API_PREFIX}/me").json()
    return me["name"], me["roles"]


def test_groups_of_the_provider_give_roles(client: httpx.Client, provider: Provider) -> None:
    """An account of the same name gives further ones."""
    assert "/login/provider/begin" in client.get("/login").text
    answer = log_in(client)
    assert (answer.status_code, answer.headers["location"]) == (303, "/")
    assert roles(client) == ("ann", ["viewer+bodies/orders"])
    provider.claims = {"preferred_username": "bob", "groups": ["ops", 5]}
    log_in(client)
    assert roles(client) == ("bob", ["operator", "admin"])


@pytest.mark.slow
@pytest.mark.parametrize(
    "wrong",
    [
        {"nonce": "another"},
        {"aud": "another"},
        {"iss": "http://evil.example"},
        {"exp": 1},
        {"preferred_username": None},
        {"preferred_username": "nobody", "groups": []},
        {"groups": "ops"},
    ],
    ids=str,
)
def test_an_answer_that_is_wrong_lets_nobody_in(
    client: httpx.Client, provider: Provider, wrong: dict[str, Any]
) -> None:
    provider.wrong = wrong
    answer = log_in(client)
    assert answer.status_code == 403
    assert client.get(f"{API_PREFIX}/me").status_code == 401


def test_a_signature_of_another_key_lets_nobody_in(client: httpx.Client, provider: Provider) -> None:
    provider.key = OTHER_KEY
    assert log_in(client).status_code == 403
    assert client.get(f"{API_PREFIX}/me").status_code == 401


def test_a_way_back_counts_once_in_the_browser_that_began_it(client: httpx.Client) -> None:
    """A link that another user made logs no user in; neither does a used one."""
    way = way_back(client)
    with httpx.Client(timeout=60) as other:
        assert other.get(way).status_code == 403
        assert other.get(way.split("/login")[0] + "/login/provider/back?error=denied").status_code == 403
    assert client.get(way).status_code == 303
    client.cookies.delete("mqtrail-session")
    assert client.get(way).status_code == 403


def test_a_provider_that_is_down(client: httpx.Client, provider: Provider, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is a problem in words, and local users still log in."""

    async def down(*_: Any, **__: Any) -> None:
        raise httpx2.ConnectError("refused")

    monkeypatch.setattr(httpx2.AsyncClient, "request", down)
    answer = client.get("/login/provider/begin")
    assert (answer.status_code, answer.headers["content-type"]) == (502, "application/problem+json")
    assert client.get("/login").status_code == 200
