"""Lists that change while a client with `initialize` has no stream are told on its next one."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any, cast

from leaseway.front.protocol.handshake import Declared
from leaseway.front.sessions.live_session import LiveSession
from leaseway.front.sessions.sealing import SealedSession


def session() -> LiveSession:
    sealed = SealedSession("k", "t", "", "2025-11-25", {}, 0.0)
    return LiveSession(sealed, "s", cast("Any", None), lambda _server, _params: None)


def told(live: LiveSession) -> list[str]:
    """Open a stream for a moment, and return which lists it says have changed."""
    found: list[str] = []

    def put(message: bytes) -> bool:
        found.append(json.loads(message)["method"].split("/")[1])
        return True

    live.streams.append(put)
    live.push_missed()
    live.streams.remove(put)
    return found


def test_what_changes_while_the_client_reads_a_list_is_missed_again() -> None:
    live = session()
    live.push_changed_list("prompts")
    with live.reads("prompts"):
        live.push_changed_list("prompts")
    assert told(live) == ["prompts"]
    assert told(live) == []


def test_a_list_that_could_not_be_read_stays_missed() -> None:
    live = session()
    live.push_changed_list("tools")
    with suppress(ValueError), live.reads("tools"):
        raise ValueError
    assert told(live) == ["tools"]
    with suppress(ValueError), live.reads("tools"):
        raise ValueError
    assert told(live) == []


def test_changed_templates_are_missed_until_templates_are_read() -> None:
    live = session()
    live.push_changed_list("templates")
    with live.reads("resources"):
        pass
    assert told(live) == ["resources"]
    live.push_changed_list("templates")
    with live.reads("templates"):
        pass
    assert told(live) == []


def test_only_lists_that_were_declared_are_told() -> None:
    live = session()
    live.declared = Declared(frozenset({"resources"}))
    for kind in ("tools", "prompts", "templates"):
        live.push_changed_list(kind)
    assert sorted(told(live)) == ["resources", "tools"]


def test_a_session_of_another_front_counts_each_list_as_changed() -> None:
    live = session()
    live.miss_all_lists()
    assert sorted(told(live)) == ["prompts", "resources", "tools"]
