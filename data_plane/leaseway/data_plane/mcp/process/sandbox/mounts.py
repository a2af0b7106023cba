"""Which of the machine's files a sandboxed server sees: bubblewrap's arguments for them.

/run is private: through the sockets there (a container engine's, say) it could leave. Leaseway's
own folder and key files are masked, whatever may be written. What the command line names below a
private place stays visible there, read-only.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from leaseway.spec.model import Sandbox, ServerSpec
from leaseway.spec.permissions import Permissions, folders

_PRIVATE: Final = tuple(Path(place) for place in ("/tmp", "/var/tmp", "/run"))  # noqa: S108
_HOMES: Final = (Path("/home"), Path("/root"))
_DATA: Final = (*_HOMES, *map(Path, ("/srv", "/mnt", "/media", "/data")))
_HOLD_PROGRAMS: Final = frozenset(
    map(Path, ("/usr", "/bin", "/sbin", "/lib", "/lib64", "/etc", "/proc", "/sys", "/dev"))
)
_SYSTEM: Final = (*_PRIVATE, Path("/proc"), Path("/dev"))
_NAME_SERVERS: Final = Path("/etc/resolv.conf")
_BINARIES: Final = ("bin", ".bin", "sbin")
_OWN_FILES: Final = ("KEY", "VAULT")
"""In the names of variables that say where Leaseway's own secrets are."""


class Paths(NamedTuple):
    """Absolute paths that a sandbox treats otherwise than its level does.

    What is not there is passed over. `hidden` wins over the others, and Leaseway's own files stay
    masked whatever is named.

    Attributes:
        readable: Shown, read-only.
        writable: Shown, and may be written.
        hidden: Shown as an empty folder or file.
        private: Empty folders, in which the others and what the command needs are shown.
    """

    readable: tuple[str, ...] = ()
    writable: tuple[str, ...] = ()
    hidden: tuple[str, ...] = ()
    private: tuple[str, ...] = ()


NOTHING_MORE: Final = Paths()


def permitted(permissions: Permissions, base: str) -> Paths:
    """Return what permissions mean for the files that a server sees.

    With `allowed_paths`, the places where data are kept are empty but for these. They can be
    written where tools may write. What is denied is hidden; relative names of it are looked for
    in the allowed folders themselves, not at any depth.

    Args:
        permissions: Of the server.
        base: The folder that it starts in.
    """
    allowed = folders(permissions, base)
    hidden = []
    for name in permissions.denied_paths:
        starts = ("/",) if name.startswith("/") else (*allowed, base)
        hidden += [os.path.normpath(Path(start, name)) for start in starts]
    if permissions.allowed_paths is None:
        return Paths(hidden=tuple(hidden))
    shown = tuple(path for path in allowed if not _holds_system(Path(path)))
    private = tuple(str(place) for place in _DATA if not any(_is_in(place, path) for path in shown))
    if permissions.write:
        return Paths(writable=shown, hidden=tuple(hidden), private=private)
    return Paths(readable=shown, hidden=tuple(hidden), private=private)


def of_others(
    spec: ServerSpec, command: Sequence[str], base: str, others: Iterable[ServerSpec]
) -> tuple[str, ...]:
    """Return the folders of other servers, which a sandboxed one may not see; looks at files.

    They are where others start, what they may write and what their permissions allow. What the
    server itself was given stays: its own such folders, those around and below them, and where its
    command and the paths on its command line are. Folders of the system and homes stay as well,
    since what the server needs may be there.

    Args:
        spec: The server in the sandbox.
        command: Its command, its program as a path.
        base: The folder that it starts in.
        others: The servers of the worker; the server itself among them changes nothing.
    """
    own = {*_folders(spec, spec.cwd), *((base,) if spec.cwd else ())}
    program = Path(command[0])
    used = {*own, base, *map(str, (program, program.resolve()))}
    used |= {argument for argument in command[1:] if argument.startswith("/")}
    hidden = []
    for folder in sorted({path for other in others for path in _folders(other, other.cwd)}):
        path = Path(folder)
        needed = any(_is_in(Path(os.path.normpath(each)), folder) for each in used)
        if not needed and not any(_is_in(path, each) for each in own) and _is_data(path):
            hidden.append(folder)
    return tuple(hidden)


def _folders(spec: ServerSpec, base: str) -> set[str]:
    """Return a server's own folders, as far as they can be known before it starts."""
    named = {spec.cwd, *spec.sandbox.writable_paths, *folders(spec.policy.permissions, base)}
    return {os.path.normpath(path) for path in named if path.startswith("/")}


def _is_data(path: Path) -> bool:
    """Return whether a folder is neither of the system nor a home, nor around one."""
    top = Path(*path.parts[:2])
    if top in _HOLD_PROGRAMS or (path == top and top not in _DATA):
        return False
    homes = {Path.home(), *_HOMES}
    return not (path.parent in _HOMES or any(_is_in(home, str(path)) for home in homes))


def mounts(sandbox: Sandbox, command: Sequence[str], cwd: str, more: Paths) -> list[str]:
    """Return bubblewrap's arguments for files; looks at files, which is not for the loop.

    Args:
        sandbox: Its level, and what may be written.
        command: The command, its program as a path.
        cwd: The folder that it starts in; empty for the worker's own.
        more: What is shown or hidden besides.
    """
    hides_homes = sandbox.strict or bool(more.private)
    arguments = ["--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc"]
    for name in _switches():
        arguments += ["--ro-bind-try", name, name]
    private = _private(sandbox, more)
    for place in private:
        arguments += ["--tmpfs", str(place)]
    shown = [str(path) for path in _visible(command, cwd, private, hides_homes)]
    for name in dict.fromkeys((*shown, *more.readable)):
        arguments += ["--ro-bind-try", name, name]
    for name in sandbox.writable_paths:
        arguments += ["--bind", name, name]
    for name in more.writable:
        arguments += ["--bind-try", name, name]
    for path in dict.fromkeys((*map(Path, more.hidden), *_own_files(os.environ))):
        arguments += _mask(path)
    # The trial of the sandbox begins elsewhere.
    return [*arguments, *(("--chdir", cwd) if cwd else ())]


def _switches() -> Iterable[str]:
    """Yield what the kernel offers root in /proc, such as /proc/sys: to be read only.

    It is the machine's, also in a /proc of the sandbox's own, and root may write it as the owner of
    the files, without any capability. Nobody else may.
    """
    if os.geteuid() != 0:
        return
    with contextlib.suppress(OSError), os.scandir("/proc") as entries:
        for entry in entries:
            if entry.name.isdecimal() or entry.is_symlink():
                continue
            with contextlib.suppress(OSError):
                if entry.is_dir() or entry.stat().st_mode & 0o222:
                    yield entry.path


def _private(sandbox: Sandbox, more: Paths) -> tuple[Path, ...]:
    """Return the places that are empty in the sandbox, the outer ones first."""
    places = {*_PRIVATE, *map(Path, more.private)}
    if sandbox.strict:
        home = Path.home()
        places |= {*_HOMES, *(() if home.parent == home else (home, home.resolve()))}
    there = {place for place in places if place.is_dir() and not place.is_symlink()}
    return tuple(sorted(there, key=lambda place: (len(place.parts), place)))


def _own_files(environment: Mapping[str, str]) -> Iterable[Path]:
    """Yield Leaseway's own folder and key files."""
    yield Path.home() / ".leaseway"
    for name, value in environment.items():
        if name.startswith("LEASEWAY_") and any(word in name for word in _OWN_FILES):
            path = Path(value)
            with contextlib.suppress(OSError, ValueError):  # a key itself, not the path of one
                if path.is_absolute() and path.is_file():
                    yield path


def _mask(path: Path) -> Sequence[str]:
    with contextlib.suppress(OSError, ValueError, RuntimeError):
        path = path.resolve()
        if path.is_dir():
            return ("--tmpfs", str(path))
        if path.exists():
            return ("--ro-bind", os.devnull, str(path))
    return ()


def _visible(
    command: Sequence[str], cwd: str, private: Sequence[Path], strict: bool
) -> Iterable[Path]:
    """Yield what the command needs of the private places: it was named by the operator."""
    program = Path(command[0])
    named = [_NAME_SERVERS.resolve()]
    named += [_surroundings(path, private) for path in (program, program.resolve())]
    with contextlib.suppress(OSError):  # it was removed
        if cwd or not strict:
            named.append(Path(cwd) if cwd else Path.cwd())
    for argument in command[1:]:
        path = Path(argument)
        with contextlib.suppress(OSError, ValueError):  # too long for a path, for instance
            if path.is_absolute() and path.exists():
                named.append(path if path.is_dir() else _surroundings(path, private))
    for path in named:
        if path not in private and any(place in path.parents for place in private):
            yield path


def _surroundings(program: Path, private: Sequence[Path]) -> Path:
    """Return the folder that a program or script needs to run: its own, or its installation."""
    folder = program.parent
    folder = folder.parent if folder.name in _BINARIES else folder
    return program if _holds_all(folder, private) else folder


def _holds_system(path: Path) -> bool:
    """Return whether showing a path would show what every sandbox has its own of."""
    return any(_is_in(place, str(path)) for place in _SYSTEM)


def _is_in(place: Path, path: str) -> bool:
    return place == Path(path) or Path(path) in place.parents


def _holds_all(folder: Path, private: Sequence[Path]) -> bool:
    """Return whether showing a folder would show a whole private place, such as a home."""
    below_home = folder.name == ".local" or folder.parent in _HOMES
    return below_home or any(folder == place or folder in place.parents for place in private)
