"""The tree of a Go template: what `go_parser` makes and `go_translate` reads."""

from __future__ import annotations

from dataclasses import dataclass, field


class TemplateSyntaxError(Exception):
    """A template that does not compile; says what is wrong, and on which of its lines.

    Attributes:
        line: Counted from 1.
        message: What is wrong, without the line.
    """

    def __init__(self, line: int, message: str) -> None:
        super().__init__(f"line {line}: {message}")
        self.line = line
        self.message = message


@dataclass(eq=False)
class Variable:
    """One declaration of a `$name`.

    Attributes:
        name: With its `$`.
        id: Unique in the template.
        is_assigned: Whether some `$name = …` sets it again.
    """

    name: str
    id: int
    is_assigned: bool = False


@dataclass
class Dot:
    """`.`, the value at hand."""


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
    """Commands joined by `|`, with the variables that take its value."""

    line: int
    variables: list[Variable] = field(default_factory=list)
    assigns: bool = False
    commands: list[list[Operand]] = field(default_factory=list)


Operand = Dot | Constant | Field | Use | Function | Chain | Pipeline


@dataclass
class Text:
    """What is written as it stands."""

    text: str


@dataclass
class Action:
    """A pipeline whose value is written, unless it goes into a variable."""

    pipeline: Pipeline


@dataclass
class Branch:
    """`if` or `with`, where the value becomes the dot."""

    pipeline: Pipeline
    sets_dot: bool
    body: list[Node]
    otherwise: list[Node]


@dataclass
class Range:
    """`range`."""

    pipeline: Pipeline
    body: list[Node]
    otherwise: list[Node]


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
        body: What it writes.
        defined: The bodies of `define` and `block`, by name.
        calls: Where each name is used first: its line.
    """

    body: list[Node]
    defined: dict[str, list[Node]]
    calls: dict[str, int]
