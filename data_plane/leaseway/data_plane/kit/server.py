"""The kit as a server: which of its tools are on, and with what."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from leaseway.data_plane.kit.addresses import read_hosts
from leaseway.data_plane.kit.clock import current_time
from leaseway.data_plane.kit.commands import allow_list, execute_command
from leaseway.data_plane.kit.files import (
    delete_file,
    edit_file,
    get_file_info,
    read_file,
    write_file,
)
from leaseway.data_plane.kit.roots import Roots
from leaseway.data_plane.kit.search import list_files, search_files
from leaseway.data_plane.kit.variables import get_env
from leaseway.server import BaseMCPServer, Notifier, Tool
from leaseway.spec.builtin import BUILTIN_TOOLS
from leaseway.wire.version import PACKAGE_VERSION

_OF_FILES: Final[Mapping[str, Callable[[Roots], Tool]]] = {
    "read_file": read_file,
    "write_file": write_file,
    "edit_file": edit_file,
    "list_files": list_files,
    "search_files": search_files,
    "delete_file": delete_file,
    "get_file_info": get_file_info,
}
_WRITING: Final = frozenset({"write_file", "edit_file", "delete_file"})


@dataclass(frozen=True)
class Options:
    """What is switched on.

    Attributes:
        tools: Names of tools; all others are off.
        roots: Folders for the file tools, and where commands run.
        commands: What `execute_command` may execute.
        hosts: What `http_get` may ask; none means the public internet.
    """

    tools: Sequence[str] = ()
    roots: Sequence[str] = ()
    commands: Sequence[str] = ()
    hosts: Sequence[str] = ()


class Kit(BaseMCPServer):
    """The server with the tools that are on."""

    server_name = "leaseway-kit"
    server_version = PACKAGE_VERSION

    def __init__(self, tools: Sequence[Tool], transport: Notifier | None = None) -> None:
        super().__init__(transport)
        self._tools = tools

    def list_tools(self) -> Sequence[Tool]:
        return self._tools


def toolbox(options: Options, environment: Mapping[str, str] = os.environ) -> list[Tool]:
    """Return the tools that are on, in the order of `BUILTIN_TOOLS`.

    Raises:
        ValueError: A name is unknown, or what a tool needs is missing or wrong.
    """
    on = set(options.tools)
    unknown = sorted(on - set(BUILTIN_TOOLS))
    if unknown:
        raise ValueError(f"There is no tool {unknown[0]!r}; there are: {', '.join(BUILTIN_TOOLS)}.")
    roots = Roots(options.roots) if options.roots else None
    tools: list[Tool] = []
    for name, make in _OF_FILES.items():
        if name in on:
            if roots is None:
                raise ValueError(f"The tool {name} needs a folder: name one (--root, or 'roots').")
            tools.append(make(roots))
    if "execute_command" in on:
        if not options.commands:
            raise ValueError("The tool execute_command needs commands (--command, or 'commands').")
        path = environment.get("PATH", os.defpath)
        allowed = allow_list(options.commands, path, roots, bool(on & _WRITING))
        tools.append(execute_command(allowed, roots, environment))
    if "get_env" in on:
        tools.append(get_env(environment))
    if "current_time" in on:
        tools.append(current_time())
    if "http_get" in on:
        from leaseway.data_plane.kit.web import http_get  # what it loads takes long

        tools.append(http_get(read_hosts(options.hosts)))
    return tools
