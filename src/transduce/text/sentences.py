"""Split running text into sentences and documents.

A document is a list of sentences in order. In a hard-wrapped file (a book) a line ends where the next word would not
have fitted, sentences end anywhere in a line, an empty line ends a paragraph, and the file is one document. In any
other file a line is a paragraph, and an empty line ends a document.
"""

import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice, pairwise
from pathlib import Path
from typing import NamedTuple

from transduce.text.files import compose, read_lines
from transduce.text.languages import (
    CJK,
    GREEK,
    is_unspaced_character,
    is_word_character,
    main_script,
    short_code,
)
from transduce.text.word_spans import Span, joins_without_space

# --- punctuation ---
# Thai, Lao and Tibetan have no unambiguous marks.


# All strings are for use within a character class of a regular expression.
# Full stops: Latin, Urdu, Armenian. They also occur in numbers and abbreviations, so a space must follow.
STOPS = ".\u06d4\u0589"
# Exclamation marks, question marks and ellipses of scripts with spaces: Latin, Arabic, Greek.
CALLS = "!?…‼⁇⁈⁉\u061e\u061f\u037e"
# Marks that end a sentence without a following space. Chinese and Japanese:
WIDE = "。！？｡"
# Ethiopic, Myanmar, Khmer, Mongolian, Ol Chiki, Meetei:
_OTHERS = "\u1362\u1367\u1368\u104b\u17d5\u1803\u1809\u1c7e\u1c7f\uabeb"
SENTENCE_MARKS = f"{STOPS}{CALLS}{WIDE}{_OTHERS}\u0964\u0965\u17d4\uff0e"
"""All punctuation marks that may end a sentence, in any script, as one text."""
# Chinese and Japanese texts also have the narrow marks without a space after them.
_NARROW = rf"(?<=[{CJK}])[!?]+"
# Also a danda, possibly with a verse number between two of them; a Khmer full stop, except the first one of "and so on"
# (។ល។); a wide full stop, except as a decimal point.
UNSPACED = (
    rf"(?:[{WIDE}{_OTHERS}]|{_NARROW}|[\u0964\u0965](?:\s?\d+\s?[\u0964\u0965])?"
    r"|\u17d4(?!\u179b\u17d4)|(?<!\d)\uff0e)"
)


# --- documents of running text ---


# Number of first lines that decide whether a file is hard-wrapped.
_INSPECTED_LINES = 2_000
# Books are wrapped at 60 to 80 characters.
_WIDEST = 120
_FULL_SHARE = 0.8
# In wrapped prose a sentence ends within a line every few lines, and most lines that continue a sentence begin with a
# small letter, if the script has any. Lists of titles or names have no sentence ends, and lines of a log begin with
# digits.
_MIN_ENDS, _MAX_LARGE = 0.05, 0.75
# A line shorter than this share of the width was not wrapped: a heading, a verse.
_SHORT_SHARE = 0.6
_OPENING = "\"“‘'«([—–-_"


def read_documents(path: str | Path) -> Iterator[list[str]]:
    """Yield the documents of a text file, plain or compressed, each as a list of sentences (texts).

    Raises:
        TransduceError: the file cannot be read.
    """
    lines = read_lines(path)
    first = list(islice(lines, _INSPECTED_LINES))
    rest = chain(first, lines)
    if is_hard_wrapped(first):
        sentences = _wrapped_sentences(first, rest)
        yield from [sentences] if sentences else []
    else:
        yield from _documents_of_lines(rest)


def sentences_of(text: str) -> list[str]:
    """Return a list of the sentences of one document, a text whose lines may be hard-wrapped."""
    lines = text.split("\n")
    if is_hard_wrapped(lines):
        return _wrapped_sentences(lines, lines)
    return [sentence for document in _documents_of_lines(lines) for sentence in document]


def _wrapped_sentences(first: Sequence[str], lines: Iterable[str]) -> list[str]:
    """Return a list of the sentences of a hard-wrapped text, whose line width is found from its `first` lines."""
    paragraphs = join_lines(lines, _width(_consecutive_lines(first)))
    return [sentence for paragraph in paragraphs for sentence in split_sentences(paragraph)]


def _documents_of_lines(lines: Iterable[str]) -> Iterator[list[str]]:
    document: list[str] = []
    for line in chain(lines, [""]):
        if line.strip():
            document += split_sentences(" ".join(line.split()))
        elif document:
            yield document
            document = []


def is_hard_wrapped(lines: Sequence[str]) -> bool:
    """Return whether lines were wrapped by width, so that sentences continue from one line to the next.

    Such lines end where the next word does not fit, and have sentence ends inside, unlike the items of a list.
    """
    followed = _consecutive_lines(lines)
    if len(followed) < 2:
        return False
    width = _width(followed)
    full = sum(len(line) + 1 + _first_word(after) > width for line, after in followed)
    return width <= _WIDEST and full >= _FULL_SHARE * len(followed) and _continues_across_lines(followed)


def _consecutive_lines(lines: Sequence[str]) -> list[tuple[str, str]]:
    """Return a list of the pairs of consecutive lines within paragraphs, without white space around the lines.

    A line that starts with an ideographic space (U+3000) begins a paragraph.
    """
    followed = ((line, after) for line, after in pairwise(lines) if line.strip() and after.strip())
    return [(line.rstrip(), after.strip()) for line, after in followed if not after.startswith("\u3000")]


def _width(followed: Sequence[tuple[str, str]]) -> int:
    """Return the upper quartile of the line lengths, the approximate width at which a text was wrapped.

    Args:
        followed: pairs of consecutive lines; the first of each is measured.
    """
    return sorted(len(line) for line, _ in followed)[(len(followed) - 1) * 3 // 4]


def _continues_across_lines(followed: Sequence[tuple[str, str]]) -> bool:
    """Return whether more sentences end within lines than at line ends, as in text that was wrapped by width.

    A list has items instead: the result is False if many lines begin with a capital letter or digit although the line
    before ends no sentence. `followed` are pairs of consecutive lines.
    """
    within = at_end = large = 0
    for line, after in followed:
        ends = list(_find_ends(_SentenceFinder(line, None, before_small=True)))
        ended = bool(ends) and ends[-1] == len(line)
        within += len(ends) - ended
        at_end += ended
        first = after.lstrip(_OPENING)[:1]
        large += not ended and (first.isupper() or first.isdigit())
    is_prose = within > max(at_end, _MIN_ENDS * len(followed))
    return is_prose and large <= _MAX_LARGE * (len(followed) - at_end)


def _first_word(line: str) -> int:
    """Return the length of a line's first word in characters; 0 in scripts without spaces, which wrap anywhere."""
    word = line.split(maxsplit=1)[0]
    return 0 if is_unspaced_character(word[0]) else len(word)


def join_lines(lines: Iterable[str], width: int = 0) -> Iterator[str]:
    """Yield the paragraphs of a text of hard-wrapped lines, each as one line; empty lines separate paragraphs.

    Lines are joined with a space. There is no space after a dash, which may join two words, nor in scripts without
    spaces.

    Args:
        lines: the lines of a text.
        width: the width at which the text was wrapped. A much shorter line is not joined to the next one, as in
            contents or verses, unless that begins with a small letter. 0: all lines are joined.
    """
    paragraph, last = "", ""
    for line in chain(lines, [""]):
        text = " ".join(line.split())
        if paragraph and (not text or _ends_early(last, text, width)):
            yield paragraph
            paragraph = text
        elif paragraph:
            paragraph += line_separator(paragraph, text) + text
        else:
            paragraph = text
        last = line.rstrip()


def line_separator(before: str, after: str) -> str:
    """Return the text in place of a line end: a space, or "" after a dash or within text without word spaces."""
    return "" if joins_without_space(before, after) or before.endswith(("-", "—")) else " "


def _ends_early(line: str, after: str, width: int) -> bool:
    fits = len(line) + 1 + _first_word(after) <= _SHORT_SHARE * width
    return fits and not after.lstrip(_OPENING)[:1].islower()


def split_sentences(text: str, language: str | None = None) -> list[str]:
    """Return a list of the sentences of a text, as `find_sentences` finds them.

    `language` is the code of the text's language; None: unknown.
    """
    return [text[slice(*span)] for span in find_sentences(text, language)]


# --- sentences to translate ---
# A split in the wrong position costs a little quality, and a missing one may cost a whole sentence, because models
# trained on single sentences often translate only the first. So doubtful positions are split.


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_CLOSERS = "”’\"'»«›‹\u05f4)\\]」』）》】〉"
# Numbers of notes after a mark: "water.[1]", "water.²"
_NOTE = r"\[(?:[a-z]|\d{1,3}(?:[,–-]\s?\d{1,3}){0,3})\]|[¹²³⁰⁴-⁹]"
_CLOSING = rf"(?:[{_CLOSERS}]|{_NOTE})*"
# Quotation marks of French stand after a space: « Quoi ? »
_CLOSING_MARKS = rf"(?P<closers>{_CLOSING}(?:[“‘](?=\s|$)|[ \u00a0\u202f][»›][{_CLOSERS}]*)?)"
_CJK = rf"{CJK}\uac00-\ud7af"
_INDIC = r"\u0900-\u0dff"


def _candidates(question: str = "") -> re.Pattern[str]:
    """Return a compiled expression for marks that may end a sentence.

    `question` is a further character that is read as a question mark, such as the Greek ";".
    """
    calls, joining = CALLS + question, "!?\u061f" + question
    return re.compile(
        rf"(?=[{STOPS}{calls}{WIDE}{_OTHERS}|\u0964\u0965\u17d4\uff0e])"  # every first character: for speed
        rf"(?:(?P<wide>(?:{UNSPACED}|(?<=[^\W\d_])(?<=[{_CJK}])\.(?=[{_CJK}“「『])|(?<=[{_CJK}])…+"
        rf"|(?:(?<=[{_INDIC}])|(?<=[{_INDIC}] ))\|{{1,2}}(?=[\s{_INDIC}]|$))[!?…{WIDE}]*)"
        rf"|(?P<spaced>(?<![{STOPS}{calls}])[{STOPS}{calls}]++(?={_CLOSING}[“‘]?(?:\s|$)))"
        rf"|(?P<joined>(?<![{joining}])[{joining}]++(?=[^\W\d_])|(?<=[^\W\d_])\u06d4(?=[^\W\d_])"
        r"|(?<=[a-zß-ÿ]{3})\.(?=[A-Z][a-z]*\s)))"
        rf"{_CLOSING_MARKS}"
    )


_CANDIDATE, _GREEK_CANDIDATE = _candidates(), _candidates(";")
# Abbreviations in lower case, of any language. Between the parts of "z.b" there may be a space, for "_" there is one.
# Titles and connectives, after which no sentence ends.
_NEVER_ENDS = _words(
    """mr mrs messrs mme mlle dr dra drs prof profs sergt dipl med phil sr sra srta srs dña sig sigg sig.ra dott avv dhr
    mevr vs viz cf e.g i.e approx ca z.b d.h u.a s.o s.u i.d.r bzw bspw evtl ggf inkl exkl sog vgl hrsg zzgl abzgl o.ä
    p.ej p.ex c.-à-d env pág av apr np tzn tj inż bijv d.w.z m.b.v т.е ул проф акад
    m.e m.a.w i.allg i.ü u.u z.t z.zt v v.a o.g i.h.v d.ä d.j d.gr dott.ssa prof.ssa sig.na ad_es per_es p.es o.a m.n
    i.p.v t.o.v i.v.m n.a.v t.j bl.a t.ex f.eks d.v.s m.a.o s.k t.o.m fr.o.m p.g.a δρ κ κος καθ βλ δηλ σελ λ.χ
    डॉ डा प्रो पं ড ডা মো т.к т.н т.о"""
)
# Titles that are also words or units if they begin with a small letter.
_TITLES = _words(
    """ms mm mgr rev hon capt col gen lieut lt sgt maj gov pres sen rep hr fr frl ing mag mw ste insp supt cmdr adm
    mt"""
)
# Abbreviations that are words or acronyms in other languages.
_OF_LANGUAGE = {
    "de": _words("insb insbes bzgl einschl ehem geb gest resp"),
    "nl": _words("resp"),
    "pt": _words("exmo exma ilmo"),
    "pl": _words("ul al pl os ks hab doc m.in tzw św"),
    "et": _words("nt"),
    "fi": _words("ks esim vrt"),
    "hu": _words("pl kb ill ld ifj özv"),
    "tr": _words("sn cad mah sok apt örn bkz doç"),
    "lt": _words("pvz"),
    "lv": _words("piem"),
    "sv": _words("dvs jfr resp"),
    "vi": _words("tp ths ts pgs gs bs pgs.ts gs.ts"),
    "id": _words("jl bpk"),
    **dict.fromkeys(
        ("cs", "sk"), _words("ul sv doc tř nábř např napr tzv resp popř příp príp ún mudr judr phdr rndr mvdr")
    ),
    **dict.fromkeys(("da", "no", "nb", "nn"), _words("dvs fx jf jfr")),
    **dict.fromkeys(("hr", "sr", "bs", "sl"), _words("ul sv npr tzv")),
    **dict.fromkeys(("ru", "uk", "be", "bg"), _words("напр доц просп пер пл наб вул англ греч бул")),
}
# Ends of lists, eras and units, which end a sentence before a capital letter.
_LIST_ENDS = _words(
    """etc usw etw u.s.w u.dgl dgl ecc itd itp т.д т.п др пр н.э тыс млн млрд руб коп u.v.m osv o.s.v m.m m.fl atd apod
    stb jne vb κλπ κ.λπ κτλ κ.ά dll dsb dst n.e p.n.e n.l př.n.l e.kr f.kr a.c tys mld zł u.ä
    ee.uu ff.aa rr.hh jj.oo cc.aa v.chr n.chr jh ق.م ب.م ه.ش"""
)
# Abbreviations that may end a sentence: they do before a word that often begins one.
_MAY_END = _words(
    """al jr esq inc ltd co corp llc plc bros st ave blvd rd dept univ ft a.m p.m a.d b.c u.s u.k u.n ph.d m.a b.a d.c
    u.s.a гр обл π.χ μ.χ a.u.b e.v"""
)
# German abbreviations of units, before which a number stands.
_GERMAN_UNIT = re.compile(r"\d\s(?:mio|mrd|tsd)$", re.IGNORECASE)
# Years and centuries, which may end a sentence. Without a number, the first three stand before names of places.
_BEFORE_PLACE = _words("г р м")
_DATED = _BEFORE_PLACE | _words("гг в вв рр r w")
# Abbreviations only before a number: "No. 5".
_BEFORE_NUMBER = _words(
    """no nos nr nrn núm num vol vols fig figs eq eqs p pp pg ch chap sec art arts par abs abb bd bde kap tab tel
    ed eds op ser ss s str § st cap págs t max min mind см r ext exts vers sect subsec paras eqn eqns refs rte hwy bldg
    thm fol pag pagg artt anm ziff jg fn rz fasc réf blz afb hfst sid
    c f l n kl tlf klo č čís obr odst godz br кв рис табл стр гл п пп ст ч д с корп разд прил илл रु रू αρ τηλ"""
)
# Those that are words in other languages.
_BEFORE_NUMBER_OF_LANGUAGE = {
    "en": _words("ver para rm apt pt bk ref app"),
    "pl": _words("poz ust rys"),
    "tr": _words("md"),
    "id": _words("hlm"),
}
# Months and days of the week, only before the number of a day or year: "Sept. 11", "11 sept. 2001".
_DATE_WORDS = _words(
    """jan janv ian feb febr febbr fév févr apr ápr avr abr juil aug sep sept szept sett oct okt ott nov dec dez déc dic
    ene mrt márc máj jún júl jän mär янв февр фев апр авг сент сен окт нояб ноя дек січ лют квіт серп жовт груд ιαν φεβρ
    φεβ απρ αυγ σεπτ οκτ νοε δεκ tues thur thurs"""
)
# Those that are also words if they begin with a small letter.
_CAPITAL_DATE_WORDS = _words("mar jun jul mon tue wed thu fri sat sun")
_DATE_WORDS_OF_LANGUAGE = {
    "es": _words("mar jun jul ago set"),
    "it": _words("genn mar mag giu lug ag ago set"),
    "pt": _words("fev mar mai jun jul ago set out"),
    "pl": _words("sty lut kwi cze lip sie wrz paź lis gru"),
    "ro": _words("mart iun iul"),
    "ca": _words("gen març jul ag set des"),
    "uk": _words("бер трав черв лип вер лист"),
    **dict.fromkeys(("nl", "sv"), _words("jun jul")),
    **dict.fromkeys(("da", "no", "nb", "nn"), _words("jun jul des")),
}
# The day or year after a month, and not an amount such as "5 million"; the day before one; a year or time after both.
_DAY_OR_YEAR = re.compile(
    r"(?:(?:[12]\d|3[01]|0?[1-9])(?!\d)|1\d{3}|20\d\d|21\d\d)(?!\d|,\d{3}|(?:[.,]\d+)?\s?(?:%|milli|billi|hundred|thousand"
    r"|per\s?cent|pro[cz]ent))",
    re.IGNORECASE,
)
_ENDS_WITH_DAY = re.compile(r"(?<!\d)\d{1,2}(?:st|nd|rd|th|\.)?(?: of| de)? \S+$")
_YEAR_OR_TIME = re.compile(
    r"(?:1\d|20|21)\d\d(?!\d|[%,.]\d)|0\d\b|\d\d?(?:[:.h]\d\d|\s?(?:h|uhr|[ap]\.?m)\b)", re.IGNORECASE
)
# Names follow "им." (named after), which is also a word (to them).
_NAMED_AFTER = re.compile(
    r"(?:завод|театр|институт|университет|академи|училищ|школ|библиотек|музе|парк|фабрик|колхоз|совхоз|стадион|станци|"
    r"аэропорт|центр|дом|клуб|больниц|площад|улиц|двор|консерватори|филармони|канал|преми|орден|фонд)\w*\s+им$",
    re.IGNORECASE,
)
_MONTHS = re.compile(
    r"(?:jan|feb|febr|mar|apr|jun|jul|aug|sep|sept|okt|oct|nov|dez|dec)\b|jänner|januar|februar|märz|april|mai|may|juni|"
    r"june|juli|july|august|september|o[kc]tober|november|de[zc]ember",
    re.IGNORECASE,
)
# Abbreviations that surely end a long sentence before a capitalized word, except the name of an office, unit or time.
_SURE_ENDS, _MIN_SURE_WORDS = _words("a.m p.m u.s u.k u.n u.s.a"), 5
_SURE_START = re.compile(
    rf"(?!(?i:{_MONTHS.pattern})|(?:Mon|Tues|Wednes|Thurs|Fri|Satur|Sun)day|Eastern|Central|Pacific|Mountain|Greenwich|Army"
    r"|Navy|Marine|Senat|Congress|President|House|Constitution|Government|Treasury|Embassy|Ambassador|Secretary|Dollar"
    r"|Steel|Open|Supreme)[A-Z][\w’']*\s[a-z]"
)
# Only German writes nouns after ordinals with capital letters: "am 2. Tag", "der 1. und 2. Weltkrieg".
_BEFORE_ORDINAL = re.compile(
    r"(?:^|\s)(?:d(?:er|ie|as|en|em|es)|[aiv][mn]|vom|zu[mr]|beim|ins|(?:[mdsk]?ein|ihr|unser|euer|jed|dies|jen|erst)"
    r"(?:e[rsnm]?)?|ab|bis|seit|vor|nach|\d{1,3}\.\s(?:und|oder|bis|/|-))\s*$",
    re.IGNORECASE,
)
_ORDINAL_LANGUAGES = ("de", "lb", "nds")
# Languages with a full stop after the number of a king: "II. Abdülhamit".
_ROMAN_LANGUAGES = (*_ORDINAL_LANGUAGES, "tr", "az", "hu", "cs", "sk", "hr", "sr", "bs", "sl", "da", "no", "nb", "et")
# Dates with spaces: "2024. 5. 3.", "3. 5. 2024"
_DAY, _MONTH, _YEAR = r"(?:0?[1-9]|[12]\d|3[01])", r"(?:0?[1-9]|1[0-2])", r"(?:1[4-9]|2[01])\d\d"
_DATE = re.compile(rf"(?<!\d)(?:{_YEAR}\.\s?{_MONTH}\.\s?{_DAY}\.|{_DAY}\.\s?{_MONTH}\.\s?{_YEAR}(?!\d))")
# Frequent first words of sentences.
_STARTERS = _words(
    """the a an i he she it we they you this that these those there here my your his her our their but and so if when
    what who how why where in on at for as then not no yes i'm i've i'll it's he's she's that's don't let's is are do
    der die das den dem ein eine ich er sie es wir ihr du und aber doch denn wenn was wer wie wo warum hier da dort im
    am an auf mit für nach nun jetzt dann ja nein mein meine sein seine ihre kein keine nicht man dies diese dieser
    le la les un une je tu il elle nous vous ils elles on ce cette c'est mais et ou si quand que qui dans j'ai
    el los las una unos yo tú él ella nosotros ellos es pero y cuando no lo gli uno io lui lei noi e ma o os
    het een ik jij hij zij wij en maar niet"""
)
# Those that are names in other languages: "Sen. McCain", "D. Ben-Gurion".
_STARTERS_OF_LANGUAGE = {
    "pt": _words("eu isso depois ela eles"),
    "pl": _words("potem to ona"),
    "tr": _words("bu ben sen biz sonra ama ve"),
    "hu": _words("az ez én és ő"),
    "fi": _words("se hän minä"),
    "el": _words("ο η το αυτός αυτή μετά και αλλά"),
    "ru": _words("он она они оно мы вы я ты это потом затем но а и если когда там тут теперь после в на"),
    "uk": _words("він вона вони ми ви я ти це потім але а і якщо коли там тут тепер після в на"),
    "sv": _words("det jag vi hon men och"),
    **dict.fromkeys(("da", "no", "nb", "nn"), _words("det jeg vi hun men og")),
    **dict.fromkeys(("cs", "sk"), _words("potom to ona")),
}
_SAYS = re.compile(
    r"(?:[\w.’'-]+\s){1,3}(?:said|says|asked|cried|shouted|replied|answered|exclaimed|whispered|yelled|added)\b"
)
_SAYS_CJK = re.compile(
    r"[\u3400-\u9fff·]{0,6}?(?:说|說|问|問|道|喊|叫|答|骂|罵|想|笑|嚷)(?![\u3400-\u9fff]{8})|と|って"
)
# Japanese verbs of speech and thought after と without quotation marks: え？と思った。
_QUOTES_JAPANESE = re.compile(
    r"(?:と|って)、?(?:思|言|云|聞|叫|考|尋|訊|問|答|書|感じ|話|述|つぶや|呟|いう|いっ|いい|きか|驚|笑|怒|疑|心配|彼|私|僕|俺)"
)
# Chinese and Japanese words that end sentences, also before an ellipsis.
_LAST_CJK = re.compile("[了吗嗎呢吧啊呀嘛哦だたねよ]$")
_LAST = re.compile(r"(?:^|[\s\"“„‘'(\[«»—–…])([^\s\"“„‘(\[«»—–…]+?)\.$")
# Initials: one capital letter, or several letters with full stops. Hebrew and Arabic have no words of one letter.
_INITIALS = re.compile(r"[^\W\d_](?:\.-?[^\W\d_])*")
_CAPITAL_WORDS = ("I", "Я", "É", "È", "Ő")  # at the start of a sentence
_UNCASED_INITIAL = re.compile("[\u05d0-\u05ea\u0621-\u064a]")
_SMALL_WORDS = tuple("éèøöőåяє")  # at the end of a sentence, also in a text without capital letters
# Urdu names of Latin letters, between which ۔ ends no sentence: ایم۔اے (M.A.)
_URDU_LETTERS = _words("اے بی سی ڈی ای ایف جی ایچ آئی جے کے ایل ایم این او پی کیو آر ایس ٹی یو وی ڈبلیو ایکس وائی زیڈ")
_ROMAN = re.compile(r"(?=[IVX]+\b)X{0,3}(?:IX|IV|V?I{0,3})\b")
_COMMAS = ("，", "、", "；", "：", ",", ";", ":")
_NEXT_WORD = re.compile(r"[^\W\d_][\w’']*")
_LAST_LETTERS = re.compile(r"[^\W\d_]+$")
# Letters of list items within a line: "a) Open it. b) Close it."
_LETTERED_ITEM = re.compile(r"[(（]?[^\W\d_][)）]\s")
_BEFORE_LETTER = _words("buchst buchstabe lit lett let ziff abschn anm fall satz punkt option variante")
_REACH = 60
"""The number of characters that are inspected on each side of a punctuation mark."""
_ABBREVIATIONS = _NEVER_ENDS | _TITLES | _LIST_ENDS | _MAY_END | _DATED | _BEFORE_NUMBER | _words("им mio mrd tsd")


def _dotted(abbreviations: Iterable[str]) -> re.Pattern[str]:
    """Return a compiled expression for the abbreviations that have several parts, such as "z.B." and "z. B."."""
    parts = (each for each in sorted(abbreviations, key=len, reverse=True) if "." in each or "_" in each)
    spaces = "[ \u00a0\u202f]"
    written = "|".join(re.escape(each).replace(r"\.", rf"\.{spaces}?").replace("_", spaces) for each in parts)
    return re.compile(rf"(?<![^\W_])(?=[^\W\d_]{{1,4}}(?:\.|{spaces}[^\W\d_]{{1,4}}\.))(?:{written})\.", re.IGNORECASE)


_DOTTED = _dotted(_NEVER_ENDS | _LIST_ENDS | _MAY_END)
_MIN_DOTS_WORD = _MIN_CJK_ELLIPSIS = 4
_MIN_DATED_WORDS = 4  # a sentence that ends with a year has more words than "В 1990 г."


def find_sentences(text: str, language: str | None = None, protected: Sequence[Span] = ()) -> list[Span]:
    """Return a list of the spans of a text's sentences, without the spaces around them, in order.

    Texts without capital letters and without spaces after marks are split, too. Abbreviations of several languages are
    known. An end tag after a mark, as in `<b>Go.</b>`, belongs to the sentence before it.

    Args:
        text: a text, usually one line.
        language: code of its language, which decides on ordinals ("5. Mai"), abbreviations and names; None: unknown.
        protected: spans in which no sentence ends, in order and disjoint.
    """
    tags = _tags_of_pairs(text, protected)
    if not tags:
        return _find_spans(_SentenceFinder(text, language), protected)
    removed = {offset for tag in tags.items() for offset in range(*tag)}
    offsets = [offset for offset in range(len(text)) if offset not in removed]
    kept = [Span(*(bisect_left(offsets, edge) for edge in span)) for span in protected if span.start not in tags]
    found = _find_spans(_SentenceFinder("".join(map(text.__getitem__, offsets)), language), kept)
    spans, start = list[Span](), 0
    for end in [*(offsets[span.end - 1] + 1 for span in found[:-1]), len(text)]:
        while end in tags and text[end + 1] == "/":
            end = tags[end]
        sentence = text[start:end]
        begin = start + len(sentence) - len(sentence.lstrip())
        spans.append(Span(begin, begin + len(sentence.strip())))
        start = end
    return [span for span in spans if span.end > span.start]


_TAG = re.compile(r"<(?P<end>/?)(?P<name>[\w:.-]++)[^<>]*+(?<!/)>")


def _tags_of_pairs(text: str, protected: Sequence[Span]) -> dict[int, int]:
    """Return a dict from start to end offset of the tags among the protected spans of a text.

    A start tag is left out if the text has no end tag of the same name.
    """
    tags = [(span, match) for span in protected if (match := _TAG.fullmatch(text, *span)) is not None]
    ended = {match["name"].lower() for _, match in tags if match["end"]}
    return {span.start: span.end for span, match in tags if match["name"].lower() in ended}


def _find_ends(finder: "_SentenceFinder", protected: Sequence[Span] = ()) -> Iterator[int]:
    """Yield the offset after each sentence that ends with a mark; no sentence ends in one of the protected spans."""
    start = inside = 0
    for match in finder.candidates.finditer(finder.text):
        while inside < len(protected) and protected[inside].end <= match.start():
            inside += 1
        is_inside = inside < len(protected) and protected[inside].start < match.end()
        if not is_inside and finder.is_end(match, start):
            start = match.end() - _length_of_opening(finder.text, start, match)
            yield start


def _find_spans(finder: "_SentenceFinder", protected: Sequence[Span] = ()) -> list[Span]:
    text, spans, start = finder.text, list[Span](), 0
    for stop in [*_find_ends(finder, protected), len(text)]:
        sentence = text[start:stop]
        begin = start + len(sentence) - len(sentence.lstrip())
        span = Span(begin, begin + len(sentence.strip()))
        if any(map(is_word_character, sentence)) or not spans:
            spans.append(span)
        elif span.end > span.start:
            spans[-1] = Span(spans[-1].start, span.end)
        start = stop
    spans = [span for span in spans if span.end > span.start]
    if len(spans) > 1 and not any(map(is_word_character, text[slice(*spans[0])])):  # a first one of punctuation only
        return [Span(spans[0].start, spans[1].end), *spans[2:]]
    return spans


def _length_of_opening(text: str, start: int, match: re.Match[str]) -> int:
    """Return the length of the quotation mark at the end of a match that opens the next sentence; 0 without one.

    A straight mark directly before text opens a quotation if the number of such marks before it, from `start` on, is
    even. A mark after a space opens one unless it closes a « or ‹ of the sentence.
    """
    closers = match["closers"]
    if closers[:1].isspace():
        opening, closing = ("‹", "›") if "›" in closers else ("«", "»")
        before = text[start : match.start()]
        return len(closers) if before.count(opening) <= before.count(closing) else 0
    if closers.endswith('"') and text[match.end() : match.end() + 1].strip():
        is_open = text.count('"', start, match.end() - 1) % 2 == 1
        return 0 if is_open else 1
    return 0


class _Mark(NamedTuple):
    """A punctuation mark that may end a sentence, with the text around it."""

    match: re.Match[str]
    """The mark, a match of the expression `_SentenceFinder.candidates`."""
    start: int
    """The offset in the text where the sentence begins."""
    before: str
    """The last characters of the sentence before the mark, at most 60."""
    following: str
    """The first characters after the mark, at most 60, without quotation marks at their start."""
    abbreviation: str | None
    """The abbreviation with several full stops that ends at the mark, without spaces; None: there is none."""
    is_starter: bool
    """True if the word after the mark often begins sentences."""


class _SentenceFinder:
    """A classifier that decides for each punctuation mark of a text whether it ends a sentence."""

    def __init__(self, text: str, language: str | None, *, before_small: bool = False, sure: bool = False) -> None:
        """Create a classifier of the punctuation marks of one text.

        Args:
            text: the text.
            language: the code of its language; None: unknown.
            before_small: a mark before a small letter ends a sentence, except after an abbreviation or number.
            sure: an abbreviation such as "p.m." ends a sentence if a new one surely begins after it.
        """
        code = "" if language is None else short_code(language)
        self.text = text
        self.before_small = before_small
        self.sure = sure
        self.is_unknown = not code
        self.is_german = code in _ORDINAL_LANGUAGES
        self.has_roman = code in _ROMAN_LANGUAGES
        self.own_abbreviations = _OF_LANGUAGE.get(code, frozenset())
        self.own_starters = _STARTERS_OF_LANGUAGE.get(code, frozenset())
        self.own_before_number = _BEFORE_NUMBER_OF_LANGUAGE.get(code, frozenset())
        self.date_words = _DATE_WORDS | _DATE_WORDS_OF_LANGUAGE.get(code, frozenset())
        self.is_capital = text.isupper() or code == "vi"  # Vietnamese writes abbreviations in capitals: TP., PGS.TS.
        is_greek = ";" in text and (code in GREEK or (not code and main_script(text) == "Greek"))
        self.candidates = _GREEK_CANDIDATE if is_greek else _CANDIDATE
        self._dotted = dict(_dotted_abbreviations(text))

    def is_end(self, match: re.Match[str], start: int) -> bool:
        """Return whether a mark, a match of `candidates`, ends the sentence of the text that begins at `start`."""
        before = self.text[max(start, match.start() - _REACH) : match.start()]
        after = self.text[match.end() : match.end() + _REACH].lstrip()
        if match["wide"] is not None:
            return self._is_wide_end(match, before, after)
        following = after.lstrip(_OPENING + "”’»„‚‹›\u05f4")
        word = _NEXT_WORD.match(following)
        is_initial = word is not None and len(word[0]) == 1 and following[1:2] == "."
        small = "" if word is None or is_initial else word[0].lower().replace("’", "'")
        is_starter = small in _STARTERS or small in self.own_starters
        if match["joined"] is not None:
            return _joined_ends(match["joined"], before, following, is_starter=is_starter)
        is_stop = match["spaced"] == "."
        abbreviation = self._dotted.get(match.start()) if is_stop else None
        if abbreviation == "":
            return False
        mark = _Mark(match, start, before, following, abbreviation, is_starter)
        if _is_small(following) and not following.startswith(("i ", "i'm ")):
            return self._ends_before_small(mark)
        if match["closers"] and _SAYS.match(after):
            return False
        if not match["spaced"].endswith("."):
            return True
        if not is_stop or match["closers"].strip("'’"):
            return bool(before.strip()) or is_stop
        return self._stop_ends(mark)

    def _is_wide_end(self, match: re.Match[str], before: str, after: str) -> bool:
        marks = match["wide"]
        if match["closers"] and (after.startswith(_COMMAS) or _SAYS_CJK.match(after)):
            return False
        if marks.strip("…"):
            return not (marks[-1] in "!?！？" and _QUOTES_JAPANESE.match(after))
        least = _MIN_CJK_ELLIPSIS - bool(_LAST_CJK.search(before))
        return min(_count_cjk(before), _count_cjk(after)) >= least

    def _ends_before_small(self, mark: _Mark) -> bool:
        """Return whether a mark before a small letter ends a sentence, as in texts without capital letters."""
        match, before, following = mark.match, mark.before, mark.following
        if (match["closers"] or match["spaced"].startswith(("..", "…"))) and not self.before_small:
            return False
        is_item = _LETTERED_ITEM.match(self.text[match.end() : match.end() + _REACH].lstrip()) is not None
        first = self.text[mark.start : mark.start + _REACH].lstrip(_OPENING + " \t")[:1]
        words = before.split()
        last = words[-1].lower() if words else ""
        is_known = mark.abbreviation is not None or last in _ABBREVIATIONS or last in self.own_abbreviations
        if is_known or "." in last or last.isdigit():
            return False
        if self.before_small:
            return True
        is_word = len(last) > 1 or (before.endswith(_SMALL_WORDS) and len(words) > 1 and following[1:2].isalpha())
        if (_is_small(first) or (is_item and last not in _BEFORE_LETTER)) and is_word:
            return True
        is_long = min(len(words), len(following.split())) >= _MIN_WORDS
        return (
            is_long
            and last not in self.date_words
            and (match["spaced"] != "." or (len(last) >= _MIN_DOTS_WORD and words[-1].islower()))
        )

    def _stop_ends(self, mark: _Mark) -> bool:
        """Return whether a full stop before a capital letter, a digit or a mark ends a sentence."""
        before, following = mark.before, mark.following
        last = _LAST.search(f"{before}.")
        if last is None:
            return True
        word = last[1]
        small = mark.abbreviation or ("" if _are_initials(word) else word.lower())
        is_title = small in _TITLES and word[0].isupper()
        is_own = small in self.own_abbreviations and (self.is_capital or not word.isupper())  # no acronym
        if is_title or is_own or (small in _NEVER_ENDS and not (len(word) == 1 and word.isupper())):
            return False
        if following[:1].isdigit() and (
            small in self.date_words or (small in _CAPITAL_DATE_WORDS and word[0].isupper())
        ):
            continuation = _YEAR_OR_TIME if _ENDS_WITH_DAY.search(before) else _DAY_OR_YEAR
            return continuation.match(following) is None
        before_number = small in _BEFORE_NUMBER or small in self.own_before_number
        if before_number and (following[:1].isdigit() or _ROMAN.match(following)) and not mark.is_starter:
            return False
        if word.isdigit():
            return self._number_ends(word, mark)
        if small in _LIST_ENDS or mark.is_starter:
            return True
        if small in _MAY_END:
            is_long = len(before.split()) >= _MIN_SURE_WORDS
            return self.sure and small in _SURE_ENDS and is_long and _SURE_START.match(following) is not None
        return self._word_ends(word, before)

    def _word_ends(self, word: str, before: str) -> bool:
        """Return whether a full stop after a word that is no abbreviation ends a sentence.

        `before` is the text before the full stop, which ends with the word.
        """
        if self.is_german and _GERMAN_UNIT.search(before):
            return False
        if word in _DATED:
            words = before.split()
            if len(words) > 1 and (words[-2][-1].isdigit() or _ROMAN.fullmatch(words[-2])):
                return len(words) >= _MIN_DATED_WORDS
            return word not in _BEFORE_PLACE
        if (self.has_roman or (self.is_unknown and len(word) > 1)) and _ROMAN.fullmatch(word):
            return False
        if word == "им":
            return _NAMED_AFTER.search(before) is None
        is_initial = word[0].isupper() or "." in word or _UNCASED_INITIAL.match(word) is not None
        if len(word) == 1 and before.strip(_OPENING + " ") == word:
            return word in _CAPITAL_WORDS or not (is_initial or word.islower())  # "a. The first item"
        return word == "I" or not is_initial or not _INITIALS.fullmatch(word)

    def _number_ends(self, number: str, mark: _Mark) -> bool:
        """Return whether the full stop after a number ends a sentence, and does not mark an ordinal or list item."""
        if len(number) > 3:
            return True
        if mark.before.strip() == number or (_MONTHS.match(mark.following) and len(number) <= 2):
            return False
        is_ordinal = _BEFORE_ORDINAL.search(mark.before.removesuffix(number)) is not None
        return mark.is_starter or not (is_ordinal and (self.is_german or self.is_unknown))


def _dotted_abbreviations(text: str) -> Iterator[tuple[int, str]]:
    """Yield (offset, abbreviation) for each full stop of an abbreviation like "z.B." or a date; not for initials.

    At the last full stop of an abbreviation, the text is the abbreviation in lower case, without that full stop and
    without spaces after the others. At all other full stops it is "". Of a date with three full stops, the last one is
    left out unless the date begins the text.
    """
    for match in _DATE.finditer(text):
        stops = [match.start() + offset for offset, character in enumerate(match[0]) if character == "."]
        yield from ((stop, "") for stop in (stops[:2] if text[: match.start()].strip() else stops))
    for match in _DOTTED.finditer(text):
        written = re.sub(r"\.\s", ".", match[0][:-1])
        if _are_initials(written) and written.lower() not in _MAY_END:
            continue  # "A. C. Clarke"
        stops = [match.start() + offset for offset, character in enumerate(match[0]) if character == "."]
        yield from ((stop, "") for stop in stops[:-1])
        yield stops[-1], "_".join(written.lower().split())


def _are_initials(word: str) -> bool:
    """Return whether a word is several capital letters with full stops between them, as in "A.C."."""
    return "." in word and word.isupper() and _INITIALS.fullmatch(word) is not None


def _joined_ends(mark: str, before: str, following: str, *, is_starter: bool) -> bool:
    """Return whether a punctuation mark that has no space after it ends a sentence."""
    if mark == ".":
        return is_starter
    if mark == "\u06d4":
        words = _LAST_LETTERS.search(before), _NEXT_WORD.match(following)
        return not all(word is not None and word[0] in _URDU_LETTERS for word in words)
    return not _is_small(following)


def _is_small(text: str) -> bool:
    """Return whether a text begins with a small letter, except a Georgian one: these begin sentences, too."""
    return text[:1].islower() and not "\u10d0" <= text[:1] <= "\u10ff"


def _count_cjk(text: str) -> int:
    return sum(map(is_unspaced_character, text))


# --- lost sentences ---
# Detection of translations that have fewer sentences than their source.


# Quotations, ellipses and ordinals ("am 5. Mai").
_DOUBTFUL_END = re.compile(r"""(?:["'”’»）)」』\]]|\.{2,}|…|(?:^|\s)\d+\.)\s*$""")
# Punctuation that a translator may use instead of the end of a source sentence.
_POSSIBLE_ENDS = re.compile("[;；:：—–]")
# Thai, Lao and Tibetan have no punctuation that only ends sentences.
_UNPUNCTUATED = re.compile("[\u0e00-\u0fff]")
# Faithful translations often join shorter sentences ("Yes.", "好吧。") to the next one.
_MIN_WORDS, _MIN_CHARACTERS = 3, 4


def find_lost_sentences(
    source: str, translation: str, languages: tuple[str | None, str | None] = (None, None)
) -> tuple[int, int] | None:
    """Return the numbers of sentences of a source and its translation if the translation surely has fewer.

    Sentences are those that `find_sentences` finds. The source's number is a lower bound: short sentences, quotations
    and ellipses do not count. The translation's is an upper bound: semicolons, colons and dashes count too.

    Args:
        source: a text.
        translation: its translation.
        languages: codes of both languages; None: unknown.

    Returns:
        A pair: the numbers of the source and of the translation. None if no sentence is surely lost, fewer than two of
        the source count, the translation is empty, or either text has Thai, Lao or Tibetan letters.
    """
    source, translation = compose(source), compose(translation)
    if _UNPUNCTUATED.search(source) or _UNPUNCTUATED.search(translation) or not translation.strip():
        return None
    minimum = _min_sentences(source, languages[0])
    if minimum < 2:
        return None
    maximum = _max_sentences(translation, languages[1])
    return (minimum, maximum) if maximum < minimum else None


def _min_sentences(text: str, language: str | None) -> int:
    count = start = 0
    for span in _find_spans(_SentenceFinder(text, language, sure=True)):
        sentence = text[start : span.end]
        following = text[span.end : span.end + _REACH].lstrip().lstrip(_OPENING)
        is_sure = not _is_small(following) and _DOUBTFUL_END.search(sentence[-_REACH:]) is None
        if not following or is_sure:
            count += _is_long(sentence)
            start = span.end
    return count


def _max_sentences(text: str, language: str | None) -> int:
    finder = _SentenceFinder(text, language, before_small=True)
    others = len(_POSSIBLE_ENDS.findall(text)) - (text.count(";") if finder.candidates is _GREEK_CANDIDATE else 0)
    return len(_find_spans(finder)) + others


def _is_long(sentence: str) -> bool:
    words = [word for word in sentence.split() if any(map(is_word_character, word))]
    return _count_cjk(sentence) >= _MIN_CHARACTERS or len(words) >= _MIN_WORDS
