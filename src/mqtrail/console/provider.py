"""Log-in by an OpenID Connect provider: the code flow with PKCE, state and nonce, by Authlib.

State and nonce wait for the way back in a signed cookie of these two paths. Nothing of the provider's tokens is kept.
"""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import Any, Final

import httpx2
from authlib.common.errors import AuthlibBaseError
from authlib.integrations.starlette_client import OAuth
from fastapi import Request
from fastapi.responses import Response
from joserfc.errors import JoseError
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.sessions import SessionMiddleware
from starlette.routing import Route

from mqtrail.answers.access import AccessDesk
from mqtrail.answers.http import PROVIDER
from mqtrail.gateway import Problem, problem_response
from mqtrail.wire import MQError

WAY_S: Final = 600  # that the way to the provider and back may take
TIMEOUT_S: Final = 10.0


def make_provider(
    access: AccessDesk, begun: Callable[[str, str], Response], address_of: Callable[[Request], str]
) -> Starlette:
    """Return the application of the two paths below PROVIDER. begun: answers with the cookie of a session's token."""
    config = access.config
    oauth = OAuth()
    oauth.register(
        "provider",
        client_id=config.oidc_client_id,
        client_secret=config.oidc_client_secret or None,
        server_metadata_url=f"{config.oidc_issuer.rstrip('/')}/.well-known/openid-configuration",
        client_kwargs={"scope": config.oidc_scope, "code_challenge_method": "S256", "timeout": TIMEOUT_S},
    )

    async def begin(request: Request) -> Response:
        back = f"{config.url.rstrip('/')}{PROVIDER}/back"
        return await _asked(lambda: oauth.provider.authorize_redirect(request, back))

    async def back(request: Request) -> Response:
        async def ask() -> Response:
            known = await oauth.provider.load_server_metadata()
            if str(known.get("issuer", "")).rstrip("/") != config.oidc_issuer.rstrip("/"):
                raise Problem(HTTPStatus.BAD_GATEWAY, "the provider names another issuer than [console] oidc_issuer")
            claims = (await oauth.provider.authorize_access_token(request)).get("userinfo") or {}
            name, groups = claims.get(config.oidc_name), claims.get(config.oidc_groups, [])
            if not isinstance(name, str) or not name:
                raise Problem(HTTPStatus.FORBIDDEN, f"found no claim {config.oidc_name!r}: set [console] oidc_name")
            belongs = [one for one in groups if isinstance(one, str)] if isinstance(groups, list) else []
            token = await access.log_in_by_provider(name, belongs, address_of(request))
            return begun(token, "/")

        return await _asked(ask)

    return Starlette(
        routes=[Route("/begin", begin), Route("/back", back)],
        middleware=[
            Middleware(
                SessionMiddleware,
                secret_key=secrets.token_hex(32),
                session_cookie="mqtrail-provider",
                max_age=WAY_S,
                path=PROVIDER,
                same_site="lax",
                https_only=config.is_secure,
            )
        ],
    )


async def _asked(ask: Callable[[], Awaitable[Any]]) -> Response:
    """Return the answer, or why the provider's is refused."""
    try:
        answer = await ask()
    except Problem as problem:
        return problem_response(problem.status, problem.detail)
    except MQError as error:
        return problem_response(HTTPStatus.FORBIDDEN, str(error))
    except httpx2.HTTPError as error:
        return problem_response(HTTPStatus.BAD_GATEWAY, f"the provider did not answer: {type(error).__name__}")
    except (AuthlibBaseError, JoseError, ValueError, KeyError, RuntimeError) as error:
        return problem_response(HTTPStatus.FORBIDDEN, f"the provider's answer is refused: {type(error).__name__}")
    assert isinstance(answer, Response), "both ways answer"
    return answer
