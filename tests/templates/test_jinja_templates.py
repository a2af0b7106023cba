"""Templates in Jinja2's syntax, and their limits."""

from __future__ import annotations

import pytest

from leaseway.templates.engine import Template
from leaseway.templates.go_nodes import TemplateSyntaxError
from leaseway.templates.limits import TemplateFailure

_DATA = {"name": "Ann", "tags": ["x", "y"], "n": 3, "rows": [{"id": 2, "v": "b"}, {"id": 1}]}


@pytest.mark.parametrize(
    ("text", "output"),
    [
        ("{{ name }} {{ data.name }} {{ response['name'] }}", "Ann Ann Ann"),
        ("{% for t in tags %}{{ loop.index }}{{ t }}{% if not loop.last %},{% endif %}{% endfor %}",
         "1x,2y"),
        ("{{ tags | join('-') }} {{ rows | map(attribute='id') | join(',') }}", "x-y 2,1"),
        ("{{ rows | sort(attribute='id') | map(attribute='id') | list }}", "[1,2]"),
        ("{{ rows | selectattr('v') | list | length }}", "1"),
        ("{% set x = n * 2 + 1 %}{{ x }} {{ 'a' ~ n ~ 'b' }} {{ name + '!' }}", "7 a3b Ann!"),
        ("{% macro m(a) %}<{{ a }}>{% endmacro %}{{ m(name) }}{{ m(n) }}", "<Ann><3>"),
        ("{{ rows[0].v | default('-') }}{{ rows[1].v | default('-') }}", "b-"),
        ("{{ name.upper() }} {{ rows[0].items() | list | length }}", "ANN 2"),
        ("{{ rows | tojson }}", '[{"id":2,"v":"b"},{"id":1}]'),
        ("{% if n in [1, 3] %}in{% endif %} {{ true }} {{ none is none }}", "in true true"),
        ("{% for i in range(3) %}{{ i }}{% if i == 1 %}{% break %}{% endif %}{% endfor %}", "01"),
    ],
)  # fmt: skip
def test_a_jinja_template_has_the_output_of_jinja(text: str, output: str) -> None:
    assert Template(text, "jinja2").render(_DATA) == output


def test_a_value_other_than_a_mapping_is_named_data() -> None:
    assert Template("{% for x in data %}{{ x }}{% endfor %}", "jinja2").render([1, 2]) == "12"


@pytest.mark.parametrize(
    "text",
    [
        "{{ ().__class__.__mro__ }}",
        "{{ ''.__class__.__base__.__subclasses__() }}",
        "{{ name.format(name) }}",
        "{{ name.join(tags) }}",
        "{{ tags.append(1) }}",
        "{{ data.update(a=1) }}",
        "{{ data.clear() }}",
        "{{ self.__init__.__globals__ }}",
        "{{ lipsum.__globals__ }}",
        "{{ lipsum(100) }}",
        "{{ cycler('a') }}",
        "{{ namespace(a=1) }}",
        "{{ dict(a=1) }}",
        "{{ 'x' * 1000000000 }}",
        "{{ tags * 1000000000 }}",
        "{{ tags + tags }}",
        "{{ 2 ** 1000000000 }}",
        "{{ '%1000000000d' % 1 }}",
        "{{ name | center(1000000000) }}",
        "{{ name | ljust(1000000000) }}",
        "{{ name | format(1) }}",
        "{{ name | attr('upper') }}",
        "{{ tags | batch(2, tags) | list }}",
        "{{ tags | map('upper') | list }}",
        "{{ tags | map(attribute='x', default=tags) | list }}",
        "{{ data | pprint }}",
        "{{ data | xmlattr }}",
        "{{ range(1000000000) | list }}",
        "{% for i in range(9999) %}{% for j in range(9999) %}{% endfor %}{% endfor %}",
        "{% for i in range(9000) %}" + "x" * 1000 + "{% endfor %}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "{% macro f() %}{{ f() }}{{ f() }}{% endmacro %}{{ f() }}",
        "{% set a = 'ab' ~ name %}" + "{% set a = a ~ a %}" * 40 + "{{ a }}",
        "{% set a = 'ab' + name %}" + "{% set a = a + a %}" * 40 + "{{ a }}",
        "{% set a = 99999999 %}" + "{% set a = a * a %}" * 40 + "{{ a }}",
        "{% set x = [tags, tags] %}{{ x }}",
        "{% set x = {'a': tags} %}{{ x }}",
        "{% set x %}{{ name }}{% endset %}{{ x }}",
        "{% for x in tags recursive %}{{ loop(tags) }}{% endfor %}",
        "{% include 'x' %}",
        "{% import 'x' as y %}",
        "{% extends 'x' %}",
        "{% block b %}{% endblock %}",
        "{% filter upper %}x{% endfilter %}",
        "{{ _run }}",
        "{% set _run = 1 %}",
        "{{ range }}",
        "{{ name.upper }}",
        "{{ nothing }}",
        "{{ nothing.at.all }}",
        "{{ tags | replace('', 'x') }}",
        "{{ name | indent(1000000000) | replace('n', 'n' ~ name) | truncate(1, 2, 3, 4, 5, 6) }}",
        "{{ 1 // 0 }}",
        "{{ }}",
        "{% if %}",
    ],
)  # fmt: skip
def test_a_template_cannot_escape_or_exceed_its_limits(text: str) -> None:
    with pytest.raises((TemplateSyntaxError, TemplateFailure)) as raised:
        Template(text, "jinja2").render(_DATA)
    assert str(raised.value)


def test_a_failure_has_its_line() -> None:
    with pytest.raises(TemplateFailure) as raised:
        Template("a\n{{ nothing }}", "jinja2").render(_DATA)
    assert raised.value.line == 2
