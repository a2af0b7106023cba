"""Tools, command lines and hosts of a `builtin` server. Pure.

The control plane checks the configuration with it, and the server its start options.
"""

from __future__ import annotations

import ipaddress
import shlex
from collections.abc import Collection
from typing import Final, Literal, get_args

FileTool = Literal[
    "read_file",
    "write_file",
    "edit_file",
    "list_files",
    "search_files",
    "delete_file",
    "get_file_info",
]
"""A tool that needs a folder."""

OtherTool = Literal["execute_command", "get_env", "current_time", "http_get"]

FILE_TOOLS: Final[tuple[FileTool, ...]] = get_args(FileTool)
OTHER_TOOLS: Final[tuple[OtherTool, ...]] = get_args(OtherTool)
BUILTIN_TOOLS: Final[tuple[FileTool | OtherTool, ...]] = (*FILE_TOOLS, *OTHER_TOOLS)
"""All tools; each is off unless it is configured."""


GIVING_TOOLS: Final = ("write_file", "edit_file")
"""The tools with which a caller can give a program its configuration."""


def command_fault(tools: Collection[str], *, confined: bool) -> str | None:
    """Return why enabled tools must not be on together, or None.

    Nearly every program runs what the folder it works in tells it to: git its `core.fsmonitor` and
    filters, make its recipes. So whoever writes there runs any command, whatever the list of
    commands says.

    Args:
        confined: Whether the server has a strict sandbox, which any command stays in.
    """
    giving = next((name for name in GIVING_TOOLS if name in tools), None)
    if confined or giving is None or "execute_command" not in tools:
        return None
    return (
        f"execute_command and {giving} must not be on together: a file that {giving} writes, such "
        "as .git/config or a Makefile, makes an allowed command run any other. Turn one of them "
        "off, or give the server 'sandbox: strict'."
    )


def command_words(entry: str) -> tuple[tuple[str, ...], bool]:
    """Return the words of an allowed command line, and whether more words may follow.

    Raises:
        ValueError: It names no program; the text is the reason.
    """
    try:
        words = shlex.split(entry)
    except ValueError as error:
        raise ValueError(f"The command {entry!r:.200} can't be read: {error}.") from None
    if not words or words[0] == "*" or words[0].startswith("-"):
        raise ValueError(f"The command {entry!r:.200} names no program.")
    if "/" in words[0] and not words[0].startswith("/"):
        raise ValueError(f"The command {entry!r:.200} must begin with a name or an absolute path.")
    open_end = len(words) > 1 and words[-1] == "*"
    return tuple(words[:-1] if open_end else words), open_end


def host_fault(entry: str) -> str | None:
    """Return why an entry is not a name, `*.name`, address or network, or None if it is."""
    try:
        ipaddress.ip_network(entry, strict=False)
    except ValueError:
        pass
    else:
        return None
    labels = entry.rstrip(".").removeprefix("*.").split(".")
    if all(label and label.replace("-", "").replace("_", "").isalnum() for label in labels):
        return None
    return (
        f"{entry!r:.200} is not a host: write a name, *.name, an address or a network such as"
        " 10.0.0.0/8, without scheme, port or path."
    )
