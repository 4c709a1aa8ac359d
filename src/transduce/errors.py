"""Errors that a user can fix: their exception, imports of optional packages, and what messages suggest."""

import builtins
import codecs
import errno
import operator
import os
import re
import shlex
import sys
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from functools import wraps
from importlib import import_module
from itertools import islice
from numbers import Real
from pathlib import Path
from types import FunctionType, NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints
from unicodedata import normalize

from transduce.ui_language import localized


class TransduceError(ValueError):
    """An error that the user can fix.

    The message is one or two sentences: the rule, the offending value with its file and line, and the remedy. The
    command line prints the message without a traceback and exits with code 2. `str(error)` is the message in the
    user's language (`transduce.set_ui_language`); `error.args[0]` is always English.
    """

    _is_of_wrong_type = False  # True: about an argument's type; a calling function names its own argument instead

    def __str__(self) -> str:
        return localized(super().__str__())


# --- lists in messages ---


MAX_SHOWN = 8
"""The maximum number of names of a list that a message shows."""


def shown_names(names: Iterable[object], max_names: int = MAX_SHOWN) -> str:
    """Return a list of names as text for a message: "a, b, … (+37)", the first names and the number of the others.

    An empty list is "none".
    """
    texts = list(map(str, names))
    others = len(texts) - max_names
    return ", ".join([*texts[:max_names], *([f"… (+{others:,})"] if others > 0 else [])]) or "none"


_MAX_SHOWN_VALUE = 80


def shown_value(value: object) -> str:
    """Return a value as one line of code for a message, such as `'text'` or `[1, 2]`, cut to 80 characters."""
    text = " ".join(repr(value).split())
    return text if len(text) <= _MAX_SHOWN_VALUE else f"{text[:_MAX_SHOWN_VALUE]}…"


def count_noun(count: int, noun: str) -> str:
    """Return a count with its noun in the right number: "1 line", "2,000 lines"."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


# --- full-width characters ---

_HALF_WIDTH = {wide: wide - 0xFEE0 for wide in range(0xFF01, 0xFF5F)} | str.maketrans("　“”‘’", " \"\"''")
_DASHES = "-－‐‑‒–—―−"


def half_width(text: str) -> str:
    """Return a text with ASCII in place of full-width letters, digits, punctuation, spaces and curly quotes."""
    return text.translate(_HALF_WIDTH)


def with_half_width_hint(message: str, wrong: str) -> str:
    """Return an error message, extended by what to type if the wrong text has full-width characters."""
    wide = "".join(dict.fromkeys(letter for letter in wrong if ord(letter) in _HALF_WIDTH))
    narrow = half_width(wide)
    return f"{message} Type the half-width `{narrow}` for the full-width `{wide}`." if wide else message


def near_name(name: str, names: Iterable[str], *, cutoff: float = 0.6) -> str | None:
    """Return the one of several names that a wrong name probably stands for; None if none is similar.

    Upper and lower case are equal, and full-width characters and symbols such as ℃ equal their usual forms.

    Args:
        name: the wrong name.
        names: the right names.
        cutoff: the least similarity of the two names, from 0 (none) to 1 (equal).
    """
    from difflib import get_close_matches  # imported only for a mistake, as it takes a while

    by_form: dict[str, str] = {}
    for each in names:
        by_form.setdefault(normalize("NFKC", each).casefold(), each)
    near = get_close_matches(normalize("NFKC", name).casefold(), by_form, 1, cutoff)
    return by_form[near[0]] if near else None


def option_with_other_dashes(argument: str) -> str | None:
    """Return the option that an argument with other than ASCII dashes stands for, such as --out for —out; else None."""
    name = argument.lstrip(_DASHES)
    dashes = argument[: len(argument) - len(name)]
    return f"--{half_width(name).partition('=')[0]}" if dashes.strip("-") else None


def toml_error(message: str, text: str, error: ValueError) -> TransduceError:
    """Return the error that a file is not valid TOML, with a hint if its wrong line has full-width characters.

    Args:
        message: the error message.
        text: the content of the file.
        error: the error of the parser.
    """
    place = re.search(r"at line (\d+)", str(error))
    line = text.split("\n")[int(place[1]) - 1] if place else text
    outside = re.sub(r"\"[^\"\n]*\"|'[^'\n]*'|#.*", "", line)  # strings and comments may have such characters
    return TransduceError(with_half_width_hint(message, outside))


# --- encodings ---

_CONTROL = re.compile("[\x00-\x08\x0e-\x1f]")


def writing_remedy(error: Exception, otherwise: str = "free disk space") -> str:
    """Return a clause for a message that says what a user can do about an error of writing a file.

    If the system's limit on a file's size was reached, the clause says to raise it. Otherwise the clause is
    `otherwise`.
    """
    is_limit = isinstance(error, OSError) and error.errno == errno.EFBIG
    return "raise the limit on the size of a file (`ulimit -f`)" if is_limit else otherwise


def wide_encoding(content: bytes) -> str | None:
    """Return the name of the encoding of text that is UTF-16 or UTF-32, such as UTF-16LE; None for other text.

    A byte order mark decides. Text without such a mark is recognized in this order:

    * It is UTF-32 if its bytes are valid in this encoding, with at most half of the characters outside the basic plane.
    * It is UTF-16 if its bytes are valid in this encoding, and either a quarter of them are zero, or they have line
      feeds of two bytes and are not UTF-8.

    Text without zero bytes, or with control characters after decoding, is neither.

    Args:
        content: the first bytes of the text.
    """
    if content.startswith((codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE)):  # before UTF-16, whose mark begins one of them
        return "UTF-32"
    if content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "UTF-16"
    if 0 not in content:
        return None
    for name in ("UTF-32LE", "UTF-32BE"):
        try:
            text = codecs.getincrementaldecoder(name)().decode(content)
        except UnicodeDecodeError:
            continue
        if text and 2 * sum(character > "\uffff" for character in text) <= len(text) and not _CONTROL.search(text):
            return name
    for name in ("UTF-16LE", "UTF-16BE"):
        try:
            text = codecs.getincrementaldecoder(name)().decode(content)
        except UnicodeDecodeError:
            continue
        zeros = content[name == "UTF-16LE" :: 2].count(0)
        is_wide = ("\n" in text and not is_utf8(content)) or 4 * zeros >= len(content)
        if is_wide and not _CONTROL.search(text):
            return name
    return None


def is_utf8(content: bytes) -> bool:
    """Return whether bytes are UTF-8, of which the last character may be incomplete."""
    try:
        codecs.getincrementaldecoder("UTF-8")().decode(content)
    except UnicodeDecodeError:
        return False
    return True


def not_utf8(path: str | Path, what: str, encoding: str | None = None) -> TransduceError:
    """Return the error that a text file is not UTF-8, with the command that converts it.

    Args:
        path: the file, possibly with a line number after a colon.
        what: what is wrong, such as "this line is not".
        encoding: the file's encoding; None: it is not known.
    """
    file = re.sub(r":\d+$", "", str(path))
    name, is_table = shell_word(file), file.lower().endswith((".csv", ".tsv"))
    return TransduceError(
        f"{path}: files must be UTF-8, but {what}: convert it by `iconv -f {encoding} -t UTF-8 {name} > NEW`"
        f"{', or save it in Excel as CSV UTF-8' if is_table else ''}."
        if encoding
        else f"{path}: files must be UTF-8, but {what}: convert it from its encoding, for Chinese by `iconv -f GB18030 "
        f"-t UTF-8 {name} > NEW`{', or save it in Excel as CSV UTF-8' if is_table else ''}."
    )


def decode_utf8(content: bytes, path: str | Path) -> str:
    """Return the text of a UTF-8 file, with a byte order mark removed and line feeds as line ends.

    Raises:
        TransduceError: the content is not UTF-8; the message names the file and the command that converts it.
    """
    encoding = wide_encoding(content)
    if encoding:
        raise not_utf8(path, f"this one is {encoding}", encoding)
    try:
        return content.decode("utf-8-sig").replace("\r\n", "\n").replace("\r", "\n")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise not_utf8(f"{path}:{line}", "this line is not") from None


# --- packages ---
# Imports of optional packages, with an error message that names the extra to install.


def import_extra(package: str, extra: str, needed_by: str = "This") -> Any:
    """Import and return a package of one of transduce's extras; `needed_by` is the message's word for what needs it.

    Raises:
        TransduceError: the package is not installed.
    """
    try:
        return import_module(package)
    except ModuleNotFoundError as error:
        if error.name != package.partition(".")[0]:
            raise
        raise TransduceError(
            f"{needed_by} needs the package {error.name}, which is not installed: pip install 'transduce[{extra}]'."
        ) from None


class TransduceWarning(UserWarning):
    """A warning about data, models or settings, which a command prints as one line."""


class WrongLanguageWarning(TransduceWarning):
    """A warning that a text to translate seems not to be in the model's source language."""


class UntrainedDirectionWarning(TransduceWarning):
    """A warning that a multilingual model was not trained for a pair of languages, though it knows both."""


class IdleSettingWarning(TransduceWarning):
    """A warning that other settings leave a stored setting without effect, or change its value."""


def warn(message: str, category: type[Warning] = TransduceWarning) -> None:
    """Issue a warning that names the line of the user's code from which this package was called.

    Python shows a `DeprecationWarning` only if that line is in the script that runs.
    """
    level, frame = 2, sys._getframe(1)
    while frame.f_back is not None and str(frame.f_globals.get("__name__")).partition(".")[0] in _NOT_USER_CODE:
        level, frame = level + 1, frame.f_back
    warnings.warn(message, category, stacklevel=level)


_NOT_USER_CODE = ("transduce", "torch", "contextlib")  # the latter two have functions that decorate this package's


# --- suggested commands ---


_IS_WINDOWS = os.name == "nt"


def shell_word(argument: str | Path) -> str:
    """Return an argument of a suggested command, quoted where this system's shell needs it.

    A leading dash gets `./` before it, so that the argument is not read as an option.
    """
    word = str(argument)
    if word.startswith("-"):
        word = os.path.join(".", word)
    if not _IS_WINDOWS:
        return shlex.quote(word)
    return word if re.fullmatch(r"[\w.:/\\+=@-]+", word) else f'"{word}"'


# --- arguments of a wrong type ---
# Types are compared only after an error, so that correct calls stay fast and may pass anything that works.


_T = TypeVar("_T")
_WRONG_TYPE_ERRORS = (TypeError, AttributeError, ValueError, LookupError)
_MAX_COMPARED_ITEMS = 10_000


_WRAPPED_METHODS = ("__init__", "__call__")  # besides the public ones


def explain_wrong_types(target: _T) -> _T:
    """Decorate a function, or a class's public methods, to explain errors that an argument of a wrong type causes.

    After a TypeError, AttributeError, ValueError or LookupError, the arguments are compared with the annotations. If
    one has another type, a TransduceError names it. Otherwise the error stays as it is.

    For a msgspec struct, decorate its `__post_init__`. The class of a struct keeps the methods that it is defined with.
    """
    if not isinstance(target, type):
        explained: _T = _explaining(target)
        return explained
    for name, member in list(vars(target).items()):
        function = member.__func__ if isinstance(member, classmethod) else member
        if isinstance(function, FunctionType) and (name in _WRAPPED_METHODS or not name.startswith("_")):
            explaining = _explaining(function)
            setattr(target, name, classmethod(explaining) if isinstance(member, classmethod) else explaining)
    return target


def _explaining(function: Any) -> Any:
    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except _WRONG_TYPE_ERRORS as error:
            is_explained = isinstance(error, TransduceError) and not error._is_of_wrong_type
            explained = None if is_explained else _wrong_type(function, args, kwargs)
            if explained is None:
                raise
            raise explained from error

    return call


def _wrong_type(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> TransduceError | None:
    """Return the error that names the first argument whose type is not the annotated one; None if there is none.

    In a `__post_init__`, the fields of the object count as arguments.
    """
    import inspect  # a tenth of the time of `import transduce`, and needed only after an error

    owner, _, method = function.__qualname__.rpartition(".")
    is_struct = method == "__post_init__"
    try:
        if is_struct:
            passed = {name: getattr(args[0], name) for name in type(args[0]).__struct_fields__}
        else:
            signature = inspect.signature(function)
            passed = signature.bind(*args, **kwargs).arguments
            kinds = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
            passed = {name: value for name, value in passed.items() if signature.parameters[name].kind not in kinds}
        names = _PublicNames(function.__globals__)
        hints = get_type_hints(type(args[0]) if is_struct else function, localns=names)
    except (TypeError, NameError, AttributeError):  # an argument is missing, or an annotation has an unknown name
        return None
    for name, value in passed.items():
        hint = hints.get(name, Any)
        if _fits(value, hint):
            continue
        place = f"`{name}` of `{owner if method in ('__init__', '__post_init__') else function.__qualname__}`"
        expected = re.sub(r"\b(?:\w+\.)+(?=\w)", "", inspect.formatannotation(hint)).replace("NoneType", "None")
        number = None if isinstance(value, str | bytes) else _wrong_item(value, hint)
        item = "" if number is None else shown_value(next(islice(value, number - 1, None)))
        error = TransduceError(
            f"{place} must be of the type `{expected}`, but its item number {number} is {item}."
            if item
            else f"{place} must be of the type `{expected}`, but is {shown_value(value)}."
        )
        error._is_of_wrong_type = True
        return error
    return None


class _PublicNames(dict[str, Any]):
    """The local names in which annotations are evaluated: public names of transduce; all unknown names are `Any`."""

    def __init__(self, known: Mapping[str, Any]) -> None:
        super().__init__()
        self._known = known

    def __missing__(self, name: str) -> Any:
        if name in self._known or hasattr(builtins, name):
            raise KeyError(name)
        return getattr(import_module("transduce"), name, Any)


def _fits(value: Any, hint: Any) -> bool:
    """Return whether a value may have an annotated type; annotations of kinds that are not compared fit any value."""
    origin, inner = get_origin(hint), get_args(hint)
    kind = origin or hint
    if origin in (Union, UnionType):
        return any(_fits(value, each) for each in inner)
    if origin is Literal:
        return isinstance(value, str | int | NoneType) and value in inner
    if origin is tuple and inner and inner[-1] is not Ellipsis:
        return isinstance(value, tuple | list) and len(value) == len(inner) and all(map(_fits, value, inner))
    if kind in _SCALARS:
        return _SCALARS[kind](value)
    if kind in _LISTS:
        is_unordered = isinstance(value, Mapping | AbstractSet)
        is_list = _works(iter, value) and (kind in _UNORDERED or not is_unordered)
        return is_list and _wrong_item(value, hint) is None
    if getattr(kind, "_is_protocol", False):
        return all(hasattr(value, name) for name in vars(kind) if not name.startswith("_"))
    return not isinstance(kind, type) or kind is Any or isinstance(value, kind)


def _works(function: Callable[[Any], object], value: Any) -> bool:
    """Return whether a function such as `iter`, which raises a TypeError for some values, accepts a value."""
    try:
        function(value)
    except TypeError:
        return False
    return True


_SCALARS: dict[Any, Callable[[Any], bool]] = {
    None: lambda value: value is None,
    NoneType: lambda value: value is None,
    bool: lambda value: type(value).__name__ in ("bool", "bool_"),  # Python's and NumPy's
    int: lambda value: _works(operator.index, value) and not isinstance(value, bool),
    float: lambda value: isinstance(value, Real) and not isinstance(value, bool),
    Callable: callable,
}
_UNORDERED = (Iterable, Collection)
_LISTS = (*_UNORDERED, Sequence, list, tuple)
"""The annotated types for which arrays and other iterables are passed, too."""


def _wrong_item(value: Any, hint: Any) -> int | None:
    """Return the number, from 1, of the first item of a list whose type is not the annotated one; None: there is none.

    An iterator is not read, as its items could not be read again.
    """
    inner = get_args(hint)
    if get_origin(hint) not in _LISTS or isinstance(value, Iterator) or not _works(iter, value):
        return None
    items = enumerate(islice(value, _MAX_COMPARED_ITEMS), 1)
    return next((number for number, item in items if not _fits(item, inner[0])), None)
