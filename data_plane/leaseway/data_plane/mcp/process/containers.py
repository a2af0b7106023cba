"""Servers as images on one machine: an engine's client is the process, its container goes with it.

Docker's containers are no children of the worker. So each is removed after its client's end, by
the reaper after the worker's, and by the next worker that uses the engine where both were killed.
"""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from leaseway.data_plane.core.resolved_values import ResolvedValues
from leaseway.data_plane.mcp.process.container_command import (
    client_environment,
    container_name,
    listing,
    owners,
    removal,
    run_command,
    taken_names,
)
from leaseway.spec.images import image_fault
from leaseway.spec.model import ServerSpec
from leaseway.wire.errors import Fault, Reason

_logger = logging.getLogger(__name__)
_ENGINES: Final = ("docker", "podman")
ENGINE_VARIABLE: Final = "LEASEWAY_CONTAINER_ENGINE"
"""Names the program on a worker's machine, where it is another, or both are there."""

_ANSWER_TIMEOUT: Final = 15.0
_PROC: Final = Path("/proc")


@dataclass(frozen=True)
class Container:
    """One instance's container.

    Attributes:
        name: Its name.
        image: What it runs.
        command: What its client is started with.
        environment: All that its client gets.
        removal: The command that removes it, whatever state it is in.
    """

    name: str
    image: str
    command: tuple[str, ...]
    environment: Mapping[str, str]
    removal: tuple[str, ...]

    async def remove(self) -> None:
        """Remove the container if it is still there; a failure is logged."""
        try:
            done = await asyncio.to_thread(_run, self.removal, self.environment)
        except (OSError, subprocess.SubprocessError) as error:
            _logger.warning("The container %s can't be removed: %s.", self.name, error)
            return
        words = done.stderr.strip()
        if done.returncode and not _is_gone(words):
            _logger.warning("The container %s can't be removed: %s", self.name, words[-500:])


class Containers:
    """A worker's use of a container engine.

    Args:
        environ: The worker's environment.
        token: Tells this worker process's containers from those of others.
    """

    def __init__(self, environ: Mapping[str, str], token: str) -> None:
        self._environ = environ
        self.owner = f"{process_identity(os.getpid())}:{token}"
        self._swept: asyncio.Task[None] | None = None

    def prepare(
        self,
        spec: ServerSpec,
        resolved: ResolvedValues,
    ) -> Container:
        """Return how a server's container is run.

        Args:
            spec: The server.
            resolved: What its references stand for; an empty command is the image's own.

        Raises:
            Fault: SERVER_NOT_READY with `problem` CONTAINER_ENGINE_MISSING or START_FAILED.
        """
        server = spec.key.server_id
        engine, image, variables = self._engine(server), resolved.image, resolved.env
        command = (resolved.command, *resolved.args)
        fault = image_fault(image)
        if fault is not None:
            raise _fault(server, "START_FAILED", f"its 'image' {fault}")
        taken = taken_names(variables)
        for name in taken:
            if variables[name] in resolved.secrets:
                text = (
                    f"the engine's client takes {name} for its own; hand its value over in another"
                )
                raise _fault(server, "START_FAILED", f"{text} variable, or in a file.")
        if self._swept is None:
            self._swept = asyncio.get_running_loop().create_task(self._sweep(engine))
        name = container_name(server)
        words = run_command(
            *(engine, name, self.owner, image, command, variables),
            limits=spec.limits,
            sandbox=spec.sandbox,
            folder=resolved.cwd,
        )
        # The client runs on the worker: nothing of a container's decides what it is and does there.
        handed = {name: text for name, text in variables.items() if name not in taken}
        environment = {**handed, **client_environment(self._environ)}
        return Container(name, image, words, environment, removal(engine, name))

    def last_rites(self) -> Mapping[str, object] | None:
        """Return what the reaper does once the worker is gone; None while no engine is used."""
        engine = self._found()
        if self._swept is None or engine is None:
            return None
        return {
            "list": listing(engine, self.owner),
            "remove": removal(engine),
            "environment": client_environment(self._environ),
        }

    def _engine(self, server: str) -> str:
        engine = self._found()
        if engine is not None:
            return engine
        named = self._environ.get(ENGINE_VARIABLE)
        what = f"{named}, which {ENGINE_VARIABLE} names, is" if named else "docker nor podman is"
        neither = "" if named else "neither "
        text = (
            f"it is an image, and {neither}{what} on this worker's PATH. Install a container engine"
            " there, or run the server on a worker that has one."
        )
        raise _fault(server, "CONTAINER_ENGINE_MISSING", text)

    def _found(self) -> str | None:
        named = self._environ.get(ENGINE_VARIABLE)
        path = self._environ.get("PATH")
        found = (shutil.which(each, path=path) for each in ([named] if named else _ENGINES))
        return next((each for each in found if each is not None), None)

    async def _sweep(self, engine: str) -> None:
        """Remove containers of workers on this machine that are gone, their reapers too."""
        try:
            gone = await asyncio.to_thread(_sweep, engine, client_environment(self._environ))
        except (OSError, subprocess.SubprocessError) as error:
            _logger.warning("Containers that others left behind can't be looked for: %s.", error)
            return
        if gone:
            _logger.warning("Removed %d containers of workers that are gone.", gone)


def process_identity(pid: int) -> str:
    """Return what tells a process from all others of this machine, before and after."""
    boot = _text(_PROC / "sys/kernel/random/boot_id").strip() or "boot"
    try:
        space = os.stat(_PROC / str(pid) / "ns/pid").st_ino  # noqa: PTH116 - one call
    except OSError:
        space = 0
    started = _text(_PROC / str(pid) / "stat").rpartition(")")[2].split()
    return f"{boot}:{space}:{pid}:{started[19] if len(started) > 19 else 0}"


def is_gone(owner: str) -> bool:
    """Return whether an owner is a process that would be seen from here and is not there."""
    boot, space, pid, started, *_ = (*owner.split(":"), "", "", "", "")
    mine = process_identity(os.getpid()).split(":")
    if (boot, space) != (mine[0], mine[1]) or not pid.isdecimal():
        return False
    return process_identity(int(pid)).split(":")[3] != started


def _sweep(engine: str, environment: Mapping[str, str]) -> int:
    containers = _run(listing(engine), environment).stdout.split()
    if not containers:
        return 0
    lines = _run(owners(engine, *containers), environment).stdout.splitlines()
    pairs = (line.partition(" ") for line in lines)
    gone = [container for container, _, owner in pairs if is_gone(owner.strip())]
    if gone:
        _run(removal(engine, *gone), environment)
    return len(gone)


def _run(
    command: Sequence[str], environment: Mapping[str, str]
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(  # noqa: S603 - the engine's own client
        list(command),
        env=dict(environment),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=_ANSWER_TIMEOUT,
        check=False,
    )


def _is_gone(words: str) -> bool:
    said = words.lower()
    return (
        "no such container" in said or "already in progress" in said or "no container with" in said
    )


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


def _fault(server: str, problem: str, text: str) -> Fault:
    return Fault(
        Reason.SERVER_NOT_READY,
        f"The server {server} could not be started: {text}",
        metadata={"server": server, "problem": problem},
    )
