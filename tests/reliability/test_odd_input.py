"""Test that unusual input is translated without crash, shifted lines, or much time and memory."""

import io
import resource
import sys
import time
from pathlib import Path

import pytest

from transduce.commands.main import main
from transduce.inference.translator import Translator
from transduce.search.settings import SearchSettings

SEARCH = SearchSettings(beam_size=1, max_length=3)
COMPUTING = ["--precision", "fp32", "--device", "cpu", "--threads", "1", "--beam-size", "1", "--max-length", "3"]

ODD = {
    "empty": "",
    "one space": " ",
    "spaces": " " * 50,
    "tab": "\t",
    "ideographic space": "\u3000",
    "no-break spaces": "\u00a0\u2007\u202f",
    "one character": "我",
    "one letter": "x",
    "one digit": "7",
    "full stop": ".",
    "punctuation only": "，。！？；：…",
    "quotes and brackets": "«»“”‘’()[]{}<>",
    "emoji": "🙂",
    "emoji with joiners": "👩‍👩‍👧‍👦🏳️‍🌈",
    "flags and skin tones": "🇩🇪👍🏽",
    "right to left": "مرحبا بالعالم",
    "right to left with marks": "\u202eשלום\u202c",
    "unknown script": "ᚠᚢᚦᚨᚱᚲ",
    "private use": "\ue000\uf8ff",
    "unassigned": "\U000e0fff\u0378",
    "unknown tokens only": "龘龘龘龘",
    "NUL": "\x00",
    "NUL inside": "我\x00吃鱼",
    "control characters": "".join(map(chr, range(1, 32))).replace("\n", ""),
    "line separator": "我吃鱼\u2028你吃鱼",
    "paragraph separator": "我吃鱼\u2029你吃鱼",
    "next line": "我吃鱼\x85你吃鱼",
    "carriage return": "我吃鱼\r你吃鱼\r",
    "byte order mark": "\ufeff我吃鱼",
    "lone high surrogate": "我\ud800吃",
    "lone low surrogate": "\udfff",
    "surrogates the wrong way round": "\udc00\ud800",
    "replacement characters": "\ufffd\ufffd",
    "combining marks": "Z̷̧̛̳̻̖͓͈̝͔̀a̵l̶g̷o" + "\u0301" * 300,
    "decomposed and composed": "e\u0301é",
    "the model's own symbols": "<pad></s><unk>▁<0x0A>",
    "markup": "<b>我</b> &amp; &#x41; </s> {{x}} %s \\n",
    "a very long word": "x" * 5_000,
    "a hundred thousand characters": "我吃鱼" * 33_334,
    "300 kB of words": "tea water " * 30_000,
    "a megabyte of spaces": " " * 1_000_000,
    "a megabyte of one letter": "z" * 1_000_000,
    "long without an end": "我喜欢苹果" * 3_000,
    "ten thousand emoji": "🙂" * 10_000,
    "three thousand sentences": "好。" * 3_000,
}


def test_at_least_40_unusual_inputs_are_tested() -> None:
    assert len(ODD) >= 40


@pytest.mark.parametrize("text", ODD.values(), ids=ODD.keys())
def test_odd_input_ends_in_a_translation(translator: Translator, text: str) -> None:
    before, started_at = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    (found,) = translator.translate([text], SEARCH)  # all of these are translated; an error would be one too many
    assert found.text.count("\n") == text.count("\n")
    assert found.source == text
    words = [part for part in text.split() if any(map(str.isalpha, part))]
    assert found.parts > 1 or not words or len(translator.tokenizer.source.encode(text)) <= 256
    assert bool(found.alternatives[0].tokens) <= bool(text.strip())
    unit = 1024 if sys.platform == "darwin" else 1
    grown_megabytes = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / unit / 1024
    assert grown_megabytes < 300
    assert time.process_time() - started_at < 60


@pytest.mark.parametrize("beam_size", [1, 4])
def test_unusual_sentences_do_not_change_others_of_their_batch(translator: Translator, beam_size: int) -> None:
    short = [text for text in ODD.values() if len(text) < 1000]
    search = SearchSettings(beam_size=beam_size, max_length=8)
    expected = translator("我吃鱼。", search=search).text
    mixed = [line for text in short for line in (text, "我吃鱼。")]
    found = translator.translate(mixed, search)
    assert [translation.source for translation in found] == mixed
    assert {translation.text for translation in found[1::2]} == {expected}


def test_each_input_line_gives_one_output_line(
    monkeypatch: pytest.MonkeyPatch, capsysbinary: pytest.CaptureFixture[bytes], trained: Path
) -> None:
    """Line feeds separate lines and nothing else does; what is no UTF-8 is a line like others."""
    texts = [text.encode("utf-8", "surrogatepass") for text in ODD.values() if len(text) < 6_000]
    content = b"".join(text + b"\n" for text in (*texts, b"\xff\xfe\x00", b"\xc3"))
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content), encoding="ascii"))
    assert main(["translate", str(trained), *COMPUTING]) == 0
    captured = capsysbinary.readouterr()
    lines = captured.out.split(b"\n")
    assert lines.pop() == b""
    assert len(lines) == len(texts) + 2
    assert all((not lines[n].strip()) >= (not text.strip()) for n, text in enumerate(texts))
    assert lines[list(ODD).index("one character")]
    assert lines[-1].decode("utf-8") is not None
    assert b"Traceback" not in captured.err
    assert captured.err.count(b"bytes that are not UTF-8 were read as U+FFFD") == 5
