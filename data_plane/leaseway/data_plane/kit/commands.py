"""`execute_command`: runs commands of an allow-list, without a shell.

An entry of the list is a command line such as `git status`, which allows exactly these words. An
entry that ends with ` *`, such as `git log *`, allows any further arguments. Programs are looked up
once, at start.
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
from functools import partial
from typing import Any, Final

from leaseway.data_plane.kit.roots import AllowedFolders
from leaseway.data_plane.kit.schemas import PATH, arguments_schema, result_schema
from leaseway.server import Tool, ToolError, ToolResult
from leaseway.spec.kinds.kit import command_words

MAX_OUTPUT: Final = 256 << 10
"""Bytes of stdout and of stderr in a result; the rest is read and dropped."""

_DEFAULT_TIMEOUT: Final = 30
_MAX_TIMEOUT: Final = 300
_DRAIN_TIMEOUT: Final = 1.0
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
        "_LEASEWAY_MARK",  # a worker finds leftover processes by it
    }
)


@dataclass(frozen=True)
class AllowedCommand:
    """An entry of the allow-list.

    Attributes:
        words: The command and its first arguments.
        program: The path of the program.
        accepts_more: Whether further arguments may follow.
    """

    words: tuple[str, ...]
    program: str
    accepts_more: bool

    def __str__(self) -> str:
        return shlex.join(self.words) + (" *" if self.accepts_more else "")

    def allows(self, words: Sequence[str]) -> bool:
        head = tuple(words[: len(self.words)])
        return head == self.words and (self.accepts_more or len(words) == len(self.words))


def build_allow_list(
    entries: Iterable[str], path: str, roots: AllowedFolders | None, writes: bool
) -> list[AllowedCommand]:
    """Parse the allow-list and find its programs.

    Args:
        entries: The command lines.
        path: The PATH to find programs in; relative folders are ignored.
        roots: The allowed folders of the file tools, or None.
        writes: Whether a tool may write to those.

    Raises:
        ValueError: An entry is invalid, or its program is missing or could be overwritten.
    """
    folders = os.pathsep.join(item for item in path.split(os.pathsep) if item.startswith("/"))
    commands: list[AllowedCommand] = []
    for entry in entries:
        words, accepts_more = command_words(entry)
        program = shutil.which(words[0], path=folders)
        if program is None:
            raise ValueError(f"The program {words[0]!r} is not on this machine's PATH.")
        if writes and roots is not None and roots.contains(os.path.realpath(program)):
            raise ValueError(
                f"The program {program} is in an allowed folder, where a file tool could"
                " replace it; install it elsewhere."
            )
        commands.append(AllowedCommand(words, program, accepts_more))
    return commands


def execute_command(
    allowed: Sequence[AllowedCommand], roots: AllowedFolders | None, environment: Mapping[str, str]
) -> Tool:
    """Return the tool `execute_command`.

    Args:
        allowed: The allow-list.
        roots: The folders that commands may run in; None means only the kit's own folder.
        environment: The kit's environment; commands inherit only a few variables of it.
    """
    names = "; ".join(map(str, allowed))
    inherited = {name: text for name, text in environment.items() if name in _INHERITED}

    async def run(arguments: Mapping[str, Any]) -> ToolResult:
        words = [arguments["command"], *arguments.get("args", ())]
        match = next((entry for entry in allowed if entry.allows(words)), None)
        if match is None:
            raise ToolError(
                f"The command {shlex.join(words)[:300]!r} is not allowed; allowed are: {names}."
            )
        timeout = arguments.get("timeout", _DEFAULT_TIMEOUT)
        with _folder(roots, arguments.get("folder", ".")) as folder:
            return await _run((match.program, *words[1:]), folder, inherited, timeout)

    return Tool(
        name="execute_command",
        title="Execute a command",
        description=f"Executes a program, without a shell. Allowed: {names}. A * allows any further"
        " arguments.",
        input_schema=arguments_schema(
            {
                "command": {"type": "string", "minLength": 1, "maxLength": 4_096},
                "args": {
                    "type": "array",
                    "items": {"type": "string", "maxLength": 32_768},
                    "maxItems": 200,
                },
                "folder": {
                    **PATH,
                    "description": "The working folder. Default: the first allowed folder.",
                },
                "timeout": {
                    "type": "number",
                    "exclusiveMinimum": 0,
                    "maximum": _MAX_TIMEOUT,
                    "description": f"Seconds. Default: {_DEFAULT_TIMEOUT}.",
                },
            },
            "command",
        ),
        output_schema=result_schema(
            {
                "exit_status": {"type": "integer", "description": "Negative: killed by a signal"},
                "stdout": {"type": "string"},
                "stderr": {"type": "string"},
                "truncated": {"type": "boolean"},
            }
        ),
        annotations={"readOnlyHint": False, "destructiveHint": True, "openWorldHint": True},
        function=run,
    )


@contextlib.contextmanager
def _folder(roots: AllowedFolders | None, path: str) -> Any:
    if roots is None:
        if path != ".":
            raise ToolError("No folders are allowed here; omit 'folder'.")
        yield None
        return
    with roots.resolve(path) as resolved:
        folder = resolved.open_folder()
    try:
        yield folder
    finally:
        os.close(folder)


async def _run(
    command: Sequence[str], folder: int | None, environment: Mapping[str, str], timeout: float
) -> ToolResult:
    # Own pipes, because asyncio's process waits for its pipes to close, and child processes of the
    # program may keep them open.
    (stdout_end, stdout_pipe), (stderr_end, stderr_pipe) = os.pipe(), os.pipe()
    try:
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=stdout_pipe,
            stderr=stderr_pipe,
            # By descriptor, because the path may lead to another folder since it was checked.
            cwd=None if folder is None else f"/proc/self/fd/{folder}",
            env=environment,
            start_new_session=True,
        )
    except BaseException as error:
        os.close(stdout_end)
        os.close(stderr_end)
        if isinstance(error, OSError | ValueError):
            raise ToolError(f"{command[0]} can't be started: {error}.") from None
        raise  # a cancellation
    finally:
        os.close(stdout_pipe)
        os.close(stderr_pipe)
    outputs = [asyncio.create_task(_read_output(end)) for end in (stdout_end, stderr_end)]
    try:
        async with asyncio.timeout(timeout):
            status = await process.wait()
            _kill_group(process.pid)
            await asyncio.wait(outputs, timeout=_DRAIN_TIMEOUT)
    except TimeoutError:
        raise ToolError(
            f"{command[0]} was killed: it took longer than {timeout:g} s; pass a longer timeout."
        ) from None
    finally:
        _kill_group(process.pid)
        for task in outputs:
            task.cancel()
        await asyncio.gather(process.wait(), *outputs, return_exceptions=True)
    (stdout, stdout_cut), (stderr, stderr_cut) = (task.result() for task in outputs)
    truncated = stdout_cut or stderr_cut
    structured = {
        "exit_status": status,
        "stdout": stdout,
        "stderr": stderr,
        "truncated": truncated,
    }
    text = stdout + (f"\n[stderr]\n{stderr}" if stderr else "")
    text += "\n[truncated]" if truncated else ""
    text += f"\n[exit status {status}]" if status else ""
    return ToolResult(text.strip("\n"), structured, is_error=status != 0)


async def _read_output(end: int) -> tuple[str, bool]:
    """Read a pipe to its end; return its text, and whether that was truncated."""
    reader = asyncio.StreamReader()
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        partial(asyncio.StreamReaderProtocol, reader), os.fdopen(end, "rb", buffering=0)
    )
    output, truncated = bytearray(), False
    try:
        while chunk := await reader.read(65_536):
            room = MAX_OUTPUT - len(output)
            output += chunk[:room]
            truncated = truncated or len(chunk) > room
    except asyncio.CancelledError:
        truncated = True  # a process outside of the group keeps the pipe open
    finally:
        transport.close()
    return output.decode(errors="replace"), truncated


def _kill_group(group: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL)
