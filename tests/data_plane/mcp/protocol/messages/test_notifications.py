"""What a server says beside MCP's own members of progress reports and log messages."""

from __future__ import annotations

import json

import msgspec
import pytest

from leaseway.data_plane.mcp.protocol.messages.notifications import read_log, read_progress
from leaseway.wire.bounds import MAX_META


def test_other_members_pass_without_the_keys_of_the_protocol() -> None:
    meta = {"a": 1, "io.modelcontextprotocol/subscriptionId": 7}
    report = {"progressToken": 1, "progress": 2, "total": None, "x": [None], "_meta": meta}
    read, extra = read_progress(msgspec.Raw(json.dumps(report).encode()))
    assert (read.progressToken, read.progress, read.total) == (1, 2.0, None)
    assert json.loads(extra) == {"x": [None], "_meta": {"a": 1}}
    _, nothing = read_log(msgspec.Raw(b'{"level":"info","data":1,"_meta":{"progressToken":1}}'))
    assert nothing == b""


@pytest.mark.parametrize("above", [0, 1])
def test_other_members_have_at_most_as_many_bytes_as_a_callers_meta(above: int) -> None:
    members = {"x": "y" * (MAX_META - len('{"x":""}') + above)}
    _, extra = read_log(msgspec.Raw(json.dumps({"level": "info", **members}).encode()))
    assert len(extra) == (0 if above else MAX_META)


def test_what_is_no_report_is_refused() -> None:
    for wrong in (b'{"progress":"much","x":1}', b"[]", b"7"):
        with pytest.raises(ValueError, match="Expected"):
            read_progress(msgspec.Raw(wrong))
