"""Containers of servers on this machine: of images, and of commands such as `docker run`.

The server's process is the client of the container engine. Docker's containers are no children of
the worker: each is removed after its client's exit, by the reaper after the worker's exit, and by
the next worker that uses the engine if both were killed. A container outlives a client that is
killed, and whatever ignores the end of its input and SIGTERM runs on without one.

Values of the environment are never in a command: the engine's client passes them on from its own
environment.

See design.md#one-mcp-connection.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import secrets
import shutil
import subprocess
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from leaseway.data_plane.core.resolved_values import ResolvedValues
from leaseway.data_plane.mcp.failures import ENGINE_STATUS, not_started
from leaseway.spec.kinds.confinement import Limits, Sandbox
from leaseway.spec.kinds.container import ContainerPart, image_fault
from leaseway.spec.model import ServerSpec
from leaseway.wire.daemon_threads import DaemonThreads

_logger = logging.getLogger(__name__)
_ENGINES: Final = ("docker", "podman")
ENGINE_VARIABLE: Final = "LEASEWAY_CONTAINER_ENGINE"
"""Names the engine's program, if it is not docker or podman, or if both are installed."""

OWNER_LABEL: Final = "leaseway.owner"
"""A container's label with its worker process."""

INSTANCE_LABEL: Final = "leaseway.instance"
"""The label of a container that a command runs, whose name is its user's choice."""

_CLIENTS: Final = frozenset((*_ENGINES, "nerdctl"))
"""Programs that run a container by `run` or `container run`, with labels."""

_CLIENT_VARIABLES: Final = re.compile(
    "(CONTAINERS?|DOCKER)_[A-Z_]+|DBUS_SESSION_BUS_ADDRESS|HOME|PATH|XDG_RUNTIME_DIR"
)
"""Variables that an engine's client reads."""

_LOADER_VARIABLES: Final = re.compile("LD_[A-Z0-9_]+|GCONV_PATH|GODEBUG|SSLKEYLOGFILE")
"""Variables that decide which code a program loads, or where it writes."""

_ANSWER_TIMEOUT: Final = 15.0
_REMOVAL_INTERVAL: Final = 5.0
_REMOVAL_TIME: Final = 300.0
"""Seconds for which the removal of a container is tried again."""
_PROC: Final = Path("/proc")
_threads: Final = DaemonThreads()
"""Wait for an engine: one that hangs holds up neither other work in threads nor the exit."""


@dataclass(frozen=True)
class Container:
    """One instance's container.

    Attributes:
        command: Starts the engine's client, which runs the container.
        environment: The client's whole environment.
        removal: The command that removes the container, in any state; without its id if `listing`
            finds that.
        removals: Removes the containers of its worker.
        listing: The command that prints its id, if it is not removed by its name; else empty.
    """

    name: str
    image: str
    command: tuple[str, ...]
    environment: Mapping[str, str]
    removal: tuple[str, ...]
    removals: Removals
    listing: tuple[str, ...] = ()

    async def remove(self, status: int | None = None) -> None:
        """Remove the container if it still exists, now or later.

        Args:
            status: How its client has exited, if it has. If the engine could not run the container,
                one try is enough: an engine that is away has made none.
        """
        if status == ENGINE_STATUS:
            await self.try_removal()
        else:
            await self.removals.remove(self)

    async def try_removal(self) -> str:
        """Remove the container if it still exists; return why that failed, or an empty text."""
        try:
            done = await _threads.run(_remove, self.listing, self.removal, self.environment)
        except (OSError, RuntimeError, subprocess.SubprocessError) as error:
            return f"{error}."
        stderr = done.stderr.strip()
        if not done.returncode or _is_not_found(stderr):
            return ""
        return stderr[-500:] or f"its engine's client exited with status {done.returncode}."


class Removals:
    """Removes containers; those whose engine is busy or away are tried again for five minutes.

    Args:
        interval: Seconds between two tries.
    """

    def __init__(self, interval: float = _REMOVAL_INTERVAL) -> None:
        self._interval = interval
        self._late: dict[str, tuple[Container, float]] = {}
        self._retrying: asyncio.Task[None] | None = None

    async def remove(self, container: Container) -> None:
        """Try to remove a container; if that fails, go on in the background."""
        failure = await container.try_removal()
        if not failure:
            return
        _logger.warning(
            "The container %s can't be removed yet; this is tried again for %g s, and when the"
            " worker exits: %s",
            container.name,
            _REMOVAL_TIME,
            failure,
        )
        loop = asyncio.get_running_loop()
        self._late[container.name] = container, loop.time() + _REMOVAL_TIME
        if self._retrying is None or self._retrying.done():
            self._retrying = loop.create_task(self._retry())

    async def _retry(self) -> None:
        now = asyncio.get_running_loop().time
        while self._late:
            await asyncio.sleep(self._interval)
            for name, (container, until) in tuple(self._late.items()):
                if not await container.try_removal() or now() > until:
                    del self._late[name]


class _Engine(NamedTuple):
    """A container engine's client, and what of its environment it reads."""

    program: str
    environment: tuple[tuple[str, str], ...]


class Containers:
    """The containers of one worker process, which its environment and token identify."""

    def __init__(self, environ: Mapping[str, str], token: str) -> None:
        self._environ = environ
        self.owner = f"{process_identity(os.getpid())}:{token}"
        self._removals = Removals()
        self._sweeping: dict[_Engine, asyncio.Task[None]] = {}

    def prepare(self, spec: ServerSpec, resolved: ResolvedValues) -> Container:
        """Return how to run a server's container; an empty command is the image's own.

        Raises:
            Fault: SERVER_NOT_READY with `problem` CONTAINER_ENGINE_MISSING or START_FAILED.
        """
        server = spec.key.server_id
        engine, image, variables = self._engine(server), resolved.image, resolved.env
        command = (resolved.command, *resolved.args)
        fault = image_fault(image)
        if fault is not None:
            raise not_started(server, "START_FAILED", f"its 'image' {fault}")
        reserved = reserved_names(variables)
        for name in reserved:
            if variables[name] in resolved.secrets:
                text = (
                    f"the engine's client uses {name} itself; pass the secret in another variable,"
                    " or in a file."
                )
                raise not_started(server, "START_FAILED", text)
        self._use(engine, client_environment(self._environ))
        part = spec.part_as(ContainerPart)
        name = f"leaseway-{server}-{secrets.token_hex(6)}"
        argv = run_command(
            *(engine, name, self.owner, image, command, variables),
            limits=part.limits,
            sandbox=part.sandbox,
            cwd=resolved.cwd,
        )
        # The client runs on the worker: a container's variables must not control the client.
        passed = {name: text for name, text in variables.items() if name not in reserved}
        environment = {**passed, **client_environment(self._environ)}
        return Container(
            name=name,
            image=image,
            command=argv,
            environment=environment,
            removal=remove_command(engine, name),
            removals=self._removals,
        )

    def adopt(self, command: tuple[str, ...], environment: Mapping[str, str]) -> Container | None:
        """Return the container that a server's own command runs, such as `docker run`, or None.

        Its command differs from the given one by labels, by which the container is found again.
        """
        at = _options_of_run(command)
        engine = shutil.which(command[0], path=environment.get("PATH")) if at else None
        if engine is None:
            return None
        client = client_environment(environment)
        self._use(engine, client)
        instance = secrets.token_hex(6)
        labels = (f"{OWNER_LABEL}={self.owner}", f"{INSTANCE_LABEL}={instance}")
        options = [word for label in labels for word in ("--label", label)]
        return Container(
            name=instance,
            image="its image",
            command=(*command[:at], *options, *command[at:]),
            environment=client,
            removal=remove_command(engine),
            removals=self._removals,
            listing=_list_command(engine, f"{INSTANCE_LABEL}={instance}"),
        )

    def cleanups(self) -> list[Mapping[str, object]]:
        """Return the reaper's commands for the worker's exit, for each engine in use."""
        return [
            {
                "list": list_command(used.program, self.owner),
                "remove": remove_command(used.program),
                "environment": dict(used.environment),
            }
            for used in self._sweeping
        ]

    def _use(self, program: str, environment: Mapping[str, str]) -> None:
        engine = _Engine(program, tuple(sorted(environment.items())))
        if engine not in self._sweeping:
            sweep = asyncio.get_running_loop().create_task(self._sweep(engine))
            self._sweeping[engine] = sweep

    def _engine(self, server: str) -> str:
        engine = self._find_engine()
        if engine is not None:
            return engine
        named = self._environ.get(ENGINE_VARIABLE)
        missing = (
            f"{named}, which {ENGINE_VARIABLE} names, is"
            if named
            else "neither docker nor podman is"
        )
        text = (
            f"it is an image, and {missing} on this worker's PATH. Install a container engine"
            " there, or run the server on a worker that has one."
        )
        raise not_started(server, "CONTAINER_ENGINE_MISSING", text)

    def _find_engine(self) -> str | None:
        named = self._environ.get(ENGINE_VARIABLE)
        path = self._environ.get("PATH")
        found = (shutil.which(engine, path=path) for engine in ([named] if named else _ENGINES))
        return next((engine for engine in found if engine is not None), None)

    async def _sweep(self, engine: _Engine) -> None:
        """Remove containers of dead workers on this machine whose reapers were killed, too."""
        try:
            removed = await _threads.run(_sweep, engine.program, dict(engine.environment))
        except (OSError, RuntimeError, subprocess.SubprocessError) as error:
            _logger.warning("Containers of dead workers can't be listed: %s.", error)
            return
        if removed:
            _logger.warning("Removed %d containers of dead workers.", removed)


def process_identity(pid: int) -> str:
    """Return a text that identifies a process on this machine, even if its pid is reused."""
    boot = _text(_PROC / "sys/kernel/random/boot_id").strip() or "boot"
    try:
        namespace = os.stat(_PROC / str(pid) / "ns/pid").st_ino  # noqa: PTH116 - one call
    except OSError:
        namespace = 0
    started = _text(_PROC / str(pid) / "stat").rpartition(")")[2].split()
    return f"{boot}:{namespace}:{pid}:{started[19] if len(started) > 19 else 0}"


def has_exited(owner: str) -> bool:
    """Return whether an owner is a process of this machine and PID namespace that has exited."""
    boot, namespace, pid, started, *_ = (*owner.split(":"), "", "", "", "")
    own = process_identity(os.getpid()).split(":")
    if (boot, namespace) != (own[0], own[1]) or not pid.isdecimal():
        return False
    return process_identity(int(pid)).split(":")[3] != started


def client_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the part of a worker's environment that an engine's client needs."""
    return {name: text for name, text in environ.items() if _CLIENT_VARIABLES.fullmatch(name)}


def reserved_names(variables: Collection[str]) -> list[str]:
    """Return those of a container's variables that would change the engine's client itself."""
    return sorted(
        name
        for name in variables
        if _CLIENT_VARIABLES.fullmatch(name) or _LOADER_VARIABLES.fullmatch(name)
    )


def run_command(  # noqa: PLR0913 - the parts of a command line
    engine: str,
    name: str,
    owner: str,
    image: str,
    command: Sequence[str],
    variables: Mapping[str, str],
    limits: Limits,
    sandbox: Sandbox,
    cwd: str = "",
) -> tuple[str, ...]:
    """Return the command that runs an image until its standard input closes.

    An empty program or `cwd` is the image's own. `owner` is the value of the owner label. Of the
    variables, only values of reserved names are in the command.
    """
    program, *arguments = command
    argv = [engine, "run", "--interactive", "--rm", "--name", name]
    argv += ["--label", f"{OWNER_LABEL}={owner}", "--security-opt", "no-new-privileges"]
    # Engines keep all output of a container on disk, without a limit: here, every result.
    argv += ["--log-driver", "none"]
    argv += _limits(limits)
    argv += _sandbox(sandbox)
    reserved = reserved_names(variables)
    for variable in sorted(variables):
        shown = f"{variable}={variables[variable]}" if variable in reserved else variable
        argv += ["--env", shown]
    if cwd:
        argv += ["--workdir", cwd]
    if program:
        argv += ["--entrypoint", program]
    return (*argv, image, *arguments)


def remove_command(engine: str, *names: str) -> tuple[str, ...]:
    """Return the command that removes containers, in any state."""
    return (engine, "rm", "--force", "--volumes", *names)


def list_command(engine: str, owner: str = "") -> tuple[str, ...]:
    """Return the command that lists the ids of one owner's containers, or of all owners'."""
    return _list_command(engine, f"{OWNER_LABEL}={owner}" if owner else OWNER_LABEL)


def _list_command(engine: str, label: str) -> tuple[str, ...]:
    return (engine, "ps", "--all", "--quiet", "--no-trunc", "--filter", f"label={label}")


def _options_of_run(command: Sequence[str]) -> int:
    """Return where the options of `run` begin in a command of an engine's client, or 0."""
    if Path(command[0]).name not in _CLIENTS:
        return 0
    words = command[1:3]
    if words[:1] == ("run",):
        return 2
    return 3 if words == ("container", "run") else 0


def owners_command(engine: str, *containers: str) -> tuple[str, ...]:
    """Return the command that prints a line of `ID OWNER` for each container."""
    template = f'{{{{.Id}}}} {{{{index .Config.Labels "{OWNER_LABEL}"}}}}'
    return (engine, "inspect", "--type", "container", "--format", template, *containers)


def _limits(limits: Limits) -> list[str]:
    argv = []
    if limits.memory_bytes is not None:
        # The limit includes swap: a server that swaps exceeds its limit.
        argv += ["--memory", str(limits.memory_bytes), "--memory-swap", str(limits.memory_bytes)]
    if limits.cpu_cores is not None:
        argv += ["--cpus", f"{limits.cpu_cores:g}"]
    if limits.processes is not None:
        argv += ["--pids-limit", str(limits.processes)]
    if limits.open_files is not None:
        argv += ["--ulimit", f"nofile={limits.open_files}:{limits.open_files}"]
    return argv


def _sandbox(sandbox: Sandbox) -> list[str]:
    if not sandbox.enabled:
        return []
    argv = ["--read-only", "--tmpfs", "/tmp", "--cap-drop", "ALL"]  # noqa: S108 - in the container
    if not sandbox.network:
        argv += ["--network", "none"]
    for path in sandbox.writable_paths:
        # Unlike a volume, a mount does not create a missing folder.
        fields = (_csv(field) for field in ("type=bind", f"source={path}", f"target={path}"))
        argv += ["--mount", ",".join(fields)]
    return argv


def _csv(text: str) -> str:
    special = any(character in text for character in ',"')
    return '"' + text.replace('"', '""') + '"' if special else text


def _sweep(engine: str, environment: Mapping[str, str]) -> int:
    containers = _run(list_command(engine), environment).stdout.split()
    if not containers:
        return 0
    lines = _run(owners_command(engine, *containers), environment).stdout.splitlines()
    pairs = (line.partition(" ") for line in lines)
    orphans = [container for container, _, owner in pairs if has_exited(owner.strip())]
    if orphans:
        _run(remove_command(engine, *orphans), environment)
    return len(orphans)


def _remove(
    listing: Sequence[str], removal: Sequence[str], environment: Mapping[str, str]
) -> subprocess.CompletedProcess[str]:
    if not listing:
        return _run(removal, environment)
    listed = _run(listing, environment)
    ids = listed.stdout.split()
    return _run((*removal, *ids), environment) if ids and not listed.returncode else listed


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


def _is_not_found(stderr: str) -> bool:
    text = stderr.lower()
    return any(
        phrase in text
        for phrase in ("no such container", "already in progress", "no container with")
    )


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
