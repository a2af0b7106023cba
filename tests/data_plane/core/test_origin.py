"""Whether credentials for one URL may be sent to another."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from yarl import URL

from leaseway.data_plane.core.origin import kept_encrypted, meant, same_origin

_DEFAULTS = {"http": 80, "https": 443}
_SCHEMES = st.sampled_from(["http", "https"])
_HOSTS = st.sampled_from(["a.example", "b.example", "xn--bcher-kva.example", "127.0.0.1", "[::1]"])
_PORTS = st.sampled_from([80, 443, 8080])
_PATHS = st.sampled_from(["", "/", "/mcp?x=1", "/@b.example/", "/#@b.example"])


def _url(scheme: str, host: str, port: int, path: str, *, explicit: bool = True) -> URL:
    is_default = port == _DEFAULTS[scheme] and not explicit
    return URL(f"{scheme}://{host}{'' if is_default else f':{port}'}{path}")


@given(_SCHEMES, _HOSTS, _PORTS, _SCHEMES, _HOSTS, _PORTS, _PATHS, st.booleans())
def test_scheme_host_and_port_decide_and_nothing_else(
    scheme: str,
    host: str,
    port: int,
    other_scheme: str,
    other_host: str,
    other_port: int,
    path: str,
    explicit: bool,
) -> None:
    source = _url(scheme, host, port, "/mcp")
    target = _url(other_scheme, other_host, other_port, path, explicit=explicit)
    same = (scheme, host, port) == (other_scheme, other_host, other_port)
    upgraded = (scheme, port, other_scheme, other_port) == ("http", 80, "https", 443)
    assert same_origin(source, target) == (same or (upgraded and host == other_host))


@given(_SCHEMES, _HOSTS, _PORTS, _PATHS)
def test_a_url_is_of_its_own_origin_however_its_host_is_spelled(
    scheme: str, host: str, port: int, path: str
) -> None:
    source = _url(scheme, host, port, path)
    assert same_origin(source, _url(scheme, host.upper(), port, "/"))
    assert same_origin(source, _url(scheme, host.replace("::1", "0:0:0:0:0:0:0:1"), port, "/"))
    if "example" in host:
        assert same_origin(source, _url(scheme, f"{host}.", port, "/"))
        assert same_origin(_url(scheme, f"{host}.", port, "/"), source)


@pytest.mark.parametrize(
    ("source", "target"),
    [
        ("https://a.example/", "http://a.example/"),
        ("https://a.example:443/", "http://a.example:443/"),
        ("http://a.example:8080/", "https://a.example:8080/"),
        ("http://a.example:8080/", "https://a.example/"),
        ("http://a.example/", "https://a.example:8443/"),
        ("https://a.example:8443/", "https://a.example/"),
        ("https://a.example/", "https://a.example.evil/"),
        ("https://a.example/", "https://evil/@a.example"),
        ("https://a.example/", "https://a.example@evil/"),
        ("https://a.example/", "https://user@a.example/"),
        ("https://a.example/", "https://:word@a.example/"),
        ("https://a.example/", "https://sub.a.example/"),
        ("https://a.example/", "ftp://a.example/"),
        ("https://a.example/", "wss://a.example/"),
        ("https://a.example/", "https:/a.example/"),
        ("https://a.example/", "//a.example/"),
        ("http://127.0.0.1/", "http://127.0.0.2/"),
        ("http://[::1]/", "http://127.0.0.1/"),
    ],
)
def test_credentials_stay_with_their_origin(source: str, target: str) -> None:
    assert not same_origin(URL(source), URL(target))


def test_names_in_other_scripts_are_compared_as_they_are_asked() -> None:
    assert same_origin(URL("https://bücher.example/"), URL("https://xn--bcher-kva.example/"))


@pytest.mark.parametrize(
    ("source", "target", "asked"),
    [
        ("https://a.example/mcp", "http://a.example/mcp/?x=1", "https://a.example/mcp/?x=1"),
        ("https://a.example/mcp", "http://A.example:80/mcp/", "https://a.example/mcp/"),
        ("https://a.example:8443/mcp", "http://a.example:8443/m", "https://a.example:8443/m"),
        ("https://a.example:8443/mcp", "http://a.example/mcp/", "https://a.example:8443/mcp/"),
        ("https://[::1]/mcp", "http://[::1]/mcp/", "https://[::1]/mcp/"),
    ],
)
def test_a_server_that_names_itself_without_encryption_is_asked_with_it(
    source: str, target: str, asked: str
) -> None:
    kept = kept_encrypted(URL(source), URL(target))
    assert kept == URL(asked)
    assert same_origin(URL(source), kept)


@given(_SCHEMES, _HOSTS, _PORTS, _SCHEMES, _HOSTS, _PORTS, _PATHS)
def test_a_target_that_was_changed_is_on_the_same_origin(
    scheme: str,
    host: str,
    port: int,
    other_scheme: str,
    other_host: str,
    other_port: int,
    path: str,
) -> None:
    source, target = (
        _url(scheme, host, port, "/mcp"),
        _url(other_scheme, other_host, other_port, path),
    )
    kept = kept_encrypted(source, target)
    assert kept.raw_path_qs == target.raw_path_qs
    if kept != target:
        assert same_origin(source, kept)
        assert (scheme, other_scheme, host) == ("https", "http", other_host)
    assert same_origin(source, meant(source, target)) or meant(source, target) == target


@pytest.mark.parametrize(
    ("source", "target", "asked"),
    [
        ("http://tools:8080/sse", "http://localhost:8080/m?s=1", "http://tools:8080/m?s=1"),
        ("http://tools/sse", "http://0.0.0.0:8000/m", "http://tools/m"),
        ("https://a.example/mcp", "http://127.0.0.1:8000/mcp/", "https://a.example/mcp/"),
        ("https://a.example:8443/mcp", "http://[::]:80/mcp/", "https://a.example:8443/mcp/"),
        ("http://localhost:8000/sse", "http://127.0.0.1:8000/m", "http://localhost:8000/m"),
    ],
)
def test_a_server_that_names_itself_by_its_own_machine_is_asked_where_it_was_reached(
    source: str, target: str, asked: str
) -> None:
    assert meant(URL(source), URL(target)) == URL(asked)


@pytest.mark.parametrize("target", ["http://localhost:9000/m", "http://10.0.0.1:8000/m"])
def test_another_server_is_not_taken_for_the_one_that_names_it(target: str) -> None:
    assert meant(URL("http://127.0.0.1:8000/sse"), URL(target)) == URL(target)
