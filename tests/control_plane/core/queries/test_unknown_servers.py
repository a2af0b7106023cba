"""Lists of unknown servers, and of servers without anything to list."""

from __future__ import annotations

from tests.control_plane.core.builders import START, at, coordinator, load, spec
from tests.control_plane.core.fake_worker import started
from tests.control_plane.core.queries.test_place import never_up

from leaseway.control_plane.core.denial import Denial
from leaseway.control_plane.core.queries.resolve import unknown_server
from leaseway.wire.errors import Reason


def test_a_server_that_does_not_exist_is_refused_with_the_nearest() -> None:
    state, _ = started(spec("everything"), spec("time"))
    denied = unknown_server(state, "default", ["time", "everythin", "zzz"], START)
    assert isinstance(denied, Denial)
    assert denied.reason is Reason.TOOL_NOT_FOUND
    assert denied.message == "There is no server 'everythin'. Did you mean 'everything'?"
    assert denied.metadata == {"nearest": "everything"}


def test_servers_that_exist_and_leaseways_own_are_listed() -> None:
    state, _ = started(spec("a"))
    assert unknown_server(state, "default", [], START) is None
    assert unknown_server(state, "default", ["a", "mcp_admin"], START) is None


def test_a_server_that_has_not_started_is_known() -> None:
    state = coordinator()
    load(state, spec("a"))
    assert unknown_server(state, "default", ["a"], START) is None
    down, _ = never_up()
    assert unknown_server(down, "default", ["a"], at(1)) is None
    assert unknown_server(down, "default", ["aa"], at(1)) is not None


def test_before_the_first_configuration_no_server_is_unknown() -> None:
    assert unknown_server(coordinator(), "default", ["a"], START) is None
