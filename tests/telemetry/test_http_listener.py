"""Who may send a request to one of Leaseway's own pages, and how it is refused."""

from __future__ import annotations

import pytest

from leaseway.telemetry.http_listener import HttpRefusal, check_request
from leaseway.wire.errors import Fault, Reason


@pytest.mark.parametrize(
    ("reason", "status", "header"),
    [
        (Reason.UNAUTHENTICATED, 401, "WWW-Authenticate"),
        (Reason.PERMISSION_DENIED, 403, None),
        (Reason.OVERLOADED, 503, "Retry-After"),
        (Reason.INTERNAL, 503, "Retry-After"),
    ],
)
async def test_a_credential_that_could_not_be_checked_is_no_wrong_credential(
    reason: Reason, status: int, header: str | None
) -> None:
    async def admit(_authorization: str | None) -> None:
        raise Fault(reason, "Why.")

    with pytest.raises(HttpRefusal, match="Why") as caught:
        await check_request(admit, "example.com", "Bearer k", "pages")
    assert caught.value.status == status
    assert list(caught.value.headers) == ([header] if header else [])


@pytest.mark.parametrize("host", ["", "localhost:80", "127.0.0.1", "[::1]:9", "a.localhost"])
async def test_without_credentials_local_names_are_served(host: str) -> None:
    assert await check_request(None, host, None, "pages") is None


@pytest.mark.parametrize("host", ["example.com", "127.0.0.1.example.com", "localhost:80#@evil"])
async def test_without_credentials_a_foreign_name_is_refused(host: str) -> None:
    with pytest.raises(HttpRefusal, match="localhost") as caught:
        await check_request(None, host, None, "pages")
    assert caught.value.status == 403
