"""The grammar of SQL92 filters, in order of increasing precedence, and the parser from text to nodes.

Like Java's parser, it stops at the first token that cannot continue a complete expression and ignores the rest:
`a = 1 order by b` is `a = 1`. That token must be a valid token: `a = 1 ;` is refused.

Source: SelectorParser.jj, apache/rocketmq filter/ (tokens, precedence, what each rule builds).
"""

import re
from functools import cache
from typing import Any, Final

from lark import Lark, Token, Transformer, UnexpectedCharacters, UnexpectedInput, UnexpectedToken, v_args

from . import nodes
from .nodes import Expression, ExpressionError

_STRING: Final = r"'(?:''|[^'])*'"
_LINE_COMMENT: Final = r"--[^\n\r]*+(?:\r\n|\n|\r)"
_BLOCK_COMMENT: Final = r"\/\*[^*]*\*(?:\*|[^*\/][^*]*\*)*\/"
_GAP: Final = rf"(?:[ \t\n\r\f]|{_LINE_COMMENT}|{_BLOCK_COMMENT})*+"
_ITEM: Final = re.compile(f"{_BLOCK_COMMENT}|{_LINE_COMMENT}|({_STRING})")
GRAMMAR: Final = rf"""
start: or_expr

?or_expr: and_expr
    | or_expr _OR and_expr                                              -> either
?and_expr: equality
    | and_expr _AND equality                                            -> both
?equality: comparison
    | equality "=" comparison                                           -> equal
    | equality _UNEQUAL comparison                                          -> not_equal
    | equality _IS _NULL                                                -> is_null
    | equality _IS _NOT _NULL                                           -> is_not_null
?comparison: unary
    | comparison ORDER unary                                            -> ordered
    | comparison _BETWEEN unary _AND unary                              -> between
    | comparison _NOT _BETWEEN unary _AND unary                         -> not_between
    | comparison _IN (STRINGS | "(" STRING ("," STRING)* ")")           -> one_of
    | comparison _NOT _IN (STRINGS | "(" STRING ("," STRING)* ")")      -> none_of
    | comparison (CONTAINS | STARTSWITH | ENDSWITH) STRING              -> text_test
    | comparison _NOT (CONTAINS | STARTSWITH | ENDSWITH) STRING         -> no_text_test
?unary: primary
    | "+" unary
    | "-" unary                                                         -> negative
    | _NOT unary                                                        -> negation
?primary: STRING                                                        -> text
    | DECIMAL                                                           -> whole
    | FLOAT                                                             -> float_number
    | _TRUE                                                             -> true
    | _FALSE                                                            -> false
    | _NULL                                                             -> null
    | ID                                                                -> property_value
    | "(" or_expr ")"

_UNEQUAL.2: "<>"
ORDER: ">=" | "<=" | ">" | "<"
STRINGS.4: /\({_GAP}{_STRING}(?:{_GAP},{_GAP}{_STRING})+{_GAP}\)/
STRING: /{_STRING}/
FLOAT.2: /[0-9]+\.[0-9]*(?:[eE][+-]?[0-9]+)?|\.[0-9]+(?:[eE][+-]?[0-9]+)?|[0-9]+[eE][+-]?[0-9]+/
DECIMAL: /0|[1-9][0-9]*[lL]?/
ID: /[A-Za-z_$][A-Za-z0-9_$]*/
BLANK: /[ \t\n\r\f]+/
LINE_COMMENT.3: /{_LINE_COMMENT}/
BLOCK_COMMENT.3: /{_BLOCK_COMMENT}/

%ignore BLANK
%ignore LINE_COMMENT
%ignore BLOCK_COMMENT
%declare _OR _AND _NOT _IS _NULL _BETWEEN _IN _TRUE _FALSE CONTAINS STARTSWITH ENDSWITH
"""
KEYWORDS: Final = {
    name.strip("_"): name
    for name in (
        *("_OR", "_AND", "_NOT", "_IS", "_NULL", "_BETWEEN", "_IN", "_TRUE", "_FALSE"),
        *("CONTAINS", "STARTSWITH", "ENDSWITH"),
    )
}
EXPRESSION_LENGTH_MAX: Final = 16 * 1024  # characters
TOKENS_MAX: Final = 1_500  # a list of several texts is one; enough for 375 comparisons joined by OR
UNENDED_MAX: Final = 100  # "--" that begin no comment: for each, all that follows is searched for an end of line


def parse(text: str) -> Expression:
    """Return the condition of an expression. ExpressionError: a syntax error, or too large."""
    if len(text) > EXPRESSION_LENGTH_MAX:
        raise ExpressionError(
            f"found an expression of {len(text)} characters, expected at most {EXPRESSION_LENGTH_MAX}: shorten it"
        )
    parser: Any = _parser().parse_interactive(text)  # untyped in lark
    stopped_at: int | None = None
    count = unended = 0
    try:
        for token in parser.lexer_thread.lex(parser.parser_state):
            count += 1
            unended += text.startswith("--", token.start_pos)
            if unended > UNENDED_MAX:
                raise ExpressionError(
                    f"found more than {UNENDED_MAX} signs -- that do not begin a comment, expected fewer: end the "
                    "line after a comment"
                )
            if count > TOKENS_MAX:
                raise ExpressionError(
                    f"found more than {TOKENS_MAX} words, numbers and signs, expected fewer: write IN ('a', 'b') for "
                    "many comparisons with one property"
                )
            try:
                parser.feed_token(token)
            except UnexpectedToken:  # the tokens before it may be a complete expression
                stopped_at = token.start_pos
                break
        result = parser.feed_eof()
    except UnexpectedCharacters as error:
        raise ExpressionError(_what_was_found(text, error.pos_in_stream)) from None
    except UnexpectedInput:
        raise ExpressionError(_what_was_found(text, stopped_at)) from None
    assert isinstance(result, Expression)
    return result


def _what_was_found(text: str, at: int | None) -> str:
    if at is None:
        return f"found the end of {text!r:.80}, expected the rest of the expression"
    return f"found {text[at : at + 20]!r} at character {at + 1}, which the SQL92 grammar does not allow there"


def _keyword(token: Token) -> Token:
    """Treat an identifier that spells a keyword, in upper or lower case, as that keyword."""
    kind = KEYWORDS.get(token.upper())
    return token if kind is None else Token.new_borrow_pos(kind, token.value, token)


@v_args(inline=True)
class _Builder(Transformer[Token, Expression]):
    """One method per rule."""

    either = staticmethod(nodes.either)
    both = staticmethod(nodes.both)
    equal = staticmethod(nodes.equal)
    not_equal = staticmethod(nodes.not_equal)
    is_null = staticmethod(nodes.is_null)
    is_not_null = staticmethod(nodes.is_not_null)
    between = staticmethod(nodes.between)
    not_between = staticmethod(nodes.not_between)
    negative = staticmethod(nodes.negative)
    negation = staticmethod(nodes.negation)

    def start(self, node: Expression) -> Expression:
        return nodes.as_condition(node)

    def ordered(self, left: Expression, symbol: Token, right: Expression) -> Expression:
        return nodes.ordered(left, str(symbol), right)

    def one_of(self, node: Expression, *texts: Token) -> Expression:
        return nodes.one_of(node, _items(texts), is_negated=False)

    def none_of(self, node: Expression, *texts: Token) -> Expression:
        return nodes.one_of(node, _items(texts), is_negated=True)

    def text_test(self, node: Expression, name: Token, search: Token) -> Expression:
        return nodes.text_test(node, name.type, _unquoted(search), is_negated=False)

    def no_text_test(self, node: Expression, name: Token, search: Token) -> Expression:
        return nodes.text_test(node, name.type, _unquoted(search), is_negated=True)

    def text(self, token: Token) -> Expression:
        return nodes.text_constant(_unquoted(token))

    def whole(self, token: Token) -> Expression:
        return nodes.whole_constant(str(token))

    def float_number(self, token: Token) -> Expression:
        return nodes.float_constant(str(token))

    def true(self) -> Expression:
        return nodes.truth_constant(True)

    def false(self) -> Expression:
        return nodes.truth_constant(False)

    def null(self) -> Expression:
        return nodes.truth_constant(None)

    def property_value(self, token: Token) -> Expression:
        return nodes.property_value(str(token))


def _items(texts: tuple[Token, ...]) -> list[str]:
    """Return the texts of a list, which are one token if there are several: a token each takes ten times as long."""
    if texts[0].type == "STRINGS":
        return [_unquoted(text) for text in _ITEM.findall(texts[0]) if text]
    return [_unquoted(text) for text in texts]


def _unquoted(token: str) -> str:
    return token[1:-1].replace("''", "'")


@cache
def _parser() -> Lark:
    return Lark(
        GRAMMAR,
        parser="lalr",
        lexer="basic",
        transformer=_Builder(),
        lexer_callbacks={"ID": _keyword},
        maybe_placeholders=False,
    )
