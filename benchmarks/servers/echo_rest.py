"""A REST API written with asyncio: `POST /echo` returns the JSON object of the request.

Run as `python echo_rest.py`; prints its URL once it listens.
"""

import asyncio

from echo_http import HEAD, listen

asyncio.run(listen(lambda _head, body: HEAD % (len(body), body), ""))
