"""Find spans of texts that translation must not change: placeholders, tags, URLs, file names, numbers, emoji.

Every expression is linear in the length of a text: it starts only where a run of its characters starts, and repeats
are possessive or bounded. Servers search texts of unknown origin.
"""

import re
import unicodedata
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from itertools import pairwise
from typing import NamedTuple

from transduce.errors import TransduceError
from transduce.text.files import compose, is_composed
from transduce.text.languages import CJK
from transduce.text.word_spans import Span, disjoint, merge_spans, normalized_text

PLACEHOLDER_TOKENS = tuple(f"<placeholder-{number}>" for number in range(1, 9))
"""Reserved tokens that stand for protected spans (text to copy) in the source and translation of models trained with
them.
"""

# --- expressions ---


# Letters of scripts without spaces, and Hangul, end a URL or a name, as in 访问https://example.com看看.
_LATER_SCRIPTS = r"\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u2e80-\uffff\U00010000-\U0010ffff"
_NO_LATER_SCRIPT = rf"(?![{_LATER_SCRIPTS}])"


def _name_characters() -> str:
    """Return regex ranges of letters, marks, digits, joiners and `_` of all scripts except `_LATER_SCRIPTS`."""
    is_later, ranges, start, last = re.compile(f"[{_LATER_SCRIPTS}]").match, list[str](), -1, -1
    for code in range(0x2E81):
        category = unicodedata.category(chr(code))
        if not is_later(chr(code)) and (category[0] in "LMN" or chr(code) in "_\u200c\u200d"):
            start, last = start if start >= 0 else code, code
        elif start >= 0 and (category != "Cn" or is_later(chr(code))):  # ranges contain unassigned characters
            ranges, start = [*ranges, f"{chr(start)}-{chr(last)}"], -1
    return "".join(ranges)


_NAME = _name_characters()
_FIRST = rf"(?!\d)[{_NAME}]"  # of a name that begins with a letter or `_`
# A prefix in Hebrew or Arabic letters may be joined to a Latin name. Other letters before a name belong to it.
_RTL = r"\u0590-\u08ff"
_NO_PREFIX = rf"(?![{_RTL}]{{1,40}}+-?[A-Za-z])"
_AFTER_PREFIX = rf"(?:(?<=[{_RTL}])|(?<=[{_RTL}]-))(?=[A-Za-z])"
_LATER_LETTER = (
    r"(?:(?=[\w\u0e31-\u0e3a\u0e47-\u0e4e\u0eb1-\u0ecd\u102b-\u103e\u1056-\u109d\u17b4-\u17d3\u17dd\u3099\u309a])"
    rf"[{_LATER_SCRIPTS}])"
)
_LATER_WORD = rf"{_LATER_LETTER}{{1,100}}+"
_URL_PART = rf"[{_NAME}\-.~:/?#\[\]@!$&'()*+,;=%]"
# In such a script, but Korean, a name is in quotation marks or behind a path's separator: nothing else shows its start.
_LATER_NAME = (
    rf"(?:(?:(?<=[/\\])|(?<=[\"'“‘„«‹「『《〈])(?=[^\"'”’“»›」』》〉\s]{{1,200}}+[\"'”’“»›」』》〉]))(?=[{_NAME}-]{{0,20}}+{_LATER_LETTER})"
    rf"(?:{_LATER_LETTER}|[{_NAME}-]){{1,100}}+|(?<![^\s])[\uac00-\ud7a3][\uac00-\ud7a3\d_-]{{0,100}}+)"
)
# Letters of such scripts belong to a URL around `=`, after `/`, `_`, `(` and the like in a path with ASCII parts, and
# if it goes on: https://zh.wikipedia.org/wiki/北京 and https://example.com/文档/a.pdf, but not https://example.com/看看.
_LATER_PART = rf"{_LATER_WORD}{_URL_PART}*+"
_LATER_PARTS = rf"(?:(?:(?<=[/=_(#:+-])|(?<=[?&])(?={_LATER_WORD}=)){_LATER_PART})*+"
_NEXT_PART = rf"(?:/\w|\?\w{{1,100}}+=|\.(?:[a-z\d]{{2,5}}+|[A-Z\d]{{2,5}}+)(?![{_NAME}]))"
_GOES_ON = rf"(?={_LATER_WORD}(?:[_-]|{_LATER_WORD})*+{_NEXT_PART})"
_ADDRESS = (
    rf"(?:(?={_URL_PART})(?:(?!/){_URL_PART})*+(?:(?<==){_LATER_PART})*+"
    rf"(?:/(?:(?:{_URL_PART}++|{_GOES_ON}{_LATER_PART}){_LATER_PARTS})?+)?+"
    rf"|{_LATER_WORD}(?:-|{_LATER_WORD})*+(?:\.[\w-]++)++(?:[/?#:](?:{_URL_PART}|{_LATER_WORD})*+)?+)"
)
# No expression starts or ends within a word, or within digits of any script.
_BEGINS = rf"(?:(?<![{_NAME}\d])|(?<=[{_RTL}])(?=[A-Za-z]))"
_ENDS = rf"(?![{_NAME}\d])"
_EXTENSIONS = (
    "7z aac apk avi bash bat bin bmp bz2 c cc cfg class conf cpp cs css csv dat db deb dll dmg doc docx env epub exe "
    "flac flv gif git go gz h hpp htm html ico ini ipynb iso jar java jpeg jpg js json jsx key kt less lock log lua "
    "m4a md mkv mov mp3 mp4 mpeg mpg msi odp ods odt ogg otf pdf pem php pkl png po pot ppt pptx properties ps1 psd py "
    "pyc rar rb rpm rs rst rtf scss sh so sql srt svg swift tar tex tgz tif tiff toml ts tsv tsx ttf txt vtt vue wav "
    "webm webp whl woff woff2 xhtml xlf xliff xls xlsx xml xz yaml yml zip com org net edu gov io dev info"
)
_UNITS = (
    "km mm cm nm µm μm m ft mi yd kg mg µg μg g t lb lbs oz l ml cl dl kB KB MB GB TB PB kb Mb Gb KiB MiB GiB TiB bit "
    "Hz kHz MHz GHz THz W kW MW GW Wh kWh MWh mAh Ah V kV mV mA Ω kΩ Pa hPa kPa MPa bar psi kN kJ MJ cal kcal "
    "px dpi fps ms µs μs ns min h mph rpm dB °C °F ° ℃ ℉ km/h m/s m² m³ km² cm² cm³ mm² % %% ‰"
)  # `%%` is a percent sign in a format of C or Python
_CURRENCY = "[$¢£¤¥֏฿₠-⃀]"
_EMOJI = (
    r"(?:[\U0001f1e6-\U0001f1ff]{2}"  # flags of two letters
    r"|[0-9#*]\ufe0f?\u20e3"  # keycaps
    r"|(?:[\U0001f000-\U0001f1e5\U0001f200-\U0001faff\u2600-\u27bf\u2b05-\u2b55\u2300-\u23ff\u2934\u2935\u3030\u303d"
    r"\u3297\u3299\u203c\u2049\u2139\u2194-\u21aa]|[\u00a9\u00ae\u2122](?=\ufe0f))"
    r"[\ufe0e\ufe0f\U0001f3fb-\U0001f3ff\U000e0020-\U000e007f]*+"
    r"(?:\u200d[\U0001f000-\U0001faff\u2600-\u27bf\u2b05-\u2b55]"
    r"[\ufe0e\ufe0f\U0001f3fb-\U0001f3ff\U000e0020-\U000e007f]*+)*+)"
)
_ATTRIBUTE = r"""\s++[\w:.-]++(?:\s*+=\s*+(?:"[^"<>]*+"|'[^'<>]*+'|[^\s"'<>=]++))?+"""


def _any_of(words: str) -> str:
    """Return a regular expression that matches any of the space-separated words of a text, longer words first."""
    return "|".join(map(re.escape, sorted(words.split(), key=len, reverse=True)))


# Formulas of LaTeX between the marks that MathJax, KaTeX and Pandoc read. `$` also stands before prices and variables,
# and `$$` for a price level. So a formula with words, apart from functions as in max(a, b), has a sign of mathematics.
_FUNCTIONS = "arg|cosh?|cot|det|dim|exp|gcd|inf|ker|lim|ln|log|max|min|mod|sinh?|sup|tanh?"
_FORMULA_WORD = (
    rf"(?:(?<![^\W\d_])(?<![\\&])(?!(?:{_FUNCTIONS})(?![^\W\d_]))(?:[^\W\d_]{{2,}}+(?!\()|[\u0590-\u1cff{CJK}]))"
)
_FORMULA_END = r"(?:(?<=[\w)\]}!'′])\$(?![\d$({])|(?<=[^\s$])\$(?![\w$\"'{(]))"
# Markdown writes brackets as `\[` and `\(`, too. A sign in these does not stand for bold text, a tag or C++.
_BRACKETED = r"(?:[^\\]|\\[^()\[\]])"
_MATH_SIGN = r"(?:\\[A-Za-z\\]|[\^≤≥≠≈±×÷∈∑∫√→]|=(?![\"'])|\s(?:[+<>]|&[gl]t;)\s|(?<![^\W\d_]{2})(?<!\\)_)"
FORMULA = (
    rf"(?<![$\\])\$\$(?!\$)(?:(?=\s*+=?+(?:\\|[^$]{{1,1000}}?[\\^_=+<>|*]))|(?![^$]{{0,1000}}?{_FORMULA_WORD})"
    r"|(?=(?:[\w(\[{]|\s*=)[^$]{0,1000}(?<=[\w)\]}])\$\$))(?:[^$\\]|\\.|\$(?!\$)){1,1000}?\$\$(?!\$)"
    r"|(?<![A-Za-z\d$\\])\$(?![\s$]|\{[^\\])(?:(?=[A-Za-z_][\w.]{0,40}\$(?![A-Za-z_]))"
    r"|(?=[^$]{0,200}?(?:[\\^]|(?<![^\W\d_]{2})_))|(?!\d)(?=[^$]{0,200}?[=<>|+*])"
    rf"|(?![^$]{{0,200}}?{_FORMULA_WORD}))(?:[^$\\]|\\.){{1,200}}?{_FORMULA_END}"
    r"|\\begin\{(?P<environment>(?:equation|align(?:ed|at)?|gather(?:ed)?|multline|eqnarray|displaymath|math|split|cases"
    r"|array|[pbvBV]?matrix)\*?)\}.{0,1000}?\\end\{(?P=environment)\}"
    rf"|(?<!\\)\\[(\[](?:(?={_BRACKETED}*?{_MATH_SIGN})|(?!{_BRACKETED}*?{_FORMULA_WORD})){_BRACKETED}++\\[)\]]"
)
"""An expression that matches a formula of LaTeX, such as `$x^2$`; compile it with `re.DOTALL`."""
_LABEL = rf"[{_NAME}]++(?:-++[{_NAME}]++)*+"
_KINDS = {
    "formula": rf"(?s:{FORMULA})",
    "code": r"(?<!`)(?:``(?!`)(?:[^`\n]|`(?!`)){1,1000}+``|`(?!`)[^`\n]{1,1000}+`)(?!`)",
    "tag": rf"<(?:/?[A-Za-z][{_NAME}:.-]*+(?:{_ATTRIBUTE})*+\s*+/?|/?\d++\s*+/?|!--[^<>]*+--)>",
    "url": rf"(?:https?://|(?<![A-Za-z_])(?:ftps?|sftp|wss?|file|git|ssh)://|{_BEGINS}(?:www\.)(?=\w))"
    rf"{_ADDRESS}|{_BEGINS}data:[a-z]{{1,20}}+/[A-Za-z0-9.+-]{{1,80}}+[;,]{_URL_PART}++",
    "mail": rf"(?:(?:(?<![{_NAME}\d.%+-]){_NO_PREFIX}|{_AFTER_PREFIX})(?:mailto:)?+[{_NAME}%+-]{{1,200}}+"
    rf"(?:\.[{_NAME}%+-]{{1,200}}+){{0,20}}+|{_LATER_NAME})@"
    rf"(?:(?:{_LABEL}\.(?=[{_NAME}])){{1,20}}+(?:xn--)?+[{_NAME}]++|{_LATER_WORD}(?:\.{_LATER_WORD}){{1,20}}+)",
    # of Laravel, Symfony, ERB, vue-i18n and others: :name, %name%, <%= name %>, @:menu.home, [[name]], [NAME], ~name~
    "template variable": rf"(?<![^\s(\[（]):[a-z][{_NAME}]++(?!:)"
    rf"|(?<![\w%])%{{1,2}}{_FIRST}[{_NAME}.]++%{{1,2}}(?![\w%])|<%[^<>%\n]{{1,200}}+%>"
    rf"|(?<![{_NAME}])@(?:\.[a-z]{{1,20}}+)?+:(?:\([{_NAME}.-]{{1,100}}+\)|{_FIRST}[{_NAME}]*+(?:\.[{_NAME}]++)*+)"
    rf"|\[\[ ?+{_FIRST}[{_NAME}.]*+ ?+\]\]|\[[A-Z][A-Z0-9]++(?:_[A-Z0-9]++)*+\](?!\()"
    rf"|(?<![\w~])~{_FIRST}[{_NAME}]*+~(?![\w~])",
    "format": rf"%\([{_NAME}.]{{1,100}}\)[#0+-]?+\d*+(?:\.\d++)?+[A-Za-z]"
    # Cyrillic letters may be a unit after a format, as in %dч.
    r"|%(?:\d++\$)?+[#0+-]?+\d*+(?:\.\d++)?+(?:hh|ll|[hlzjt])?+[sdifgeuxXcpo@](?![A-Za-z_\d\u00c0-\u036f])"
    rf"|%%{_ENDS}",
    "variable": rf"(?<![{_NAME}$])\${_FIRST}[{_NAME}]*+(?:\([{_NAME}.:'\"{{}}, -]{{1,100}}+\))?+"
    rf"|\$\({_FIRST}[{_NAME}]*+\)",
    "windows path": rf"{_BEGINS}[A-Za-z]:\\(?:{_NO_LATER_SCRIPT}[^\s<>:\"|?*,;]|(?<=\\){_LATER_WORD})++",
    "escape": r"\\(?:[nrtbfav0\"'\\]|[1-9]\d?+(?!\d)|u[0-9a-fA-F]{4}|x[0-9a-fA-F]{2})",
    "path": rf"(?<![{_NAME}./~])(?:~|\.{{1,2}})?+(?:/(?:[{_NAME}.@+-]|(?<=/){_LATER_WORD}(?=[/._-]\w))++){{2,}}+/?+"
    rf"|(?<![{_NAME}./~])(?:~|\.{{1,2}})/[{_NAME}.@+-]++",
    "file": rf"(?:(?:(?<![{_NAME}./@-]){_NO_PREFIX}|{_AFTER_PREFIX})[{_NAME}-]{{1,200}}+[./]|{_LATER_NAME}\.)"
    rf"(?:[{_NAME}-]{{1,200}}+[./]){{0,30}}(?<=\.)(?:{_any_of(_EXTENSIONS)})(?![{_NAME}@])(?:/{_URL_PART}*+)?+",
    "handle": rf"(?<![{_NAME}.@/])@[{_NAME}]++(?:[.-][{_NAME}]++)*+",
    "topic": rf"(?<![{_NAME}#&/])#(?:[^\s#，。！？,.!?]{{1,30}}+#(?!\w)|[{_NAME}]++)"
    rf"|(?<!\S)#(?![键鍵号號字]){_LATER_LETTER}(?:{_LATER_LETTER}|[{_NAME}])*+",
    "space mark": r"\u2581++",  # sentencepiece reads it as a space
    "entity": r"&(?:[A-Za-z]{2,31}+|#\d{1,7}+|#x[0-9a-fA-F]{1,6}+);",
    "keycap or emoji": rf"{_EMOJI}++",
    "emoji name": rf"(?<![{_NAME}:]):(?:[a-z][a-z0-9_+-]{{1,40}}+|[+-]1):(?![{_NAME}:])",
    "identifier": rf"(?<![{_NAME}\d-])(?:[0-9a-fA-F]{{8}}-(?:[0-9a-fA-F]{{4}}-){{3}}[0-9a-fA-F]{{12}}|0x[0-9a-fA-F]++)"
    rf"{_ENDS}|(?:(?<![{_NAME}.]){_NO_PREFIX}|{_AFTER_PREFIX})(?=[{_NAME}]{{1,200}}+(?:\(\))?+{_ENDS})"
    rf"(?:(?![\d_])[{_NAME}]){{1,20}}+(?!_innen{_ENDS})(?:_(?:(?!_)[{_NAME}])++)++(?:\(\))?+{_ENDS}|{_BEGINS}[A-Za-z_]{{2,40}}+\(\)"
    rf"|{_BEGINS}__[A-Za-z][A-Za-z0-9]*+(?:_[A-Za-z0-9]++)*+__(?:\(\))?+{_ENDS}",
    "account number": rf"{_BEGINS}[A-Z]{{2}}\d{{2}}[ \u00a0]?+[A-Z\d]{{4}}(?:[ \u00a0]?+\d[A-Z\d]{{3}}){{1,7}}+"
    rf"(?:[ \u00a0]?+[A-Z\d]{{1,3}})?+{_ENDS}",
    "telephone number": r"(?<![A-Za-z_+\d])(?:\+?+\d{1,4}+[ \u00a0./-]?+)?\((?:0|\d{2,5})\)[ \u00a0./-]?+"
    rf"(?:\d{{5,}}+|\d++[ \u00a0./-]\d++)(?:[ \u00a0./-]\d++)*+{_ENDS}",
    "code name": rf"(?<![{_NAME}.\d-])[A-Z]{{1,10}}+-?+\d[A-Z\d]*+(?:-[A-Z\d]++)*+(?:\.\d++)*+{_ENDS}(?![,'’]\d)",
    "version": rf"(?<![{_NAME}.,\d])v?+\d++(?:\.\d++){{2,}}+[-+][A-Za-z.\d]++{_ENDS}"
    rf"|{_BEGINS}v\d++(?:\.\d++)*+{_ENDS}(?![,'’]\d)",
}
# Texts without any of these characters have no protected span, so that most sentences are not searched.
_TRIGGER = re.compile(r"[{}<%$\\@#`&_\d~\u2049-\u3299\u203c\ufe0f\U0001f000-\U0001faff]|[./:][^\W\d]|\S\(|\[[A-Z\[]")


@cache
def _pattern() -> re.Pattern[str]:
    """Return the regular expression of all kinds of protected spans, compiled on first use, which takes 90 ms."""
    return re.compile("|".join(f"(?:{pattern})" for pattern in _KINDS.values()))


_TRAILING = ".,;:!?'\"*"
_BRACKETS = {")": "(", "]": "["}

# --- braces ---


_MAX_BRACES = 2_000
_TOKEN = r"[^\s{}]{1,200}+"
_SIMPLE = re.compile(rf"\{{\s?(?:{_TOKEN})?+\s?\}}")
_MESSAGE = re.compile(
    r"\{\s*+[\w.-]++\s*+,\s*+(?:plural|select|selectordinal|choice|number|date|time|ordinal|duration)\b"
)
_TEMPLATE = re.compile(r"\{[{%#].*[}%#]\}", re.DOTALL)
_BRACE = re.compile("[{}]")
_BEFORE_BRACES = "$#%@"


def _brace_spans(text: str) -> Iterator[Span]:
    """Yield the spans of placeholders, templates and ICU messages in braces, with a sign such as $ before them.

    Other text in braces, text of over 2,000 characters, and text without a closing brace is left out.
    """
    opened: list[int] = []
    balanced: list[Span] = []
    for match in _BRACE.finditer(text):
        if match[0] == "{":
            opened.append(match.start())
        elif opened:
            balanced.append(Span(opened.pop(), match.end()))
    end = 0
    for span in sorted(balanced, key=lambda span: (span.start, -span.end)):
        if span.start >= end and _is_placeholder(text, span):
            before = span.start > end and text[span.start - 1] in _BEFORE_BRACES
            yield Span(span.start - before, span.end)
            end = span.end


def _is_placeholder(text: str, span: Span) -> bool:
    if span.end - span.start > _MAX_BRACES:
        return False
    braces = text[span.start : span.end]
    return any(pattern.match(braces) for pattern in (_MESSAGE, _TEMPLATE)) or _SIMPLE.fullmatch(braces) is not None


# --- calls ---


# A name with arguments, as in foo(bar, 1); arguments have spaces only after commas, and at most one more level
# of parentheses.
_CALL = re.compile(
    rf"(?<![{_NAME}.$@#%/\\-])(?P<name>{_FIRST}[{_NAME}]{{0,40}}+(?:\.{_FIRST}[{_NAME}]{{0,40}}+){{0,4}}+)"
    rf"\((?P<arguments>(?:[!-'*-~{_NAME}]|(?<=,) |\([!-'*-~{_NAME}]{{0,60}}+\)){{1,100}}+)\)(?![{_NAME}])"
)
# Signs of code in a name or arguments. They are required in scripts with spaces, because of words such as friend(s).
_CODE_SIGN = re.compile(r"""[_=\[{&("]|'[^']*'|\w\.\w""")
_HAS_CJK = re.compile(f"[{CJK}]")


def _call_spans(text: str) -> Iterator[Span]:
    """Yield the spans of function calls in a text, such as `foo(bar)`.

    In a text without CJK letters, only calls that contain a sign of code, such as `_` or `=`, count.
    """
    is_cjk = _HAS_CJK.search(text) is not None
    for match in _CALL.finditer(text):
        if is_cjk or _CODE_SIGN.search(match["name"]) or _CODE_SIGN.search(match["arguments"]):
            yield Span(*match.span())


# --- numbers ---


# Numbers of at least this many digits are protected, as models alter them; shorter ones stay words of the sentence.
_MANY_DIGITS = 5
# Versions, network addresses and dates are protected even with fewer digits.
_DOTTED = re.compile(r"\d++(?:\.\d++){2,}+")
_SPACE = r"[ \u00a0\u2009\u202f]"
_LETTER = r"[A-Za-z_\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u058f]"  # scripts that separate a number from a word
_NO_LETTER = rf"(?!\d|{_LETTER})"
_RANGE = rf"(?:[‐‑–—−×~]| [-–—−×] |-(?={_CURRENCY}))"
_DIGITS = r"\d++(?:[⁺⁻]?+[⁰¹²³⁴-⁹]++)?+(?: ?+[¼-¾⅐-⅞])?+"
# Digits with all signs that join them: 1,234.5, 12:30, 5-10, 5 – 10, $5-$10, 1/2, 1e-5, 10⁵, 2½. A full-width comma
# separates a list, unless three digits follow.
_FIGURES = rf"{_DIGITS}(?:(?:[.,:/'’·٫٬^-]|，(?=\d{{3}}(?!\d))|{_RANGE}(?:{_CURRENCY} ?+)?+|[eE])[-+−]?+{_DIGITS})*+"
_CURRENCY_CODE = _any_of(
    "AED AUD BRL CAD CHF CNY CZK DKK EUR GBP HKD HUF IDR ILS INR JPY KRW MXN MYR NOK NZD PHP PLN RMB RON SAR SEK "
    "SGD THB TWD UAH USD VND ZAR"
)
_SIGN = rf"(?:(?<![\d)\]}}.°%])(?<!{_LETTER})(?<!{_CURRENCY})(?:[-+−–±≈~]|[<>≤≥]=?+))"
_CURRENCY_BEFORE = rf"(?:(?:(?<!{_LETTER})(?:[A-Z]{{1,3}}\$|{_CURRENCY_CODE})|{_CURRENCY}){_SPACE}?+[-+−–]?+)"
_NUMBERS = re.compile(
    rf"(?P<sign>{_SIGN})?+(?P<currency>{_CURRENCY_BEFORE})?+(?:(?<![\w.,])\.)?+"
    rf"(?P<figures>{_FIGURES}(?:{_SPACE}{{1,3}}+{_FIGURES})*+)"
)
_ONE_NUMBER = re.compile(_FIGURES)
_ABBREVIATED = r"(?:bn|mn|tn|MM|[kKMBTmb])"  # of thousand, million, …, beside a currency: $1.5M
_AFTER_CURRENCY = re.compile(
    rf"(?:{_SPACE}?+{_ABBREVIATED}{_NO_LETTER})?+(?:{_SPACE}?+(?:{_CURRENCY_CODE}){_NO_LETTER})?+"
)
_UNIT_AFTER = re.compile(
    rf"{_SPACE}?+{_ABBREVIATED}?{_SPACE}?+(?:{_CURRENCY}|{_CURRENCY_CODE})(?![A-Za-z0-9_{{(])"
    # 1 m 80 and 10 h 30 are one quantity each.
    rf"|{_SPACE}?+(?:{_any_of(_UNITS)})(?![A-Za-z0-9_²³°(]|/[^\W\d_])"
    rf"(?:(?<=[ \u00a0][mh]){_SPACE}\d\d(?![\d.,:/-]*\d|{_LETTER}|{_SPACE}?+(?:{_any_of(_UNITS)})(?![A-Za-z0-9_])))?+"
)
# Words that multiply the number before them, in common languages. They are to be translated, with the number.
_MULTIPLIED = re.compile(
    rf"{_SPACE}?+(?:[十百万萬亿億兆만억조]|[千천백](?![米克瓦卡赫])|(?i:hundred|thousand|hundert|tausend|milj|mil+i?[oóa]|bil+i?[oó]|tril+i?[oó]"
    r"|(?:mio|mrd|mln|mld|mlrd|bn|bln|tys|tis|mil|mill|mille|lakh|crore|juta|ribu)(?!\w)|тыс|млн|млрд|миллион|миллиард"
    r"|мільйон|мільярд|लाख|करोड़|हज़ार))"
)
# Three digits behind a space may belong to the number before it (10 000), as may a fraction (2 1/2).
_GROUPED = re.compile(rf"(?<![\d.,:'’])\d{{1,3}}{_SPACE}{{1,3}}(?:\d{{3}}(?!\d)|\d{{1,2}}/\d{{1,2}}(?![\d/]))")
_MANY_NUMBERS, _MANY_DIGITS_TOGETHER, _DIGITS_OF_TELEPHONES = 3, 9, 7


def _number_spans(text: str) -> tuple[list[Span], list[Span]]:
    """Return two lists of spans of numbers in a text: those that are copied, and those that the model translates.

    Long numbers, prices and quantities are copied. Each span is a whole number with its sign, groups of digits,
    currency and unit.
    """
    protected, left = list[Span](), list[Span]()
    for match in _NUMBERS.finditer(text):
        start, (first, end) = match.start(), match.span("figures")
        numbers = [Span(*each.span()) for each in _ONE_NUMBER.finditer(text, first, end)]
        if _follows_word(text, start, is_grouped=_GROUPED.match(text, first, end) is not None):
            # The number belongs to a word, such as A4. A group of digits that could continue it is no number.
            if start < first or len(numbers) == 1 or text[numbers[1].start] == "0":
                continue
            numbers = numbers[1:]
            start = first = numbers[0].start
        if _is_one_number(text, match["sign"], numbers):
            numbers = [Span(first, end)]
        numbers[0] = Span(start, numbers[0].end)
        for number in numbers:
            is_price = number.start < first and match["currency"] is not None
            following = (_AFTER_CURRENCY if is_price else _UNIT_AFTER).match(text, number.end)
            end = number.end if following is None else following.end()
            is_whole = end > number.end or not _is_incomplete(text, end)
            is_long = is_price or end > number.end or not _is_short_number(text[number.start : end])
            (protected if is_whole and is_long else left).append(Span(number.start, end))
    return protected, left


def _follows_word(text: str, start: int, *, is_grouped: bool) -> bool:
    """Return whether the number at an offset is part of the word before it, as the 4 of A4.

    With `is_grouped`, the number is written in groups of digits. Then a hyphen may precede it, as in COVID-19 300.
    """
    before, last = text[max(0, start - 2) : start][:-1], text[max(0, start - 1) : start]
    return re.match(_LETTER, last) is not None or (is_grouped and last == "-" and before.isalpha())


def _is_one_number(text: str, sign: str | None, numbers: Sequence[Span]) -> bool:
    """Return whether numbers with spaces between may be a single number, such as 10 000 or a telephone number."""
    written = text[numbers[0].start : numbers[-1].end]
    digits = sum(map(str.isdecimal, written))
    return len(numbers) > 1 and (
        _GROUPED.search(written) is not None
        or (len(numbers) >= _MANY_NUMBERS and digits >= _MANY_DIGITS_TOGETHER)
        or (digits >= _DIGITS_OF_TELEPHONES and (sign == "+" or (written[0] == "0" and written[1].isdecimal())))
    )


def _is_incomplete(text: str, end: int) -> bool:
    """Return whether a number that ends at an offset of a text goes on there, as 12345 does in 12345万."""
    return re.match(_LETTER, text[end : end + 1]) is not None or _MULTIPLIED.match(text, end) is not None


def _is_short_number(number: str) -> bool:
    """Return whether the text of a number is one that a model translates well unprotected, such as 30 or 2,500."""
    return all(
        sum(map(str.isdecimal, part)) < _MANY_DIGITS and _DOTTED.fullmatch(part) is None
        for part in re.split(_RANGE, number)
    )


# --- search ---


def compile_patterns(patterns: Iterable[str]) -> list[re.Pattern[str]]:
    """Compile a user's regular expressions for protected spans to a list of patterns.

    Raises:
        TransduceError: an expression is invalid, or matches an empty text.
    """
    compiled = []
    for pattern in patterns:
        try:
            compiled.append(re.compile(pattern))
        except re.error as error:
            raise TransduceError(
                f"`protect` takes regular expressions, but `{pattern}` is none: {error}. Escape special characters "
                "with a backslash."
            ) from None
        if compiled[-1].fullmatch("") is not None:
            raise TransduceError(
                f"`protect` takes regular expressions that match some text, but `{pattern}` matches an empty one: "
                "require at least one character."
            )
    return compiled


def find_protected(text: str, patterns: Iterable[str] = ()) -> list[Span]:
    """Return a list of the spans of a text that translation must copy unchanged, in order and disjoint.

    Of overlapping spans, the first is kept; of those that begin at the same character, the longest.

    Args:
        text: a text of any length.
        patterns: regular expressions of further spans, which take precedence. A text that is not composed (Unicode NFC)
            is searched in both forms.

    Raises:
        TransduceError: an expression is invalid, or matches an empty text.
    """
    compiled = compile_patterns(patterns)
    specified = _specified_spans(text, compiled)
    if is_composed(text):
        return _find_in_composed(text, specified)
    whole = normalized_text(text, compose)
    # An expression matches the text as it is written, but no letter without its accents, or the composed text.
    uncut = [normal for span in specified if whole.original_span(normal := whole.normalized_span(span)) == span]
    found = _find_in_composed(whole.text, [*uncut, *_specified_spans(whole.text, compiled)])
    return disjoint(map(whole.original_span, found))


def _specified_spans(text: str, patterns: Iterable[re.Pattern[str]]) -> list[Span]:
    return [Span(*match.span()) for each in patterns for match in each.finditer(text) if match[0]]


def _find_in_composed(text: str, specified: Iterable[Span]) -> list[Span]:
    """Return a sorted list of the `specified` spans, and of the other protected spans that overlap none of them."""
    found = disjoint(specified)
    if _TRIGGER.search(text) is None:
        return found
    numbers, left = _number_spans(text)
    # Of a number that is left to the model no part is protected, such as the CHF5 of CHF5 million.
    others = (span for span in _matches(text) if not _cuts(span, left))
    return merge_spans(found, [*_brace_spans(text), *_call_spans(text), *numbers, *others])


def _cuts(span: Span, numbers: Sequence[Span]) -> bool:
    """Return whether a span begins within one of the numbers (in order, disjoint) and does not contain all of it."""
    index = bisect_right(numbers, span.start, key=lambda number: number.end)
    if index == len(numbers) or span.start < numbers[index].start:
        return False
    return numbers[index] != span and (span.start > numbers[index].start or span.end < numbers[index].end)


def check_spans(spans: Iterable[tuple[int, int]], text: str) -> list[Span]:
    """Check the protected spans, pairs (start, end), that a caller passed for a text; return them as a list of `Span`.

    Raises:
        TransduceError: a span is empty or outside the text, or the spans are not in order and disjoint.
    """
    checked: list[Span] = []
    for each in spans:
        start, end = each
        if not (checked[-1].end if checked else 0) <= start < end <= len(text):
            raise TransduceError(
                f"Protected spans must be (start, end) in characters, in order and disjoint, from 0 to {len(text)} in "
                f"this text, but one is ({start}, {end})."
            )
        checked.append(Span(start, end))
    return checked


def _matches(text: str) -> Iterator[Span]:
    for match in _pattern().finditer(text):
        start, end = match.span()
        yield Span(start, _end_without_trailing(text, start, end))


def _end_without_trailing(text: str, start: int, end: int) -> int:
    """Return the end of a protected match, `text[start:end]`, without characters that belong to the sentence around it.

    Such characters are closing brackets without opening ones, and punctuation after most kinds of matches. The first
    character always stays.
    """
    ends_by_punctuation = text[start] not in "`<\\$%{&:"
    unopened = {
        closing: text.count(closing, start, end) - text.count(opening, start, end)
        for closing, opening in _BRACKETS.items()
    }
    while end > start + 1:
        last = text[end - 1]
        if last in _BRACKETS:
            if unopened[last] <= 0:
                break
            unopened[last] -= 1
        elif last not in _TRAILING or not ends_by_punctuation:
            break
        end -= 1
    return end


def is_inline_tag(text: str) -> bool:
    """Return whether a protected text is a tag, such as `<0>` or `</b>`, unlike the template `<%= name %>`."""
    return text.startswith("<") and text.endswith(">") and not text.startswith("<%")


# --- pairs of tags ---


_TAG = re.compile(r"<(?P<end>/?)(?P<name>[A-Za-z][\w:.-]*+|\d++)[^<>]*?(?P<empty>/?)>")
_NAMES_OF_PAIRS = "a abbr b bdi bdo big cite del dfn em font i ins mark q s small span strike strong sub sup u"
_FORMATTING = frozenset(_NAMES_OF_PAIRS.split())
_MAX_TAGS = 256  # in a sentence; those of a sentence with more keep their order
_WORD = re.compile(rf"[{CJK}]|(?:(?![{CJK}])\w)++")
_MARKS = " .!?。！？…"  # the model reads and translates them, also between tags alone
_SMALL = ("sub", "sup")
"""Names of HTML elements (sub, sup) whose numbers, such as that of a footnote, are copied."""


class TagPair(NamedTuple):
    """The spans of a start tag, of its end tag, and of the words between them.

    If one of the tags is in another sentence, its span is empty, at the start or end of the text.
    """

    opening: Span
    closing: Span
    inner: Span
    """The span of the words between the tags, in the text from which tags were removed."""


class BareText(NamedTuple):
    """A text without its pairs of tags, such as `<b>` and `</b>`. They are later put around the translated words."""

    text: str
    protected: tuple[Span, ...]
    """The spans of `text` that translation must not change. A pair of tags without words between is such a span."""
    pairs: tuple[TagPair, ...]
    """The pairs of tags that were removed, nested or disjoint, in the order of their start tags."""
    others: tuple[Span, ...]
    """The protected spans of the text with tags, except for the tags of `pairs`."""
    offsets: tuple[tuple[int, int], ...]
    """Pairs (offset without tags, offset with tags) from which both texts are equal up to the next pair's offset."""

    def written(
        self, tagged: str, text: str, spans: Sequence[Span], copies: Sequence[tuple[Span, Span]]
    ) -> tuple[str, tuple[tuple[Span, Span], ...]]:
        """Put the removed tags around their words in a translation; return the result and the copied spans.

        A copied span is a pair: the span of a tag or other protected text in the source with tags, and in the result.
        Tags stay nested. A pair of tags encloses fewer words if its words overlap those of another pair, or if they
        contain a protected span that is outside the pair in the source.

        Args:
            tagged: the source with tags.
            text: the translation of the bare text.
            spans: the span of each pair's words in the translation.
            copies: pairs of a protected span in the bare text and its copy in the translation.
        """
        words = [
            _without_marks(self.text, pair.inner, text, span) for pair, span in zip(self.pairs, spans, strict=True)
        ]
        placed = _nested_spans(self.pairs, text, words, copies, len(self.text))
        inserted = list(_placed_tags(-1, _parents(self.pairs), placed, self.pairs))
        written, position, found = "", 0, list[tuple[Span, Span]]()
        for offset, tag in inserted:
            written += text[position:offset]
            found += [(tag, Span(len(written), len(written) + tag.end - tag.start))] if tag.end > tag.start else []
            written, position = written + tagged[slice(*tag)], offset
        for own, copy in copies:
            moved = copy.start + sum(tag.end - tag.start for offset, tag in inserted if offset <= copy.start)
            bare, start = self.offsets[bisect_right(self.offsets, own.start, key=lambda pair: pair[0]) - 1]
            start += own.start - bare
            end = start + own.end - own.start
            for span in [each for each in self.others if start <= each.start < each.end <= end] or [Span(start, end)]:
                found.append((span, Span(moved + span.start - start, moved + span.end - start)))
        return written + text[position:], tuple(sorted(found))


def without_tag_pairs(text: str, protected: Sequence[Span]) -> BareText | None:
    """Remove pairs of tags with words between them; return a `BareText`, or None if nothing is removed or joined.

    If the partner of a tag is in another sentence, the start or end of the text replaces it. Tags that cross others
    stay. A pair without words stays and is joined to one protected span, unless only the mark of a sentence is between
    its tags.

    Args:
        text: the text. With more than 256 tags it is left as it is.
        protected: the spans that translation must not change, among them the tags, in order and disjoint.
    """
    tags = [(span, match) for span in protected if (match := _TAG.fullmatch(text, *span)) is not None]
    found = _matched(tags, len(text)) if len(tags) <= _MAX_TAGS else []
    whole: list[Span] = []  # elements without words
    full: list[tuple[Span, Span]] = []
    for opening, closing in found:
        between = [span for span in protected if opening.end <= span.start and span.end <= closing.start]
        edges = [opening.end, *(edge for span in between for edge in span), closing.start]
        words = "".join(text[slice(*edge)] for edge in list(pairwise(edges))[::2])
        is_small = text[opening.start + 1 : opening.end].startswith(_SMALL)
        is_half = opening.start == opening.end or closing.start == closing.end
        if any(map(str.isalpha if is_small else str.isalnum, words)):
            full.append((opening, closing))
        elif not is_half and (words.strip(_MARKS) or not words.strip()):
            whole.append(Span(opening.start, closing.end))
    if not full and not whole:
        return None
    cut = sorted(span for pair in full for span in pair if span.start < span.end)
    return _bare_text(
        text, cut, merge_spans(disjoint(whole), [span for span in protected if span not in cut]), full, protected
    )


def _bare_text(
    text: str,
    tags: Sequence[Span],
    kept: Sequence[Span],
    pairs: Sequence[tuple[Span, Span]],
    protected: Sequence[Span],
) -> BareText:
    """Remove the spans `tags` from a text, and return the rest as a `BareText` that protects the spans `kept`.

    A space is added between two words if an end tag and a start tag separate them, as in `</li><li>`.
    """
    written, position = "", 0
    offsets = [(0, 0)]
    for index, tag in enumerate(tags):
        written, position = written + text[position : tag.start], tag.end
        is_between = index > 0 and tags[index - 1].end == tag.start and text[tags[index - 1].start + 1] == "/"
        if (
            is_between
            and text[tag.start + 1] != "/"
            and written[-1:].isalnum()
            and text[tag.end : tag.end + 1].isalnum()
        ):
            written += " "
        offsets.append((len(written), position))

    def moved(offset: int) -> int:
        bare_offset, start = offsets[bisect_right(offsets, offset, key=lambda pair: pair[1]) - 1]
        return bare_offset + offset - start

    bare = written + text[position:]
    found = []
    for opening, closing in sorted(pairs, key=lambda pair: (pair[0].start, -pair[1].end)):
        start, end = moved(opening.end), moved(closing.start)
        inner = bare[start:end]
        start += len(inner) - len(inner.lstrip())
        found.append(TagPair(opening, closing, Span(start, start + len(inner.strip()))))
    cut = set(tags)
    return BareText(
        bare,
        tuple(Span(moved(span.start), moved(span.start) + span.end - span.start) for span in kept),
        tuple(found),
        tuple(span for span in protected if span not in cut),
        tuple(offsets),
    )


def _matched(tags: Sequence[tuple[Span, re.Match[str]]], end: int) -> list[tuple[Span, Span]]:
    """Return a sorted list of pairs (start tag's span, end tag's span) from the tags of a text of length `end`.

    A tag is loose if its partner is missing, or if its pair contains a loose tag. If all loose tags are start tags, an
    empty span at the end of the text is their partner; if all are end tags, one at the start. Otherwise loose tags are
    left out.
    """
    opened: list[tuple[Span, str]] = []
    pairs: list[tuple[Span, Span]] = []
    ends: list[tuple[Span, str]] = []
    for span, match in tags:
        name = match["name"].lower()
        if not match["end"] and not match["empty"]:
            opened.append((span, name))
        elif match["end"]:
            while opened and any(other == name for _, other in opened) and opened[-1][1] != name:
                ends.append(opened.pop())
            if opened and opened[-1][1] == name:
                pairs.append((opened.pop()[0], span))
            else:
                ends.append((span, f"/{name}"))
    names = {name for _, name in ends}
    loose = [span for span, name in (*ends, *opened) if name[0] == "/" or _is_half(name) or f"/{name}" in names]
    kept = []
    for opening, closing in sorted(pairs, key=lambda pair: pair[1].end - pair[0].start):
        if any(opening.end <= span.start < closing.start for span in loose):
            loose += [opening, closing]
        else:
            kept.append((opening, closing))
    closes = {span: match["end"] != "" for span, match in tags}
    if len({closes[span] for span in loose}) == 1:
        kept += [(Span(0, 0), span) if closes[span] else (span, Span(end, end)) for span in loose]
    return sorted(kept)


def _is_half(name: str) -> bool:
    """Return whether tags with this name always come in pairs, such as `<b>` and `<0>`."""
    return name in _FORMATTING or name.isdecimal()


def is_half_of_pair(text: str, *, has_end_tags: bool) -> bool:
    """Return whether a protected text is a tag of a pair; its partner may be in another sentence.

    Every end tag belongs to a pair. A start tag does if the sentence has end tags, or if its name is known, such as
    `b`. Otherwise the tag stands for a word, as in `move <file>`. A tag such as `<br/>` never belongs to a pair.
    """
    match = _TAG.fullmatch(text)
    if match is None or match["empty"]:
        return False
    return bool(match["end"]) or has_end_tags or _is_half(match["name"].lower())


def _parents(pairs: Sequence[TagPair]) -> list[int]:
    """Return a list with the index of the pair of tags that directly encloses each pair; -1 if none does."""
    return [
        next((n for n in range(index - 1, -1, -1) if pairs[n].closing.start >= pair.closing.end), -1)
        for index, pair in enumerate(pairs)
    ]


def _nested_spans(
    pairs: Sequence[TagPair], text: str, spans: Sequence[Span], copies: Sequence[tuple[Span, Span]], length: int
) -> list[Span]:
    """Return a list with the span of the translation that each pair of tags will enclose, nested as in the source.

    A pair without words in the translation encloses the word at about the same position.

    Args:
        pairs: the pairs of tags of the source.
        text: the translation, without tags.
        spans: the span of each pair's words in the translation.
        copies: pairs of a protected span in the source without tags and its copy in the translation.
        length: the number of characters of the source without tags.
    """
    parents, placed = _parents(pairs), dict[int, Span]()

    def place(parent: int, bounds: Span) -> None:
        children: list[tuple[int, Span]] = []
        for number, pair in enumerate(pairs):
            if parents[number] == parent:
                inner = [copy for own, copy in copies if pair.inner.start <= own.start < pair.inner.end]
                others = [copy for _, copy in copies if copy not in inner]
                start, end = (min(max(edge, bounds.start), bounds.end) for edge in spans[number])
                near = _nearest_word(text, bounds, pair.inner.start / length)
                whole = [_with_whole(each, inner) for each in (Span(start, end), near)]
                candidates = (_longest_outside(text, each, others) for each in (*whole, bounds))
                beside = _longest_outside(text, Span(start, start), [*inner, *others])
                children.append((number, next((each for each in candidates if _has_words(text, each)), beside)))
        # Of two pairs with common words, the one with fewer keeps them.
        for number, own in sorted(children, key=lambda child: child[1].end - child[1].start):
            placed[number] = _longest_outside(text, own, [placed[n] for n, _ in children if n in placed])
        for number, _ in children:
            place(number, placed[number])

    place(-1, Span(0, len(text)))
    return [placed[number] for number in range(len(pairs))]


def _without_marks(source: str, inner: Span, text: str, span: Span) -> Span:
    """Return the span of a tag pair's words in a translation, without punctuation that the source has outside tags."""
    start, end = span
    if source[inner.start].isalnum() and source[: inner.start].strip():
        while start < end and not text[start].isalnum():
            start += 1
    if source[inner.end - 1].isalnum() and source[inner.end :].strip():
        while start < end and not text[end - 1].isalnum():
            end -= 1
    return Span(start, end) if start < end else span


def _with_whole(span: Span, copies: Sequence[Span]) -> Span:
    """Return a span, extended at its start and end so that it cuts none of the copied spans `copies`."""
    start = min([span.start, *(copy.start for copy in copies if copy.start < span.start < copy.end)])
    return Span(start, max([span.end, *(copy.end for copy in copies if copy.start < span.end < copy.end)]))


def _nearest_word(text: str, bounds: Span, share: float) -> Span:
    """Return the span of the word in `bounds` nearest to a relative position (0 to 1); an empty span without words."""
    words = [Span(*match.span()) for match in _WORD.finditer(text, *bounds)]
    return min(words, key=lambda word: abs(word.start - share * len(text)), default=Span(bounds.start, bounds.start))


def _has_words(text: str, span: Span) -> bool:
    return any(map(str.isalnum, text[slice(*span)]))


def _longest_outside(text: str, span: Span, others: Iterable[Span]) -> Span:
    """Return the part of a span outside all other spans that has the most letters and digits, without outer spaces.

    The part is empty if the other spans cover the whole span.
    """
    parts, start = list[Span](), span.start
    for other in sorted(others):
        if other.start < span.end and other.end > start:
            if other.start >= start:
                parts.append(Span(start, other.start))
            start = max(start, other.end)
    parts.append(Span(start, max(start, span.end)))
    best = max(parts, key=lambda part: sum(map(str.isalnum, text[slice(*part)])))
    inner = text[slice(*best)]
    start = best.start + len(inner) - len(inner.lstrip()) if inner.strip() else best.start
    return Span(start, start + len(inner.strip()))


def _placed_tags(
    parent: int, parents: Sequence[int], placed: Sequence[Span], pairs: Sequence[TagPair]
) -> Iterator[tuple[int, Span]]:
    """Yield (offset in the translation, tag's span in the source) for each tag inside the pair of tags `parent`.

    The order is that of the translation, with inner pairs between their parents' tags.

    Args:
        parent: the index of the pair; -1: all tags.
        parents: the index of the pair that directly encloses each pair; -1 if none does.
        placed: the span of the translation at which each pair is written.
        pairs: the pairs of tags of the source.
    """
    children = sorted((placed[n], n) for n in range(len(pairs)) if parents[n] == parent)
    for (start, end), number in children:
        yield start, pairs[number].opening
        yield from _placed_tags(number, parents, placed, pairs)
        yield end, pairs[number].closing
