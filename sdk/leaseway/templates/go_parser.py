"""Parses the tokens of a Go template to a tree, like `text/template`.

It also rejects what Go rejects only when the template runs (an undefined template, an argument
without a function), so that the error is reported when the configuration is loaded.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection
from typing import Final

from leaseway.templates.go_lexer import Token, tokens
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

_MAX_DEPTH: Final = 16
"""Maximum nesting of blocks; Python compiles at most 20 nested loops."""
_MAX_PARENTHESES: Final = 32
_INT_LIMIT: Final = 2**63
_NUMBER_AS_FIELD: Final = re.compile(r"\.\d+\Z")
_OPERANDS: Final = frozenset(
    ("word", "field", "dot", "variable", "number", "char", "string", "bool", "open")
)


def parse(text: str, functions: Collection[str]) -> Parsed:
    """Parse a template.

    Args:
        functions: The names of the functions.

    Raises:
        TemplateSyntaxError: It is not a valid template.
    """
    parser = _Parser(text, functions)
    body = parser.parse_template()
    for name, line in parser.calls.items():
        if name not in parser.definitions:
            raise TemplateSyntaxError(line, f"the template {name[:64]!r} is not defined")
    return Parsed(body, parser.definitions, parser.calls)


class _Parser:
    def __init__(self, text: str, functions: Collection[str]) -> None:
        self._tokens = list(tokens(text))
        self._at = 0
        self._functions = functions
        self._scope: list[Variable] = []
        self._variable_count = 0
        self._loops = 0
        self._depth = 0
        self._parentheses = 0
        self.definitions: dict[str, list[Node]] = {}
        self.calls: dict[str, int] = {}

    # Bodies.

    def parse_template(self) -> list[Node]:
        body: list[Node] = []
        while (token := self._peek()).kind != "end":
            if token.kind == "left" and self._is_define():
                self._define()
                continue
            node = self._node()
            if isinstance(node, str):
                raise self._error(token, f"there is an {{{{{node}}}}} without a block")
            body.append(node)
        return body

    def _block(self, what: Token) -> tuple[list[Node], str]:
        """Return the nodes up to `end` or `else`, and that keyword."""
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise self._error(what, f"blocks are nested deeper than {_MAX_DEPTH}")
        body: list[Node] = []
        while self._peek().kind != "end":
            node = self._node()
            if isinstance(node, str):
                self._depth -= 1
                return body, node
            body.append(node)
        raise self._error(what, f"{{{{{what.value}}}}} has no {{{{end}}}}")

    def _node(self) -> Node | str:
        token = self._take()
        if token.kind == "text":
            return Text(token.value)
        assert token.kind == "left"
        word = self._peek_solid()
        if word.kind != "keyword" or word.value == "nil":
            return Action(self._pipeline("an action", "right"))
        self._take_solid()
        match word.value:
            case "if" | "with":
                return self._branch(word)
            case "range":
                return self._range(word)
            case "template" | "block":
                return self._call(word)
            case "break" | "continue":
                if not self._loops:
                    raise self._error(word, f"{{{{{word.value}}}}} is outside of {{{{range}}}}")
                self._expect_right(word)
                return Jump(word.value)
            case "end":
                self._expect_right(word)
                return "end"
            case "else":
                following = self._peek_solid()
                if following.kind != "keyword" or following.value not in ("if", "with"):
                    self._expect_right(word)
                return "else"
        raise self._error(word, "{{define}} is only allowed outside of other blocks")

    # Blocks.

    def _branch(self, word: Token) -> Branch:
        mark = len(self._scope)
        pipeline = self._pipeline(word.value, "right")
        inner = len(self._scope)
        body, ended = self._block(word)
        del self._scope[inner:]
        else_body: list[Node] = []
        if ended == "else":
            else_body = self._else_body(word)
        del self._scope[mark:]
        return Branch(pipeline, word.value == "with", body, else_body)

    def _else_body(self, word: Token) -> list[Node]:
        following = self._peek_solid()
        if following.kind == "keyword" and following.value in ("if", "with"):
            if following.value != word.value:
                text = f"{{{{else {following.value}}}}} does not belong to {{{{{word.value}}}}}"
                raise self._error(following, text)
            self._depth += 1  # an `else if` is a nested block
            if self._depth > _MAX_DEPTH:
                raise self._error(following, f"blocks are nested deeper than {_MAX_DEPTH}")
            self._take_solid()
            inner = self._branch(following)
            self._depth -= 1
            return [inner]
        else_body, ended = self._block(word)
        if ended != "end":
            raise self._error(word, "there is a second {{else}}")
        return else_body

    def _range(self, word: Token) -> Range:
        mark = len(self._scope)
        pipeline = self._pipeline("range", "right")
        inner = len(self._scope)
        self._loops += 1
        body, ended = self._block(word)
        self._loops -= 1
        del self._scope[inner:]
        else_body: list[Node] = []
        if ended == "else":
            if self._peek_solid().kind == "keyword":
                text = f"{{{{else {self._peek_solid().value}}}}} does not belong to {{{{range}}}}"
                raise self._error(self._peek_solid(), text)
            else_body, ended = self._block(word)
            if ended != "end":
                raise self._error(word, "there is a second {{else}}")
        del self._scope[mark:]
        return Range(pipeline, body, else_body)

    def _call(self, word: Token) -> Call:
        name = self._name_of(word)
        pipeline = None
        if word.value == "block" or self._peek_solid().kind != "right":
            pipeline = self._pipeline(word.value, "right")
        else:
            self._expect_right(word)
        self.calls.setdefault(name, word.line)
        if word.value == "block":
            self._body_of(name, word)
        return Call(word.line, name, pipeline)

    def _is_define(self) -> bool:
        at = self._at + 1
        word = self._tokens[at + (self._tokens[at].kind == "space")]
        return word.kind == "keyword" and word.value == "define"

    def _define(self) -> None:
        self._take()
        word = self._take_solid()
        name = self._name_of(word)
        self._expect_right(word)
        self._body_of(name, word)

    def _name_of(self, word: Token) -> str:
        token = self._take_solid()
        if token.kind != "string":
            raise self._error(token, f"{word.value!r} needs a name in quotes")
        return token.value

    def _body_of(self, name: str, word: Token) -> None:
        scope, loops, self._scope, self._loops = self._scope, self._loops, [], 0
        body, ended = self._block(word)
        self._scope, self._loops = scope, loops
        if ended != "end":
            raise self._error(word, f"{{{{else}}}} does not belong to {{{{{word.value}}}}}")
        if _is_blank(self.definitions.get(name, [])):
            self.definitions[name] = body
        elif not _is_blank(body):
            raise self._error(word, f"the template {name[:64]!r} is defined twice")

    # Pipelines.

    def _pipeline(self, context: str, end: str) -> Pipeline:
        pipeline = Pipeline(self._peek_solid().line)
        declared = self._declarations(pipeline, context)
        while True:
            token = self._peek_solid()
            if token.kind == end:
                self._take_solid()
                break
            if token.kind not in _OPERANDS and token.value != "nil":
                raise self._error(token, f"{_shown(token)} is not allowed in {context!r}")
            pipeline.commands.append(self._command())
        if not pipeline.commands:
            raise self._error(token, f"{context!r} has no value")
        for command in pipeline.commands[1:]:
            if isinstance(command[0], Dot | Constant):
                raise self._error(token, "only a function can follow '|'")
        self._scope += declared
        return pipeline

    def _declarations(self, pipeline: Pipeline, context: str) -> list[Variable]:
        names: list[str] = []
        while (token := self._peek_solid()).kind == "variable":
            start = self._at
            self._take_solid()
            following = self._peek_solid()
            if following.kind in ("assign", "declare"):
                self._take_solid()
                names.append(token.value)
                return self._declared(pipeline, names, following.kind == "assign", token)
            if following.kind == "comma" and context == "range" and not names:
                self._take_solid()
                names.append(token.value)
                continue
            if following.kind == "comma":
                raise self._error(token, f"{context!r} accepts no further variable")
            if names:
                raise self._error(token, "':=' is missing")
            self._at = start
            return []
        if names:
            raise self._error(token, "'range' can only set variables")
        return []

    def _declared(
        self, pipeline: Pipeline, names: list[str], assigns: bool, token: Token
    ) -> list[Variable]:
        pipeline.assigns = assigns
        if assigns:
            pipeline.variables = [self._variable(name, token) for name in names]
            for variable in pipeline.variables:
                variable.is_assigned = True
            return []
        for name in names:
            self._variable_count += 1
            pipeline.variables.append(Variable(name, self._variable_count))
        return pipeline.variables

    def _variable(self, name: str, token: Token) -> Variable:
        for variable in reversed(self._scope):
            if variable.name == name:
                return variable
        raise self._error(token, f"the variable {name[:64]} is not declared")

    def _unknown(self, name: str) -> str:
        names = ", ".join(sorted(self._functions))
        return (
            f"the function {name!r} is not defined: there are {names}. A field of the response has "
            f"a dot before it, as in .{name}"
        )

    def _command(self) -> list[Operand]:
        operands: list[Operand] = []
        while True:
            token = self._peek_solid()
            if token.kind in _OPERANDS or token.value == "nil":
                operands.append(self._operand())
            elif token.kind not in ("right", "close", "pipe"):
                raise self._error(token, f"{_shown(token)} is not expected here")
            following = self._peek()
            if following.kind == "space":
                continue
            if following.kind == "pipe":
                self._take()
            elif following.kind not in ("right", "close"):
                text = f"a space is missing before {_shown(following)}"
                if _NUMBER_AS_FIELD.match(following.value):
                    at = following.value[1:]
                    text += f"; an element of a list is written like (index .list {at})"
                raise self._error(following, text)
            break
        if not operands:
            raise self._error(token, "a command is missing")
        return operands

    def _operand(self) -> Operand:
        token = self._take_solid()
        operand = self._term(token)
        names: list[str] = []
        while self._peek().kind == "field":
            names.append(self._take().value[1:])
        if not names:
            return operand
        if isinstance(operand, Field | Use):
            operand.names += names
            return operand
        if isinstance(operand, Dot | Constant):
            raise self._error(token, f"{_shown(token)} has no fields")
        return Chain(operand, names)

    def _term(self, token: Token) -> Operand:
        match token.kind:
            case "word":
                if token.value not in self._functions:
                    raise self._error(token, self._unknown(token.value[:64]))
                return Function(token.value)
            case "dot":
                return Dot()
            case "field":
                return Field([token.value[1:]])
            case "variable":
                return Use(None if token.value == "$" else self._variable(token.value, token), [])
            case "bool":
                return Constant(token.value == "true")
            case "string":
                return Constant(token.value)
            case "char":
                return Constant(ord(token.value))
            case "number":
                return Constant(self._number(token))
            case "open":
                self._parentheses += 1
                if self._parentheses > _MAX_PARENTHESES:
                    text = f"parentheses are nested deeper than {_MAX_PARENTHESES}"
                    raise self._error(token, text)
                pipeline = self._pipeline("parentheses", "close")
                self._parentheses -= 1
                return pipeline
        return Constant(None)

    def _number(self, token: Token) -> int | float:
        text = token.value.lower()
        digits = text.lstrip("+-")
        is_hex = digits.startswith("0x")
        try:
            if is_hex and "p" in digits:
                return self._finite(float.fromhex(text.replace("_", "")))
            if not is_hex and any(char in digits for char in ".e"):
                return self._finite(float(text))
            legacy_octal = digits[:1] == "0" and digits.replace("_", "").isdecimal()
            number = int(text.replace("_", ""), 8) if legacy_octal else int(text, 0)
        except (ValueError, OverflowError):
            raise self._error(token, f"{token.value[:64]!r} is not a number") from None
        if not -_INT_LIMIT <= number < _INT_LIMIT:
            raise self._error(token, f"the number {token.value[:64]} is too large")
        return number

    def _finite(self, number: float) -> float:
        if not math.isfinite(number):
            raise OverflowError
        return number

    # Tokens.

    def _peek(self) -> Token:
        return self._tokens[self._at]

    def _take(self) -> Token:
        token = self._tokens[self._at]
        self._at += 1
        return token

    def _peek_solid(self) -> Token:
        while self._peek().kind == "space":
            self._at += 1
        return self._peek()

    def _take_solid(self) -> Token:
        self._peek_solid()
        return self._take()

    def _expect_right(self, word: Token) -> None:
        token = self._take_solid()
        if token.kind != "right":
            raise self._error(token, f"{_shown(token)} is not allowed in {word.value!r}")

    def _error(self, token: Token, message: str) -> TemplateSyntaxError:
        return TemplateSyntaxError(token.line, message)


def _is_blank(body: list[Node]) -> bool:
    return all(isinstance(node, Text) and not node.text.strip() for node in body)


def _shown(token: Token) -> str:
    return "'}}'" if token.kind == "right" else repr(token.value[:64])
