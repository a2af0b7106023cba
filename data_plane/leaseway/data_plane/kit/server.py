"""The kit's server, and the construction of its enabled tools."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, assert_never

from leaseway.data_plane.kit.addresses import parse_hosts
from leaseway.data_plane.kit.commands import build_allow_list, execute_command
from leaseway.data_plane.kit.files import (
    delete_file,
    edit_file,
    get_file_info,
    read_file,
    write_file,
)
from leaseway.data_plane.kit.roots import AllowedFolders
from leaseway.data_plane.kit.search import list_files, search_files
from leaseway.data_plane.kit.system import current_time, get_env
from leaseway.server import BaseMCPServer, Notifier, Tool
from leaseway.spec.kinds.kit import (
    BUILTIN_TOOLS,
    FILE_TOOLS,
    OTHER_TOOLS,
    FileTool,
    OtherTool,
    command_fault,
)
from leaseway.wire.version import PACKAGE_VERSION

_WRITE_TOOLS: Final = frozenset({"write_file", "edit_file", "delete_file"})


_FILE_TOOLS: Final[Mapping[FileTool, Callable[[AllowedFolders], Tool]]] = {
    "read_file": read_file,
    "write_file": write_file,
    "edit_file": edit_file,
    "list_files": list_files,
    "search_files": search_files,
    "delete_file": delete_file,
    "get_file_info": get_file_info,
}


@dataclass(frozen=True)
class KitOptions:
    """The enabled tools and their limits.

    Attributes:
        tools: The names of the enabled tools.
        roots: The allowed folders of file tools and commands.
        commands: The allowed commands of `execute_command`.
        hosts: The allowed hosts of `http_get`; empty means the public internet.
        confined: Whether the kit runs in a strict sandbox.
    """

    tools: Sequence[str] = ()
    roots: Sequence[str] = ()
    commands: Sequence[str] = ()
    hosts: Sequence[str] = ()
    confined: bool = False


class Kit(BaseMCPServer):
    """A server with the enabled tools."""

    server_name = "leaseway-kit"
    server_version = PACKAGE_VERSION

    def __init__(self, tools: Sequence[Tool], transport: Notifier | None = None) -> None:
        super().__init__(transport)
        self._tools = tools

    def list_tools(self) -> Sequence[Tool]:
        return self._tools


def build_tools(options: KitOptions, environment: Mapping[str, str] = os.environ) -> list[Tool]:
    """Return the enabled tools, in the order of `BUILTIN_TOOLS`.

    Raises:
        ValueError: A name is unknown, or an option of a tool is missing or invalid.
    """
    enabled = set(options.tools)
    unknown = sorted(enabled - set(BUILTIN_TOOLS))
    if unknown:
        raise ValueError(f"There is no tool {unknown[0]!r}; there are: {', '.join(BUILTIN_TOOLS)}.")
    fault = command_fault(enabled, confined=options.confined)
    if fault is not None:
        raise ValueError(fault)
    roots = AllowedFolders(options.roots) if options.roots else None
    tools: list[Tool] = []
    for file_tool in FILE_TOOLS:
        if file_tool in enabled:
            if roots is None:
                raise ValueError(
                    f"The tool {file_tool} needs a folder: add one (--root, or 'roots')."
                )
            tools.append(_FILE_TOOLS[file_tool](roots))
    others = (name for name in OTHER_TOOLS if name in enabled)
    return [*tools, *(_build_other(name, options, roots, environment) for name in others)]


def _build_other(
    name: OtherTool,
    options: KitOptions,
    roots: AllowedFolders | None,
    environment: Mapping[str, str],
) -> Tool:
    match name:
        case "execute_command":
            if not options.commands:
                raise ValueError(f"The tool {name} needs commands (--command, or 'commands').")
            path = environment.get("PATH", os.defpath)
            writes = not _WRITE_TOOLS.isdisjoint(options.tools)
            allowed = build_allow_list(options.commands, path, roots, writes)
            return execute_command(allowed, roots, environment)
        case "get_env":
            return get_env(environment)
        case "current_time":
            return current_time()
        case "http_get":
            from leaseway.data_plane.kit.web import http_get  # importing it is slow

            return http_get(parse_hosts(options.hosts))
    assert_never(name)
