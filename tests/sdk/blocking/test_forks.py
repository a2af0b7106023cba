"""Forks: children of a process at rest use its clients, all others are told why they cannot."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest
from tests.sdk.fakes import BOUND, FakeControlPlane, FakeWorker, Gate, until
from tests.sdk.forking import PRELUDE, lines_of

from leaseway.sdk import forks


async def test_a_client_that_was_made_before_the_fork_works_in_the_child(
    plane: FakeControlPlane,
) -> None:
    program = """
client = Client(address)
in_child(lambda: call(client))
print(call(client))
client.close()
"""
    assert await lines_of(plane.address, program) == ["child {}", "{}"]


@pytest.mark.parametrize("support", ["0", "1"])
async def test_a_client_that_was_used_before_the_fork_works_on_both_sides_of_it(
    plane: FakeControlPlane, worker: FakeWorker, support: str
) -> None:
    program = """
client = Client(address)
session = client.session("dialog")
for number in range(5):
    print(call(client, n=number))
    in_child(lambda: call(client, child=number), lambda: session.call_tool("time_now").text,
             lambda: call(Client(address)))
print(len(client.list_tools()))
client.close()
"""
    expected = [
        line
        for n in range(5)
        for line in (f'{{"n":{n}}}', f'child {{"child":{n}}}', "child {}", "child {}")
    ]
    lines = await lines_of(plane.address, program, GRPC_ENABLE_FORK_SUPPORT=support)
    assert lines == [*expected, "2"]


async def test_a_child_of_a_child_works_too(plane: FakeControlPlane) -> None:
    program = """
client = Client(address)
call(client)
def deeper():
    text = call(client)
    in_child(lambda: call(client, depth=2))
    return text
in_child(deeper)
client.close()
"""
    assert await lines_of(plane.address, program) == ['child {"depth":2}', "child {}"]


HOLDING = """
client = Client(address)
with client.session("dialog") as session:
    session.call_tool("desk_open")
    in_child({works})
    print(session.call_tool("desk_open", {{"again": 1}}).text)
in_child(lambda: call(client))
client.close()
"""


async def test_a_child_is_refused_while_its_parent_holds_a_lease_which_it_keeps(
    plane: FakeControlPlane, worker: FakeWorker
) -> None:
    works = """lambda: call(client), lambda: call(Client(address)),
             lambda: asyncio.run(AsyncClient(address).list_tools())"""
    lines = await lines_of(plane.address, HOLDING.format(works=works))
    assert lines == ["refused"] * 3 + ['{"again":1}', "child {}"]
    assert len(worker.released) == 1


async def test_a_client_is_closed_without_an_error_in_a_child_that_is_refused(
    plane: FakeControlPlane,
) -> None:
    works = "client.close, lambda: Client(address).close(), lambda: call(client)"
    lines = await lines_of(plane.address, HOLDING.format(works=works))
    assert lines == ["child None", "child None", "refused", '{"again":1}', "child {}"]


async def test_a_call_in_flight_goes_on_over_a_fork_whose_child_is_refused(
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


async def test_a_child_of_a_process_with_an_open_asynchronous_client_is_refused(
    plane: FakeControlPlane,
) -> None:
    program = """
async def main():
    async with AsyncClient(address) as client:
        await client.call_tool("time_now")
        in_child(lambda: call(Client(address)), lambda: asyncio.run(client.list_tools()))
        print((await client.call_tool("time_now")).text)
asyncio.run(main())
in_child(lambda: call(Client(address)))
"""
    lines = await lines_of(plane.address, program)
    assert lines == ["refused", "refused", "{}", "child {}"]


async def test_what_another_thread_held_at_the_fork_does_not_hold_up_the_child(
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


async def test_threads_that_call_while_others_fork_lose_no_call(plane: FakeControlPlane) -> None:
    program = """
client = Client(address)
done = []
def work():
    for number in range(60):
        done.append(call(client, n=number) == f'{{"n":{number}}}')
threads = [threading.Thread(target=work) for _ in range(3)]
for thread in threads:
    thread.start()
forks = 0
while any(thread.is_alive() for thread in threads):
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    forks += 1
print(len(done), all(done), forks > 0)
client.close()
"""
    program = "import warnings; warnings.simplefilter('ignore', DeprecationWarning)\n" + program
    assert await lines_of(plane.address, program) == ["180 True True"]


async def test_a_client_that_nobody_closed_is_no_trouble_in_the_child(
    plane: FakeControlPlane,
) -> None:
    program = """
def use():
    client = Client(address)
    call(client)
    return client
client = use()
in_child(lambda: use() and "done")
client.close()
"""
    assert await lines_of(plane.address, program) == ["child done"]


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
        if method != "spawn":
            with Client(sys.argv[1]) as parent:
                call(parent)
        context = multiprocessing.get_context(method)
        with context.Pool(2, begin, (sys.argv[1],)) as pool:
            print(method, pool.map(work, range(4)))
"""


async def test_pools_of_every_start_method_make_calls(
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


@pytest.mark.parametrize("used", [False, True])
def test_where_threads_cannot_be_seen_only_a_process_that_used_nothing_may_fork(
    used: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forks, "_THREADS", tmp_path / "absent")
    monkeypatch.setattr(forks, "_used", used)
    assert forks._grpc_has_ended() is not used


@pytest.mark.parametrize("ends", [True, False])
def test_threads_of_grpc_are_given_turns_and_no_time(
    ends: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []
    monkeypatch.setattr(forks, "_used", True)
    monkeypatch.setattr("leaseway.sdk.forks.time.sleep", pauses.append)
    monkeypatch.setattr(forks, "_grpc_runs", lambda: not ends or len(pauses) < 400)
    assert forks._grpc_has_ended() is ends
    assert sum(pauses) == pytest.approx(0.4 if ends else 0.5)
    assert forks._grpc_has_ended() is ends
    assert sum(pauses) == pytest.approx(0.4 if ends else 0.5)  # waited for once
