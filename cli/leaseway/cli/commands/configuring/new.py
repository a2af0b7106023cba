"""`leaseway new server`: write an MCP server as a Python class, with a test."""

from __future__ import annotations

import importlib.util
import keyword
from pathlib import Path
from typing import Final

import click

from leaseway.cli.errors import FAILED, USAGE, CliFailure
from leaseway.cli.options.common import examples
from leaseway.cli.output.tables import say
from leaseway.wire.names import is_valid_name

_SERVER: Final = '''"""The MCP server {name}. Describe its tools here."""

from __future__ import annotations

from leaseway.server import BaseMCPServer, ToolError, tool


class {class_name}(BaseMCPServer):
    """A server that greets. Replace its tool with your own.

    `self.config` is the `config` of the server's configuration entry.
    """

    server_name = "{name}"

    @tool(annotations={{"readOnlyHint": True}})
    async def {tool}(self, who: str, times: int = 1) -> dict[str, list[str]]:
        """Greet a person, up to ten times."""
        if not 1 <= times <= 10:
            raise ToolError("'times' must be from 1 to 10.")
        greeting = self.config.get("greeting", "Hello")
        return {{"greetings": [f"{{greeting}}, {{who}}!"] * times}}
'''

_TEST: Final = '''"""Tests of {name}, as a class and as the process that a worker runs."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path

import pytest
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client

from leaseway.server import ToolError
from {module} import {class_name}


def test_the_greeting_is_configurable() -> None:
    server = {class_name}(config={{"greeting": "Ahoy"}})
    assert asyncio.run(server.{tool}("Ada", 2)) == {{"greetings": ["Ahoy, Ada!"] * 2}}


def test_too_many_greetings_are_rejected() -> None:
    with pytest.raises(ToolError, match="from 1 to 10"):
        asyncio.run({class_name}().{tool}("Ada", 11))


def test_an_mcp_client_can_call_it() -> None:
    async def call() -> None:
        parameters = StdioServerParameters(
            command=sys.executable,
            args=["-m", "leaseway.server", "{module}", "{class_name}"],
            cwd=Path(__file__).parent,
            env={{**os.environ, "LEASEWAY_SERVER_CONFIG": json.dumps({{"greeting": "Ahoy"}})}},
        )
        async with Client(stdio_client(parameters)) as client:
            assert [tool.name for tool in (await client.list_tools()).tools] == ["{tool}"]
            result = await client.call_tool("{tool}", {{"who": "Ada"}})
            assert result.structured_content == {{"greetings": ["Ahoy, Ada!"]}}

    asyncio.run(asyncio.wait_for(call(), 60))
'''

_CONFIGURATION: Final = """\
  {name}:
    transport: python
    module: {module}
    class: {class_name}
    config: {{ greeting: Hello }}
    # truely-stateless: true      # if its calls can share one process
"""


@click.group()
def new() -> None:
    """Create files from a template."""


@new.command(epilog=examples("leaseway new server weather", "leaseway new server weather -C tools"))
@click.argument("name")
@click.option(
    "-C",
    "--folder",
    type=click.Path(file_okay=False, path_type=Path),
    default=".",
    help="The folder to write to, created if needed; default: the current one.",
)
@click.option("--force", is_flag=True, help="Replace files that exist.")
def server(name: str, folder: Path, force: bool) -> None:
    """Write the MCP server NAME as a Python class, with a test.

    It prints the entry to add to the configuration.
    """
    module = name.replace("-", "_").lower()
    if not is_valid_name(name) or not module.isidentifier() or keyword.iskeyword(module):
        raise CliFailure(
            f"'{name}' can't name a server and a Python module: use letters, digits, '_' and '-',"
            " no digit first, and no Python keyword.",
            USAGE,
        )
    if (
        not folder.joinpath(f"{module}.py").exists()
        and importlib.util.find_spec(module) is not None
    ):
        raise CliFailure(f"A Python module '{module}' already exists; choose another name.", USAGE)
    words = {
        "name": name,
        "module": module,
        "class_name": "".join(part.capitalize() for part in module.split("_")) or "Server",
        "tool": "greet",
    }
    files = {
        folder / f"{module}.py": _SERVER.format(**words),
        folder / f"test_{module}.py": _TEST.format(**words),
    }
    for path in files:
        if path.exists() and not force:
            raise CliFailure(f"{path} already exists; choose another name, or use --force.", FAILED)
    path = folder
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for path, text in files.items():
            path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise CliFailure(f"Can't write {error.filename or path}: {error.strerror}.") from None
    say(_CONFIGURATION.format(**words), nl=False)
    paths = " and ".join(str(path) for path in files)
    say(
        f"leaseway: Wrote {paths}. Add the entry above under 'servers:'. Workers import the module "
        "from their working folder or PYTHONPATH ('env').",
        err=True,
    )
