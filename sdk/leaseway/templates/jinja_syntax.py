"""Jinja2's syntax without the parts of unlimited cost.

Jinja2's sandbox protects Python's internals, but allows `'x' * 10 ** 9`. So only the parts of the
language whose cost depends on the data are allowed: loops, conditions, macros, variables and the
filters below. Every loop, call and result is counted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import msgspec
from jinja2 import StrictUndefined, Undefined, nodes
from jinja2.exceptions import TemplateSyntaxError as JinjaError
from jinja2.runtime import LoopContext, Macro
from jinja2.sandbox import SandboxedEnvironment
from jinja2.visitor import NodeTransformer

from leaseway.templates.limits import Budget, TemplateFailure

_MAX_RANGE: Final = 10_000
_MAX_DEPTH: Final = 64
_MAX_BITS: Final = 1024

_REJECTED: Final[Mapping[type[nodes.Node], str]] = {
    nodes.Include: "include: there are no other templates",
    nodes.Import: "import: there are no other templates",
    nodes.FromImport: "import: there are no other templates",
    nodes.Extends: "extends: there are no other templates",
    nodes.Block: "block: there are no other templates",
    nodes.FilterBlock: "filter blocks; apply the filter to a value",
    nodes.AssignBlock: "set with a block; set accepts a value",
    nodes.CallBlock: "call blocks; call the macro",
    nodes.Pow: "'**'",
    nodes.EvalContextModifier: "autoescape",
}
_METHODS: Final = frozenset(
    ("get", "items", "keys", "values", "startswith", "endswith", "lower", "upper", "strip", "split")
)


class JinjaEnvironment(SandboxedEnvironment):
    """The sandbox for Jinja2's own syntax."""

    intercepted_binops = frozenset(("+", "*", "%", "//"))

    def __init__(self) -> None:
        super().__init__(
            extensions=["jinja2.ext.loopcontrols"], autoescape=False, keep_trailing_newline=True,
            undefined=StrictUndefined, cache_size=0,
        )  # fmt: skip
        self.filters = {name: self.filters[name] for name in _PLAIN_FILTERS} | _OWN_FILTERS
        tests = ("defined", "undefined", "none", "string", "number", "mapping", "sequence", "in",
                  "boolean", "integer", "float", "even", "odd", "true", "false", "eq", "==", "ne",
                  "!=", "lt", "<", "le", "<=", "gt", ">", "ge", ">=", "divisibleby")  # fmt: skip
        self.tests = {name: self.tests[name] for name in tests}
        self.globals = {"range": _range}

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        """Add, multiply and divide numbers, and join strings, within the limits."""
        numbers = isinstance(left, int | float) and isinstance(right, int | float)
        texts = isinstance(left, str) and isinstance(right, str) and operator == "+"
        if not (numbers or texts):
            raise TemplateFailure(f"'{operator}' accepts numbers only, and '+' also strings")
        budget: Budget = context["_run"]
        budget.step()
        if texts:
            budget.make(len(left) + len(right))
        elif _bits(left) + _bits(right) > _MAX_BITS:
            raise TemplateFailure(f"a number has more than {_MAX_BITS} bits")
        return super().call_binop(context, operator, left, right)

    def call(self, context: Any, obj: Any, *args: Any, **kwargs: Any) -> Any:
        """Call a macro, `range`, or one of the allowed methods of values."""
        budget: Budget = context["_run"]
        budget.step()
        if isinstance(obj, LoopContext) or obj is _range:
            return obj(*args, **kwargs)
        if isinstance(obj, Macro):
            budget.enter()
            made = super().call(context, obj, *args, **kwargs)
            budget.leave()
            budget.make(len(made))
            return made
        owner, name = getattr(obj, "__self__", None), getattr(obj, "__name__", "")
        if isinstance(owner, str | dict) and name in _METHODS:
            budget.make(len(owner))
            return super().call(context, obj, *args, **kwargs)
        raise TemplateFailure("it calls something that is not allowed")


def parse_jinja(environment: JinjaEnvironment, text: str) -> nodes.Template:
    """Parse a template; the tree counts loops and outputs.

    Raises:
        jinja2.TemplateSyntaxError: It is invalid, or uses a rejected feature.
    """
    tree = environment.parse(text)
    for name in tree.find_all(nodes.Name):
        if name.name.startswith("_"):
            raise JinjaError("names that begin with '_' are reserved", name.lineno)
    counted: nodes.Template = _CountingTransformer().visit(tree)
    counted.set_environment(environment)
    return counted


class _CountingTransformer(NodeTransformer):
    """Rejects features of unlimited cost and adds counters to the others."""

    def generic_visit(self, node: nodes.Node, *args: Any, **kwargs: Any) -> nodes.Node:
        rejected = _REJECTED.get(type(node))
        if rejected is not None:
            raise JinjaError(f"this template may not use {rejected}", node.lineno)
        return super().generic_visit(node, *args, **kwargs)

    def visit_For(self, node: nodes.For) -> nodes.Node:  # noqa: N802 - Jinja2's name
        if node.recursive:
            raise JinjaError("recursive loops are not allowed; use a macro", node.lineno)
        size = sum(len(data.data) for data in node.find_all(nodes.TemplateData))
        node.iter = _filter("iterate", node.iter, [_run(), nodes.Const(size)], node.lineno)
        return self.generic_visit(node)

    def visit_Output(self, node: nodes.Output) -> nodes.Node:  # noqa: N802
        node.nodes = [
            each
            if isinstance(each, nodes.TemplateData)
            else _filter("write", each, [_run()], each.lineno)
            for each in node.nodes
        ]
        return self.generic_visit(node)

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:  # noqa: N802
        joined = nodes.List(node.nodes, lineno=node.lineno)
        super().generic_visit(joined)
        return _filter("concat", joined, [_run()], node.lineno)

    def visit_Filter(self, node: nodes.Filter) -> nodes.Node:  # noqa: N802
        if node.name in _COUNTED:
            node.args = [_run(), *node.args]
        return self.generic_visit(node)

    def visit_List(self, node: nodes.List) -> nodes.Node:  # noqa: N802
        return self._constants(node)

    def visit_Tuple(self, node: nodes.Tuple) -> nodes.Node:  # noqa: N802
        return node if node.ctx == "store" else self._constants(node)

    def visit_Dict(self, node: nodes.Dict) -> nodes.Node:  # noqa: N802
        return self._constants(node)

    def _constants(self, node: nodes.Node) -> nodes.Node:
        """Allow only lists of constants: `set x = [x, x]` could double without limit."""
        if next(node.find_all((nodes.Name, nodes.Call, nodes.List)), None) is not None:
            text = "a list or mapping may contain constants only"
            raise JinjaError(text, node.lineno)
        return self.generic_visit(node)


def _bits(number: Any) -> int:
    return number.bit_length() if isinstance(number, int) else 0


def _run() -> nodes.Name:
    return nodes.Name("_run", "load")


def _filter(name: str, value: Any, args: list[nodes.Expr], line: int) -> nodes.Filter:
    return nodes.Filter(value, name, args, [], None, None, lineno=line)


def _size(value: Any, depth: int = 0) -> int:
    """Return the approximate length of a value as text.

    Raises:
        TemplateFailure: It is nested too deep, or has a type that templates may not print.
    """
    if depth > _MAX_DEPTH:
        raise TemplateFailure("a value is nested too deep")
    if isinstance(value, str):
        return len(value)
    if isinstance(value, dict):
        return 2 + sum(_size(k, depth + 1) + _size(v, depth + 1) + 4 for k, v in value.items())
    if isinstance(value, list | tuple):
        return 2 + sum(_size(each, depth + 1) + 2 for each in value)
    if isinstance(value, int):
        return value.bit_length() // 3 + 1
    if value is None or isinstance(value, float):
        return 24
    if isinstance(value, Undefined):
        return len(str(value))
    raise TemplateFailure(f"a value of type {type(value).__name__} cannot be printed")


def _text(budget: Budget, value: Any) -> str:
    budget.make(_size(value))
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list | tuple | dict):
        return msgspec.json.encode(value).decode()
    return str(value)


def _write(value: Any, budget: Budget) -> str:
    return budget.write(value if isinstance(value, str) else _text(budget, value))


def _iterate(items: Any, budget: Budget, size: int) -> Iterable[Any]:
    return budget.iterate(items, size)


def _concat(items: list[Any], budget: Budget) -> str:
    budget.step()
    parts = [_text(budget, item) for item in items]
    return "".join(parts)


def _range(*bounds: int) -> range:
    made = range(*bounds)
    if len(made) > _MAX_RANGE:
        raise TemplateFailure(f"range() returns at most {_MAX_RANGE:,} numbers")
    return made


def _listed(items: Any, budget: Budget) -> list[Any]:
    if isinstance(items, str | bytes | int | float) or items is None:
        raise TemplateFailure("this filter accepts a list")
    return list(budget.iterate(items))


def _join(items: Any, budget: Budget, separator: str = "", attribute: str | None = None) -> str:
    parts = [_text(budget, _attribute(item, attribute)) for item in _listed(items, budget)]
    budget.make(len(separator) * len(parts))
    return separator.join(parts)


def _attribute(item: Any, name: str | None) -> Any:
    if name is None:
        return item
    for part in str(name).split("."):
        item = item.get(part) if isinstance(item, dict) else None
    return item


def _map(items: Any, budget: Budget, *, attribute: str) -> list[Any]:
    return [_attribute(item, attribute) for item in _listed(items, budget)]


def _select(wanted: bool) -> Callable[..., list[Any]]:
    def select(items: Any, budget: Budget, attribute: str, *value: Any) -> list[Any]:
        def holds(item: Any) -> bool:
            found = _attribute(item, attribute)
            return bool(found == value[0] if value else found)

        return [item for item in _listed(items, budget) if holds(item) is wanted]

    return select


def _sort(
    items: Any, budget: Budget, attribute: str | None = None, reverse: bool = False
) -> list[Any]:
    return sorted(
        _listed(items, budget), key=lambda item: _attribute(item, attribute), reverse=bool(reverse)
    )


def _unique(items: Any, budget: Budget) -> list[Any]:
    return list(dict.fromkeys(_listed(items, budget)))


def _sum(items: Any, budget: Budget, attribute: str | None = None) -> float:
    numbers = [_attribute(item, attribute) for item in _listed(items, budget)]
    if not all(isinstance(number, int | float) for number in numbers):
        raise TemplateFailure("sum accepts numbers")
    total: float = sum(numbers)
    return total


def _replace(text: Any, budget: Budget, old: str, new: str) -> str:
    before = str(text)
    if not old:
        raise TemplateFailure("replace needs a non-empty text to replace")
    budget.make(len(before) + before.count(old) * len(new))
    return before.replace(old, new)


def _to_json(value: Any, budget: Budget, indent: int = 0) -> str:
    budget.make(_size(value))
    made = msgspec.json.encode(value)
    if indent:
        budget.make(_size(value) * 4)
        made = msgspec.json.format(made, indent=max(0, min(int(indent), 8)))
    budget.make(len(made))
    return made.decode()


def _indent(text: Any, budget: Budget, width: int = 4) -> str:
    lines = str(text).splitlines(keepends=True)
    pad = " " * max(0, min(int(width), 64))
    budget.make(len(str(text)) + len(pad) * len(lines))
    return pad.join(lines)


def _string(value: Any, budget: Budget) -> str:
    return _text(budget, value)


_PLAIN_FILTERS: Final = (
    "abs", "capitalize", "count", "d", "default", "first", "float", "int", "last", "length",
    "lower", "round", "title", "trim", "truncate", "upper", "urlencode", "escape", "e", "items",
    "dictsort", "max", "min", "reverse", "filesizeformat", "wordcount",
)  # fmt: skip

_COUNTED: Final[Mapping[str, Callable[..., Any]]] = {
    "join": _join,
    "list": _listed,
    "map": _map,
    "replace": _replace,
    "selectattr": _select(True),
    "rejectattr": _select(False),
    "sort": _sort,
    "string": _string,
    "sum": _sum,
    "tojson": _to_json,
    "unique": _unique,
    "indent": _indent,
}
_OWN_FILTERS: Final[dict[str, Callable[..., Any]]] = {
    **_COUNTED,
    "concat": _concat,
    "iterate": _iterate,
    "write": _write,
}
