"""Opening instances of kinds."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from tests.data_plane.http_tools.callers import RecordingListener

from leaseway.data_plane.core.ports import ANY_INSTANCE
from leaseway.data_plane.kinds.openers import Opener
from leaseway.data_plane.mcp.eras import KnownEras
from leaseway.spec.kinds.python import PythonPart
from leaseway.spec.kinds.table import server_spec
from leaseway.spec.model import VariantKey
from leaseway.wire.errors import Fault


async def test_a_kind_that_raises_opens_an_instance_whose_start_fails() -> None:
    """Then it is reported, and tried again with backoff, as any other start."""

    def open_instance(*_: object) -> Any:
        raise KeyError("region")

    host: Any = SimpleNamespace(eras=KnownEras())
    opener = Opener("w", host, {PythonPart: open_instance})
    spec = server_spec(VariantKey("shop"), "python", module="shop", class_name="Shop")
    instance = opener(spec, RecordingListener(), ANY_INSTANCE)
    with pytest.raises(Fault, match="its kind python raised KeyError") as error:
        await instance.start()
    assert error.value.metadata == {"server": "shop", "problem": "START_FAILED"}
    await instance.close()
