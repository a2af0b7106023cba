"""Reads a file, with a limit, and parses its text.

`.json` and `.jsonc` are JSON, `.toml` is TOML, everything else is YAML.
"""

from __future__ import annotations

import stat
from pathlib import Path, PurePath

from leaseway.control_plane.config.tree.json_tree import BadJson, load_json
from leaseway.control_plane.config.tree.toml_tree import load_toml
from leaseway.control_plane.config.tree.yaml_tree import Tree, load_tree
from leaseway.wire.bounds import MAX_CONFIG


class Unreadable(Exception):
    """An existing file that can't be read as text; the message is the reason, as a sentence."""


def read_config(path: Path) -> str:
    """Return a configuration file's text, at most a few bytes more than `MAX_CONFIG`.

    Raises:
        FileNotFoundError: There is no such file.
        Unreadable: It is not a regular file, can't be opened, or is not UTF-8.
    """
    try:
        # A pipe or device could block forever, or never end.
        if not stat.S_ISREG(path.stat().st_mode):
            raise Unreadable("It is not a regular file.")
        with path.open("rb") as file:
            # A few bytes more show the parser that the file is too large.
            data = file.read(MAX_CONFIG + 8)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise FileNotFoundError(str(path)) from error
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise Unreadable(f"{reason}.") from None
    if len(data) > MAX_CONFIG:
        return data.decode("utf-8", errors="replace")
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
