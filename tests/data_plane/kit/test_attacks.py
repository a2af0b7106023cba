"""The attack table: each row is a call to one running kit that tries to exceed its limits.

The kit is a process, called with the official client. Next to its folders are files that it must
not reach, and a web server that it must not call. A row passes if the call fails with a sentence,
and if nothing outside was read, changed, created, executed or called.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import threading
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from aiohttp import web
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp_types import TextContent
from tests.conftest import BOUND

CANARY = "canary-3f9a"
TOOLS = [
    "read_file",
    "write_file",
    "edit_file",
    "list_files",
    "search_files",
    "delete_file",
    "get_file_info",
    "execute_command",
    "get_env",
    "http_get",
]

OUT = "outside the allowed folders"
ROOT_LINK = "root"  # the root of the file system in a process's folder in /proc
NO_FILE = "no regular file"
NO_COMMAND = "is not allowed; allowed are:"
NO_HOST = "is not allowed; allowed are:"
NO_ADDRESS = "has an address that is not allowed"
NO_URL = "is not allowed; a URL starts with"
HIDDEN = "hidden because it looks like a credential"

PATHS = (
    # dots
    ("../secret.txt", OUT),
    ("sub/../../secret.txt", OUT),
    ("./sub/./.././../secret.txt", OUT),
    ("..", OUT),
    ("../", OUT),
    ("sub/../..", OUT),
    ("../allowed/../secret.txt", OUT),
    ("../allowed-too/x", OUT),
    ("....//secret.txt", "does not exist"),
    ("..%2fsecret.txt", "does not exist"),
    ("..\\secret.txt", "does not exist"),
    ("missing/../../secret.txt", "does not exist"),
    ("a.txt/../../secret.txt", "does not exist"),
    # absolute
    ("{base}/secret.txt", OUT),
    ("/etc/passwd", OUT),
    ("//etc/passwd", OUT),
    ("/", OUT),
    ("{base}/allowed/../secret.txt", OUT),
    ("{base}/allowed-too/x", OUT),
    ("{base}/./allowed/../secret.txt", OUT),
    ("/proc/self/environ", OUT),
    (f"/proc/self/{ROOT_LINK}/etc/passwd", OUT),
    ("/dev/fd/0", OUT),
    ("~/secret.txt", "does not exist"),
    ("file://{base}/secret.txt", "does not exist"),
    # links
    ("link_to_secret", OUT),
    ("link_to_secret_absolute", OUT),
    ("link_to_parent/secret.txt", OUT),
    ("link_chain", OUT),
    ("link_to_root/etc/passwd", OUT),
    (f"link_to_proc/{ROOT_LINK}/etc/passwd", OUT),
    ("link_dots/secret.txt", OUT),
    ("link_loop", "links"),
    ("link_dangling_out", OUT),
    ("sub/link_up_two", OUT),
    # invalid names
    ("a.txt\0.png", "is no valid path"),
    ("x/" * 2_000 + "x", "does not exist"),
    ("n" * 300, "does not exist"),
)
DEEP = ("/".join(["d"] * 200), "folders deep")

READS: list[tuple[str, dict[str, Any], str]] = [
    *(("read_file", {"path": path}, message) for path, message in PATHS),
    ("read_file", {"path": DEEP[0]}, DEEP[1]),
    ("read_file", {"path": "pipe"}, NO_FILE),
    ("read_file", {"path": "socket"}, "can't be opened"),
    ("read_file", {"path": "."}, NO_FILE),
    ("read_file", {"path": "x" * 5_000}, "The argument path is wrong"),
    ("get_file_info", {"path": "../secret.txt"}, OUT),
    ("get_file_info", {"path": "link_to_secret"}, OUT),
    ("list_files", {"path": ".."}, OUT),
    ("list_files", {"path": "link_to_parent"}, OUT),
    ("list_files", {"path": "link_to_parent", "pattern": "*"}, OUT),
    ("list_files", {"path": "/"}, OUT),
    ("list_files", {"path": "{base}"}, OUT),
    ("search_files", {"path": "..", "text": CANARY}, OUT),
    ("search_files", {"path": "link_to_parent", "text": CANARY}, OUT),
]
CHANGES: list[tuple[str, dict[str, Any], str]] = [
    ("write_file", {"path": "../made", "content": "x"}, OUT),
    ("write_file", {"path": "../secret.txt", "content": "x"}, OUT),
    ("write_file", {"path": "{base}/made", "content": "x"}, OUT),
    ("write_file", {"path": "link_to_secret", "content": "x"}, OUT),
    ("write_file", {"path": "link_dangling_out", "content": "x"}, OUT),
    ("write_file", {"path": "link_to_parent/made", "content": "x"}, OUT),
    ("write_file", {"path": "../new/made", "content": "x", "create_folders": True}, OUT),
    (
        "write_file",
        {"path": "link_to_parent/new/made", "content": "x", "create_folders": True},
        OUT,
    ),
    ("write_file", {"path": "sub", "content": "x"}, NO_FILE),
    ("write_file", {"path": "pipe", "content": "x"}, NO_FILE),
    ("write_file", {"path": "big", "content": "ä" * 600_000}, "larger than 1 MiB"),
    ("edit_file", {"path": "../secret.txt", "edits": [{"old": "canary", "new": "x"}]}, OUT),
    ("edit_file", {"path": "link_to_secret", "edits": [{"old": "canary", "new": "x"}]}, OUT),
    ("edit_file", {"path": "a.txt", "edits": []}, "The argument edits is wrong"),
    ("delete_file", {"path": "../secret.txt"}, OUT),
    ("delete_file", {"path": "{base}/secret.txt"}, OUT),
    ("delete_file", {"path": "link_to_parent/secret.txt"}, OUT),
    ("delete_file", {"path": "."}, NO_FILE),
    ("delete_file", {"path": "sub"}, NO_FILE),
]
COMMANDS: list[tuple[str, dict[str, Any], str]] = [
    ("execute_command", {"command": command, "args": args}, message)
    for command, args, message in (
        ("touch", ["{base}/made"], NO_COMMAND),
        ("sh", ["-c", "touch {base}/made"], NO_COMMAND),
        ("/bin/sh", ["-c", "touch {base}/made"], NO_COMMAND),
        ("echo fixed; touch {base}/made", [], NO_COMMAND),
        ("echo", ["fixed", "more"], NO_COMMAND),
        ("echo", [], NO_COMMAND),
        ("echo", ["fixed; touch {base}/made"], NO_COMMAND),
        ("/bin/echo", ["fixed"], NO_COMMAND),
        ("./echo", ["fixed"], NO_COMMAND),
        ("../../bin/echo", ["fixed"], NO_COMMAND),
        ("ECHO", ["fixed"], NO_COMMAND),
        ("echo ", ["fixed"], NO_COMMAND),
        ("echo\n", ["fixed"], NO_COMMAND),
        ("PATH=. echo", ["fixed"], NO_COMMAND),
        ("env", ["echo", "fixed"], NO_COMMAND),
        ("evil", [], NO_COMMAND),
        ("*", [], NO_COMMAND),
        ("", [], "The argument command is wrong"),
        ("printf", [], NO_COMMAND),
        ("printf", ["%s", "\0"], "can't be started"),
    )
]
COMMANDS += [
    ("execute_command", {"command": "echo", "args": ["fixed"], "folder": ".."}, OUT),
    ("execute_command", {"command": "echo", "args": ["fixed"], "folder": "link_to_parent"}, OUT),
    ("execute_command", {"command": "echo", "args": ["fixed"], "folder": "a.txt"}, "no folder"),
    ("execute_command", {"command": "echo", "args": ["fixed"], "timeout": 1e9}, "timeout is wrong"),
    ("execute_command", {"command": "sleep", "args": ["3600"], "timeout": 0.2}, "was killed"),
]
VARIABLES: list[tuple[str, dict[str, Any], str]] = [
    ("get_env", {"name": name}, HIDDEN)
    for name in (
        "GITHUB_TOKEN",
        "DB_PASSWORD",
        "AWS_SECRET_ACCESS_KEY",
        "api_key",
        "DATABASE_URL",
        "MY_SETTING",
        "LEASEWAY_KEY",
        "LEASEWAY_SERVER_CONFIG",
        "_LEASEWAY_MARK",
        "ABSENT",
        "PATH\0",
    )
]
URLS = (
    # private addresses in all notations: the canary's server listens on 127.0.0.2
    ("http://127.0.0.2:{port}/", NO_HOST),
    ("http://2130706434:{port}/", NO_ADDRESS),
    ("http://0x7f000002:{port}/", NO_ADDRESS),
    ("http://0x7f.0.0.2:{port}/", NO_ADDRESS),
    ("http://0177.0.0.2:{port}/", NO_ADDRESS),
    ("http://127.2:{port}/", NO_ADDRESS),
    ("http://127.0.2:{port}/", NO_ADDRESS),
    ("http://[::ffff:127.0.0.2]:{port}/", NO_HOST),
    ("http://[::ffff:7f00:2]:{port}/", NO_HOST),
    ("http://[0:0:0:0:0:ffff:7f00:2]:{port}/", NO_HOST),
    ("http://[::127.0.0.2]:{port}/", NO_HOST),
    ("http://[64:ff9b::127.0.0.2]:{port}/", NO_HOST),
    ("http://[2002:7f00:2::]:{port}/", NO_HOST),
    ("http://[::1]:{port}/", NO_HOST),
    ("http://[::]:{port}/", NO_HOST),
    ("http://0.0.0.0:{port}/", NO_HOST),
    ("http://0:{port}/", NO_ADDRESS),
    ("http://①②⑦.⓪.⓪.②:{port}/", NO_HOST),
    ("http://127。0。0。2:{port}/", NO_HOST),
    ("http://127.0.0.2.:{port}/", "127.0.0.2."),
    ("http://localhost.:{port}/x", "localhost"),
    # link-local, metadata, private networks
    ("http://169.254.169.254/latest/meta-data/", NO_HOST),
    ("http://[fd00:ec2::254]/latest/meta-data/", NO_HOST),
    ("http://[fe80::1]/", NO_HOST),
    ("http://[fe80::1%25eth0]/", ""),
    ("http://100.100.100.200/", NO_HOST),
    ("http://168.63.129.16/", NO_HOST),
    ("http://10.0.0.1/", NO_HOST),
    ("http://192.168.0.1/", NO_HOST),
    ("http://172.16.0.1/", NO_HOST),
    ("http://[fc00::1]/", NO_HOST),
    ("http://224.0.0.1/", NO_HOST),
    ("http://255.255.255.255/", NO_HOST),
    # other schemes, users, and URLs that parsers read differently
    ("file:///etc/passwd", NO_URL),
    ("ftp://127.0.0.1/", NO_URL),
    ("gopher://127.0.0.1:{port}/_x", NO_URL),
    ("data:text/plain,x", NO_URL),
    ("//127.0.0.2:{port}/", NO_URL),
    ("http://user:pw@127.0.0.2:{port}/", "user or a password"),
    ("http://127.0.0.1:{open}@127.0.0.2:{port}/", "user or a password"),
    ("http://127.0.0.1:{open}\\@127.0.0.2:{port}/", "backslash"),
    ("http://127.0.0.1:{open} @127.0.0.2:{port}/", "space"),
    ("http://127.0.0.1:{open}/\r\nHost: x", "control character"),
    ("http://127.0.0.2:{port}#@127.0.0.1/", NO_HOST),
    ("http://127.0.0.2:{port}?@127.0.0.1/", NO_HOST),
    ("http://", "has no host"),
    ("http://[::1", "no valid URL"),
    ("http://127.0.0.1:99999/", "no valid URL"),
)
REDIRECTS = (
    ("http://127.0.0.2:{port}/", NO_HOST),
    ("//127.0.0.2:{port}/", NO_HOST),
    ("http://2130706434:{port}/", NO_ADDRESS),
    ("http://[::ffff:127.0.0.2]:{port}/", NO_HOST),
    ("http://169.254.169.254/latest/meta-data/", NO_HOST),
    ("file:///etc/passwd", NO_URL),
    ("http://user@127.0.0.2:{port}/", "user or a password"),
)
WEB: list[tuple[str, dict[str, Any], str]] = [
    *(("http_get", {"url": url}, message) for url, message in URLS),
    *(
        ("http_get", {"url": "http://127.0.0.1:{open}/to", "redirect": target}, message)
        for target, message in REDIRECTS
    ),
]
TABLE = READS + CHANGES + COMMANDS + VARIABLES + WEB


@dataclass
class Target:
    """A running kit, and the forbidden files and server next to it."""

    base: Path
    kit: Client
    open_port: int
    canary_port: int
    requested: list[str] = field(default_factory=list)

    def fill(self, value: Any) -> Any:
        """Return arguments with this machine's paths and ports."""
        if isinstance(value, str):
            for name, text in (
                ("{base}", str(self.base)),
                ("{port}", str(self.canary_port)),
                ("{open}", str(self.open_port)),
            ):
                value = value.replace(name, text)
            return value
        if isinstance(value, dict):
            return {key: self.fill(item) for key, item in value.items()}
        return [self.fill(item) for item in value] if isinstance(value, list) else value

    async def attack(self, tool: str, arguments: dict[str, Any]) -> tuple[bool, str]:
        """Call a tool; return whether it failed, and its result as text."""
        arguments = self.fill(arguments)
        if "redirect" in arguments:
            arguments["url"] += f"?to={quote(arguments.pop('redirect'))}"
        async with asyncio.timeout(BOUND):
            result = await self.kit.call_tool(tool, arguments)
        text = "\n".join(block.text for block in result.content if isinstance(block, TextContent))
        return bool(result.is_error), text + str(result.structured_content or "")

    def outside(self) -> dict[str, str]:
        """Return the files next to the allowed folders, with their content."""
        return {
            path.relative_to(self.base).as_posix(): path.read_text() if path.is_file() else ""
            for top in self.base.iterdir()
            if top.name not in ("allowed", "second")
            for path in (top, *top.rglob("*"))
        }


def create_files(base: Path) -> None:
    allowed = base / "allowed"
    for folder in (allowed / "sub", base / "second", base / "allowed-too", base / "bin"):
        folder.mkdir(parents=True)
    deepest = allowed
    for _ in range(140):
        deepest = deepest / "d"
    deepest.mkdir(parents=True)
    (base / "secret.txt").write_text(CANARY)
    (base / "allowed-too" / "x").write_text(CANARY)
    (allowed / "a.txt").write_text("harmless")
    (allowed / "sub" / "b.txt").write_text("harmless")
    evil = allowed / "evil"
    evil.write_text(f"#!/bin/sh\ntouch {base}/made\n")
    evil.chmod(0o755)
    os.mkfifo(allowed / "pipe")
    os.mknod(allowed / "socket", 0o140644)
    for name, target in (
        ("link_to_secret", "../secret.txt"),
        ("link_to_secret_absolute", f"{base}/secret.txt"),
        ("link_to_parent", ".."),
        ("link_chain", "sub/hop"),
        ("sub/hop", "../link_to_secret"),
        ("link_to_root", "/"),
        ("link_to_proc", "/proc/self"),
        ("link_dots", "sub/../.."),
        ("link_loop", "link_loop"),
        ("link_dangling_out", "../made"),
        ("sub/link_up_two", "../../secret.txt"),
    ):
        (allowed / name).symlink_to(target)


@contextlib.asynccontextmanager
async def listen(address: str, handler: Any) -> AsyncIterator[int]:
    application = web.Application()
    application.router.add_route("*", "/{path:.*}", handler)
    runner = web.AppRunner(application)
    await runner.setup()
    await web.TCPSite(runner, address, 0).start()
    try:
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()


@contextlib.asynccontextmanager
async def attacked(base: Path) -> AsyncIterator[Target]:
    """Start a kit with all tools, and the targets of attacks."""
    create_files(base)
    requested: list[str] = []

    async def canary(request: web.Request) -> web.Response:
        requested.append(str(request.url))
        return web.Response(text=CANARY)

    async def redirect(request: web.Request) -> web.Response:
        return web.Response(status=302, headers={"Location": request.query.get("to", "/")})

    options = [
        *(word for tool in TOOLS for word in ("--tool", tool)),
        "--confined",  # all tools in one process, as in a strict sandbox
        *("--root", str(base / "allowed"), "--root", str(base / "second")),
        *("--command", "echo fixed", "--command", "printf %s *", "--command", "sleep *"),
        *("--host", "127.0.0.1"),
    ]
    parameters = StdioServerParameters(
        command=sys.executable,
        args=["-m", "leaseway.data_plane.kit", *options],
        cwd=base / "allowed",
        env={
            "PATH": f".:{base / 'allowed'}/sub:{os.environ['PATH']}",
            "GITHUB_TOKEN": CANARY,
            "DB_PASSWORD": CANARY,
            "AWS_SECRET_ACCESS_KEY": CANARY,
            "api_key": CANARY,
            "DATABASE_URL": f"postgres://me:{CANARY}@db/x",
            "MY_SETTING": f"Bearer {CANARY}{CANARY}",
            "LEASEWAY_KEY": CANARY,
            "LEASEWAY_SERVER_CONFIG": "{}",
            "_LEASEWAY_MARK": CANARY,
            "HARMLESS": "seen",
        },
    )
    async with (
        listen("127.0.0.2", canary) as canary_port,
        listen("127.0.0.1", redirect) as open_port,
        Client(stdio_client(parameters)) as kit,
    ):
        await kit.list_tools()
        yield Target(
            base=base, kit=kit, open_port=open_port, canary_port=canary_port, requested=requested
        )


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="127.0.0.2 is Linux's")
async def test_every_attack_fails(tmp_path: Path) -> None:
    assert len(TABLE) >= 60
    failed: list[str] = []
    async with attacked(tmp_path / "base") as target:
        before = target.outside()
        for number, (tool, arguments, message) in enumerate(TABLE):
            row = f"{number} {tool} {ascii(arguments)[:120]}"
            failed_call, text = await target.attack(tool, arguments)
            if not failed_call:
                failed.append(f"{row}: succeeded: {text[:200]!r}")
            elif message not in text:
                failed.append(f"{row}: returned {text[:300]!r}, not {message!r}")
            if CANARY in text or "Traceback" in text or "line " in text:
                failed.append(f"{row}: revealed too much: {text[:300]!r}")
            if target.requested:
                failed.append(f"{row}: requested {target.requested}")
                target.requested.clear()
            after = target.outside()
            if after != before:
                failed.append(f"{row}: changed files outside: {after}")
                before = after
    assert not failed, "\n" + "\n".join(failed)


async def test_allowed_calls_work(tmp_path: Path) -> None:
    async with attacked(tmp_path / "base") as target:
        for tool, arguments, message in (
            ("read_file", {"path": "sub/../a.txt"}, "harmless"),
            ("execute_command", {"command": "echo", "args": ["fixed"]}, "fixed"),
            ("execute_command", {"command": "printf", "args": ["%s", "$(id) `id`"]}, "$(id) `id`"),
            ("get_env", {"name": "HARMLESS"}, "seen"),
            ("search_files", {"text": CANARY}, "No matching line"),
        ):
            failed_call, text = await target.attack(tool, arguments)
            assert not failed_call, text
            assert message in text
        _, names = await target.attack("get_env", {})
        assert "HARMLESS" in names
        assert "TOKEN" not in names
        assert "DATABASE_URL" not in names


async def test_replacing_folders_by_links_meanwhile_reaches_nothing_outside(tmp_path: Path) -> None:
    """Keep replacing a folder by a link to a folder outside while the kit works."""
    async with attacked(tmp_path / "base") as target:
        allowed, outside = target.base / "allowed", target.base / "loot"
        outside.mkdir()
        (outside / "f").write_text(CANARY)
        (allowed / "real").mkdir()
        (allowed / "real" / "f").write_text("harmless")
        (allowed / "trap").symlink_to(outside)
        stop = threading.Event()

        def swap() -> None:
            while not stop.is_set():
                (allowed / "real").rename(allowed / "aside")
                (allowed / "trap").rename(allowed / "real")
                (allowed / "real").rename(allowed / "trap")
                (allowed / "aside").rename(allowed / "real")

        swapping = threading.Thread(target=swap)
        swapping.start()
        outcomes: set[str] = set()
        try:
            for number in range(150):
                _, text = await target.attack("read_file", {"path": "real/f"})
                outcomes.add(text if text == "harmless" or text.startswith("x") else text[-60:])
                await target.attack("write_file", {"path": f"real/x{number}", "content": "x"})
        finally:
            stop.set()
            swapping.join(BOUND)
        assert CANARY not in str(outcomes)
        assert "harmless" in outcomes  # and some calls succeeded
        assert sorted(path.name for path in outside.iterdir()) == ["f"]


def test_a_program_that_a_file_tool_could_replace_is_rejected(tmp_path: Path) -> None:
    from leaseway.data_plane.kit.server import KitOptions, build_tools

    program = tmp_path / "tool"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    options = KitOptions(
        ["execute_command", "write_file"], [str(tmp_path)], [str(program)], confined=True
    )
    with pytest.raises(ValueError, match="where a file tool could replace it"):
        build_tools(options)
