"""Permissions of a server: what its tools may do, and which paths their arguments may contain.

They are compiled to CEL rules on the arguments that look like paths (`expressions`). Rules cannot
check a path inside a text, the target of a link, or what a tool reads below a permitted folder; a
sandbox can. Pure.
"""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final


@dataclass(frozen=True)
class Permissions:
    """What tools of a server may do.

    Attributes:
        read: Whether read-only tools may run.
        write: Whether other tools may run.
        allowed_paths: Allowed paths and everything below them, or None for all. Relative ones start
            at the server's working directory.
        denied_paths: Denied paths and everything below them; a relative one at any depth.
    """

    read: bool = True
    write: bool = True
    allowed_paths: tuple[str, ...] | None = None
    denied_paths: tuple[str, ...] = ()

    @property
    def names_paths(self) -> bool:
        return self.allowed_paths is not None or bool(self.denied_paths)


EVERYTHING: Final = Permissions()


def folders(permissions: Permissions, base: str) -> tuple[str, ...]:
    """Return the allowed paths as absolute paths, without relative ones if the base is unknown.

    Args:
        permissions: The server's permissions.
        base: The folder that relative paths start from; empty if unknown.
    """
    allowed = (_absolute(path, base) for path in permissions.allowed_paths or ())
    return tuple(dict.fromkeys(path for path in allowed if path))


def expressions(
    permissions: Permissions, base: str, schema: object, reads_only: bool
) -> Iterable[tuple[str, str]]:
    """Yield (reason, rule) for each rule on a tool's calls; a true rule denies the call.

    Args:
        permissions: The server's permissions.
        base: The folder that relative paths start from; empty if unknown.
        schema: The tool's input schema.
        reads_only: Whether the tool changes nothing.
    """
    if reads_only and not permissions.read:
        yield "the tool reads, and 'permissions' has read: false", "true"
    if not reads_only and not permissions.write:
        yield "the tool may change something, and 'permissions' has write: false", "true"
    if permissions.names_paths:
        paths = _PathConditions(permissions, base)
        named = f"args.exists(name, name.matches({_cel(_NAMES)}) && {paths.denied('args[name]')})"
        uris = f"args.exists(name, name.matches({_cel(_URIS)}) && {paths.denied_uri('args[name]')})"
        nested = [*_nested(paths, schema, schema, "args", 0)]
        yield "a path in its arguments is not permitted", " || ".join([named, uris, *nested])


_WORDS: Final = (
    "path|paths|file|files|filename|filenames|filepath|filepaths|dir|dirs|directory|directories|"
    "folder|folders|source|sources|src|destination|dest|dst|cwd"
)
_ENDS: Final = "Path|Paths|File|Files|Filename|Filenames|Dir|Dirs|Directory|Directories|Folder"
_NAMES: Final = f"^(?i:(?:.*[_-])?(?:{_WORDS}))$|[a-z0-9](?:{_ENDS})$"
_URIS: Final = "^(?i:(?:.*[_-])?ur[il]s?)$|[a-z0-9](?:Ur[il]s?|UR[IL]s?)$"
_PATH_FORMATS: Final = ("path", "file-path", "directory-path")
_MAX_DEPTH: Final = 6
_MAX_BRANCHES: Final = 200

_ODD: Final = r"//|/\.\.?(?:/|$)|^\.\.(?:/|$)|[\\\x00-\x1f\x7f]|^~|^(?i:file):"
"""Paths that may resolve to another path."""
_ODD_URI: Final = r"^file://.*//|/\.\.?(?:/|$)|[%?#\\\x00-\x20\x7f]"
_MAYBE_PATH: Final = r"^(?:(?i:file):|[/~.\\])"
"""Values of URI arguments that are checked as paths."""


class _PathConditions:
    """Writes the CEL conditions for values that are paths."""

    def __init__(self, permissions: Permissions, base: str) -> None:
        base = posixpath.normpath(base) if base.startswith("/") else ""
        allowed = permissions.allowed_paths
        bad = [_ODD, *(_denied(path, base) for path in permissions.denied_paths)]
        bad_uri = [
            _ODD_URI,
            *(_denied_uri(path) for path in permissions.denied_paths),
        ]
        plain = [f"p.matches({_cel('|'.join(bad))})"]
        uri = [f"p.matches({_cel('|'.join(bad_uri))})"]
        if allowed is not None:
            good = "|".join(part for path in allowed for part in _allowed(path, base))
            good_uri = "|".join(
                _below(f"file://(?:localhost)?{_quoted(whole)}", whole)
                for path in allowed
                if (whole := _absolute(path, base))
            )
            plain.append(f"!p.matches({_cel(good)})" if good else "true")
            uri.append(f"!p.matches({_cel(good_uri)})" if good_uri else "true")
        self._text = f'(p.startsWith("file://") ? ({" || ".join(uri)}) : ({" || ".join(plain)}))'

    def denied(self, value: str) -> str:
        """Return a condition that is true for a value that is not a permitted path."""
        return self._any(value, f"(type(p) != string || {self._text})")

    def denied_uri(self, value: str) -> str:
        text = f"(type(p) == string && p.matches({_cel(_MAYBE_PATH)}) && {self._text})"
        return self._any(value, text)

    def _any(self, value: str, text: str) -> str:
        # A single value becomes a list, so that the condition is written once.
        values = f"dyn(type({value}) == list ? dyn({value}) : dyn([{value}]))"
        return f"(type({value}) != null_type && {values}.exists(p, {text}))"


def _nested(
    paths: _PathConditions, root: object, schema: object, value: str, depth: int
) -> Iterable[str]:
    """Yield conditions for nested paths, which only the schema shows."""
    schema = _resolved(root, schema)
    if not isinstance(schema, dict) or depth > _MAX_DEPTH:
        return
    for key in ("anyOf", "oneOf", "allOf"):
        branches = schema.get(key)
        for branch in branches[:_MAX_BRANCHES] if isinstance(branches, list) else ():
            yield from _nested(paths, root, branch, value, depth + 1)
    properties = schema.get("properties")
    members = list(properties.items()) if isinstance(properties, dict) else []
    for name, member in members[:_MAX_BRANCHES]:
        inner = f"{value}[{_cel(name)}]"
        there = f"type({value}) == map && {_cel(name)} in {value}"
        found = []
        if _is_path(name, _resolved(root, member), depth):
            found.append(paths.denied(inner))
        elif depth and re.search(_URIS, name):
            found.append(paths.denied_uri(inner))
        else:
            found += _nested(paths, root, member, inner, depth + 1)
        yield from (f"({there} && {each})" for each in found)
    items = schema.get("items")
    if isinstance(items, dict):
        each = f"i{depth}"
        found = [*_nested(paths, root, items, each, depth + 1)]
        if found:
            yield f"(type({value}) == list && dyn({value}).exists({each}, {' || '.join(found)}))"


def _is_path(name: str, schema: object, depth: int) -> bool:
    formatted = isinstance(schema, dict) and schema.get("format") in _PATH_FORMATS
    return formatted or (depth > 0 and re.search(_NAMES, name) is not None)


def _resolved(root: object, schema: object) -> object:
    for _ in range(_MAX_DEPTH):
        ref = schema.get("$ref") if isinstance(schema, dict) else None
        if not isinstance(ref, str) or not ref.startswith("#/"):
            break
        found: Any = root
        for part in ref[2:].split("/"):
            part = part.replace("~1", "/").replace("~0", "~")
            found = found.get(part) if isinstance(found, Mapping) else None
        schema = found
    return schema


def _allowed(path: str, base: str) -> Sequence[str]:
    """Return patterns for a path and everything below it, absolute and relative to the base."""
    whole = _absolute(path, base)
    if not whole:
        return (_below(rf"(?:\./)?{_quoted(_relative(path))}"),)
    found = [_below(_quoted(whole), whole)]
    if base and _is_below(base, whole):
        found.append(r"^(?:$|[^/~])")
    elif base and _is_below(whole, base):
        found.append(_below(rf"(?:\./)?{_quoted(posixpath.relpath(whole, base))}"))
    return found


def _denied(path: str, base: str) -> str:
    if not path.startswith("/"):
        return f"(?:^|/){_quoted(_relative(path))}(?:/|$)"
    whole = posixpath.normpath(path)
    found = [_below(_quoted(whole), whole)]
    if not base or _is_below(base, whole):
        found.append(r"^(?:$|[^/])")  # relative paths, which start in an unknown or denied folder
    elif _is_below(whole, base):
        found.append(_below(rf"(?:\./)?{_quoted(posixpath.relpath(whole, base))}"))
    return "|".join(found)


def _denied_uri(path: str) -> str:
    if not path.startswith("/"):
        return f"/{_quoted(_relative(path))}(?:/|$)"
    whole = posixpath.normpath(path)
    return _below(f"file://(?:localhost)?{_quoted(whole)}", whole)


def _absolute(path: str, base: str) -> str:
    if path.startswith("/"):
        return posixpath.normpath(path)
    return posixpath.normpath(posixpath.join(base, path)) if base else ""


def _relative(path: str) -> str:
    return posixpath.normpath(path)


def _is_below(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def _below(pattern: str, whole: str = "") -> str:
    return f"^{pattern}" if whole == "/" else f"^{pattern}(?:/|$)"


def _quoted(text: str) -> str:
    """Return an RE2 pattern that matches a text."""
    return "".join(char if char.isalnum() or char in "/_" else rf"\{char}" for char in text)


def _cel(text: str) -> str:
    """Return a text as a CEL string."""
    return json.dumps(text)
