"""Test `transduce export` of trained language models, encoders and recurrent models, and refused requests."""

import json
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

from transduce.errors import TransduceError
from transduce.exchange import exporters
from transduce.exchange.comparison import EncoderAgreement, Original, choose_trial
from transduce.exchange.export import ExportReport, export
from transduce.inference.generator import load_generator
from transduce.inference.load import open_translator as load_translator
from transduce.interop.onnx import export as onnx
from transduce.model.build import Model
from transduce.model_folder.read import read_any_model_folder
from transduce.search.settings import SearchSettings
from transduce.tasks.train import train
from transduce.text import CorpusFiles, Tokenizer, TokenizerSettings, read_pairs

ROOT = Path(__file__).resolve().parents[2]
MakeModel = Callable[..., Model]
WriteFolder = Callable[..., Path]

if find_spec("transformers") is None or find_spec("onnxruntime") is None or find_spec("ctranslate2") is None:
    pytest.skip("packages are not installed: pip install 'transduce[export,hf]'", allow_module_level=True)
# Ignore warnings of these libraries.
pytestmark = pytest.mark.filterwarnings("default")

SETTINGS: dict[str, Any] = {
    "tokenizer.vocabulary_size": 100,
    "tokenizer.byte_fallback": False,
    "model.d_model": 32,
    "model.d_ff": 48,
    "model.num_heads": 2,
    "training.steps": 12,
    "training.precision": "fp32",
    "training.learning_rate": 0.01,
    "training.warmup_steps": 2,
    "training.validate_every": 12,
    "training.translate_dev": 0,
}
OWN: dict[str, dict[str, Any]] = {
    "language-model": {"task.context": 32, "model.num_decoder_layers": 2, "training.batch_tokens": 512},
    "masked-language-model": {"task.context": 32, "model.num_encoder_layers": 2, "training.batch_tokens": 512},
    "classification": {"task.context": 32, "model.num_encoder_layers": 1, "model.norm_order": "post"},
    "recurrent": {
        "task.kind": "translation",
        "model.kind": "recurrent",
        "model.num_encoder_layers": 1,
        "model.num_decoder_layers": 1,
        "model.attention_score": "general",
        "training.batch_tokens": 512,
    },
}
CLASSES = {
    "language-model": ("GPT2LMHeadModel", "AutoModelForCausalLM"),
    "masked-language-model": ("BertForPreTraining", "AutoModelForPreTraining"),
    "classification": ("BertForSequenceClassification", "AutoModelForSequenceClassification"),
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory, toy_corpus: Path) -> dict[str, Path]:
    """Train a model of each kind for a few steps, and return the folders by name."""
    place = tmp_path_factory.mktemp("kinds")
    sentences = (toy_corpus / "train.en").read_text("utf-8").split("\n")[:200]
    (place / "text.en").write_text("\n".join(sentences) + "\n", "utf-8")
    indented = (f"{'    ' * (number % 3)}{sentence}" for number, sentence in enumerate(sentences))
    (place / "indented.en").write_text("\n".join(indented) + "\n", "utf-8")
    (place / "labels.en").write_text("".join(f"{'tea' if 'tea' in s else 'other'}\n" for s in sentences), "utf-8")
    found = {}
    for name, own in OWN.items():
        files: dict[str, Any] = {"source": place / "text.en"}
        if name == "language-model":
            files = {"source": place / "indented.en"}  # whose spaces are all learnt
        if name == "masked-language-model":
            files |= {"dev_source": place / "text.en"}
        if name == "classification":
            files |= {"target": place / "labels.en", "dev_source": place / "text.en", "dev_target": place / "labels.en"}
        if name == "recurrent":
            files = {"source": toy_corpus / "dev.zh", "target": toy_corpus / "dev.en"}
            files |= {"dev_source": toy_corpus / "dev.zh", "dev_target": toy_corpus / "dev.en"}
        settings = SETTINGS | {"task.kind": name} | own
        train(out=place / name, settings=settings, device="cpu", threads=1, **files)
        found[name] = place / name
    return found


def exported(folder: Path, out: Path, to: str, **options: Any) -> ExportReport:
    report = export(folder, out, to=to, threads=1, **options)
    assert report.float32.largest_difference < 1e-4
    assert [path.name for path in out.parent.iterdir()] == [out.name]
    return report


@pytest.mark.parametrize(
    ("name", "files"),
    [
        ("language-model", ["README.md", "model.onnx", "sentencepiece.model"]),
        ("masked-language-model", ["README.md", "model.onnx", "sentencepiece.model", "task.json"]),
        ("classification", ["README.md", "model.onnx", "sentencepiece.model", "task.json"]),
        ("recurrent", ["README.md", "decoder.onnx", "encoder.onnx", "sentencepiece.model"]),
    ],
)
def test_each_kind_of_model_is_exported_to_onnx_with_its_files(
    folders: dict[str, Path], tmp_path: Path, name: str, files: list[str]
) -> None:
    report = exported(folders[name], tmp_path / "out", "onnx")
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == files
    readme = (tmp_path / "out" / "README.md").read_text("utf-8")
    assert report.measured() in readme
    for graph in (file for file in files if file.endswith(".onnx")):
        assert f"`{graph}`" in readme
    with pytest.raises(TransduceError, match="An export to onnx stores weights as float32, but not as `int8`"):
        export(folders[name], tmp_path / "int8", to="onnx", quantization="int8")


@pytest.mark.parametrize("name", CLASSES)
def test_a_run_folder_opens_in_hugging_face_and_is_exported_with_equal_weights(
    folders: dict[str, Path], tmp_path: Path, name: str
) -> None:
    import transformers

    held, automatic = CLASSES[name]
    said = f"The folder is also one of Hugging Face's class `{held}`: `{automatic}` and `AutoTokenizer` open it."
    assert said in (folders[name] / "README.md").read_text("utf-8")
    report = exported(folders[name], tmp_path / "out", "huggingface")
    if name != "language-model":
        assert isinstance(report.float32, EncoderAgreement)
        assert "the same best tokens and classes for 66 of 66 texts" in str(report)
    for folder in (folders[name], tmp_path / "out"):
        assert type(getattr(transformers, automatic).from_pretrained(folder)).__name__ == held
    assert not (tmp_path / "out" / "checkpoints").exists()
    ours, again = (read_any_model_folder(folder).model.state_dict() for folder in (folders[name], tmp_path / "out"))
    assert all(torch.equal(ours[key], again[key]) for key in ours)


def test_a_model_without_hugging_face_class_names_other_exports_in_its_card(
    folders: dict[str, Path], tmp_path: Path
) -> None:
    said = (
        "No class of Hugging Face's holds this model; `transduce.load` opens it, and `transduce export` writes it for "
        "other programs: `--to onnx`."
    )
    assert said in (folders["recurrent"] / "README.md").read_text("utf-8")
    with pytest.raises(
        TransduceError,
        match=r"classes cannot compute a model with `model.kind` = recurrent: export it to onnx instead\.",
    ):
        export(folders["recurrent"], tmp_path / "out", to="huggingface")
    with pytest.raises(TransduceError, match=r"CTranslate2 cannot compute a model with `model.kind` = encoder"):
        export(folders["classification"], tmp_path / "out", to="ctranslate2")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("quantization", [None, "int8"])
def test_a_language_model_is_exported_to_ctranslate2(
    folders: dict[str, Path], tmp_path: Path, quantization: str | None
) -> None:
    report = exported(folders["language-model"], tmp_path / "out", "ctranslate2", quantization=quantization)
    assert (report.quantized is None) == (quantization is None)
    assert "64 sentences of the run's text and a long one made of them" in str(report)
    assert "ctranslate2.Generator" in (tmp_path / "out" / "README.md").read_text("utf-8")


def test_language_model_exports_are_compared_on_lines_of_one_token_too(
    folders: dict[str, Path], tmp_path: Path
) -> None:
    content = read_any_model_folder(folders["language-model"])
    lines = ["I", "I like tea.", "I"]
    assert [len(ids) > 1 for ids in content.tokenizer.source.encode_batch(lines)] == [False, True, False]
    trial = choose_trial(Original(content, folders["language-model"], 1), lines)
    assert min(map(len, trial.rows)) == 1
    for to in ("ctranslate2", "onnx"):
        (tmp_path / to).mkdir()
        exported(folders["language-model"], tmp_path / to / "out", to, sources=lines)


def test_hugging_face_generate_continues_prompts_equally(folders: dict[str, Path]) -> None:
    import transformers

    folder = folders["language-model"]
    model: Any = transformers.AutoModelForCausalLM.from_pretrained(folder)
    model.eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    generator = load_generator(folder, precision="fp32", device="cpu", threads=1)
    search = SearchSettings(beam_size=1, length_penalty=0.0, max_length=12)
    for prompt in ("I like", "the teacher", "", "        I  like"):
        given = tokenizer(prompt, return_tensors="pt")
        assert given["input_ids"].tolist() == [generator.prompt_ids(prompt)]
        written = model.generate(**given, max_new_tokens=12, max_length=None, do_sample=False)[0]
        text = tokenizer.decode(written, skip_special_tokens=True)
        assert text == generator(prompt, search=search, one_line=True).text.rstrip("\n")


def test_the_example_translates_with_a_recurrent_model(
    folders: dict[str, Path], toy_corpus: Path, tmp_path: Path
) -> None:
    exported(folders["recurrent"], tmp_path / "out", "onnx")
    lines = (toy_corpus / "dev.zh").read_text("utf-8").split("\n")[:4]
    done = subprocess.run(
        [sys.executable, ROOT / "examples" / "onnx_translate.py", tmp_path / "out"],
        input="".join(f"{line}\n" for line in lines).encode(),
        capture_output=True,
        check=True,
    )
    translator = load_translator(folders["recurrent"], precision="fp32", device="cpu", threads=1)
    found = translator(lines, beam_size=1)
    written = done.stdout.decode().removesuffix("\n").split("\n")
    # A model that never ends is stopped by the length of the batch there, and of the sentence here.
    assert [text[:40] for text in written] == [each.text[:40] for each in found]
    assert any(written)


def test_an_export_is_compared_on_the_sources_that_are_passed(folders: dict[str, Path], tmp_path: Path) -> None:
    report = exported(folders["classification"], tmp_path / "out", "onnx", sources=["I like tea.", "", "the fish"])
    assert report.compared_on == "2 sentences of the sources given and a long one made of them"
    with pytest.raises(TransduceError, match=r"References are translations, but the model .* `encoder` and translates"):
        export(folders["classification"], tmp_path / "no", to="onnx", sources=["a"], references=["b"])


SPELT = ["I </s> tea.", "<unk> a", "<pad>", "the </s>fish"]


@pytest.mark.parametrize("joint", [True, False])
def test_hugging_face_reads_names_of_special_tokens_in_sources_as_characters(
    make_model: MakeModel, write_folder: WriteFolder, toy_corpus: Path, tmp_path: Path, joint: bool
) -> None:
    import transformers

    files = CorpusFiles(source=(str(toy_corpus / "train.zh"),), target=(str(toy_corpus / "train.en"),))
    settings = TokenizerSettings(vocabulary_size=400, joint=joint)
    tokenizer = Tokenizer.train(lambda: read_pairs(files), settings, adjust=True)
    model = make_model(tokenizer, norm_order="post", tie_source_target=joint)
    folder, out = write_folder(model, tokenizer, tmp_path / "model"), tmp_path / "exports" / "out"
    out.parent.mkdir()
    exported(folder, out, "huggingface", sources=SPELT)
    theirs = transformers.AutoTokenizer.from_pretrained(out)
    assert theirs(SPELT).input_ids == [
        tokenizer.source.with_special_tokens(tokenizer.source.encode(text)) for text in SPELT
    ]


@pytest.mark.parametrize("name", CLASSES)
def test_exports_succeed_on_texts_that_contain_names_of_special_tokens(
    folders: dict[str, Path], tmp_path: Path, name: str
) -> None:
    exported(folders[name], tmp_path / "out", "huggingface", sources=["I like tea.", *SPELT, "[SEP] a"])


def test_exports_succeed_if_the_vocabulary_cannot_spell_names_of_special_tokens(
    make_model: MakeModel, write_folder: WriteFolder, separate_tokenizer: Tokenizer, tmp_path: Path
) -> None:
    model = make_model(separate_tokenizer, norm_order="post", tie_source_target=False)
    folder, out = write_folder(model, separate_tokenizer, tmp_path / "model"), tmp_path / "exports" / "out"
    out.parent.mkdir()
    exported(folder, out, "huggingface", sources=["我吃鱼。", *SPELT])


# --- what is never left behind ---


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("language-model", r"ONNX was checked and is wrong, .* its log-probability is -?[\d.]+, and the model's own"),
        (
            "masked-language-model",
            r"ONNX was checked and is wrong, .* in text \d+ one of its (states|logits) is -?[\d.]+, and",
        ),
        ("recurrent", r"ONNX was checked and is wrong, .* its log-probability is -?[\d.]+, and the model's own"),
    ],
)
def test_an_export_that_computes_differently_is_refused_and_removed(
    folders: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, message: str
) -> None:
    right = onnx.write_onnx

    def wrong(model: Any, folder: Path) -> None:
        with torch.no_grad():
            model.source_weight[9] += 0.05
            right(model, folder)
            model.source_weight[9] -= 0.05

    monkeypatch.setattr(exporters, "write_onnx", wrong)
    with pytest.raises(TransduceError, match=message):
        export(folders[name], tmp_path / "out", to="onnx", threads=1)
    assert list(tmp_path.iterdir()) == []


def test_a_model_with_two_vocabularies_is_exported_to_hugging_face(
    make_model: MakeModel, write_folder: WriteFolder, separate_tokenizer: Tokenizer, tmp_path: Path
) -> None:
    folder, out = tmp_path / "model", tmp_path / "exports" / "out"
    out.parent.mkdir()
    write_folder(make_model(separate_tokenizer, norm_order="post", tie_source_target=False), separate_tokenizer, folder)
    exported(folder, out, "huggingface")
    config = json.loads((out / "config.json").read_bytes())
    assert (config["vocab_size"], config["decoder_vocab_size"]) == (
        separate_tokenizer.source.size,
        separate_tokenizer.target.size,
    )
    assert {"source.spm", "target.spm", "vocab.json", "target_vocab.json"} <= {path.name for path in out.iterdir()}
