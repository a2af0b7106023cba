"""Run a class as a process: `python -m leaseway.server MODULE CLASS`.

The configuration's `config` comes as JSON in the variable `LEASEWAY_SERVER_CONFIG`: an argument
would show a secret in process lists. It is taken out of the environment at once, so that what the
server starts does not get it.
"""

from __future__ import annotations

import argparse
import difflib
import importlib
import inspect
import json
import os
import sys
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import anyio

from leaseway.server.base import BaseMCPServer, Notifier
from leaseway.server.faults import describe
from leaseway.server.serving import serve
from leaseway.telemetry.tracing import configure_telemetry

CONFIG_VARIABLE: Final = "LEASEWAY_SERVER_CONFIG"


class StartFailed(Exception):
    """The class can't be run; the text says what to mend."""


def main() -> int:
    """Serve a class over stdio until standard input ends; its last line says why it did not."""
    parser = argparse.ArgumentParser(
        prog="python -m leaseway.server",
        description="Serve a class that is a leaseway.server.BaseMCPServer, over stdio. Its config"
        f" is JSON in {CONFIG_VARIABLE}.",
    )
    parser.add_argument("module", help="its module, as in an import statement")
    parser.add_argument("name", metavar="class", help="its name there")
    options = parser.parse_args()
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))  # PYTHONSAFEPATH takes it away
    return run(lambda notifier: _make(options.module, options.name, notifier), options.module)


def run(make: Callable[[Notifier], BaseMCPServer], module: str | None = None) -> int:
    """Serve what a function makes, and return the exit status.

    Args:
        make: Makes the server, inside the process's loop.
        module: Where its class is, for tracebacks and as the name in traces.
    """
    telemetry = configure_telemetry((module or "leaseway-server").rpartition(".")[2])
    try:
        anyio.run(serve, make, lambda: _home(module))
    except KeyboardInterrupt:
        return 130
    except BaseException as raised:
        error = _first(raised)
        if isinstance(error, SystemExit):
            return error.code if isinstance(error.code, int) else 1
        if isinstance(error, StartFailed):
            print(error, file=sys.stderr)  # noqa: T201
            return 1
        traceback.print_exception(error)
        print(describe(error, _home(module)), file=sys.stderr)  # noqa: T201
        return 1
    finally:
        telemetry.shutdown()
    return 0


def take_config() -> dict[str, Any]:
    """Return the configuration's `config`, and take it out of the environment.

    Raises:
        StartFailed: It is no JSON object.
    """
    text = os.environ.pop(CONFIG_VARIABLE, "")
    try:
        config = json.loads(text) if text else {}
    except ValueError:
        config = None
    if not isinstance(config, dict):
        raise StartFailed(f"{CONFIG_VARIABLE} must hold a JSON object.")
    return config


def _make(module: str, name: str, notifier: Notifier) -> BaseMCPServer:
    config = take_config()
    made = _class(module, name)
    unfinished = sorted(made.__abstractmethods__)
    if unfinished:
        raise StartFailed(f"The class {name} of {module} lacks {', '.join(unfinished)}; write it.")
    given: Mapping[str, Any] = {"transport": notifier, "config": config}
    takes = inspect.signature(made).parameters
    if not any(each.kind is inspect.Parameter.VAR_KEYWORD for each in takes.values()):
        given = {key: value for key, value in given.items() if key in takes}
    server = made(**given)
    if not hasattr(server, "_config"):
        raise StartFailed(f"{name}.__init__() does not call super().__init__(transport, config).")
    return server


def _class(module: str, name: str) -> type[BaseMCPServer]:
    try:
        loaded = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not (module == error.name or module.startswith(error.name + ".")):
            raise
        raise StartFailed(
            f"There is no module {module}: it is looked for in {Path.cwd()}, on PYTHONPATH (which"
            " 'env' may set) and among the installed packages."
        ) from None
    found = getattr(loaded, name, None)
    if inspect.isclass(found) and issubclass(found, BaseMCPServer):
        return found
    if found is not None:
        raise StartFailed(f"{name} of {module} is no subclass of leaseway.server.BaseMCPServer.")
    classes = [
        key
        for key, value in vars(loaded).items()
        if inspect.isclass(value)
        and issubclass(value, BaseMCPServer)
        and value.__module__ == module
    ]
    near = difflib.get_close_matches(name, classes, 1)
    hint = f"did you mean {near[0]}?" if near else f"it has {', '.join(classes) or 'none'}."
    raise StartFailed(f"The module {module} has no class {name}: {hint}")


def _home(module: str | None) -> str | None:
    loaded = sys.modules.get(module or "")
    file = getattr(loaded, "__file__", None)
    return str(Path(file).resolve().parent) if file else None


def _first(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
