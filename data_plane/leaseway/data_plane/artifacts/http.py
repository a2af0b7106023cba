"""Artifacts over HTTP, for pages that show them: `GET /artifacts/…` and nothing else (DESIGN §6).

The tenant and the session of the call are sent as `?tenant=&session=`, or as `X-Leaseway-Tenant`
and `X-Leaseway-Session`; where there is a key, it is sent as `Authorization: Bearer KEY`. Nothing
that a server made is ever run as a page: the answer says so in its headers.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from typing import Final

from aiohttp import web

from leaseway.data_plane.artifacts.store import ArtifactStore
from leaseway.data_plane.core.artifacts.index import Artifact
from leaseway.identity.principal import Principal
from leaseway.telemetry.http_listener import ArtifactsListener
from leaseway.wire.errors import Fault, Reason

_PATIENCE: Final = 30.0
"""Seconds that a reader may take for one part."""
_IDLE: Final = 15.0
"""Seconds that a connection may wait for another request."""
_WHO: Final = web.RequestKey("caller", object)
_OTHER: Final = "application/octet-stream"
_SHOWN: Final = frozenset(
    f"{kind}/{name}"
    for kind, names in {
        "image": "png jpeg gif webp avif bmp",
        "audio": "mpeg mp4 aac ogg opus wav x-wav wave webm flac",
    }.items()
    for name in names.split()
)
"""What a page shows; all else is saved: it may hold scripts, as SVG does."""
_SAFE: Final = {
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
    """Serve artifacts at a port while the block runs; None serves nothing."""
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
        """Authenticate the sender, and answer why a request fails."""
        try:
            if not self._listener.knows_host(request.host):
                return _plain(403, "Ask for artifacts at localhost or 127.0.0.1.")
            if self._listener.admit is not None:
                sent = request.headers.get("Authorization")
                request[_WHO] = await self._listener.admit(sent)
            return await handler(request)
        except Fault as fault:
            if fault.reason is Reason.UNAUTHENTICATED:
                return _plain(401, fault.message, {"WWW-Authenticate": "Bearer"})
            if fault.reason is Reason.PERMISSION_DENIED:
                return _plain(403, fault.message)
            if fault.reason is Reason.OVERLOADED:
                return _plain(503, fault.message, {"Retry-After": "1"})
            return _plain(404, fault.message)
        except web.HTTPException as refusal:
            allow = refusal.headers.get("Allow")
            return _plain(refusal.status, "", {"Allow": allow} if allow else None)

    async def get(self, request: web.Request) -> web.StreamResponse:
        """Send an artifact, or the part of it that is asked for."""
        artifact = self._store.find(
            f"artifacts/{request.match_info['rest']}",
            _tenant(request),
            _said(request, "session"),
        )
        whole = range(artifact.byte_length)
        try:
            wanted = whole[request.http_range] if "Range" in request.headers else whole
        except ValueError:  # ranges of which no part is understood are to be ignored
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
        self, request: web.Request, response: web.StreamResponse, artifact: Artifact, wanted: range
    ) -> None:
        async with aclosing(self._store.read_parts(artifact, wanted.start, wanted.stop)) as parts:
            # The first part comes before the head: until then a failure has a status of its own.
            part = await anext(parts, b"")
            await response.prepare(request)
            try:
                while part:
                    async with asyncio.timeout(_PATIENCE):
                        await response.write(part)
                    part = await anext(parts, b"")
            except (Fault, TimeoutError):
                # Only a connection that breaks tells that this is not all.
                if request.transport is not None:
                    request.transport.abort()

    def _headers(self, artifact: Artifact) -> dict[str, str]:
        media = artifact.mime_type.startswith(("image/", "audio/"))
        name = artifact.ref.rpartition("/")[2]
        place = "inline" if artifact.mime_type in _SHOWN else "attachment"
        age = max(0, int(self._store.remaining(artifact)))
        return {
            "Content-Type": artifact.mime_type if media else _OTHER,
            "Content-Disposition": f'{place}; filename="{name}"',
            "Cache-Control": f"private, max-age={age}",
            "Accept-Ranges": "bytes",
            "Vary": "Authorization, X-Leaseway-Tenant, X-Leaseway-Session",
            **_SAFE,
        }


def _tenant(request: web.Request) -> str:
    """Return whose artifact is asked for: what the credential says, where it says it.

    Raises:
        Fault: PERMISSION_DENIED.
    """
    who = request.get(_WHO)
    said = _said(request, "tenant")
    return who.tenant_for(said) if isinstance(who, Principal) else said


def _said(request: web.Request, name: str) -> str:
    return request.query.get(name, "") or request.headers.get(f"X-Leaseway-{name.title()}", "")


def _plain(status: int, sentence: str, headers: dict[str, str] | None = None) -> web.Response:
    return web.Response(
        status=status,
        text=f"{sentence}\n" if sentence else "",
        headers={"Cache-Control": "no-store", **_SAFE, **(headers or {})},
    )
