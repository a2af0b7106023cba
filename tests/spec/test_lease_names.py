"""The names of a lease as file names: no separators, no `..`, no two alike."""

import re

from hypothesis import given
from hypothesis import strategies as st

from leaseway.spec.kinds.table import server_spec
from leaseway.spec.lease_names import LeaseNames, depth_of_names, marks, names_in, shared_part
from leaseway.spec.model import ServerSpec, VariantKey
from leaseway.spec.references import Value

texts = st.text(max_size=80) | st.sampled_from(["..", ".", "a/b", "A", "a", "\0", "con", "é"])


@given(texts, texts, texts, texts)
def test_other_sessions_and_tenants_have_other_names(
    tenant: str, session: str, other_tenant: str, other_session: str
) -> None:
    one, two = LeaseNames.of(tenant, session), LeaseNames.of(other_tenant, other_session)
    for name in (one.session, one.tenant, one.lease):
        assert re.fullmatch(r"[a-z0-9_-][a-z0-9_.-]{0,63}", name)
        assert ".." not in name
    assert (one.session == two.session) is ((tenant, session) == (other_tenant, other_session))
    assert (one.tenant == two.tenant) is (tenant == other_tenant)
    assert one.lease != two.lease


def test_the_name_of_a_plain_tenant_is_its_own_and_no_other_tenant_can_take_a_made_one() -> None:
    assert LeaseNames.of("acme-1", "s").tenant == "acme-1"
    made = LeaseNames.of("Acme", "s").tenant
    assert made != "acme"
    assert LeaseNames.of(made, "s").tenant != made


def test_instances_without_a_lease_have_names_of_their_own_which_repeat() -> None:
    one, again, two = map(LeaseNames.of_none, ("files", "files", "files for acme"))
    assert one.lease != again.lease
    assert (one.session, one.tenant) == (again.session, again.tenant)
    assert one.session != two.session
    assert one.session.startswith("probe.")
    assert LeaseNames.of("t", one.session).session != one.session


def test_marks_are_filled_in_and_other_text_stays() -> None:
    names = LeaseNames("L", "S", "T")
    mark = marks()
    assert names.fill(f"a/{mark['lease']}-{mark['session']}.{mark['tenant']}") == "a/L-S.T"
    assert names.fill("${lease}") == "${lease}"


def test_a_spec_knows_the_names_that_it_uses() -> None:
    def spec(**keys: object) -> ServerSpec:
        return server_spec(VariantKey("s"), "stdio", command="x", **keys)

    assert not spec(args=("${leased}",)).lease_names
    only_lease = spec(args=("--dir=/x/${lease}",))
    assert (only_lease.lease_names, only_lease.needs_holder) == (frozenset({"lease"}), False)
    for keys in (
        {"env": {"A": Value("literal", "${session}")}},
        {"cwd": "/srv/${tenant}"},
        {"args": ("${session:-x}",)},
    ):
        assert spec(**keys).needs_holder
        assert not spec(**keys).outlives_probe
    assert not spec(env={"A": Value("env", "session")}).lease_names


def test_the_part_of_a_path_that_belongs_to_a_lease_begins_at_its_first_name() -> None:
    assert depth_of_names("/srv/${HOME}/${session}") == 1
    assert depth_of_names("/srv/x-${tenant}/a/b") == 3
    assert depth_of_names("/srv") == 0
    assert shared_part("/srv/x-${tenant}/a/b") == "/srv"
    assert (shared_part("/srv"), shared_part("private")) == ("/srv", "")
    assert names_in(["$session", "${ session }", "${Session}"]) == frozenset()
