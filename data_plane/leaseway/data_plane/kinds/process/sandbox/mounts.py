"""The files that a sandboxed server sees, as bubblewrap's arguments.

/run is private: through its sockets (a container engine's, say) a server could leave the sandbox.
Leaseway's own folder and key files are hidden, whatever is writable. A path on the command line
below a private folder stays visible, read-only.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from leaseway.spec.kinds.confinement import Sandbox
from leaseway.spec.lease_names import shared_part
from leaseway.spec.model import ServerSpec
from leaseway.spec.policy import Permissions, folders
from leaseway.spec.references import UnresolvedReference, expand

_PRIVATE: Final = tuple(Path(place) for place in ("/tmp", "/var/tmp", "/run"))  # noqa: S108
_HOMES: Final = (Path("/home"), Path("/root"))
_DATA: Final = (*_HOMES, *map(Path, ("/srv", "/mnt", "/media", "/data")))
_HOLD_PROGRAMS: Final = frozenset(
    map(Path, ("/usr", "/bin", "/sbin", "/lib", "/lib64", "/etc", "/proc", "/sys", "/dev"))
)
_SYSTEM: Final = (*_PRIVATE, Path("/proc"), Path("/dev"))
_NAME_SERVERS: Final = Path("/etc/resolv.conf")
_BINARIES: Final = ("bin", ".bin", "sbin")
_OWN_FILES: Final = ("KEY", "VAULT", "IDENTITY", "AUDIT", "ARTIFACTS", "LOG")
"""Parts of the names of variables with the paths of Leaseway's own secrets and records."""
_MAX_LINKS: Final = 40
"""Links that a path may lead through, as in Linux."""


class Paths(NamedTuple):
    """Absolute paths that override a sandbox's level. Missing ones are ignored.

    `hidden` wins over the others, and `own` over all of them.

    Attributes:
        readable: Shown, read-only.
        writable: Shown and writable.
        hidden: Shown as an empty folder or file.
        own: Leaseway's own files and folders, hidden too, wherever they are. What the server needs
            below such a folder stays visible.
        private: Empty folders, with only the readable and writable paths and those that the command
            needs.
        made: Writable folders that Leaseway makes for a lease. Unlike the others they are never
            links: a server of another lease may have put one there.
    """

    readable: tuple[str, ...] = ()
    writable: tuple[str, ...] = ()
    hidden: tuple[str, ...] = ()
    private: tuple[str, ...] = ()
    own: tuple[str, ...] = ()
    made: tuple[str, ...] = ()


NO_PATHS: Final = Paths()


class Surroundings(NamedTuple):
    """What a sandboxed server must not see of the worker around it.

    Attributes:
        environment: The worker's environment, for `${NAME}` in `server_folders`.
        server_folders: The folders that the entries of all servers name as their own, this server's
            included.
        own_paths: Leaseway's own files and folders.
    """

    environment: Mapping[str, str] = {}
    server_folders: tuple[str, ...] = ()
    own_paths: tuple[Path, ...] = ()


NO_SURROUNDINGS: Final = Surroundings()


def permitted_paths(permissions: Permissions, base: str) -> Paths:
    """Return the paths of a server with these permissions and the working directory `base`.

    With `allowed_paths`, the folders for data are empty except for these paths, which are writable
    if tools may write. Denied paths are hidden; relative ones are resolved in the allowed folders
    themselves, not at any depth.
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


def other_servers_folders(
    spec: ServerSpec, command: Sequence[str], base: str, surroundings: Surroundings
) -> tuple[str, ...]:
    """Return the folders of other servers, to hide them from a sandboxed one. Reads files.

    Not hidden are the server's own folders, their parents and children, the folder of its command,
    paths on its command line, system folders and home directories, since the server may need files
    there. `base` is its working directory.
    """
    environment = surroundings.environment
    own = {*_absolute(spec.named_folders, environment), *((base,) if spec.part.cwd else ())}
    own |= set(folders(spec.policy.permissions, base))
    program = Path(command[0])
    used = {*own, base, *map(str, (program, program.resolve()))}
    used |= {argument for argument in command[1:] if argument.startswith("/")}
    own, used = _with_targets(own), _with_targets(map(os.path.normpath, used))
    hidden = []
    for folder in sorted(_absolute(surroundings.server_folders, environment)):
        names = _with_targets((folder,))
        needed = any(_is_in(Path(path), name) for path in used for name in names)
        given = any(_is_in(Path(name), path) for path in own for name in names)
        if not needed and not given and all(_is_data(Path(name)) for name in names):
            hidden.append(folder)
    return tuple(hidden)


def _with_targets(paths: Iterable[str]) -> set[str]:
    """Return paths, and where they lead through links."""
    return {name for path in paths for name in (path, os.path.realpath(path))}


def _absolute(named: Iterable[str], environment: Mapping[str, str]) -> set[str]:
    """Return configured folders as absolute paths; relative ones start at the worker's folder.

    Of folders with the name of a lease, session or tenant, it is the folder that all of them share.
    """
    found = set()
    for path in filter(None, map(shared_part, named)):
        with contextlib.suppress(UnresolvedReference):  # then its server does not start either
            found.add(os.path.normpath(Path.cwd() / expand(path, environment)))
    return found


def _is_data(path: Path) -> bool:
    """Return whether a folder is neither a system folder nor a home, nor a parent of a home."""
    top = Path(*path.parts[:2])
    if top in _HOLD_PROGRAMS or (path == top and top not in _DATA):
        return False
    homes = {Path.home(), *_HOMES}
    return not (path.parent in _HOMES or any(_is_in(home, str(path)) for home in homes))


def mounts(sandbox: Sandbox, command: Sequence[str], cwd: str, paths: Paths) -> list[str]:
    """Return bubblewrap's arguments for files. Reads files: not on the loop.

    The program of the command is a path. An empty `cwd` is the worker's own. `paths` are shown or
    hidden in addition.
    """
    hides_homes = sandbox.strict or bool(paths.private)
    arguments = ["--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc"]
    for name in _kernel_files():
        arguments += ["--ro-bind-try", name, name]
    private = _private(sandbox, paths)
    for place in private:
        arguments += ["--tmpfs", str(place)]
    shown = [str(path) for path in _needed_paths(command, cwd, private, hides_homes)]
    for name in dict.fromkeys(shown):
        arguments += ["--ro-bind-try", name, name]
    writable = (*sandbox.writable_paths, *paths.writable, *paths.made)
    named = [("--ro-bind-try", name) for name in paths.readable if name not in shown]
    named += [("--bind", name) for name in sandbox.writable_paths]
    named += [("--bind-try", name) for name in paths.writable]
    places = [(option, _place(Path(name), private, writable)) for option, name in named]
    places += [("--bind", name) for name in paths.made]
    for option, shown_at in places:
        arguments += [option, shown_at, shown_at]
    own = dict.fromkeys((*map(Path, paths.own), *_own_files(os.environ)))
    aliases = _aliases((*shown, *(place for _, place in places)))
    for hidden in dict.fromkeys((*map(Path, paths.hidden), *own)):
        arguments += _hide(hidden, aliases)
    arguments += _needed_below(own, sandbox, paths, cwd)
    # Without --chdir, the sandbox check would start in another directory.
    return [*arguments, *(("--chdir", cwd) if cwd else ())]


def _place(path: Path, private: Iterable[Path], writable: Iterable[str]) -> str:
    """Return where to show a configured path: bubblewrap can't mount on a link that it shows.

    A link in a folder that the server may write is not followed: the server may have put it there.
    """
    named = [*private, *map(Path, writable)]
    kept = {place for name in named for place in (name, _resolved(name))}
    with contextlib.suppress(OSError, ValueError):
        real, links = _followed(path)
        if links and real.exists() and not any(kept & {*link.parents} for link in links):
            return str(real)
    return str(path)


def _followed(path: Path) -> tuple[Path, list[Path]]:
    """Return where a path leads, and the links that it leads through, each at its real place.

    There are no links if they are too many, as in a circle.
    """
    at, links = Path("/"), []
    left = [*reversed((Path.cwd() / path).parts)]
    while left:
        step = at.parent if left[-1] == ".." else at / left[-1]
        left.pop()
        if not step.is_symlink():
            at = step
            continue
        links.append(step)
        if len(links) > _MAX_LINKS:
            return path, []
        left += reversed(step.readlink().parts)
    return at, links


def _aliases(shown: Iterable[str]) -> list[tuple[Path, Path]]:
    """Return the real paths of those that are shown under other names, and these names."""
    pairs = ((_resolved(Path(name)), Path(name)) for name in dict.fromkeys(shown))
    return [(real, name) for real, name in pairs if real is not None and real != name]


def _needed_below(own: Iterable[Path], sandbox: Sandbox, paths: Paths, cwd: str) -> Iterable[str]:
    """Yield bubblewrap's arguments that show the server's folders in Leaseway's own ones again."""
    kept = [("--ro-bind", Path(name)) for name in (*((cwd,) if cwd else ()), *paths.readable)]
    writable = (*sandbox.writable_paths, *paths.writable, *paths.made)
    kept += [("--bind", Path(name)) for name in writable]
    hidden = [path for path in map(_resolved, own) if path is not None and path.is_dir()]
    for option, path in kept:
        real = _resolved(path)
        if real is not None and any(place in real.parents for place in hidden):
            yield from (option, str(real), str(real))


def _resolved(path: Path) -> Path | None:
    with contextlib.suppress(OSError, ValueError, RuntimeError):
        return path.resolve(strict=True)
    return None


def _kernel_files() -> Iterable[str]:
    """Yield the writable paths in /proc, such as /proc/sys, if the worker runs as root.

    They belong to the machine, also in a sandbox's own /proc, and root may write them as their
    owner, without any capability. Other users may not.
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


def _private(sandbox: Sandbox, paths: Paths) -> tuple[Path, ...]:
    """Return the folders that are empty in the sandbox, parents first."""
    places = {*_PRIVATE, *map(Path, paths.private)}
    if sandbox.strict:
        home = Path.home()
        places |= {*_HOMES, *(() if home.parent == home else (home, home.resolve()))}
    existing = {place for place in places if place.is_dir() and not place.is_symlink()}
    return tuple(sorted(existing, key=lambda place: (len(place.parts), place)))


def _own_files(environment: Mapping[str, str]) -> Iterable[Path]:
    """Yield Leaseway's own folder and key files."""
    yield Path.home() / ".leaseway"
    for name, value in environment.items():
        if name.startswith("LEASEWAY_") and any(word in name for word in _OWN_FILES):
            path = Path(value)
            with contextlib.suppress(OSError, ValueError):  # the value may be a key, not a path
                if path.exists():
                    yield path.absolute()


def _hide(path: Path, aliases: Iterable[tuple[Path, Path]]) -> Iterable[str]:
    """Return bubblewrap's arguments that hide a path, under each name that it is shown by."""
    with contextlib.suppress(OSError, ValueError, RuntimeError):
        path = path.resolve()
        if _holds_system(path) or path in _HOLD_PROGRAMS or not path.exists():
            return ()  # a server could not start without it
        names = [path]
        names += [
            name / path.relative_to(real) for real, name in aliases if _is_in(path, str(real))
        ]
        hiding = ("--tmpfs",) if path.is_dir() else ("--ro-bind", os.devnull)
        return [word for name in names for word in (*hiding, str(name))]
    return ()


def _needed_paths(
    command: Sequence[str], cwd: str, private: Sequence[Path], strict: bool
) -> Iterable[Path]:
    """Yield the command's paths in private folders."""
    program = Path(command[0])
    named = [_NAME_SERVERS.resolve()]
    named += [_installation(path, private) for path in (program, program.resolve())]
    with contextlib.suppress(OSError):  # the working directory was removed
        if cwd or not strict:
            named.append(Path(cwd) if cwd else Path.cwd())
    for argument in command[1:]:
        path = Path(argument)
        with contextlib.suppress(OSError, ValueError):  # too long for a path, for instance
            if path.is_absolute() and path.exists():
                named.append(path if path.is_dir() else _installation(path, private))
    for path in named:
        if path not in private and any(place in path.parents for place in private):
            yield path


def _installation(program: Path, private: Sequence[Path]) -> Path:
    """Return the folder that a program or script needs: its own, or its installation prefix."""
    folder = program.parent
    folder = folder.parent if folder.name in _BINARIES else folder
    return program if _covers_private(folder, private) else folder


def _holds_system(path: Path) -> bool:
    """Return whether showing a path would show a folder that each sandbox has its own of."""
    return any(_is_in(place, str(path)) for place in _SYSTEM)


def _is_in(place: Path, path: str) -> bool:
    return place == Path(path) or Path(path) in place.parents


def _covers_private(folder: Path, private: Sequence[Path]) -> bool:
    """Return whether showing a folder would show a whole private place, such as a home."""
    below_home = folder.name == ".local" or folder.parent in _HOMES
    return below_home or any(folder == place or folder in place.parents for place in private)
