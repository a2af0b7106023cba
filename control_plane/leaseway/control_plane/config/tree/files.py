"""Reads a file, with a limit, and parses its text.

`.json` and `.jsonc` are JSON, `.toml` is TOML, everything else is YAML.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path, PurePath
from typing import Final

from leaseway.control_plane.config.tree.json_tree import BadJson, load_json
from leaseway.control_plane.config.tree.toml_tree import load_toml
from leaseway.control_plane.config.tree.yaml_tree import Tree, load_tree
from leaseway.wire.bounds import MAX_CONFIG

_ZIP: Final = b"PK\x03\x04"
_ARCHIVE: Final = (
    "It is a zip archive. If it is an MCP bundle, unpack it and name the 'manifest.json' in it."
)


class NotRegular(OSError):
    """A folder, pipe or device: reading it could block for ever, or never end."""


def read_regular(path: Path, limit: int) -> bytes:
    """Return at most so many bytes of a regular file.

    What is opened is looked at, and not what its name led to before.

    Raises:
        NotRegular: It is none.
        OSError: It cannot be read.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise NotRegular(errno.EINVAL, "Not a regular file")
        with open(descriptor, "rb", closefd=False) as file:
            return file.read(limit)
    finally:
        os.close(descriptor)


class Unreadable(Exception):
    """An existing file that can't be read as text; the message is the reason, as a sentence."""


class Gone(Unreadable):
    """A file that was there and is not any more; the message is empty."""


def read_config(path: Path) -> str:
    """Return a configuration file's text, at most a few bytes more than `MAX_CONFIG`.

    Raises:
        FileNotFoundError: There is no such file.
        Unreadable: It is not a regular file, can't be opened, or is not UTF-8.
    """
    try:
        # A few bytes more show the parser that the file is too large.
        data = read_regular(path, MAX_CONFIG + 8)
    except NotRegular:
        raise Unreadable("It is not a regular file.") from None
    except (FileNotFoundError, NotADirectoryError) as error:
        raise FileNotFoundError(str(path)) from error
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise Unreadable(f"{reason}.") from None
    if len(data) > MAX_CONFIG:
        return data.decode("utf-8", errors="replace")
    if data.startswith(_ZIP):
        raise Unreadable(_ARCHIVE)
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise Unreadable(
            f"It is not UTF-8: byte {error.start}, on line {line}, can't be decoded."
            " Save it as UTF-8."
        ) from None


def is_json(path: str) -> bool:
    return PurePath(path).name.endswith((".json", ".jsonc"))


def load_file(text: str, path: str = "") -> Tree | None:
    """Return a file's tree, or None if it is YAML with nothing but comments.

    Raises:
        BadText: It is not JSON, TOML or YAML, whichever its extension names.
    """
    if is_json(path):
        return load_json(text, path)
    if PurePath(path).suffix == ".toml":
        return load_toml(text, path)
    if text.lstrip().startswith('{"'):
        # Nearly all JSON is YAML, but tabs between values are not.
        try:
            return load_json(text, path)
        except BadJson:
            return load_tree(text, path)
    return load_tree(text, path)
