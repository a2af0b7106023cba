"""Forks: clients work in children of a process that has used no client; others raise an error."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

from tests.sdk.fakes import BOUND, FakeControlPlane, FakeWorker, Gate, until
from tests.sdk.forking import PRELUDE, lines_of


async def test_an_unused_client_works_in_a_forked_child(
    plane: FakeControlPlane,
) -> None:
    program = """
client = Client(address)
session = client.session("dialog")
Client(address).close()  # which starts the loop thread, but no gRPC
in_child(lambda: call(client), lambda: session.call_tool("time_now").text,
         lambda: call(Client(address)), lambda: in_child(lambda: call(client)))
print(call(client))
client.close()
"""
    lines = await lines_of(plane.address, program)
    assert lines == ["child {}", "child {}", "child {}", "refused", "child None", "{}"]


async def test_clients_fail_in_children_forked_after_first_use_but_not_in_the_parent(
    plane: FakeControlPlane, worker: FakeWorker
) -> None:
    program = """
client = Client(address)
with client.session("dialog") as session:
    session.call_tool("desk_open")
    in_child(lambda: call(client), lambda: call(Client(address)),
             lambda: asyncio.run(AsyncClient(address).list_tools()),
             client.close, Client(address).close,
             lambda: in_child(lambda: call(client)))
    print(session.call_tool("desk_open", {"again": 1}).text)
client.close()
in_child(lambda: call(Client(address)))
"""
    lines = await lines_of(plane.address, program)
    ended = ["child None"] * 2
    assert lines == ["refused"] * 3 + ended + ["refused", "child None", '{"again":1}', "refused"]
    assert len(worker.released) == 1


async def test_the_error_after_a_fork_advises_what_to_do(plane: FakeControlPlane) -> None:
    program = """
call(Client(address))
def words():
    try:
        call(Client(address))
    except RuntimeError as error:
        return str(error)
in_child(words)
"""
    (line,) = await lines_of(plane.address, program)
    assert "post_fork" in line
    assert "'spawn'" in line


async def test_a_fork_that_grpc_may_crash_warns_once_if_grpc_was_imported_before_the_sdk(
    plane: FakeControlPlane,
) -> None:
    program = """
import subprocess, sys
import grpc
from leaseway.sdk import Client

def fork():
    subprocess.run(["true"], preexec_fn=int)  # which may crash

fork()
print("before the first use", file=sys.stderr)
Client(sys.argv[1]).call_tool("time_now", {})
fork()
fork()
"""
    environment = {**os.environ, "GRPC_VERBOSITY": "NONE"}
    environment.pop("GRPC_ENABLE_FORK_SUPPORT", None)
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", program, plane.address),
        stderr=subprocess.PIPE,
        env=environment,
    )
    async with asyncio.timeout(4 * BOUND):
        _, written = await process.communicate()
    before, _, after = written.decode().partition("before the first use")
    assert (before, after.count("RuntimeWarning")) == ("", 1)
    assert "Set GRPC_ENABLE_FORK_SUPPORT=0" in after


async def test_a_fork_does_not_disturb_the_parents_calls_in_flight(
    plane: FakeControlPlane, worker: FakeWorker
) -> None:
    worker.answer = gate = Gate(only=b"slow")
    program = """
client = Client(address)
slow = threading.Thread(target=lambda: print(call(client, slow=1)))
slow.start()
sys.stdin.readline()
in_child(lambda: call(client))
slow.join()
client.close()
"""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        PRELUDE + program,
        plane.address,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    async with asyncio.timeout(4 * BOUND):
        await until(lambda: worker.calls)
        process.stdin.write(b"\n")
        assert await process.stdout.readline() == b"refused\n"
        gate.open()
        out, _ = await process.communicate()
    assert out == b'{"slow":1}\n'


async def test_clients_fail_in_children_of_a_process_with_an_async_client(
    plane: FakeControlPlane,
) -> None:
    program = """
async def main():
    async with AsyncClient(address) as client:
        await client.call_tool("time_now")
        in_child(lambda: call(Client(address)), lambda: asyncio.run(client.list_tools()))
        print((await client.call_tool("time_now")).text)
asyncio.run(main())
"""
    assert await lines_of(plane.address, program) == ["refused", "refused", "{}"]


async def test_a_lock_held_by_another_thread_at_the_fork_does_not_block_the_child(
    plane: FakeControlPlane,
) -> None:
    program = """
client = Client(address)
held, over = threading.Event(), threading.Event()
def hold():
    with client._lock.current:
        held.set()
        over.wait()
holder = threading.Thread(target=hold)
holder.start()
held.wait()
in_child(lambda: client.session("dialog").key, lambda: call(client))
over.set()
holder.join()
print(call(client))
client.close()
"""
    assert await lines_of(plane.address, program) == ["child dialog", "child {}", "{}"]


POOL = """
import multiprocessing

client = None

def begin(address):  # as Celery's worker_process_init
    global client
    client = Client(address)

def work(number):
    return call(client, n=number)

if __name__ == "__main__":
    for method in sys.argv[2:]:
        if method != "fork":
            with Client(sys.argv[1]) as parent:
                call(parent)
        context = multiprocessing.get_context(method)
        with context.Pool(2, begin, (sys.argv[1],)) as pool:
            print(method, pool.map(work, range(4)))
"""


async def test_process_pools_of_every_start_method_make_calls(
    plane: FakeControlPlane, tmp_path: Path
) -> None:
    script = tmp_path / "pools.py"
    script.write_text(PRELUDE.replace("address = sys.argv[1]", "") + POOL)

    def run() -> subprocess.CompletedProcess[str]:
        command = [sys.executable, str(script), plane.address, "fork", "spawn", "forkserver"]
        return subprocess.run(
            command, capture_output=True, text=True, timeout=4 * BOUND, check=False
        )

    done = await asyncio.to_thread(run)
    results = ['{"n":0}', '{"n":1}', '{"n":2}', '{"n":3}']
    expected = [f"{method} {results}" for method in ("fork", "spawn", "forkserver")]
    assert done.stdout.splitlines() == expected, done.stderr
