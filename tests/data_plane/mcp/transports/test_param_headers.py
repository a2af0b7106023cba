"""Tools whose schemas require headers that cannot be sent."""

from __future__ import annotations

import pytest

from leaseway.data_plane.kinds.remote.http.param_headers import ParamHeaders
from leaseway.data_plane.mcp.protocol.logged import LoggedOnce

TOOLS = {
    "good": b'{"name":"good","inputSchema":{"type":"object"}}',
    "bad": b'{"name":"bad","inputSchema":{"type":"object","properties":{"a":{"type":"string",'
    b'"x-mcp-header":"no token"}}}}',
}


def test_a_tool_with_an_invalid_header_is_skipped_and_told_once_for_all_instances(
    caplog: pytest.LogCaptureFixture,
) -> None:
    logged = LoggedOnce()
    for _ in range(2):
        instance = ParamHeaders("server")
        assert [*instance.accept(TOOLS, logged)] == ["good"]
    (record,) = caplog.records
    assert "The tool bad of the server server is skipped" in record.message
