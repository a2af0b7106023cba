"""The pages at which a person logs in to a server: a link, its confirmation, and the redirect back.

Whoever has a link may log in with it, once and for its subject only. So the page names the subject
and asks before it sends anybody to the authorization server, it accepts the click from itself only,
and the redirect only from the browser that clicked.
"""

from __future__ import annotations

import hashlib
import html
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote, urlsplit

from aiohttp import web

from leaseway.control_plane.sync.login_steps import LoginFailed, LoginSteps
from leaseway.telemetry.http_listener import check_request
from leaseway.v1 import sync_pb2
from leaseway.wire.sharing.newest import Newest

_COOKIE: Final = "leaseway_login_"
"""How the name of a cookie begins. Each login has one, so that tabs do not disturb one another."""
_CALLBACK: Final = "login/callback"
_LIFETIME: Final = 600.0
_MAX_BEGUN: Final = 1_000
_MAX_PARAMETERS: Final = 16
_MAX_PARAMETER: Final = 8_192
_POLICY: Final = (
    "default-src 'none'; style-src 'self'; base-uri 'none'; form-action 'self';"
    " frame-ancestors 'none'"
)


@dataclass(frozen=True)
class _Begun:
    worker_id: str
    browser: str
    ends: float


class LoginPages:
    """Serves the pages.

    Args:
        steps: Lets workers take the steps.
        console_url: The address of the console, with a slash at its end; empty serves no pages.
        is_open: Whether the console needs no credential; then only this machine's names are served.
        clock: Monotonic seconds.
    """

    def __init__(
        self,
        steps: LoginSteps,
        console_url: str,
        *,
        is_open: bool,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._steps = steps
        self._console_url = console_url
        self._root = urlsplit(console_url).path or "/"
        self._is_open = is_open
        self._clock = clock
        self._begun: Newest[str, _Begun] = Newest(_MAX_BEGUN)

    def add_routes(self, router: web.UrlDispatcher) -> None:
        router.add_get(f"/{_CALLBACK}", self._finish)
        router.add_get("/login/{worker}/{ticket}", self._confirm)
        router.add_post("/login/{worker}/{ticket}", self._begin)

    async def make_link(self, server_id: str, tenant: str, user: str) -> str:
        """Return the path of a new link for a login.

        Raises:
            LoginFailed: No worker can make one, or there are no pages.
        """
        if not self._console_url:
            raise LoginFailed(
                "The login failed: name the console's address for browsers with --console-url."
            )
        worker_id, ticket = await self._steps.make_link(server_id, tenant, user)
        return f"login/{quote(worker_id, safe='')}/{ticket}"

    async def _confirm(self, request: web.Request) -> web.Response:
        """Ask the person, who may have got the link from anybody."""
        await self._check_host(request)
        try:
            found = await self._steps.take(
                request.match_info["worker"],
                sync_pb2.LoginStep(ticket=request.match_info["ticket"]),
            )
        except LoginFailed as failure:
            return self._page("Log in", html.escape(str(failure)), 404)
        whom = _whom(found)
        return self._page(
            "Log in",
            f"<p>You are about to log in to the server <b>{html.escape(found.server_id)}</b> for "
            f"{whom}.</p><p>From then on, calls of {whom} act in your name there. Continue only if "
            "that is you, and if you expected this page.</p>"
            '<form method="post"><button>Continue</button></form>',
        )

    async def _begin(self, request: web.Request) -> web.Response:
        await self._check_host(request)
        self._check_click(request)
        worker_id = request.match_info["worker"]
        redirect = f"{self._console_url}{_CALLBACK}"
        step = sync_pb2.LoginStep(ticket=request.match_info["ticket"], redirect_uri=redirect)
        try:
            found = await self._steps.take(worker_id, step)
        except LoginFailed as failure:
            return self._page("Log in", html.escape(str(failure)), 409)
        browser = secrets.token_urlsafe(16)
        self._begun[found.state] = _Begun(worker_id, browser, self._clock() + _LIFETIME)
        # No redirect: `form-action` would have to name the authorization server.
        url = html.escape(found.authorization_url)
        response = self._page(
            "Log in",
            f'<meta http-equiv="refresh" content="0;url={url}">'
            f'<p><a href="{url}">Continue to {html.escape(_host(found.authorization_url))}</a></p>',
        )
        response.set_cookie(
            _cookie_of(found.state),
            browser,
            httponly=True,
            secure=self._console_url.startswith("https:"),
            samesite="Lax",  # the redirect comes from another site
            path=f"{self._root}{_CALLBACK}",
            max_age=int(_LIFETIME),
        )
        return response

    async def _finish(self, request: web.Request) -> web.Response:
        await self._check_host(request)
        query = request.query
        state = query.get("state", "")
        begun = self._begun.get(state)
        is_same = begun is not None and secrets.compare_digest(
            request.cookies.get(_cookie_of(state), "").encode(), begun.browser.encode()
        )
        if begun is None or not is_same or begun.ends < self._clock():
            body = (
                "<p>No login of this browser waits for this page. It was begun in another browser,"
                " took too long, or the control plane was restarted meanwhile: open its link again."
                "</p>"
            )
            return self._page("Log in", body, 403)
        del self._begun[state]
        step = sync_pb2.LoginStep(state=state)
        for name, value in list(query.items())[:_MAX_PARAMETERS]:
            if name != "state" and len(name) + len(value) <= _MAX_PARAMETER:
                step.answer[name] = value
        try:
            found = await self._steps.take(begun.worker_id, step)
        except LoginFailed as failure:
            return self._page("Log in", f"<p>{html.escape(str(failure))}</p>", 409)
        server = html.escape(found.server_id)
        console = f"{html.escape(self._root)}#/server/{quote(found.server_id)}/"
        response = self._page(
            "You are logged in",
            f"<p>You are logged in to the server <b>{server}</b> for {_whom(found)}. You can close "
            f'this page.</p><p><a href="{console}">Console</a></p>',
        )
        response.del_cookie(_cookie_of(state), path=f"{self._root}{_CALLBACK}")
        return response

    async def _check_host(self, request: web.Request) -> None:
        if not self._console_url:
            raise web.HTTPNotFound(text="The page does not exist.")
        host = _host(self._console_url)
        if self._is_open and request.host != host:
            await check_request(None, request.host, None, "the console")

    def _check_click(self, request: web.Request) -> None:
        """Reject a click that another site's page made.

        Raises:
            web.HTTPForbidden: It may be one.
        """
        site = request.headers.get("Sec-Fetch-Site", "same-origin")
        origin = request.headers.get("Origin")
        ours = (None, request.host, _host(self._console_url))  # a proxy may name another host
        if site != "same-origin" or (origin and _host(origin)) not in ours:
            raise web.HTTPForbidden(text="Only the login page itself may send this.")

    def _page(self, title: str, body: str, status: int = 200) -> web.Response:
        text = (
            f'<!doctype html><html lang="en"><title>{title} – Leaseway</title>'
            f'<link rel="stylesheet" href="{html.escape(self._root)}style.css">'
            f"<main><h1>{title}</h1>{body}</main></html>"
        )
        response = web.Response(text=text, status=status, content_type="text/html", charset="utf-8")
        response.headers["Content-Security-Policy"] = _POLICY
        return response


def _cookie_of(state: str) -> str:
    """Return the name of the cookie that says which browser began a login."""
    return f"{_COOKIE}{hashlib.sha256(state.encode(errors='replace')).hexdigest()[:16]}"


def _host(url: str) -> str:
    return urlsplit(url).netloc


def _whom(found: sync_pb2.LoginResult) -> str:
    tenant = f"the tenant <b>{html.escape(found.tenant)}</b>"
    return f"the user <b>{html.escape(found.user)}</b> of {tenant}" if found.user else tenant
