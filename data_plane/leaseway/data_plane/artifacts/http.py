"""Artifacts over HTTP, for web pages: `GET /artifacts/…` (design.md#calls).

A request has the tenant and session of the call as `?tenant=&session=`, or as `X-Leaseway-Tenant`
and `X-Leaseway-Session` (and the `user`, if its server acts for users and the credential is not
his), and a key, if required, as `Authorization: Bearer KEY`. Response headers keep browsers from
running content of a server as a page.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from typing import Final

from aiohttp import web

from leaseway.data_plane.artifacts.store import ArtifactStore
from leaseway.data_plane.core.artifacts.index import ArtifactReader, StoredArtifact
from leaseway.identity.principal import Principal
from leaseway.telemetry.http_listener import (
    ArtifactsListener,
    HttpRefusal,
    check_request,
    refusal_of,
)
from leaseway.wire.errors import Fault, Reason

_WRITE_TIMEOUT: Final = 30.0
"""Seconds that a client may take to read one part."""
_IDLE: Final = 15.0
"""Seconds that a connection may wait for another request."""
_CALLER: Final = web.RequestKey("caller", object)
_OTHER: Final = "application/octet-stream"
_INLINE: Final = frozenset(
    f"{kind}/{name}"
    for kind, names in {
        "image": "png jpeg gif webp avif bmp",
        "audio": "mpeg mp4 aac ogg opus wav x-wav wave webm flac",
    }.items()
    for name in names.split()
)
"""Types that browsers may show; others are downloads, because they may contain scripts like SVG."""
_SECURITY_HEADERS: Final = {
    "X-Content-Type-Options": "nosniff",
    "Content-Security-Policy": "default-src 'none'; sandbox",
    "Referrer-Policy": "no-referrer",
    "Server": "leaseway",
}
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@contextlib.asynccontextmanager
async def serve_artifacts(
    listener: ArtifactsListener | None, store: ArtifactStore
) -> AsyncIterator[None]:
    """Serve artifacts while the block runs; no-op if the listener is None."""
    if listener is None:
        yield
        return
    site = _Site(listener, store)
    app = web.Application(middlewares=[site.guard])
    app.router.add_get("/artifacts/{rest:.+}", site.get)
    async with listener.serve(app, idle=_IDLE):
        yield


class _Site:
    def __init__(self, listener: ArtifactsListener, store: ArtifactStore) -> None:
        self._listener = listener
        self._store = store

    @web.middleware
    async def guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Authenticate the caller, and convert faults to responses."""
        try:
            authorization = request.headers.get("Authorization")
            sender = await check_request(
                self._listener.admit, request.host, authorization, self._listener.noun
            )
            if sender is not None:
                request[_CALLER] = sender
            return await handler(request)
        except HttpRefusal as refusal:
            return _plain(refusal.status, str(refusal), dict(refusal.headers))
        except Fault as fault:
            if fault.reason in (Reason.PERMISSION_DENIED, Reason.OVERLOADED):
                refused = refusal_of(fault)
                return _plain(refused.status, fault.message, dict(refused.headers))
            return _plain(404, fault.message)
        except web.HTTPException as error:
            allow = error.headers.get("Allow")
            return _plain(error.status, "", {"Allow": allow} if allow else None)

    async def get(self, request: web.Request) -> web.StreamResponse:
        """Send an artifact, or the requested range of it."""
        artifact = self._store.find(f"artifacts/{request.match_info['rest']}", _reader(request))
        whole = range(artifact.byte_length)
        try:
            wanted = whole[request.http_range] if "Range" in request.headers else whole
        except ValueError:  # HTTP says to ignore a range that cannot be parsed
            wanted = whole
        if not wanted and whole:
            return _plain(416, "", {"Content-Range": f"bytes */{len(whole)}"})
        response = web.StreamResponse(
            status=200 if wanted == whole else 206, headers=self._headers(artifact)
        )
        response.content_length = len(wanted)
        if wanted != whole:
            response.headers["Content-Range"] = (
                f"bytes {wanted[0]}-{wanted[-1]}/{artifact.byte_length}"
            )
        if request.method == "HEAD":
            return response
        await self._send(request, response, artifact, wanted)
        return response

    async def _send(
        self,
        request: web.Request,
        response: web.StreamResponse,
        artifact: StoredArtifact,
        wanted: range,
    ) -> None:
        async with aclosing(self._store.read_parts(artifact, wanted.start, wanted.stop)) as parts:
            # Read the first part before sending the head, so that a failure gets its own status.
            part = await anext(parts, b"")
            await response.prepare(request)
            try:
                while part:
                    async with asyncio.timeout(_WRITE_TIMEOUT):
                        await response.write(part)
                    part = await anext(parts, b"")
            except (Fault, TimeoutError):
                # Abort the connection: the client must not take this for the whole artifact.
                if request.transport is not None:
                    request.transport.abort()

    def _headers(self, artifact: StoredArtifact) -> dict[str, str]:
        is_media = artifact.mime_type.startswith(("image/", "audio/"))
        name = artifact.ref.rpartition("/")[2]
        disposition = "inline" if artifact.mime_type in _INLINE else "attachment"
        max_age = max(0, int(self._store.remaining(artifact)))
        return {
            "Content-Type": artifact.mime_type if is_media else _OTHER,
            "Content-Disposition": f'{disposition}; filename="{name}"',
            "Cache-Control": f"private, max-age={max_age}",
            "Accept-Ranges": "bytes",
            "Vary": "Authorization, X-Leaseway-Tenant, X-Leaseway-Session, X-Leaseway-User",
            **_SECURITY_HEADERS,
        }


def _reader(request: web.Request) -> ArtifactReader:
    """Return who reads: tenant and user are checked against the credential.

    Raises:
        Fault: PERMISSION_DENIED.
    """
    principal = request.get(_CALLER)
    tenant, user = _parameter(request, "tenant"), _parameter(request, "user")
    token = ""
    if isinstance(principal, Principal):
        tenant, user = principal.tenant_for(tenant), principal.user_for(user)
        token = principal.subject_token_for(user, "")
    return ArtifactReader.of(tenant, _parameter(request, "session"), user, token)


def _parameter(request: web.Request, name: str) -> str:
    return request.query.get(name, "") or request.headers.get(f"X-Leaseway-{name.title()}", "")


def _plain(status: int, sentence: str, headers: dict[str, str] | None = None) -> web.Response:
    return web.Response(
        status=status,
        text=f"{sentence}\n" if sentence else "",
        headers={"Cache-Control": "no-store", **_SECURITY_HEADERS, **(headers or {})},
    )
