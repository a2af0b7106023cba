"""`with` blocks that end in a forked child raise and hide no error, and leave the parent alone."""

from __future__ import annotations

import pytest
from tests.sdk.fakes import FakeControlPlane, FakeWorker
from tests.sdk.forking import lines_of

# The child continues after the block, as a program that forks by itself does, and exits normally.
SYNCHRONOUS = """
client = Client(address)
inside = False
try:
    with client, client.session("dialog") as session:
        session.call_tool("desk_open")
        with {block} as opened:
            child = os.fork()
            inside = child == 0
            if child == 0 and {fails}:
                raise KeyError("first")
            if child:
                assert os.waitpid(child, 0)[1] == 0
        print("parent" if child else "left", flush=True)
        if child:
            print(session.call_tool("desk_open", {{"again": 1}}).text, flush=True)
except KeyError as error:
    print(repr(error), repr(error.__context__), flush=True)
if inside:
    for use in (lambda: call(client), lambda: session.call_tool("desk_open"), session.__enter__):
        try:
            use()
        except RuntimeError as error:
            print("refused" if "forked" in str(error) else error, flush=True)
"""

BLOCKS = [
    'client.session("other")',
    'client.stream_tool("time_now", {{"held": 1}})',
    'client.subscribe_resource("notes://a")',
]


@pytest.mark.parametrize("block", BLOCKS[:1])
async def test_with_blocks_end_without_an_error_in_a_forked_child(
    plane: FakeControlPlane, holding: FakeWorker, block: str
) -> None:
    program = SYNCHRONOUS.format(block=block.format(), fails=False)
    lines = await lines_of(plane.address, program)
    assert lines == ["left", "refused", "refused", "refused", "parent", '{"again":1}']
    assert len(holding.released) == 1


@pytest.mark.parametrize("block", BLOCKS)
async def test_with_blocks_do_not_hide_an_error_in_a_forked_child(
    plane: FakeControlPlane, holding: FakeWorker, block: str
) -> None:
    program = SYNCHRONOUS.format(block=block.format(), fails=True)
    lines = await lines_of(plane.address, program)
    expected = ["KeyError('first') None", "refused", "refused", "refused", "parent"]
    assert lines == [*expected, '{"again":1}']
    assert len(holding.released) == 1


ASYNCHRONOUS = """
async def refusal_of(use):
    try:
        await use
    except RuntimeError as error:
        print("refused" if "forked" in str(error) else error, flush=True)

async def main():
    async with AsyncClient(address) as client, client.session("dialog") as session:
        await session.call_tool("desk_open")
        async with {block} as opened:
            child = os.fork()
            if child == 0:
                await refusal_of(session.call_tool("desk_open"))
                raise KeyError("first")
            assert os.waitpid(child, 0)[1] == 0
        print((await session.call_tool("desk_open", {{"again": 1}})).text, flush=True)

async def program():
    try:
        await main()
    except KeyError as error:
        print(repr(error), repr(error.__context__), flush=True)
        await refusal_of(AsyncClient(address).list_tools())
        os._exit(0)  # the loop belongs to the parent

asyncio.run(program())
"""


@pytest.mark.parametrize("block", BLOCKS)
async def test_async_with_blocks_do_not_hide_an_error_in_a_forked_child(
    plane: FakeControlPlane, holding: FakeWorker, block: str
) -> None:
    lines = await lines_of(plane.address, ASYNCHRONOUS.format(block=block.format()))
    assert lines == ["refused", "KeyError('first') None", "refused", '{"again":1}']
    assert len(holding.released) == 1
