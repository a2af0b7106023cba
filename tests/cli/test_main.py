"""The entry point, before the command itself is loaded."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from tests.conftest import BOUND

ASKED = """
import os, signal, sys
from leaseway.cli.main import main

class Asking:
    def find_spec(self, name, path=None, target=None):
        if name == 'leaseway.cli.app':
            os.kill(os.getpid(), signal.SIGUSR1)
            print('asked', flush=True)

sys.meta_path.insert(0, Asking())
sys.argv = ['leaseway', '--version']
main()
"""


@pytest.mark.skipif(sys.platform == "win32", reason="there is no SIGUSR1")
def test_sigusr1_during_the_imports_does_not_end_the_process() -> None:
    done = subprocess.run(
        [sys.executable, "-c", ASKED], capture_output=True, text=True, timeout=BOUND, check=False
    )
    assert done.stdout.startswith("asked\nleaseway "), done.stderr
    assert done.returncode == 0


LEFT = """
import atexit, sys, types

class Late:
    def __del__(self):
        print('taken apart', flush=True)

if 'stored' in sys.argv:
    sys.modules['obstore'] = types.ModuleType('obstore')
keep = types.ModuleType('keep')
keep.late = Late()
sys.modules['keep'] = keep
atexit.register(print, 'left')
sys.argv = ['leaseway', '--version']
from leaseway.cli.main import main
main()
"""


@pytest.mark.parametrize(("word", "ends"), [("", ["left", "taken apart"]), ("stored", ["left"])])
def test_a_process_with_an_object_store_does_not_take_its_interpreter_apart(
    word: str, ends: list[str]
) -> None:
    command = [sys.executable, "-c", LEFT, word]
    done = subprocess.run(command, capture_output=True, text=True, timeout=BOUND, check=True)
    assert done.stdout.splitlines()[1:] == ends, done.stderr


HANGING = """
import asyncio, sys, threading
from leaseway.cli.app import cli
from leaseway.cli.commands.running import processes
from leaseway.cli.main import main
from leaseway.cli.options.common import LogOptions

processes._FILE_GRACE = 0.1

async def run():
    hanging = asyncio.get_running_loop().run_in_executor(None, threading.Event().wait)
    print(await asyncio.to_thread(str, "ended"), hanging.done(), flush=True)
    return 3

def serve(prog_name):
    sys.exit(processes.run_process("worker", "w", LogOptions(), run, False))

cli.main = serve
main()
"""


def test_a_process_ends_with_its_status_although_a_disk_hangs() -> None:
    done = subprocess.run(
        [sys.executable, "-c", HANGING], capture_output=True, text=True, timeout=BOUND, check=False
    )
    assert (done.stdout, done.returncode) == ("ended False\n", 3), done.stderr


@pytest.mark.parametrize("chosen", [None, "event_engine_client"])
def test_grpc_runs_without_its_event_engine_unless_the_environment_chooses(
    chosen: str | None,
) -> None:
    environment = {k: v for k, v in os.environ.items() if k != "GRPC_EXPERIMENTS"}
    if chosen is not None:
        environment["GRPC_EXPERIMENTS"] = chosen
    code = "import leaseway.cli.app, os; print(os.environ['GRPC_EXPERIMENTS'])"
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=BOUND,
        check=True,
        env=environment,
    )
    assert done.stdout.strip() == (chosen or "-event_engine_client,-event_engine_listener")


@pytest.mark.skipif(sys.platform == "win32", reason="there are no such users")
def test_a_user_without_an_entry_and_without_home_has_the_root_folder() -> None:
    code = (
        "import os, pwd, sys\n"
        "def unknown(_user): raise KeyError\n"
        "pwd.getpwuid = unknown\n"
        "sys.argv = ['leaseway', 'vault', 'list']\n"
        "from leaseway.cli.main import main\n"
        "main()"
    )
    environment = {key: value for key, value in os.environ.items() if key != "HOME"}
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=BOUND,
        check=False,
        env=environment,
    )
    assert "/.leaseway/vault.encrypted" in done.stderr
    assert "home directory" not in done.stderr
