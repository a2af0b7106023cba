"""Forks of processes that have streamed, watched and subscribed: what has ended is no hindrance."""

from __future__ import annotations

from tests.sdk.fakes import FakeControlPlane, FakeWorker
from tests.sdk.forking import lines_of


async def test_a_watch_goes_on_after_a_fork_on_both_sides(plane: FakeControlPlane) -> None:
    program = """
client = Client(address)
watch = client.watch_tools()
print(len(next(watch)))
in_child(lambda: call(client))
client.report_problem("ADD_A_TOOL", "for the watch")
print(len(next(watch)))
client.close()
print(list(watch))
"""

    def report(problem: object) -> None:
        plane.add("time", "zones")
        plane.move()

    plane.on_problem = report
    lines = await lines_of(plane.address, program)
    assert lines == ["2", "child {}", "3", "[]"]


async def test_a_block_of_a_call_that_has_ended_is_left_as_ever_after_a_fork(
    plane: FakeControlPlane,
) -> None:
    program = """
client = Client(address)
with client.stream_tool("time_now", {"n": 1}) as stream:
    list(stream)
    in_child(lambda: None)
    print(stream.result.text)
print(call(client))
client.close()
"""
    assert await lines_of(plane.address, program) == ["child None", '{"n":1}', "{}"]


OFFERS = """
with client.stream_tool("time_now", {"n": 1}) as stream:
    print(list(stream), stream.result.text)
unused = client.stream_tool("time_now", {"n": 2})
never = client.subscribe_resource("notes://a")
with client.stream_tool("no_such_tool") as failing:
    try:
        list(failing)
    except Exception as error:
        print(type(error).__name__)
"""


async def test_streams_that_have_ended_or_not_begun_do_not_trouble_a_child(
    plane: FakeControlPlane,
) -> None:
    program = f"""
client = Client(address)
{OFFERS}
in_child(lambda: call(client))
with unused:
    list(unused)
print(unused.result.text)
client.close()
"""
    lines = await lines_of(plane.address, program)
    assert lines == ['[] {"n":1}', "ToolNotFound", "child {}", '{"n":2}']


async def test_a_subscription_that_was_left_does_not_trouble_a_child(
    plane: FakeControlPlane, holding: FakeWorker
) -> None:
    program = """
client = Client(address)
with client.subscribe_resource("notes://a") as updates:
    in_child(lambda: call(client))
in_child(lambda: call(client))
client.close()
"""
    assert await lines_of(plane.address, program) == ["refused", "child {}"]
