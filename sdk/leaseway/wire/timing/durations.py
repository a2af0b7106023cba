"""Times as protobuf has them: the border to seconds."""

from __future__ import annotations

from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp


def duration(value: float) -> Duration:
    message = Duration()
    message.FromNanoseconds(round(value * 1e9))
    return message


def timestamp(unix: float) -> Timestamp:
    """Return Unix time in seconds as a protobuf timestamp."""
    message = Timestamp()
    message.FromNanoseconds(int(unix * 1e9))
    return message


def seconds(value: Duration | Timestamp) -> float:
    """Return a protobuf duration in seconds, or a timestamp as Unix time."""
    return value.ToNanoseconds() / 1e9
