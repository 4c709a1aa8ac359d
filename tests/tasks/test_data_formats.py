"""Test that every format of the same pairs trains the same model as plain files, bit by bit."""

import bz2
import csv
import gzip
import importlib
import io
import json
import lzma
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

import numpy as np
import pytest

from transduce.errors import TransduceError
from transduce.model_folder.read import MANIFEST, Manifest
from transduce.model_folder.safety import read_json
from transduce.tasks.run.run import RunRequest, prepare_run
from transduce.tasks.train import train

Pairs = list[tuple[str, str]]


@pytest.fixture(scope="module")
def pairs(toy_corpus: Path) -> Pairs:
    """Return pairs with characters that each format must escape."""
    sides = [(toy_corpus / name).read_text("utf-8").split("\n")[:300] for name in ("train.zh", "train.en")]
    odd = [('他说"不"。', 'He said "no".'), ("甲，乙<丙>&丁", "a, b <c> & d"), ("后\u2028面", "ends in a backslash\\")]
    return [*zip(*sides, strict=True), *odd]


@pytest.fixture(scope="module")
def settings(toy_settings: dict[str, Any]) -> dict[str, Any]:
    files = {name: value for name, value in toy_settings.items() if not name.startswith("data.")}
    return files | {"training.steps": 6, "training.validate_every": 3, "training.translate_dev": 4}


def trained(out: Path, settings: dict[str, Any], **data: Any) -> tuple[bytes, ...]:
    train(out=out, settings=settings, device="cpu", threads=1, **data)
    manifest = read_json(out, MANIFEST, Manifest)
    assert (manifest.source_language, manifest.target_language) == ("zh", "en")
    return tuple((out / name).read_bytes() for name in ("model.safetensors", "sentencepiece.model", "dev_score.json"))


@pytest.fixture(scope="module")
def expected(pairs: Pairs, settings: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, ...]:
    folder = tmp_path_factory.mktemp("plain")
    files = [str(folder / name) for name in ("a.zh", "a.en")]
    for path, side in zip(files, zip(*pairs, strict=True), strict=True):
        Path(path).write_text("".join(f"{text}\n" for text in side), "utf-8", newline="\n")
    return trained(folder / "m", settings, source=files[0], target=files[1])


def compressed(compress: Callable[[bytes], bytes], suffix: str) -> Callable[[Path, Pairs], dict[str, Any]]:
    def write(folder: Path, pairs: Pairs) -> dict[str, Any]:
        paths = [folder / f"a.{language}.{suffix}" for language in ("zh", "en")]
        for path, side in zip(paths, zip(*pairs, strict=True), strict=True):
            path.write_bytes(compress("".join(f"{text}\n" for text in side).encode()))
        return {"source": paths[0], "target": paths[1]}

    return write


def zstd(content: bytes) -> bytes:
    module: Any = importlib.import_module("zstandard")
    result: bytes = module.compress(content)
    return result


def write_tsv(folder: Path, pairs: Pairs) -> dict[str, Any]:
    (folder / "a.tsv").write_text("".join(f"{source}\t{target}\n" for source, target in pairs), "utf-8", newline="\n")
    return {"source": folder / "a.tsv", "languages": ("zh", "en")}


def write_quoted_tsv(folder: Path, pairs: Pairs) -> dict[str, Any]:
    with (folder / "a.tsv").open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, delimiter="\t", lineterminator="\n").writerows([("zh", "en"), *pairs])
    return {"source": folder / "a.tsv", "languages": ("zh", "en")}


def write_csv(folder: Path, pairs: Pairs) -> dict[str, Any]:
    with gzip.open(folder / "a.csv.gz", "wt", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([("id", "zh", "en"), *((n, *pair) for n, pair in enumerate(pairs))])
    return {"source": folder / "a.csv.gz", "languages": ("zh", "en")}


def write_wide_tsv(folder: Path, pairs: Pairs) -> dict[str, Any]:
    with (folder / "a.tsv").open("w", encoding="utf-8", newline="") as file:
        rows = [("n", "english", "chinese"), *((n, target, source) for n, (source, target) in enumerate(pairs))]
        csv.writer(file, delimiter="\t", lineterminator="\n").writerows(rows)
    return {"source": folder / "a.tsv", "columns": ("chinese", "english"), "languages": ("zh", "en")}


def write_jsonl(folder: Path, pairs: Pairs) -> dict[str, Any]:
    lines = [json.dumps({"q": source, "a": target}) + "\n" for source, target in pairs]
    (folder / "a.jsonl").write_text("".join(lines), "utf-8", newline="\n")
    return {"source": folder / "a.jsonl", "columns": ("q", "a"), "languages": ("zh", "en")}


def write_numbered_tsv(folder: Path, pairs: Pairs) -> dict[str, Any]:
    lines = [f"{target}\tTatoeba {n}\t{source}\n" for n, (source, target) in enumerate(pairs)]
    (folder / "a.tsv").write_text("".join(lines), "utf-8", newline="\n")
    return {"source": folder / "a.tsv", "columns": ("3", "1"), "languages": ("zh", "en")}


def write_numbered_csv(folder: Path, pairs: Pairs) -> dict[str, Any]:
    with (folder / "a.csv").open("w", encoding="utf-8-sig", newline="") as file:
        csv.writer(file, delimiter=";").writerows([("id", "zh", "en"), *((n, *pair) for n, pair in enumerate(pairs))])
    return {"source": folder / "a.csv", "columns": ("2", "3")}


def write_json(folder: Path, pairs: Pairs) -> dict[str, Any]:
    records = [{"id": n, "translation": {"zh": zh, "en": en}} for n, (zh, en) in enumerate(pairs)]
    lines = [f"{json.dumps(record)}\n" for record in records]
    (folder / "a.json").write_text("".join(lines), "utf-8", newline="\r\n")
    return {"source": folder / "a.json"}


def table(pairs: Pairs) -> Any:
    pyarrow: Any = importlib.import_module("pyarrow")
    return pyarrow.table({"zh": [pair[0] for pair in pairs], "en": [pair[1] for pair in pairs]})


def write_parquet(folder: Path, pairs: Pairs) -> dict[str, Any]:
    parquet: Any = importlib.import_module("pyarrow.parquet")
    parquet.write_table(table(pairs), folder / "a.parquet", row_group_size=100)
    return {"source": folder / "a.parquet"}


def write_arrow(folder: Path, pairs: Pairs) -> dict[str, Any]:
    feather: Any = importlib.import_module("pyarrow.feather")
    feather.write_feather(table(pairs), folder / "a.arrow")
    return {"source": folder / "a.arrow"}


def write_dataset(folder: Path, pairs: Pairs) -> dict[str, Any]:
    datasets: Any = importlib.import_module("datasets")
    rows = [{"translation": {"zh": source, "en": target}} for source, target in reversed(pairs)]
    shuffled = datasets.Dataset.from_list(rows).select(range(len(rows) - 1, -1, -1))
    shuffled.save_to_disk(folder / "d")
    return {"source": folder / "d"}


def write_tmx(folder: Path, pairs: Pairs) -> dict[str, Any]:
    units = "".join(
        f'<tu><tuv xml:lang="zh-CN"><seg>{escape(source)}</seg></tuv>'
        f'<tuv xml:lang="en"><seg><bpt i="1">&lt;b&gt;</bpt>{escape(target)}</seg></tuv></tu>\n'
        for source, target in pairs
    )
    head = '<?xml version="1.0" encoding="utf-8"?>\n<tmx version="1.4"><header srclang="zh"/><body>\n'
    (folder / "a.tmx").write_text(f"{head}{units}</body></tmx>\n", "utf-8")
    return {"source": folder / "a.tmx", "languages": ("zh", "en")}


def make_dataset(_: Path, pairs: Pairs) -> dict[str, Any]:
    datasets: Any = importlib.import_module("datasets")
    return {"pairs": datasets.Dataset.from_list([{"zh": source, "en": target} for source, target in pairs])}


def make_frame(_: Path, pairs: Pairs) -> dict[str, Any]:
    pandas: Any = importlib.import_module("pandas")
    return {"pairs": pandas.DataFrame(pairs, columns=["zh", "en"])}


def make_frame_of_columns(_: Path, pairs: Pairs) -> dict[str, Any]:
    pandas: Any = importlib.import_module("pandas")
    frame = pandas.DataFrame(pairs, columns=["question", "answer"]).assign(number=7)
    return {"pairs": frame, "columns": ("question", "answer"), "languages": ("zh", "en")}


def make_iterable(_: Path, pairs: Pairs) -> dict[str, Any]:
    def each() -> Iterator[tuple[str, str]]:
        yield from pairs

    return {"pairs": each(), "languages": ("zh", "en")}


FORMS: dict[str, Callable[[Path, Pairs], dict[str, Any]]] = {
    "gz": compressed(gzip.compress, "gz"),
    "bz2": compressed(bz2.compress, "bz2"),
    "xz": compressed(lzma.compress, "xz"),
    "zst": compressed(zstd, "zst"),
    "tsv": write_tsv,
    "quoted tsv": write_quoted_tsv,
    "wide tsv": write_wide_tsv,
    "csv": write_csv,
    "jsonl": write_jsonl,
    "numbered tsv": write_numbered_tsv,
    "numbered csv": write_numbered_csv,
    "json": write_json,
    "parquet": write_parquet,
    "arrow": write_arrow,
    "datasets": write_dataset,
    "tmx": write_tmx,
    "list": lambda _, pairs: {"pairs": pairs, "languages": ("zh", "en")},
    "dictionaries": lambda _, pairs: {"pairs": [{"zh": source, "en": target} for source, target in pairs]},
    "iterable": make_iterable,
    "Dataset": make_dataset,
    "pandas": make_frame,
    "Arrow table": lambda _, pairs: {"pairs": table(pairs)},
    "columns of pandas": make_frame_of_columns,
    "chosen keys": lambda _, pairs: {
        "pairs": [{"id": "7", "q": source, "a": target} for source, target in pairs],
        "columns": ("q", "a"),
        "languages": ("zh", "en"),
    },
    "array": lambda _, pairs: {"pairs": np.array(pairs), "languages": ("zh", "en")},
    "two arrays": lambda _, pairs: {"pairs": zip(*np.array(pairs).T, strict=True), "languages": ("zh", "en")},
}
NEEDED = {
    "zst": "zstandard",
    "parquet": "pyarrow",
    "arrow": "pyarrow",
    "Arrow table": "pyarrow",
    "datasets": "datasets",
    "Dataset": "datasets",
    "pandas": "pandas",
    "columns of pandas": "pandas",
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_trains_the_same_model(
    form: str, pairs: Pairs, settings: dict[str, Any], expected: tuple[bytes, ...], tmp_path: Path
) -> None:
    if form in NEEDED:
        pytest.importorskip(NEEDED[form])
    assert trained(tmp_path / "m", settings, **FORMS[form](tmp_path, pairs)) == expected


def test_standard_input_trains_the_same_model(
    pairs: Pairs, settings: dict[str, Any], expected: tuple[bytes, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = "".join(f"{source}\t{target}\n" for source, target in pairs).encode()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))
    assert trained(tmp_path / "m", settings, source="-", languages=("zh", "en")) == expected


def test_a_run_on_objects_resumes_without_them(pairs: Pairs, settings: dict[str, Any], tmp_path: Path) -> None:
    data: dict[str, Any] = {"pairs": pairs, "dev_pairs": pairs[:20], "languages": ("zh", "en")}
    whole = trained(tmp_path / "whole", settings, **data)
    trained(tmp_path / "parts", settings | {"training.steps": 3}, **data)
    settings = settings | {"training.steps": 6}
    train(out=tmp_path / "parts", settings=settings, resume=True, device="cpu", threads=1)
    assert train(out=tmp_path / "parts", settings=settings, resume=True, device="cpu", threads=1, **data) is not None
    assert (tmp_path / "whole" / "corpus" / "source.ids").read_bytes()
    assert len(whole) == 3


def test_a_run_on_chosen_columns_of_objects_resumes(pairs: Pairs, settings: dict[str, Any], tmp_path: Path) -> None:
    rows = [{"q": source, "a": target, "n": "1"} for source, target in pairs]
    data: dict[str, Any] = {"columns": ("q", "a"), "languages": ("zh", "en")}
    objects: dict[str, Any] = {"pairs": rows, "dev_pairs": rows[:20]}
    plain: dict[str, Any] = {"pairs": pairs, "dev_pairs": pairs[:20], "languages": ("zh", "en")}
    expected = trained(tmp_path / "plain", settings, **plain)
    assert trained(tmp_path / "m", settings, **data, **objects) == expected
    for more in ({}, objects, data | objects):
        assert train(out=tmp_path / "m", resume=True, device="cpu", threads=1, **more) is not None
    with pytest.raises(TransduceError, match=r"`pairs`, row 2: the pairs differ"):
        train(out=tmp_path / "m", resume=True, device="cpu", threads=1, pairs=[rows[0], rows[0]])


def test_a_run_on_objects_does_not_resume_with_others(pairs: Pairs, settings: dict[str, Any], tmp_path: Path) -> None:
    rows = [{"zh": source, "en": target} for source, target in pairs]
    data: dict[str, Any] = {"pairs": rows, "dev_pairs": rows[:20]}
    more: dict[str, Any] = {"out": tmp_path / "m", "resume": True, "device": "cpu", "threads": 1}
    trained(tmp_path / "m", settings | {"training.steps": 1}, **data)
    other = [*rows[:2], {"zh": "x", "en": rows[2]["en"]}, *rows[3:]]
    for name, changed, number in (("pairs", other, 3), ("pairs", rows[:-1], len(rows)), ("dev_pairs", rows[:21], 21)):
        message = rf"`{name}`, row {number}: the pairs differ from those that this run started with \(.*\): leave"
        with pytest.raises(TransduceError, match=message):
            train(**more, **(data | {name: changed}))
    assert train(**more, **data, dry_run=True) is None
    assert train(**more, **data) is not None


def test_standard_input_is_not_read_on_resume(
    pairs: Pairs,
    settings: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    content = "".join(f"{source}\t{target}\n" for source, target in pairs).encode()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))
    data: dict[str, Any] = {"source": "-", "languages": ("zh", "en")}
    trained(tmp_path / "m", settings | {"training.steps": 1}, **data)
    assert "Standard input" not in capsys.readouterr().err
    train(out=tmp_path / "m", resume=True, device="cpu", threads=1, **data)
    assert "Standard input is not read again: the run continues with the text" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"source": ["Ich bin hier."]}, r"`source` names files, but there is no file 'Ich bin hier\.': .* `pairs`"),
        ({"source": "https://example.org/a.tsv"}, r"https:/example\.org/a\.tsv is a URL, but training reads local"),
        ({"pairs": "a\tb"}, r"`pairs` must be pairs of texts, such as a list of tuples, .* but is of the type str"),
        ({"pairs": {"train": []}}, r"`pairs` must .* type dict: choose one of its parts \['train'\]"),
        ({"pairs": [("a", "b", "c")]}, r"`pairs`, row 1: a pair is two texts, but this one is \"\('a', 'b', 'c'\)\""),
        ({"pairs": [("a", 1)]}, r"`pairs`, row 1: a pair is two texts"),
        ({"pairs": []}, r"`pairs` has no rows"),
        ({"pairs": [{"a": "x", "b": "y", "c": "z"}]}, r"`pairs` has the columns 'a', 'b', 'c': .* by `data.columns`"),
        ({"pairs": [{"a": "x", "b": "y"}], "columns": ("a", "d")}, r"`pairs` has no column 'd', but 'a', 'b'"),
        ({"pairs": [{"a": "x", "b": "y"}], "columns": ("a", "a")}, r"names 'a' twice: `pairs` has 'a', 'b'"),
        ({"pairs": [("a", "b")], "source": "x.tsv"}, r"`source` names files and `pairs` holds pairs: pass only one"),
    ],
)
def test_data_without_pairs_is_refused_and_leaves_no_folder(
    data: dict[str, Any], message: str, settings: dict[str, Any], tmp_path: Path
) -> None:
    with pytest.raises(TransduceError, match=message):
        train(out=tmp_path / "m", settings=settings, device="cpu", threads=1, **data)
    assert not (tmp_path / "m").exists()


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (
            "a.csv",
            "Hallo,Hello\nb,B\n",
            r"a\.csv begins with 'Hallo', 'Hello', which name neither columns",
        ),
        ("a.csv", "de,en\na,A\nb,B,C\n", r"a\.csv:3: a row needs 2 columns as the header has, but this one has 3"),
        (
            "a.tsv",
            "a\tA\t1\n",
            r"a\.tsv:1: a TSV line needs 2 columns.* has 3: fix it, or choose two",
        ),
        (
            "a.json",
            '[{"de": "a", "en": "A"}]\n',
            r"a\.json:1: JSON lines have an object on each line",
        ),
        ("a.parquet", "no table", r"a\.parquet is not parquet \("),
        ("a.tmx", "<tmx><body>", r"a\.tmx is not valid XML"),
        ("a.tmx", "<tmx><body></body></tmx>", r"a\.tmx has no translation unit in two languages, but in none"),
    ],
)
def test_broken_tables_are_refused(
    name: str, content: str, message: str, settings: dict[str, Any], tmp_path: Path
) -> None:
    pytest.importorskip("pyarrow")
    (tmp_path / name).write_text(content, "utf-8")
    with pytest.raises(TransduceError, match=message):
        train(out=tmp_path / "m", settings=settings, source=tmp_path / name, device="cpu", threads=1)


def test_a_missing_package_is_named_once(
    settings: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "dataset").mkdir()
    (tmp_path / "dataset" / "state.json").write_text("{}", "utf-8")
    monkeypatch.setitem(sys.modules, "datasets", None)
    message = rf"^{re.escape(str(tmp_path))}/dataset needs the package datasets, .* 'transduce\[data\]'\.$"
    with pytest.raises(TransduceError, match=message):
        train(out=tmp_path / "m", settings=settings, source=tmp_path / "dataset", device="cpu", threads=1)


def test_columns_chosen_by_number_must_exist(settings: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text("a\tA\t1\n", "utf-8")
    with pytest.raises(TransduceError, match=r"a\.tsv has 3 columns, but `data\.columns` chooses number 4: correct it"):
        train(out=tmp_path / "m", settings=settings, source=tmp_path / "a.tsv", columns=("1", "4"), device="cpu")


def test_the_log_says_where_the_languages_come_from(
    pairs: Pairs, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    content = {"data": {"source": [str(write_json(tmp_path, pairs)["source"])]}, "training": {"steps": 1}}
    prepare_run(RunRequest(settings=content, out=tmp_path / "run", device="cpu", threads=1))
    assert re.search(r"data\.languages +zh en  the names of the columns\n", capsys.readouterr().err)


def write_lined_csv(folder: Path, pairs: Pairs) -> dict[str, Any]:
    """Write a CSV file with a line break in its first pair, on lines 2 and 3, and an empty line before the second."""
    rows = [(pairs[0][0].replace("。", "\n"), pairs[0][1]), *pairs[1:]]
    with (folder / "a.csv").open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([("zh", "en"), rows[0], (), *rows[1:]])
    return {"source": folder / "a.csv", "languages": ("zh", "en")}


def write_spaced_jsonl(folder: Path, pairs: Pairs) -> dict[str, Any]:
    found = write_jsonl(folder, pairs)
    path = folder / "a.jsonl"
    path.write_text("\n\n" + path.read_text("utf-8"), "utf-8", newline="\n")
    return found


def write_monolingual_tmx(folder: Path, pairs: Pairs) -> dict[str, Any]:
    found = write_tmx(folder, pairs)
    text = (folder / "a.tmx").read_text("utf-8")
    (folder / "a.tmx").write_text(text.replace("<tu>", "<tu><tuv xml:lang='zh'/></tu><tu>", 1), "utf-8")
    return found


@pytest.mark.parametrize(
    ("write", "place"),
    [
        (write_lined_csv, "a.csv:7"),
        (write_numbered_tsv, "a.tsv:4"),
        (write_spaced_jsonl, "a.jsonl:6"),
        (write_monolingual_tmx, "a.tmx, unit 5"),
        (write_parquet, "a.parquet, row 4"),
        (FORMS["list"], "`pairs`, row 4"),
        (None, "standard input:4"),
    ],
)
@pytest.mark.filterwarnings("ignore:.*left out, because a text in zh or en is missing")
def test_dropped_pairs_have_the_place_in_the_users_table(
    write: Callable[[Path, Pairs], dict[str, Any]] | None,
    place: str,
    pairs: Pairs,
    settings: dict[str, Any],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if write is write_parquet:
        pytest.importorskip("pyarrow")
    changed = [*pairs[:3], ("equal sides", "equal sides"), *pairs[4:]]
    if write is None:
        content = "".join(f"{source}\t{target}\n" for source, target in changed).encode()
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))
    data = {"source": "-", "languages": ("zh", "en")} if write is None else write(tmp_path, changed)
    train(out=tmp_path / "m", settings=settings | {"training.steps": 1}, device="cpu", threads=1, **data)
    (first,) = re.findall(r"1 dropped: .* \(first: (.*)\)\n", capsys.readouterr().err)
    assert first.removeprefix(f"{tmp_path}/") == place
