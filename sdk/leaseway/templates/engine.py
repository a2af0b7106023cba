"""Compiled templates with limits on each rendering, which run in Jinja2's sandbox."""

from __future__ import annotations

from collections.abc import Mapping
from operator import itemgetter
from traceback import walk_tb
from typing import Any, Final
from weakref import WeakValueDictionary

from jinja2 import TemplateError
from jinja2.exceptions import SecurityError
from jinja2.sandbox import SandboxedEnvironment

from leaseway.templates import go_functions
from leaseway.templates.go_functions import FUNCTIONS, MISSING
from leaseway.templates.go_nodes import TemplateSyntaxError
from leaseway.templates.go_translate import translate
from leaseway.templates.limits import MAX_OUTPUT, MAX_TEMPLATE, Budget, TemplateFailure


class Template:
    """A compiled template.

    Attributes:
        text: The template, in Go's syntax.

    Raises:
        TemplateSyntaxError: It does not compile.
    """

    def __init__(self, text: str) -> None:
        if len(text) > MAX_TEMPLATE:
            raise TemplateSyntaxError(1, f"it has more than {MAX_TEMPLATE:,} characters")
        self.text = text
        self._lines: Mapping[int, int] = {}
        try:
            source, self._lines = translate(text)
            self._template = _GO.from_string(source)
        except TemplateError as error:
            line = getattr(error, "lineno", None) or 1
            raise TemplateSyntaxError(line, str(error.message or error)) from None
        except (SyntaxError, RecursionError, MemoryError, ValueError) as error:
            # Python's compiler has its own limits, for example on nesting.
            raise TemplateSyntaxError(1, f"it is too deep or too large: {error}") from None

    def render(self, data: object, budget: Budget | None = None) -> str:
        """Render the template with a JSON value.

        Args:
            budget: The limits of this rendering; None means those of `limits`.

        Raises:
            OutOfFuel: It takes too many steps, or too long.
            TemplateFailure: It fails with this value, or exceeds another limit.
        """
        budget = budget or Budget()
        context = {"_root": go_functions.lift(data), "_run": budget, "_missing": MISSING}
        try:
            return self._collect(context)
        except TemplateFailure as failure:
            failure.line = self._line_of(failure)
            raise
        except RecursionError:
            raise TemplateFailure("the value or the template is nested too deep") from None
        except SecurityError as error:
            raise TemplateFailure(f"it may not do that: {error}", self._line_of(error)) from None
        except (
            TemplateError, ArithmeticError, AttributeError, LookupError, TypeError, ValueError,
        ) as error:  # fmt: skip
            raise TemplateFailure(str(error), self._line_of(error)) from None

    def _collect(self, context: dict[str, Any]) -> str:
        parts: list[str] = []
        remaining = MAX_OUTPUT
        for part in self._template.root_render_func(self._template.new_context(context)):
            remaining -= len(part)
            if remaining < 0:
                raise TemplateFailure(f"it writes more than {MAX_OUTPUT:,} characters")
            parts.append(part)
        return "".join(parts)

    def _line_of(self, error: BaseException) -> int:
        line = 0
        for frame, python_line in walk_tb(error.__traceback__):
            if frame.f_globals.get("environment") is not None and "blocks" in frame.f_globals:
                line = self._template.get_corresponding_lineno(python_line)
        return self._lines.get(
            max((number for number in self._lines if number <= line), default=0), 0
        )


def compiled(text: str) -> Template:
    """Return a compiled template, shared by all callers that still use it.

    Raises:
        TemplateSyntaxError: It does not compile.
    """
    template = _compiled.get(text)
    if template is None:
        template = _compiled[text] = Template(text)
    return template


_compiled: Final[WeakValueDictionary[str, Template]] = WeakValueDictionary()


def _go_environment() -> SandboxedEnvironment:
    environment = SandboxedEnvironment(
        extensions=["jinja2.ext.loopcontrols"], autoescape=False, keep_trailing_newline=True,
        cache_size=0,
    )  # fmt: skip
    environment.filters.clear()
    environment.tests.clear()
    environment.globals.clear()
    environment.filters.update(
        field=go_functions.field,
        get=itemgetter(0),
        lift=go_functions.lift,
        pairs=go_functions.pairs,
        put=_put,
        show=go_functions.show,
        single=go_functions.single,
        enter=Budget.enter,
        leave=Budget.leave,
        **{f"go_{name}": function.call for name, function in FUNCTIONS.items()},
    )
    return environment


def _put(cell: list[Any], value: Any) -> str:
    cell[0] = value
    return ""


_GO: Final = _go_environment()
