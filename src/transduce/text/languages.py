"""Handle language codes and scripts, identify languages, and detect texts in an unexpected language."""

import math
import os
import re
import unicodedata
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from functools import cache, lru_cache
from pathlib import Path
from typing import NamedTuple

import msgspec

from transduce.atomic_io import json_bytes
from transduce.errors import TransduceError
from transduce.text.files import compose, uncompressed_name

# --- scripts ---


SOFT_HYPHEN = "\u00ad"
CJK = "\u3040-\u30ff\u3400-\u9fff"
"""The ranges of a regular expression's character class that match Chinese characters and kana."""
# Scripts with the ranges of their characters, and the languages that are written in them, by `short_code`, with ISO
# 15924's codes of scripts, as in zho_Hans. Other languages are written in Latin letters.
_SCRIPTS_AND_CODES = {
    "Han and kana": (
        "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff",
        "zh|yue|wuu|lzh|cn|ja|jp|hans|hant|hani|jpan|hira|kana",
    ),
    "Hangul": ("\u1100-\u11ff\uac00-\ud7af", "ko|hang|kore"),
    "Latin": ("A-Za-z\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u024f\u1e00-\u1eff", "latn"),
    "Cyrillic": ("\u0400-\u052f", "ru|uk|be|bg|mk|sr|kk|ky|mn|tg|tt|ba|cv|cyrl"),
    "Greek": ("\u0370-\u03ff\u1f00-\u1fff", "el|grc|grek"),
    "Arabic": ("\u0600-\u06ff\u0750-\u077f", "ar|arz|fa|prs|ur|ps|ckb|ug|sd|arab"),
    "Hebrew": ("\u0590-\u05ff", "he|yi|hebr"),
    "Thai": ("\u0e00-\u0e7f", "th|thai"),
    "Devanagari": ("\u0900-\u097f", "hi|mr|ne|sa|deva"),
    "Armenian": ("\u0530-\u058f", "hy|armn"),
    "Georgian": ("\u10a0-\u10ff\u1c90-\u1cbf\u2d00-\u2d2f", "ka|geor"),
    "Bengali": ("\u0980-\u09ff", "bn|as|beng"),
    "Gurmukhi": ("\u0a00-\u0a7f", "pa|guru"),
    "Gujarati": ("\u0a80-\u0aff", "gu|gujr"),
    "Odia": ("\u0b00-\u0b7f", "or|orya"),
    "Tamil": ("\u0b80-\u0bff", "ta|taml"),
    "Telugu": ("\u0c00-\u0c7f", "te|telu"),
    "Kannada": ("\u0c80-\u0cff", "kn|knda"),
    "Malayalam": ("\u0d00-\u0d7f", "ml|mlym"),
    "Sinhala": ("\u0d80-\u0dff", "si|sinh"),
    "Lao": ("\u0e80-\u0eff", "lo|laoo"),
    "Tibetan": ("\u0f00-\u0fff", "bo|dz|tibt"),
    "Burmese": ("\u1000-\u109f", "my|mymr"),
    "Ethiopic": ("\u1200-\u139f", "am|ti|ethi"),
    "Khmer": ("\u1780-\u17ff", "km|khmr"),
    "Thaana": ("\u0780-\u07bf", "dv|thaa"),
}
_RANGES = {name: ranges for name, (ranges, _) in _SCRIPTS_AND_CODES.items()}
_BY_CODE = {code: script for script, (_, codes) in _SCRIPTS_AND_CODES.items() for code in codes.split("|")}
SCRIPTS = {name: re.compile(f"[{ranges}]") for name, ranges in _RANGES.items()}
_LETTER = re.compile(r"[^\W\d_]")
_MIN_LETTERS = 2
_LETTERS_PER_CJK_CHARACTER = 3  # a Chinese character corresponds to about this many letters in other scripts


def main_script(line: str) -> str | None:
    """Return the name of the script of most letters in a line, such as "Latin".

    A Chinese or Japanese character counts as three letters. Letters of scripts that are not in `SCRIPTS` do not count.
    The result is None if fewer than two letters count.
    """
    if line.isascii():
        return "Latin" if len(_LETTER.findall(line)) >= _MIN_LETTERS else None
    counts = _count_letters(line)
    best = max(counts, key=lambda name: counts[name])
    return best if counts[best] >= _MIN_LETTERS else None


def script_of(language: str) -> str:
    """Return the name of the script in which a language code's texts are written.

    This is the script that the code states, as zho_Hans does, otherwise the usual script of the language. The result is
    "Latin" if the script is unknown.
    """
    _, *subtags = re.split("[-_]", language.lower())
    named = (subtag for subtag in subtags if len(subtag) == 4)
    return next(filter(None, map(_BY_CODE.get, (*named, short_code(language)))), "Latin")


_LETTERS_OUTWEIGHED = 4  # Latin letters that one Chinese or Japanese character outweighs
_LATIN_WORD = re.compile(rf"[{_RANGES['Latin']}]+")
_NAME_WEIGHT = 0.5  # weight of a word with a capital letter, which may be a name in a text of another script


def sentence_script(text: str) -> str | None:
    """Return the name of the script in which a text's sentences are written; None for a text without letters.

    This is the script with the most letters, which are weighted. A Chinese or Japanese character counts four times,
    because such texts often contain Latin words. A Latin letter counts half if its word has capitals: the word may be a
    name in a text of another script.
    """
    counts: dict[str, float] = {name: len(pattern.findall(text)) for name, pattern in SCRIPTS.items()}
    counts["Han and kana"] *= _LETTERS_OUTWEIGHED
    counts["Latin"] = sum(
        len(word) if word.islower() else _NAME_WEIGHT * len(word) for word in _LATIN_WORD.findall(text)
    )
    best = max(counts, key=lambda name: counts[name])
    return best if counts[best] else None


def is_written_in(language: str, script: str) -> bool:
    """Return whether a language may be written in a script, such as "Cyrillic".

    The result is True, whatever the script, for a language that has several.
    """
    return short_code(language) in _UNCERTAIN or script_of(language) == script


# --- language codes ---


# Suffixes that look like language codes but are file types or names of a side.
_OTHER_SUFFIXES = (
    "txt tsv csv gz xml src tgt trg ref hyp out raw tok bpe spm log dat doc ids lab low cln sys new old md"
)
_NOT_LANGUAGES = frozenset(_OTHER_SUFFIXES.split())
_CODE = re.compile(r"[a-z]{2,3}([-_][A-Z][a-z]{3})?([-_]([A-Z]{2}|[0-9]{3}))?")

UNSPACED_RANGES = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
)
"""The characters of scripts without spaces between words, as ranges of a regular expression: Thai, Lao, Myanmar, Khmer,
kana, and Han with its extensions.
"""
_UNSPACED = re.compile(f"[{UNSPACED_RANGES}]")
# Scripts with thousands of characters, or without spaces: Hangul too.
_LARGE_SCRIPT = re.compile(f"[{UNSPACED_RANGES}\u1100-\u11ff\uac00-\ud7af]")


# By `short_code`; "cn" and "jp" are countries, but many corpora use them as file suffixes.
CHINESE = ("zh", "yue", "wuu", "lzh", "cn")
JAPANESE = ("ja", "jp")
GREEK = ("el", "grc")
# Thai, Lao, Burmese, Khmer: no spaces between words, but between sentences.
SOUTHEAST_ASIAN = ("th", "lo", "my", "km")
# Tibetan, Dzongkha: no spaces between words, but between phrases and sentences.
TIBETAN = ("bo", "dz")


def language_of(path: str | os.PathLike[str]) -> str | None:
    """Return the language code that ends a file's name, before a suffix such as .gz: zh for train.zh.gz.

    The result is None if the name does not end in a language code, such as a.txt.
    """
    _, dot, suffix = uncompressed_name(os.fspath(path)).name.rpartition(".")
    return suffix if dot and suffix not in _NOT_LANGUAGES and valid_language(suffix) else None


def valid_language(code: str) -> bool:
    """Return whether a text has the form of a language code, with or without script and region: zh, zh-Hant, pt_BR."""
    return _CODE.fullmatch(code) is not None


def is_in_large_script(text: str) -> bool:
    """Return whether most letters of a text are of a script with very many characters or without spaces.

    Such scripts are Han, kana, Hangul and Thai, for example. A vocabulary leaves out their rarest characters.
    """
    large = len(_LARGE_SCRIPT.findall(text))
    return large > 0 and 2 * large > sum(map(str.isalpha, text))


def is_unspaced_character(character: str) -> bool:
    """Return whether a character is of a script without spaces between words, such as Han or Thai, but not Hangul."""
    return _UNSPACED.match(character) is not None


# Signs are never followed by these, unlike words of one letter: "I.", "¿Y?"
_SENTENCE_PUNCTUATION = re.compile(r"[¿¡]|[.!?…](?!\w)")


def is_sign(text: str) -> bool:
    """Return whether a text is a sign that all languages write alike, such as `x`, `12` or `(B)`.

    A text without letters is a sign. A text with exactly one letter is a sign if the letter's script has upper and
    lower case, and if the text has no punctuation of a sentence.
    """
    letters = [character for character in text if character.isalpha()]
    if len(letters) != 1:
        return not letters
    return letters[0].upper() != letters[0].lower() and _SENTENCE_PUNCTUATION.search(text) is None


def is_unspaced_or_punctuation(character: str) -> bool:
    """Return whether a character is a letter of a script without spaces, or East Asian (wide) punctuation."""
    is_mark = "\u3000" <= character <= "\u303f" or "\uff00" <= character <= "\uff65"
    return is_mark or is_unspaced_character(character)


def is_word_character(character: str) -> bool:
    """Return whether a character is a letter, a digit or a combining mark, such as the vowel signs of Hindi."""
    return character.isalnum() or unicodedata.category(character).startswith("M")


def unspaced_characters(text: str) -> list[str]:
    """Return a list of a text's characters whose script has no spaces or is Hangul, in order."""
    return _LARGE_SCRIPT.findall(text)


# --- language identification ---
# Language identification by character n-grams (n = 1 to 3) learned from text of each language.
# A naive Bayes classifier over overlapping n-grams, like Cavnar and Trenkle's n-gram profiles (1994) with
# probabilities instead of ranks. White space counts as one space, words are separated by spaces, and upper case
# counts as lower case. A profile keeps the most frequent n-grams of a language; all others share the remaining
# probability.


FILE_NAME = "language_profiles.json"
_COMMON_PROFILES = Path(__file__).with_name("common_profiles.json")
_FORMAT_VERSION = 1
_LONGEST_NGRAM = 3
_KEPT_NGRAMS = 4000
_MAX_CHARACTERS = 500_000  # per language: more text hardly changes the result
_NOT_LETTERS = re.compile(r"[\W\d_]+")


class LanguageProfiles(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Counts of character n-grams in texts of several languages, by which the language of a text is identified."""

    format_version: int
    runs: dict[str, dict[str, int]]
    """A dict from language codes to the counts of their most frequent n-grams, each a dict by n-gram."""
    totals: dict[str, int]
    """A dict from language codes to the total number of n-grams counted, including rare ones."""

    @property
    def unknown_probability(self) -> float:
        """The probability of an n-gram that a language's profile lacks, equal for all languages."""
        return 0.5 / max(1, *self.totals.values())

    def probabilities(self, text: str, among: Collection[str] | None = None) -> dict[str, float]:
        """Return the probability of each language for a text, a dict by code, most likely first (uniform prior).

        Args:
            text: a text of any length; one without letters gives equal probabilities.
            among: consider only these languages; None for all.
        """
        runs = Counter(_ngrams(text))
        languages = self.runs if among is None else among
        # Overlapping n-grams count the same evidence up to three times.
        scores = {language: self._log_likelihood(language, runs) / _LONGEST_NGRAM for language in languages}
        best = max(scores.values(), default=0.0)
        weights = {language: math.exp(score - best) for language, score in scores.items()}
        total_weight = sum(weights.values())
        probabilities = {language: weight / total_weight for language, weight in weights.items()}
        return dict(sorted(probabilities.items(), key=lambda entry: (-entry[1], entry[0])))

    def _log_likelihood(self, language: str, runs: Mapping[str, int]) -> float:
        """Return the natural log-probability of the n-grams of a text in a language.

        A constant that is the same for all languages is left out. `runs` is a dict from n-grams to their counts.
        """
        counts, total, unknown = self.runs[language], max(1, self.totals[language]), self.unknown_probability
        return sum(count * math.log(counts.get(run, 0) / total + unknown) for run, count in runs.items())

    def content(self) -> bytes:
        """Return the profiles as JSON bytes, the content of language_profiles.json in a model folder."""
        return json_bytes(self, indent=0)

    @classmethod
    def load(cls, folder: str | Path) -> "LanguageProfiles | None":
        """Return the language profiles in a model folder, or None if the folder has no file of them.

        Raises:
            TransduceError: the file does not hold language profiles, or is of another version.
        """
        path = Path(folder) / FILE_NAME
        try:
            profiles = msgspec.json.decode(path.read_bytes(), type=cls)
        except FileNotFoundError:
            return None
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise TransduceError(f"{path} cannot be read as language profiles ({error}): remove it.") from None
        if profiles.format_version != _FORMAT_VERSION or profiles.runs.keys() != profiles.totals.keys():
            raise TransduceError(f"{path} is not of format {_FORMAT_VERSION}, which this version reads: remove it.")
        return profiles


@cache
def common_profiles() -> LanguageProfiles:
    """Return the language profiles of common languages that are part of this package; they are read once.

    `benchmarks/language_detection.py --learn` writes their file.
    """
    return msgspec.json.decode(_COMMON_PROFILES.read_bytes(), type=LanguageProfiles)


def learn_profiles(texts: Mapping[str, Iterable[str]], *, kept: int = _KEPT_NGRAMS) -> LanguageProfiles:
    """Learn the n-gram profiles of languages from texts, and return them as `LanguageProfiles`.

    Args:
        texts: lines of text by language code; the first half million characters of each are used.
        kept: number of the most frequent n-grams to keep for each language.
    """
    counts = {language: _count(lines) for language, lines in texts.items()}
    return LanguageProfiles(
        format_version=_FORMAT_VERSION,
        runs={
            language: dict(sorted(runs.items(), key=lambda entry: (-entry[1], entry[0]))[:kept])
            for language, runs in counts.items()
        },
        totals={language: runs.total() for language, runs in counts.items()},
    )


def merge_profiles(several: Iterable[LanguageProfiles]) -> LanguageProfiles:
    """Combine several `LanguageProfiles` into one; for a language in more than one of them, the first counts."""
    runs: dict[str, dict[str, int]] = {}
    totals: dict[str, int] = {}
    for profiles in several:
        runs, totals = runs | profiles.runs | runs, totals | profiles.totals | totals
    return LanguageProfiles(format_version=_FORMAT_VERSION, runs=runs, totals=totals)


def _count(lines: Iterable[str]) -> Counter[str]:
    counts: Counter[str] = Counter()
    read = 0
    for line in lines:
        counts.update(_ngrams(line))
        read += len(line)
        if read >= _MAX_CHARACTERS:
            break
    return counts


def _ngrams(text: str) -> list[str]:
    """Return a list of the n-grams (n = 1 to 3) of a text's letters in lower case, with spaces around words: " i ".

    Digits and punctuation count as spaces; a single space is no n-gram.
    """
    words = _NOT_LETTERS.sub(" ", compose(text).lower()).strip()
    letters = f" {words} "
    lengths = range(2, _LONGEST_NGRAM + 1 if words else 0)
    runs = (letters[start : start + length] for length in lengths for start in range(len(letters) - length + 1))
    return [*words.replace(" ", ""), *runs]


# --- wrong language ---
# Detection of texts that are clearly not in the language that a model reads, by script, frequent words and n-grams.
# Only clear evidence counts: no letter of the expected script, or at least four words (six characters of a script
# without spaces) of which nearly all letters are in another script, or several frequent words of another language and
# hardly any of the expected one, or character n-grams that are far more likely in another language.


MIN_WORDS, MIN_CHARACTERS = 4, 6
_MAX_EXPECTED_SHARE = 0.1  # of a text's letters in the expected script; a Chinese character counts as three
# Japanese has kana, at least three for each of these characters, which only Chinese has: ありがとう是谢谢的意思。
_MIN_KANA_SHARE, _MIN_KANA = 0.2, 3
_CHINESE_ONLY = re.compile("[你您她很吗嗎呢吧哪怎么麼这這们們说谢还没沒给让时问间发样东车长开关门见觉语读写话词译个爱]")
_MIN_FREQUENT, _MIN_FREQUENT_SHARE = 2, 0.25  # minimum number and share of a text's words frequent in another language
_MIN_RATIO = 4  # minimum ratio to the number of frequent words of the expected language
# Minimum log-likelihood ratio (nats) of the n-grams under another language's profile and the expected one's. Chosen on
# the development sets of `benchmarks/language_detection.py`.
_MIN_LOG_RATIO = 4.0
_SHORT_WORD, _MIN_LATIN_WORDS = 2, 2  # in characters; in words, without any letter of the expected script

_NAMES = (
    "ar=Arabic bg=Bulgarian bn=Bengali ca=Catalan cs=Czech da=Danish de=German el=Greek en=English es=Spanish "
    "et=Estonian fa=Persian fi=Finnish fr=French he=Hebrew hi=Hindi hr=Croatian hu=Hungarian id=Indonesian it=Italian "
    "ja=Japanese ko=Korean lt=Lithuanian lv=Latvian mr=Marathi nb=Norwegian nl=Dutch pl=Polish pt=Portuguese "
    "ro=Romanian ru=Russian sk=Slovak sl=Slovenian sr=Serbian sv=Swedish th=Thai tr=Turkish uk=Ukrainian ur=Urdu "
    "vi=Vietnamese zh=Chinese"
)
_NAME_OF = dict(entry.split("=") for entry in _NAMES.split())
# The most likely language of a script, if the words do not identify the language.
_OF_ONE_LANGUAGE = "Greek|Hebrew|Thai|Armenian|Georgian|Gujarati|Odia|Tamil|Telugu|Kannada|Malayalam|Sinhala|Lao|Khmer"
_LANGUAGE_OF_SCRIPT = {each: each for each in _OF_ONE_LANGUAGE.split("|")} | {
    "Han and kana": "Chinese",
    "Hangul": "Korean",
}
_UNSPACED_SCRIPTS = ("Thai", "Lao", "Khmer", "Burmese", "Tibetan")  # besides Han and kana
# Languages with two scripts, or with a script that is not detected.
_UNCERTAIN = {"sr", "bs", "uz", "az", "kk", "mn", "tk", "ku", "pa", "ks", "sd", "tt"}
# Frequent words by language. A word of both compared languages counts for neither.
_FREQUENT = {
    "en": """the and of is are was were he she it they you we his her my your their our this that these those what who
    how why where when there here with from have has had not don't doesn't didn't isn't can't i'm it's you're
    he's that's do does did will would can could should must be been to for at by if but or so very than too
    any some all always never because about went know think want like need said say go get make me him them i
    a an one two on as time up out going no good just i'll come help please us tell take more got now i've
    much home money car something really day back work anything people book lot right told long many last made
    i'd three look give room house school only better what's again thought today love speak way off let put
    well before into old doing asked ever down over talk we're eat happy tomorrow leave may other after years
    father every left sure won't everything ask wanted find let's little read nothing took live next saw stop
    yesterday dog believe wants came stay night done children away looking couldn't without buy first wrong
    mother knows door there's english understand keep play wasn't friends used life even call alone late gave
    lost happened things heard hard enough already soon found feel likes thing each often knew try looks yet
    remember week busy married bought morning hope aren't seen himself mind wish idea wait answer question
    water you've around true year use best hear you'll friend few teacher cold wouldn't anyone same while
    everyone watch looked else most big open being says seems coffee we'll afraid someone yourself family
    brother great haven't books both such almost getting days tried girl beautiful letter coming another bed
    once might write she's food boy parents sorry learn study you'd tired care talking""",
    "de": """der die das den dem des ein eine einen einem einer eines und ist sind war waren ich du er sie es wir ihr
    mein dein sein unser nicht kein keine keinen mit von zu zum zur auf für bei nach aus über unter vor hat
    haben habe hast hatte hatten wird werden wurde kann können konnte muss müssen will wollen wie was wer wo
    warum wann dass weil wenn aber oder auch noch nur sehr schon immer nie mir mich dir dich ihn ihm ihnen uns
    euch im am vom als an so hier dort diese dieser dieses gut ja nein bin bist sich um etwas meine weiß tun
    mehr gehen bitte werde nichts möchte viel seine machen zeit sagen heute da würde mal deine hätte gerne
    alle geld sagte ihre alles kannst viele morgen jetzt hause französisch gerade sehen buch gesagt gibt drei
    mag wollte geht einmal wissen kommen arbeit leben helfen willst wirklich seinen macht glaube wieder
    gesehen tag sprechen wäre haus auto essen vater lange habt meinen lassen gemacht besser schule einfach
    gestern kommt bis ob uhr mann doch ging kam ab ins mutter getan zimmer könnte kinder niemand zwei denke
    sicher frage sei ohne diesem sollte hund seinem sagt gehört seiner wirst musst diesen sollen soll sah
    zurück weg lass sieht allein lernen dachte hilfe gab gern paar vielleicht geben ganz damit meiner meinem
    glücklich jeden ihren seit selbst oft fragen darüber wusste tut weißt solltest jemand davon mädchen frau
    recht scheint seid leute sollten tür bleiben spielen freund deinen fahren woche passiert reden englisch
    schnell glauben warten gute jahre nacht lesen fehler wohl beim menschen gegangen gehe hören zusammen genug
    stadt abend gekommen spricht kaufen zug alt jahr wahr jahren durch beschäftigt freunde spät schwer wasser
    bruder bekommen letzte darf gekauft dazu kaffee fertig liebe eltern unsere bücher finden daran hoffe
    familie nahm bett treffen angst gefällt gefunden vergessen brauchen junge ganze lehrer denn nehmen brauche
    gewesen möchtest ganzen schwester schön verloren ihrer dann jeder augen einige anderen""",
    "fr": """le la les un une des du de et est sont était je tu il elle nous vous ils elles mon ton son notre votre
    leur ne pas que qui quoi dans sur avec pour par ce cette ces c'est j'ai n'est qu'il d'un d'une l'a ai as a
    ont avons mais ou où comme plus très bien tout tous rien jamais toujours moi toi lui se me te en au aux y
    été être avoir""",
    "es": """el la los las un una unos y es son era fue yo tú él ella nosotros ellos mi tu su nuestro no que quien qué
    en con por para de del al se me te le lo les nos está están estoy hay tengo tiene más muy pero o como
    cuando donde porque siempre nunca este esta esto ese esa eso ser estar ha he han""",
    "it": """il lo la i gli le un uno una e è sono era io tu lui lei noi voi loro mio tuo suo nostro non che chi di a
    da in con su per tra del della dei delle al alla nel nella si mi ti ci vi ho hai ha abbiamo hanno più
    molto ma o come quando dove perché sempre mai questo questa quello quella c'è essere""",
    "pt": """o a os as um uma uns e é são era foi eu tu ele ela nós eles meu teu seu nosso não que quem em com por para
    de do da dos das ao à se me te lhe no na nos nas está estão estou há tenho tem mais muito mas ou como
    quando onde porque sempre nunca este esta isto esse essa isso ser você""",
    "nl": """de het een en is zijn was waren ik jij je hij zij ze wij we jullie mijn jouw haar ons onze niet geen met
    van te naar op voor bij uit over onder heeft hebben heb had wordt werd kan kunnen moet wil hoe wat wie
    waar waarom wanneer dat omdat als maar of ook nog alleen zeer altijd nooit mij me hem hen dit deze die""",
}
FREQUENT_WORDS = {code: frozenset(words.split()) for code, words in _FREQUENT.items()}
# Other languages that are always written in Latin script.
_OTHER_LATIN = """pl cs sk sl hr hu ro sv da no nb nn fi et lv lt tr id ms vi ca gl eu ga cy is sq"""
_LATIN = FREQUENT_WORDS.keys() | set(_OTHER_LATIN.split())
_WORD = re.compile(r"[^\W\d_]+(?:['-][^\W\d_]+)*")
_PUNCTUATION = ".,;:!?…()[]{}<>\"'“”„‚‘«»¿¡—–-*"


def base_code(language: str) -> str:
    """Return the language part of a code, in lower case, without script and region: zh for zh-Hans."""
    return re.split("[-_]", language)[0].lower()


# Codes that users write, and their canonical forms. Chinese codes carry the script.
_CODES_AND_ALIASES = {
    "zh-Hans": "zh|zh-cn|zh-sg|zh-hans-cn|zh-hans-sg|cmn|cmn-hans|zho|chi",
    "zh-Hant": "zh-tw|zh-hk|zh-mo|zh-hant-tw|zh-hant-hk|cmn-hant|zt",
    "nb": "no|nor|nob|nb-no|no-no",
    "pt-BR": "pb",
    "he": "iw",
    "id": "in",
    "yi": "ji",
    "tl": "fil",
}
_ALIASES = {alias: code for code, aliases in _CODES_AND_ALIASES.items() for alias in aliases.split("|")}


def canonical(code: str) -> str:
    """Return a user's language code in canonical spelling, even if the language is unknown.

    Chinese codes get their script: zh and zh_CN become zh-Hans. Old codes are replaced by current ones: iw becomes he.
    In other codes, only case and hyphens change: EN_us becomes en-US.
    """
    parts = code.strip().replace("_", "-").lower().split("-")
    alias = _ALIASES.get("-".join(parts))
    if alias is not None:
        return alias
    return "-".join([parts[0], *(part.title() if len(part) == 4 else part.upper() for part in parts[1:])])


class _Subtags(NamedTuple):
    """The parts of a language code: the language in two letters if possible, script, region, and other subtags."""

    language: str
    script: str | None
    region: str | None
    others: tuple[str, ...]


_TRADITIONAL = {"TW", "HK", "MO"}
_OF_SCRIPT = {"CN", "SG"} | _TRADITIONAL  # regions that say how Chinese is written, and no more


@lru_cache(maxsize=4096)  # servers get codes from clients
def _subtags(code: str) -> _Subtags:
    """Return the normalized subtags of a language code.

    Codes of the same language and script become equal. For Chinese, a missing script follows from the region, or is
    Hans; a region that only stands for a script is dropped. For other languages, the script is dropped if the language
    has only that one, as in eng_Latn. The region XX, as in mBART's en_XX, is dropped.
    """
    language, *rest = canonical(code).split("-")
    language = base_code(_ALIASES.get(short_code(language), short_code(language)))
    script = next((each for each in rest if len(each) == 4 and each.isalpha()), None)
    region = next((each for each in rest if re.fullmatch("[A-Z]{2}|[0-9]{3}", each)), None)
    others = tuple(each for each in rest if each not in (script, region))
    if language == "zh":
        script = script or ("Hant" if region in _TRADITIONAL else "Hans")
        region = None if region in _OF_SCRIPT else region
    elif script not in (None, "Hans", "Hant") and _is_only_script(language, script):
        script = None
    return _Subtags(language, script, None if region == "XX" else region, others)


def is_same_language(one: str, other: str) -> bool:
    """Return whether two codes spell one language, script and region, as `zh`, `zh-CN` and `zho_Hans` do."""
    return _subtags(one) == _subtags(other)


def _is_only_script(language: str, script: str) -> bool | None:
    """Return whether a language is always written in a script; None if that is not known.

    `script` is an ISO 15924 code, such as "Latn".
    """
    name, is_known = _BY_CODE.get(script.lower()), language in _BY_CODE or language in _LATIN
    return script_of(language) == name if is_known and language not in _UNCERTAIN and name is not None else None


def _fits(requested: _Subtags, known: _Subtags) -> bool:
    """Return whether two codes may mean the same language, even if one of them lacks a script or region."""
    same_language = (requested.language, requested.others) == (known.language, known.others)
    if not same_language or (None not in (requested.region, known.region) and requested.region != known.region):
        return False
    script = requested.script or known.script
    if script is None or requested.script == known.script:
        return True
    return None in (requested.script, known.script) and _is_only_script(requested.language, script) is not False


def fitting_code(code: str, known: Iterable[str]) -> str | None:
    """Return the one of the `known` language codes that a user's code means; None if none does.

    Case, hyphens and the two-letter or three-letter code do not matter: `zh`, `zh-CN` and `cmn` mean `zho_Hans`. A code
    without region or script also means a known one with it, and the other way around: `de-AT` means `de` or `deu_Latn`.

    Raises:
        TransduceError: several known codes fit equally well.
    """
    codes = list(dict.fromkeys(known))
    if code in codes:
        return code
    requested = _subtags(code)
    subtags = {each: _subtags(each) for each in codes}
    counts = Counter(each.language for each in subtags.values())
    for each, (language, _, region, _) in subtags.items():
        if region == language.upper() and counts[language] == 1:  # the only German of mBART is de_DE
            subtags[each] = subtags[each]._replace(region=None)
    for found in (
        [each for each in codes if canonical(each) == canonical(code)],
        [each for each in codes if subtags[each] == requested],
        [each for each in codes if _fits(requested, subtags[each])],
    ):
        if len(found) > 1:
            raise TransduceError(
                f"`{code}` may mean each of the languages {', '.join(found)}: name the one that you want."
            )
        if found:
            return found[0]
    return None


# The two-letter codes of ISO 639-1, and those of ISO 639-2 and 639-3 for the same languages or their standard forms;
# "zt" is LibreTranslate's code of traditional Chinese.
_ISO_639 = (
    "aa=aar|ab=abk|ae=ave|af=afr|ak=aka|am=amh|an=arg|ar=ara,arb|as=asm|av=ava|ay=aym|az=aze,azj|ba=bak|be=bel|"
    "bg=bul|bi=bis|bm=bam|bn=ben|bo=bod,tib|br=bre|bs=bos|ca=cat|ce=che|ch=cha|co=cos|cr=cre|cs=ces,cze|cu=chu|"
    "cv=chv|cy=cym,wel|da=dan|de=deu,ger|dv=div|dz=dzo|ee=ewe|el=ell,gre|en=eng|eo=epo|es=spa|et=est,ekk|eu=eus,baq|"
    "fa=fas,per,pes|ff=ful|fi=fin|fj=fij|fo=fao|fr=fra,fre|fy=fry|ga=gle|gd=gla|gl=glg|gn=grn|gu=guj|gv=glv|ha=hau|"
    "he=heb|hi=hin|ho=hmo|hr=hrv|ht=hat|hu=hun|hy=hye,arm|hz=her|ia=ina|id=ind|ie=ile|ig=ibo|ii=iii|ik=ipk|io=ido|"
    "is=isl,ice|it=ita|iu=iku|ja=jpn|jv=jav|ka=kat,geo|kg=kon|ki=kik|kj=kua|kk=kaz|kl=kal|km=khm|kn=kan|ko=kor|"
    "kr=kau|ks=kas|ku=kur,kmr|kv=kom|kw=cor|ky=kir|la=lat|lb=ltz|lg=lug|li=lim|ln=lin|lo=lao|lt=lit|lu=lub|"
    "lv=lav,lvs|mg=mlg,plt|mh=mah|mi=mri,mao|mk=mkd,mac|ml=mal|mn=mon,khk|mr=mar|ms=msa,may,zsm|mt=mlt|my=mya,bur|"
    "na=nau|nb=nob|nd=nde|ne=nep,npi|ng=ndo|nl=nld,dut|nn=nno|no=nor|nr=nbl|nv=nav|ny=nya|oc=oci|oj=oji|om=orm|"
    "or=ori,ory|os=oss|pa=pan|pi=pli|pl=pol|ps=pus,pbt|pt=por|qu=que|rm=roh|rn=run|ro=ron,rum|ru=rus|rw=kin|sa=san|"
    "sc=srd|sd=snd|se=sme|sg=sag|si=sin|sk=slk,slo|sl=slv|sm=smo|sn=sna|so=som|sq=sqi,alb,als|sr=srp|ss=ssw|st=sot|"
    "su=sun|sv=swe|sw=swa,swh|ta=tam|te=tel|tg=tgk|th=tha|ti=tir|tk=tuk|tl=tgl|tn=tsn|to=ton|tr=tur|ts=tso|tt=tat|"
    "tw=twi|ty=tah|ug=uig|uk=ukr|ur=urd|uz=uzb,uzn|ve=ven|vi=vie|vo=vol|wa=wln|wo=wol|xh=xho|yi=yid,ydd|yo=yor|"
    "za=zha|zh=zho,chi,cmn,zt|zu=zul"
)
_SHORT_CODES = {
    code: short
    for short, _, codes in (entry.partition("=") for entry in _ISO_639.split("|"))
    for code in codes.split(",")
}
TWO_LETTER_CODES = frozenset(_SHORT_CODES.values())
"""The two-letter language codes of ISO 639-1: as a file's suffix they name a language, as in train.de, not train.in."""


def short_code(language: str) -> str:
    """Return the language part of a code, in lower case and in two letters if there are two: en for eng_Latn."""
    code = base_code(language)
    return _SHORT_CODES.get(code, code)


def english_name(language: str) -> str:
    """Return the English name of a language by its code, such as German for deu_Latn, or the code itself if unknown."""
    return _NAME_OF.get(_subtags(language).language, language)


def is_unspaced_language(language: str | None) -> bool:
    """Return whether a language, such as Chinese, is written without spaces between words; False for None (unknown)."""
    return language is not None and short_code(language) in (*CHINESE, *JAPANESE, *SOUTHEAST_ASIAN)


def sentence_separator(language: str | None) -> str:
    """Return the text between two sentences of a language: "" in Chinese and Japanese, otherwise a space.

    Thai, Lao, Burmese and Khmer have spaces between sentences, though not between words. None, an unknown language,
    gives a space.
    """
    return "" if language is not None and short_code(language) in (*CHINESE, *JAPANESE) else " "


def detect_other_language(text: str, language: str) -> str | None:
    """Return the apparent language or script of a text that is clearly not in the expected language.

    Args:
        text: a line of text.
        language: the code of the expected language.

    Returns:
        For example "English", "Cyrillic letters" or "another language". None if the text may be in the expected
            language, or if this language is unknown or has several scripts.
    """
    code = short_code(language)
    if code in _UNCERTAIN:
        return None
    expected = script_of(language)
    if expected == "Latin" and code not in _LATIN:
        return None
    text = compose(text)
    counts = _count_letters(text)
    main_script = max(counts, key=lambda script: counts[script])
    words = _words(text)
    is_chinese = code in CHINESE and expected == "Han and kana"
    if is_chinese and _MIN_LETTERS <= _kana(text) == len(SCRIPTS["Han and kana"].findall(text)):
        return "Japanese"
    if not _is_long_enough(main_script, counts[main_script], words):
        is_other = counts[expected] == 0 and _is_clear_script(text, main_script)
        return _name(main_script, words, text) if is_other else None
    if main_script != expected:
        is_other = counts[expected] <= _MAX_EXPECTED_SHARE * sum(counts.values())
        return _name(main_script, words, text) if is_other else None
    if main_script == "Latin":
        other = _other_latin(words, code)
        return _other_profile(words, code) if other is None else _NAME_OF[other]
    kana, letters = _kana(text), counts[main_script] / _LETTERS_PER_CJK_CHARACTER
    if is_chinese and kana >= max(_MIN_KANA_SHARE * letters, _MIN_KANA * len(_CHINESE_ONLY.findall(text))):
        return "Japanese"
    return None


def is_long_enough(text: str) -> bool:
    """Return whether a text is long enough for its language to be clear: it has at least four words.

    In Chinese and Japanese, six characters are needed; in Thai, Lao, Khmer, Burmese and Tibetan, twelve letters.
    """
    text = compose(text)
    counts = _count_letters(text)
    main_script = max(counts, key=lambda script: counts[script])
    return _is_long_enough(main_script, counts[main_script], _words(text))


def _count_letters(text: str) -> dict[str, int]:
    """Return a dict from script names (`SCRIPTS`) to numbers of a text's letters; a Han or kana letter counts as 3."""
    if text.isascii():
        return dict.fromkeys(SCRIPTS, 0) | {"Latin": len(SCRIPTS["Latin"].findall(text))}
    counts = {script: len(pattern.findall(text)) for script, pattern in SCRIPTS.items()}
    counts["Han and kana"] *= _LETTERS_PER_CJK_CHARACTER
    return counts


def _words(text: str) -> list[str]:
    """Return a list of a text's words in lower case without punctuation, addresses, numbers and file names.

    Abbreviations in capitals, such as NASA, are omitted too, unless most words are in capitals.
    """
    tokens = (token.strip(_PUNCTUATION) for token in text.replace("’", "'").split())
    words = [token for token in tokens if _WORD.fullmatch(token)]
    others = [word.lower() for word in words if len(word) == 1 or not word.isupper()]
    return others if 2 * len(others) > len(words) else [word.lower() for word in words]


def _is_long_enough(script: str, letters: int, words: list[str]) -> bool:
    if script == "Han and kana":
        return letters >= MIN_CHARACTERS * _LETTERS_PER_CJK_CHARACTER
    if script in _UNSPACED_SCRIPTS:
        return letters >= 2 * MIN_CHARACTERS
    return len(words) >= MIN_WORDS


def _is_clear_script(text: str, script: str) -> bool:
    """Return whether a short text clearly is in a script, so that languages of other scripts are ruled out.

    Two letters of the script are enough. In Latin, two words are needed, one of them in lower case.
    """
    if script != "Latin":
        return len(SCRIPTS[script].findall(text)) >= _MIN_LETTERS
    # Names in Latin letters occur in texts of all scripts, but have capital letters.
    words = [token.strip(_PUNCTUATION) for token in text.replace("’", "'").split()]
    words = [word for word in words if _WORD.fullmatch(word) and len(word) > 1]
    return len(words) >= _MIN_LATIN_WORDS and any(map(str.islower, words))


def _name(script: str, words: list[str], text: str) -> str:
    if script == "Latin":
        found = _other_latin(words, "")
        return "Latin letters" if found is None else _NAME_OF[found]
    if script == "Han and kana" and _kana(text):
        return "Japanese"
    return _LANGUAGE_OF_SCRIPT.get(script, f"{script} letters")


def _kana(text: str) -> int:
    return sum("\u3040" <= character <= "\u30ff" for character in text)


def _other_latin(words: list[str], expected: str) -> str | None:
    """Return the code of another language that words in Latin letters seem to be in, or None.

    The frequent words of each language decide. Words that are frequent in both languages do not count, and repeated
    words count once. The result is None if the words may be in the expected language, or if the frequent words of that
    language are unknown.
    """
    if expected and expected not in FREQUENT_WORDS:
        return None
    present = set(words)
    others = [code for code in FREQUENT_WORDS if code != expected]
    best = max(others, key=lambda code: _frequent_words(present, code, expected)[0])
    hits, expected_hits = _frequent_words(present, best, expected)
    is_clear = hits >= max(_MIN_FREQUENT, _MIN_FREQUENT_SHARE * len(present)) and hits >= _MIN_RATIO * expected_hits
    return best if is_clear else None


def _other_profile(words: list[str], expected: str) -> str | None:
    """Return the name of another language that fits words far better than the expected language does.

    N-grams are compared. The result is "another language" if it is not clear which language fits. It is None if no
    language fits far better, or if there is no profile of the expected language.
    """
    codes, logs_by_ngram = _common_log_probabilities()
    if expected not in codes:
        return None
    found = [logs for ngram in _ngrams(" ".join(words)) if (logs := logs_by_ngram.get(ngram)) is not None]
    scores = dict(zip(codes, map(sum, zip(*found, strict=True)), strict=True)) if found else dict.fromkeys(codes, 0.0)
    best = max(scores, key=lambda code: scores[code])
    if scores[best] - scores[expected] <= _MIN_LOG_RATIO * _LONGEST_NGRAM:
        return None
    hits, _ = _frequent_words(set(words), best, expected)
    # A sentence of the expected language may have a title in another. Short words occur in many languages.
    long_words = {word for word in words if len(word) > _SHORT_WORD}
    _, expected_hits = _frequent_words(long_words, best, expected)
    if hits < _MIN_RATIO * expected_hits:
        return None
    # N-grams show that the language is not the expected one; frequent words confirm which other language it is.
    return _NAME_OF[best] if hits else "another language"


def _frequent_words(words: set[str], language: str, expected: str) -> tuple[int, int]:
    """Count the words that are frequent in only one of two languages.

    Returns:
        The number of words frequent only in `language`, and the number of words frequent only in `expected`.
    """
    found, expected_found = (words & FREQUENT_WORDS.get(code, frozenset()) for code in (language, expected))
    return len(found - expected_found), len(expected_found - found)


@cache
def _common_log_probabilities() -> tuple[list[str], dict[str, tuple[float, ...]]]:
    """Return the codes of common languages, and log-probabilities of n-grams in these languages.

    The log-probabilities are a dict from n-gram to a tuple with a number for each code. A number is relative to the
    log-probability of an unknown n-gram, so that unknown n-grams add nothing to a sum.
    """
    profiles = common_profiles()
    codes = list(profiles.runs)
    ngrams = {ngram for runs in profiles.runs.values() for ngram in runs}
    unknown = profiles.unknown_probability
    return codes, {
        ngram: tuple(
            math.log1p(profiles.runs[code].get(ngram, 0) / max(1, profiles.totals[code]) / unknown) for code in codes
        )
        for ngram in ngrams
    }
