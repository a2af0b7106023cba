"""Judges every text in the arguments of a call by a server's permitted paths. Pure.

A text is judged as a path if its name says so (`path`, `outputDir`, `files`), if the schema does
(`format: path`), or if it looks like one: absolute, with `..`, below `~`, or an address of a file.
Names count as texts too. A text passes only if all its spellings pass: as written, trimmed,
percent-decoded and in Unicode's compatibility form. What may be read in more than one way is
denied. Texts of several lines are judged as paths only by their names.
"""

from __future__ import annotations

import functools
import posixpath
import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final
from urllib.parse import unquote

from leaseway.spec.filters.names import matches
from leaseway.spec.policy import Permissions, folders
from leaseway.wire.messages.json_schema import PROPERTIES

MAX_VALUES: Final = 10_000
"""Values and names of a call that are judged; calls with more are denied."""

_MAX_JUDGED: Final = 256 * 1024
"""Characters of texts of a call that are judged in all their spellings."""
_COST: Final = 100
"""Characters that a text counts at least."""
_COST_OF_STEP: Final = 24
_MAX_PATH: Final = 4_096
_MAX_NAME: Final = 64
_MAX_DECODED: Final = 3
_MAX_WRAPPED: Final = 4

_SPACE: Final = "".join(
    map(chr, (*range(0x21), *range(0x7F, 0xA1), 0x1680, *range(0x2000, 0x2010)))
)
_INVISIBLE: Final = f"{_SPACE}\u2028\u2029\u202f\u205f\u2060\u3000\ufeff"
"""White space, control characters and invisible ones, which servers may remove at both ends."""
_DROPPED: Final = dict.fromkeys([*range(0x20), 0x7F, 0x200B, 0x200C, 0x200D, 0x2060, 0xFEFF])
_SUSPECT: Final = re.compile(
    r"[\\\x00-\x1f\x7f-\U0010ffff]|^\s|\s$|^[/~.$%]|\.\.|%[0-9a-fA-F]{2}|^[A-Za-z][\w+.\-]*:"
    r"|^[\"'`(<\[{@=]|^-{0,2}[\w.\-]+="
)
"""Texts without a match are neither absolute paths nor addresses in any spelling."""
_SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9_+.\-]*):(.*)", re.DOTALL)
_WEB: Final = frozenset({"http", "https", "ws", "wss", "mailto", "data", "urn", "tel", "about"})
_FILE: Final = re.compile(r"file://(?:localhost)?(/.*)", re.DOTALL)
_ODD_ADDRESS: Final = re.compile(r"[%?#\\\x00-\x20\x7f]")
_ODD: Final = re.compile(
    r"//|/\.\.?(?:/|$)|^\.\.(?:/|$)|[\\\x00-\x1f\x7f]|^[~$]|^%\w+%|[,;:|=\s\"'`(<\[{@][/~]"
)
"""Paths that may resolve to another path, or be read as a list of paths."""
_WRAPPED: Final = re.compile(r"(?:[\"'`(<\[{@=]+|-{0,2}[\w.\-]+=[\"']?)(?:/|~|\.\.?/)\S*$")
"""A path in quotes or brackets, or after `name=`, which a server may remove."""
_LIKE_PATH: Final = re.compile(
    r"/|\.\.?(?:/|$)|~[\w.-]*/|~$|\$\{?\w+\}?[/\\]|\$\(|%\w+%|\\\\|\\\w{2,}(?:\\[\w.-]{2,})+$"
)
_STEP_UP: Final = re.compile(r"(?:^|[/\\])\.\.(?:[/\\]|$)")
_BLANK: Final = re.compile(r"\s")
_STARS: Final = re.compile(r"[*?]+")
_OPENS_GLOB: Final = {
    "[{": re.compile(r"[*?]+|[\[{]"),
    "[": re.compile(r"[*?]+|\["),
    "{": re.compile(r"[*?]+|\{"),
    "": _STARS,
}
"""What begins a part of a pattern, by the brackets that may still end."""
_ENDS: Final = {"[": "]", "{": "}"}

_PATH_WORDS: Final = frozenset(
    {
        "path", "paths", "file", "files", "filename", "filenames", "filepath", "filepaths",
        "pathname", "pathnames", "dir", "dirs", "dirname", "dirpath", "directory", "directories",
        "folder", "folders", "foldername", "folderpath", "source", "sources", "src", "destination",
        "destinations", "dest", "dst", "cwd", "pwd", "workdir", "basedir", "rootdir", "homedir",
        "workingdir", "infile", "outfile", "inputfile", "outputfile", "logfile", "root", "roots",
        "location", "locations", "workspace", "workspaces", "target", "targets"
    }
)  # fmt: skip
_AFTER_PATH: Final = frozenset(
    {
        "name", "names", "path", "paths", "list", "uri", "uris", "url", "urls"
    }
)  # fmt: skip
_NO_PATHS: Final = frozenset(
    {
        "content", "contents", "text", "data", "body", "type", "kind", "mode", "encoding",
        "language", "mimetype"
    }
)  # fmt: skip
"""Members of an object with the name of a path that are not paths themselves."""
_MAYBE_PATH_NAME: Final = re.compile(
    r"path|file|dir|folder|source|src|dest|dst|cwd|pwd|root|location|workspace|target",
    re.IGNORECASE,
)
_WORD: Final = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[^\W\d_A-Za-z]+")
_PATH_FORMATS: Final = ("path", "file-path", "directory-path")


class PathJudge:
    """The permitted paths of a tool's arguments.

    Args:
        permissions: The permissions of the server or of a tenant.
        base: The folder that relative paths start from; empty if unknown.
        schema: The tool's input schema, for names with the format of a path.
    """

    def __init__(self, permissions: Permissions, base: str, schema: object = None) -> None:
        self._base = posixpath.normpath(base) if base.startswith("/") else ""
        allowed = permissions.allowed_paths
        self._allowed = None if allowed is None else folders(permissions, self._base)
        self._as_written = () if self._base else _relative(allowed or ())
        denied = permissions.denied_paths
        self._denied = [_steps(path) for path in denied if path.startswith("/")]
        self._denied_anywhere = [_steps(path) for path in _relative(denied)]
        self._last_steps = {steps[-1] for steps in (*self._denied, *self._denied_anywhere) if steps}
        self._names = frozenset(_names_of_paths(schema))

    def denied(self, arguments: Mapping[str, Any]) -> str | None:
        """Return which argument is not permitted or cannot be judged, or None if all are."""
        texts = _texts(arguments, self._names)
        if texts is None:
            return f"it has more than {MAX_VALUES} values to check"
        judged = 0
        for text, is_path, where in texts:
            if text is None:
                return f"a path in its arguments is not permitted: {where} is a number"
            is_short = len(text) <= _MAX_PATH
            suspect = is_path or not is_short or _SUSPECT.search(text)
            if not suspect and not self._may_be_denied(text):
                continue
            judged += _COST + (len(text) + _COST_OF_STEP * text.count("/") if is_short else 0)
            if judged > _MAX_JUDGED:
                return "it has too many paths to check"
            if not self.permits(text, is_path=is_path):
                return f"a path in its arguments is not permitted: {where}"
        return None

    def permits(self, text: str, *, is_path: bool) -> bool:
        """Return whether a text names no file, or only permitted ones.

        Args:
            text: A text of the arguments.
            is_path: Whether it is a path for certain, also if it does not look like one.
        """
        trimmed = text.strip(_INVISIBLE)
        if len(trimmed) > _MAX_PATH:
            return not is_path and not self._looks_like_path(trimmed[:_MAX_PATH])
        joined = trimmed.translate(_DROPPED)
        if joined != trimmed:
            if is_path or _is_file_address(joined):
                return False
            if "\n" in trimmed or "\r" in trimmed:
                return True
        spellings = _spellings(text, trimmed)
        return spellings is not None and all(
            self._permits(spelling, is_path, _MAX_WRAPPED) for spelling in spellings
        )

    def permits_uri(self, uri: str) -> bool:
        """Return whether a URI names no file, or a permitted one."""
        return self.permits(uri, is_path=_SCHEME.match(uri) is None)

    def _may_be_denied(self, text: str) -> bool:
        """Return whether a relative path may be denied; quick, and true too often."""
        if not self._last_steps:
            return False
        folded = _folded(text)
        if any(step in folded for step in self._last_steps):
            return True
        return "*" in _generalised(text) and not _BLANK.search(text)

    def _looks_like_path(self, text: str) -> bool:
        return bool(_LIKE_PATH.match(text)) or _is_file_address(text.translate(_DROPPED))

    def _permits(self, text: str, is_path: bool, depth: int) -> bool:
        """Judge one spelling."""
        match = _SCHEME.match(text)
        if match is not None:
            scheme, rest = match[1].lower(), match[2]
            if len(scheme) == 1:
                if rest.startswith(("/", "\\")) or is_path:
                    return False  # a drive
            elif "file" in scheme:
                return self._permits_file(text)
            elif scheme in _WEB:
                return not is_path
            elif not self._permits_address(rest, depth):
                return False
            elif rest.startswith("//"):
                return not is_path
        if _WRAPPED.match(text):
            return False
        if is_path or _LIKE_PATH.match(text) or _STEP_UP.search(text):
            return self._permits_path(text)
        return not (self._may_be_denied(text) and self._is_denied(text, certain=False))

    def _permits_file(self, address: str) -> bool:
        match = _FILE.fullmatch(address)
        if match is None or _ODD_ADDRESS.search(address):
            return False
        return self._permits_path(match[1])

    def _permits_address(self, rest: str, depth: int) -> bool:
        """Judge what follows an unknown scheme, which may stand before another address."""
        if depth == 0:
            return False
        if not rest.startswith("//"):
            return not rest or self._permits(rest.lstrip(_INVISIBLE), False, depth - 1)
        host, slash, path = rest[2:].partition("/")
        if host.lower() in ("", "file", "localhost", "127.0.0.1", "[::1]", "."):
            return self._permits_path(slash + path)
        whole = f"/{host}/{path}"
        return not (
            _ODD.search(whole.rstrip("/"))
            or self._is_denied(whole, certain=True)
            or self._is_denied(slash + path, certain=True)
        )

    def _permits_path(self, path: str) -> bool:
        if _ODD.search(path):
            return False
        return self._is_allowed(path) and not self._is_denied(path, certain=True)

    def _is_allowed(self, path: str) -> bool:
        if self._allowed is None:
            return True
        if path.startswith("/"):
            whole = posixpath.normpath(path)
        elif self._base:
            whole = posixpath.normpath(posixpath.join(self._base, path))
        else:
            written = posixpath.normpath(path)
            return any(_is_below(written, folder) for folder in self._as_written)
        return any(_is_below(whole, folder) for folder in self._allowed)

    def _is_denied(self, text: str, *, certain: bool) -> bool:
        """Return whether a text names a denied path.

        Args:
            text: A path.
            certain: Whether it is a path, so that a pattern of files cannot be judged.
        """
        steps = _steps(text)
        for denied in self._denied_anywhere:
            if _contains(steps, denied, certain):
                return True
        if not self._denied:
            return False
        if not text.startswith("/"):
            if not self._base:
                return certain  # it may start anywhere
            steps = _steps(posixpath.join(self._base, text))
        return any(_begins(steps, denied, certain) for denied in self._denied)


def _spellings(text: str, trimmed: str) -> set[str] | None:
    """Return how servers may read a text, or None if there are too many ways."""
    spellings = {text, trimmed}
    decoded = trimmed
    for _ in range(_MAX_DECODED):
        if "%" not in decoded:
            break
        again = unquote(decoded)
        if again == decoded:
            break
        decoded = again
        spellings |= {decoded, decoded.strip(_INVISIBLE)}
    else:
        if "%" in decoded and unquote(decoded) != decoded:
            return None
    if not decoded.isascii():
        spellings |= set(map(_compatible, spellings))
    return spellings


def _is_file_address(text: str) -> bool:
    match = _SCHEME.match(text)
    for _ in range(_MAX_WRAPPED):
        if match is None:
            return False
        if "file" in match[1].lower():
            return True
        match = _SCHEME.match(match[2].lstrip(_INVISIBLE))
    return match is not None


def _steps(path: str) -> list[str]:
    """Return the steps of a path as file systems may compare them."""
    steps = (step.rstrip(". ") or step for step in _folded(path).split("/"))
    return [step for step in steps if step not in ("", ".")]


def _folded(text: str) -> str:
    if text.isascii():
        return text.lower()
    return _compatible(text).casefold()


def _compatible(text: str) -> str:
    is_normal = unicodedata.is_normalized("NFKC", text)
    return text if is_normal else unicodedata.normalize("NFKC", text)


def _relative(paths: Iterable[str]) -> tuple[str, ...]:
    return tuple(posixpath.normpath(path) for path in paths if not path.startswith("/"))


def _matches(step: str, denied: str, certain: bool) -> bool:
    if step == denied:
        return True
    if not step.strip("*"):
        return certain
    pattern = _generalised(step)
    if pattern == step and "*" not in step:
        return False
    return matches(pattern, denied)


def _generalised(text: str) -> str:
    """Return a pattern of files with `*` for each of its parts that stands for several texts.

    In linear time, though each character may begin a part that does not end.
    """
    kept: list[str] = []
    done = at = 0
    brackets = "[{"
    while (begin := _OPENS_GLOB[brackets].search(text, at)) is not None:
        at = begin.end()
        if begin[0] in _ENDS:
            at = text.find(_ENDS[begin[0]], at) + 1
            if not at:  # nor does a later one end
                at = begin.end()
                brackets = brackets.replace(begin[0], "")
                continue
        kept += (text[done : begin.start()], "*")
        done = at
    return "".join((*kept, text[done:]))


def _begins(steps: list[str], denied: list[str], certain: bool) -> bool:
    if len(steps) < len(denied):
        return "**" in steps and certain
    return all(_matches(step, other, certain) for step, other in zip(steps, denied, strict=False))


def _contains(steps: list[str], denied: list[str], certain: bool) -> bool:
    last = len(steps) - len(denied)
    return any(_begins(steps[start:], denied, certain) for start in range(last + 1))


def _is_below(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def _texts(
    arguments: Mapping[str, Any], names: frozenset[str]
) -> list[tuple[str | None, bool, str]] | None:
    """Return (text, whether it is a path, its argument) for all texts and names; None if too many.

    The text is None for a number that is a path.
    """
    found: list[tuple[str | None, bool, str]] = []
    remaining: list[tuple[Any, bool, str]] = [(arguments, False, "")]
    while remaining:
        value, is_path, where = remaining.pop()
        if isinstance(value, str):
            found.append((value, is_path, where))
        elif isinstance(value, Mapping | list):
            if len(value) + len(remaining) + len(found) > MAX_VALUES:
                return None
            if isinstance(value, list):
                remaining.extend((item, is_path, where) for item in value)
                continue
            for name, member in value.items():
                said = where or _shown(name)
                found.append((name, is_path and _is_no_word(name), said))
                remaining.append((member, _is_path(name, is_path, names), said))
        elif is_path and value is not None and not isinstance(value, bool):
            found.append((None, True, where))
    return found


def _is_path(name: str, inside: bool, names: frozenset[str]) -> bool:
    """Return whether a member is a path, by its name or because it is inside of one."""
    if name in names:
        return True
    if not inside and not _MAYBE_PATH_NAME.search(name):
        return False
    words = _words(name[-_MAX_NAME:])
    if inside:
        return "".join(words) not in _NO_PATHS
    if words and words[-1] in _PATH_WORDS:
        return True
    return len(words) > 1 and words[-1] in _AFTER_PATH and words[-2] in _PATH_WORDS


@functools.lru_cache(4_096)
def _words(name: str) -> tuple[str, ...]:
    """Return the words of a name in snake, kebab or camel case, in lower case."""
    return tuple(word.lower() for word in _WORD.findall(name))


def _is_no_word(name: str) -> bool:
    return not name.replace("-", "_").isidentifier()


def _shown(name: str) -> str:
    return name[:_MAX_NAME] if name.isprintable() else ascii(name[:_MAX_NAME])


def _names_of_paths(schema: object) -> Iterator[str]:
    """Yield the names with the format of a path anywhere in a schema."""
    remaining: list[tuple[object, str]] = [(schema, "")]
    while remaining:
        value, name = remaining.pop()
        if isinstance(value, list):
            remaining.extend((item, name) for item in value)
        elif isinstance(value, dict):
            if value.get("format") in _PATH_FORMATS and name:
                yield name
            for key, member in value.items():
                if key in PROPERTIES and isinstance(member, dict):
                    remaining.extend((part, inner) for inner, part in member.items())
                else:
                    remaining.append((member, name))
