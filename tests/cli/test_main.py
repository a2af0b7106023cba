"""The entry point, before the command itself is loaded."""

from __future__ import annotations

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
