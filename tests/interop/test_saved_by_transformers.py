"""Test importing a model that was exported to Hugging Face, trained further there and saved."""

import shutil
from pathlib import Path

import pytest
import torch

import transduce
from transduce.commands.main import main
from transduce.errors import TransduceError
from transduce.exchange.import_folder import import_model_folder

Capture = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def saved_again(trained: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return an exported folder that transformers has opened, changed and saved, as after fine-tuning."""
    transformers = pytest.importorskip("transformers", reason="needs transformers: pip install 'transduce[hf]'")
    folder = tmp_path_factory.mktemp("again")
    transduce.export(trained, folder / "exported", to="huggingface")
    model = transformers.AutoModelForSeq2SeqLM.from_pretrained(folder / "exported")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.0 + 1e-3 * torch.randn_like(parameter))
    model.save_pretrained(folder / "saved")
    transformers.AutoTokenizer.from_pretrained(folder / "exported").save_pretrained(folder / "saved")
    return folder


def test_a_folder_saved_by_transformers_is_imported_with_copied_tokenizer_files(
    saved_again: Path, toy_corpus: Path, tmp_path: Path
) -> None:
    transformers = pytest.importorskip("transformers")
    folder = tmp_path / "saved"
    shutil.copytree(saved_again / "saved", folder)
    for name in ("tokenizer_settings.json", "sentencepiece.model"):
        shutil.copy(saved_again / "exported" / name, folder)
    report = import_model_folder(folder, tmp_path / "back", source_language="zh", target_language="en")
    assert (report.source_language, report.target_language) == ("zh", "en")
    translator = transduce.load(tmp_path / "back", task="translation", precision="fp32", device="cpu", threads=1)
    theirs = transformers.AutoModelForSeq2SeqLM.from_pretrained(folder).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    for sentence in (toy_corpus / "dev.zh").read_text("utf-8").split("\n")[:5]:
        ids = tokenizer(sentence, return_tensors="pt")
        found = theirs.generate(**ids, num_beams=1, do_sample=False, max_new_tokens=20)
        assert translator(sentence, beam_size=1, max_length=20).text == tokenizer.decode(
            found[0], skip_special_tokens=True
        )


def test_without_tokenizer_files_the_error_names_the_files_to_copy(
    saved_again: Path, tmp_path: Path, capsys: Capture
) -> None:
    with pytest.raises(TransduceError, match=r"copy tokenizer_settings\.json and sentencepiece\.model or source\.spm"):
        import_model_folder(saved_again / "saved", tmp_path / "back")
    assert not (tmp_path / "back").exists()
    assert main(["translate", str(saved_again / "saved"), "--threads", "1"]) == 2
    assert "was saved by Hugging Face's library, which keeps no manifest: bring it in by" in capsys.readouterr().err
    with pytest.raises(TransduceError, match="holds a model of transduce already"):
        import_model_folder(saved_again / "exported", tmp_path / "back")


def test_a_run_folder_overwritten_by_transformers_is_refused_until_it_is_imported(
    saved_again: Path, trained: Path, tmp_path: Path, capsys: Capture
) -> None:
    place = tmp_path / "place"
    shutil.copytree(trained, place)
    for name in ("config.json", "generation_config.json", "model.safetensors"):
        shutil.copy(saved_again / "saved" / name, place)
    assert main(["translate", str(place), "--threads", "1"]) == 2
    told = f"{place} was saved by Hugging Face's library, which keeps no manifest: bring it in by `transduce import"
    assert told in capsys.readouterr().err
    report = import_model_folder(place, tmp_path / "back")
    assert (report.source_language, report.target_language) == ("zh", "en")
    for name in ("settings.toml", "training_lines.json", "language_profiles.json"):
        assert (tmp_path / "back" / name).read_bytes() == (trained / name).read_bytes()
        assert (
            name == "settings.toml" or (saved_again / "exported" / name).read_bytes() == (trained / name).read_bytes()
        )
    transduce.load(tmp_path / "back", task="translation", precision="fp32", device="cpu", threads=1)
