"""What servers say when they refuse a request."""

from __future__ import annotations

import time

import pytest
from multidict import CIMultiDict

from leaseway.data_plane.oauth.challenges import Challenge, Doubt, challenge_of, read_challenge

PLACE = "https://mcp.example.com/.well-known/oauth-protected-resource"


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        ("", Challenge(401)),
        ("Bearer", Challenge(401)),
        ('Basic realm="x"', Challenge(401)),
        (f'Bearer resource_metadata="{PLACE}"', Challenge(401, PLACE)),
        (f"bearer resource_metadata={PLACE}", Challenge(401, PLACE)),
        ('Bearer realm="a, b", scope="read write"', Challenge(401, scope="read write")),
        ('Basic realm="Bearer error=x, Bearer", Bearer error=y', Challenge(401, error="y")),
        ('Negotiate dGVzdA==, Bearer error="invalid_token"', Challenge(401, error="invalid_token")),
        ('Bearer error = "a" , scope="b"', Challenge(401, scope="b", error="a")),
        ('Bearer realm="x" error="invalid_token"', Challenge(401, error="invalid_token")),
        (r'Bearer realm="say \"Bearer error=z\"", error="a\b"', Challenge(401, error="ab")),
        ('Bearer error="a", Bearer error="b"', Challenge(401, error="a")),
        ('Bearer scope="never closed', Challenge(401, scope="never closed")),
        (f'resource_metadata="{PLACE}"', Challenge(401)),
        ('DPoP error="x"', Challenge(401, error="x", asks_proof=True, asks_only_proof=True)),
        (
            'Bearer, DPoP algs="ES256 PS256"',
            Challenge(401, asks_proof=True, algorithms=("ES256", "PS256")),
        ),
    ],
)
def test_a_challenge_is_found_among_others_in_every_way_to_write_it(
    header: str, expected: Challenge
) -> None:
    assert read_challenge(401, header) == expected


def test_several_headers_are_several_challenges() -> None:
    headers = CIMultiDict([("WWW-Authenticate", 'Basic realm="x"')])
    headers.add("WWW-Authenticate", 'Bearer error="invalid_token"')
    assert challenge_of(401, headers) == Challenge(401, error="invalid_token")


def test_a_token_that_is_not_valid_is_refused_with_whatever_status() -> None:
    assert read_challenge(403, 'Bearer error="invalid_token"').status == 401
    assert read_challenge(403, 'Bearer error="insufficient_scope"').status == 403


@pytest.mark.parametrize(
    "header",
    ['"', "\\", '"\\', "a ", "a=", " ", ',"', 'a="', "Bearer ", 'a"a="', "x,", '="\\"'],
)
def test_a_hostile_header_takes_no_time(header: str) -> None:
    began = time.process_time()
    for start in ("", "Bearer ", "Bearer x"):
        read_challenge(401, start + header * (16_384 // len(header)))
    assert time.process_time() - began < 1.0


def test_a_token_is_doubted_less_often_each_time_that_another_one_does_not_help() -> None:
    doubt, token, now = Doubt(), object(), 0.0
    assert not doubt.is_due(token, now, is_new=True)
    assert doubt.is_due(token, now, is_new=False)
    for pause in (1_200, 4_800):
        token = object()
        doubt.end(token)
        assert not doubt.is_due(token, now, is_new=True)
        assert not doubt.is_due(token, now + pause - 1, is_new=False)
        now += pause
        assert doubt.is_due(token, now, is_new=False)
    for _ in range(2):  # these help
        token = object()
        doubt.end(token)
        assert not doubt.is_due(token, now + 299, is_new=False)
        now += 300
        assert doubt.is_due(token, now, is_new=False)
