"""Access to the front: the shared key, the origin of a web page, and the host name."""

from __future__ import annotations

import pytest

from leaseway.front.http.request_checks import AccessCheck, HttpError
from leaseway.wire.channels.endpoint import Endpoint

LOCAL = Endpoint("127.0.0.1", 7680)
PUBLIC = Endpoint("0.0.0.0", 7680)


def status(access: AccessCheck, **headers: str) -> int:
    """Return the status of the error, or 200 if access is allowed."""
    try:
        sent = {name.capitalize(): value for name, value in headers.items()}
        access.check_sender(sent)
        access.check_key(sent)
    except HttpError as error:
        return error.status
    return 200


@pytest.mark.parametrize("host", ["127.0.0.1:7680", "localhost", "[::1]:7680", "LOCALHOST:1"])
def test_without_a_key_this_machine_is_allowed(host: str) -> None:
    assert status(AccessCheck(LOCAL, None), host=host) == 200
    assert status(AccessCheck(LOCAL, None), host=host, origin=f"http://{host}") == 200


@pytest.mark.parametrize("host", ["evil.example.com", "localhost.evil.com", "", "127.0.0.1.nip.io"])
def test_a_rebound_host_name_is_rejected(host: str) -> None:
    assert status(AccessCheck(LOCAL, None), host=host) == 403


def test_the_refusal_of_a_host_names_it_and_the_option_unless_it_is_none() -> None:
    access = AccessCheck(LOCAL, None)
    with pytest.raises(HttpError, match=r"The Host mcp\.corp is not .* by --allow-host"):
        access.check_sender({"Host": "MCP.corp:7680"})
    with pytest.raises(HttpError, match="This Host is not allowed"):
        access.check_sender({"Host": "<script>"})


@pytest.mark.parametrize("origin", ["https://evil.example.com", "null", "http://[", "file://"])
def test_a_foreign_origin_is_rejected(origin: str) -> None:
    assert status(AccessCheck(LOCAL, None), host="localhost", origin=origin) == 403


@pytest.mark.parametrize(
    ("host", "origin", "expected"),
    [
        ("mcp.example.com", "https://APP.example.com", 200),
        ("other.example.com", None, 403),
        ("mcp.example.com", "https://b.example.com", 403),
    ],
)
def test_configured_origins_and_hosts_are_allowed(
    host: str, origin: str | None, expected: int
) -> None:
    access = AccessCheck(PUBLIC, "k", ["https://app.example.com/"], ["mcp.example.com"])
    headers = {"origin": origin} if origin is not None else {}
    assert status(access, host=host, authorization="Bearer k", **headers) == expected


@pytest.mark.parametrize(
    ("option", "origin"),
    [
        ("https://app.example.com:443", "https://app.example.com"),
        ("http://app.example.com:8080/", "http://app.example.com:8080"),
        ("app://obsidian.md", "app://obsidian.md"),
        ("file://", "file://"),
        ("null", "null"),
    ],
)
def test_an_origin_is_allowed_as_browsers_send_it(option: str, origin: str) -> None:
    access = AccessCheck(LOCAL, None, [option])
    assert status(access, host="localhost", origin=origin) == 200


@pytest.mark.parametrize("option", ["mcp.example.com:8443", "MCP.example.com"])
def test_a_host_is_allowed_with_any_port(option: str) -> None:
    assert status(AccessCheck(LOCAL, None, (), [option]), host="mcp.example.com:8443") == 200


@pytest.mark.parametrize("sent", [{}, {"Authorization": "Bearer x"}, {"Authorization": "k"}])
def test_a_configured_key_is_required(sent: dict[str, str]) -> None:
    access = AccessCheck(PUBLIC, "k")
    with pytest.raises(HttpError) as error:
        access.check_key({"Host": "any", **sent})
    assert error.value.status == 401
    assert error.value.headers["WWW-Authenticate"].startswith("Bearer")
    assert status(access, host="any", authorization="Bearer k") == 200
    assert status(access, host="any", authorization="bearer k") == 200
    assert status(access, host="any", authorization="bearer K") == 401


@pytest.mark.parametrize(
    "host",
    [
        "localhost#.evil.com",
        "localhost/.evil.com",
        "localhost?.evil.com",
        "localhost\\.evil.com",
        "evil.com@localhost",
        "localhost:80@evil.com",
        "localhost:x",
        "localhost:",
        "local host",
        "[::1",
        "[::1]x",
        "[::1%25eth0]",
        "localhost,evil.com",
        "localhost\t",
        "%6cocalhost",
        "ｌocalhost",
        "[localhost]",
    ],
)
def test_only_a_host_and_a_port_are_a_host(host: str) -> None:
    is_host = host == "localhost:"
    assert status(AccessCheck(LOCAL, None), host=host) == (200 if is_host else 403)
    public = status(AccessCheck(PUBLIC, "k"), host=host, authorization="Bearer k")
    assert public == (200 if is_host else 400)
    if not is_host:
        assert status(AccessCheck(LOCAL, None), host="localhost", origin=f"http://{host}") == 403


@pytest.mark.parametrize("origin", ["ftp://localhost", "localhost", "http:localhost", "x://[::1]"])
def test_only_a_web_origin_of_this_machine_is_allowed(origin: str) -> None:
    assert status(AccessCheck(LOCAL, None), host="localhost", origin=origin) == 403
