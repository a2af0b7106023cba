"""A call that needs a login: an MCP client learns where a person logs in."""

from __future__ import annotations

from typing import Any

from leaseway.front.protocol.results import error_result, rpc_error
from leaseway.sdk import Tool
from leaseway.sdk.errors import LeasewayError, error_from_fault
from leaseway.wire.errors import Fault, Reason

METADATA = {"server": "mail", "tenant": "acme", "user": "anna", "url": "https://c/login/w/t"}


def required() -> LeasewayError:
    return error_from_fault(Fault(Reason.LOGIN_REQUIRED, "For mail …", metadata=METADATA))


def test_the_error_of_a_missing_login_has_its_address_and_subject() -> None:
    error = rpc_error(required(), modern=True)
    assert error.data == {"reason": "LOGIN_REQUIRED", "started": "no", **METADATA}
    assert METADATA["url"] in error.message, "of the data many clients show models nothing"


def test_the_tool_for_logins_answers_with_the_address() -> None:
    answer = error_result(required(), tool("mcp_admin", "mcp_login"))
    assert answer is not None
    assert METADATA["url"].encode() in answer
    assert error_result(required(), tool("mail", "send")) is None
    assert error_result(required(), None) is None


def tool(server: str, name: str) -> Tool:
    nothing: dict[str, Any] = {}
    return Tool(
        name=name,
        server_id=server,
        original_name=name,
        title="",
        description="",
        input_schema=nothing,
        output_schema=None,
        annotations=nothing,
        extra=nothing,
        shared=True,
    )
