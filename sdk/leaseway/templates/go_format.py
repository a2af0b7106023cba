"""Formatting of values like Go's `fmt`: the verbs, widths and errors of `printf` that people use.

Values are those of JSON: None, booleans, integers (Go's `int`), floats (`float64`), strings, lists
(`[]interface {}`) and mappings (`map[string]interface {}`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any, Final

_FIXED_FROM: Final = -4
_FIXED_TO: Final = 6
"""Range of exponents that `%v` prints as fixed-point numbers."""
_NO_VALUE: Final = "<nil>"
_ESCAPES: Final = {
    7: "\\a", 8: "\\b", 12: "\\f", 10: "\\n", 13: "\\r", 9: "\\t", 11: "\\v", 34: '\\"', 92: "\\\\",
}  # fmt: skip
_DELETE: Final = 0x7F
_BMP: Final = 0x10000
_MAX_RUNE: Final = 0x10FFFF
_SURROGATES: Final = range(0xD800, 0xE000)


class Unprintable(Exception):
    """A value that Go's verb can print but this module cannot; the message names them."""


def type_name(value: Any) -> str:
    """Return Go's name of a value's type."""
    match value:
        case None:
            return _NO_VALUE
        case bool():
            return "bool"
        case int():
            return "int"
        case float():
            return "float64"
        case str():
            return "string"
        case Mapping():
            return "map[string]interface {}"
        case _:
            return "[]interface {}"


def to_text(value: Any) -> str:
    """Format a value like `%v`."""
    match value:
        case str():
            return value
        case bool():
            return "true" if value else "false"
        case int():
            return str(value)
        case float():
            return float_text(value)
        case None:
            return _NO_VALUE
        case Mapping():
            return "map[" + " ".join(f"{k}:{to_text(value[k])}" for k in sorted(value)) + "]"
        case _:
            return "[" + " ".join(map(to_text, value)) + "]"


def print_all(values: Sequence[Any]) -> str:
    """Format values like `print`: with a space between two values if neither is a string."""
    parts: list[str] = []
    for number, value in enumerate(values):
        if number and not isinstance(value, str) and not isinstance(values[number - 1], str):
            parts.append(" ")
        parts.append(to_text(value))
    return "".join(parts)


def float_text(value: float, verb: str = "g", precision: int = -1) -> str:
    """Format a finite float like `strconv`; precision -1 means the fewest exact digits."""
    if precision >= 0 and verb in "eEfF":
        return f"{value:.{precision}{verb}}"
    if precision >= 0:
        return _general(value, precision, upper=verb == "G")
    sign, digits, exponent = _shortest(value)
    prefix = "-" if sign else ""
    if verb in "fF":
        return prefix + _fixed(digits, exponent)
    if verb in "eE" or not _FIXED_FROM <= exponent < _FIXED_TO:
        return prefix + _scientific(digits, exponent, "E" if verb in "EG" else "e")
    return prefix + _fixed(digits, exponent)


def quoted(text: str) -> str:
    """Return a text in double quotes with Go's escapes."""
    return '"' + "".join(map(_escaped, text)) + '"'


def _escaped(char: str) -> str:
    code = ord(char)
    if code in _ESCAPES:
        return _ESCAPES[code]
    if char.isprintable():
        return char
    if code < ord(" ") or code == _DELETE:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < _BMP else f"\\U{code:08x}"


def _shortest(value: float) -> tuple[int, str, int]:
    """Return sign, the fewest digits that identify this float, and their exponent."""
    sign, digits, shift = Decimal(repr(value)).as_tuple()
    assert isinstance(shift, int)
    text = "".join(map(str, digits)).rstrip("0") or "0"
    dropped = len(digits) - len(text) if text != "0" else 0
    exponent = len(text) - 1 + shift + dropped if text != "0" else 0
    return sign, text, exponent


def _fixed(digits: str, exponent: int) -> str:
    if exponent < 0:
        return "0." + "0" * (-exponent - 1) + digits
    whole = digits[: exponent + 1].ljust(exponent + 1, "0")
    rest = digits[exponent + 1 :]
    return f"{whole}.{rest}" if rest else whole


def _scientific(digits: str, exponent: int, letter: str) -> str:
    mantissa = digits[0] + (f".{digits[1:]}" if digits[1:] else "")
    return f"{mantissa}{letter}{'-' if exponent < 0 else '+'}{abs(exponent):02d}"


def _general(value: float, precision: int, *, upper: bool) -> str:
    precision = precision or 1
    text = f"{value:.{precision - 1}e}"
    mantissa, _, exponent = text.partition("e")
    digits = mantissa.replace(".", "").lstrip("-").rstrip("0") or "0"
    power = int(exponent)
    sign = "-" if mantissa.startswith("-") else ""
    # If all significant digits are before the point, Go allows as many digits as there are.
    limit = precision
    if limit > len(digits) and len(digits) >= power + 1:
        limit = len(digits)
    if not _FIXED_FROM <= power < limit:
        return sign + _scientific(digits, power, "E" if upper else "e")
    return sign + _fixed(digits, power)


_DIRECTIVE: Final = re.compile(r"%([-+0]*)([0-9]{0,7})(?:\.([0-9]{0,7}))?(.?)", re.DOTALL)
_UNSUPPORTED: Final = frozenset("#*[ TpUO0123456789.")
"""Flags, arguments' numbers and verbs of Go that no template for a response needs."""


def check_format(text: str) -> None:
    """Check that all directives of a format are supported.

    Raises:
        Unprintable: One is not.
    """
    for found in _DIRECTIVE.finditer(text):
        if found[4] in _UNSUPPORTED:
            raise Unprintable(f"printf does not support '{found[4]}' in '{found[0]}'")


def print_format(text: str, values: Sequence[Any]) -> str:
    """Format values like `printf`.

    Raises:
        Unprintable: The format uses something of Go's that is not supported.
    """
    check_format(text)
    parts: list[str] = []
    at = used = 0
    for found in _DIRECTIVE.finditer(text):
        parts.append(text[at : found.start()])
        at = found.end()
        flags, width, precision, verb = found.groups()
        if verb == "%":
            parts.append("%")
        elif not verb:
            parts.append("%!(NOVERB)")
        elif used == len(values):
            parts.append(f"%!{verb}(MISSING)")
        else:
            digits = None if precision is None else int(precision or 0)
            if verb == "v":  # where `+` has a meaning for structs only
                flags = flags.replace("+", "")
            parts.append(_Directive(flags, int(width or 0), digits, verb).format(values[used]))
            used += 1
    parts.append(text[at:])
    if used < len(values):
        extra = (
            _NO_VALUE if value is None else f"{type_name(value)}={to_text(value)}"
            for value in values[used:]
        )
        parts.append(f"%!(EXTRA {', '.join(extra)})")
    return "".join(parts)


@dataclass(frozen=True)
class _Directive:
    """One directive of a format, such as `%-8.2f`."""

    flags: str
    width: int
    precision: int | None
    verb: str

    def format(self, value: Any) -> str:
        if value is None:
            return self._pad(_NO_VALUE) if self.verb == "v" else f"%!{self.verb}({_NO_VALUE})"
        return self._value(value)

    def _value(self, value: Any) -> str:
        match value:
            case None:
                return _NO_VALUE
            case bool():
                text = "true" if value else "false"
                return self._pad(text) if self.verb in "tv" else self._mismatch(value)
            case int():
                return self._int(value)
            case float():
                return self._float(value)
            case str():
                return self._str(value)
            case Mapping():
                keys = sorted(value)
                pairs = (f"{self._value(key)}:{self._value(value[key])}" for key in keys)
                return f"map[{' '.join(pairs)}]"
            case _:
                return f"[{' '.join(map(self._value, value))}]"

    def _mismatch(self, value: Any) -> str:
        """Return what Go prints for a verb that is not one of the value's type."""
        plain = replace(self, verb="v")
        return f"%!{self.verb}({type_name(value)}={plain.format(value)})"

    def _unsupported(self, value: Any) -> Unprintable:
        return Unprintable(f"printf does not support %{self.verb} for {type_name(value)}")

    def _pad(self, text: str) -> str:
        if "-" in self.flags:
            return text.ljust(self.width)
        return text.rjust(self.width, "0" if "0" in self.flags else " ")

    def _number(self, sign: str, digits: str, *, zeros: bool = True) -> str:
        sign = sign or ("+" if "+" in self.flags else "")
        if zeros and "0" in self.flags and "-" not in self.flags:
            digits = digits.rjust(self.width - len(sign), "0")
        text = sign + digits
        return text.ljust(self.width) if "-" in self.flags else text.rjust(self.width)

    def _str(self, value: str) -> str:
        if self.verb in "xX":
            data = value.encode("utf-8", "replace")[: self.precision]
            return self._pad(f"{data.hex()}" if self.verb == "x" else data.hex().upper())
        cut = value[: self.precision]
        if self.verb in "sv":
            return self._pad(cut)
        if self.verb == "q" and "+" in self.flags:
            raise Unprintable("printf does not support the flag '+' of %q")
        return self._pad(quoted(cut)) if self.verb == "q" else self._mismatch(value)

    def _int(self, value: int) -> str:
        if self.verb == "q":
            raise self._unsupported(value)
        if self.verb == "c":
            is_rune = 0 <= value <= _MAX_RUNE and value not in _SURROGATES
            return self._pad(chr(value) if is_rune else "\ufffd")
        if self.verb not in "vdboxX":
            return self._mismatch(value)
        if self.precision == value == 0:
            return " " * self.width
        digits = f"{abs(value):{'d' if self.verb == 'v' else self.verb}}".rjust(
            self.precision or 0, "0"
        )
        return self._number("-" if value < 0 else "", digits, zeros=self.precision is None)

    def _float(self, value: float) -> str:
        if self.verb in "bxX":
            raise self._unsupported(value)
        if self.verb not in "vgGeEfF":
            return self._mismatch(value)
        shape = {"v": "g", "F": "f"}.get(self.verb, self.verb)
        default = 6 if shape in "eEf" else -1
        text = float_text(value, shape, default if self.precision is None else self.precision)
        return self._number("-" if text[0] == "-" else "", text.removeprefix("-"))
