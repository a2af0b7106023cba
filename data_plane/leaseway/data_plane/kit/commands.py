"""`execute_command`: programs of an allow-list, started without a shell.

An entry of the list is a command line, such as `git status`: only these words are allowed. With
` *` at its end, as in `git log *`, any further arguments are. Programs are found once, at start.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shlex
import shutil
import signal
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from leaseway.data_plane.kit.roots import PATH_SCHEMA, Roots
from leaseway.server import Tool, ToolError, ToolResult
from leaseway.spec.builtin import command_words

MAX_OUTPUT: Final = 256 << 10
"""Bytes of each output that are kept; the rest is read and dropped."""

_DEFAULT_TIMEOUT: Final = 30
_MAX_TIMEOUT: Final = 300
_LAST_WORDS: Final = 1.0
_INHERITED: Final = frozenset(
    {
        "HOME",
        "LANG",
        "LC_ALL",
        "LC_CTYPE",
        "LOGNAME",
        "PATH",
        "TMPDIR",
        "TZ",
        "USER",
        "_LEASEWAY_MARK",  # by which a worker finds what a server leaves behind
    }
)


@dataclass(frozen=True)
class Allowed:
    """One entry of the allow-list.

    Attributes:
        words: The command and the arguments that it must begin with.
        program: The path of what is executed.
        open_end: Whether further arguments may follow.
    """

    words: tuple[str, ...]
    program: str
    open_end: bool

    def __str__(self) -> str:
        return shlex.join(self.words) + (" *" if self.open_end else "")

    def permits(self, words: Sequence[str]) -> bool:
        head = tuple(words[: len(self.words)])
        return head == self.words and (self.open_end or len(words) == len(self.words))


def allow_list(
    entries: Iterable[str], path: str, roots: Roots | None, writes: bool
) -> list[Allowed]:
    """Return the allow-list with its programs found.

    Args:
        entries: Command lines.
        path: The folders that programs are looked for in, as in PATH; relative ones are not.
        roots: The allowed folders of the file tools, or None.
        writes: Whether a tool may write there.

    Raises:
        ValueError: An entry can't be used; the text says why.
    """
    folders = os.pathsep.join(each for each in path.split(os.pathsep) if each.startswith("/"))
    found: list[Allowed] = []
    for entry in entries:
        words, open_end = command_words(entry)
        program = shutil.which(words[0], path=folders)
        if program is None:
            raise ValueError(f"There is no program {words[0]!r} on this machine's PATH.")
        if writes and roots is not None and roots.contain(os.path.realpath(program)):
            raise ValueError(
                f"The program {program} is below an allowed folder, where a file tool could"
                " replace it; install it elsewhere."
            )
        found.append(Allowed(words, program, open_end))
    return found


def execute_command(
    allowed: Sequence[Allowed], roots: Roots | None, environment: Mapping[str, str]
) -> Tool:
    """Return the tool `execute_command`.

    Args:
        allowed: What may be executed.
        roots: Where commands may run; None leaves them in the kit's own folder.
        environment: The kit's; commands get the few variables that programs need.
    """
    names = "; ".join(map(str, allowed))
    kept = {name: text for name, text in environment.items() if name in _INHERITED}

    async def run(arguments: Mapping[str, Any]) -> ToolResult:
        words = [arguments["command"], *arguments.get("args", ())]
        match = next((each for each in allowed if each.permits(words)), None)
        if match is None:
            raise ToolError(
                f"The command {shlex.join(words)[:300]!r} is not allowed; allowed is: {names}."
            )
        timeout = arguments.get("timeout", _DEFAULT_TIMEOUT)
        with _folder(roots, arguments.get("folder", ".")) as folder:
            return await _run((match.program, *words[1:]), folder, kept, timeout)

    return Tool(
        name="execute_command",
        title="Execute a command",
        description=f"Executes a program, without a shell. Allowed: {names}. A * stands for any"
        " further arguments.",
        input_schema={
            "type": "object",
            "properties": {
                "command": {"type": "string", "minLength": 1, "maxLength": 4_096},
                "args": {
                    "type": "array",
                    "items": {"type": "string", "maxLength": 32_768},
                    "maxItems": 200,
                },
                "folder": {
                    **PATH_SCHEMA,
                    "description": "Where it runs. Default: the first allowed folder.",
                },
                "timeout": {
                    "type": "number",
                    "exclusiveMinimum": 0,
                    "maximum": _MAX_TIMEOUT,
                    "description": f"Seconds. Default: {_DEFAULT_TIMEOUT}.",
                },
            },
            "required": ["command"],
            "additionalProperties": False,
        },
        output_schema={
            "type": "object",
            "properties": {
                "exit_status": {"type": "integer", "description": "Negative: killed by a signal"},
                "stdout": {"type": "string"},
                "stderr": {"type": "string"},
                "truncated": {"type": "boolean"},
            },
            "required": ["exit_status", "stdout", "stderr", "truncated"],
        },
        annotations={"readOnlyHint": False, "destructiveHint": True, "openWorldHint": True},
        function=run,
    )


@contextlib.contextmanager
def _folder(roots: Roots | None, path: str) -> Any:
    if roots is None:
        if path != ".":
            raise ToolError("No folders are allowed here; leave out 'folder'.")
        yield None
        return
    with roots.place(path) as place:
        folder = place.open_folder()
    try:
        yield folder
    finally:
        os.close(folder)


async def _run(
    command: Sequence[str], folder: int | None, environment: Mapping[str, str], timeout: float
) -> ToolResult:
    # Pipes of our own: asyncio's process waits for its pipes to close, and what the program left
    # running may hold them open.
    (stdout_end, stdout_pipe), (stderr_end, stderr_pipe) = os.pipe(), os.pipe()
    try:
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=stdout_pipe,
            stderr=stderr_pipe,
            # By its descriptor: the folder that was checked, whatever its path leads to by now.
            cwd=None if folder is None else f"/proc/self/fd/{folder}",
            env=environment,
            start_new_session=True,
        )
    except (OSError, ValueError) as error:
        os.close(stdout_end)
        os.close(stderr_end)
        raise ToolError(f"{command[0]} can't be started: {error}.") from None
    finally:
        os.close(stdout_pipe)
        os.close(stderr_pipe)
    outputs = [asyncio.create_task(_kept(each)) for each in (stdout_end, stderr_end)]
    try:
        async with asyncio.timeout(timeout):
            status = await process.wait()
            _end_group(process.pid)
            await asyncio.wait(outputs, timeout=_LAST_WORDS)
    except TimeoutError:
        raise ToolError(
            f"{command[0]} was ended: it took longer than {timeout:g} s; pass a longer timeout."
        ) from None
    finally:
        _end_group(process.pid)
        for task in outputs:
            task.cancel()
        await asyncio.gather(process.wait(), *outputs, return_exceptions=True)
    (stdout, cut), (stderr, cut_too) = (task.result() for task in outputs)
    told = {
        "exit_status": status,
        "stdout": stdout,
        "stderr": stderr,
        "truncated": cut or cut_too,
    }
    text = stdout + (f"\n[stderr]\n{stderr}" if stderr else "")
    text += "\n[truncated]" if cut or cut_too else ""
    text += f"\n[exit status {status}]" if status else ""
    return ToolResult(text.strip("\n"), told, is_error=status != 0)


async def _kept(end: int) -> tuple[str, bool]:
    """Read a pipe to its end; return what is kept of it, and whether that is not all."""
    reader = asyncio.StreamReader()
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(end, "rb", buffering=0)
    )
    kept, cut = bytearray(), False
    try:
        while chunk := await reader.read(65_536):
            room = MAX_OUTPUT - len(kept)
            kept += chunk[:room]
            cut = cut or len(chunk) > room
    except asyncio.CancelledError:
        cut = True  # held open by what left the process group
    finally:
        transport.close()
    return kept.decode(errors="replace"), cut


def _end_group(group: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL)
