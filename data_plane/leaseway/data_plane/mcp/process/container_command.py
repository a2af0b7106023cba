"""From a server with an image to the command that runs it in a container (DESIGN §9). Pure.

Values of the environment are never in the command: the engine's client takes them from its own.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Collection, Mapping, Sequence
from typing import Final

from leaseway.spec.model import Limits, Sandbox

OWNER_LABEL: Final = "leaseway.owner"
"""Says which worker process a container belongs to."""

ENGINE_STATUS: Final = 125
"""What an engine's client ends with where the engine itself could not run the container."""

_OF_THE_CLIENT: Final = re.compile(
    "(CONTAINERS?|DOCKER)_[A-Z_]+|DBUS_SESSION_BUS_ADDRESS|HOME|PATH|XDG_RUNTIME_DIR"
)
"""What an engine's client itself takes from its environment."""

_OF_ITS_START: Final = re.compile("LD_[A-Z0-9_]+|GCONV_PATH|GODEBUG|SSLKEYLOGFILE")
"""What decides which code a program loads, or where it writes: the client runs on the worker."""


def container_name(server: str) -> str:
    """Return a name for one instance's container, by which it is found again."""
    return f"leaseway-{server}-{secrets.token_hex(6)}"


def client_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return what an engine's client needs of a worker's environment."""
    return {name: text for name, text in environ.items() if _OF_THE_CLIENT.fullmatch(name)}


def taken_names(variables: Collection[str]) -> list[str]:
    """Return those of a container's variables that its engine's client takes for its own."""
    return sorted(
        name
        for name in variables
        if _OF_THE_CLIENT.fullmatch(name) or _OF_ITS_START.fullmatch(name)
    )


def run_command(
    engine: str,
    name: str,
    owner: str,
    image: str,
    command: Sequence[str],
    variables: Mapping[str, str],
    limits: Limits,
    sandbox: Sandbox,
    folder: str = "",
) -> tuple[str, ...]:
    """Return the command that runs an image until its standard input closes.

    Args:
        engine: The path of docker or podman.
        name: What the container is called.
        owner: Whose it is, for its label.
        image: What is run.
        command: What is run in it and its arguments; an empty program is what the image says.
        variables: What the container gets. Only values of names that the client takes for its
            own are in the command.
        limits: The container's bounds.
        sandbox: What it may reach.
        folder: Where in it the server starts; empty for what the image says.
    """
    program, *arguments = command
    words = [engine, "run", "--interactive", "--rm", "--name", name]
    words += ["--label", f"{OWNER_LABEL}={owner}", "--security-opt", "no-new-privileges"]
    words += _limits(limits)
    words += _sandbox(sandbox)
    taken = taken_names(variables)
    for variable in sorted(variables):
        shown = f"{variable}={variables[variable]}" if variable in taken else variable
        words += ["--env", shown]
    if folder:
        words += ["--workdir", folder]
    if program:
        words += ["--entrypoint", program]
    return (*words, image, *arguments)


def removal(engine: str, *names: str) -> tuple[str, ...]:
    """Return the command that removes containers, whatever state they are in."""
    return (engine, "rm", "--force", "--volumes", *names)


def listing(engine: str, owner: str = "") -> tuple[str, ...]:
    """Return the command that lists the ids of one owner's containers, or of all owners'."""
    label = f"label={OWNER_LABEL}={owner}" if owner else f"label={OWNER_LABEL}"
    return (engine, "ps", "--all", "--quiet", "--no-trunc", "--filter", label)


def owners(engine: str, *containers: str) -> tuple[str, ...]:
    """Return the command that prints a line of `ID OWNER` for each container."""
    wanted = f'{{{{.Id}}}} {{{{index .Config.Labels "{OWNER_LABEL}"}}}}'
    return (engine, "inspect", "--type", "container", "--format", wanted, *containers)


def _limits(limits: Limits) -> list[str]:
    words = []
    if limits.memory_bytes is not None:
        # No more with swap than without: a bound that swaps is none.
        words += ["--memory", str(limits.memory_bytes), "--memory-swap", str(limits.memory_bytes)]
    if limits.cpu_cores is not None:
        words += ["--cpus", f"{limits.cpu_cores:g}"]
    if limits.processes is not None:
        words += ["--pids-limit", str(limits.processes)]
    if limits.open_files is not None:
        words += ["--ulimit", f"nofile={limits.open_files}:{limits.open_files}"]
    return words


def _sandbox(sandbox: Sandbox) -> list[str]:
    if not sandbox.enabled:
        return []
    words = ["--read-only", "--tmpfs", "/tmp", "--cap-drop", "ALL"]  # noqa: S108 - inside of it
    if not sandbox.network:
        words += ["--network", "none"]
    for path in sandbox.writable_paths:
        # Unlike a volume, a mount does not make a folder that is not there.
        fields = (_csv(each) for each in ("type=bind", f"source={path}", f"target={path}"))
        words += ["--mount", ",".join(fields)]
    return words


def _csv(text: str) -> str:
    special = any(character in text for character in ',"')
    return '"' + text.replace('"', '""') + '"' if special else text
