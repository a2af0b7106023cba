"""Transports of a third-party package: in memory, by queues, and broken ones."""

import asyncio

from script_tools import make_server, serve
from tests.data_plane.doubles.transport import MemoryTransport

from leaseway.data_plane.mcp.protocol.transport import PullTransport

made = []


class Served:
    """The server end of a connection in memory, with the server of `script_tools`."""

    def __init__(self, end):
        self.end = end
        self.messages = asyncio.Queue()

    async def run(self):
        async def send(text):
            self.end.send(text.encode(), Note())

        await self.end.connect(self)
        await serve(make_server(), self.messages.get, send)

    def receive(self, messages):
        for message in messages:
            self.messages.put_nowait(message)

    def overlong(self, head, tail, size):
        raise AssertionError

    failed = ending = overlong

    def lost(self, fault):
        self.messages.put_nowait(None)


class Note:
    written = False


def in_memory(view, resolved):
    """A transport in the push style, with a server behind it."""
    made.append((view, resolved))
    near, far = MemoryTransport.pair()
    served = Served(far)
    served.task = asyncio.get_running_loop().create_task(served.run())
    made.append(served)
    return near


class Queues(PullTransport):
    """A transport in the pull style, with a server behind it; `url` names how it misbehaves."""

    transport_type = "queues"

    def __init__(self, how):
        self.how = how
        self.sent = asyncio.Queue()
        self.came = asyncio.Queue()
        self.disconnected = 0
        made.append(self)

    async def connect(self):
        if self.how == "queues://refuses":
            raise RuntimeError("the line is dead; the password is swordfish")
        if self.how == "queues://hangs":
            await asyncio.Event().wait()
        self.task = asyncio.get_running_loop().create_task(
            serve(make_server(), self.sent.get, self.came.put)
        )

    async def disconnect(self):
        self.disconnected += 1
        self.sent.put_nowait(None)
        if self.how == "queues://unclean":
            raise OSError("it would not close")

    async def send(self, message):
        if b"break" in message:
            raise OSError("the send broke")
        self.sent.put_nowait(message)

    async def receive(self):
        message = await self.came.get()
        if "hang up" in message:
            raise EOFError("it hung up")
        if "wrong type" in message:
            return message
        return message.encode()


def queues(view, resolved):
    """A transport in the pull style."""
    return Queues(resolved.url)


def explodes(view, resolved):
    """No transport at all."""
    raise ValueError(f"no {resolved.url} with {resolved.env}")


def nothing(view, resolved):
    """Something else."""
    return 7
