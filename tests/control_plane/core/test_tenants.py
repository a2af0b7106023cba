"""Tenant variants: hidden servers, refused overrides, pending servers."""

from __future__ import annotations

from dataclasses import replace

from tests.control_plane.core.builders import START, at, coordinator, hello, listing, offering, spec
from tests.control_plane.core.fake_worker import FakeWorker, answer, run
from tests.specs import part

from leaseway.control_plane.core.catalog.subjects import Reader
from leaseway.control_plane.core.coordinator import Coordinator
from leaseway.control_plane.core.denial import Denial, PendingServers
from leaseway.control_plane.core.queries.resolve import find_name, find_resource
from leaseway.spec.filters.names import NameFilter
from leaseway.spec.kinds.table import hidden_spec
from leaseway.spec.model import ServerSpec, VariantKey
from leaseway.spec.policy import Grant, ServerPolicy
from leaseway.wire.errors import Reason
from leaseway.wire.messages.mcp import Introduction

ACME = VariantKey("a", "acme")


def of_acme(**changes: object) -> ServerSpec:
    return replace(spec("a", command="acme"), key=ACME, **changes)  # type: ignore[arg-type]


def load(
    state: Coordinator, *specs: ServerSpec, refused: frozenset[VariantKey] = frozenset()
) -> None:
    servers = {spec.key: spec for spec in specs}
    state.apply_config(servers, frozenset(), (), START, refused=refused)


def running(
    *specs: ServerSpec, refused: frozenset[VariantKey] = frozenset()
) -> tuple[Coordinator, FakeWorker]:
    state, worker = coordinator(), FakeWorker()
    load(state, *specs, refused=refused)
    state.handle_worker_joined(hello(), START)
    run(state, [worker])
    while worker.probes:
        answer(state, worker, listing("echo"))
    return state, worker


def seen(state: Coordinator, tenant: str) -> list[str]:
    return list(state.visible.view(tenant).tools)


def test_a_hidden_server_is_invisible_to_its_tenant_and_not_probed() -> None:
    state, worker = running(spec("a"), spec("b"), hidden_spec(ACME))
    assert seen(state, "acme") == ["b_echo"]
    assert seen(state, "other") == ["a_echo", "b_echo"]
    assert list(state.servers.variants_of("acme")) == ["b"]
    for name in ("a_echo", "a:echo"):
        outcome = find_name(state, Reader("acme"), name, START)
        assert isinstance(outcome, Denial)
        assert outcome.reason == Reason.TOOL_NOT_FOUND
    assert worker.held[ACME].exposed == ()  # workers do not run its tools either


def test_an_unhidden_server_is_visible_without_a_probe() -> None:
    state, worker = running(spec("a"), hidden_spec(ACME))
    load(state, spec("a"))
    run(state, [worker])
    assert seen(state, "acme") == ["a_echo"]
    assert ACME not in worker.held
    assert worker.probes == []


def test_a_variant_that_becomes_hidden_needs_no_probe() -> None:
    state, worker = running(spec("a"), of_acme())
    load(state, spec("a"), hidden_spec(ACME))
    run(state, [worker])
    assert seen(state, "acme") == []
    assert worker.probes == []


def test_a_tenant_may_have_its_own_server() -> None:
    state, _ = running(of_acme())
    assert seen(state, "acme") == ["a_echo"]
    assert seen(state, "other") == []


def test_a_refused_variant_keeps_its_last_state() -> None:
    state, worker = running(spec("a"), of_acme())
    before = worker.held[ACME]
    load(state, spec("a"), refused=frozenset({ACME}))
    run(state, [worker])
    assert worker.held[ACME] == before
    assert part(state.visible.view("acme").servers["a"].spec).command == "acme"


def test_a_new_refused_variant_is_hidden() -> None:
    state, _ = running(spec("a"), refused=frozenset({ACME}))
    assert seen(state, "acme") == []
    assert seen(state, "other") == ["a_echo"]


def test_a_tenant_keeps_the_common_variant_while_its_first_override_has_an_error() -> None:
    state, worker = running(spec("a"))
    for _ in range(2):
        load(state, spec("a"), refused=frozenset({ACME}))
        run(state, [worker])
        state.tick(at(1))
        run(state, [worker], at(1))
        assert seen(state, "acme") == ["a_echo"]


def test_after_a_restart_a_refused_variant_is_what_workers_still_hold() -> None:
    _, worker = running(spec("a"), of_acme())
    state = coordinator()
    load(state, spec("a"), refused=frozenset({ACME}))
    held = {key: served.hashes for key, served in worker.held.items()}
    state.handle_worker_joined(hello(held=held, highest_version=worker.version), START)
    run(state, [worker])
    assert part(state.visible.view("acme").servers["a"].spec).command == "acme"


def test_after_a_restart_with_a_broken_file_a_hidden_server_stays_hidden() -> None:
    _, worker = running(spec("a"), hidden_spec(ACME))
    state = coordinator()
    state.record_config_problems((), START)
    held = {key: served.hashes for key, served in worker.held.items()}
    state.handle_worker_joined(hello(held=held, highest_version=worker.version), START)
    run(state, [worker])
    assert seen(state, "acme") == []
    assert seen(state, "other") == ["a_echo"]


def test_a_tenant_does_not_wait_for_the_servers_of_another() -> None:
    state, worker = coordinator(), FakeWorker()
    load(state, spec("b"), of_acme())
    state.handle_worker_joined(hello(), START)
    run(state, [worker])
    for number, probe in enumerate(worker.probes):
        if probe.spec.key.server_id == "b":
            del worker.probes[number]
            state.handle_probe_result(probe.id, listing("echo"), START)
            break
    state.tick(at(0.1))
    run(state, [worker])
    assert state.pending.servers == ["a"]
    assert (state.pending.of("acme"), state.pending.of("other")) == (["a"], [])
    assert isinstance(find_name(state, Reader("acme"), "a_echo", START), PendingServers)
    assert isinstance(find_name(state, Reader("other"), "a_echo", START), Denial)


def test_tools_without_a_grant_are_not_listed_found_or_suggested() -> None:
    grants = {"acme": Grant(NameFilter(whitelist=("echo",)), {"guest": None}), "rival": Grant()}
    policy = ServerPolicy(grants=grants)
    a = replace(spec("a"), policy=policy)
    b = replace(spec("b"), policy=ServerPolicy(grants={"rival": Grant()}))
    state, worker = coordinator(), FakeWorker()
    load(state, a, b)
    state.handle_worker_joined(hello(), START)
    run(state, [worker])
    acme, guest = Reader("acme"), Reader("acme", "guest")
    assert isinstance(find_name(state, acme, "a:echo", START), PendingServers)
    assert isinstance(find_name(state, guest, "a:echo", START), Denial)
    while worker.probes:
        answer(state, worker, listing("echo", "erase"))
    assert seen(state, "rival") == ["a_echo", "a_erase", "b_echo", "b_erase"]
    assert seen(state, "acme") == ["a_echo"]
    assert seen(state, "stranger") == []
    assert list(state.visible.view("acme", "guest").tools) == []
    assert list(state.servers.variants_of("acme")) == ["a"]
    for reader, name, like in (
        (acme, "a_erase", "a_erasd"), (acme, "b:echo", "c:echo"), (acme, "b_echo", "c_echo"),
        (guest, "a:echo", "c:echo"), (guest, "a_echo", "c_echo"),
    ):  # fmt: skip
        there, never = (find_name(state, reader, each_name, START) for each_name in (name, like))
        assert isinstance(there, Denial)
        assert isinstance(never, Denial)
        assert there.reason == never.reason == Reason.TOOL_NOT_FOUND
        assert there.metadata == never.metadata
        assert "erase" not in never.message
        server, other = name[0], like[0]
        masked = never.message.replace(like, name).replace(f"'{other}'", f"'{server}'")
        assert there.message == masked


def test_a_grant_of_some_tools_lists_no_prompts_resources_and_instructions() -> None:
    some = NameFilter(whitelist=("echo",))
    grants = {"some": Grant(some), "agents": Grant(agents={"bot": some}), "all": Grant()}
    state, worker = coordinator(), FakeWorker()
    load(state, replace(spec("a"), policy=ServerPolicy(grants=grants)))
    state.handle_worker_joined(hello(), START)
    run(state, [worker])
    while worker.probes:
        offered = offering("echo", prompts=("p",), resources=("note://a",), templates=("n://{x}",))
        answer(state, worker, replace(offered, introduction=Introduction("Use echo and erase.")))
    for tenant, agent, whole in (
        ("all", "", True), ("agents", "", True), ("agents", "bot", False), ("some", "", False)
    ):  # fmt: skip
        view = state.visible.view(tenant, agent)
        assert list(view.tools) == ["a_echo"]
        for name in (view.prompts, view.resources, view.templates, view.introductions):
            assert bool(name) is whole, (tenant, agent)
    for tenant, whole in (("all", True), ("some", False)):
        for uri, server_id in (("note://a", ""), ("note://unlisted", "a")):
            found = find_resource(state, Reader(tenant), uri, START, server_id)
            assert isinstance(found, Denial) is not whole, (tenant, uri)


def test_changed_grants_need_no_probe_and_apply_once_acknowledged() -> None:
    state, worker = running(spec("a"))
    assert seen(state, "acme") == ["a_echo"]
    load(state, replace(spec("a"), policy=ServerPolicy(grants={"rival": Grant()})))
    run(state, [worker])
    assert not worker.probes
    assert seen(state, "acme") == []
    assert seen(state, "rival") == ["a_echo"]


def test_an_invisible_server_takes_no_name_from_a_tenant() -> None:
    theirs = replace(spec("a", prefix=""), policy=ServerPolicy(grants={"rival": Grant()}))
    ours = replace(
        spec("b", prefix=""), policy=ServerPolicy(grants={"acme": Grant(), "rival": Grant()})
    )
    state, _ = running(theirs, ours)
    acme, rival = (state.visible.view(tenant).tools for tenant in ("acme", "rival"))
    assert acme["echo"].served.key.server_id == "b"
    assert rival["echo"].served.key.server_id == "a"
    found = find_name(state, Reader("acme"), "echo", START)
    assert not isinstance(found, Denial)
