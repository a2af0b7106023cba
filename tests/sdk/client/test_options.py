"""The options of calls: the same for both clients, typed, and checked for wrong names.

The `type: ignore` comments are part of the tests: mypy reports unneeded ones.
"""

from __future__ import annotations

from inspect import signature
from typing import Any, Unpack, assert_type, get_type_hints

import pytest
from tests.sdk.fakes import FakeControlPlane, FakeWorker, echo, in_thread

from leaseway.sdk import (
    AsyncClient,
    AsyncSession,
    CallOptions,
    Client,
    Session,
    StreamOptions,
    ToolResult,
)


async def call_through(client: AsyncClient, **options: Unpack[CallOptions]) -> ToolResult:
    """Pass options on, as a user's function can."""
    result = await client.call_tool("time_now", **options)
    assert_type(result, ToolResult)
    return result


async def test_functions_can_declare_and_pass_on_call_options(
    client: AsyncClient, worker: FakeWorker
) -> None:
    worker.answer = echo
    options: CallOptions = {"timeout": 5.0, "on_progress": print, "log_level": None}
    assert (await call_through(client, **options)).text == "{}"
    with pytest.raises(TypeError, match="no parameter 'timout'"):
        await call_through(client, timout=5)  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (
            {"timout": 5},
            r"call_tool has no parameter 'timout'\. Did you mean 'timeout'\? Its",
        ),
        (
            {"zone": 5},
            r"no parameter 'zone'\. The arguments .* call_tool\(tool, \{'zone': \.\.\.\}\)\. Its",
        ),
        ({"seconds": 5}, r"no parameter 'seconds'\. The arguments of a tool are one mapping"),
        (
            {"session": "a"},
            r"no parameter 'session'\. Call in a session with client\.session\(key\)\.call_tool\(",
        ),
        ({"server": "time"}, r"no parameter 'server'\. .* call_tool\('server:tool'\)\. Its "),
        ({"result_typ": int}, "Did you mean 'result_type'"),
        (
            {"timeout": 5, "on_logs": print},
            r"call_tool has no parameter 'on_logs'\. Did you mean 'on_log'",
        ),
    ],
    ids=str,
)
async def test_an_unknown_option_is_rejected_before_the_call(
    client: AsyncClient, worker: FakeWorker, options: dict[str, Any], sentence: str
) -> None:
    for caller in (client, client.session("a")):
        with pytest.raises(TypeError, match=sentence):
            await caller.call_tool("time_now", **options)
    with Client("127.0.0.1:1") as other, pytest.raises(TypeError, match=sentence):
        other.call_tool("time_now", **options)
    assert not worker.calls


async def test_stream_tool_rejects_callbacks(client: AsyncClient) -> None:
    with pytest.raises(TypeError, match="stream_tool has no parameter 'on_progress'"):
        client.stream_tool("time_now", on_progress=print)  # type: ignore[call-arg]
    with (
        Client("127.0.0.1:1") as other,
        pytest.raises(TypeError, match="stream_tool has no parameter 'on_log'"),
    ):
        other.stream_tool("time_now", on_log=print)  # type: ignore[call-arg]


async def test_options_of_none_are_the_same_as_absent_ones(
    plane: FakeControlPlane, worker: FakeWorker
) -> None:
    worker.answer = echo
    nothing: CallOptions = {
        "timeout": None,
        "log_level": None,
        "on_elicitation": None,
        "on_sampling": None,
        "roots": None,
        "inline_media": False,
        "on_progress": None,
        "on_log": None,
        "on_approval": None,
        "subject_token": None,
    }
    assert nothing.keys() == CallOptions.__optional_keys__

    def work() -> None:
        with Client(plane.address) as client:
            assert client.call_tool("time_now", **nothing).text == "{}"
            fewer: StreamOptions = {"timeout": None, "log_level": None, "roots": None}
            with client.stream_tool("time_now", **fewer) as stream:
                assert list(stream) == []

    async with AsyncClient(plane.address) as client:
        assert (await client.call_tool("time_now", **nothing)).text == "{}"
    await in_thread(work)
    assert not any(call.wants_progress or call.answers for call in worker.calls[:2])


async def test_a_wrong_log_level_is_rejected_even_without_on_log(client: AsyncClient) -> None:
    with pytest.raises(ValueError, match="not 'warn'"):
        await client.call_tool("time_now", log_level="warn")


@pytest.mark.parametrize("kind", [AsyncClient, AsyncSession, Client, Session])
def test_all_clients_and_sessions_declare_the_same_options(kind: type) -> None:
    for method, options in (("call_tool", CallOptions), ("stream_tool", StreamOptions)):
        declared = signature(getattr(kind, method)).parameters["options"].annotation
        assert declared == f"Unpack[{options.__name__}]"
        assert set(get_type_hints(options)) == options.__optional_keys__
