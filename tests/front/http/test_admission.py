"""Who may talk to the front: by key, by a page's origin and by the name it was reached at."""

from __future__ import annotations

import pytest

from leaseway.front.http.admission import Admission
from leaseway.wire.channels.endpoint import Endpoint

LOCAL = Endpoint("127.0.0.1", 7680)
OPEN = Endpoint("0.0.0.0", 7680)


def status(admission: Admission, **headers: str) -> int:
    """Return what a request is refused with; 200 for one that is not."""
    refusal = admission.refusal({name.capitalize(): value for name, value in headers.items()})
    return refusal.status if refusal is not None else 200


@pytest.mark.parametrize("host", ["127.0.0.1:7680", "localhost", "[::1]:7680", "LOCALHOST:1"])
def test_this_machine_may_ask_where_there_is_no_key(host: str) -> None:
    assert status(Admission(LOCAL, None), host=host) == 200
    assert status(Admission(LOCAL, None), host=host, origin=f"http://{host}") == 200


@pytest.mark.parametrize("host", ["evil.example.com", "localhost.evil.com", "", "127.0.0.1.nip.io"])
def test_a_name_that_leads_here_by_rebinding_is_refused(host: str) -> None:
    assert status(Admission(LOCAL, None), host=host) == 403


@pytest.mark.parametrize("origin", ["https://evil.example.com", "null", "http://[", "file://"])
def test_a_strangers_page_is_refused(origin: str) -> None:
    assert status(Admission(LOCAL, None), host="localhost", origin=origin) == 403


def test_pages_and_hosts_that_are_named_may_ask() -> None:
    admission = Admission(OPEN, "k", ["https://app.example.com/"], ["mcp.example.com"])
    bearer = {"authorization": "Bearer k"}
    assert (
        status(admission, host="mcp.example.com", origin="https://APP.example.com", **bearer) == 200
    )
    assert status(admission, host="other.example.com", **bearer) == 403
    assert (
        status(admission, host="mcp.example.com", origin="https://b.example.com", **bearer) == 403
    )


@pytest.mark.parametrize("sent", [{}, {"authorization": "Bearer x"}, {"authorization": "k"}])
def test_a_key_has_to_be_sent_where_there_is_one(sent: dict[str, str]) -> None:
    refusal = Admission(OPEN, "k").refusal(
        {"Host": "any", **{k.title(): v for k, v in sent.items()}}
    )
    assert refusal is not None
    assert refusal.status == 401
    assert refusal.headers["WWW-Authenticate"].startswith("Bearer")
    assert status(Admission(OPEN, "k"), host="any", authorization="Bearer k") == 200
