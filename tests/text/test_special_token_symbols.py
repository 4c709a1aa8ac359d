"""Test special tokens that texts may contain literally, and the spaces around them."""

import pytest

from transduce.text.vocabulary import Symbol, SymbolSplitter

FINDER = SymbolSplitter(
    [
        Symbol("<mask>", spaces_before=True),
        Symbol("<sep>", spaces_after=True),
        Symbol("ab", whole_word=True),
        Symbol("<s>"),
        Symbol("<s><s>"),
        Symbol("NEW", normalized=True),
    ],
    str.lower,
)


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("", []),
        ("Plain", ["plain"]),
        ("a <s> b", ["a ", "[<s>]", " b"]),
        ("<s><s><s>", ["[<s><s>]", "[<s>]"]),  # the longest one first
        ("a  \t<mask> b", ["a", "[<mask>]", " b"]),
        ("  <mask>", ["[<mask>]"]),
        ("a <sep>  b", ["a ", "[<sep>]", "b"]),
        ("<sep>   <mask>", ["[<sep>]", "[<mask>]"]),
        ("ab cab ab1 (ab)", ["[ab]", " cab ab1 (", "[ab]", ")"]),
        ("a new NEW", ["a ", "[NEW]", " ", "[NEW]"]),
    ],
)
def test_text_is_split_into_symbols_and_the_parts_between_them(text: str, parts: list[str]) -> None:
    assert [f"[{part}]" if is_symbol else part for part, is_symbol in FINDER.parts(text)] == parts


@pytest.mark.timeout(20)  # where every space began a search, it took a minute
def test_a_long_text_of_spaces_is_split_in_linear_time() -> None:
    assert "".join(part for part, _ in FINDER.parts(" " * 200_000)) == " " * 200_000
