"""Go templates, compared with the output of Go's text/template."""

import contextlib
import gc
import json
import weakref
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leaseway.templates.engine import Template, compiled
from leaseway.templates.go_nodes import TemplateSyntaxError
from leaseway.templates.limits import TemplateFailure
from leaseway.templates.renderer import decoded

# Written by `go run main.go` in go_table/, which contains the cases.
_TABLE = json.loads(Path(__file__).with_name("go_table.json").read_text())
_CASES: list[dict[str, str]] = _TABLE["cases"]
_LENIENT = {"eq of an int and a float": "true", "lt of an int and a float": "true"}
"""Cases that only Go rejects: JSON does not distinguish 2 and 2.0, so both are numbers here."""


def _rendered(text: str, data: object) -> str:
    return Template(text).render(data)


@pytest.mark.parametrize("case", _CASES, ids=[case["name"] for case in _CASES])
def test_a_template_has_the_output_or_failure_of_go(case: dict[str, str]) -> None:
    data = msgspec.json.decode(case.get("data") or _TABLE["person"])
    if case["name"] in _LENIENT:
        assert _rendered(case["template"], data) == _LENIENT[case["name"]]
    elif not case.get("failed"):
        assert _rendered(case["template"], data) == case["output"]
    else:
        expected = TemplateSyntaxError if case["failed"] == "parse" else Exception
        with pytest.raises((TemplateSyntaxError, TemplateFailure)) as raised:
            _rendered(case["template"], data)
        # Errors that Go finds when it runs may be found earlier here, but never later.
        assert isinstance(raised.value, expected)


@pytest.mark.parametrize(
    ("form", "unsupported"),
    [
        ("%#v", "'#' in '%#'"),
        ("% d", "' ' in '% '"),
        ("%*d", "'*' in '%*'"),
        ("%[1]d", "'[' in '%['"),
        ("%T", "'T' in '%T'"),
        ("%U", "'U' in '%U'"),
        ("%12345678d", "'8' in '%12345678'"),
    ],
)
def test_what_printf_does_not_support_is_refused_when_it_is_compiled(
    form: str, unsupported: str
) -> None:
    with pytest.raises(TemplateSyntaxError) as raised:
        Template(f'\n{{{{ 1 | printf "{form}" }}}}')
    assert (raised.value.line, unsupported in raised.value.message) == (2, True)


@pytest.mark.parametrize(("form", "unsupported"), [("%#v", "'#' in '%#'"), ("%q", "%q for int")])
def test_what_printf_does_not_support_fails_with_a_reason(form: str, unsupported: str) -> None:
    with pytest.raises(TemplateFailure) as raised:
        _rendered("{{ printf .form 1 }}", {"form": form})
    assert unsupported in str(raised.value)


def test_a_template_is_compiled_once_while_it_is_used() -> None:
    text = "a text of this test only"
    template = compiled(text)
    assert compiled(text) is template
    reference = weakref.ref(template)
    del template
    gc.collect()
    assert reference() is None


@pytest.mark.parametrize(
    ("text", "line", "part"),
    [
        ("a\n{{ if }}", 2, "has no value"),
        ("{{ .a }}\n\n{{ nosuch . }}", 3, "'nosuch' is not defined: there are add, and, call"),
        ("{{ user.name }}", 1, "has a dot before it, as in .user"),
        ("{{ .users.0.name }}", 1, "is written like (index .list 0)"),
        ("{{ .x-rate }}", 1, 'is written like (index . "a-key")'),
        ("{{ range .a }}\n{{ end }}\n{{ end }}", 3, "without a block"),
        ("x\n{{ template \"t\" }}", 2, "'t' is not defined"),
        ("x" * 65_537, 1, "more than 65,536 characters"),
        ("{{ if .a }}" * 17 + "{{ end }}" * 17, 1, "nested deeper than 16"),
        ("{{ " + "(" * 40 + ".a" + ")" * 40 + " }}", 1, "parentheses are nested deeper"),
    ],
)  # fmt: skip
def test_a_syntax_error_has_a_line_and_a_reason(text: str, line: int, part: str) -> None:
    with pytest.raises(TemplateSyntaxError) as raised:
        Template(text)
    assert raised.value.line == line
    assert part in raised.value.message


def test_a_failure_has_the_line_of_the_template() -> None:
    text = 'one\n{{ .a }}\n{{ define "t" }}\n{{ .b.c.d }}{{ end }}\n{{ template "t" . }}'
    with pytest.raises(TemplateFailure, match="a number has no field d") as raised:
        _rendered(text, {"a": 1, "b": {"c": 5}})
    assert raised.value.line == 4


@pytest.mark.parametrize(
    ("text", "data"),
    [
        ("{{ range 1000000000 }}x{{ end }}", None),
        ("{{ range 9999 }}{{ range 9999 }}{{ end }}{{ end }}", None),
        ("{{ range 90000 }}" + "x" * 1000 + "{{ end }}", None),
        ('{{ define "t" }}{{ template "t" . }}{{ end }}{{ template "t" . }}', 1),
        ('{{ define "t" }}{{ template "t" . }}{{ template "t" . }}{{ end }}{{ template "t" }}', 1),
        ('{{ $x := "xx" }}{{ range 99 }}{{ $x = print $x $x }}{{ end }}{{ len $x }}', None),
        ('{{ $x := "xx" }}{{ range 99 }}{{ $x = printf "%s%s" $x $x }}{{ end }}', None),
        ('{{ $x := "xx" }}{{ range 99 }}{{ $x = html $x $x }}{{ end }}', None),
        ('{{ range 90000 }}{{ printf "%999999d" 1 }}{{ end }}', None),
        ('{{ printf "%999999v" . }}', [1] * 100),
        ("{{ range 9999 }}{{ $.big }}{{ end }}", {"big": "x" * 10_000}),
        ("{{ range 9999 }}{{ $x := toJson $.big }}{{ end }}", {"big": ["x" * 10_000]}),
        ("{{ range 9999 }}{{ $x := slice $.big 1 }}{{ end }}", {"big": "x" * 10_000}),
        ("{{ range 99 }}{{ $x := join $.s $.l }}{{ end }}", {"s": "x" * 9999, "l": [1] * 999}),
    ],
)  # fmt: skip
def test_time_and_memory_of_a_template_are_limited(text: str, data: object) -> None:
    template = Template(text)
    with pytest.raises(TemplateFailure, match=r"more than|deep"):
        template.render(data)


_json = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False,
    allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)  # fmt: skip


@pytest.mark.parametrize(
    ("text", "output"),
    [
        ("{{ range $i, $x := .l }}{{ add $i 1 }}.{{ $x }} {{ end }}", "1.a 2.b "),
        ("{{ index .l (sub (len .l) 1) }}", "b"),
        ("{{ add 1 .f 2 }} {{ sub .f 1 }} {{ 1 | add }}", "5.5 1.5 1"),
    ],
)
def test_numbers_can_be_added_and_subtracted(text: str, output: str) -> None:
    assert _rendered(text, {"l": ["a", "b"], "f": 2.5}) == output


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ('{{ add "1" 2 }}', "add accepts numbers, not a string"),
        ("{{ sub true 2 }}", "sub accepts numbers, not a boolean"),
        ("{{ add .missing 2 }}", "add accepts numbers, not null"),
        ("{{ add 1e308 1e308 }}", "the result of add is too large"),
    ],
)
def test_what_is_no_number_is_not_added(text: str, part: str) -> None:
    with pytest.raises(TemplateFailure, match=part):
        _rendered(text, {})


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (rb'"\ud800x"', "\ufffdx"),
        (rb'"a\udc00"', "a\ufffd"),
        (rb'"\ud83d\ud83d\ude00"', "\ufffd\U0001f600"),
        (rb'"\\ud800 \ud800"', "\\ud800 \ufffd"),
    ],
)
def test_half_of_a_surrogate_pair_is_a_replacement_character(body: bytes, text: str) -> None:
    assert decoded(body) == text


@settings(max_examples=40)
@given(st.text().filter(lambda text: "{{" not in text), st.text())
def test_text_and_strings_are_written_unchanged(text: str, value: str) -> None:
    assert _rendered(f"{text}|{{{{ .v }}}}|{text}", {"v": value}) == f"{text}|{value}|{text}"


_words = st.sampled_from(
    ["{{", "}}", "{{-", "-}}", " ", "\n", ".", ".a", ".a.b", "$", "$x", ":=", "=", "|", "(", ")",
     "range", "if", "else", "end", "with", "define", "template", "block", '"t"', "1", "2.5", "'c'",
     "printf", '"%d"', "len", "index", "and", "not", "eq", "break", "continue", "text", ",", "nil",
     "/* c */", "true", "{%", "%}", "{{ .a }}", "{{ end }}", "{{ range .a }}", "{{ if .a }}"]
)  # fmt: skip


@settings(max_examples=40)
@given(st.lists(_words, max_size=24).map("".join), _json)
def test_any_text_renders_or_is_rejected(text: str, data: Any) -> None:
    with contextlib.suppress(TemplateSyntaxError, TemplateFailure):
        assert isinstance(_rendered(text, data), str)


@settings(max_examples=40)
@given(_json)
def test_any_value_can_be_printed(data: Any) -> None:
    assert _rendered("{{ . }}", {"v": data}).startswith("map[v:")
    assert json.loads(_rendered("{{ toJson .v }}", {"v": data})) == data
    assert _rendered('{{ printf "%v" .v }}', {"v": data}) == _rendered(
        "{{ print .v }}", {"v": data}
    )
