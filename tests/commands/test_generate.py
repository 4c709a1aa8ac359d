"""Test `transduce generate`, from options to text."""

import json
import math
from pathlib import Path

import pytest

from transduce.commands.main import main
from transduce.inference.generator import load_generator
from transduce.tasks.train import train


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("generate")
    text = folder / "text.txt"
    text.write_text("abc abd abe\nbac bad bae\n" * 60, "utf-8", newline="\n")
    settings = {
        "tokenizer.kind": "character",
        "task.context": 16,
        "model.num_decoder_layers": 1,
        "model.d_model": 32,
        "training.steps": 10,
        "training.validate_every": 10,
        "training.precision": "fp32",
    }
    train(out=folder / "m", task="language-model", source=text, settings=settings, device="cpu", threads=1)
    return folder / "m"


def generate(model: Path, capsysbinary: pytest.CaptureFixture[bytes], *more: str) -> str:
    assert main(["generate", str(model), *more, "--threads", "1", "--device", "cpu", "--precision", "fp32"]) == 0
    return capsysbinary.readouterr().out.decode()


def test_generated_text_begins_with_the_prompt(model: Path, capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    one = generate(model, capsysbinary, "ab", "--max-length", "30", "--seed", "4")
    assert one.startswith("ab")
    assert len(one) == 2 + 30 + 1
    assert one == generate(model, capsysbinary, "ab", "--max-length", "30", "--seed", "4")
    assert one != generate(model, capsysbinary, "ab", "--max-length", "30", "--seed", "5")


def test_several_texts_are_separated_by_a_line_of_dashes(
    model: Path, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    texts = generate(model, capsysbinary, "ab", "--max-length", "9", "--n-best", "3").split("\n---\n")
    assert len(texts) == 3
    assert all(text.startswith("ab") for text in texts)


def test_characters_of_a_prompt_that_the_model_has_not_learned_are_reported(
    model: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    options = ["--max-length", "3", "--threads", "1", "--device", "cpu"]
    assert main(["generate", str(model), "ab", *options]) == 0
    assert "prompt" not in capsys.readouterr().err
    assert main(["generate", str(model), "ab 我Ж", *options]) == 0
    assert "has not learned these characters of the prompt: 我, Ж. Do not rely" in capsys.readouterr().err
    (tmp_path / "prompts").write_text("ab\nbad 我\n", "utf-8")
    assert main(["generate", str(model), "--prompts", str(tmp_path / "prompts"), *options]) == 0
    assert "these characters of the prompt: 我. Do" in capsys.readouterr().err


def test_prompts_of_a_file_are_continued_as_each_alone(
    model: Path, capsysbinary: pytest.CaptureFixture[bytes], tmp_path: Path
) -> None:
    (tmp_path / "prompts").write_text("ab\nbad b\n", "utf-8")
    options = ["--max-length", "9", "--seed", "3"]
    alone = [generate(model, capsysbinary, prompt, *options).removesuffix("\n") for prompt in ("ab", "bad b")]
    found = generate(model, capsysbinary, "--prompts", str(tmp_path / "prompts"), *options)
    assert found.removesuffix("\n") == "\n---\n".join(alone)


def test_inspect_writes_a_page_of_a_language_model(
    model: Path, capsysbinary: pytest.CaptureFixture[bytes], tmp_path: Path
) -> None:
    page = tmp_path / "page.html"
    options = ["inspect", str(model), "abc", "--html", str(page), "--threads", "1", "--device", "cpu"]
    assert main([*options, "--more", "bad", "--json", "-"]) == 0
    found = json.loads(capsysbinary.readouterr().out)
    content = page.read_text("utf-8").partition('id="payload">')[2].partition("</script>")[0]
    inspections = json.loads(content)["inspections"]
    assert [each["text"] for each in inspections] == ["abc", "bad"]
    assert inspections[0] == found
    assert {"value", "occlusion", "integrated"} <= {each["method"] for each in found["attributions"]}
    assert main([*options, "--attribution", "occlusion"]) == 0
    assert b"attribution by occlusion" in capsysbinary.readouterr().out
    assert main([*options, "--beside", str(model)]) == 2
    assert b"`--beside` compares Transformers that translate" in capsysbinary.readouterr().err


def test_greedy_equals_a_beam_of_one_and_beams_are_sorted_by_score(
    model: Path, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    assert generate(model, capsysbinary, "ab", "--greedy") == generate(model, capsysbinary, "ab", "--beam-size", "1")
    beams = generate(model, capsysbinary, "ab", "--beam-size", "4", "--n-best", "2", "--one-line", "--json", "-")
    report = json.loads(beams)
    first, second = report["continuations"]
    assert first["score"] >= second["score"]
    assert report["search"]["beam_size"] == 4
    assert "\n" not in first["text"]


def test_a_prompt_from_standard_input(
    model: Path, capsysbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    import io
    import sys

    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"abc\nab")))
    assert generate(model, capsysbinary, "-", "--max-length", "3").startswith("abc\nab")
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"\xef\xbb\xbfab\r\n")))
    found = generate(model, capsysbinary, "-", "--max-length", "3", "--seed", "2")
    assert found == generate(model, capsysbinary, "ab", "--max-length", "3", "--seed", "2")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--prompts", "file"], "A prompt and --prompts are both set: leave one of them out."),
        (["--greedy", "--beam-size", "2"], "--greedy and --beam-size are two ways to search"),
        (["--n-best", "3", "--beam-size", "2"], "`--n-best` must be at most `--beam-size` (2), but is 3"),
        (["--beam-size", "-3"], "`--beam-size` must be at least 1, but is -3"),
        (["--greedy", "--n-best", "3"], "--greedy finds one text, but --n-best is 3: use --beam-size, or sample."),
        (["--max-length", "0"], "`--max-length` must be at least 1, but is 0"),
        (["--temperature", "0"], "`--temperature` must be greater than 0"),
        (["--greedy", "--temperature", "2"], "`--temperature` sets how to sample, but --greedy does not sample"),
        (["--beam-size", "2", "--top-k", "0"], "`--top-k` sets how to sample, but --beam-size does not sample"),
        (["--length-penalty", "1"], "`--length-penalty` ranks the hypotheses of a beam: add --beam-size"),
    ],
)
def test_contradictory_options_of_generate_are_refused(
    model: Path, capsys: pytest.CaptureFixture[str], options: list[str], message: str
) -> None:
    assert main(["generate", str(model), "ab", *options]) == 2
    assert message in capsys.readouterr().err


def test_a_translation_model_is_refused(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", str(trained), "ab"]) == 2
    message = capsys.readouterr().err
    assert "is of the kind `transformer`, but a language model" in message
    assert "`transduce translate` uses it" in message


def test_score_prints_the_log_probability_of_each_line_of_a_text(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    texts = ["abc abd", "", "bad"]
    (tmp_path / "texts.txt").write_text("".join(f"{text}\n" for text in texts), "utf-8")
    command = ["score", str(model), "--source", str(tmp_path / "texts.txt"), "--device", "cpu"]
    assert main(command) == 0
    captured = capsys.readouterr()
    scores = [load_generator(model, device="cpu").score(text) for text in texts]
    assert [float(line) for line in captured.out.splitlines()] == pytest.approx([-each.nats for each in scores], 1e-4)
    bits = sum(each.nats for each in scores) / math.log(2) / sum(map(len, texts))
    assert f"3 lines, {sum(each.tokens for each in scores)} tokens, " in captured.err
    assert f", {bits:.3f} bits per character" in captured.err
    for options, message in (
        (["--target", "x"], "`--target` is for translations"),
        (["--length-penalty", "1"], "without `--length-penalty`"),
    ):
        assert main([*command, *options]) == 2
        assert message in capsys.readouterr().err


def test_score_of_a_translation_model_needs_translations(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["score", str(trained), "--source", "x"]) == 2
    assert "other models score translations: name their file by `--target`" in capsys.readouterr().err
