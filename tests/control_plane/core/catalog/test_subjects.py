"""What servers list for one tenant or user: who sees it, and how much of it is kept."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.control_plane.core.builders import (
    MAIL,
    START,
    at,
    coordinator,
    hello,
    listing,
    load,
    mail,
    spec,
)
from tests.control_plane.core.fake_worker import FakeWorker, answer, run

from leaseway.control_plane.core.catalog.listing import ServerListing
from leaseway.control_plane.core.catalog.snapshot import NamedTarget
from leaseway.control_plane.core.catalog.subjects import (
    ALL_USERS,
    Reader,
    Subject,
    SubjectListings,
)
from leaseway.control_plane.core.coordinator import Coordinator
from leaseway.control_plane.core.denial import Denial
from leaseway.control_plane.core.problems import Problem
from leaseway.control_plane.core.queries.resolve import find_name
from leaseway.control_plane.core.queries.status import variant_status
from leaseway.spec.filters.names import NameFilter
from leaseway.spec.model import ServerSpec, VariantKey
from leaseway.spec.policy import Grant, ServerPolicy
from leaseway.wire.messages.states import ServerState

NO_LOGIN = Problem("server", "LOGIN_REQUIRED", "Nobody is logged in.")
ANNA, BOB = Subject(MAIL, "acme", "anna"), Subject(MAIL, "acme", "bob")


def serving(*specs: ServerSpec, lists_subjects: bool = True) -> Coordinator:
    """Return a control plane whose worker has listed `common` at every server."""
    state, worker = coordinator(), FakeWorker()
    state.handle_worker_joined(hello(lists_subjects=lists_subjects), START)
    load(state, *specs)
    run(state, [worker])
    for _ in specs:
        answer(state, worker, listing("common"))
    run(state, [worker])
    return state


def awaiting(*specs: ServerSpec) -> tuple[Coordinator, FakeWorker]:
    """Return a control plane, and its worker on which nobody has logged in to any server."""
    state, worker = coordinator(), FakeWorker()
    state.handle_worker_joined(hello(lists_subjects=True), START)
    load(state, *specs)
    run(state, [worker])
    for _ in specs:
        answer(state, worker, NO_LOGIN)
    run(state, [worker])
    return state, worker


def tell(state: Coordinator, subject: Subject, listed: ServerListing | None) -> None:
    launch = state.visible.served[subject.variant].hashes.launch
    state.handle_subject_listing("w1", subject, launch, listed, START)


def seen(state: Coordinator, user: str = "", *, sees_all: bool = False) -> set[str]:
    return set(state.view(Reader("acme", user=user, sees_all=sees_all)).tools)


def test_each_user_sees_his_own_listing_and_nothing_without_one() -> None:
    state = serving(mail())
    tell(state, ANNA, listing("of_anna"))
    tell(state, BOB, listing("of_bob", "more"))
    assert seen(state, "anna") == {"x_of_anna"}
    assert seen(state, "bob") == {"x_of_bob", "x_more"}
    assert seen(state, "carl") == {"mcp_login"}
    assert seen(state) == set(), "nobody can log in for no user"
    assert seen(state, sees_all=True) == {"x_common"}
    other = Reader("beta", user="anna")
    assert set(state.view(other).tools) == {"mcp_login"}, (
        "the same name in another tenant is another user"
    )
    tell(state, ANNA, None)
    assert seen(state, "anna") == {"mcp_login"}


def test_a_name_means_what_its_user_sees_and_is_known_without_a_listing() -> None:
    state = serving(mail())
    tell(state, ANNA, listing("of_anna"))
    tell(state, BOB, listing("of_bob"))

    def find(name: str, user: str) -> object:
        return find_name(state, Reader("acme", user=user), name, START)

    for name in ("x_of_anna", "mail:of_anna"):
        assert isinstance(find(name, "anna"), NamedTarget)
        denied = find(name, "bob")
        assert isinstance(denied, Denial)
        assert "anna" not in denied.metadata["nearest"]
    assert isinstance(find("x_common", "anna"), Denial), "it is somebody else's"
    assert isinstance(find("x_common", "carl"), NamedTarget), "the worker says that a login comes"
    assert isinstance(find("x_of_anna", "carl"), Denial)


def test_a_clash_with_another_server_is_resolved_for_the_user_who_has_it() -> None:
    state = serving(mail(), spec("zoo", prefix="x_"))
    tell(state, ANNA, listing("common"))
    tell(state, BOB, listing("other"))
    owners = {
        user: state.view(Reader("acme", user=user)).tools["x_common"].served.key.server_id
        for user in ("anna", "bob")
    }
    assert owners == {"anna": "mail", "bob": "zoo"}


def test_tenants_see_theirs_and_a_common_listing_without_a_caller_is_everybodys() -> None:
    state = serving(mail(whose="tenant"))
    tell(state, Subject(MAIL, "acme", ""), listing("of_acme"))
    assert seen(state, "anna") == seen(state) == {"x_of_acme"}
    assert set(state.view(Reader("beta", sees_all=True)).tools) == {"mcp_login"}

    state = serving(mail("token_exchange", "caller"))
    assert seen(state) == seen(state, "anna") == {"x_common"}
    tell(state, ANNA, listing("of_anna"))
    assert seen(state, "anna") == {"x_of_anna"}
    assert seen(state) == seen(state, "bob") == {"x_common"}


def test_the_first_user_is_offered_a_login_and_then_sees_his_own_listing() -> None:
    state, worker = awaiting(mail())
    assert state.ready
    assert seen(state, "anna") == {"mcp_login"}
    assert seen(state) == seen(state, sees_all=True) == set()
    assert variant_status(state, MAIL).state is ServerState.NEEDS_LOGIN
    load(state, mail())
    assert [entry.problem.reason for entry in state.problems.open()] == ["LOGIN_REQUIRED"]
    tell(state, ANNA, listing("of_anna"))
    assert seen(state, "anna") == {"x_of_anna"}
    assert seen(state, "bob") == {"mcp_login"}
    state.servers.probes.retry_now(MAIL, START.mono)
    state.tick(START)
    run(state, [worker])
    answer(state, worker, listing("common"))
    run(state, [worker])
    assert seen(state, sees_all=True) == {"x_common"}
    assert not state.problems.open()


def test_a_name_of_a_server_without_a_login_is_left_to_the_worker_which_asks_for_one() -> None:
    state, _ = awaiting(mail())
    for reader in (Reader("acme", user="anna"), Reader("acme", sees_all=True)):
        found = find_name(state, reader, "mail:send", START)
        assert isinstance(found, NamedTarget)
        assert (found.served.key, found.item.original) == (MAIL, "send")
        assert isinstance(find_name(state, reader, "send", START), Denial)
    tell(state, ANNA, listing("of_anna"))
    assert isinstance(find_name(state, Reader("acme", user="anna"), "mail:send", START), Denial)


@pytest.mark.parametrize("is_first", [True, False])
def test_the_workers_for_a_login_are_found_by_the_servers_name(is_first: bool) -> None:
    state = awaiting(mail())[0] if is_first else serving(mail())
    tell(state, ANNA, listing("of_anna"))
    for user in ("anna", "bob"):
        reader = Reader("acme", user=user)
        found = find_name(state, reader, "mail:mcp_login", START)
        assert isinstance(found, NamedTarget)
        assert found.served.key == MAIL


def test_who_does_not_see_a_server_is_offered_no_first_login() -> None:
    hidden = replace(mail(), policy=ServerPolicy(grants={"acme": Grant()}))
    state, _ = awaiting(hidden)
    assert seen(state, "anna") == {"mcp_login"}
    assert not state.view(Reader("beta", user="anna")).tools


def test_a_tenants_own_variant_waits_for_its_login_and_gets_no_other_tenants_listing() -> None:
    common = mail(whose="tenant")
    own = replace(common, key=VariantKey("mail", "acme"), tools=NameFilter(whitelist=("own",)))
    state, worker = awaiting(common, own)
    assert set(state.view(Reader("beta")).tools) == seen(state) == {"mcp_login"}
    denied = find_name(state, Reader("acme"), "mail:own", START)
    assert isinstance(denied, Denial), "a worker would not know the name"
    assert denied.reason == "LOGIN_REQUIRED"
    assert "mcp_login" in denied.message
    state.servers.probes.retry_now(MAIL, START.mono)
    state.tick(START)
    run(state, [worker])
    answer(state, worker, listing("own"))
    run(state, [worker])
    assert seen(state) == {"mcp_login"}
    state.servers.probes.retry_now(own.key, START.mono)
    state.tick(START)
    run(state, [worker])
    answer(state, worker, listing("own"))
    run(state, [worker])
    assert seen(state) == {"x_own"}


def test_a_changed_server_without_a_login_is_offered_in_place_of_what_it_was() -> None:
    state, worker = awaiting(mail(whose="tenant"))
    tell(state, Subject(MAIL, "acme", ""), listing("of_acme"))
    assert seen(state, "anna") == {"x_of_acme"}
    load(state, mail())
    run(state, [worker])
    answer(state, worker, NO_LOGIN)
    run(state, [worker])
    assert seen(state, "anna") == {"mcp_login"}


def test_a_restarted_control_plane_offers_the_first_login_and_goes_on_trying() -> None:
    before, worker = awaiting(mail())
    del before
    worker.probes.clear()
    state = coordinator()
    load(state, mail())
    state.handle_worker_joined(hello(held=worker.hashes(), lists_subjects=True), START)
    run(state, [worker])
    assert seen(state, "anna") == {"mcp_login"}
    assert variant_status(state, MAIL).state is ServerState.NEEDS_LOGIN
    answer(state, worker, listing("common"))
    run(state, [worker])
    assert seen(state, sees_all=True) == {"x_common"}


def test_the_first_listing_may_come_from_a_worker_that_was_not_asked() -> None:
    state, worker = awaiting(mail())
    launch = state.visible.served[MAIL].hashes.launch
    state.handle_relisting("w1", MAIL, launch, listing("common"), START)
    state.tick(at(1))
    run(state, [worker])
    assert seen(state, sees_all=True) == {"x_common"}
    assert variant_status(state, MAIL).state is not ServerState.NEEDS_LOGIN
    assert not state.servers.probes.jobs


def test_all_see_the_common_listing_while_every_worker_is_older() -> None:
    state = serving(mail(), lists_subjects=False)
    assert seen(state) == seen(state, "anna") == {"x_common"}
    assert not state.subjects.unlisted(state.visible.view("acme"), Reader("acme", user="anna"))


def test_what_a_lost_worker_has_listed_is_forgotten() -> None:
    state = serving(mail())
    tell(state, ANNA, listing("of_anna"))
    state.handle_worker_disconnected("w1", START)
    assert len(state.subjects) == 1, "it may come back"
    state.subjects.keep_runs(())
    assert len(state.subjects) == 0


@pytest.fixture
def kept() -> SubjectListings:
    return SubjectListings(max_subjects=2, max_bytes=10_000)


def test_the_listing_that_was_not_used_for_longest_goes_first(kept: SubjectListings) -> None:
    kept.record(ANNA, "run", "launch", listing("a"))
    kept.record(BOB, "run", "launch", listing("b"))
    assert kept.find(ANNA, "launch") == listing("a")
    kept.record(Subject(MAIL, "acme", "carl"), "run", "launch", listing("c"))
    assert kept.find(BOB, "launch") is None
    assert kept.find(ANNA, "launch") is not None
    assert kept.find(ANNA, "another launch") is None


def test_equal_listings_count_once_and_bytes_are_bounded() -> None:
    one, other = listing("a" * 400), listing("b" * 400)
    kept = SubjectListings(max_subjects=1_000, max_bytes=700)
    users = [Subject(MAIL, "acme", str(number)) for number in range(100)]
    for subject in users:
        kept.record(subject, "run", "launch", listing("a" * 400))
    assert len(kept) == 100
    assert len({id(kept.find(subject, "launch")) for subject in users}) == 1
    kept.record(users[0], "run", "launch", one)
    kept.record(BOB, "run", "launch", other)
    assert len(kept) == 1, "both together are too large"
    kept.end(BOB)
    kept.record(ANNA, "run", "launch", one)
    assert kept.find(ANNA, "launch") == one


def test_watchers_hear_of_changes_of_their_tenant_only(kept: SubjectListings) -> None:
    kept.record(ANNA, "run", "launch", listing("a"))
    first = kept.sequence
    kept.record(ANNA, "run", "launch", listing("a"))
    assert not kept.changed_since(first, "acme"), "an equal listing is no change"
    kept.record(BOB, "run", "launch", listing("b"))
    kept.end(ANNA)
    assert kept.changed_since(first, "acme") == {"anna", "bob"}
    assert not kept.changed_since(first, "beta")
    for number in range(2_000):
        kept.record(BOB, "run", "launch", listing(str(number)))
    assert kept.changed_since(first, "acme") == {ALL_USERS}, "too long ago"
