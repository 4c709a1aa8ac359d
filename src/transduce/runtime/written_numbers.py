"""Numbers of a source that its translation lacks, however each of the two writes numbers, dates and times of day."""

import re
import unicodedata
from collections.abc import Sequence
from typing import NamedTuple

# Up to twenty, numbers are often written in words.
_SMALL_NUMBER = 20
# 3万 is 30,000 elsewhere.
_SCALES = "十百千万萬亿億兆만억"
_WRITTEN = re.compile(
    # 24.12.2023, 12/24/2023, 2023-12-24
    r"(?P<date>(?:\d{4}(?P<sign>[./-])\d\d?|\d\d?(?P<other>[./-])\d\d?)(?(sign)(?P=sign)\d\d?|(?P=other)(?:\d{4}|\d\d)))"
    r"(?!\d|[./-]\d)"
    # 14:30; 14.30 may be a price
    r"|(?P<clock>(?:[01]?\d|2[0-4])[:.][0-5]\d)(?!\d|[.,:]\d)"
    # 1 234 567,8, or three numbers
    r"|(?P<groups>\d{1,3}(?: \d{3})+(?!\d)(?:[.,]\d+)?)"
    r"|\d+(?:[.,:'\u2009\u00a0\u202f]\d+)*"
)


class _Number(NamedTuple):
    """One as it stands in a text, or several that may be one."""

    text: str
    kind: str | None
    """date, clock, groups, or nothing."""
    scaled: bool
    """Whether what stands behind it multiplies it."""

    @property
    def digits(self) -> str:
        """Of all of it."""
        return _digits(self.text)

    @property
    def parts(self) -> list[str]:
        """What it consists of, where it may not stand as a whole: of a time of day the minutes alone, as its hours may
        be counted up to 12 or 24.
        """
        parts = {"date": re.split("[./-]", self.text), "clock": [self.text[-2:]], "groups": self.text.split(" ")}
        return parts.get(self.kind or "", [self.text])

    @property
    def is_sure_clock(self) -> bool:
        """Whether it is a time of day for sure."""
        return self.kind == "clock" and ":" in self.text

    def is_same(self, other: "_Number") -> bool:
        """Whether both are one date, whether its day or its month stands first, or one time of day, on 12 hours."""
        if self.kind == other.kind == "clock":
            (hour, minute), (other_hour, other_minute) = (re.split("[:.]", each.text) for each in (self, other))
            is_clock = self.is_sure_clock or other.is_sure_clock
            return is_clock and (int(hour) - int(other_hour)) % 12 == 0 and int(minute) == int(other_minute)
        if self.kind == other.kind == "date":
            (day, year), (other_day, other_year) = _day_and_year(self.parts), _day_and_year(other.parts)
            return day == other_day and (year.endswith(other_year) or other_year.endswith(year))
        return False


def missing_numbers(source: str, target: str) -> list[str]:
    """The numbers of a source that its translation lacks, as the source writes them."""
    there = _numbers(target)
    digits = [_digits(part) for number in there for part in (number.text, *number.parts)]
    return [part for number in _numbers(source) if not number.scaled for part in _missing_parts(number, there, digits)]


def is_date_or_clock(number: str) -> bool:
    """Whether a missing number is a date or a time of day, of which a translation may have another form."""
    return any(each.kind == "date" or each.is_sure_clock for each in _numbers(number))


def _missing_parts(number: _Number, there: Sequence[_Number], digits: Sequence[str]) -> list[str]:
    """What is missing of a number: nothing, some of several, or all of it."""
    if _stands(number.digits, digits) or any(number.is_same(other) for other in there):
        return []
    others = [other for other in there if other.kind == number.kind and (other.kind == "date" or other.is_sure_clock)]
    if number.kind is None or others or (number.kind == "clock" and not number.is_sure_clock):
        return [number.text]
    missing = [part for part in number.parts if not _stands(_digits(part), digits)]
    if number.kind == "groups" and any(not _is_small(part) and part not in missing for part in number.parts):
        return missing
    return [number.text] if missing else []


def _stands(number: str, digits: Sequence[str]) -> bool:
    return _is_small(number) or any(each == number or (len(number) == 2 and each.endswith(number)) for each in digits)


def _is_small(number: str) -> bool:
    return int(_digits(number).lstrip("0")[:3] or 0) <= _SMALL_NUMBER


def _numbers(text: str) -> list[_Number]:
    return [
        _Number(match.group(), match.lastgroup, text[match.end() : match.end() + 1] in tuple(_SCALES))
        for match in _WRITTEN.finditer(text)
    ]


def _day_and_year(parts: Sequence[str]) -> tuple[list[int], str]:
    """Day and month in any order; and the year."""
    year = next((part for part in parts if len(part) == 4), parts[-1])
    rest = [part for part in parts if part is not year]
    return sorted(map(int, rest)), _digits(year)


def _digits(number: str) -> str:
    """The same number's digits, whatever groups them, of whatever script."""
    return "".join(str(unicodedata.decimal(character)) for character in number if character.isdecimal())
