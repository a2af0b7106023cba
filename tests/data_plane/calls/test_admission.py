"""Which calls may run: of a server and tool that are served, with arguments that fit."""

from __future__ import annotations

from typing import Any

import pytest

from leaseway.wire.errors import Reason

Bench = Any


@pytest.mark.parametrize(
    ("server_id", "tool", "arguments", "reason"),
    [
        ("tme", "echo", b"{}", Reason.TOOL_NOT_FOUND),
        ("time", "ecko", b"{}", Reason.TOOL_NOT_FOUND),
        ("time", "echo", b"{}", Reason.INVALID_ARGUMENTS),
        ("time", "echo", b'{"text": 7}', Reason.INVALID_ARGUMENTS),
        ("time", "echo", b"nonsense", Reason.INVALID_ARGUMENTS),
        ("time", "echo", b"", Reason.INVALID_ARGUMENTS),
    ],
)
async def test_what_cannot_run_is_refused_before_the_server_sees_it(
    bench: Bench, server_id: str, tool: str, arguments: bytes, reason: Reason
) -> None:
    await bench.serve("time")
    fault = await bench.caller().refused(server_id, tool, arguments=arguments)
    assert (fault.reason, fault.started) == (reason, "no")


async def test_line_breaks_in_arguments_never_reach_a_server_of_lines(bench: Bench) -> None:
    await bench.serve("time")
    result = await bench.caller().call("time", arguments=b'{\r\n "text":\n "a\\nb"}\n')
    assert b'{   \\"text\\":  \\"a\\\\nb\\"} ' in result.payload


async def test_a_tool_hidden_by_another_servers_name_does_not_exist(bench: Bench) -> None:
    upsert = bench.upsert(bench.spec("time"))
    upsert.toolset.exposed[0].skipped = True
    await bench.push(upsert)
    assert (await bench.caller().refused("time")).reason is Reason.TOOL_NOT_FOUND
