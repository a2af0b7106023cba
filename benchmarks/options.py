"""What the options of the benchmarks accept."""

from __future__ import annotations

import argparse
import math

__all__ = ["at_least_one", "positive"]


def at_least_one(text: str) -> int:
    """Return a whole number of 1 or more.

    Raises:
        argparse.ArgumentTypeError: It is none.
    """
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number of 1 or more")
    return int(text)


def positive(text: str) -> float:
    """Return a number above 0.

    Raises:
        argparse.ArgumentTypeError: It is none.
    """
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0.0 < number < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is no number above 0")
    return number
