"""A control plane and workers whose responses a test controls, over real gRPC."""

from __future__ import annotations

from tests.sdk.fake_plane import FakeControlPlane, FakeTool
from tests.sdk.fake_worker import Answer, FakeWorker, Gate, echo, never
from tests.sdk.helpers import BOUND, in_thread, text_result, until

__all__ = [
    "BOUND",
    "Answer",
    "FakeControlPlane",
    "FakeTool",
    "FakeWorker",
    "Gate",
    "echo",
    "in_thread",
    "never",
    "text_result",
    "until",
]
