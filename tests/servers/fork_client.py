"""`fork_client.py SOCKET COMMAND...` runs a Python program as a fork of `fork_server.py`.

Its standard streams, environment, folder and exit status are those of the program.
"""

import json
import os
import socket
import sys

with socket.socket(socket.AF_UNIX) as connection:
    connection.connect(sys.argv[1])
    socket.send_fds(connection, [b"."], [0, 1, 2])
    for number in (0, 1, 2):  # the program's end of each stream is the last
        os.close(number)
    folder = os.getcwd()  # noqa: PTH109 - pathlib takes as long to import as all the rest
    request = {"command": sys.argv[2:], "environment": dict(os.environ), "folder": folder}
    connection.sendall(json.dumps(request).encode() + b"\n")
    status = connection.recv(1)
    while connection.recv(1):
        pass
os._exit(status[0] if status else 1)
