"""Test that imported Hugging Face decoders generate as `generate` does: the same prompts, ends and text."""

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import transduce
from transduce.commands.main import main
from transduce.exchange.import_folder import import_model_folder
from transduce.inference.generator import Generator, load_generator
from transduce.search.settings import SamplingSettings, SearchSettings

PROMPTS = ["I like", "the fish is big.\nnobody eats", "\n\nif (x) {\n    y", "one line\n", " "]
GREEDY = SearchSettings(beam_size=1, max_length=24)
FAMILIES = ["GPT2LMHeadModel", "OPTForCausalLM", "LlamaForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM"]
FAMILIES += ["GemmaForCausalLM"]
# Classes of models that are exported as another class, which computes the same.
RENAMED = {"Phi3ForCausalLM": "LlamaForCausalLM"}
MakeFolder = Callable[..., Path]


def peers() -> Any:
    return pytest.importorskip("transformers", reason="needs transformers: pip install 'transduce[hf]'")


def continued(folder: Path, prompt: str, most: int) -> tuple[str, int]:
    """Return transformers' continuation, and its number of tokens including the end symbol."""
    transformers = peers()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder).eval()
    ids = tokenizer(prompt, return_tensors="pt")
    found = model.generate(**ids, max_new_tokens=most, do_sample=False, pad_token_id=2)[0, ids["input_ids"].shape[1] :]
    return tokenizer.decode(found, skip_special_tokens=True), len(found)


def opened(folder: Path) -> Generator:
    return load_generator(folder, precision="fp32", device="cpu", threads=1)


@pytest.mark.parametrize("begins", [False, True])
@pytest.mark.parametrize("architecture", [*FAMILIES, "Phi3ForCausalLM"])
def test_greedy_continuations_equal_those_of_generate(
    architecture: str, begins: bool, make_decoder: MakeFolder, tmp_path: Path
) -> None:
    folder = make_decoder(architecture, begins=begins)
    import_model_folder(folder, tmp_path / "ours")
    for generator in (opened(folder), opened(tmp_path / "ours")):
        for prompt in PROMPTS:
            (found,) = generator(prompt, search=GREEDY).continuations
            text, pieces = continued(folder, prompt, 24)
            assert found.text == text, prompt
            assert len(found.token_log_probabilities) == pieces


@pytest.mark.parametrize("architecture", ["GPT2LMHeadModel", "LlamaForCausalLM"])
def test_special_tokens_in_a_prompt_are_read_as_by_transformers(
    architecture: str, make_decoder: MakeFolder, tmp_path: Path
) -> None:
    """The markers of a chat template, one of which is the end symbol, and one the padding."""
    folder = make_decoder(architecture, pad_token_id=2)
    import_model_folder(folder, tmp_path / "ours")
    prompts = ["<|turn|>I like<|end|>\n<|turn|>", "a <|end|> b", "<|pad|>tea<|pad|>", "<|end|>", "tea"]
    for generator in (opened(folder), opened(tmp_path / "ours")):
        batch = generator(prompts, search=GREEDY)
        for prompt, together in zip(prompts, batch, strict=True):
            (found,) = generator(prompt, search=GREEDY).continuations
            assert found.text == continued(folder, prompt, 24)[0], prompt
            assert together.continuations[0].text == found.text


def test_a_start_symbol_that_a_prompt_spells_is_not_repeated(make_decoder: MakeFolder) -> None:
    generator = opened(make_decoder("LlamaForCausalLM", begins=True))
    assert generator.prompt_ids("<|end|>tea") == generator.prompt_ids("tea")
    assert generator.prompt_ids("<|end|><|end|>tea") == [0, *generator.prompt_ids("tea")]
    assert generator.prompt_ids("tea <|end|>")[-1] == 0


def test_a_prompt_for_a_tokenizer_without_tokenizer_json_has_special_tokens_too(
    make_decoder: MakeFolder,
) -> None:
    folder = make_decoder("GPT2LMHeadModel")
    expected = opened(folder).prompt_ids("a<|end|>b")
    model = json.loads((folder / "tokenizer.json").read_text("utf-8"))["model"]
    (folder / "tokenizer.json").unlink()
    (folder / "vocab.json").write_text(json.dumps(model["vocab"]), "utf-8")
    (folder / "merges.txt").write_text("\n".join(" ".join(pair) for pair in model["merges"]), "utf-8")
    (folder / "tokenizer_config.json").write_text(json.dumps({"bos_token": "<|end|>", "eos_token": "<|end|>"}), "utf-8")
    assert opened(folder).prompt_ids("a<|end|>b") == expected
    assert expected[1] == 0


def test_padding_that_is_a_token_of_text_is_shown(make_decoder: MakeFolder) -> None:
    """Some configurations set `pad_token_id` to 0, which is "!" in the vocabularies of GPT-2, Llama 3 and Qwen2."""
    generator = opened(make_decoder("GPT2LMHeadModel", name="free"))
    common = Counter(generator("I like", search=GREEDY).continuations[0].tokens).most_common(1)[0][0]
    folder = make_decoder("GPT2LMHeadModel", pad_token_id=generator.vocabulary.id(common))
    found = opened(folder)(["I like", "I like tea"], search=GREEDY)
    for prompt, each in zip(["I like", "I like tea"], found, strict=True):
        assert each.continuations[0].text == continued(folder, prompt, 24)[0]
    assert opened(folder).vocabulary.decode([generator.vocabulary.id(common)])


def test_each_of_several_end_symbols_ends_a_text_and_none_is_shown(
    make_decoder: MakeFolder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    free = opened(make_decoder("GPT2LMHeadModel", name="free"))("I like", search=GREEDY).continuations[0]
    other = list(dict.fromkeys(free.tokens))[5]
    table = json.loads((tmp_path / "free" / "tokenizer.json").read_text("utf-8"))["model"]["vocab"]
    folder = make_decoder("GPT2LMHeadModel", eos_token_id=[0, table[other]])
    generator = opened(folder)
    (found,) = generator("I like", search=GREEDY).continuations
    assert found.ended
    assert found.tokens == free.tokens[: free.tokens.index(other)]
    assert found.token_log_probabilities == pytest.approx(free.token_log_probabilities[: len(found.tokens) + 1])
    assert len(found.tokens) + 1 == continued(folder, "I like", 24)[1]
    vocabulary = generator.vocabulary
    assert vocabulary.encode("<|turn|>tea")[0] == 1
    assert vocabulary.decode(vocabulary.encode("<|turn|>tea")) == "tea"
    assert main(["generate", str(folder), "I like", "--greedy", "--max-length", "24", "--precision", "fp32"]) == 0
    assert capsys.readouterr().out == f"I like{found.text}\n"
    drawn = SearchSettings(max_length=200, n_best=20, sampling=SamplingSettings(temperature=0.5, seed=1))
    assert any(each.ended for each in generator("I like", search=drawn).continuations)
    assert all(other not in each.tokens for each in generator("I like", search=drawn).continuations)


def test_a_text_of_one_line_ends_before_its_line_feed(make_decoder: MakeFolder) -> None:
    generator = opened(make_decoder("GPT2LMHeadModel"))
    drawn = SearchSettings(max_length=60, sampling=SamplingSettings(temperature=3.0, seed=2), n_best=8)
    whole = generator("I like", search=drawn).continuations
    lines = generator("I like", search=drawn, one_line=True).continuations
    assert any("\n" in each.text for each in whole)
    for free, line in zip(whole, lines, strict=True):
        assert line.text == free.text.split("\n")[0]
        assert line.ended or "\n" not in free.text
        assert line.token_log_probabilities == free.token_log_probabilities[: len(line.tokens)]
    one = SearchSettings(max_length=60, sampling=SamplingSettings(temperature=3.0, seed=2))
    assert (
        "".join(generator.stream("I like", one, one_line=True))
        == generator("I like", search=one, one_line=True).text[6:]
    )


def test_a_text_is_scored_from_its_first_token_on(make_decoder: MakeFolder) -> None:
    folder = make_decoder("GPT2LMHeadModel")
    text = "the fish\nis big."
    found = opened(folder).score(text)
    transformers = peers()
    ids = transformers.AutoTokenizer.from_pretrained(folder)("<|end|>" + text, return_tensors="pt")["input_ids"]
    model = transformers.AutoModelForCausalLM.from_pretrained(folder).eval()
    with torch.no_grad():
        expected = float(model(ids, labels=ids).loss) * (ids.shape[1] - 1)
    assert found.tokens == ids.shape[1] - 1
    assert found.nats == pytest.approx(expected, rel=1e-5)


def test_an_imported_model_trained_further_ends_lines_with_its_end_symbol(
    make_decoder: MakeFolder, toy_corpus: Path, tmp_path: Path
) -> None:
    from transduce.tasks.train import train

    folder = make_decoder("GPT2LMHeadModel", eos_token_id=[0, 1])
    settings = {"task.kind": "language-model", "task.context": 16, "training.steps": 2, "training.precision": "fp32"}
    text = str(toy_corpus / "train.en")
    train(out=tmp_path / "run", init_from=folder, source=text, settings=settings, device="cpu", threads=1)
    before, after = opened(folder), opened(tmp_path / "run")
    tea, fish = (before.vocabulary.encode(word) for word in ("tea", "fish"))
    assert before.prompt_ids("tea\nfish") == before.vocabulary.encode("tea\nfish")
    assert after.prompt_ids("tea\nfish") == [0, *tea, 0, *fish]
    assert after.vocabulary.ends == (0,)


@pytest.mark.parametrize("begins", [False, True])
@pytest.mark.parametrize("architecture", FAMILIES)
def test_a_language_model_trained_further_is_exported_to_hugging_face(
    architecture: str, begins: bool, make_decoder: MakeFolder, toy_corpus: Path, tmp_path: Path
) -> None:
    from transduce.tasks.train import train

    base = make_decoder(architecture, begins=begins, eos_token_id=[0, 1])
    (base / "chat_template.jinja").write_text("{{ messages[0].content }}", "utf-8")
    settings = {"task.kind": "language-model", "task.context": 64, "training.steps": 2, "training.precision": "fp32"}
    text, run = str(toy_corpus / "train.en"), tmp_path / "run"
    train(out=run, init_from=base, source=text, settings=settings, device="cpu", threads=1)
    transduce.export(run, tmp_path / "out", to="huggingface", sources=PROMPTS[:1], threads=1)
    tokenizer = peers().AutoTokenizer.from_pretrained(tmp_path / "out")
    assert tokenizer.chat_template is None
    generator = opened(run)
    for prompt in ["I like", "the fish is big."]:
        assert tokenizer(prompt)["input_ids"] == generator.prompt_ids(prompt)
        (found,) = generator(prompt, search=GREEDY).continuations
        text = continued(tmp_path / "out", prompt, 24)[0]  # of one line
        assert text
        assert found.text.startswith(text)
    after_export = "only after an export" in (run / "README.md").read_text("utf-8")
    assert after_export == (not begins or architecture == "GemmaForCausalLM")
    assert "only after an export" not in (tmp_path / "out" / "README.md").read_text("utf-8")


def test_start_and_end_symbols_missing_in_the_configuration_come_from_the_tokenizer(
    make_decoder: MakeFolder,
) -> None:
    """The tokenizer does."""
    folder = make_decoder("GPT2LMHeadModel")
    expected = opened(folder)("I like", search=GREEDY).text
    config = json.loads((folder / "config.json").read_text("utf-8"))
    for name in ("bos_token_id", "eos_token_id"):
        del config[name]
    (folder / "config.json").write_text(json.dumps(config), "utf-8")
    (folder / "generation_config.json").unlink()
    generator = opened(folder)
    assert (generator.model.config.start_id, generator.vocabulary.ends) == (0, (0,))
    assert generator("I like", search=GREEDY).text == expected


@pytest.mark.parametrize("begins", [False, True])
@pytest.mark.parametrize("architecture", [*FAMILIES, "Phi3ForCausalLM"])
def test_an_imported_decoder_is_exported_to_hugging_face_unchanged(
    architecture: str, begins: bool, make_decoder: MakeFolder, tmp_path: Path
) -> None:
    transformers = peers()
    folder = make_decoder(architecture, begins=begins, eos_token_id=[0, 1])
    import_model_folder(folder, tmp_path / "ours")
    transduce.export(tmp_path / "ours", tmp_path / "out", to="huggingface", sources=PROMPTS[:3], threads=1)
    before, after = (
        transformers.AutoModelForCausalLM.from_pretrained(each).eval() for each in (folder, tmp_path / "out")
    )
    assert type(after).__name__ == RENAMED.get(architecture, architecture)
    assert after.generation_config.eos_token_id == [0, 1]
    assert after.config.max_position_embeddings == before.config.max_position_embeddings
    tokenizers = [transformers.AutoTokenizer.from_pretrained(each) for each in (folder, tmp_path / "out")]
    for prompt in PROMPTS:
        ids, again = (tokenizer(prompt, return_tensors="pt")["input_ids"] for tokenizer in tokenizers)
        assert ids.tolist() == again.tolist()
        with torch.no_grad():
            assert float((before(ids).logits - after(ids).logits).abs().max()) < 1e-5
        assert continued(tmp_path / "out", prompt, 12) == continued(folder, prompt, 12)


@pytest.mark.parametrize("form", ["ctranslate2", "onnx"])
@pytest.mark.parametrize(
    "architecture", ["GPT2LMHeadModel", "LlamaForCausalLM", "GemmaForCausalLM", "OPTForCausalLM", "Phi3ForCausalLM"]
)
def test_an_imported_decoder_is_exported_to_ctranslate2_and_onnx(
    architecture: str, form: str, make_decoder: MakeFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = {"ctranslate2": "ctranslate2", "onnx": "onnxruntime"}[form]
    pytest.importorskip(package, reason=f"needs {package}: pip install 'transduce[export]'")
    folder = make_decoder(architecture)
    import_model_folder(folder, tmp_path / "ours")
    out = tmp_path / "out"
    report = transduce.export(tmp_path / "ours", out, to=form, sources=PROMPTS[:3], threads=1)
    assert report.float32.largest_difference < 1e-4
    if form == "ctranslate2":
        text = (out / "README.md").read_text("utf-8")
        code = "\n".join(line[4:] for line in text.split("\n") if line.startswith("    "))
        code = code.replace("max_length=100, sampling_topk=0, sampling_temperature=0.8", "max_length=9")
        monkeypatch.chdir(out)
        printed: list[str] = []
        exec(code, {"print": printed.append})
        assert printed[0].startswith("the beginning")


def test_prompts_are_read_up_to_the_context_of_the_configuration(make_decoder: MakeFolder, tmp_path: Path) -> None:
    folder = make_decoder("LlamaForCausalLM", max_position_embeddings=1500)
    import_model_folder(folder, tmp_path / "m")
    prompt = "nobody eats the fish. " * 90
    theirs, _ = continued(folder, prompt, 12)
    for place in (folder, tmp_path / "m"):
        generator = load_generator(place, precision="fp32", device="cpu", threads=1)
        assert generator.context == 1500
        assert 1024 < len(generator.prompt_ids(prompt)) < 1400
        (found,) = generator(prompt, search=SearchSettings(beam_size=1, max_length=12)).continuations
        assert found.text == theirs


@pytest.mark.parametrize("ends", [{}, {"bos_token_id": 50_256, "eos_token_id": 50_256}])
def test_a_chinese_gpt2_without_an_end_symbol_of_its_own_ends_texts_with_sep(
    ends: dict[str, int], tmp_path: Path
) -> None:
    """GPT-2's default end symbol is outside of a small vocabulary. A text has no spaces between Chinese characters."""
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"我爱你，。", "gp", "##t", "15", "ok"]
    theirs, ours, transformers = tmp_path / "theirs", tmp_path / "ours", peers()
    torch.manual_seed(3)
    config = transformers.GPT2Config(vocab_size=len(words), n_embd=8, n_head=2, n_layer=1, n_positions=16)
    model = transformers.GPT2LMHeadModel(config).eval()
    model.save_pretrained(theirs)
    content = json.loads((theirs / "config.json").read_text("utf-8"))
    content = {name: value for name, value in content.items() if not name.endswith("_token_id")}
    content |= {"tokenizer_class": "BertTokenizer", **ends}
    (theirs / "config.json").write_text(json.dumps(content), "utf-8")
    (theirs / "generation_config.json").unlink(missing_ok=True)
    (theirs / "vocab.txt").write_text("\n".join(words), "utf-8")
    (theirs / "tokenizer_config.json").write_text('{"do_lower_case": true}', "utf-8")
    import_model_folder(theirs, ours)
    generator = load_generator(ours, precision="fp32")
    vocabulary = generator.vocabulary
    prompt = transformers.AutoTokenizer.from_pretrained(theirs)("我爱 你。", return_tensors="pt").input_ids[:, :-1]
    assert generator.prompt_ids("我爱 你。") == prompt[0].tolist() == [2, 5, 6, 7, 9]
    expected = model.generate(prompt, max_new_tokens=9, do_sample=False, pad_token_id=0, eos_token_id=3)
    new = [id for id in expected[0, prompt.shape[1] :].tolist() if id != 3]
    found = generator("我爱 你。", search=SearchSettings(beam_size=1, max_length=9)).continuations[0]
    assert found.tokens == tuple(vocabulary.tokens(new))
    assert found.text == vocabulary.decode(new)
    assert vocabulary.decode(vocabulary.encode("我 爱，GPT 15 ok ok 你")) == "我爱，gpt 15 ok ok你"
    transduce.export(ours, tmp_path / "again", to="huggingface")
