"""The server of `offering_tools` over streamable HTTP; prints its port, then serves.

With `json` as an argument it answers as JSON instead of event streams.
"""

import contextlib
import socket
import sys

import uvicorn
from offering_tools import server
from starlette.applications import Starlette
from starlette.routing import Mount

inner = server.streamable_http_app(json_response="json" in sys.argv)


@contextlib.asynccontextmanager
async def lifespan(app):
    async with server.session_manager.run():
        yield


app = Starlette(routes=[Mount("/", inner)], lifespan=lifespan)
listener = socket.socket()
listener.bind(("127.0.0.1", 0))
listener.listen(128)
print(listener.getsockname()[1], flush=True)
config = uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=1)
uvicorn.Server(config).run(sockets=[listener])
