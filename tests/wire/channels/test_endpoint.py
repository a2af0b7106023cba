from __future__ import annotations

import pytest

from leaseway.wire.channels.endpoint import (
    DEFAULT_ADDRESS,
    Endpoint,
    Endpoints,
    grpc_target,
    parse_endpoint,
    parse_endpoints,
)


@pytest.mark.parametrize(
    ("text", "endpoint"),
    [
        ("127.0.0.1:7600", Endpoint("127.0.0.1", 7600)),
        ("example.org:1", Endpoint("example.org", 1)),
        ("[::1]:65535", Endpoint("::1", 65535)),
        ("localhost:0", Endpoint("localhost", 0)),
        ("dns:7600", Endpoint("dns", 7600)),
        ("unix:7600", Endpoint("unix", 7600)),
    ],
)
def test_an_address_reads_and_writes_the_same(text: str, endpoint: Endpoint) -> None:
    assert parse_endpoint(text) == endpoint
    assert str(endpoint) == text


@pytest.mark.parametrize(
    ("text", "advice"),
    [
        ("", "HOST:PORT"),
        ("7600", "HOST:PORT"),
        ("host:", "HOST:PORT"),
        ("host:-1", "HOST:PORT"),
        ("host:65536", "HOST:PORT"),
        ("host:http", "HOST:PORT"),
        (":7600", "127.0.0.1:7600"),
        ("::1:7600", "[::1]:7600"),
        ("http://127.0.0.1:7600", "as 127.0.0.1:7600"),
        ("http://127.0.0.1:7600/mcp", " and a path, as 127.0.0.1:7600"),
        ("dns:///127.0.0.1:7600", "as 127.0.0.1:7600"),
        ("grpc://leaseway.example", "as leaseway.example:7600"),
        ("dns:leaseway.example:7600", "as leaseway.example:7600"),
        ("ipv6:[::1]:7600", "as [::1]:7600"),
        ("unix:///run/leaseway.sock", "no Unix sockets"),
        ("/run/leaseway.sock", "no Unix sockets"),
        ("127.0.0.1:7600 127.0.0.1:7601", "one machine"),
        ("my host:7600", "one machine"),
        ("*:7600", "one machine"),
        ("a\0b:7600", "one machine"),
        ("a:b:c:7600", "one machine"),
        ("[localhost:7600", "one machine"),
    ],
)
def test_an_invalid_address_is_an_error_with_advice(text: str, advice: str) -> None:
    with pytest.raises(ValueError, match="write") as caught:
        parse_endpoint(text)
    assert advice in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        "https://me:hush@host:7600/x",
        "me:hush@host:7600",
        "tcp://me:a/hush@host:7600",
        "me:a hush@host:7600",
        "me:hush,hush@host:7600",
        "https://me:hu@sh@host:7600/hush@x",
    ],
)
def test_the_error_of_an_address_repeats_no_password(text: str) -> None:
    for parse in (parse_endpoint, parse_endpoints):
        with pytest.raises(ValueError, match="write") as caught:
            parse(text)
        assert "hush" not in str(caught.value)


def test_several_addresses_are_separated_by_commas() -> None:
    several = parse_endpoints(" a:1, [::1]:2,\n")
    assert several == Endpoints(Endpoint("a", 1), (Endpoint("::1", 2),))
    assert str(several) == "a:1,[::1]:2"
    with pytest.raises(ValueError, match="write"):
        parse_endpoints(",")
    with pytest.raises(ValueError, match="port 0"):
        parse_endpoints("a:1,b:0")


@pytest.mark.parametrize("address", ["dns:7600", "unix:7600", "XDS:7600"])
def test_a_machine_may_have_the_name_of_a_resolver_of_grpc(address: str) -> None:
    assert grpc_target(address) == f"dns:///{address}"
    assert grpc_target("[::1]:7600") == "[::1]:7600"


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "::1", "localhost"])
def test_loopback_addresses_are_local(host: str) -> None:
    assert Endpoint(host, 1).is_loopback


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "example.org", "localhost.evil"])
def test_other_addresses_are_not_loopback(host: str) -> None:
    assert not Endpoint(host, 1).is_loopback


def test_the_default_address_is_of_this_machine() -> None:
    assert parse_endpoint(DEFAULT_ADDRESS) == Endpoint("127.0.0.1", 7600)


@pytest.mark.parametrize(
    ("host", "reached"),
    [("0.0.0.0", "127.0.0.1"), ("::", "::1"), ("10.0.0.1", "10.0.0.1")],
)
def test_a_wildcard_listener_is_reached_by_loopback(host: str, reached: str) -> None:
    endpoint = Endpoint(host, 7)
    assert endpoint.is_wildcard is (host != reached)
    assert endpoint.reachable == Endpoint(reached, 7)
