"""Which proxy a request goes through."""

from __future__ import annotations

import pytest

from leaseway.data_plane.core.proxies import BadProxy, Proxy, of_environment, parse_proxy

PROXY = {"HTTP_PROXY": "http://plain:3128", "HTTPS_PROXY": "http://tls:3128"}


@pytest.mark.parametrize(
    ("environment", "scheme", "proxy"),
    [
        (PROXY, "http", "http://plain:3128"),
        (PROXY, "https", "http://tls:3128"),
        (PROXY, "ws", "http://plain:3128"),
        (PROXY, "wss", "http://tls:3128"),
        ({"ALL_PROXY": "any:8080"}, "https", "http://any:8080"),
        ({"all_proxy": "any", **PROXY}, "http", "http://plain:3128"),
        ({"http_proxy": "lower:1", **PROXY}, "http", "http://lower:1"),
        ({"http_proxy": "", **PROXY}, "http", None),
        ({"REQUEST_METHOD": "GET", **PROXY}, "http", None),
        ({}, "http", None),
    ],
)
def test_the_variable_of_the_scheme_decides(
    environment: dict[str, str], scheme: str, proxy: str | None
) -> None:
    found = of_environment(environment).of(scheme, "api.example.com", 443)
    assert (found.url if found else None) == proxy


@pytest.mark.parametrize(
    ("no_proxy", "host", "port", "is_direct"),
    [
        ("*", "api.example.com", 80, True),
        ("example.com", "api.example.com", 80, True),
        ("example.com", "example.com", 80, True),
        (".example.com", "api.example.com", 80, True),
        ("*.example.com", "api.example.com", 80, True),
        ("example.com", "badexample.com", 80, False),
        ("EXAMPLE.com", "Api.Example.COM.", 80, True),
        ("example.com:8080", "api.example.com", 8080, True),
        ("example.com:8080", "api.example.com", 80, False),
        ("a, example.com\tb", "example.com", 80, True),
        ("10.0.0.0/8", "10.1.2.3", 80, True),
        ("10.0.0.0/8", "11.1.2.3", 80, False),
        ("10.1.2.3", "10.1.2.3", 80, True),
        ("10.1.2.3:80", "10.1.2.3", 80, True),
        ("10.1.2.3:81", "10.1.2.3", 80, False),
        ("[fd00::1]:80", "fd00::1", 80, True),
        ("fd00::/8", "[fd00::1]", 80, True),
        ("0.0.1", "10.0.0.1", 80, False),
        ("", "localhost", 80, True),
        ("", "127.3.2.1", 80, True),
        ("", "[::1]", 80, True),
        ("example.com:99999999999999999999", "example.com", 80, False),
    ],
)
def test_no_proxy_lists_what_is_reached_directly_as_loopback_always_is(
    no_proxy: str, host: str, port: int, is_direct: bool
) -> None:
    proxies = of_environment({**PROXY, "NO_PROXY": no_proxy})
    assert (proxies.of("http", host, port) is None) is is_direct


def test_credentials_are_decoded_and_not_shown() -> None:
    proxy = parse_proxy("http://user%40corp:p%3Ass@proxy.corp:3128")
    assert proxy == Proxy("http://proxy.corp:3128", "user@corp", "p:ss")
    assert "p:ss" not in repr(proxy)


@pytest.mark.parametrize(
    "text", ["socks5://proxy:1080", "http://", "http://p:x", "p/path", "ftp://p"]
)
def test_what_is_no_http_proxy_is_refused_when_it_would_be_used(text: str) -> None:
    proxies = of_environment({"http_proxy": text, "no_proxy": "inside"})
    assert proxies.of("http", "inside", 80) is None
    with pytest.raises(BadProxy):
        proxies.of("http", "outside", 80)
