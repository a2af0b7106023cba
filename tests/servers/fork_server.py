"""Runs Python programs as forks of a process that has imported the official MCP package.

The import takes half a second to a second of processor time, and the tests start hundreds of
servers. `python fork_server.py SOCKET MODULE...` listens on a Unix socket, prints a line, and
imports the modules. Once its input ends, it removes the socket and its folder. `fork_client.py` is
the program that a client of MCP starts.
"""

import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import sys
import threading
import traceback
from pathlib import Path


def main(path, modules):
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen(64)
    print("listening", flush=True)
    for name in modules:
        importlib.import_module(name)
    gc.freeze()  # a collection in a forked process would copy all pages
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the system forgets children at once
    while sys.stdin not in select.select([listener, sys.stdin], [], [])[0]:
        connection, _ = listener.accept()
        if os.fork() == 0:
            listener.close()
            sys.exit(run(connection))
        connection.close()
    Path(path).unlink()
    Path(path).parent.rmdir()


def run(connection):
    """Run the program that a client asks for, with its streams, environment and folder."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.setsid()
    _, streams, _, _ = socket.recv_fds(connection, 1, 3)
    request = json.loads(connection.makefile().readline())
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    sys.stdin = open(0, closefd=False)  # noqa: SIM115 - like that of an executed process
    sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, closefd=False)  # noqa: SIM115
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["folder"])
    threading.Thread(target=end_with, args=(connection,), daemon=True).start()
    status = 0
    try:
        start(request["command"])
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
        status = 1
    connection.sendall(bytes([status]))
    return status


def start(command):
    """Run `SCRIPT ARGUMENTS...` or `-m MODULE ARGUMENTS...` as Python does."""
    if command[0] == "-m":
        sys.path[:0] = os.environ.get("PYTHONPATH", "").split(os.pathsep)
        sys.argv = command[1:]
        runpy.run_module(command[1], run_name="__main__", alter_sys=True)
    else:
        sys.path.insert(0, str(Path(command[0]).parent))
        sys.argv = command
        runpy.run_path(command[0], run_name="__main__")


def end_with(connection):
    """End at once when the client has ended, which may have been killed."""
    connection.recv(1)
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
