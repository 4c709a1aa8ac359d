"""Compare the numbers, dates and times of a text with those of its translation, across notations and number words."""

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from decimal import ROUND_FLOOR, Decimal
from functools import cache
from typing import NamedTuple

# --- numbers in digits ---


_HOURS, _MOST_DAYS = 24, 31
_SMALL_NUMBER = 20  # numbers up to twenty are often written as words
_SPACES = "\u2009\u00a0\u202f"
_WRITTEN = re.compile(
    # 24.12.2023, 12/24/2023, 2023-12-24, 2023年12月24日
    r"(?P<date>(?:\d{4}(?P<sign>[./-])\d\d?|\d\d?(?P<other>[./-])\d\d?)(?(sign)(?P=sign)\d\d?|(?P=other)(?:\d{4}|\d\d))"
    r"(?!\d|[./-]\d)|\d{4} ?[年년] ?\d\d? ?[月월] ?\d\d?(?!\d))"
    # 14:30; 14.30 may be a price
    r"|(?P<clock>(?:[01]?\d|2[0-4])[:.][0-5]\d)(?!\d|[.,:]\d)"
    # 27.2. of a German text
    r"|(?P<day>(?:0?[1-9]|[12]\d|3[01])\.(?:0?[1-9]|1[0-2])\.)(?=\s*\w)(?!\d)"
    # 1 234 567,8, or three numbers
    r"|(?P<groups>\d{1,3}(?: \d{3})+(?!\d)(?:[.,]\d+)?)"
    rf"|\d+(?:[.,:'’٫٬{_SPACES}]\d+)*"
)
# A minus before a number, also before its currency, but not a hyphen behind a word or in a range.
_MINUS = re.compile(r"(?<![^\W_\u3040-\u9fff])(?<![)\].°%])[-−–][$£€¥]?$")
_ANY_MINUS = re.compile(r"[-−–－][$£€¥]? ?$")
_MINUS_WORD = re.compile(
    "minus|mínus|miinus|mínusz|moins|menos|meno|eksi|negativ|below|sub-?zero|under|unter|sous|sotto|bajo|abaixo|poniżej"
    "|pod |минус|мінус|ниже|нижче|零下|负|負|マイナス|氷点下|영하|마이너스|تحت|ناقص|سالب|ऋण|शून्य",
    re.IGNORECASE,
)
_POINT = str.maketrans(",:٫", "...")
_FRACTION_OR_DEGREE = re.compile("[ \u00a0\u202f]?[¼-¾⅐-⅞°℃℉]")  # behind a number
_DECADE = re.compile(r"['’]?s\b|er\b|年代")
_HALF_HOUR = re.compile(r"\b(?:halb|half|halv|puoli|fél|půl|pol) $", re.IGNORECASE)  # before an hour
_HOUR = re.compile(
    r"\s?(?:uhr|[ap]\.?\s?m\b|h\b|時|时|点|點|시|час|год|godz|hod|heure|hora|ore\b|klokken|uur|óra)", re.IGNORECASE
)
_HALF = re.compile(r"hal[bfv]|medi[ao]|mezz|demi|meia|meio|пол|пів|půl|anderthalb|半|½|نصف|आध|साढ|ครึ่ง", re.IGNORECASE)
_QUARTER = re.compile(r"quart|viertel|kwart|cuart|четверт|čtvrt|刻|ربع|¼|¾", re.IGNORECASE)
# Words and characters that multiply the number before them by a power of ten. Those of the second table are also other
# words, so that they may leave the number as it is: `25 bin` is 25,000 in Turkish.
_SCALES = {
    2: "百|백|hundred|hundert",
    3: "千|천|พัน|thousands?|tausend|tsd|mille|duizend|tusen|tuhat\\w*|ezer|тыс\\w*|тис\\w*|tisíc\\w*|tys\\w*|χιλιάδες"
    "|χιλιάδων|हज़ार|हजार|ألف|آلاف|هزار|אלף|ribu|nghìn|ngàn",
    4: "万|萬|만|หมื่น",
    5: "lakhs?|लाख|แสน",
    6: "million\\w*|mill[oó]n\\w*|milion\\w*|milió\\w*|miljo\\w*|milh[ãõ]\\w*|milyon|millió|mio|mln"
    "|млн|миллион\\w*|мільйон\\w*|εκατομμύρι\\w*|ล้าน|juta|triệu|مليون|ملايين|میلیون|מיליון",
    7: "crores?|करोड़|करोड",
    8: "億|亿|억",
    9: "milliard\\w*|miliard\\w*|miljard\\w*|milyar|miliar|mrd|mld|mlrd|bn|млрд"
    "|миллиард\\w*|мільярд\\w*|δισεκατομμύρι\\w*|tỷ|مليار|میلیارد|מיליארד",
    12: "兆|조",
}
_UNSURE_SCALES = {3: "mil|bin|tis|(?<=\\d)k", 6: "mill|(?<=\\d)m", 9: "billion\\w*|bil[ih]\\w*", 12: "trillion\\w*"}
# Signs of full-width numbers: ３．５, １，２３４. Between other digits, a full-width comma separates items of a list.
_WIDE_SIGN = re.compile("(?<=\\d)．(?=\\d)|(?<=[０-９])，(?=[０-９]{3}(?![０-９]))")
_SCALE = re.compile(
    rf"[ {_SPACES}-]?(?:"
    + "|".join(
        f"(?P<{name}_{power}>{unicodedata.normalize('NFC', words)})"
        for name, table in (("sure", _SCALES), ("unsure", _UNSURE_SCALES))
        for power, words in table.items()
    )
    + ")(?![米克瓦卡赫]|[^\\W\\d_\u0e00-\u0eff\u3040-\u9fff\uac00-\ud7af])",  # 千克 is a kilogram
    re.IGNORECASE,
)
# Metric units behind a number, as powers of ten of the meter, gram and liter. Areas and speeds are left out.
_UNITS = {
    "length": {
        -3: "mm|毫米|公釐|ミリ(?:メートル)?(?!リ|グ)|밀리미터|мм|mill?im[eèé]t\\w*",
        -2: "cm|厘米|公分|センチ(?:メートル)?|센티(?:미터)?|см|[cz]ent[ií]m[eèé]t\\w*",
        0: "m|米|公尺|メートル|미터|м|m[eèé]t(?:er|re|ro)\\w*|метр\\w*",
        3: "km|公里|千米|キロメートル|킬로미터|км|(?:k|qu|ch)il[oóô]m[eèé]t\\w*",
    },
    "mass": {
        -3: "mg|毫克|ミリグラム|밀리그램|мг|mill?igram\\w*",
        0: "g|公?克(?!拉)|グラム|그램|г|gram\\w*",
        3: "kg|公斤|千克|キログラム|킬로그램|кг|kilos?|(?:k|qu|ch)ilogram\\w*",
        6: "t|公?[吨噸]|トン|톤|т|tonn?e[ns]?",
    },
    "volume": {
        -3: "ml|毫升|ミリリットル|밀리리터|мл|mill?ilit\\w*",
        -2: "cl",
        -1: "dl",
        0: "l|公?升|リットル|리터|л|lit(?:er|re|ro)\\w*",
    },
}
_UNIT = re.compile(
    rf"[ {_SPACES}-]?(?:"
    + "|".join(f"(?P<{name}_{power + 3}>{words})" for name, table in _UNITS.items() for power, words in table.items())
    + ")(?![²³/^]|[^\\W_\u3040-\u9fff\uac00-\ud7af])",
    re.IGNORECASE,
)


class _Number(NamedTuple):
    """A number, date or time in a text, with the text around it.

    Adjacent numbers that may form a single number are one `_Number`.
    """

    text: str
    """The number, date or time as the text writes it, with a word that multiplies it."""
    plain: str
    """The digits and signs of the number alone, without a word that multiplies it, in ASCII digits."""
    kind: str | None
    """The kind of number: "date", "day" (day and month), "clock", "groups" (separated by spaces), or None (plain)."""
    values: frozenset[Decimal]
    """A set of the number's possible values: several if a sign is ambiguous, as in 1.234, and none for a date or a list
    such as 1.2.3.
    """
    before: str
    """Up to six characters of the text before the number, where a minus may stand."""
    after: str
    """Up to sixteen characters of the text after the number, where a unit may stand."""

    @property
    def is_scaled(self) -> bool:
        """True if a word or character multiplies the number, as in 3万 (30,000)."""
        return len(self.text) > len(self.plain)

    @property
    def quantities(self) -> set[tuple[str, Decimal]]:
        """The possible amounts of a number with a metric unit, a set of (kind, value); empty without such a unit.

        The kinds are "length" in meters, "mass" in grams and "volume" in liters.
        """
        unit = _UNIT.match(self.text[len(self.plain) :] + self.after) or _UNIT.match(self.after)
        name, _, power = ((unit and unit.lastgroup) or "").partition("_")
        return {(name, value.scaleb(int(power) - 3)) for value in self.values} if unit else set()

    @property
    def may_change(self) -> bool:
        """True if a right translation may have other digits.

        This holds before a fraction or degree sign (2½, 20 °C) and after words such as the German "halb": "halb 3" is
        half past 2.
        """
        return any((_FRACTION_OR_DEGREE.match(self.after), _HALF_HOUR.search(self.before)))

    @property
    def parts(self) -> list[str]:
        """A list of the number's components, as digits.

        They are looked for one by one if a translation lacks the whole number. A plain number is its only component.
        For a time, these are only the minutes, because the translation's hours may be in 12-hour format.
        """
        if self.kind is None and self.values and ":" not in self.plain:
            return [self.plain]
        parts = re.findall(r"\d+", self.plain)
        return parts[1:] if self.kind == "clock" else parts

    @property
    def is_small(self) -> bool:
        """True if the number is a whole number of at most twenty, so that it may be written as a word."""
        return bool(self.values) and all(value <= _SMALL_NUMBER and value == int(value) for value in self.values)

    @property
    def is_sure_clock(self) -> bool:
        """True if the number is certainly a time of day, because it contains a colon."""
        return self.kind == "clock" and ":" in self.plain

    def is_same(self, other: "_Number") -> bool:
        """Return whether another number is equal to this one, or the same date or time in another notation.

        Examples are 1,000 and 1.000, or 2:30 and 14:30.
        """
        if self.kind == other.kind == "date":
            (day, year), (other_day, other_year) = _day_and_year(self.parts), _day_and_year(other.parts)
            return day == other_day and (year.endswith(other_year) or other_year.endswith(year))
        if self.kind == other.kind == "clock" and (self.is_sure_clock or other.is_sure_clock):
            (hour, minute), (other_hour, other_minute) = (re.split("[:.]", each.plain) for each in (self, other))
            return (int(hour) - int(other_hour)) % 12 == 0 and int(minute) == int(other_minute)
        if self.values or other.values:
            return not self.values.isdisjoint(other.values) or self._is_same_hour(other) or other._is_same_hour(self)
        return self.kind == other.kind and re.findall(r"\d+", self.plain) == re.findall(r"\d+", other.plain)

    def _is_same_hour(self, other: "_Number") -> bool:
        """Return whether this number is an hour that another number writes differently.

        Examples are 22 Uhr and 10:00, or 22 Uhr and 10 p.m.
        """
        if (
            not self.plain.isdecimal()
            or self.value > _HOURS
            or not (_HOUR.match(self.after) or _HOUR.match(other.after))
        ):
            return False
        hour = other.plain[:-3] if other.kind == "clock" and other.plain.endswith("00") else other.plain
        return hour.isdecimal() and len(hour) < 3 and (int(self.value) - int(hour)) % 12 == 0

    def lookup_keys(self) -> Iterator[tuple[object, ...]]:
        """Yield dictionary keys (tuples) for finding equal numbers fast.

        Two numbers that are the same (`is_same`) have a key in common, and others seldom have.
        """
        for value in self.values:
            yield ("value", value)
        if self.kind == "date":
            day, year = _day_and_year(self.parts)
            yield ("date", *day, year[-2:])
        elif self.kind == "clock":
            hour, minute = re.split("[:.]", self.plain)
            yield ("clock", int(hour) % 12, int(minute))
        elif self.plain.isdecimal() and self.value <= _HOURS:
            yield ("clock", int(self.value) % 12, 0)
        elif not self.values:
            yield ("list", *re.findall(r"\d+", self.plain))

    @property
    def value(self) -> Decimal:
        """The smallest possible value of the number as a Decimal; -1 for a date or list, which has no value."""
        return min(self.values, default=Decimal(-1))

    def may_become(self, other: "_Number") -> bool:
        """Return whether another plain number may be a right translation of this one, despite other digits.

        The numbers may be hours on a 24-hour and a 12-hour clock (14, 2), or the same amount in different units (2 km,
        2000 m). Or one number may be the other with decimals (2, 2.5).
        """
        if not self.quantities.isdisjoint(other.quantities):
            return True
        both = sorted((self.value, other.value))
        is_hour = self.plain.isdecimal() and other.plain.isdecimal() and both[1] <= _HOURS and both[1] - both[0] == 12
        return is_hour or self.is_same(other) or both[0] == both[1].to_integral_value(ROUND_FLOOR)


def _values(plain: str, kind: str | None) -> set[Decimal]:
    """Return a set of the values (Decimal) that a number in ASCII digits may have.

    There are two values if the number's only sign may be a decimal point or separate groups, as in 1.234. A date or a
    list has no value.
    """
    parts = re.split(r"\D", plain.rstrip("."))
    signs = re.sub(r"\d", "", plain.rstrip("."))
    if kind == "date" or not all(parts):
        return set()
    is_grouped = _are_groups(parts)
    joined, decimal = Decimal("".join(parts)), Decimal(f"{''.join(parts[:-1]) or 0}.{parts[-1]}") if signs else None
    if decimal is None:
        return {joined}
    if len(set(signs)) == 1 and signs[0] not in ".,:٫":
        return {joined} if is_grouped else set()
    if len(signs) == 1:
        if not is_grouped or signs not in ".," or parts[0][0] == "0":
            return {decimal}
        return {joined} if parts[1] == "000" else {joined, decimal}
    if len(set(signs)) == 1:
        return {joined} if is_grouped else set()
    return {decimal} if len(set(signs[:-1])) == 1 and _are_groups(parts[:-1]) and signs[-1] in ".,٫" else set()


def _are_groups(parts: Sequence[str]) -> bool:
    """Return whether a list of digit strings is one number in groups, as in 1,234,567 and, in India, 12,34,567."""
    is_long = [len(part) for part in parts[1:]]
    return len(parts[0]) < 4 and is_long[-1:] in ([3], []) and ({*is_long} <= {3} or {*is_long[:-1]} == {2})


def _numbers(text: str) -> list[_Number]:
    """Return a list of the numbers, dates and times that a text writes in digits, in order."""
    plain = text if text.isascii() else _WIDE_SIGN.sub(lambda match: ".,"[match[0] == "，"], text)
    plain = plain if text.isascii() else re.sub("[^\\W\\D]", lambda match: str(unicodedata.decimal(match[0])), plain)
    plain, numbers, end = plain.replace("：", ":"), list[_Number](), -1
    for match in _WRITTEN.finditer(plain):
        kind = match.lastgroup if match.lastgroup in ("date", "clock", "day", "groups") else None
        values, start, stop = _values(match[0], kind), match.start(), match.end()
        while (
            values
            and kind != "day"
            and len(match[0]) <= _LONGEST_NUMERAL
            and (scale := _SCALE.match(plain, stop)) is not None
        ):
            name, _, power = (scale.lastgroup or "").partition("_")
            values = {value.scaleb(int(power)) for value in values} | (values if name == "unsure" else set())
            stop = scale.end()
        if values and _DISCOUNT.match(plain, stop) is not None:
            values |= _discounts(values)
        if (era := _ERAS.get(plain[max(0, start - 3) : start].strip()[-2:])) is not None:
            values |= {value + era for value in values}
        former = numbers[-1] if numbers and numbers[-1].is_scaled else None
        is_year = stop - start == 4 and plain.startswith("년", stop)  # 5만 2024년
        if former is not None and (end == start or (not is_year and _is_rest(former, plain[end:start], values))):
            numbers.pop()  # 3万5千 is one number, as is 3만 5천
            values = {former.value + value for value in values}
            start = end - len(former.text)
        before, after = text[max(0, start - 6) : start], text[stop : stop + 16]
        numbers.append(_Number(text[start:stop], match[0], kind, frozenset(values), before, after))
        end = stop
    return numbers


def _is_rest(former: _Number, between: str, values: set[Decimal]) -> bool:
    """Return whether a number continues the Korean number before it.

    Examples are 5천 in 2만 5천 and 5000 in 2만 5000.

    Args:
        former: the number before it.
        between: the text between the two numbers.
        values: the values that the second number may have.
    """
    power = {"만": 4, "억": 8, "조": 12}.get(former.text[-1])
    return between == " " and power is not None and bool(values) and 100 <= min(values) < 10**power


def _day_and_year(parts: Sequence[str]) -> tuple[list[int], str]:
    """Return a date's day and month, a list of two integers in ascending order, and its year's digits.

    `parts` are the date's components, in any order.
    """
    year = next((part for part in parts if len(part) == 4), parts[-1])
    rest = [part for part in parts if part is not year]
    return sorted(map(int, rest)), year


# --- number words ---


# Numbers in words of English, German, French, Spanish, Italian, Portuguese, Dutch and Russian. Compounds such as
# neunundsiebzig are read too, and words of decades such as eighties.
_WORDS = """
0=zero null nul zéro cero ноль
1=one ein eins eine einen einem einer een un une uno una um uma один одна
2=two zwei zwo twee deux dos due dois duas два две двух
3=three drei drie trois tres tre três три трех трёх
4=four vier quatre cuatro quattro quatro четыре четырех четырёх
5=five fünf vijf cinq cinco cinque пять пяти
6=six sechs zes seis sei шесть шести
7=seven sieben zeven sept siete sette sete семь семи
8=eight acht huit ocho otto oito восемь восьми
9=nine neun negen neuf nueve nove девять девяти
10=ten zehn tien dix diez dieci dez десять десяти
11=eleven elf onze once undici одиннадцать
12=twelve zwölf twaalf douze doce dodici doze двенадцать
13=thirteen dertien treize trece tredici treze тринадцать
14=fourteen veertien quatorze catorce quattordici catorze четырнадцать
15=fifteen vijftien quinze quince quindici пятнадцать
16=sixteen sechzehn zestien seize dieciséis sedici dezesseis шестнадцать
17=seventeen siebzehn zeventien diecisiete diciassette dezessete семнадцать
18=eighteen achttien dieciocho diciotto dezoito восемнадцать
19=nineteen negentien diecinueve diciannove dezenove девятнадцать
20=twenty twenties zwanzig twintig vingt vingts veinte veinti venti vent vinte двадцать двадцати
30=thirty thirties dreißig dreissig dertig trente treinta trenta trent trinta тридцать тридцати
40=forty forties vierzig veertig quarante cuarenta quaranta quarant quarenta сорок сорока
50=fifty fifties fünfzig vijftig cinquante cincuenta cinquanta cinquant cinquenta пятьдесят пятидесяти
60=sixty sixties sechzig zestig soixante sesenta sessanta sessant sessenta шестьдесят шестидесяти
70=seventy seventies siebzig zeventig septante setenta settanta settant семьдесят семидесяти
80=eighty eighties achtzig tachtig quatrevingt quatrevingts ochenta ottanta ottant oitenta восемьдесят восьмидесяти
90=ninety nineties neunzig negentig nonante noventa novanta novant девяносто
100=hundred hundreds hundert honderd cent cents cien ciento cento cem сто ста
200=doscientos doscientas duzentos duzentas двести двухсот
300=trescientos trescientas trezentos trezentas триста трехсот
400=cuatrocientos cuatrocientas quatrocentos quatrocentas четыреста
500=quinientos quinientas quinhentos quinhentas пятьсот пятисот
600=seiscientos seiscientas seiscentos seiscentas шестьсот
700=setecientos setecientas setecentos setecentas семьсот
800=ochocientos ochocientas oitocentos oitocentas восемьсот
900=novecientos novecientas novecentos novecentas девятьсот
1000=thousand thousands tausend duizend mille mila mil тысяча тысячи тысяч тысячу
1000000=million millions millionen miljoen millón millones milione milioni milhão milhões миллион миллиона миллионов
1000000000=billion milliarde milliarden miljard milliard milliards miliardo miliardi миллиард миллиарда миллиардов
"""
_LONGEST_WORD, _LONGEST_NUMERAL = 40, 24  # in characters, and in words or Chinese characters
_ARTICLES = ("ein", "eine", "einen", "einem", "einer", "een", "un", "une", "una", "uno", "um", "uma")
_LINKS = ("and", "und", "en", "et", "y", "e")
_HAN = {character: number for number, character in enumerate("零一二三四五六七八九")} | dict(
    zip("〇两兩十百千万萬億亿兆", (0, 2, 2, 10, 100, 1000, 10**4, 10**4, 10**8, 10**8, 10**12), strict=True)
)
_FORMAL_HAN = str.maketrans(  # of bank notes and bills, and of calendars
    dict(zip("壹贰貳弐叁參参肆伍陆陸柒捌玖拾佰仟○", "一二二二三三三四五六六七八九十百千〇", strict=True))
    | {"廿": "二十", "卅": "三十", "卌": "四十"}
)
# 千分之三 is 0.3 %, 一点五亿 is 150,000,000, and 七折 is 30 % off. 三点二十 is a time.
_HAN_NUMERAL = re.compile(
    rf"(?:(?P<parts>[千万萬])分之)?(?P<whole>[{''.join(_HAN)}]{{1,{_LONGEST_NUMERAL}}})"
    rf"(?:[点點・](?P<decimals>[〇零一二三四五六七八九]{{1,{_LONGEST_NUMERAL}}})(?P<scale>[万萬億亿兆]?)(?![十百千]))?"
    r"(?P<discount>折(?!叠)|割)?"
)
_DISCOUNT = re.compile(" ?(?:折(?!叠)|割)")
# Years of Japan and Taiwan: 令和6年 is 2024, and 元年 is the first one.
_ERAS = {"明治": 1867, "大正": 1911, "昭和": 1925, "平成": 1988, "令和": 2018, "民國": 1911, "民国": 1911}
_ERA_YEAR = re.compile(f"({'|'.join(_ERAS)}) ?(元|\\d{{1,3}}|[〇零一二三四五六七八九十百]{{1,5}})")
_KOREAN = str.maketrans("영일이삼사오육칠팔구십백천만억", "零一二三四五六七八九十百千万億")
_KOREAN_NUMERAL = re.compile("(?<![가-힣])[일이삼사오육칠팔구]?[십백천만억][일이삼사오육칠팔구십백천만억]*")
_WORD_OR_SIGN = re.compile(r"[^\W\d_]+|[^\w\s-]+")


@cache
def _number_words() -> tuple[dict[str, int], re.Pattern[str], re.Pattern[str]]:
    """Return a dict from number words to numbers, and two patterns of number words.

    The first pattern matches a compound of number words, the second matches one word of it. The results are built once.
    """
    lines = (line.partition("=") for line in _WORDS.split("\n") if line)
    numbers = {word: int(number) for number, _, words in lines for word in words.split()}
    one = f"({'|'.join(sorted(numbers, key=len, reverse=True))})(?:und|en|ën)?"
    return numbers, re.compile(f"(?P<words>(?:{one})+?)(?:s|ern?|s?te[nrsm]?|th)?"), re.compile(one)


def _sum(numbers: Sequence[int]) -> int:
    """Combine the values of consecutive number words into one number: 2, 100, 5, 1000 to 205,000."""
    total = group = 0
    for number in numbers:
        if number >= 1000:
            total, group = total + max(1, group) * number, 0
        else:
            group = max(1, group) * number if number == 100 else group + number
    return total + group


def _sum_han(numbers: Sequence[int]) -> int:
    """Combine the values of consecutive Chinese numerals into one number: 3, 10000, 5, 1000 to 35,000."""
    total = group = digit = 0
    for number in numbers:
        if number < 10:
            digit = number
        elif number < 10**4:
            group, digit = group + max(1, digit) * number, 0
        else:
            total, group, digit = (total or 1) * number if not group + digit else total + (group + digit) * number, 0, 0
    return total + group + digit


def _word_values(text: str) -> set[Decimal]:
    """Return a set of the values (Decimal) of the numbers that a text writes in words, Chinese or Korean numerals."""
    numbers, compound, one = _number_words()
    found, run = list[list[int]](), list[int]()
    for token in [*_WORD_OR_SIGN.findall(text.lower().replace("quatre-vingt", "quatrevingt")), "."]:
        if token in _LINKS and run:
            found.append([*run])
        elif len(token) <= _LONGEST_WORD and (match := compound.fullmatch(token)) is not None:
            if token in _ARTICLES or len(run) > _LONGEST_NUMERAL:
                found.append(run)
                run = []
            run += [numbers[each] for each in one.findall(match["words"])]
        elif run:
            found.append(run)
            run = []
    values = {Decimal(_sum(each)) for each in found if each}
    korean = " ".join(_KOREAN_NUMERAL.findall(text)).translate(_KOREAN)
    for match in _HAN_NUMERAL.finditer(f"{text} {korean}".translate(_FORMAL_HAN)):
        values |= _han_values(match)
    for era, year in _ERA_YEAR.findall(text):
        numeral = None if year.isdecimal() else _HAN_NUMERAL.fullmatch(year)
        years = {Decimal(1 if year == "元" else year)} if numeral is None else _han_values(numeral)
        values |= {_ERAS[era] + number for number in years}
    return values


def _han_values(match: re.Match[str]) -> set[Decimal]:
    """Return a set of the values (Decimal) that a match of `_HAN_NUMERAL` may have."""
    digits = [_HAN[character] for character in match["whole"]]
    # 一九九〇 is written digit by digit.
    whole = Decimal("".join(map(str, digits))) if max(digits) < 10 else Decimal(_sum_han(digits))
    values = {whole}
    if digits[-1] < 10 and len(digits) > 1 and digits[-2] >= 100:  # 两千五 is 2,500, but in Japanese 2,005
        values.add(whole + digits[-1] * (digits[-2] // 10 - 1))
    if match["decimals"] is not None:
        decimals = "".join(str(_HAN[character]) for character in match["decimals"])
        values.add(Decimal(f"{whole}.{decimals}") * _HAN.get(match["scale"], 1))
    if match["parts"] is not None:
        values |= {value / (10 if match["parts"] == "千" else 100) for value in values}
    return values | (_discounts(values) if match["discount"] else set())


def _discounts(values: Iterable[Decimal]) -> set[Decimal]:
    """Return the percentages that a Chinese discount may be translated by.

    The number before 折 is the part of the price that stays: 7折 is 70 % of the price, or 30 % off.

    The result is a set of both percentages for each number.
    """
    kept = {value * 10 if value < 10 else value for value in values if value < 100}
    return kept | {100 - value for value in kept}


# --- names of months ---


_MONTHS = tuple(
    re.compile(rf"(?<![^\W\d_])(?:{unicodedata.normalize('NFC', names)})", re.IGNORECASE)
    for names in (
        "jan|jän|ene|gen(?:n|\\b)|янв|січ|stycz|led(?:en|na)|ocak|ιαν|يناير|जन|มกรา|tammi|gener",
        "feb|fév|fev|фев|лют|lut|únor|şubat|φεβ|φλεβ|فبراير|फ़र|फर|กุมภา|helmi",
        "mar|mär|maa(?:rt|l)|mrt|маре|март|берез|břez|μάρ|μαρ|مارس|मार्च|มีนา",
        "apr|abr|avr|апр|квіт|kwie|dub(?:en|na)|nisan|απρ|أبريل|अप्र|เมษา|huhti",
        "may|mai|mag(?:g|\\b)|mei|maj|мая|май|мае|трав|kvě|μαΐ|μάι|μαι|مايو|मई|พฤษภา|touko",
        "jun|giu|juin|июн|черв|czerw|červ(?:en|na)\\b|haz|ιουν|ιούν|يونيو|जून|มิถุ|kesä",
        "jul|lug|juil|июл|лип|lip(?:iec|ca)|červen[ec]|tem(?:m|\\b)|ιουλ|ιούλ|يوليو|जुल|กรกฎ|heinä",
        "aug|ago|aoû|авг|серп|sierp|srp|ağu|αυγ|αύγ|أغسطس|अग|สิงหา|elo",
        "sep|set|сен|верес|wrze|září|eyl|σεπ|سبتمبر|सित|กันยา|syys",
        "o[ck]t|out|ott|окт|жовт|paź|říj|eki|οκτ|أكتوبر|अक्|ตุลา|loka",
        "nov|ноя|листоп|listop|kas(?:ım|\\b)|νοε|νοέ|نوفمبر|नव|พฤศจิ|marras",
        "de[czs]|dé[cz]|dic|dis|дек|груд|grud|pros|ara(?:l|\\b)|δεκ|ديسمبر|दिस|ธันวา|joulu",
    )
)
_MONTH_SIGN = re.compile(r"(?<!\d)(\d\d?) ?[月월]")


def _months(text: str) -> set[int]:
    """Return a set of the numbers (1 to 12) of months that a text may contain, by name or as in 5月."""
    return {number for number, names in enumerate(_MONTHS, 1) if names.search(text)} | _signed_months(text)


def _signed_months(text: str) -> set[int]:
    """Return a set of the numbers of months that a text writes in digits, as in 5月."""
    return {int(number) for number in _MONTH_SIGN.findall(text)}


# --- missing numbers ---


def missing_numbers(source: str, target: str, *, changed_small: bool = True) -> list[str]:
    """Return a list of the numbers of a source that its translation lacks, as the source writes them.

    Values are compared, whatever the notation: 1.234,50 and 1,234.50, 3万 and 30,000, 40 and forty. If a sign is
    ambiguous, as in 1.234, one of the possible values is enough. Metric units are converted: 1.80 m is 180 cm. Dates
    and times may be written in another notation. A negative number is lacking if its translation has lost the minus.

    Numbers up to twenty are often written as words. Such a number is listed only if no other number is lacking and the
    translation has another number in digits instead. With `changed_small` false, it is never listed.
    """
    numbers = _numbers(source)
    if not numbers:
        return []
    target_numbers, has_word = _numbers(target), _MINUS_WORD.search(target) is not None
    found = _Found(target, target_numbers)
    missing = []
    for number in numbers:
        minus = _MINUS.search(number.before)
        same = found.same(number) if minus and not has_word else []
        if minus and same and not any(_ANY_MINUS.search(other.before) for other in same):
            missing.append(minus[0] + number.text)
        else:
            missing += found.missing_parts(number)
    missing += _changed_months(source, numbers, target, target_numbers)
    if missing or not changed_small:
        return missing
    return _changed_small_numbers(numbers, target_numbers)


def is_date_or_clock(number: str) -> bool:
    """Return whether a translation may write a number with other digits.

    This holds for a date, a time, or a number with a word that multiplies it, such as 3万. `number` is a text.
    """
    return any(each.kind in ("date", "day") or each.is_sure_clock or each.is_scaled for each in _numbers(number))


class _Found:
    """The numbers of a translation, indexed so that the numbers of its source can be looked for."""

    def __init__(self, text: str, numbers: Sequence[_Number]) -> None:
        self._text = text
        self._plain = {part for number in numbers for part in (number.plain, *re.findall(r"\d+", number.plain))}
        self._values = {value for number in numbers for value in number.values}
        self._has_dates = any(number.kind == "date" for number in numbers)
        self._has_clocks = any(number.is_sure_clock for number in numbers)
        self._quantities = {quantity for number in numbers for quantity in number.quantities}
        self._days = {int(number.value) for number in numbers if 0 < number.value <= _MOST_DAYS}
        self._by_key: dict[tuple[object, ...], list[_Number]] = {}
        unique = {
            (each.text, each.kind, bool(_ANY_MINUS.search(each.before)), bool(_HOUR.match(each.after))): each
            for each in numbers
        }
        for number in unique.values():
            for key in number.lookup_keys():
                self._by_key.setdefault(key, []).append(number)
        self._words: set[Decimal] | None = None

    def same(self, number: _Number) -> list[_Number]:
        """Return a list of the translation's numbers that are the same as a source number.

        A number may be repeated in the list.
        """
        return [other for key in number.lookup_keys() for other in self._by_key.get(key, ()) if number.is_same(other)]

    def missing_parts(self, number: _Number) -> list[str]:
        """Return what a translation lacks of a source number, a list of texts.

        The list is empty if the translation has the number, or if the number is small and may be written as a word.
        Otherwise, it contains the whole number. For groups of digits that the translation has as separate numbers, it
        contains only the groups that are missing.
        """
        if number.is_small or self.same(number) or not number.values.isdisjoint(self._in_words()):
            return []
        if number.kind in ("date", "day"):
            is_found = self._has_date(number) if number.kind == "date" else self._has_day(*number.parts[:2])
            return [] if is_found else [number.text]
        is_plain = number.kind is None and not number.is_scaled
        if not number.quantities.isdisjoint(self._quantities):
            return []
        if self._has_fraction(number) or self._has_decade(number) or (is_plain and self._has(number.plain)):
            return []
        similar = number.is_sure_clock and self._has_clocks
        is_whole = number.kind in (None, "clock") and "." in number.plain
        parts = number.parts
        # The parts of 1 234 are two numbers only if the translation has the first of them.
        is_one = number.kind == "groups" and (parts[0] not in self._plain or "0" in [part[0] for part in parts[1:]])
        if similar or number.is_scaled or is_whole or is_one:
            return [number.text]
        missing = [part for part in parts if not self._has(part)]
        if number.kind == "groups" and any(int(part[:3]) > _SMALL_NUMBER and part not in missing for part in parts):
            return missing
        return [number.text] if missing else []

    def _in_words(self) -> set[Decimal]:
        if self._words is None:
            self._words = _word_values(self._text)
        return self._words

    def _has(self, part: str) -> bool:
        """Return whether the translation has a number of plain digits, or may have it as a word (up to twenty)."""
        value = Decimal(part) if part.isdecimal() else Decimal(-1)
        years = (other for other in self._plain if len(part) == 2 and len(other) == 4)
        return (
            0 <= value <= _SMALL_NUMBER
            or value in self._values
            or part in self._plain
            or any(year.endswith(part) for year in years)  # of the 90s, in 1990s
            or value in self._in_words()
        )

    def _has_fraction(self, number: _Number) -> bool:
        """Return whether the translation has a word for the half or quarter at the end of a source number.

        In a time, 30 minutes are a half, and 15 or 45 minutes are a quarter.
        """
        end = number.parts[-1] if number.kind == "clock" else number.plain[-2:]
        if number.kind == "clock":
            is_half, is_quarter = end == "30", end in ("15", "45")
        else:
            is_half, is_quarter = end in (".5", ",5"), "." in number.plain.translate(_POINT) and end in ("25", "75")
        return (is_half and _HALF.search(self._text) is not None) or (
            is_quarter and _QUARTER.search(self._text) is not None
        )

    def _has_decade(self, number: _Number) -> bool:
        """Return whether a source number is a decade that the translation writes in two digits.

        For example, the 1960s may become the 60s.
        """
        decade = number.plain[-2:]
        is_decade = _DECADE.match(number.after) is not None and len(number.plain) == 4 and decade[-1] == "0"
        return is_decade and (decade in self._plain or Decimal(decade) in self._in_words())

    def _has_day(self, day: str, month: str) -> bool:
        """Return whether the translation has a day and month, and names no other day or month.

        If it names no month, the day is enough.
        """
        months = _months(self._text)
        if not months or self._days & {int(month)}:
            return self._has(day)
        is_unseen = int(day) <= _SMALL_NUMBER and not self._days  # a word that is not known may be the day
        has_day = int(day) in self._days or Decimal(day) in self._in_words() or is_unseen
        return int(month) in months and has_day

    def _has_date(self, date: _Number) -> bool:
        """Return whether the translation seems to have a source's date in several numbers or words.

        It must have the date's numbers and no other day or month. A translation with a date in digits does not count.
        """
        if self._has_dates or not all(map(self._has, date.parts)):
            return False
        days, year = _day_and_year(date.parts)
        months, signed, words = _months(self._text), _signed_months(self._text), self._in_words()
        others = self._days - {int(year)}
        return any(
            month <= 12
            and (not months or month in months)
            and (not others - (signed if months else {month}) or day in others or Decimal(day) in words)
            for day, month in (days, days[::-1])
        )


def _changed_months(
    source: str, numbers: Sequence[_Number], target: str, target_numbers: Sequence[_Number]
) -> Iterator[str]:
    """Yield the name of the source's month if the translation's dates in digits have other months.

    Nothing is yielded in these cases: the source has several months or a date in digits, a year of the translation is
    not in the source, or the translation names a month.
    """
    dates = [_day_and_year(other.parts) for other in target_numbers if other.kind == "date"]
    years = {number.plain for number in numbers if len(number.plain) == 4}
    if not dates or any(number.kind == "date" for number in numbers) or _months(target):
        return
    months = _months(source)
    if len(months) == 1 and all(year in years and not months & {*days} for days, year in dates):
        words = (re.search(rf"{names.pattern}\w*", source, re.IGNORECASE) for names in _MONTHS)
        yield from (match[0] for match in words if match is not None)


def _changed_small_numbers(source: Sequence[_Number], target: Sequence[_Number]) -> list[str]:
    """Return a list of the source's numbers up to twenty that the translation replaces by others.

    A number is listed as its text. It is left out if one of the other numbers may be a right translation of it. The
    list is empty if the two texts differ in their count of numbers, or if one of them has a date, a time or a number
    with a multiplying word.
    """
    if len(source) != len(target) or any(each.kind is not None or each.is_scaled for each in (*source, *target)):
        return []
    in_source, in_target = (Counter(each.value for each in side) for side in (source, target))
    changed, new = in_source - in_target, in_target - in_source
    others = [each for each in target if new[each.value]]
    if any(each.may_change for each in others):
        return []
    others = list({each.text: each for each in others}.values())
    return [
        each.text
        for each in source
        if changed[each.value] and each.is_small and not each.may_change and not any(map(each.may_become, others))
    ]
