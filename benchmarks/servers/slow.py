"""A slow echo server: a call takes 10 to 30 ms, with a limited number of calls at once.

Run as `python slow.py NUMBER`.
"""

import queue
import random
import sys
import threading
import time

import orjson
from echo import answer


def main():
    """Respond to requests until standard input ends, with NUMBER threads for calls."""
    out, writing, calls = sys.stdout.buffer, threading.Lock(), queue.SimpleQueue()

    def reply(message):
        result = answer(message["method"], message.get("params"))
        with writing:
            out.write(orjson.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}))
            out.write(b"\n")
            out.flush()

    def work():
        durations = random.Random(threading.get_ident())
        while True:
            message = calls.get()
            time.sleep(durations.uniform(0.010, 0.030))
            reply(message)

    for _ in range(int(sys.argv[1])):
        threading.Thread(target=work, daemon=True).start()
    for line in sys.stdin.buffer:
        message = orjson.loads(line)
        if message.get("method") == "tools/call":
            calls.put(message)
        elif "id" in message:
            reply(message)


if __name__ == "__main__":
    main()
