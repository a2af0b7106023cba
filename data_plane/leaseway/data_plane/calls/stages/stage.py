"""What a stage is."""

from __future__ import annotations

from collections.abc import Callable

from leaseway.data_plane.calls.call import ActiveCall

Enter = Callable[[ActiveCall], bool]
"""Enters a call into a stage. True lets it pass. False makes it wait: the stage then keeps the call
and calls its `resume` or `fail_with`. A call enters again if the configuration changed while it
waited, so a stage lets pass what it has already done. An exception ends the call."""
