"""The bytes of a spec: canonical, complete, and refused if they are not understood."""

from __future__ import annotations

from dataclasses import fields, replace

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.specs import changed

from leaseway.spec.canonical import canonical_bytes, digest
from leaseway.spec.codec import SpecNotUnderstood, decode_spec, encode_spec
from leaseway.spec.filters.names import NameFilter
from leaseway.spec.kinds.container import ContainerPart
from leaseway.spec.kinds.table import TRANSPORTS, part_type, server_spec
from leaseway.spec.model import Naming, ServerSpec, VariantKey
from leaseway.spec.policy import Grant, ServerPolicy
from leaseway.spec.references import Value

KEY = VariantKey("files", "acme")
SPEC = server_spec(KEY, "stdio", command="serve", env={"B": Value("env", "b")}, call_timeout=5.0)
BYTES = encode_spec(SPEC)

st.register_type_strategy(float, st.floats(allow_nan=False, allow_infinity=False))
st.register_type_strategy(int, st.integers(-(2**53), 2**53))


@st.composite
def _specs(draw: st.DrawFn) -> ServerSpec:
    """Return a strategy of specs of every kind."""
    transport = draw(st.sampled_from((*TRANSPORTS, "carrier-pigeon")))
    kind = part_type(transport, draw(st.sampled_from(((), ("image",)))))
    part = draw(st.from_type(kind))
    if isinstance(part, ContainerPart):
        part = replace(part, image="an-image")
    # Users' variants stay on workers.
    key = draw(st.builds(VariantKey, st.text(), st.text(), st.just("")))
    given = {"key": key, "transport": transport, "part": part}
    return draw(st.builds(ServerSpec, **{name: st.just(value) for name, value in given.items()}))


_SPECS = _specs()


@settings(deadline=None)
@given(_SPECS)
def test_every_spec_survives_the_way_without_its_naming(spec: ServerSpec) -> None:
    unnamed = replace(spec, **{field.name: field.default for field in fields(Naming)})  # type: ignore[arg-type]
    decoded = decode_spec(spec.key, encode_spec(spec))
    assert decoded == unnamed
    assert (decoded.launch_hash, decoded.exposure_hash) == (
        spec.launch_hash,
        unnamed.exposure_hash,
    )


def test_what_is_hashed_is_what_travels() -> None:
    parts = msgspec.json.decode(BYTES, type=dict[str, msgspec.Raw])
    assert SPEC.launch_hash == digest(bytes(parts["launch"]))
    assert SPEC.exposure_hash == digest(bytes(parts["exposure"]), b"{}")


def test_settings_with_their_defaults_are_not_written() -> None:
    assert BYTES == (
        b'{"exposure":{"call_timeout":5},"launch":{"command":"serve","env":{"B":{"kind":"env",'
        b'"text":"b"}},"transport":"stdio"}}'
    )


def test_the_order_of_names_and_the_type_of_a_whole_number_do_not_count() -> None:
    one = changed(SPEC, env={"A": Value("env", "a"), "B": Value("env", "b")}, call_timeout=5.0)
    other = changed(SPEC, env={"B": Value("env", "b"), "A": Value("env", "a")}, call_timeout=5)
    assert encode_spec(one) == encode_spec(other)


def test_a_grant_to_nobody_is_not_a_grant_to_everybody() -> None:
    spec = replace(SPEC, policy=ServerPolicy(grants={}))
    assert decode_spec(KEY, encode_spec(spec)).policy.grants == {}
    withheld = ServerPolicy(grants={"t": Grant(agents={"a": None, "b": NameFilter()})})
    assert decode_spec(KEY, encode_spec(replace(SPEC, policy=withheld))).policy == withheld


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'"launch":{', b'"launch":{"a_later_setting":true,'),
        (b'"kind":"env"', b'"kind":"env","later":1'),
        (b'"exposure":{', b'"exposure":{"tools":{"whitelist":["a"]},'),
        (b'"exposure":{', b'"exposure":{"key":{"server_id":"other"},'),
        (b'"kind":"env"', b'"kind":"other"'),
        (b'"serve"', b"7"),
        (b'"stdio"', b'"stdio","transport":"sse"'),
        (b'"stdio"', b'"sse"'),  # which has no command
        (b'"stdio"', b'"stdio","url":"http://a"'),
        (b'"stdio"', b'"stdio","part":{}'),
        (b'"exposure":{"call_timeout":5}', b'"exposure":{}, "rest":{}'),
        (b'{"exposure":{"call_timeout":5},', b'{"exposure":{"call_timeout": 5},'),
        (b'{"call_timeout":5}', b'{"call_timeout":60}'),
    ],
)
def test_bytes_with_anything_unknown_or_not_canonical_are_refused(old: bytes, new: bytes) -> None:
    changed = BYTES.replace(old, new)
    assert changed != BYTES
    with pytest.raises(SpecNotUnderstood, match=r"server files \(tenant acme\)"):
        decode_spec(KEY, changed)


@settings(deadline=None)
@given(st.binary(max_size=40) | st.integers(0, len(BYTES) - 1).map(lambda end: BYTES[:end]))
def test_garbage_is_refused(data: bytes) -> None:
    with pytest.raises(SpecNotUnderstood):
        decode_spec(KEY, data)


def test_bytes_that_are_nested_too_deeply_are_refused() -> None:
    deep = b'{"also":' * 100_000 + b"{}" + b"}" * 100_000
    with pytest.raises(SpecNotUnderstood):
        decode_spec(KEY, BYTES.replace(b'"launch":{', b'"launch":{"a":' + deep + b","))


def test_a_value_without_a_canonical_form_is_an_error_of_the_program() -> None:
    with pytest.raises(TypeError, match="set"):
        canonical_bytes({"a": {1, 2}})
