"""Translates a Go template to Jinja2 source with the same output.

Blocks become Jinja2's blocks, `define` becomes a macro, every use of a value is a filter of
`go_functions`, and `_run` is the budget. Each Go variable gets a unique name, so that Jinja2's
scopes do not matter; a reassigned variable is a list of one item, which a loop's scope cannot hide.
Each action starts a line, and a map of these lines locates errors.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from leaseway.templates.go_format import Unprintable, check_format
from leaseway.templates.go_functions import FUNCTIONS
from leaseway.templates.go_nodes import (
    Action,
    Branch,
    Call,
    Chain,
    Constant,
    Dot,
    Field,
    Function,
    Jump,
    Node,
    Operand,
    Parsed,
    Pipeline,
    Range,
    TemplateSyntaxError,
    Text,
    Use,
    Variable,
)
from leaseway.templates.go_parser import parse

_ROOT: Final = "_root"
_NEEDS_VALUE: Final = "can only follow a function"


def translate(text: str) -> tuple[str, Mapping[int, int]]:
    """Return Jinja2 source for a Go template, and a map from its lines to those of the template.

    Raises:
        TemplateSyntaxError: It is invalid, or would always fail.
    """
    return _Translator(parse(text, FUNCTIONS)).source()


class _Translator:
    def __init__(self, parsed: Parsed) -> None:
        self._parsed = parsed
        self._out: list[str] = []
        self._lines: dict[int, int] = {}
        self._name_count = 0
        self._macros = {name: f"_t{number}" for number, name in enumerate(parsed.definitions)}
        self._dot = _ROOT
        self._scope_root = _ROOT

    def source(self) -> tuple[str, Mapping[int, int]]:
        """Return the template, macros first, and the map of lines."""
        for name, body in self._parsed.definitions.items():
            if name in self._parsed.calls:
                self._macro(name, body)
        self._body(self._parsed.body)
        return "".join(self._out), self._lines

    # Writing.

    def _tag(self, content: str, line: int = 0) -> None:
        self._out.append(f"{{%{self._breaks(line)} {content} %}}")

    def _write(self, expression: str, line: int = 0) -> None:
        self._out.append(f"{{{{{self._breaks(line)} {expression} }}}}")

    def _breaks(self, line: int) -> str:
        if not line:
            return ""
        self._lines[len(self._lines) + 2] = line
        return "\n"

    def _new(self, prefix: str) -> str:
        self._name_count += 1
        return f"_{prefix}{self._name_count}"

    # Nodes.

    def _body(self, nodes: list[Node]) -> None:
        for node in nodes:
            match node:
                case Text(text):
                    self._write(_literal(text))
                case Action(pipeline):
                    self._action(pipeline)
                case Branch():
                    self._branch(node)
                case Range():
                    self._range(node)
                case Call():
                    self._call(node)
                case Jump(word):
                    self._tag(word)

    def _macro(self, name: str, body: list[Node]) -> None:
        outer = self._dot, self._scope_root
        self._dot = self._scope_root = "_dot"
        self._tag(f"macro {self._macros[name]}(_dot)")
        self._write(f"_run|enter({_literal_size(body)})")
        self._body(body)
        self._write("_run|leave")
        self._tag("endmacro")
        self._dot, self._scope_root = outer

    def _action(self, pipeline: Pipeline) -> None:
        value = self._pipeline(pipeline)
        if pipeline.variables:
            self._assign(pipeline, value)
        else:
            self._write(f"{value}|show(_run)", pipeline.line)

    def _assign(self, pipeline: Pipeline, value: str) -> None:
        for variable in pipeline.variables:
            self._set(variable, f"{value}|lift", assigns=pipeline.assigns, line=pipeline.line)

    def _set(self, variable: Variable, value: str, *, assigns: bool, line: int = 0) -> None:
        name = f"_v{variable.id}"
        if assigns:
            self._write(f"{name}|put({value})", line)
        elif variable.is_assigned:
            self._tag(f"set {name} = [{value}]", line)
        else:
            self._tag(f"set {name} = {value}", line)

    def _value_of(self, pipeline: Pipeline) -> str:
        """Return a pipeline's value, and assign it to its variables."""
        value = f"{self._pipeline(pipeline)}|lift"
        if not pipeline.variables:
            return value
        name = self._new("p")
        self._tag(f"set {name} = {value}", pipeline.line)
        self._assign(pipeline, name)
        return name

    def _branch(self, node: Branch) -> None:
        outer, line = self._dot, node.pipeline.line
        if not node.sets_dot and not node.pipeline.variables:
            self._tag(f"if {self._pipeline(node.pipeline)}", line)
        else:
            name = self._new("d")
            self._tag(f"set {name} = {self._value_of(node.pipeline)}", line)
            self._tag(f"if {name}")
            if node.sets_dot:
                self._dot = name
        self._body(node.body)
        self._dot = outer
        if node.else_body:
            self._tag("else")
            self._body(node.else_body)
        self._tag("endif")

    def _range(self, node: Range) -> None:
        pipeline, outer = node.pipeline, self._dot
        variables = pipeline.variables
        if variables and not pipeline.assigns and not node.else_body:
            value = f"{self._pipeline(pipeline)}|lift"
        else:  # in an `else`, the variables have the value of the range
            value = self._value_of(pipeline)
        none = self._new("n")
        if node.else_body:
            self._tag(f"set {none} = [true]")
        if len(variables) > 1:
            value += "|single"
        key, element = self._new("k"), self._new("e")
        size = _literal_size(node.body)
        self._tag(f"for {key}, {element} in {value}|pairs(_run, {size})", pipeline.line)
        if node.else_body:  # Jinja2's `else` would also run after `break` or `continue`
            self._write(f"{none}|put(false)")
        names = [element] if len(variables) == 1 else [key, element]
        for variable, name in zip(variables, names, strict=False):
            self._set(variable, name, assigns=pipeline.assigns)
        self._dot = element
        self._body(node.body)
        self._dot = outer
        self._tag("endfor")
        if node.else_body:
            self._tag(f"if {none}|get")
            self._body(node.else_body)
            self._tag("endif")

    def _call(self, node: Call) -> None:
        dot = "_missing" if node.pipeline is None else self._value_of(node.pipeline)
        self._write(f"{self._macros[node.name]}({dot})", node.line)

    # Values.

    def _pipeline(self, pipeline: Pipeline) -> str:
        value: str | None = None
        for command in pipeline.commands:
            value = self._command(command, value, pipeline.line)
        assert value is not None
        return value

    def _command(self, operands: list[Operand], final: str | None, line: int) -> str:
        first, arguments = operands[0], operands[1:]
        if isinstance(first, Function):
            if first.name == "printf" and arguments and isinstance(arguments[0], Constant):
                _check_format(arguments[0].value, line)
            values = [self._operand(argument, line) for argument in arguments]
            return self._function(first.name, values + ([final] if final else []), line)
        if arguments or final is not None:
            raise TemplateSyntaxError(line, f"an argument {_NEEDS_VALUE}")
        if isinstance(first, Constant) and first.value is None:
            raise TemplateSyntaxError(line, "nil is not a command")
        return self._operand(first, line)

    def _operand(self, operand: Operand, line: int) -> str:
        match operand:
            case Dot():
                return self._dot
            case Constant(value):
                return _constant(value)
            case Field(names):
                return self._fields(self._dot, names)
            case Use(variable, names):
                return self._fields(self._variable(variable), names)
            case Function(name):
                return self._function(name, [], line)
            case Chain(of, names):
                if isinstance(of, Constant):
                    raise TemplateSyntaxError(line, "nil has no fields")
                return self._fields(f"{self._operand(of, line)}|lift", names)
            case Pipeline():
                if operand.variables:
                    raise TemplateSyntaxError(line, "a variable cannot be set inside parentheses")
                return f"({self._pipeline(operand)}|lift)"

    def _variable(self, variable: Variable | None) -> str:
        if variable is None:
            return self._scope_root
        return f"_v{variable.id}|get" if variable.is_assigned else f"_v{variable.id}"

    def _fields(self, value: str, names: list[str]) -> str:
        return f"{value}|field({', '.join(map(_literal, names))})" if names else value

    def _function(self, name: str, values: list[str], line: int) -> str:
        signature = FUNCTIONS[name]
        maximum = signature.maximum
        minimum = signature.minimum
        if len(values) < minimum or (maximum is not None and len(values) > maximum):
            if maximum is None:
                expected = f"at least {minimum}"
            else:
                expected = str(maximum) if maximum == minimum else f"{minimum} to {maximum}"
            text = f"{name} needs {expected} arguments, but has {len(values)}"
            raise TemplateSyntaxError(line, text)
        if name in ("and", "or"):
            return f"({f' {name} '.join(values)})"
        if name == "not":
            return f"(not {values[0]})"
        return f"(_run|go_{name}({', '.join(values)}))" if values else f"(_run|go_{name})"


def _check_format(form: object, line: int) -> None:
    try:
        check_format(form if isinstance(form, str) else "")
    except Unprintable as error:
        raise TemplateSyntaxError(line, str(error)) from None


def _literal_size(nodes: list[Node]) -> int:
    """Return the maximum literal text of nodes in characters, without nested loops."""
    size = 0
    for node in nodes:
        if isinstance(node, Text):
            size += len(node.text)
        elif isinstance(node, Branch):
            size += max(_literal_size(node.body), _literal_size(node.else_body))
        elif isinstance(node, Range):
            size += _literal_size(node.else_body)
    return size


def _constant(value: str | float | bool | None) -> str:
    match value:
        case None:
            return "none"
        case bool():
            return "true" if value else "false"
        case str():
            return _literal(value)
    return f"({value!r})"


def _literal(text: str) -> str:
    """Return a text as a Jinja2 string, escaped so that it cannot end the string or a tag."""
    return '"' + "".join(map(_character, text)) + '"'


def _character(char: str) -> str:
    is_safe = (char.isalnum() and char.isascii()) or char in " .,:;_-/()=+*<>[]!?'@"
    return char if is_safe else f"\\U{ord(char):08x}"
