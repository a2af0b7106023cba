"""Which package and which protocol this is."""

from importlib.metadata import PackageNotFoundError, version

__all__ = ["PACKAGE_NAME", "PACKAGE_VERSION", "PROTOCOL_VERSION", "user_agent"]

PROTOCOL_VERSION = 1
"""The version of the `leaseway.v1` conversation; peers with another one are refused."""

PACKAGE_NAME = "leaseway-python"

try:
    PACKAGE_VERSION = version("leaseway")
except PackageNotFoundError:  # a source tree that was never installed
    PACKAGE_VERSION = "0+unknown"


def user_agent() -> str:
    """Return the package and version as peers see them, such as `leaseway-python/0.1.0`."""
    return f"{PACKAGE_NAME}/{PACKAGE_VERSION}"
