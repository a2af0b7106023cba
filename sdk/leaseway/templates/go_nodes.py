"""The syntax tree of a Go template, from `go_parser` to `go_translate`."""

from __future__ import annotations

from dataclasses import dataclass, field


class TemplateSyntaxError(Exception):
    """A template that does not compile: the line, from 1, and a message without it."""

    def __init__(self, line: int, message: str) -> None:
        super().__init__(f"line {line}: {message}")
        self.line = line
        self.message = message


@dataclass(eq=False)
class Variable:
    """One declaration of a variable.

    Attributes:
        id: Unique in the template.
        is_assigned: Whether the template assigns it again.
    """

    name: str
    id: int
    is_assigned: bool = False


@dataclass
class Dot:
    """`.`, the current value."""


@dataclass
class Constant:
    """A literal: string, whole number, float, boolean, or None for `nil`."""

    value: str | int | float | bool | None


@dataclass
class Field:
    """`.a.b`, a field of the dot."""

    names: list[str]


@dataclass
class Use:
    """`$x.a.b`; `variable` None is `$` itself."""

    variable: Variable | None
    names: list[str]


@dataclass
class Function:
    """A function's name."""

    name: str


@dataclass
class Chain:
    """`(pipeline).a.b`."""

    of: Operand
    names: list[str]


@dataclass
class Pipeline:
    """Commands joined by `|`, with the variables that its value is assigned to."""

    line: int
    variables: list[Variable] = field(default_factory=list)
    assigns: bool = False
    commands: list[list[Operand]] = field(default_factory=list)


Operand = Dot | Constant | Field | Use | Function | Chain | Pipeline


@dataclass
class Text:
    """Literal text."""

    text: str


@dataclass
class Action:
    """A pipeline whose value is written, unless it is assigned to a variable."""

    pipeline: Pipeline


@dataclass
class Branch:
    """`if`, or `with`, whose value becomes the dot."""

    pipeline: Pipeline
    sets_dot: bool
    body: list[Node]
    else_body: list[Node]


@dataclass
class Range:
    """`range`."""

    pipeline: Pipeline
    body: list[Node]
    else_body: list[Node]


@dataclass
class Call:
    """`template` or `block`: the named template, with the pipeline's value as its dot."""

    line: int
    name: str
    pipeline: Pipeline | None


@dataclass
class Jump:
    """`break` or `continue`."""

    word: str


Node = Text | Action | Branch | Range | Call | Jump


@dataclass
class Parsed:
    """A whole template.

    Attributes:
        definitions: The bodies of `define` and `block`, by name.
        calls: Where each name is used first: its line.
    """

    body: list[Node]
    definitions: dict[str, list[Node]]
    calls: dict[str, int]
