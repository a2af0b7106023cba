"""Run programs that fork as separate processes, and return what they print."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys

from tests.calls import ReceivedCall
from tests.sdk.fakes import BOUND, FakeWorker, text_result

from leaseway.v1 import execution_pb2

STRICT = ("-W", "error", "-W", "ignore::ResourceWarning")
UNBUFFERED = "-u"  # or a child prints the unwritten output of its parent again
PRELUDE = """
import asyncio, os, sys, threading
from leaseway.sdk import AsyncClient, Client

def in_child(*works):
    child = os.fork()
    if child:
        assert os.waitpid(child, 0)[1] == 0
        return
    try:
        for work in works:
            try:
                print("child", work(), flush=True)
            except RuntimeError as error:
                print("refused" if "forked" in str(error) else error, flush=True)
    except BaseException as error:
        print(repr(error), flush=True)
    os._exit(0)

def call(client, **arguments):
    return client.call_tool("time_now", arguments).text

address = sys.argv[1]
"""


async def lines_of(address: str, program: str, **environment: str) -> list[str]:
    """Run a program after the prelude and return its lines; it must exit without an error."""

    def run() -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, UNBUFFERED, *STRICT, "-c", PRELUDE + program, address],
            capture_output=True,
            text=True,
            timeout=4 * BOUND,
            check=False,
            env={**os.environ, "GRPC_VERBOSITY": "NONE", **environment},
        )

    done = await asyncio.to_thread(run)
    assert (done.returncode, done.stderr) == (0, ""), done
    return done.stdout.splitlines()


async def held(fake: FakeWorker, call: ReceivedCall, arguments: bytes) -> bytes:
    """Answer all calls except subscriptions, and calls with the argument `held`."""
    if call.method:
        for stream in fake._outboxes.values():
            stream.put("updates", execution_pb2.ResourceUpdate(call_id=call.id))
    if call.method or b"held" in arguments:
        await asyncio.Event().wait()
    return text_result(arguments.decode())
