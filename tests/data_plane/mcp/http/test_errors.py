"""Texts of connection errors."""

from __future__ import annotations

import asyncio
import ssl
from types import SimpleNamespace
from typing import Any, cast

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from mcp_types import PromptsCapability, ServerCapabilities
from yarl import URL

from leaseway.data_plane.core.ports import NO_PROMPTS_RESOURCES
from leaseway.data_plane.kinds.remote.http import errors
from leaseway.data_plane.mcp.host import http_client
from leaseway.data_plane.mcp.protocol.features.listing import list_prompts_resources
from leaseway.data_plane.mcp.protocol.messages.era import LEGACY
from leaseway.data_plane.mcp.protocol.messages.pending import InvalidResponse, RawRequest
from leaseway.wire import bounds
from leaseway.wire.errors import Fault

ERRORS = [
    TimeoutError(),
    aiohttp.ConnectionTimeoutError(),
    aiohttp.ClientPayloadError("Response payload is not completed"),
    aiohttp.ServerDisconnectedError(),
    aiohttp.ClientConnectionResetError("Cannot write to closing transport"),
    aiohttp.ClientError(),
    ConnectionResetError(104, "Connection reset by peer"),
    asyncio.IncompleteReadError(b"", 1),
]


@pytest.mark.parametrize("written", [False, True])
@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
async def test_a_broken_connection_is_described_without_class_names(
    error: Exception, written: bool
) -> None:
    entry = RawRequest()
    entry.written = written
    message = errors.broken("s", URL("http://a/mcp"), error, entry, False).message
    assert "Error" not in message
    assert message.endswith(".")
    assert not message.endswith("..")


def test_the_systems_error_text_is_kept() -> None:
    error = ConnectionResetError(104, "Connection reset by peer")
    assert errors.describe_error(error) == "Connection reset by peer"
    assert "was incomplete" in errors.describe_error(aiohttp.ClientPayloadError())


@pytest.mark.parametrize(
    ("code", "said", "advised"),
    [(18, "self-signed certificate", True), (10, "certificate has expired", False)],
)
def test_an_untrusted_certificate_is_described_with_what_helps(
    code: int, said: str, advised: bool
) -> None:
    error = ssl.SSLCertVerificationError(1, "[SSL: CERTIFICATE_VERIFY_FAILED] (_ssl.c:1006)")
    error.verify_code, error.verify_message = code, said
    text = errors.describe_error(aiohttp.ClientConnectorCertificateError(cast("Any", None), error))
    assert text.startswith(f"its certificate is not trusted ({said})")
    assert ("SSL_CERT_FILE" in text) == advised


LIMIT = bounds.MAX_RESPONSE_HEADER


@pytest.mark.parametrize(
    ("headers", "words"),
    [
        ({"X-Long": "x" * (LIMIT - len("X-Long"))}, ""),
        ({"X-Long": "x" * LIMIT}, f"one of its headers has more than {LIMIT} bytes"),
        ({"Content-Encoding": "br"}, "its body is not compressed as"),
        ({"Content-Encoding": "gzip"}, "its body is not compressed as"),
    ],
)
async def test_a_response_that_the_parser_refuses_is_described(
    headers: dict[str, str], words: str
) -> None:
    async def answer(_request: web.Request) -> web.Response:
        return web.Response(body=b"{}", headers=headers)

    app = web.Application()
    app.router.add_get("/", answer)
    said = ""
    async with TestServer(app) as server, http_client() as http:
        try:
            async with http.get(server.make_url("/")) as response:
                await response.read()
        except aiohttp.ClientError as error:
            said = errors.describe_error(error)
    assert said.startswith(words)
    assert bool(said) == bool(words)


class FailingPeer:
    era = LEGACY

    async def request(self, *_: Any) -> bytes:
        raise InvalidResponse(errors.status_fault("s", 500, {}))


async def test_an_http_status_for_a_list_is_reported() -> None:
    capabilities = ServerCapabilities(prompts=PromptsCapability())
    prompts_resources = await list_prompts_resources(
        cast("Any", FailingPeer()), capabilities, 5, NO_PROMPTS_RESOURCES
    )
    assert prompts_resources.gaps == (
        "prompts/list failed: The server s answered with HTTP status 500.",
    )


@pytest.mark.parametrize("location", ["http://[a/mcp", "http://a:b/mcp", "mailto:a@b.example"])
def test_a_redirect_to_no_address_is_an_error_of_the_server(location: str) -> None:
    response = SimpleNamespace(
        status=307, headers={"location": location}, url=URL("http://a/mcp"), method="POST"
    )
    with pytest.raises(Fault, match="a redirect to no address"):
        errors.redirect_target(cast("Any", response), "remote")
