"""Cuts a CEL text into tokens."""

from __future__ import annotations

import re
from typing import NamedTuple

from tape.errors import InvalidPredicate

_TOKEN = re.compile(
    r"""
    (?P<space>[\t\n\f\r ]+|//[^\n]*)
  | (?P<string>
        [bB]?[rR](?:\"\"\".*?\"\"\"|'''.*?'''|"[^"\n\r]*"|'[^'\n\r]*')
      | [bB]?(?:\"\"\"(?:[^\\]|\\.)*?\"\"\"|'''(?:[^\\]|\\.)*?'''
              |"(?:[^"\\\n\r]|\\.)*"|'(?:[^'\\\n\r]|\\.)*'))
  | (?P<float>[0-9]+\.[0-9]+(?:[eE][+-]?[0-9]+)?|[0-9]+[eE][+-]?[0-9]+|\.[0-9]+(?:[eE][+-]?[0-9]+)?)
  | (?P<integer>(?:0x[0-9a-fA-F]+|[0-9]+)[uU]?)
  | (?P<name>[A-Za-z_][A-Za-z0-9_]*)
  | (?P<quoted>`[A-Za-z0-9_./ -]+`)
  | (?P<symbol>&&|\|\||[=!<>]=|[-+*/%<>!?:.,()\[\]{}])
    """,
    re.VERBOSE | re.DOTALL,
)
_HINTS = {
    "&": "CEL's logical and is written &&",
    "|": "CEL's logical or is written ||",
    "=": "CEL compares with ==",
    '"': 'this string is not closed; it needs a closing " on the same line',
    "'": "this string is not closed; it needs a closing ' on the same line",
    "`": "a quoted field name is letters, digits and _ . / - or a space between two `",
}


class Token(NamedTuple):
    """A piece of the text; `kind` is `end` once, after the last."""

    kind: str
    text: str
    start: int
    end: int


def tokens_of(text: str) -> list[Token]:
    """The tokens without space and comments. Raises InvalidPredicate where there is none."""
    found: list[Token] = []
    position, length, match = 0, len(text), _TOKEN.match
    while position < length:
        piece = match(text, position)
        if piece is None:
            character = text[position]
            expected = _HINTS.get(character, f"unexpected character {character!r}")
            raise InvalidPredicate(expected, text, position)
        end = piece.end()
        kind = piece.lastgroup
        if kind != "space":
            assert kind is not None
            found.append(Token(kind, piece[0], position, end))
        position = end
    found.append(Token("end", "", length, length))
    return found
