"""A call that needs a login: an MCP client learns where a person logs in."""

from __future__ import annotations

from leaseway.front.protocol.results import rpc_error
from leaseway.sdk.errors import error_from_fault
from leaseway.wire.errors import Fault, Reason


def test_the_error_of_a_missing_login_has_its_address_and_subject() -> None:
    metadata = {"server": "mail", "tenant": "acme", "user": "anna", "url": "https://c/login/w/t"}
    fault = Fault(Reason.LOGIN_REQUIRED, "For the server mail …", metadata=metadata)
    error = rpc_error(error_from_fault(fault), modern=True)
    assert error.data == {"reason": "LOGIN_REQUIRED", "started": "no", **metadata}
