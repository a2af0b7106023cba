"""How the process of a server imports the official package, which takes most of its start."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def uncollected() -> Iterator[None]:
    """Import without the garbage collector, which would also walk all modules again later."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
