"""Fetches of documents: bounds of the whole, and redirects."""

from __future__ import annotations

import asyncio
import http.server
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.certificates import Authority
from tests.conftest import BOUND
from yarl import URL

from leaseway.wire.channels.fetching import (
    MAX_REDIRECTS,
    FetchError,
    Response,
    Zone,
    fetch,
    in_thread,
    redirect_target,
    request,
    zone_of,
)

Reply = Callable[[http.server.BaseHTTPRequestHandler], None]


class Web:
    """A web server of this machine.

    Attributes:
        replies: What it does, by path.
        paths: The requested paths.
    """

    def __init__(self) -> None:
        self.replies: dict[str, Reply] = {}
        self.paths: list[str] = []
        web = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                web.paths.append(self.path)
                web.replies[self.path](self)

            def log_message(self, *_: Any) -> None:
                """Write nothing."""

        self.server = http.server.ThreadingHTTPServer(("0.0.0.0", 0), Handler)
        self.server.daemon_threads = True
        self.port = self.server.server_address[1]
        self.ended = threading.Event()
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()

    def url(self, path: str, host: str = "127.0.0.1") -> str:
        return f"http://{host}:{self.port}{path}"

    def close(self) -> None:
        self.ended.set()
        self.server.shutdown()
        self.server.server_close()


@pytest.fixture
def web(monkeypatch: pytest.MonkeyPatch) -> Iterator[Web]:
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    web = Web()
    yield web
    web.close()


def sends(content: bytes) -> Reply:
    def reply(request: http.server.BaseHTTPRequestHandler) -> None:
        request.send_response(200)
        request.end_headers()
        request.wfile.write(content)

    return reply


def redirects(target: str) -> Reply:
    def reply(request: http.server.BaseHTTPRequestHandler) -> None:
        request.send_response(302)
        request.send_header("Location", target)
        request.end_headers()

    return reply


def get(url: str, **changes: Any) -> bytes:
    return fetch(url, **{"limit": 1_000, "timeout": BOUND, **changes})


def test_a_document_at_its_greatest_size_is_fetched(web: Web) -> None:
    web.replies["/"] = sends(b"x" * 1_000)
    assert get(web.url("/")) == b"x" * 1_000
    web.replies["/"] = sends(b"x" * 1_001)
    with pytest.raises(FetchError, match="more than 1000 bytes"):
        get(web.url("/"))


def trickled_content(web: Web) -> Reply:
    def reply(request: http.server.BaseHTTPRequestHandler) -> None:
        request.send_response(200)
        request.end_headers()
        while not web.ended.wait(0.02):
            request.wfile.write(b" ")

    return reply


def trickled_headers(web: Web) -> Reply:
    def reply(request: http.server.BaseHTTPRequestHandler) -> None:
        request.wfile.write(b"HTTP/1.0 200 OK\r\n")
        while not web.ended.wait(0.02):
            request.wfile.write(b"a:b\r\n")

    return reply


def silent(web: Web) -> Reply:
    def reply(_request: http.server.BaseHTTPRequestHandler) -> None:
        web.ended.wait(BOUND)

    return reply


@pytest.mark.parametrize("slow", [trickled_content, trickled_headers, silent])
def test_a_server_that_sends_slowly_costs_no_more_than_the_time_for_all(
    web: Web, slow: Callable[[Web], Reply]
) -> None:
    web.replies["/"] = slow(web)
    web.replies["/far"] = redirects("/")
    started = time.monotonic()
    with pytest.raises(FetchError, match=r"within 0\.5 s"):
        get(web.url("/far"), timeout=0.5)
    assert time.monotonic() - started < BOUND


def test_redirects_are_followed_a_few_times(web: Web) -> None:
    for number in range(MAX_REDIRECTS):
        web.replies[f"/{number}"] = redirects(f"/{number + 1}")
    web.replies[f"/{MAX_REDIRECTS}"] = sends(b"there")
    assert get(web.url("/0")) == b"there"
    web.replies["/loop"] = redirects("/loop")
    with pytest.raises(FetchError, match="more than 5 times"):
        get(web.url("/loop"))


def of_machine(address: str) -> Zone:
    """Treat one loopback address as an outer one."""
    return Zone.OUTER if address == "127.0.0.1" else zone_of(address)


def of_documents(address: str) -> Zone:
    """Treat an address that no machine has as an outer one."""
    return Zone.OUTER if address == "203.0.113.1" else zone_of(address)


@pytest.mark.parametrize("host", ["127.0.0.2", "[::ffff:127.0.0.2]", "169.254.169.254", "inner"])
def test_no_redirect_leads_into_this_network(
    web: Web, host: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    look_up = socket.getaddrinfo

    def resolve(name: str, *args: Any, **kwargs: Any) -> Any:
        return look_up("127.0.0.3" if name == "inner" else name, *args, **kwargs)

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    web.replies["/"] = redirects(web.url("/secret", host))
    web.replies["/secret"] = sends(b"secret")
    with pytest.raises(FetchError, match="inside this network"):
        get(web.url("/"), zone=of_machine)
    assert web.paths == ["/"]


def test_an_address_of_this_network_may_redirect_inside_it(web: Web) -> None:
    web.replies["/"] = redirects(web.url("/document", "127.0.0.2"))
    web.replies["/document"] = sends(b"there")
    assert get(web.url("/")) == b"there"
    web.replies["/"] = redirects("http://169.254.169.254/latest/")
    with pytest.raises(FetchError, match="inside this network"):
        get(web.url("/"))


def test_a_protected_document_comes_from_no_other_host_by_http(web: Web) -> None:
    web.replies["/"] = redirects(web.url("/document", "127.0.0.2"))
    web.replies["/document"] = sends(b"there")
    assert get(web.url("/")) == b"there"
    with pytest.raises(FetchError, match="redirects to http"):
        get(web.url("/"), is_protected=True)
    web.replies["/"] = redirects("/document")
    assert get(web.url("/"), is_protected=True) == b"there"


@pytest.mark.parametrize(
    ("location", "reason"),
    [
        ("http://login.example/keys", "from https to http"),
        ("file:///etc/passwd", "no web address"),
        ("ftp://login.example/", "no web address"),
        ("https:///keys", "no web address"),
        ("", "no web address"),
    ],
)
def test_redirects_keep_to_encrypted_web_addresses(location: str, reason: str) -> None:
    with pytest.raises(FetchError, match=reason):
        redirect_target(URL("https://login.example/a"), location)


@pytest.mark.parametrize(
    ("address", "zone"),
    [
        ("8.8.8.8", Zone.OUTER),
        ("2001:4860:4860::8888", Zone.OUTER),
        ("64:ff9b::808:808", Zone.OUTER),
        ("10.0.0.1", Zone.NETWORK),
        ("100.64.0.1", Zone.NETWORK),
        ("fd00::1", Zone.NETWORK),
        ("::ffff:10.0.0.1", Zone.NETWORK),
        ("64:ff9b::a00:1", Zone.NETWORK),
        ("2002:a00:1::", Zone.NETWORK),
        ("224.0.0.1", Zone.NETWORK),
        ("0.0.0.0", Zone.MACHINE),
        ("127.8.0.1", Zone.MACHINE),
        ("::1", Zone.MACHINE),
        ("::", Zone.MACHINE),
        ("::ffff:127.0.0.1", Zone.MACHINE),
        ("64:ff9b::7f00:1", Zone.MACHINE),
        ("169.254.169.254", Zone.LINK),
        ("fe80::1%eth0", Zone.LINK),
        ("::ffff:169.254.169.254", Zone.LINK),
        ("64:ff9b::a9fe:a9fe", Zone.LINK),
        ("2002:a9fe:a9fe::", Zone.LINK),
        ("fd00:ec2::254", Zone.LINK),
        ("100.100.100.200", Zone.LINK),
    ],
)
def test_the_zone_of_an_address_is_known_in_every_form(address: str, zone: Zone) -> None:
    assert zone_of(address) is zone


def test_a_proxy_is_used_unless_no_proxy_names_the_host(
    web: Web, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", web.url(""))
    web.replies["http://far.example/doc"] = sends(b"through the proxy")
    assert get("http://far.example/doc") == b"through the proxy"
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    web.replies["/doc"] = sends(b"directly")
    assert get(web.url("/doc")) == b"directly"


def test_a_status_and_a_refused_connection_are_errors_without_the_address(web: Web) -> None:
    web.replies["/"] = lambda request: request.send_error(404)
    with pytest.raises(FetchError, match="HTTP status 404") as raised:
        get(web.url("/"))
    assert str(web.port) not in str(raised.value)
    with pytest.raises(FetchError):
        get("http://127.0.0.1:1/")


def test_a_certificate_of_an_unknown_authority_says_what_helps(web: Web, tmp_path: Path) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*Authority("mine").issue(tmp_path, "web"))
    web.server.socket = context.wrap_socket(web.server.socket, server_side=True)
    with pytest.raises(FetchError, match=r"^its certificate is not trusted \(.*SSL_CERT_FILE"):
        get(web.url("/").replace("http:", "https:"))


async def test_a_function_in_a_thread_of_its_own_returns_and_raises() -> None:
    assert await in_thread(lambda: 5) == 5
    with pytest.raises(KeyError):
        await in_thread(dict[str, int]().__getitem__, "x")
    waiting = asyncio.create_task(in_thread(time.sleep, 0.01))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting


def send(url: str, configured: str, **more: Any) -> Response:
    """Send a request to an address that a server named."""
    return request(url, limit=1_000, timeout=BOUND, configured=[configured], **more)


@pytest.mark.parametrize(
    ("url", "configured", "words"),
    [
        ("http://127.0.0.1:9/", "https://203.0.113.1/", "begin with https"),
        ("https://127.0.0.1:9/", "https://203.0.113.1/", "inside this network"),
        ("https://localhost:9/", "https://203.0.113.1/", "inside this network"),
        ("http://169.254.169.254/", "http://127.0.0.1:9/", "inside this network"),
        ("http://[fe80::1]:9/", "http://127.0.0.1:9/", "inside this network"),
        ("http://[::ffff:169.254.169.254]/", "http://127.0.0.1:9/", "inside this network"),
        ("http://2852039166/", "http://127.0.0.1:9/", "inside this network"),
        ("http://0xa9.254.0xa9.254/", "http://127.0.0.1:9/", "inside this network"),
        ("http://[fd00:ec2::254]/", "http://127.0.0.1:9/", "inside this network"),
        ("http://127.0.0.1:9/", "http://10.0.0.1/", "inside this network"),
        ("http://localhost.:9/", "http://10.0.0.1/", "inside this network"),
        ("http://10.0.0.1:9/", "http://203.0.113.1/", "inside this network"),
        ("file:///etc/passwd", "http://127.0.0.1:9/", "no web address"),
        ("unix:/run/x", "http://127.0.0.1:9/", "no web address"),
    ],
)
def test_a_named_address_is_held_to_the_rules_for_redirects(
    web: Web, url: str, configured: str, words: str
) -> None:
    with pytest.raises(FetchError, match=words):
        send(url, configured, zone=of_documents)


@pytest.mark.parametrize("host", ["169.254.169.254", "[::ffff:7f00:1]", "2130706433", "localhost"])
def test_a_proxy_is_not_asked_for_an_inner_address_that_a_server_names(
    web: Web, monkeypatch: pytest.MonkeyPatch, host: str
) -> None:
    monkeypatch.setenv("http_proxy", web.url(""))
    monkeypatch.setenv("no_proxy", "")
    with pytest.raises(FetchError, match="inside this network"):
        send(f"http://{host}/", "http://203.0.113.1/", zone=of_documents)
    assert web.paths == []


def test_every_status_is_a_response_whose_representation_shows_nothing(web: Web) -> None:
    def reply(request: http.server.BaseHTTPRequestHandler) -> None:
        request.send_response(429)
        request.send_header("Retry-After", "3")
        request.end_headers()
        request.wfile.write(b"a secret")

    web.replies["/"] = reply
    response = send(web.url("/"), web.url("/"))
    assert (response.status, response.headers["retry-after"]) == (429, "3")
    assert response.body == b"a secret"
    assert "secret" not in repr(response)


def test_headers_are_sent_to_the_origin_that_was_named_only(web: Web) -> None:
    sent: list[str | None] = []

    def end(handler: http.server.BaseHTTPRequestHandler) -> None:
        sent.append(handler.headers["Authorization"])
        handler.send_response(200)
        handler.end_headers()

    def redirect(host: str) -> Reply:
        def reply(handler: http.server.BaseHTTPRequestHandler) -> None:
            handler.send_response(302)
            handler.send_header("Location", web.url("/end", host))
            handler.end_headers()

        return reply

    web.replies |= {"/end": end, "/same": redirect("127.0.0.1"), "/other": redirect("127.0.0.2")}
    for path in ("/end", "/same", "/other"):
        url = web.url(path)
        headers = {"Authorization": "Bearer key"}
        request(url, limit=100, timeout=BOUND, configured=[url], headers=headers)
    assert sent == ["Bearer key", "Bearer key", None]
