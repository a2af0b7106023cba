"""Permissions of a server: what its tools may do, and which paths they may name. Pure.

They become rules in CEL on the arguments that look like paths (`expressions`). What a rule cannot
see is not its business: a path inside of a text, what a link points at, what a tool finds below a
folder that it may name. A sandbox sees to those.
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
        read: Whether tools that only read may run.
        write: Whether other tools may.
        allowed_paths: What paths may be, or be below; None for any. Relative ones are meant from
            the folder that the server starts in.
        denied_paths: What they may not be or be below; a relative one at any depth.
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
    """Return what may be named, as absolute paths; what is relative to no known folder is left out.

    Args:
        permissions: Of the server.
        base: The folder that relative paths start from; empty where that is not known.
    """
    allowed = (_absolute(path, base) for path in permissions.allowed_paths or ())
    return tuple(dict.fromkeys(path for path in allowed if path))


def expressions(
    permissions: Permissions, base: str, schema: object, reads_only: bool
) -> Iterable[tuple[str, str]]:
    """Yield (why, rule) for each rule that a tool's calls are judged by.

    Args:
        permissions: Of the server.
        base: The folder that relative paths start from; empty where that is not known.
        schema: The tool's input schema.
        reads_only: Whether it changes nothing.
    """
    if reads_only and not permissions.read:
        yield "it reads, and 'permissions' has read: false", "true"
    if not reads_only and not permissions.write:
        why = "it may change something, and 'permissions' has write: false"
        yield why, "true"
    if permissions.names_paths:
        judged = _Paths(permissions, base)
        refused = f"args.exists(name, name.matches({_cel(_NAMES)}) && {judged.bad('args[name]')})"
        uris = f"args.exists(name, name.matches({_cel(_URIS)}) && {judged.bad_uri('args[name]')})"
        nested = [*_nested(judged, schema, schema, "args", 0)]
        yield "a path in its arguments is not permitted", " || ".join([refused, uris, *nested])


_WORDS: Final = (
    "path|paths|file|files|filename|filenames|filepath|filepaths|dir|dirs|directory|directories|"
    "folder|folders|source|sources|src|destination|dest|dst|cwd"
)
_ENDS: Final = "Path|Paths|File|Files|Filename|Filenames|Dir|Dirs|Directory|Directories|Folder"
_NAMES: Final = f"^(?i:(?:.*[_-])?(?:{_WORDS}))$|[a-z0-9](?:{_ENDS})$"
_URIS: Final = "^(?i:(?:.*[_-])?ur[il]s?)$|[a-z0-9](?:Ur[il]s?|UR[IL]s?)$"
_PATH_FORMATS: Final = ("path", "file-path", "directory-path")
_DEEPEST: Final = 6
_MOST: Final = 200

_ODD: Final = r"//|/\.\.?(?:/|$)|^\.\.(?:/|$)|[\\\x00-\x1f\x7f]|^~|^(?i:file):"
"""What may be another path than it seems."""
_ODD_URI: Final = r"^file://.*//|/\.\.?(?:/|$)|[%?#\\\x00-\x20\x7f]"
_MAYBE_PATH: Final = r"^(?:(?i:file):|[/~.\\])"
"""What a URI is judged as a path for."""


class _Paths:
    """Writes what is said of a value that is a path."""

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

    def bad(self, value: str) -> str:
        """Return the expression that is true of a value that is not permitted as a path."""
        return self._judged(value, f"(type(p) != string || {self._text})")

    def bad_uri(self, value: str) -> str:
        text = f"(type(p) == string && p.matches({_cel(_MAYBE_PATH)}) && {self._text})"
        return self._judged(value, text)

    def _judged(self, value: str, text: str) -> str:
        # One value is judged as a list of it, so that the text is written once.
        values = f"dyn(type({value}) == list ? dyn({value}) : dyn([{value}]))"
        return f"(type({value}) != null_type && {values}.exists(p, {text}))"


def _nested(judged: _Paths, root: object, schema: object, value: str, depth: int) -> Iterable[str]:
    """Yield what refuses the paths that only a schema tells of."""
    schema = _resolved(root, schema)
    if not isinstance(schema, dict) or depth > _DEEPEST:
        return
    for key in ("anyOf", "oneOf", "allOf"):
        branches = schema.get(key)
        for branch in branches[:_MOST] if isinstance(branches, list) else ():
            yield from _nested(judged, root, branch, value, depth + 1)
    properties = schema.get("properties")
    for name, one in list(properties.items())[:_MOST] if isinstance(properties, dict) else ():
        inner = f"{value}[{_cel(name)}]"
        there = f"type({value}) == map && {_cel(name)} in {value}"
        found = []
        if _is_path(name, _resolved(root, one), depth):
            found.append(judged.bad(inner))
        elif depth and re.search(_URIS, name):
            found.append(judged.bad_uri(inner))
        else:
            found += _nested(judged, root, one, inner, depth + 1)
        yield from (f"({there} && {each})" for each in found)
    items = schema.get("items")
    if isinstance(items, dict):
        each = f"i{depth}"
        found = [*_nested(judged, root, items, each, depth + 1)]
        if found:
            yield f"(type({value}) == list && dyn({value}).exists({each}, {' || '.join(found)}))"


def _is_path(name: str, schema: object, depth: int) -> bool:
    formatted = isinstance(schema, dict) and schema.get("format") in _PATH_FORMATS
    return formatted or (depth > 0 and re.search(_NAMES, name) is not None)


def _resolved(root: object, schema: object) -> object:
    for _ in range(_DEEPEST):
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
    """Return the patterns of what is a path or below it: written in full, and from the base."""
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
        found.append(r"^(?:$|[^/])")  # what starts elsewhere, or in what is denied
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
    """Return a pattern of RE2 that matches a text."""
    return "".join(one if one.isalnum() or one in "/_" else rf"\{one}" for one in text)


def _cel(text: str) -> str:
    """Return a text as CEL writes it."""
    return json.dumps(text)
