"""A stdio server that inspects its environment and tries forbidden operations.

Standard library only. Each tool returns JSON as text, or the name of its error. With
`--child HOW FILE` it first starts a child (see `Tools.spawn`) that outlives it, and writes the
id of the child to FILE.
"""

import ctypes
import errno
import json
import os
import platform
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

SLEEP = "import time; time.sleep(600)"
kept = []


class Tools:
    """One method per tool."""

    def descriptors(self):
        listed = [int(name) for name in os.listdir("/proc/self/fd")]  # noqa: PTH208
        return sorted(
            number for number in listed if is_open(number)
        )  # without the descriptor of the listing

    def environment(self):
        return dict(os.environ)

    def limits(self):
        kinds = {"open_files": resource.RLIMIT_NOFILE, "data": resource.RLIMIT_DATA}
        return {name: resource.getrlimit(kind) for name, kind in kinds.items()}

    def status(self):
        lines = Path("/proc/self/status").read_text().splitlines()
        return {name: text.strip() for name, _, text in (line.partition(":") for line in lines)}

    def cgroups(self):
        return Path("/proc/self/cgroup").read_text()

    def processes(self):
        return [int(name) for name in os.listdir("/proc") if name.isdecimal()]  # noqa: PTH208

    def exists(self, path):
        return Path(path).exists()

    def read(self, path):
        return Path(path).read_text()

    def write(self, path):
        return Path(path).write_text("written")

    def opened_to_write(self, path):
        """Open an existing file for writing, and write nothing."""
        os.close(os.open(path, os.O_WRONLY))
        return "opened"

    def connect(self, port):
        socket.create_connection(("127.0.0.1", port), timeout=5).close()
        return "connected"

    def connect_to(self, path):
        with socket.socket(socket.AF_UNIX) as one:
            one.connect(path)
        return "connected"

    def names(self, path):
        return sorted(os.listdir(path))  # noqa: PTH208

    def kernel(self, x86_64, aarch64, arguments=()):
        """Make a system call by its number; return its result, or the name of its error."""
        number = x86_64 if platform.machine() == "x86_64" else aarch64
        library = ctypes.CDLL(None, use_errno=True)
        given = [ctypes.c_long(argument) for argument in arguments]
        outcome = library.syscall(ctypes.c_long(number), *given)
        return outcome if outcome >= 0 else errno.errorcode[ctypes.get_errno()]

    def clone(self, flags):
        """Start a child with clone flags, which exits at once; return whether it started."""
        number = 56 if platform.machine() == "x86_64" else 220
        outcome = ctypes.CDLL(None, use_errno=True).syscall(number, flags | signal.SIGCHLD, 0, 0)
        if outcome == 0:
            os._exit(0)
        return "started" if outcome > 0 else errno.errorcode[ctypes.get_errno()]

    def family(self, number):
        try:
            socket.socket(number, socket.SOCK_DGRAM).close()
        except OSError as error:
            return errno.errorcode[error.errno]
        return "opened"

    def run(self, command):
        outcome = subprocess.run(command, capture_output=True, text=True, check=False)
        return {"status": outcome.returncode, "words": outcome.stdout + outcome.stderr}

    def threads(self, count):
        """Run this number of threads; threads and processes use clone3, with a fallback."""
        done = []
        started = [threading.Thread(target=done.append, args=(1,)) for _ in range(count)]
        for child in started:
            child.start()
        for child in started:
            child.join()
        return len(done)

    def open_files(self, count):
        kept.extend(Path("/dev/null").open() for _ in range(count))  # noqa: SIM115
        return count

    def allocate(self, mib):
        kept.append(b"x" * (mib << 20))
        return mib

    def burn(self, seconds):
        began, used = time.monotonic(), time.process_time()
        while time.monotonic() - began < seconds:
            pass
        return (time.process_time() - used) / (time.monotonic() - began)

    def spawn(self, how, count=1):
        """Start sleepers: `plain`, in a `session` of their own, or `orphan`s in one as well."""
        return [start(how) for _ in range(count)]

    def exit(self, status):
        sys.stderr.write("going now\n")
        sys.stderr.flush()
        os._exit(status)

    def abort(self):
        os.kill(os.getpid(), signal.SIGKILL)


def is_open(number):
    try:
        os.fstat(number)
    except OSError:
        return False
    return True


def start(how):
    if how != "orphan":
        command = [sys.executable, "-S", "-c", SLEEP]
        child = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, start_new_session=how == "session"
        )
        kept.append(child)
        return child.pid
    reader, writer = os.pipe()
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.write(writer, str(os.getpid()).encode())
            os.close(0)
            os.execv(sys.executable, [sys.executable, "-S", "-c", SLEEP])
        os._exit(0)
    os.close(writer)
    pid = int(os.read(reader, 20))
    os.close(reader)
    os.wait()
    return pid


def attempt(name, arguments):
    try:
        return getattr(Tools(), name)(**arguments)
    except (OSError, MemoryError) as error:
        return type(error).__name__


def result(method, params):
    if method == "initialize":
        info = {"name": "nosy", "version": "1"}
        version = params["protocolVersion"]
        return {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": info}
    if method == "tools/list":
        names = [name for name in vars(Tools) if not name.startswith("_")]
        return {"tools": [{"name": name, "inputSchema": {"type": "object"}} for name in names]}
    if method == "tools/call":
        found = attempt(params["name"], params.get("arguments") or {})
        return {"content": [{"type": "text", "text": json.dumps(found)}]}
    return {} if method == "ping" else None


def main():
    if sys.argv[1:2] == ["--child"]:
        Path(sys.argv[3]).write_text(str(start(sys.argv[2])))
    for line in sys.stdin:
        message = json.loads(line)
        if "id" not in message:
            continue
        found = result(message["method"], message.get("params") or {})
        body = {"result": found}
        if found is None:
            body = {"error": {"code": -32601, "message": "Method not found"}}
        sys.stdout.write(json.dumps({"jsonrpc": "2.0", "id": message["id"], **body}) + "\n")
        sys.stdout.flush()


main()
