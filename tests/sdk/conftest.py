"""A fake control plane with one fake worker, and a client that is closed at the end."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from tests.sdk.fakes import FakeControlPlane, FakeWorker
from tests.sdk.forking import held

from leaseway.sdk import AsyncClient


@pytest.fixture
async def worker() -> AsyncIterator[FakeWorker]:
    async with FakeWorker("w1") as fake:
        yield fake


@pytest.fixture
async def second() -> AsyncIterator[FakeWorker]:
    """A second worker; tests that need it add it to the control plane."""
    async with FakeWorker("w2") as fake:
        yield fake


@pytest.fixture
async def plane(worker: FakeWorker) -> AsyncIterator[FakeControlPlane]:
    """Serves `time_now`, shared, and `desk_open`, leased, on the first worker."""
    fake = FakeControlPlane()
    fake.workers = [worker]
    fake.add("time", "now")
    fake.add("desk", "open", shared=False)
    await fake.start()
    yield fake
    await fake.stop()


@pytest.fixture
async def client(plane: FakeControlPlane) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(plane.address, agent="billing") as made:
        yield made


@pytest.fixture
def holding(plane: FakeControlPlane, worker: FakeWorker) -> FakeWorker:
    """Make the worker hold subscriptions, and calls with the argument `held`, until they end."""
    plane.add("notes", "subscribe")
    plane.tools["notes://a"] = plane.tools["notes_subscribe"]
    worker.answer = held
    return worker
