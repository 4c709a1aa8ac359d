"""Test `transduce export`: every format of a trained model, compared before it is published; and refused requests."""

import importlib.util
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from transduce.commands.main import main
from transduce.errors import TransduceError
from transduce.exchange import exporters
from transduce.exchange.comparison import Agreement, Original
from transduce.exchange.export import _temporary_folder, export
from transduce.inference.translator import Translator
from transduce.interop import ctranslate2
from transduce.interop.hugging_face.export import tokenizer_files
from transduce.interop.onnx import export as onnx
from transduce.model.build import Model
from transduce.model_folder import write
from transduce.model_folder.read import Manifest, ModelFolder
from transduce.model_folder.write import write_model_folder
from transduce.text.tokenizer import Tokenizer, tokenizer_json

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = {"ctranslate2": ("ctranslate2",), "onnx": ("onnx", "onnxruntime"), "huggingface": ("transformers",)}
MakeTranslator = Callable[..., Translator]
MakeModel = Callable[..., Any]

# Ignore warnings of these libraries.
pytestmark = pytest.mark.filterwarnings("default")


def need(form: str) -> None:
    """Skip a test if packages for an export format are missing."""
    missing = [name for name in PACKAGES[form] if importlib.util.find_spec(name) is None]
    if missing:
        pytest.skip(f"{' and '.join(missing)} not installed: pip install 'transduce[export,hf]'")


def write_folder(translator: Translator, folder: Path) -> Path:
    write_model_folder(
        folder,
        weights={name: parameter.detach() for name, parameter in translator.model.named_parameters()},
        config=translator.model.config,
        tokenizer=translator.tokenizer,
        languages=("zh", "en"),
        documents={},
    )
    return folder


def read_lines(path: Path) -> list[str]:
    return path.read_text("utf-8").removesuffix("\n").split("\n")


# --- what comes out ---


@pytest.mark.parametrize(
    ("form", "files"),
    [
        ("ctranslate2", ["README.md", "config.json", "model.bin", "sentencepiece.model", "shared_vocabulary.json"]),
        ("onnx", ["README.md", "decoder.onnx", "encoder.onnx", "sentencepiece.model"]),
        (
            "huggingface",
            [
                *("README.md", "config.json", "generation_config.json", "language_profiles.json", "manifest.json"),
                *(
                    "model.safetensors",
                    "sentencepiece.model",
                    "settings.toml",
                    "special_tokens_map.json",
                    "tokenizer.json",
                ),
                *("tokenizer_config.json", "tokenizer_settings.json", "training_lines.json"),
            ],
        ),
    ],
)
def test_a_trained_model_is_exported_to_each_format_and_agrees(
    trained: Path, tmp_path: Path, form: str, files: list[str]
) -> None:
    need(form)
    report = export(trained, tmp_path / "out", to=form, threads=1)
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == files
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert report.bytes >= sum((tmp_path / "out" / name).stat().st_size for name in files if name != "README.md")
    assert report.compared_on == "50 sentences of the run's dev set and a long one made of them"
    assert isinstance(report.float32, Agreement)
    assert report.float32.sentences == report.float32.same_translations == 51
    assert 0.0 < report.float32.largest_difference < 1e-4
    assert f"largest difference {report.float32.largest_difference:.2g} nats" in str(report)


def test_the_exported_hugging_face_folder_is_a_model_folder(
    trained: Path, translator: Translator, toy_corpus: Path, tmp_path: Path
) -> None:
    need("huggingface")
    export(trained, tmp_path / "out", to="huggingface", threads=1)
    from transduce.inference.load import open_translator

    lines = read_lines(toy_corpus / "dev.zh")[:5]
    again = open_translator(tmp_path / "out", precision="fp32", device="cpu", threads=1)
    assert [each.text for each in again(lines)] == [each.text for each in translator(lines)]


def test_rounded_weights_are_compared_and_scored(trained: Path, toy_corpus: Path, tmp_path: Path) -> None:
    need("ctranslate2")
    report = export(
        trained,
        tmp_path / "int8",
        to="ctranslate2",
        quantization="int8",
        sources=[*read_lines(toy_corpus / "dev.zh"), ""],
        references=[*read_lines(toy_corpus / "dev.en"), ""],
        threads=1,
    )
    assert isinstance(report.quantized, Agreement)
    assert isinstance(report.float32, Agreement)
    assert report.quantized.mean_difference > report.float32.mean_difference
    assert report.model_scores is not None
    assert report.export_scores is not None
    assert report.export_scores.sentences == 50  # without the line that is empty on both sides
    difference = report.export_scores.bleu.value - report.model_scores.bleu.value
    assert abs(difference) < 20
    measured = (
        f"greedy BLEU {report.export_scores.bleu.value:.2f}, the model's own {report.model_scores.bleu.value:.2f}, "
        f"difference {difference:+.2f}  nrefs:1|"
    )
    assert measured in str(report)
    assert measured in (tmp_path / "int8" / "README.md").read_text("utf-8")
    plain = export(trained, tmp_path / "float32", to="ctranslate2", threads=1)
    assert report.bytes < 0.6 * plain.bytes


def test_the_models_own_score_is_that_of_greedy_search(
    trained: Path, translator: Translator, toy_corpus: Path, tmp_path: Path
) -> None:
    need("onnx")
    from transduce.evaluation.scores import lines_sha256

    sources, references = (read_lines(toy_corpus / f"dev.{side}") for side in ("zh", "en"))
    report = export(trained, tmp_path / "out", to="onnx", sources=sources, references=references, threads=1)
    own = [found.text for found in translator(sources, beam_size=1)]
    assert report.model_scores is not None
    assert report.model_scores.hypothesis_sha256 == lines_sha256(own)
    assert report.export_scores == report.model_scores


def test_without_a_dev_set_random_tokens_are_compared(make_translator: MakeTranslator, tmp_path: Path) -> None:
    need("onnx")
    folder = write_folder(make_translator(positions="rotary", norm="rms"), tmp_path / "model")
    report = export(folder, tmp_path / "out", to="onnx", threads=1)
    assert "32 sentences of random tokens" in report.compared_on
    assert report.float32.largest_difference < 1e-4


def test_learned_positions_limit_the_length_of_compared_texts(make_translator: MakeTranslator, tmp_path: Path) -> None:
    need("onnx")
    folder = write_folder(make_translator(positions="learned", max_positions=20), tmp_path / "model")
    export(folder, tmp_path / "out", to="onnx", threads=1)
    assert "A text can have 20 tokens." in (tmp_path / "out" / "README.md").read_text("utf-8")


def test_exports_of_two_vocabularies_hold_both_sentencepiece_files(
    make_model: MakeModel, toy_corpus: Path, tmp_path: Path
) -> None:
    from transduce.text.corpus import CorpusFiles, read_pairs
    from transduce.text.sentencepiece_model import TokenizerSettings
    from transduce.text.tokenizer import Tokenizer

    files = CorpusFiles(source=(str(toy_corpus / "train.zh"),), target=(str(toy_corpus / "train.en"),))
    settings = TokenizerSettings(vocabulary_size=80, joint=False, byte_fallback=False)
    tokenizer = Tokenizer.train(lambda: read_pairs(files), settings, adjust=True)
    sizes = {"source_vocabulary_size": tokenizer.source.size, "target_vocabulary_size": tokenizer.target.size}
    model = make_model(**sizes, tie_source_target=False)
    folder = write_folder(Translator(model, tokenizer), tmp_path / "model")
    for form in ("ctranslate2", "onnx"):
        need(form)
        export(folder, tmp_path / form, to=form, threads=1)
        assert {"source.spm", "target.spm"} <= {path.name for path in (tmp_path / form).iterdir()}
    with pytest.raises(TransduceError, match="tie_source_target` = false: export it to ctranslate2 or onnx instead"):
        export(folder, tmp_path / "hf", to="huggingface", threads=1)


# --- what is never left behind ---


def corrupt_onnx(patch: pytest.MonkeyPatch) -> None:
    right = onnx.build_decoder

    def wrong(model: Any) -> Any:
        with torch.no_grad():
            model.decoder_layers[1].feed_forward.outer.bias[3] += 0.01
        try:
            return right(model)
        finally:
            with torch.no_grad():
                model.decoder_layers[1].feed_forward.outer.bias[3] -= 0.01

    patch.setattr(onnx, "build_decoder", wrong)


def corrupt_ctranslate2(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ctranslate2, "position_encoding_table", lambda *_: torch.zeros(1024, 32))


def corrupt_quantization(patch: pytest.MonkeyPatch) -> None:
    right = ctranslate2.write_ctranslate2

    def wrong(model: Any, *arguments: Any, quantization: str) -> None:
        if quantization == "int8":
            with torch.no_grad():
                model.source_weight.mul_(-1.0)
        right(model, *arguments, quantization=quantization)
        if quantization == "int8":
            with torch.no_grad():
                model.source_weight.mul_(-1.0)

    patch.setattr(exporters, "write_ctranslate2", wrong)


def corrupt_hugging_face(patch: pytest.MonkeyPatch) -> None:
    right = tokenizer_files

    def wrong(tokenizer: Tokenizer, *arguments: Any) -> dict[str, Any]:
        text = json.dumps(tokenizer_json(tokenizer.source), ensure_ascii=False)
        return right(tokenizer, *arguments) | {"tokenizer.json": json.loads(text.replace("喜", "欢"))}

    patch.setattr(write, "tokenizer_files", wrong)


@pytest.mark.parametrize(
    ("form", "quantization", "corrupt", "message"),
    [
        (
            "onnx",
            None,
            corrupt_onnx,
            r"ONNX was checked and is wrong, .* its log-probability is -?[\d.]+, and the model",
        ),
        ("ctranslate2", None, corrupt_ctranslate2, "CTranslate2 was checked and is wrong, so nothing was written"),
        ("ctranslate2", "int8", corrupt_quantization, "quantization changes the log-probability of a token by"),
        ("huggingface", None, corrupt_hugging_face, "its tokenizer splits .* into other tokens"),
    ],
)
def test_an_export_that_computes_differently_is_refused_and_removed(
    trained: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    form: str,
    quantization: str | None,
    corrupt: Callable[[pytest.MonkeyPatch], None],
    message: str,
) -> None:
    need(form)
    corrupt(monkeypatch)
    with pytest.raises(TransduceError, match=message):
        export(trained, tmp_path / "new" / "out", to=form, quantization=quantization, threads=1)
    assert list(tmp_path.iterdir()) == []


def test_leftovers_of_a_killed_export_are_removed(trained: Path, tmp_path: Path) -> None:
    need("onnx")
    (tmp_path / ".partial-out").mkdir()
    (tmp_path / ".partial-out" / "half.onnx").write_bytes(b"half")
    export(trained, tmp_path / "out", to="onnx", threads=1)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert not (tmp_path / "out" / "half.onnx").exists()


# --- what is refused at once ---


@pytest.mark.parametrize(
    ("form", "package", "extra"),
    [("ctranslate2", "ctranslate2", "export"), ("onnx", "onnx", "export"), ("huggingface", "transformers", "hf")],
)
def test_a_missing_package_is_named_with_its_extra(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str, package: str, extra: str
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(TransduceError, match=rf"needs the package {package}, .* pip install 'transduce\[{extra}\]'"):
        export(trained, tmp_path / "out", to=form, threads=1)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"to": "tflite"}, "exported to ctranslate2, onnx, huggingface, but not to `tflite`"),
        ({"to": "onnx", "quantization": "int8"}, "to onnx stores weights as float32, but not as `int8`"),
        ({"to": "ctranslate2", "quantization": "int4"}, "but not as `int4`"),
        ({"to": "onnx", "sources": ["a"], "references": ["a", "b"]}, "1 .* 2"),
    ],
)
def test_unsupported_formats_and_options_are_refused(
    trained: Path, tmp_path: Path, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(TransduceError, match=message):
        export(trained, tmp_path / "out", threads=1, **options)
    assert list(tmp_path.iterdir()) == []


def test_an_existing_folder_is_not_overwritten(trained: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    with pytest.raises(TransduceError, match=r"makes a new folder, but .*out exists: name another"):
        export(trained, tmp_path / "out", to="onnx", threads=1)
    (tmp_path / "file").touch()
    with pytest.raises(TransduceError, match=r"file/out cannot be written \(Not a directory\): name another folder"):
        export(trained, tmp_path / "file" / "out", to="onnx", threads=1)


def test_missing_parent_folders_are_created(trained: Path, tmp_path: Path) -> None:
    need("huggingface")
    export(trained, tmp_path / "some" / "new" / "out", to="huggingface", threads=1)
    assert (tmp_path / "some" / "new" / "out" / "config.json").exists()
    assert [path.name for path in (tmp_path / "some" / "new").iterdir()] == ["out"]


@pytest.mark.parametrize(
    ("form", "changes", "message"),
    [
        (
            "ctranslate2",
            {"d_v": 8},
            r"CTranslate2 cannot compute a model with `model.d_v` = 8: export it to onnx instead\.",
        ),
        ("ctranslate2", {"norm": "batch"}, r"with `model.norm` = batch: export it to onnx instead\."),
        (
            "huggingface",
            {"positions": "rotary", "norm": "rms"},
            r"with `model.norm` = rms, `model.positions` = rotary: export it to ctranslate2 or onnx instead\.",
        ),
        (
            "huggingface",
            {"positions": "learned", "embedding_norm": True},
            r"with `model.position_offset` = 0: .* onnx instead, or train one with `model.position_offset` = 2\.",
        ),
        (
            "huggingface",
            {"positions": "learned"},
            r"`model.embedding_norm` = false: .* with `model.position_offset` = 2, `model.embedding_norm` = true\.",
        ),
        ("huggingface", {"attention_window": 3}, r"`model.attention_window` = 3: export it to onnx instead\."),
    ],
)
def test_a_model_that_a_format_cannot_compute_names_one_that_can(
    make_translator: MakeTranslator,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    form: str,
    changes: dict[str, Any],
    message: str,
) -> None:
    translator = make_translator(**changes)
    manifest = Manifest(format_version=1, versions={}, source_language="zh", target_language="en", sha256={})
    original = Original(ModelFolder[Model](translator.model, translator.tokenizer, manifest), tmp_path, 1)
    monkeypatch.setitem(sys.modules, "ctranslate2", None)  # asked for only when it is needed
    with pytest.raises(TransduceError, match=message):
        exporters.exporter_for(form, original).write(tmp_path, "float32")


def test_an_export_to_hugging_face_rewrites_a_missing_tokenizer_json(trained: Path, tmp_path: Path) -> None:
    need("huggingface")
    shutil.copytree(trained, tmp_path / "model", ignore=shutil.ignore_patterns("checkpoints", "corpus*"))
    (tmp_path / "model" / "tokenizer.json").unlink()
    export(tmp_path / "model", tmp_path / "out", to="huggingface", threads=1)
    written = (tmp_path / "out" / "tokenizer.json").read_bytes()
    assert written == (trained / "tokenizer.json").read_bytes()


# --- the command, and the example ---


def test_the_command_prints_and_writes_the_comparison(
    trained: Path, toy_corpus: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    need("onnx")
    arguments = ["export", str(trained), str(tmp_path / "out"), "--to", "onnx", "--threads", "1"]
    arguments += ["--source", str(toy_corpus / "dev.zh"), "--reference", str(toy_corpus / "dev.en")]
    assert main([*arguments, "--json", str(tmp_path / "report.json")]) == 0
    printed = capfd.readouterr().out
    assert "51 of 51 greedy translations are the same" in printed
    assert "difference +0.00" in printed
    content = json.loads((tmp_path / "report.json").read_bytes())
    assert content["format"] == "onnx"
    assert content["float32"]["largest_difference"] < 1e-4


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--reference", "dev.en"], "pass --source too"),
        (["--device", "cuda"], "needs --device cpu, but it is cuda: leave it out"),
        (["--precision", "bf16"], "needs --precision fp32, but it is bf16: leave it out"),
    ],
)
def test_options_that_the_command_refuses(
    trained: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], options: list[str], message: str
) -> None:
    assert main(["export", str(trained), str(tmp_path / "out"), "--to", "onnx", *options]) == 2
    assert message in capfd.readouterr().err


def test_the_example_translates_with_onnxruntime_and_numpy_alone(
    trained: Path, translator: Translator, toy_corpus: Path, tmp_path: Path
) -> None:
    need("onnx")
    export(trained, tmp_path / "out", to="onnx", threads=1)
    example = ROOT / "examples" / "onnx_translate.py"
    assert example.read_text("utf-8").count("\n") <= 60
    lines = [*read_lines(toy_corpus / "dev.zh")[:7], "我", ""]
    guard = "import sys, runpy; sys.modules['torch'] = sys.modules['transduce'] = None; del sys.argv[0]; "
    done = subprocess.run(
        [sys.executable, "-c", f"{guard} runpy.run_path(sys.argv[0], run_name='__main__')", example, tmp_path / "out"],
        input="".join(f"{line}\n" for line in lines).encode(),
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()
    found = done.stdout.decode("utf-8").removesuffix("\n").split("\n")
    assert found[:-1] == [each.text for each in translator(lines[:-1], beam_size=1)]


def test_a_full_disk_is_reported_with_the_folders_name(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No space left") as raised, _temporary_folder(tmp_path / "out"):
        raise OSError(28, "No space left on device")
    assert raised.value.filename == str(tmp_path / "out")
    assert list(tmp_path.iterdir()) == []
