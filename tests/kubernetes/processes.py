"""Control planes and workers as processes that follow a real API."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Self

from tests.conftest import BOUND
from tests.e2e.system import LEASEWAY, Part
from tests.kubernetes.cluster import Cluster
from tests.ports import free_port


class Planes:
    """Any number of control planes and workers in one namespace.

    Args:
        cluster: The API.
        namespace: The namespace of the watched resources.
        folder: The folder of files.
        user: The user of the control planes at the API.
        lease: The name of the Lease for leader election, or None for a single control plane.
        environment: Further variables of all processes.
    """

    def __init__(
        self,
        cluster: Cluster,
        namespace: str,
        folder: Path,
        *,
        user: str = "admin",
        lease: str | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._cluster = cluster
        self._namespace = namespace
        self._folder = folder
        self._user = user
        self._lease = lease
        self._environment = environment or {}
        self.parts: list[Part] = []
        self.planes: list[Part] = []

    @property
    def address(self) -> str:
        """The addresses of all control planes."""
        return ",".join(part.address for part in self.planes)

    async def control_plane(self, port: int | None = None) -> Part:
        """Start a control plane and wait until it listens."""
        port = port or free_port()
        arguments = ["--config", f"kubernetes={self._namespace}", "--listen", f"127.0.0.1:{port}"]
        if self._lease is not None:
            arguments += ["--leader-lease", f"{self._namespace}/{self._lease}"]
            # The default of 3 s is too short for a busy machine.
            arguments += ["--leader-lease-duration", "6"]
        part = await self._start("control-plane", *arguments)
        self.planes.append(part)
        return part

    async def worker(self, name: str) -> Part:
        """Start a worker and wait until it listens."""
        joined = [word for part in self.planes for word in ("--control-plane", part.address)]
        return await self._start("worker", *joined, "--id", name)

    async def _start(self, *arguments: str) -> Part:
        kubeconfig = self._cluster.kubeconfig(self._user, self._namespace)
        process = await asyncio.create_subprocess_exec(
            *LEASEWAY,
            *arguments,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env={
                **os.environ,
                "KUBECONFIG": str(kubeconfig),
                "LEASEWAY_SEAL_KEY": "of all control planes of a test",
                **self._environment,
            },
        )
        part = Part(process, "")
        part.pump = asyncio.create_task(_pump(part))
        self.parts.append(part)
        assert process.stdout is not None
        async with asyncio.timeout(BOUND):
            line = (await process.stdout.readline()).decode()
        match = re.fullmatch(r"ready (\S+)\n", line)
        if match is None:
            raise RuntimeError("It did not start:\n" + "\n".join(part.log))
        part.address = match[1]
        return part

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        for part in reversed(self.parts):
            if part.process.returncode is None:
                await part.end()
        for part in self.parts:
            if part.pump is not None:
                part.pump.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await part.pump
        for part in self.parts:  # shown if the test fails
            print(f"--- {part.address}", *part.log[-60:], sep="\n")


async def _pump(part: Part) -> None:
    assert part.process.stderr is not None
    async for line in part.process.stderr:
        part.log.append(line.decode().rstrip())
