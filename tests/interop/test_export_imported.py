"""Test that imported models are exported with the tokenizer that they came with."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import transduce
from transduce.commands.main import main
from transduce.errors import TransduceError
from transduce.exchange.comparison import Agreement
from transduce.exchange.import_folder import import_model_folder
from transduce.interop.hugging_face.imported_tokenizer import ImportedTokenizer
from transduce.model.build import Model
from transduce.search.settings import SearchSettings
from transduce.text.tokenizer import Tokenizer

MakeModel = Callable[..., Model]
WriteFolder = Callable[..., Path]

LINES = ["我喜欢茶。", "I like 茶 tea.", "naïve 42"]


@pytest.fixture
def marian(make_model: MakeModel, write_folder: WriteFolder, small_tokenizer: Tokenizer, tmp_path: Path) -> Path:
    """Return a folder like those of OPUS-MT models, with random weights."""
    made = write_folder(make_model(norm_order="post"), small_tokenizer, tmp_path / "made")
    folder = tmp_path / "marian"
    folder.mkdir()
    shutil.copyfile(made / "model.safetensors", folder / "model.safetensors")
    vocabulary = small_tokenizer.source
    for name in ("source.spm", "target.spm"):
        (folder / name).write_bytes(vocabulary.model_bytes)
    names = {"eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}
    config: dict[str, Any] = json.loads((made / "config.json").read_text("utf-8"))
    del config["transduce"]
    documents: dict[str, dict[str, Any]] = {
        "config.json": config,
        "vocab.json": {vocabulary.token(id): id for id in range(vocabulary.size)},
        "tokenizer_config.json": {"tokenizer_class": "MarianTokenizer", "source_lang": "zh", "target_lang": "en"}
        | names,
        "special_tokens_map.json": names,
        "generation_config.json": {
            "num_beams": 6,
            "no_repeat_ngram_size": 2,
            "renormalize_logits": True,
            "forced_eos_token_id": 1,
            "decoder_start_token_id": 0,
            "eos_token_id": 1,
            "pad_token_id": 0,
            "bad_words_ids": [[0]],
        },
    }
    for name, content in documents.items():
        (folder / name).write_text(json.dumps(content), "utf-8")
    return folder


@pytest.fixture
def imported(marian: Path, tmp_path: Path) -> Path:
    out = tmp_path / "imported"
    import_model_folder(marian, out)
    return out


def test_importing_keeps_the_tokenizer_files_of_the_model(marian: Path, imported: Path) -> None:
    for name in ("source.spm", "target.spm", "vocab.json", "special_tokens_map.json", "generation_config.json"):
        assert (imported / name).read_bytes() == (marian / name).read_bytes()
    assert isinstance(
        transduce.load(imported, task="translation", device="cpu", threads=1).tokenizer, ImportedTokenizer
    )


@pytest.mark.filterwarnings("ignore:Recommended. pip install sacremoses:UserWarning")
@pytest.mark.parametrize("name", ["marian", "imported"])
def test_an_imported_model_is_exported_to_hugging_face_with_its_tokenizer(
    name: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    transformers = pytest.importorskip("transformers", reason="needs transformers: pip install 'transduce[hf]'")
    folder: Path = request.getfixturevalue(name)
    report = transduce.export(folder, tmp_path / "out", to="huggingface", sources=LINES, threads=1)
    assert report.float32.largest_difference < 1e-5
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    own = transduce.load(folder, task="translation", device="cpu", threads=1).tokenizer.source
    assert theirs(LINES)["input_ids"] == [own.with_special_tokens(ids) for ids in own.encode_batch(LINES)]
    assert json.loads((tmp_path / "out" / "generation_config.json").read_text("utf-8"))["num_beams"] == 6


@pytest.mark.filterwarnings("ignore:Recommended. pip install sacremoses:UserWarning")
def test_a_fine_tuned_imported_model_is_exported_with_its_tokenizer_and_card(
    imported: Path, toy_corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    text = ["--source", str(toy_corpus / "train.zh"), "--target", str(toy_corpus / "train.en")]
    steps = ["--steps", "2", "--set", "training.batch_tokens=300", "--device", "cpu", "--threads", "1"]
    assert main(["train", "--init-from", str(imported), *text, "--out", str(run), *steps]) == 0
    for name in ("source.spm", "target.spm", "vocab.json", "tokenizer_config.json"):
        assert (run / name).is_file()
    opens = "class `MarianMTModel`: `AutoModelForSeq2SeqLM` and `AutoTokenizer` open it."
    assert opens in (run / "README.md").read_text("utf-8")
    old_card = (run / "README.md").read_text("utf-8").split("\n\n")
    old_card = ["Hugging Face has no such tokenizer; …" if opens in each else each for each in old_card]
    (run / "README.md").write_text("\n\n".join(old_card), "utf-8")
    pytest.importorskip("transformers", reason="needs transformers: pip install 'transduce[hf]'")
    transduce.export(run, tmp_path / "out", to="huggingface", sources=LINES, threads=1)
    card = (tmp_path / "out" / "README.md").read_text("utf-8")
    assert opens in card
    assert "library_name: transformers\n" in card
    assert "no such tokenizer" not in card
    for name in ("source.spm", "target.spm", "vocab.json"):
        (run / name).unlink()
    manifest = json.loads((run / "manifest.json").read_text("utf-8"))  # as of a run that did not copy the files
    manifest["sha256"] = {name: each for name, each in manifest["sha256"].items() if not name.endswith(".spm")}
    (run / "manifest.json").write_text(json.dumps(manifest), "utf-8")
    capsys.readouterr()
    assert main(["export", str(run), str(tmp_path / "again"), "--to", "huggingface"]) == 2
    assert f"from {imported} to {run}" in capsys.readouterr().err.replace("\n", " ")


def stated_positions(folder: Path) -> int:
    positions: int = json.loads((folder / "config.json").read_text("utf-8"))["max_position_embeddings"]
    return positions


@pytest.mark.filterwarnings("ignore:Recommended. pip install sacremoses:UserWarning")
def test_an_export_states_the_number_of_positions_of_the_original(
    marian: Path, toy_corpus: Path, tmp_path: Path
) -> None:
    pytest.importorskip("transformers", reason="needs transformers: pip install 'transduce[hf]'")
    config = json.loads((marian / "config.json").read_text("utf-8"))
    (marian / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 77}), "utf-8")
    import_model_folder(marian, tmp_path / "imported")
    text = ["--source", str(toy_corpus / "train.zh"), "--target", str(toy_corpus / "train.en")]
    steps = ["--steps", "2", "--set", "training.batch_tokens=300", "--device", "cpu", "--threads", "1"]
    assert main(["train", "--init-from", str(marian), *text, "--out", str(tmp_path / "run"), *steps]) == 0
    for folder in (marian, tmp_path / "imported", tmp_path / "run"):
        transduce.export(folder, tmp_path / f"{folder.name}-out", to="huggingface", sources=LINES, threads=1)
        assert stated_positions(folder) == stated_positions(tmp_path / f"{folder.name}-out") == 77


@pytest.mark.usefixtures("bart")
def test_an_exported_language_model_states_the_context_of_the_original(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    tokenizer = transformers.GPT2Tokenizer.from_pretrained(tmp_path, eos_token="</s>", unk_token="<unk>")
    sizes = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2}
    ids = {"bos_token_id": 2, "eos_token_id": 2}
    config = transformers.LlamaConfig(vocab_size=len(tokenizer), max_position_embeddings=5000, **sizes, **ids)
    for part in (transformers.LlamaForCausalLM(config), tokenizer):
        part.save_pretrained(tmp_path / "llama")
    import_model_folder(tmp_path / "llama", tmp_path / "imported")
    for folder in (tmp_path / "llama", tmp_path / "imported"):
        transduce.export(folder, tmp_path / f"{folder.name}-out", to="huggingface", sources=LINES, threads=1)
        assert stated_positions(folder) == stated_positions(tmp_path / f"{folder.name}-out") == 5000


@pytest.fixture
def bart(toy_corpus: Path, tmp_path: Path) -> Path:
    """Return the folder of a BART with random weights, 700 positions and a byte-level tokenizer.json."""
    transformers = pytest.importorskip("transformers", reason="needs transformers: pip install 'transduce[hf]'")
    trained, names = pytest.importorskip("tokenizers").ByteLevelBPETokenizer(), ["<s>", "<pad>", "</s>", "<unk>"]
    lines = [line for side in ("zh", "en") for line in (toy_corpus / f"train.{side}").read_text("utf-8").split("\n")]
    trained.train_from_iterator(lines, vocab_size=300, show_progress=False, special_tokens=names)
    trained.save_model(str(tmp_path))
    tokenizer = transformers.BartTokenizer.from_pretrained(tmp_path, mask_token="<unk>")
    sizes = {"d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "encoder_ffn_dim": 24, "decoder_ffn_dim": 24}
    heads = {"encoder_attention_heads": 2, "decoder_attention_heads": 2}
    config = transformers.BartConfig(vocab_size=len(tokenizer), max_position_embeddings=700, **sizes, **heads)
    transformers.BartForConditionalGeneration(config).save_pretrained(tmp_path / "bart")
    tokenizer.save_pretrained(tmp_path / "bart")
    return tmp_path / "bart"


@pytest.mark.parametrize("copied", [False, True], ids=["carried", "copied"])
def test_symbols_that_fine_tuning_adds_are_exported(
    copied: bool, bart: Path, toy_corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    text = ["--source", str(toy_corpus / "train.zh"), "--target", str(toy_corpus / "train.en")]
    steps = ["--steps", "2", "--set", "training.batch_tokens=300", "--device", "cpu", "--threads", "1"]
    symbols = ["--user-symbols", "<X>", "zzq", "tokenizer_class"]  # the last is also in its settings
    assert main(["train", "--init-from", str(bart), *text, "--out", str(run), *symbols, *steps]) == 0
    if copied:  # as the message asks for if the run has no such file
        shutil.copyfile(bart / "tokenizer.json", run / "tokenizer.json")
    transduce.export(run, tmp_path / "out", to="huggingface", sources=LINES, threads=1)
    theirs = pytest.importorskip("transformers").AutoTokenizer.from_pretrained(tmp_path / "out")
    own = transduce.load(run, task="translation", device="cpu", threads=1).tokenizer.source
    lines = [*LINES, "I<X> zzq <X>", "zzqq", "a tokenizer_class"]
    assert theirs(lines)["input_ids"] == [own.with_special_tokens(ids) for ids in own.encode_batch(lines)]
    assert own.id("<X>") in theirs(lines)["input_ids"][3]
    (run / "tokenizer.json").unlink()
    for name in ("vocab.json", "merges.txt"):  # which cannot have further tokens
        shutil.copyfile(tmp_path / name, run / name)
    assert main(["export", str(run), str(tmp_path / "again"), "--to", "huggingface"]) == 2
    assert "must have `<X>` with the id 300, but lacks it" in capsys.readouterr().err.replace("\n", " ")


def test_export_to_hugging_face_without_the_tokenizer_files_is_refused(
    imported: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("source.spm", "target.spm", "vocab.json"):
        (imported / name).unlink()
    assert main(["export", str(imported), str(tmp_path / "out"), "--to", "huggingface"]) == 2
    assert "its own files are not there: copy tokenizer_config.json and the vocabulary" in capsys.readouterr().err


def test_a_tokenizer_file_that_links_out_of_the_folder_is_refused(marian: Path, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("{}", "utf-8")
    (marian / "merges.txt").symlink_to(secret)  # which Marian has no use for
    with pytest.raises(TransduceError, match="is a link that leads out of its folder"):
        import_model_folder(marian, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def run_readme(folder: Path, monkeypatch: pytest.MonkeyPatch, **changes: str) -> list[str]:
    """Run the code in an exported folder's README with some words replaced, and return what it prints."""
    text = (folder / "README.md").read_text("utf-8")
    code = "\n".join(line[4:] for line in text.split("\n") if line.startswith("    "))
    for old, new in changes.items():
        assert old in code
        code = code.replace(old, new)
    monkeypatch.chdir(folder)
    printed: list[str] = []
    exec(code, {"lines": LINES, "print": printed.append})
    return printed


def test_the_code_in_the_card_of_a_ctranslate2_export_translates(
    imported: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("ctranslate2", reason="needs ctranslate2: pip install 'transduce[export]'")
    out = tmp_path / "out"
    transduce.export(imported, out, to="ctranslate2", sources=LINES, threads=1)
    assert "foreign_tokenizer.json" in {path.name for path in out.iterdir()}
    assert len(run_readme(out, monkeypatch)) == len(LINES)


@pytest.mark.parametrize("form", ["ctranslate2", "onnx"])
def test_a_multilingual_model_is_exported_with_its_target_language(
    form: str, nllb: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = {"ctranslate2": "ctranslate2", "onnx": "onnxruntime"}[form]
    pytest.importorskip(package, reason=f"needs {package}: pip install 'transduce[export]'")
    out = tmp_path / "out"
    import_model_folder(nllb, tmp_path / "in", target_language="deu_Latn")
    report = transduce.export(tmp_path / "in", out, to=form, sources=LINES, references=LINES, threads=1)
    assert isinstance(report.float32, Agreement)
    assert report.float32.same_translations == report.float32.sentences == len(LINES) + 1
    assert report.model_scores is not None
    assert report.export_scores is not None
    assert report.model_scores.bleu.value == report.export_scores.bleu.value
    if form == "ctranslate2":
        printed = run_readme(out, monkeypatch, **{"beam_size=4": "beam_size=1, max_decoding_length=8"})
        translator = transduce.load(tmp_path / "in", task="translation", precision="fp32", device="cpu", threads=1)
        greedy = SearchSettings(beam_size=1, max_length=8)
        translations = [translator(line, search=greedy) for line in LINES]
        # The translator copies characters that the vocabulary lacks, which the export cannot do.
        assert [text for text, each in zip(printed, translations, strict=True) if not each.protected] == [
            each.text for each in translations if not each.protected
        ]
    else:
        assert "Every translation begins with\n`deu_Latn`" in (out / "README.md").read_text("utf-8")
