"""Names that a tenant may not have, because they mean something else."""

from __future__ import annotations

import pytest

from leaseway.wire.errors import Fault, Reason
from leaseway.wire.names import check_caller_names, is_valid_tenant

RESERVED = [
    "*",
    "acme*",
    "all",
    "ALL",
    ".",
    "..",
    "../beta",
    "a/../b",
    "a//b",
    "/a",
    "a/",
    "a\\b",
    " acme",
    "acme ",
    "a\nb",
    "a\x00",
    "a\u200bb",
    "a\u202eb",
    "\ud800",
    "x" * 257,
]


@pytest.mark.parametrize("name", RESERVED)
def test_a_name_with_a_meaning_is_no_tenant(name: str) -> None:
    assert not is_valid_tenant(name)
    with pytest.raises(Fault, match="tenant") as raised:
        check_caller_names(tenant=name)
    assert raised.value.reason is Reason.INVALID_REQUEST


@pytest.mark.parametrize(
    "name", ["acme", "a", "x" * 256, "Große Firma", "a@b.example", "a.b", "org/42:x", "...", "0"]
)
def test_other_names_are_tenants(name: str) -> None:
    assert is_valid_tenant(name)
    check_caller_names(tenant=name)


def test_no_tenant_is_a_request_without_one_and_no_name() -> None:
    check_caller_names(tenant="")
    assert not is_valid_tenant("")
