"""The console's HTTP server: the page, its JSON API and the live stream."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextvars import ContextVar
from functools import partial
from importlib.resources import files
from typing import Any, Final

from aiohttp import web

from leaseway.control_plane.console import records
from leaseway.control_plane.console.access import (
    ConsoleAccess,
    ConsoleAdmit,
    check_origin,
    cookie_of,
)
from leaseway.control_plane.console.actions import ActionRefused, Actions
from leaseway.control_plane.console.live import Live, Queue, ResponseCache, TooManyPages
from leaseway.control_plane.console.login_pages import LoginPages
from leaseway.control_plane.console.records import ServerRows
from leaseway.control_plane.console.rows import Json, row
from leaseway.control_plane.operators.inspector import Inspector
from leaseway.control_plane.plane import Plane
from leaseway.control_plane.stored_approvals import StoredApprovals
from leaseway.control_plane.sync.login_steps import LoginFailed, LoginSteps
from leaseway.identity.authenticator import run_until_revoked
from leaseway.identity.principal import LOOPBACK, Principal, Role
from leaseway.runbook import entries
from leaseway.telemetry.http_listener import HttpListener, HttpRefusal
from leaseway.v1 import admin_pb2
from leaseway.wire.bounds import KIB, MAX_PAST_CALLS, MAX_VALUES, MIB
from leaseway.wire.channels.endpoint import Endpoint
from leaseway.wire.errors import Fault
from leaseway.wire.messages.enums import SELECTIONS
from leaseway.wire.messages.portable_json import has_many_values
from leaseway.wire.names import DEFAULT_TENANT
from leaseway.wire.sharing.fair_shares import Holder
from leaseway.wire.timing.running_tasks import keep_running

_CONTENT_TYPES: Final = {
    "html": "text/html",
    "js": "text/javascript",
    "css": "text/css",
    "svg": "image/svg+xml",
    "txt": "text/plain",
}
_SECURITY_HEADERS: Final = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self';"
        " connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
    "Server": "leaseway",
}
_MAX_ROWS: Final = 500
_MAX_EVENTS: Final = 1_000
_MAX_TEXT: Final = 256
_LONE_SURROGATE: Final = re.compile("[\ud800-\udfff]")  # JSON allows it, UTF-8 has none
_GONE: Final = "It does not exist any more."
_IDLE_TIMEOUT: Final = 60.0
_MAX_BODY: Final = MIB
_MAX_KEY: Final = 16 * KIB
_principal: ContextVar[Principal] = ContextVar("principal")

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class ConsoleListener(HttpListener):
    """The address and access rules of the console.

    Args:
        admit: Authenticates requests; None admits all.
        public_url: The console's address for the browsers of people who log in to servers.
    """

    noun = "console"
    option = "--console"
    path = "/"
    admit: ConsoleAdmit | None

    def __init__(
        self, endpoint: Endpoint, admit: ConsoleAdmit | None, public_url: str = ""
    ) -> None:
        super().__init__(endpoint, admit)
        self._public_url = public_url

    @property
    def login_url(self) -> str:
        """Where people log in to servers; empty if their browsers cannot reach it."""
        if self._public_url:
            return f"{self._public_url.rstrip('/')}/"
        return self.url if self.endpoint.is_loopback else ""


@contextlib.asynccontextmanager
async def serve_console(
    listener: ConsoleListener,
    plane: Plane,
    key: str | None = None,
    logins: LoginSteps | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> AsyncIterator[None]:
    """Serve the console while the block runs.

    Args:
        key: The key for calls to workers, or None.
        logins: Lets workers take the steps of logins.
        clock: Monotonic seconds, for the ends of sessions.
    """
    inspector = Inspector(plane)
    rows = ServerRows(plane)
    live = Live(plane, inspector, rows)
    steps = logins or LoginSteps(plane.streams)
    pages = LoginPages(steps, listener.login_url, is_open=listener.admit is None)
    access = ConsoleAccess(listener.admit, clock)
    site = _ConsoleSite(
        plane=plane,
        inspector=inspector,
        live=live,
        rows=rows,
        access=access,
        logins=pages,
        key=key,
    )
    app = web.Application(middlewares=[site.guard], client_max_size=_MAX_BODY)
    site.add_routes(app)
    async with listener.serve(app, idle=_IDLE_TIMEOUT):
        updates = asyncio.create_task(keep_running(live.run, "update pages"), name="console")
        try:
            yield
        finally:
            updates.cancel()
            await asyncio.gather(updates, return_exceptions=True)


class _ConsoleSite:
    def __init__(
        self,
        plane: Plane,
        inspector: Inspector,
        live: Live,
        rows: ServerRows,
        access: ConsoleAccess,
        logins: LoginPages,
        key: str | None,
    ) -> None:
        self._plane = plane
        self._inspector = inspector
        self._live = live
        self._rows = rows
        self._cache = ResponseCache()
        self._access = access
        self._logins = logins
        self._actions = Actions(plane, key)
        page = files("leaseway.control_plane.console") / "page"
        self._files = {
            f"{folder}{file.name}": (file.read_bytes(), _CONTENT_TYPES[suffix])
            for folder in ("", "vendor/")
            for file in page.joinpath(folder).iterdir()
            if (suffix := file.name.rpartition(".")[2]) in _CONTENT_TYPES
        }
        self._files[""] = self._files["index.html"]

    def add_routes(self, app: web.Application) -> None:
        router = app.router
        router.add_get("/api/session", self._session)
        router.add_post("/api/session", self._sign_in)
        router.add_delete("/api/session", self._sign_out)
        router.add_get("/api/live", self._stream)
        router.add_get("/api/overview", self._read(self._overview))
        router.add_get("/api/servers", self._read(self._servers))
        router.add_get("/api/server", self._read(self._server))
        router.add_get("/api/tools", self._read(partial(records.tools, self._plane)))
        router.add_get("/api/tool", self._read(self._tool))
        router.add_get("/api/leases", self._leases)
        router.add_get("/api/workers", self._read(partial(records.workers, self._plane)))
        router.add_get("/api/problems", self._read(partial(records.problems, self._plane)))
        router.add_get("/api/approvals", self._approvals)
        router.add_get("/api/approval", self._approval)
        router.add_post("/api/decide", self._decide)
        router.add_get("/api/events", self._read(self._events))
        router.add_get("/api/runbook", self._read(_runbook))
        router.add_get("/api/calls", self._calls)
        router.add_get("/api/logs", self._logs)
        router.add_post("/api/revoke", self._revoke)
        router.add_post("/api/drain", self._drain)
        router.add_post("/api/try", self._try)
        router.add_post("/api/login", self._login)
        self._logins.add_routes(router)
        router.add_get("/{path:.*}", self._file)

    @web.middleware
    async def guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Authenticate the request, convert errors to JSON and add security headers."""
        try:
            if request.path.startswith("/api/") and not _needs_no_credential(request):
                _principal.set(await self._access.check(request))
            response = await handler(request)
        except HttpRefusal as refusal:
            response = _json({"error": str(refusal)}, refusal.status)
            response.headers.update(refusal.headers)
        except web.HTTPException as error:
            response = _json({"error": error.text or error.reason}, error.status)
        except ActionRefused as error:
            response = _json({"error": str(error)}, 409)
        if not response.prepared:
            for name, value in _SECURITY_HEADERS.items():
                response.headers.setdefault(name, value)
        return response

    async def _file(self, request: web.Request) -> web.Response:
        found = self._files.get(request.match_info["path"])
        if found is None:
            raise web.HTTPNotFound(text="The page does not exist.")
        body, kind = found
        return web.Response(body=body, content_type=kind, charset="utf-8")

    async def _session(self, request: web.Request) -> web.Response:
        return _json(_rights(_principal.get(), signed_in=self._access.has_session(request)))

    async def _sign_in(self, request: web.Request) -> web.Response:
        check_origin(request)
        body = await _body(request, _MAX_KEY)
        key = _text(body, "key", _MAX_KEY)
        session, who = await self._access.sign_in(key, request.remote or "")
        response = _json(_rights(who, signed_in=session is not None))
        if session is not None:
            response.set_cookie(
                name=cookie_of(request),
                value=session,
                httponly=True,
                samesite="Strict",
                secure=request.secure,
                path="/",
            )
        return response

    async def _sign_out(self, request: web.Request) -> web.Response:
        check_origin(request)
        self._access.sign_out(request)
        response = _json({"message": "The session has ended."})
        response.del_cookie(cookie_of(request), httponly=True, samesite="Strict", path="/")
        return response

    async def _stream(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(
            headers={**_SECURITY_HEADERS, "Content-Type": "text/event-stream"}
        )
        who, authorization = _principal.get(), self._access.authorization(request)

        async def write_updates(queue: Queue) -> None:
            while (text := await queue.get()) is not None:
                if self._access.authorization(request) != authorization:
                    return  # the session that opened the page has ended
                await response.write(text)

        try:
            with (
                self._live.page(_holder(who, request.remote)) as queue,
                self._access.watch(request, who) as revoked,
            ):
                await response.prepare(request)
                await run_until_revoked(revoked, write_updates(queue))
        except TooManyPages:
            raise web.HTTPServiceUnavailable(text="Too many pages are open.") from None
        except (ConnectionResetError, Fault):
            pass  # the page asks for its session, which says why, before it connects again
        return response

    def _read(self, answer: Callable[[Json], Json | None]) -> Handler:
        async def handler(request: web.Request) -> web.Response:
            found = answer(_query(request))
            if found is None:
                raise web.HTTPNotFound(text=_GONE)
            return _json(found)

        return handler

    def _overview(self, _query: Json) -> Json:
        return records.overview(self._plane, self._rows.all())

    def _servers(self, query: Json) -> Json:
        return records.servers(self._rows.all(), query)

    def _server(self, query: Json) -> Json | None:
        return records.server(self._plane, query.get("id", ""), query.get("tenant", ""))

    def _tool(self, query: Json) -> Json | None:
        return records.tool(self._plane, query.get("name", ""), query.get("tenant", ""))

    def _events(self, query: Json) -> Json:
        kinds = (query["kind"],) if query.get("kind") else ()
        last = min(query.get("last", _MAX_EVENTS) or _MAX_EVENTS, _MAX_EVENTS)
        found = self._plane.events.history.select(
            server_id=query.get("server", ""), kinds=kinds, last=last
        )
        return {"items": [records.event(entry) for entry in reversed(found)]}

    async def _approvals(self, _request: web.Request) -> web.Response:
        who = _principal.get()
        found = (await self._known_approvals()).listed(who.tenant or "")
        items = [records.approval(approval, whole=False) for approval in found[:_MAX_ROWS]]
        return _json({"items": items, "approver": who.has({Role.APPROVER})})

    async def _approval(self, request: web.Request) -> web.Response:
        approvals = await self._known_approvals()
        found = approvals.get(_query(request).get("id", ""), _principal.get().tenant or "")
        if found is None:
            raise web.HTTPNotFound(text=_GONE)
        return _json(records.approval(found, whole=True))

    async def _known_approvals(self) -> StoredApprovals:
        approvals = self._plane.approvals
        try:
            await approvals.refresh()
        except Fault as fault:
            raise web.HTTPServiceUnavailable(text=fault.message) from None
        return approvals

    async def _decide(self, request: web.Request) -> web.Response:
        who = _principal.get()
        if not who.has({Role.APPROVER}):
            raise web.HTTPForbidden(text="This credential lacks the role approver.")
        body = await _body(request)
        if not isinstance(body.get("approve"), bool):
            raise web.HTTPBadRequest(text="`approve` is true or false.")
        approval = _text(body, "approval")
        return _json(await self._actions.decide(approval, who, approve=body["approve"]))

    async def _leases(self, request: web.Request) -> web.Response:
        query = _query(request)
        key = ("leases", self._live.state_reads, *sorted(query.items()))
        return _json_text(await self._cache.get(key, partial(self._lease_page, query)))

    async def _lease_page(self, query: Json) -> Json:
        page = records.leases(self._plane, query)
        uses = await self._inspector.lease_uses(item["id"] for item in page["items"])
        for item in page["items"]:
            use = uses.get(item["id"])
            item["idle"] = use.idle.ToNanoseconds() / 1e9 if use is not None else None
        return page

    async def _calls(self, request: web.Request) -> web.Response:
        query = _query(request)
        wanted = admin_pb2.ListCallsRequest(
            selection=SELECTIONS.get(query.get("select", "recent"), SELECTIONS["recent"]),
            id=query.get("id", ""),
            server_id=query.get("server", ""),
        )
        limit = min(query["limit"], MAX_PAST_CALLS)
        key = ("calls", wanted.SerializeToString(deterministic=True), limit)
        return _json_text(await self._cache.get(key, partial(self._call_page, wanted, limit)))

    async def _call_page(self, wanted: admin_pb2.ListCallsRequest, limit: int) -> Json:
        answer = await self._inspector.calls(wanted, limit)
        items = [row(call) for call in answer.calls]
        return {"items": items, "silent": list(answer.silent_workers)}

    async def _logs(self, request: web.Request) -> web.Response:
        query = _query(request)
        return _json(await self._actions.logs(query.get("id", ""), query.get("tenant", "")))

    async def _revoke(self, request: web.Request) -> web.Response:
        _check_operator()
        return _json(
            await self._actions.revoke(_text(await _body(request), "lease"), _principal.get())
        )

    async def _drain(self, request: web.Request) -> web.Response:
        _check_operator()
        return _json(self._actions.drain(_text(await _body(request), "worker"), _principal.get()))

    async def _login(self, request: web.Request) -> web.Response:
        """Make a link at which a person logs in to a server."""
        _check_operator()
        body = await _body(request)
        try:
            path = await self._logins.make_link(
                _text(body, "server"),
                _tenant(_principal.get(), _text(body, "tenant")) or DEFAULT_TENANT,
                _text(body, "user"),
            )
        except LoginFailed as failure:
            raise ActionRefused(str(failure)) from None
        return _json({"path": path})

    async def _try(self, request: web.Request) -> web.Response:
        _check_operator()
        who = _principal.get()
        if not who.has({Role.CALLER}):
            raise web.HTTPForbidden(text="This credential lacks the role caller.")
        body = await _body(request)
        arguments = body.get("arguments", {})
        if not isinstance(arguments, dict):
            raise web.HTTPBadRequest(text="`arguments` is a JSON object.")
        return _json(
            await self._actions.try_tool(
                _text(body, "server"),
                _text(body, "tool"),
                _tenant(who, _text(body, "tenant")),
                arguments,
                who,
                self._access.authorization(request),
            )
        )


def _tenant(who: Principal, wanted: str) -> str:
    try:
        return who.tenant_for(wanted)
    except Fault as fault:
        raise web.HTTPForbidden(text=fault.message) from None


def _holder(who: Principal, address: str | None) -> Holder:
    """Return who has an open page: a principal, or the address of an unknown caller."""
    if who is LOOPBACK:
        return Holder("", address or "local")
    return Holder(who.tenant or "all tenants", who.name)


def _needs_no_credential(request: web.Request) -> bool:
    """Whether a request signs in or out, which somebody does whose credential is not accepted."""
    return request.path == "/api/session" and request.method in ("POST", "DELETE")


def _rights(who: Principal, *, signed_in: bool) -> Json:
    """Return which controls the page shows; each request is checked again."""
    operator = who.has({Role.OPERATOR})
    caller = operator and who.has({Role.CALLER})
    return {"operator": operator, "caller": caller, "signed_in": signed_in}


def _check_operator() -> None:
    if not _principal.get().has({Role.OPERATOR}):
        raise web.HTTPForbidden(text="This credential is read-only: it lacks the role operator.")


def _runbook(_query: Json) -> Json:
    return {
        reason: {"cause": entry.cause, "look": entry.look, "do": entry.do}
        for reason, entry in entries().items()
    }


def _query(request: web.Request) -> Json:
    """Return the query's texts and numbers, within their limits."""
    found: Json = {name: text[:_MAX_TEXT] for name, text in request.query.items()}
    for name in ("offset", "limit", "last"):
        if name in found:
            if not found[name].isdecimal():
                raise web.HTTPBadRequest(text=f"`{name}` is a number.")
            found[name] = int(found[name])
    found["limit"] = min(found.get("limit", 100), _MAX_ROWS)
    return found


async def _body(request: web.Request, largest: int = _MAX_BODY) -> Json:
    if (request.content_length or 0) > largest:
        raise web.HTTPRequestEntityTooLarge(largest, request.content_length or 0)
    if "Content-Encoding" in request.headers:
        raise web.HTTPUnsupportedMediaType(text="Send the body without Content-Encoding.")
    content = await request.read()
    if has_many_values(content):
        raise web.HTTPBadRequest(text=f"The body has more than {MAX_VALUES} values and keys.")
    try:
        body: Any = json.loads(content)
    except (ValueError, RecursionError):
        raise web.HTTPBadRequest(text="The body is not JSON.") from None
    if not isinstance(body, dict):
        raise web.HTTPBadRequest(text="The body is not a JSON object.")
    return body


def _text(body: Json, name: str, longest: int = _MAX_TEXT) -> str:
    value = body.get(name, "")
    if not isinstance(value, str) or len(value) > longest or _LONE_SURROGATE.search(value):
        raise web.HTTPBadRequest(text=f"`{name}` is a text of at most {longest} characters.")
    return value


def _json(content: object, status: int = 200) -> web.Response:
    return _json_text(json.dumps(content), status)


def _json_text(text: str, status: int = 200) -> web.Response:
    return web.Response(text=text, status=status, content_type="application/json", charset="utf-8")
