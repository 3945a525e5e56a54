"""The filter language of subscriptions: which messages a subscription delivers, by their attributes. Pure.

Page: "Filter messages from a subscription". The whole documented grammar::

    filter     = all | any | term          all = term AND term AND ...      any = term OR term OR ...
    term       = [NOT | -] (condition | "(" filter ")")
    condition  = attributes:KEY | attributes.KEY = VALUE | attributes.KEY != VALUE | hasPrefix(attributes.KEY, VALUE)

KEY is a word of letters, digits, hyphens and underscores, or a string literal; VALUE is a string literal with the escapes
of a backslash. AND and OR on one level need parentheses. ``attributes.KEY != VALUE`` is true without the attribute, too.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Mapping
from typing import Final

from local.pubsub.errors import invalid

Filter = Callable[[Mapping[str, str]], bool]
"""Whether a message with these attributes is delivered."""

_TOKEN: Final = re.compile(r'\s*(?:("(?:[^"\\\n]|\\.)*")|(!=|[():,.=-])|([A-Za-z0-9_][A-Za-z0-9_-]*))')


def parse(text: str) -> Filter:
    """Raises `local.pubsub.errors.Refusal` if the text is not a filter. An empty text lets every message through."""
    if not text.strip():
        return lambda _: True
    parser = _Parser(_tokens(text))
    found = parser.filter()
    if parser.rest:
        raise invalid(f"Invalid filter: nothing may follow at {' '.join(parser.rest)!r}.")
    return found


def _tokens(text: str) -> list[str]:
    found, position = [], 0
    while text[position:].strip():
        match = _TOKEN.match(text, position)
        if not match:
            raise invalid(f"Invalid filter: cannot read {text[position:].strip()!r}.")
        found.append(match[0].strip())
        position = match.end()
    return found


class _Parser:
    def __init__(self, tokens: list[str]) -> None:
        self.rest = tokens

    def filter(self) -> Filter:
        terms = [self._term()]
        word = self._peek()
        while word in ("AND", "OR") and self._peek() == word:
            self._take()
            terms.append(self._term())
        if self._peek() in ("AND", "OR"):
            raise invalid("Invalid filter: AND and OR need parentheses where they meet.")
        if word == "OR":
            return lambda attributes: any(term(attributes) for term in terms)
        return lambda attributes: all(term(attributes) for term in terms)

    def _term(self) -> Filter:
        if self._peek() in ("NOT", "-"):
            self._take()
            inner = self._operand()
            return lambda attributes: not inner(attributes)
        return self._operand()

    def _operand(self) -> Filter:
        if self._peek() == "(":
            self._take()
            inner = self.filter()
            self._expect(")")
            return inner
        return self._condition()

    def _condition(self) -> Filter:
        word = self._take()
        if word == "hasPrefix":
            self._expect("(")
            self._expect("attributes")
            self._expect(".")
            key = self._key()
            self._expect(",")
            prefix = self._literal()
            self._expect(")")
            return lambda attributes: key in attributes and attributes[key].startswith(prefix)
        if word != "attributes":
            raise invalid(f"Invalid filter: {word!r} is not a condition.")
        operator = self._take()
        if operator == ":":
            key = self._key()
            return lambda attributes: key in attributes
        if operator != ".":
            raise invalid(f"Invalid filter: {operator!r} may not follow attributes.")
        key, operator = self._key(), self._take()
        if operator not in ("=", "!="):
            raise invalid(f"Invalid filter: {operator!r} does not compare; = and != do.")
        value = self._literal()
        if operator == "=":
            return lambda attributes: attributes.get(key) == value
        return lambda attributes: attributes.get(key) != value

    def _key(self) -> str:
        token = self._take()
        if token.startswith('"'):
            return _text_of(token)
        if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_-]*", token):
            raise invalid(f"Invalid filter: {token!r} is not a key.")
        return token

    def _literal(self) -> str:
        token = self._take()
        if not token.startswith('"'):
            raise invalid(f"Invalid filter: {token!r} is not a string literal.")
        return _text_of(token)

    def _peek(self) -> str | None:
        return self.rest[0] if self.rest else None

    def _take(self) -> str:
        if not self.rest:
            raise invalid("Invalid filter: it ends too early.")
        return self.rest.pop(0)

    def _expect(self, token: str) -> None:
        found = self._take()
        if found != token:
            raise invalid(f"Invalid filter: {token!r} is missing before {found!r}.")


def _text_of(literal: str) -> str:
    # The escapes of the filter language (Unicode, hexadecimal, octal, backslash) are those of Python's literals.
    try:
        return str(ast.literal_eval(literal))
    except (SyntaxError, ValueError) as error:
        raise invalid(f"Invalid filter: {literal} is not a string literal.") from error
