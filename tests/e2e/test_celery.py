"""The synchronous client in Celery's prefork pool, made and used before the pool is forked."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import pytest
from tests.e2e.system import python_server, running

pytestmark = pytest.mark.usefixtures("leak_guard")

SERVERS = {"counter": python_server("counter.py", transform=[{"prefix": "counter_"}])}
BOUND = 200.0
JOBS = """
import os
from pathlib import Path

from celery import Celery
from leaseway.sdk import Client

folder = Path(__file__).parent
queue, results = folder / "queue", folder / "results"
queue.mkdir(exist_ok=True)
results.mkdir(exist_ok=True)
app = Celery("jobs", broker="filesystem://", backend=f"file://{results}")
app.conf.broker_transport_options = {
    "data_folder_in": str(queue),
    "data_folder_out": str(queue),
    "control_folder": str(queue),
}
client = Client()
names = [tool.name for tool in client.list_tools()]


@app.task
def work(number):
    with client.session(f"job-{number}") as session:
        session.call_tool("counter_add", {"by": number})
        return os.getpid(), session.call_tool("counter_add", {"by": 100}).text
"""
ORDERS = """
from jobs import work

orders = [work.delay(number) for number in range(8)]
for order in orders:
    print(*order.get(timeout=150))
"""


async def test_tasks_of_a_prefork_pool_call_tools(tmp_path: Path) -> None:
    (tmp_path / "jobs.py").write_text(JOBS)
    async with running(tmp_path, SERVERS) as (system, _):
        environment = {**os.environ, "LEASEWAY_ADDRESS": system.address}
        options = ("--pool=prefork", "--concurrency=2", "--without-gossip", "--without-mingle")
        worker = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "celery", "-A", "jobs", "worker", *options),
            cwd=tmp_path,
            env=environment,
            stdout=asyncio.subprocess.DEVNULL,
        )
        try:
            orders = await asyncio.create_subprocess_exec(
                *(sys.executable, "-c", ORDERS),
                cwd=tmp_path,
                env=environment,
                stdout=asyncio.subprocess.PIPE,
            )
            async with asyncio.timeout(BOUND):
                out, _errors = await orders.communicate()
        finally:
            worker.terminate()
            async with asyncio.timeout(BOUND):
                await worker.wait()
    lines = [line.split() for line in out.decode().splitlines()]
    assert [text for _, text in lines] == [str(100 + number) for number in range(8)]
    assert str(worker.pid) not in {pid for pid, _ in lines}
