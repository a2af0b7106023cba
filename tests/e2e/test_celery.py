"""The synchronous client in Celery's prefork pool, created before the fork."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import pytest
from tests.conftest import BOUND
from tests.e2e.system import eventually, python_server, running

pytestmark = pytest.mark.usefixtures("leak_guard")

SERVERS = {"counter": python_server("counter.py", transform=[{"prefix": "counter_"}])}
ORDERS = 8
JOBS = """
import os
from pathlib import Path

from celery import Celery
from leaseway.sdk import Client

folder = Path(__file__).parent
queue, done = folder / "queue", folder / "done"
queue.mkdir(exist_ok=True)
done.mkdir(exist_ok=True)
app = Celery("jobs", broker="filesystem://")
app.conf.broker_transport_options = {
    "data_folder_in": str(queue),
    "data_folder_out": str(queue),
    "control_folder": str(queue),
}
client = Client()


@app.task(ignore_result=True)
def work(number):
    with client.session(f"job-{number}") as session:
        session.call_tool("counter_add", {"by": number})
        text = session.call_tool("counter_add", {"by": 100}).text
    unfinished = folder / f"{number}.tmp"
    unfinished.write_text(f"{os.getpid()} {text}")
    unfinished.rename(done / str(number))
"""
ORDER = f"""
from jobs import work

for number in range({ORDERS}):
    work.delay(number)
"""


async def test_tasks_of_a_prefork_pool_call_tools(tmp_path: Path) -> None:
    # Celery's folder transport does not write files atomically, and a reader can find an empty
    # one: all orders are written before the pool starts, and tasks rename their results.
    (tmp_path / "jobs.py").write_text(JOBS)
    done = tmp_path / "done"
    async with running(tmp_path, SERVERS) as (system, _):
        environment = {**os.environ, "LEASEWAY_ADDRESS": system.address}

        async def python(*args: str) -> asyncio.subprocess.Process:
            return await asyncio.create_subprocess_exec(
                *(sys.executable, *args),
                cwd=tmp_path,
                env=environment,
                stdout=asyncio.subprocess.DEVNULL,
            )

        orders = await python("-c", ORDER)
        async with asyncio.timeout(BOUND):
            assert await orders.wait() == 0
        options = ("--pool=prefork", "--concurrency=2", "--without-gossip", "--without-mingle")
        worker = await python("-m", "celery", "-A", "jobs", "worker", *options)
        try:
            await eventually(lambda: len(list(done.iterdir())) == ORDERS)
        finally:
            worker.terminate()
            async with asyncio.timeout(BOUND):
                await worker.wait()
    results = [(done / str(number)).read_text().split() for number in range(ORDERS)]
    assert [text for _, text in results] == [str(100 + number) for number in range(ORDERS)]
    assert str(worker.pid) not in {pid for pid, _ in results}
