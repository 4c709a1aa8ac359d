"""Find numbers of a source that are missing in its translation, across notations of numbers, dates and times."""

import re
import unicodedata
from collections.abc import Sequence
from typing import NamedTuple

# Numbers up to twenty are often written as words.
_SMALL_NUMBER = 20
# Characters that multiply the number before them: 3万 is 30,000.
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
    """A number, date or time in a text, or adjacent numbers that may form a single one."""

    text: str
    """The number as the text writes it."""
    kind: str | None
    """"date", "clock" (time of day), "groups" (numbers separated by spaces), or None."""
    scaled: bool
    """True if the next character multiplies the number."""

    @property
    def digits(self) -> str:
        """All digits of the number."""
        return _digits(self.text)

    @property
    def parts(self) -> list[str]:
        """The components to look for if the whole number is missing.

        For a time, these are only the minutes, because hours may be in 12-hour format.
        """
        parts = {"date": re.split("[./-]", self.text), "clock": [self.text[-2:]], "groups": self.text.split(" ")}
        return parts.get(self.kind or "", [self.text])

    @property
    def is_sure_clock(self) -> bool:
        """True if the number is certainly a time of day (it has a colon)."""
        return self.kind == "clock" and ":" in self.text

    def is_same(self, other: "_Number") -> bool:
        """Return whether both are the same date, in any order of day and month, or the same time, in 12 or 24 hours."""
        if self.kind == other.kind == "clock":
            (hour, minute), (other_hour, other_minute) = (re.split("[:.]", each.text) for each in (self, other))
            is_clock = self.is_sure_clock or other.is_sure_clock
            return is_clock and (int(hour) - int(other_hour)) % 12 == 0 and int(minute) == int(other_minute)
        if self.kind == other.kind == "date":
            (day, year), (other_day, other_year) = _day_and_year(self.parts), _day_and_year(other.parts)
            return day == other_day and (year.endswith(other_year) or other_year.endswith(year))
        return False


def missing_numbers(source: str, target: str) -> list[str]:
    """Return the numbers of a source that its translation lacks, as the source writes them."""
    target_numbers = _numbers(target)
    digits = [_digits(part) for number in target_numbers for part in (number.text, *number.parts)]
    return [
        part
        for number in _numbers(source)
        if not number.scaled
        for part in _missing_parts(number, target_numbers, digits)
    ]


def is_date_or_clock(number: str) -> bool:
    """Return whether a missing number is a date or time, which a translation may write in another form."""
    return any(each.kind == "date" or each.is_sure_clock for each in _numbers(number))


def _missing_parts(number: _Number, target_numbers: Sequence[_Number], digits: Sequence[str]) -> list[str]:
    """Return the missing components of a number: an empty list, some of its components, or the whole."""
    if _is_among(number.digits, digits) or any(number.is_same(other) for other in target_numbers):
        return []
    similar = [
        other for other in target_numbers if other.kind == number.kind and (other.kind == "date" or other.is_sure_clock)
    ]
    if number.kind is None or similar or (number.kind == "clock" and not number.is_sure_clock):
        return [number.text]
    missing = [part for part in number.parts if not _is_among(_digits(part), digits)]
    if number.kind == "groups" and any(not _is_small(part) and part not in missing for part in number.parts):
        return missing
    return [number.text] if missing else []


def _is_among(number: str, digits: Sequence[str]) -> bool:
    return _is_small(number) or any(each == number or (len(number) == 2 and each.endswith(number)) for each in digits)


def _is_small(number: str) -> bool:
    return int(_digits(number).lstrip("0")[:3] or 0) <= _SMALL_NUMBER


def _numbers(text: str) -> list[_Number]:
    return [
        _Number(match.group(), match.lastgroup, text[match.end() : match.end() + 1] in tuple(_SCALES))
        for match in _WRITTEN.finditer(text)
    ]


def _day_and_year(parts: Sequence[str]) -> tuple[list[int], str]:
    """Return day and month in ascending order, and the year."""
    year = next((part for part in parts if len(part) == 4), parts[-1])
    rest = [part for part in parts if part is not year]
    return sorted(map(int, rest)), _digits(year)


def _digits(number: str) -> str:
    """Return the decimal digits of a number as ASCII, without separators, from any script."""
    return "".join(str(unicodedata.decimal(character)) for character in number if character.isdecimal())
