"""NUMERIC in templates: exact, also beside the numbers that a template itself states.

`price <= 19.99` is true of the NUMERIC 19.99, as in BigQuery: a literal is the decimal that its text says. With a FLOAT64
column the result is FLOAT64, as in BigQuery ("Conversion rules", supertypes); whatever else a template computes is Python's.
"""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal, DecimalException
from typing import Any, Final


class Number(Decimal):
    """A NUMERIC: its text has neither an exponent nor zeros at its end."""

    __slots__ = ()

    def __str__(self) -> str:
        if not self:
            return "0"
        text = Decimal.__format__(self, "f")
        return text.rstrip("0").rstrip(".") if "." in text else text

    __repr__ = __str__
    __hash__ = Decimal.__hash__

    def __format__(self, spec: str, context: Any = None, /) -> str:
        if not spec:
            return str(self)
        # Without a type or a precision, a width alone: "f" adds nothing to what is exact.
        exact = "f" if "." not in spec and spec[-1] not in "eEfFgGn%" else ""
        return Decimal.__format__(Decimal(str(self)), spec + exact)


class Literal(float):
    """A number with a point in a template: a float, and beside a NUMERIC the decimal of its text."""

    __slots__ = ("exact",)
    exact: Decimal

    @classmethod
    def of(cls, text: str) -> Literal:
        return cls.made(float(text), Decimal(text))

    @classmethod
    def made(cls, value: float, exact: Decimal) -> Literal:
        literal = cls(value)
        literal.exact = exact
        return literal

    def __neg__(self) -> Literal:
        return Literal.made(float.__neg__(self), -self.exact)

    def __pos__(self) -> Literal:
        return self

    def __abs__(self) -> Literal:
        return Literal.made(float.__abs__(self), abs(self.exact))


def _beside(name: str) -> Callable[[Number, Any], Any]:
    """An operator of NUMERIC: exact with a literal, FLOAT64 with a FLOAT64."""
    exact, inexact = getattr(Decimal, name), getattr(float, name)

    def operator(number: Number, other: Any) -> Any:
        if isinstance(other, float) and not isinstance(other, Literal):
            return inexact(float(number), other)
        found = exact(number, other.exact if isinstance(other, Literal) else other)
        return Number(found) if isinstance(found, Decimal) else found  # The next operand may be a literal again.

    return operator


def _of_literals(name: str) -> Callable[[Literal, Any], Any]:
    """An operator whose result with another literal, or a whole number, is as good as a literal."""
    exact, inexact = getattr(Decimal, name), getattr(float, name)

    def operator(literal: Literal, other: Any) -> Any:
        found = inexact(literal, other)
        stated = other.exact if isinstance(other, Literal) else Decimal(other) if isinstance(other, int) else None
        if stated is None or not isinstance(found, float):
            return found
        try:
            return Literal.made(found, exact(literal.exact, stated))
        except DecimalException:
            return found

    return operator


_KEPT: Final = ("add", "radd", "sub", "rsub", "mul", "rmul", "truediv", "rtruediv")
_OTHERS: Final = ("floordiv", "rfloordiv", "mod", "rmod", "pow", "rpow", "eq", "ne", "lt", "le", "gt", "ge")
for _name in (*_KEPT, *_OTHERS):
    setattr(Number, f"__{_name}__", _beside(f"__{_name}__"))
for _name in _KEPT:
    setattr(Literal, f"__{_name}__", _of_literals(f"__{_name}__"))
