"""The redirect at the end of a login in a browser: the code that it brings, and how it gets here.

A browser of this machine is sent to a loopback address. That of another machine cannot reach it,
so a person may bring the address that it was sent to.
"""

from __future__ import annotations

import contextlib
import html
import http.server
import os
import secrets
import select
import socket
import threading
import time
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

from leaseway.data_plane.oauth.errors import AuthorizationError, described
from leaseway.data_plane.oauth.metadata import AuthorizationServer, fills_gap
from leaseway.data_plane.oauth.web import ATTEMPT, place_of
from leaseway.vault.key import VaultError

MAX_CODE: Final = 8_192
_USUAL: Final = "http://127.0.0.1/callback"
_LOCALHOST: Final = "localhost"
_MAX_PASTED: Final = 32_768
_WAKE: Final = b"\0"
_PATIENCE: Final = ATTEMPT + 5.0
"""Seconds that a browser waits for the end of its login."""
_SHOWN: Final = 5.0
"""Seconds for its page to reach it."""
_UNKNOWN: Final = "Whether the login succeeds is not known yet; the command says it."


class _Server(http.server.ThreadingHTTPServer):
    """A server of one address family, whose threads end with the process."""

    def __init__(self, host: str, port: int, handler: type[http.server.BaseHTTPRequestHandler]):
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        super().__init__((host, port), handler)


class Redirect:
    """Waits for the one redirect with the right state, on loopback or as a pasted line.

    The browser's page comes at the end of the context, and tells what the login came to.

    Args:
        uri: The address as it is registered; without a port, any; empty for the usual one.
        port: The port, if `uri` has none; 0 for any.

    Attributes:
        state: What the redirect must contain.
        url: Its address.

    Raises:
        AuthorizationError: The port cannot be used.
    """

    def __init__(self, uri: str = "", port: int = 0) -> None:
        self.state = secrets.token_urlsafe(32)
        parts = urlsplit(uri or _USUAL)
        self._path = parts.path or "/"
        self._answer: dict[str, str] = {}
        self._pages = 0  # that wait for the end
        self._lock = threading.Lock()
        self._end = "The login failed; the command says why."
        self._has_ended, self._is_shown = threading.Event(), threading.Event()
        self._is_shown.set()  # no browser waits
        host = parts.hostname or _LOCALHOST
        self._servers = self._listeners(host, parts.port or port)
        self._woken, self._wake = socket.socketpair()
        port = self._servers[0].server_address[1]
        shown = f"[{host}]" if ":" in host else host
        self.url = f"http://{shown}:{port}{parts.path}"

    def _listeners(self, host: str, port: int) -> list[_Server]:
        """Listen at a name or address; where browsers may take a name for two, at both."""
        redirect = self

        class Handler(http.server.BaseHTTPRequestHandler):
            timeout = 10

            def do_GET(self) -> None:
                redirect.handle(self)

            def log_message(self, *_: Any) -> None:
                """Write nothing: the address has the code."""

        first = "127.0.0.1" if host == _LOCALHOST else host
        try:
            servers = [_Server(first, port, Handler)]
        except OSError as error:
            raise AuthorizationError(
                f"port {port} of {host} cannot be used for the redirect: {error.strerror}"
            ) from None
        if host == _LOCALHOST:
            with contextlib.suppress(OSError):  # this machine has no such address
                servers.append(_Server("::1", servers[0].server_address[1], Handler))
        return servers

    def __enter__(self) -> Redirect:
        for server in self._servers:
            threading.Thread(target=server.serve_forever, name="redirect", daemon=True).start()
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is None:
            self._end = "You are logged in."
        elif isinstance(error, AuthorizationError | VaultError):
            self._end = f"The login failed: {str(error).rstrip('.')}."
        self._has_ended.set()
        self._is_shown.wait(_SHOWN)
        for server in self._servers:
            server.shutdown()
            server.server_close()
        self._woken.close()
        self._wake.close()

    def wait(
        self, timeout: float, pasted: int | None = None, reject: Callable[[str], None] | None = None
    ) -> Mapping[str, str]:
        """Return the parameters of the redirect.

        Args:
            timeout: Seconds.
            pasted: A file descriptor from which lines are read, too, or None.
            reject: Is told why a line is of no use.

        Raises:
            AuthorizationError: There was none in time.
        """
        deadline, line = time.monotonic() + timeout, b""
        while not self._answer:
            left = deadline - time.monotonic()
            if left <= 0:
                raise AuthorizationError(f"nobody has logged in within {timeout:g} s")
            woken = self._woken.fileno()
            ready, _, _ = select.select(
                [woken] if pasted is None else [woken, pasted], [], [], left
            )
            if pasted is None or woken in ready or pasted not in ready:
                continue
            part = os.read(pasted, _MAX_PASTED)
            if not part or len(line) > _MAX_PASTED:
                pasted = None  # it has ended, or is no line
                continue
            *lines, line = (line + part).split(b"\n")
            for text in lines:
                fault = self._take_line(text.decode(errors="replace").strip())
                if fault and reject is not None:
                    reject(fault)
        return self._answer

    def _take_line(self, text: str) -> str:
        """Take a pasted address, or what follows its question mark; return why not, if not."""
        if not text:
            return ""
        query = text.partition("?")[2] or text
        if self._take(query.partition("#")[0], by_browser=False):
            return ""
        return (
            "That is not the address that the browser was sent to after this login: it has a state"
            " and a code. Copy the whole address."
        )

    def _take(self, query: str, *, by_browser: bool) -> bool:
        """Take the first parameters that have the right state; return whether these are.

        A browser may bring them again: a person reloads a page that does not come.
        """
        found = {name: values[0] for name, values in _parameters(query).items()}
        is_ours = secrets.compare_digest(found.get("state", "").encode(), self.state.encode())
        with self._lock:
            if not is_ours or (self._answer and not (by_browser and found == self._answer)):
                return False
            self._answer = found
            if by_browser:
                self._pages += 1
                self._is_shown.clear()
        return True

    def handle(self, request: http.server.BaseHTTPRequestHandler) -> None:
        parts = urlsplit(request.path)
        if parts.path != self._path or not self._take(parts.query, by_browser=True):
            _show(request, HTTPStatus.NOT_FOUND, "This is not the page of a login.")
            return
        try:
            with contextlib.suppress(OSError):  # nobody waits any more
                self._wake.send(_WAKE)
            end = self._end if self._has_ended.wait(_PATIENCE) else _UNKNOWN
            _show(request, HTTPStatus.OK, f"{end} You can close this page.")
        finally:
            with self._lock:
                self._pages -= 1
                if not self._pages:
                    self._is_shown.set()


def _parameters(query: str) -> Mapping[str, list[str]]:
    try:
        return parse_qs(query, max_num_fields=100)
    except ValueError:
        return {}


def _show(request: http.server.BaseHTTPRequestHandler, status: HTTPStatus, text: str) -> None:
    page = f"<!doctype html><title>Leaseway</title><p>{html.escape(text)}</p>".encode()
    request.send_response(status)
    request.send_header("Content-Type", "text/html; charset=utf-8")
    request.send_header("Content-Length", str(len(page)))
    request.send_header("Cache-Control", "no-store")
    request.send_header("Content-Security-Policy", "default-src 'none'")
    request.end_headers()
    request.wfile.write(page)


def _may_be_of(issuer: str, server: AuthorizationServer) -> bool:
    # A server without metadata has no issuer that could be compared.
    # Each character counts here, a slash at the end as well (MCP 2026-07-28, RFC 9207 section 2.4).
    return issuer == server.issuer or not server.issuer or fills_gap(issuer, server.issuer)


def code_of(answer: Mapping[str, str], server: AuthorizationServer) -> str:
    """Return the code of a redirect.

    Raises:
        AuthorizationError: It is an error, or of another authorization server (RFC 9207).
    """
    issuer = answer.get("iss")
    if issuer is not None and not _may_be_of(issuer, server):
        raise AuthorizationError(
            f"the redirect is from another authorization server, {place_of(issuer)}, and not from"
            f" {server.issuer}; its code was not used; if that is right, write issuer:"
            f" {place_of(issuer)} in auth"
        )
    if issuer is None and server.returns_issuer:
        raise AuthorizationError(
            f"the redirect does not say that it is from {server.issuer}, as its metadata promise;"
            " its code was not used; if they are wrong, write issuer, authorization_endpoint and"
            " token_endpoint in auth"
        )
    if "error" in answer:
        words = described(answer.get("error_description", ""))
        code = described(answer["error"])[:64]
        raise AuthorizationError(
            f"the authorization server answered with {code}{f': {words}' if words else ''}",
            code=code,
        )
    code = answer.get("code", "").replace(" ", "+")  # of Base64, by a server that encodes nothing
    if not code or len(code) > MAX_CODE:
        raise AuthorizationError("the redirect has no code")
    return code
