"""Test default settings chosen from the corpus and the machine: values computed by hand, and their monotonicity."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

import transduce
from transduce.acceleration import why_no_kernels
from transduce.machine import Machine, Precision
from transduce.model.config import ModelConfig
from transduce.search.settings import SearchSettings
from transduce.tasks.kinds import translation
from transduce.tasks.run.resolving import explain_decoding, explain_training, predict_epochs
from transduce.tasks.settings.reading import make_settings
from transduce.training.choices import (
    PRESETS,
    Choice,
    ChoiceLog,
    CorpusSize,
    choose_accumulate,
    choose_average_decay,
    choose_batch_tokens,
    choose_best_by,
    choose_dropout,
    choose_epochs,
    choose_language_model_batch_tokens,
    choose_language_model_steps,
    choose_learning_rate,
    choose_optimizer,
    choose_patience,
    choose_preset,
    choose_preset_in_time,
    choose_schedule,
    choose_steps,
    choose_vocabulary_size,
    choose_warmup_steps,
    choose_weight_decay,
    count_multiplied_weights,
)
from transduce.training.schedule import TOTAL_DECAY

SIZES = (1, 30, 300, 3_000, 24_000, 30_000, 49_999, 50_000, 165_000, 1_000_000, 4_500_000, 10_000_000, 10**8)


@pytest.mark.parametrize(
    ("pairs", "preset"),
    [
        (300, "tiny"),
        (24_000, "tiny"),
        (49_999, "tiny"),
        (50_000, "small"),
        (165_000, "small"),
        (1_000_000, "base"),
        (10_000_000, "big"),
    ],
)
def test_preset_follows_the_number_of_pairs(pairs: int, preset: str) -> None:
    assert choose_preset(pairs).value == preset


def test_parameters_are_those_of_table_3() -> None:
    # 65 million in the paper, of which norms, biases and the lookup of embeddings multiply nothing here.
    assert count_multiplied_weights(PRESETS["paper-base"], 37_000) == 6 * 3_145_728 + 6 * 4_194_304 + 18_944_000


@pytest.mark.parametrize(
    ("minutes", "operations_per_second", "preset"),
    [
        (45, 2e11, "tiny"),  # two cores with bfloat16 dot products
        (45, 6e11, "tiny"),  # with tiles: 21 million tokens for 13 million parameters
        (120, 6e11, "small"),  # 55 million
        (12 * 60, 6e11, "small"),  # base would read 89 million for its 48 million
        (24 * 60, 6e11, "base"),
        (60, 1e14, "base"),
        (3 * 60, 1e14, "big"),
        (0.01, 1e9, "tiny"),
    ],
)
def test_a_short_time_budget_selects_a_smaller_preset(
    minutes: float, operations_per_second: float, preset: str
) -> None:
    chosen = choose_preset_in_time(
        Choice("big", "many pairs"),
        minutes=minutes,
        operations_per_second=operations_per_second,
        vocabulary_size=8_600,
    )
    assert chosen.value == preset
    assert chosen.reason.startswith("many pairs")
    assert (f"{minutes:g} min " in chosen.reason) == (preset != "big")


def test_an_unlimited_time_budget_keeps_the_preset_of_the_corpus() -> None:
    suited = choose_preset(165_000)
    chosen = choose_preset_in_time(suited, minutes=1e6, operations_per_second=1e14, vocabulary_size=8_600)
    assert chosen is suited


def test_presets_grow_with_the_corpus() -> None:
    widths = [PRESETS[choose_preset(pairs).value].d_model for pairs in SIZES]
    assert widths == sorted(widths)


@pytest.mark.parametrize(
    ("pairs", "unspaced", "vocabulary"),
    [
        (300, 0, 700),  # 70 × 9.79 = 686
        (24_000, 0, 4_000),  # 70 × 56.5 = 3,957
        (24_000, 2_000, 6_000),
        (165_000, 0, 8_600),  # 70 × 122.2 = 8,553
        (4_500_000, 0, 32_100),
        (1, 0, 400),
        (10**9, 0, 40_000),
    ],
)
def test_vocabulary_size_for_corpora_of_each_size(pairs: int, unspaced: int, vocabulary: int) -> None:
    assert choose_vocabulary_size(CorpusSize(pairs=pairs, unspaced_characters=unspaced)).value == vocabulary


def test_the_reason_for_a_vocabulary_size_names_the_bound_that_applies() -> None:
    reasons = [choose_vocabulary_size(CorpusSize(pairs=n, unspaced_characters=0)).reason for n in (30, 300, 10**9)]
    assert reasons[0] == "70 × 30^0.4 = 273 < 400"
    assert reasons[1] == "70 × 300^0.4 = 685"
    assert reasons[2].endswith(" > 40,000")


def test_vocabulary_grows_with_pairs_and_with_characters() -> None:
    by_pairs = [choose_vocabulary_size(CorpusSize(pairs=pairs, unspaced_characters=0)).value for pairs in SIZES]
    by_characters = [
        choose_vocabulary_size(CorpusSize(pairs=24_000, unspaced_characters=n)).value for n in range(0, 5_000, 500)
    ]
    assert by_pairs == sorted(by_pairs)
    assert by_characters == sorted(by_characters)


@pytest.mark.parametrize(
    ("epoch_tokens", "device", "tokens"),
    [
        (3_000, "cpu", 512),
        (40_000, "cpu", 800),  # 50 steps an epoch
        (240_000, "cpu", 2_048),
        (1_650_000, "cpu", 2_048),
        (1_650_000, "cuda", 25_000),
        (240_000, "cuda:1", 4_800),
    ],
)
def test_batch_tokens_for_corpora_and_devices(epoch_tokens: int, device: str, tokens: int) -> None:
    assert choose_batch_tokens(epoch_tokens, device).value == tokens


def test_language_models_take_larger_steps() -> None:
    assert choose_language_model_batch_tokens(4_000_000, "cpu").value == 4_096
    assert choose_language_model_batch_tokens(100_000, "cpu").value == 2_000
    assert choose_language_model_batch_tokens(4_000_000, "cuda").value == 25_000


@pytest.mark.parametrize(
    ("pairs", "epoch_tokens", "batch_tokens", "steps"),
    [
        (300, 3_000, 512, 879),  # 150 epochs
        (24_000, 240_000, 4_096, 6_699),  # 114.3 epochs
        (165_000, 1_650_000, 4_096, 14_485),  # 36.0 epochs
        (30, 300, 512, 300),
    ],
)
def test_steps_for_corpora_of_each_size(pairs: int, epoch_tokens: int, batch_tokens: int, steps: int) -> None:
    assert choose_steps(pairs, epoch_tokens, batch_tokens).value == steps


def test_epochs_fall_as_the_corpus_grows_and_stay_in_bounds() -> None:
    epochs = [choose_epochs(pairs).value for pairs in SIZES]
    assert epochs == sorted(epochs, reverse=True)
    assert choose_epochs(30_000).value == 100.0
    assert (epochs[0], epochs[-1]) == (150.0, 5.0)


def test_learning_rate_falls_with_the_width() -> None:
    assert choose_learning_rate(512, "linear", 4_000).value == 0.5 / 512
    assert choose_learning_rate(128, "linear", 4_000).value == 0.5 / 128


def test_learning_rate_falls_with_the_root_of_the_batch() -> None:
    assert choose_learning_rate(128, "linear", 4_000, 4_096).value == 0.5 / 128
    assert choose_learning_rate(128, "linear", 4_000, 25_000).value == 0.5 / 128
    assert choose_learning_rate(128, "linear", 4_000, 1_024).value == 0.25 / 128
    assert "√(1,024 / 4,096 tokens)" in choose_learning_rate(128, "linear", 4_000, 1_024).reason


def test_muon_takes_twice_adams_rate() -> None:
    for tokens in (512, 2_048, 25_000):
        adam, muon = (choose_learning_rate(256, "linear", 400, tokens, name).value for name in ("adam", "muon"))
        assert muon == 2.0 * adam


def test_muon_is_for_layers_matrices_with_random_weights() -> None:
    def choose(kind: str = "transformer", order: str = "pre", start: str | None = None) -> str:
        return choose_optimizer(kind, order, init_from=start).value

    assert choose() == choose("encoder") == choose("decoder") == choose("series") == "muon"
    assert choose("recurrent") == choose(order="post") == choose(order="sandwich") == "adam"
    assert choose(start="models/other") == "adam"


@pytest.mark.parametrize(
    ("preset", "epochs", "dropout"),
    [
        ("tiny", 4.4, 0.1),
        ("tiny", 13.3, 0.14),
        ("tiny", 30.0, 0.21),
        ("tiny", 59.9, 0.3),
        ("tiny", 150.0, 0.3),
        ("small", 36.0, 0.15),
        ("base", 5.0, 0.1),
        ("big", 30.0, 0.21),
        ("paper-big", 5.0, 0.3),  # the paper's stay the paper's
    ],
)
def test_texts_that_are_read_less_often_need_less_dropout(preset: str, epochs: float, dropout: float) -> None:
    assert choose_dropout(preset, epochs).value == dropout


def test_epochs_are_forecast_from_steps_and_from_minutes() -> None:
    machine = Machine(device="cpu", threads=2, amx=False, avx512_bf16=False)

    def forecast(**training: Any) -> float:
        settings = make_settings({"training": training})
        return predict_epochs(settings, machine, "tiny", pairs=24_000, epoch_tokens=240_000, vocabulary_size=6_000)

    assert forecast(steps=1_000, batch_tokens=2_400) == 10.0
    assert forecast(steps=1_000) == pytest.approx(1_000 * 2_048 / 240_000)
    assert forecast() == pytest.approx(choose_epochs(24_000).value, rel=1e-3)
    # 8e10 operations per second, 6 for each token and each of the 2.1 million parameters.
    parameters = count_multiplied_weights(PRESETS["tiny"], 6_000)
    assert forecast(minutes=30.0) == pytest.approx(8e10 * 1_800 / (6 * parameters) / 240_000)


@pytest.mark.parametrize(
    ("batch_tokens", "d_model", "precision", "device", "parts"),
    [
        (2_048, 128, "fp32", "cpu", 1),
        (4_096, 128, "fp32", "cpu", 1),
        (2_048, 256, "fp32", "cpu", 1),
        (4_096, 512, "fp32", "cpu", 2),
        (25_000, 512, "fp32", "cpu", 13),
        (4_096, 2_048, "fp32", "cpu", 2),  # parts of 2,048 at least
        (4_096, 256, "bf16", "cpu", 1),
        (4_096, 512, "bf16", "cpu", 1),
        (25_000, 512, "bf16", "cpu", 7),
        (25_000, 1_024, "fp32", "cuda", 1),
    ],
)
def test_large_steps_are_taken_in_parts(
    batch_tokens: int, d_model: int, precision: Precision, device: str, parts: int
) -> None:
    choice = choose_accumulate(batch_tokens, d_model, precision, device)
    assert choice.value == parts
    assert (parts == 1) == (choice.reason == "a step at once")


def test_muon_decays_the_less_the_longer_a_run_is() -> None:
    decays = [choose_weight_decay("muon", "linear", 0.005, steps // 10, steps).value for steps in (300, 1_600, 8_000)]
    assert decays == pytest.approx([2 * TOTAL_DECAY / 0.005 / steps for steps in (300, 1_600, 8_000)], rel=1e-3)
    assert choose_weight_decay("muon", "linear", 0.005, 500, None).value is None
    assert choose_weight_decay("adam", "linear", 0.005, 160, 1_600).value == 0.0
    short = choose_weight_decay("muon", "linear", 0.005, 1, 2)
    assert (short.value, short.reason) == (
        20.0,
        "1.3 / the sum of the learning rates of 2 steps, at most 0.1 / the highest",
    )


def test_a_base_model_decays_less_at_a_rate_below_the_default() -> None:
    usual = choose_weight_decay("muon", "linear", 0.005, 40, 400).value
    for rate in (0.005, 0.01):
        assert (
            choose_weight_decay("muon", "linear", rate, 40, 400, 0.005).value
            == choose_weight_decay("muon", "linear", rate, 40, 400).value
        )
    assert choose_weight_decay("muon", "linear", 1e-4, 40, 400, 0.005).value == usual
    assert choose_weight_decay("muon", "linear", 1e-4, 40, None, 0.005).value == 0.0


def test_the_papers_schedule_has_the_papers_peak() -> None:
    assert choose_schedule("post").value == "inverse-sqrt"
    assert choose_schedule("pre").value == "linear"
    # Equation (3) at step 4,000 with d_model 512: 512^-0.5 × 4000^-0.5.
    assert choose_learning_rate(512, "inverse-sqrt", 4_000).value == pytest.approx(6.9877e-4, rel=1e-4)
    # The equation would have 0.0062 after 200 steps, where a post-norm model fails.
    assert (
        choose_learning_rate(128, "inverse-sqrt", 200).value == choose_learning_rate(128, "inverse-sqrt", 4_000).value
    )
    assert choose_learning_rate(512, "inverse-sqrt", 16_000).value == pytest.approx(6.9877e-4 / 2.0, rel=1e-4)


@pytest.mark.parametrize(
    ("steps", "warmup"),
    [(None, 500), (1, 1), (20, 10), (100, 50), (499, 50), (500, 50), (6_699, 669), (40_000, 4_000), (300_000, 4_000)],
)
def test_warmup_steps_for_runs_of_each_length(steps: int | None, warmup: int) -> None:
    assert choose_warmup_steps(steps).value == warmup


def test_warmup_grows_and_leaves_half_of_any_run() -> None:
    warmups = [choose_warmup_steps(steps).value for steps in range(2, 2_000)]
    assert warmups == sorted(warmups)
    assert all(2 * warmup <= steps for steps, warmup in enumerate(warmups, 2))


@pytest.mark.parametrize(("steps", "window"), [(None, 500), (100, 10), (1_000, 50), (200_000, 5_000)])
def test_averaging_window_for_runs_of_each_length(steps: int | None, window: int) -> None:
    choice = choose_average_decay(steps)
    assert choice.value == pytest.approx(1.0 - 1.0 / window)
    assert f"{window:,}" in choice.reason


@pytest.mark.parametrize("pairs", [300, 24_000, 165_000])
def test_every_default_has_a_reason(pairs: int) -> None:
    size = CorpusSize(pairs=pairs, unspaced_characters=0)
    assert f"{pairs:,}" in choose_preset(pairs).reason
    assert f"70 × {size.pairs:,}^0.4 = " in choose_vocabulary_size(size).reason
    assert f"{pairs:,}" in choose_steps(pairs, 10 * pairs, 512).reason


def test_the_least_number_of_steps_has_a_reason() -> None:
    assert choose_steps(300, 3_000, 4_096).reason == "at least 300; about 150 epochs are 110"
    assert choose_language_model_steps(1_000, 512).reason == "at least 300; about 40 epochs of 1,000 tokens are 78"


def test_the_best_model_is_chosen_by_bleu_where_anything_is_translated() -> None:
    assert choose_best_by(500).value == "bleu"
    assert choose_best_by(0).value == "loss"
    assert choose_best_by(0, words=1.0).value == "loss"
    assert choose_best_by(500, words=3.9).value == "chrf"
    assert choose_best_by(500, words=4.0).value == "bleu"


def test_patience_outlasts_the_middle_of_a_run() -> None:
    assert choose_patience().value == 6


def test_the_choice_log_reports_what_became_of_a_choice() -> None:
    account = ChoiceLog()
    account.record("tokenizer.vocabulary_size", None, Choice(400, "few pairs"))
    account.amend("tokenizer.vocabulary_size", 400, "never shown")
    assert account.lines[0].reason == "few pairs"
    account.amend("tokenizer.vocabulary_size", 492, "what the text needs; {} were chosen first")
    assert [(line.value, line.reason) for line in account.lines] == [
        ("492", "what the text needs; 400 were chosen first")
    ]


@pytest.mark.parametrize(
    ("changes", "backend", "reason"),
    [
        ({"d_ff": 120, "positions": "none"}, "reference", "not compiled, because "),
        ({"norm": "batch"}, "reference", "because"),
    ],
)
def test_the_choice_log_reports_what_will_decode_the_model(changes: dict[str, Any], backend: str, reason: str) -> None:
    account = ChoiceLog()
    sizes = {"source_vocabulary_size": 9, "target_vocabulary_size": 9, "d_model": 64, "num_heads": 2}
    explain_decoding(ModelConfig(**(sizes | changes)), "cpu", account)
    (line,) = account.lines
    assert (line.name, line.value) == ("decoding kernels", backend)
    assert reason in line.reason


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({}, None),
        ({"positions": "relative", "norm": "rms", "activation": "swiglu"}, None),
        ({"norm": "batch"}, "norm `batch`, which the layer kernel does not know"),
        ({"d_ff": 120}, "a matrix from 64 to 120 numbers does not fill the kernels' blocks"),
        ({"attention_window": 5}, "`model.attention_window` is set"),
    ],
)
def test_the_choice_log_reports_why_layers_do_not_run_as_a_whole(changes: dict[str, Any], reason: str | None) -> None:
    if why_no_kernels(1) is not None:
        pytest.skip("this processor has no kernels")
    account = ChoiceLog()
    sizes = {"source_vocabulary_size": 9, "target_vocabulary_size": 9, "d_model": 64, "d_ff": 128, "num_heads": 2}
    training: Any = SimpleNamespace(kernels="native", precision="fp32")
    explain_training(ModelConfig(**(sizes | changes)), training, "cpu", account)
    assert [(line.name, line.value) for line in account.lines] == [("training kernels", "by component")] * bool(reason)
    assert reason is None or account.lines[0].reason.startswith("not whole layers, because ")
    assert reason is None or account.lines[0].reason.endswith(reason)
    training.kernels = "torch"
    explain_training(ModelConfig(**(sizes | changes)), training, "cpu", account)
    assert len(account.lines) == bool(reason)


@pytest.mark.parametrize(
    ("short", "covering", "chosen"),
    [
        ((3.2, 31.9, 0.82), (4.4, 34.5, 1.0), True),
        ((3.7, 22.1, 0.70), (3.4, 26.8, 1.0), True),
        ((3.7, 22.1, 0.70), (3.1, 26.8, 1.0), False),  # BLEU falls too much
        ((3.7, 22.1, 0.70), (4.1, 22.4, 0.8), False),  # chrF hardly rises
        ((3.7, 22.1, 0.97), (4.1, 26.4, 1.0), False),  # translations are not too short
    ],
)
def test_a_coverage_penalty_is_chosen_if_translations_are_too_short_without(
    short: tuple[float, ...], covering: tuple[float, ...], chosen: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def report(values: tuple[float, ...]) -> dict[str, Any]:
        bleu, chrf, brevity = values
        return {"a": SimpleNamespace(bleu=Mock(value=bleu), chrf=Mock(value=chrf), brevity_penalty=brevity)}

    monkeypatch.setattr(
        translation, "score_dev", lambda _, __, search: report(covering if search.coverage_penalty else short)
    )
    search, reports, reason = translation.choose_search(Mock(), Mock(), SearchSettings(), report(short))
    assert (search.coverage_penalty, bool(reason)) == ((0.2, True) if chosen else (0.0, False))
    assert reports["a"].chrf.value == (covering if chosen else short)[1]


@pytest.mark.parametrize(
    ("bleu", "chrf", "exact", "low"),
    [
        (0.4, 9.0, 0, True),
        (1.2, 9.0, 0, False),
        (0.0, 80.0, 0, False),  # lines of fewer than four tokens have no BLEU
        (0.0, 15.0, 30, False),
    ],
)
def test_low_scores_show_that_a_model_cannot_translate(bleu: float, chrf: float, exact: int, low: bool) -> None:
    report = SimpleNamespace(bleu=Mock(value=bleu), chrf=Mock(value=chrf), exact_match=exact, sentences=100)
    assert translation.low_bleu({"a": report, "b": report}) == (bleu if low else None)  # type: ignore[dict-item]


def test_the_chosen_search_is_stored_with_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(translation, "_FULL_LENGTH", 2.0)
    monkeypatch.setattr(translation, "_MIN_CHRF_GAIN", -100.0)
    monkeypatch.setattr(translation, "_MAX_BLEU_LOSS", 100.0)
    lines = [f"{one} {other}" for one in "abcdefghijkl" for other in "abcdefghijkl"]
    settings = {"model": {"num_encoder_layers": 1, "num_decoder_layers": 1, "d_model": 16, "d_ff": 16, "num_heads": 2}}
    options: dict[str, Any] = {"steps": 2, "threads": 1, "precision": "fp32", "languages": ("de", "en")}
    pairs = list(zip(lines, lines[::-1], strict=True))
    for name, search, penalty in (("default", {}, 0.2), ("set", {"search": {"beam_size": 2}}, 0.0)):
        transduce.train(pairs=pairs, dev_pairs=pairs, **options, out=tmp_path / name, settings=settings | search)
        assert transduce.load(tmp_path / name, task="translation").search.coverage_penalty == penalty
        scores = json.loads((tmp_path / name / "dev_score.json").read_text("utf-8"))
        assert scores["decoding"].get("coverage_penalty", 0.0) == penalty
