"""Test that renamed commands, options, settings and Python names work under their old names with one warning each."""

import argparse
import json
import re
import warnings
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

import transduce
from transduce import deprecation
from transduce.commands.main import VERBS, build_parser, main
from transduce.deprecation import REMOVED_IN, RenamedWarning, decode_stored, renamed_arguments, with_current_keys
from transduce.errors import warn
from transduce.inference.load import open_translator
from transduce.inference.scoring import TextScore
from transduce.inference.translation import Alternative, Translation
from transduce.inference.translator import Translator
from transduce.interop.hugging_face.imported_tokenizer import ImportedTokenizerRecord, ImportedVocabularyRecord
from transduce.interop.hugging_face.token_pipelines import WordPieceRecord
from transduce.interop.word_vectors import Coverage
from transduce.model.config import ModelConfig, convert_config
from transduce.model.transformer import Transformer
from transduce.search.settings import SearchSettings
from transduce.tasks.run.initial_weights import StoredWeightsCard
from transduce.tasks.run.run_folder import read_stored
from transduce.tasks.settings.reading import make_settings, put_setting, read_settings, setting_names
from transduce.tasks.settings.structs import CorpusSettings
from transduce.text.glossary import Glossary, Term
from transduce.training.callbacks import Callback
from transduce.training.run_estimate import RunEstimate

ALTERNATIVE = Alternative("Hi", ("▁Hi",), (-0.5, -0.25), -0.75, ended=True)


def warned(old: str, new: str) -> str:
    return f"transduce: `{old}` is now `{new}`; the old name works until version {REMOVED_IN}.\n"


def test_every_replacement_of_a_deprecated_name_exists() -> None:
    assert set(deprecation.COMMANDS.values()) <= set(VERBS)
    corpora = {f"data.corpora.*.{name}" for name in CorpusSettings.__struct_fields__}
    assert set(deprecation.SETTINGS.values()) <= {*setting_names(), *corpora}
    assert set(deprecation.PUBLIC_NAMES.values()) <= set(transduce.__all__)
    options = {option for verb in VERBS for option in build_parser(verb)._option_string_actions}
    assert set(deprecation.OPTIONS.values()) <= options
    assert set(deprecation.OPTIONS) & options == {"--out"}  # commands that write a folder have it


@pytest.mark.parametrize(("old", "new"), deprecation.COMMANDS.items())
def test_an_old_command_runs_the_new_one(old: str, new: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main([old, "--help"])
    assert stopped.value.code == 0
    out, err = capsys.readouterr()
    assert out.startswith(f"usage: transduce {new} ")
    assert err == warned(f"transduce {old}", f"transduce {new}")


@pytest.mark.parametrize(
    ("verb", "arguments", "name", "value"),
    [
        ("translate", ["models/a", "--look-again"], "redecode", True),
        ("estimate-quality", ["models/a", "--source", "a", "--look-again=b"], "redecode", "b"),
        ("evaluate", ["a", "--source", "b", "--reference", "c", "--examples", "d"], "datastore", "d"),
        ("serve", ["models/a", "--strict"], "batch_invariant", True),
        ("compare", ["a", "b", "--reference", "c", "--strict"], "batch_invariant", True),
        ("translate", ["models/a", "--out", "b"], "output", "b"),
        ("embed", ["models/a", "--out=b.npy"], "output", "b.npy"),
        ("train", ["--from", "b", "--out", "a"], "init_from", "b"),
        ("train", ["--forecast", "--out", "a"], "estimate_score", True),
        ("train", ["--teacher", "b", "c", "--out", "a"], "distill_from", ["b", "c"]),
    ],
)
def test_an_old_option_sets_the_new_one(
    verb: str, arguments: list[str], name: str, value: object, capsys: pytest.CaptureFixture[str]
) -> None:
    with deprecation.warnings_on_stderr():
        options: argparse.Namespace = build_parser(verb).parse(arguments)
    assert vars(options)[name] == value
    old = next(argument for argument in arguments if argument.partition("=")[0] in deprecation.OPTIONS).partition("=")[
        0
    ]
    assert capsys.readouterr().err == warned(old, deprecation.OPTIONS[old])


def test_only_options_of_the_command_are_renamed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["score", "models/a", "--teacher", "b"])
    assert "there is no option --teacher" in capsys.readouterr().err
    with deprecation.warnings_on_stderr():
        assert deprecation.current_options(["--", "--from"], ["--init-from"]) == ["--", "--from"]


def test_a_command_prints_a_warning_as_one_line_and_once(capsys: pytest.CaptureFixture[str]) -> None:
    with deprecation.warnings_on_stderr():
        for _ in range(2):
            warn("a.tmx: left out: 1 translation unit of 2.")
    assert capsys.readouterr().err == "transduce: a.tmx: left out: 1 translation unit of 2.\n"


@pytest.mark.usefixtures("second_of_two_processes")
def test_only_the_first_process_prints(capsys: pytest.CaptureFixture[str]) -> None:
    with deprecation.warnings_on_stderr():
        deprecation.warn_renamed("old", "new")
    assert capsys.readouterr().err == ""


def test_old_settings_of_a_file_are_read(tmp_path: Path) -> None:
    path = tmp_path / "settings.toml"
    path.write_text('start_from = "m"\n\n[data]\nteacher = ["t"]\n\n[search]\nstrict = true\nbeam_size = 0\n', "utf-8")
    with pytest.warns(RenamedWarning) as shown:
        content = read_settings(path)
    assert [str(each.message) for each in shown] == [
        "`start_from` is now `init_from`; settings files may keep the old name.",
        "`data.teacher` is now `data.distill_from`; settings files may keep the old name.",
        "`search.strict` is now `search.batch_invariant`; settings files may keep the old name.",
    ]
    put_setting(content, "search.beam_size", 2)
    settings = make_settings(content)
    assert (settings.init_from, settings.data.distill_from, settings.search.batch_invariant) == ("m", ("t",), True)
    put_setting(content, "init_from", 3)
    with pytest.raises(transduce.TransduceError, match=r"^`init_from` must be a text"):
        make_settings(content)


def test_an_error_about_an_old_setting_names_its_line(tmp_path: Path) -> None:
    path = tmp_path / "settings.toml"
    path.write_text("[search]\nstrict = 3\n", "utf-8")
    with pytest.warns(RenamedWarning):
        content = read_settings(path)
    with pytest.raises(transduce.TransduceError, match=r"settings.toml, line 2: `search.batch_invariant` must be true"):
        make_settings(content)


def test_an_old_setting_of_set_and_of_python_is_read() -> None:
    with pytest.warns(RenamedWarning, match=r"`data.teacher` is now `data.distill_from`; .* works until version 0"):
        content = read_settings(None, ["data.teacher=['t']"])
    assert make_settings(content).data.distill_from == ("t",)
    with pytest.warns(RenamedWarning, match="`start_from` is now `init_from`; the old name works until version 0"):
        assert make_settings({"start_from": "m", "init_from": "n"}).init_from == "n"


def test_old_settings_of_corpora_and_cuda_graphs_are_read(tmp_path: Path) -> None:
    path = tmp_path / "settings.toml"
    tables = "[training]\nrecord = false\n" + 2 * "[[data.corpora]]\nsource = ['a.tsv']\nweight = 2.0\n"
    path.write_text(tables, "utf-8")
    assert read_stored(path).training.cuda_graphs is False
    with pytest.warns(RenamedWarning) as shown:
        content = read_settings(path)
    assert [str(each.message) for each in shown] == [
        "`data.corpora.weight` is now `data.corpora.sampling_weight`; settings files may keep the old name.",
        "`training.record` is now `training.cuda_graphs`; settings files may keep the old name.",
    ]
    settings = make_settings(content)
    assert settings.training.cuda_graphs is False
    assert [corpus.sampling_weight for corpus in settings.data.corpora] == [2.0, 2.0]
    path.write_text(tables.replace("2.0", "'much'"), "utf-8")
    with pytest.warns(RenamedWarning):
        content = read_settings(path)
    with pytest.raises(transduce.TransduceError, match=r"settings.toml, line 5: `data.corpora\[0\].sampling_weight`"):
        make_settings(content)


def test_old_settings_of_corpora_in_python_are_read() -> None:
    content: dict[str, Any] = {}
    with pytest.warns(RenamedWarning, match=r"`data.corpora.weight` is now `data.corpora.sampling_weight`"):
        put_setting(content, "data.corpora", [{"source": ["a.tsv"], "weight": 2.0}])
    assert make_settings(content).data.corpora[0].sampling_weight == 2.0  # without another warning
    corpora = ({"source": ("a.tsv",), "weight": 2.0},)
    with pytest.warns(RenamedWarning, match=r"`data.corpora.weight` is now `data.corpora.sampling_weight`"):
        assert make_settings({"data": {"corpora": corpora}}).data.corpora[0].sampling_weight == 2.0
    with pytest.warns(RenamedWarning, match=r"`data.corpora.weight` is now `data.corpora.sampling_weight`"):
        put_setting(content, "data.corpora", corpora)
    assert make_settings(content).data.corpora[0].sampling_weight == 2.0
    assert "weight" in corpora[0]


def test_settings_that_an_earlier_version_wrote_give_no_warning(tmp_path: Path) -> None:
    old = 'start_from = "m"\n[data.filters]\nmax_pieces = 9\n[search]\nstrict = true\n'
    (tmp_path / "settings.toml").write_text(old, "utf-8")
    stored = read_stored(tmp_path / "settings.toml")
    assert (stored.init_from, stored.data.filters.max_tokens, stored.search.batch_invariant) == ("m", 9, True)


@pytest.mark.parametrize(("old", "new"), deprecation.PUBLIC_NAMES.items())
def test_an_old_public_name_is_the_new_one(old: str, new: str) -> None:
    with pytest.warns(RenamedWarning, match=f"`transduce.{old}` is now `transduce.{new}`"):
        assert getattr(transduce, old) is getattr(transduce, new)


@renamed_arguments(colour="color")
def paint(*, color: str) -> str:
    return color


def test_an_old_argument_is_passed_on() -> None:
    with pytest.warns(RenamedWarning, match="`colour=` is now `color=`") as shown:
        assert paint(colour="red") == "red"  # type: ignore[call-arg]
    assert shown[0].filename == __file__
    assert paint(color="red") == "red"
    with pytest.raises(TypeError, match=r"paint\(\) got `color` and its old name `colour`"):
        paint(color="red", colour="blue")  # type: ignore[call-arg]


def test_old_arguments_of_public_functions(trained: Path, tmp_path: Path, translator: Translator) -> None:
    with (
        pytest.warns(RenamedWarning, match="`examples=` is now `datastore=`"),
        pytest.raises(transduce.TransduceError, match="nowhere"),
    ):
        transduce.load(trained, examples="nowhere")  # type: ignore[call-overload]
    with pytest.warns(RenamedWarning, match="`examples=`"):
        open_translator(trained, threads=1, precision="fp32", examples=None)  # type: ignore[call-arg]
    with (
        pytest.warns(RenamedWarning, match="`start_from=` is now `init_from=`"),
        pytest.raises(transduce.TransduceError),
    ):
        transduce.train(out=tmp_path / "run", start_from="nowhere", dry_run=True)  # type: ignore[call-arg]
    with (
        pytest.warns(RenamedWarning, match="`places=` is now `indices=`") as shown,
        pytest.raises(TypeError, match="unexpected keyword argument 'x'"),
    ):
        translator.translate(["a"], SearchSettings(), places=[0], x=1)  # type: ignore[call-arg]
    assert shown[0].filename == __file__  # Python shows it only if that is the script that runs
    with pytest.warns(RenamedWarning, match="`examples` is now `datastore`"):
        assert translator.examples is None
    with pytest.warns(RenamedWarning, match="`longest_source` is now `max_sentence_tokens`"):
        assert translator.longest_source == translator.max_sentence_tokens


def test_old_attributes_of_results() -> None:
    with pytest.warns(RenamedWarning, match="`pieces` is now `tokens`"):
        assert ALTERNATIVE.pieces == ("▁Hi",)
    with pytest.warns(RenamedWarning, match="`piece_log_probabilities` is now `token_log_probabilities`"):
        assert ALTERNATIVE.piece_log_probabilities == (-0.5, -0.25)
    with pytest.warns(RenamedWarning, match="`given_up` is now `stopped`"):
        assert Translation("你好", (ALTERNATIVE,), stopped=True).given_up
    with pytest.warns(RenamedWarning, match="`pieces` is now `tokens`"):
        assert TextScore(tokens=3, characters=9, nats=1.0).pieces == 3
    with pytest.warns(RenamedWarning, match="`place` is now `location`"):
        assert Term("Hund", ("dog",), "line 1").place == "line 1"
    with pytest.warns(RenamedWarning, match="`places` is now `occurrences`"):
        assert [each[:2] for each in Glossary([Term("Hund", ("dog",))]).places("ein Hund")] == [(4, 8)]


def test_json_has_the_current_keys_of_results() -> None:
    written = json.loads(msgspec.json.encode(Translation("你好", (ALTERNATIVE,))))
    assert written["stopped"] is False
    assert {"tokens", "token_log_probabilities"} < set(written["alternatives"][0])


def test_json_keys_are_the_names_of_fields() -> None:
    for path in Path(transduce.__file__).parent.rglob("*.py"):
        assert not re.search(r"msgspec\.field\([^)]*\bname=", path.read_text("utf-8")), path


def test_old_keys_of_stored_records() -> None:
    config = ModelConfig(kind="series", source_vocabulary_size=0, target_vocabulary_size=0, num_series=2)
    content = msgspec.to_builtins(config)
    content["foretells_deviations"] = not content.pop("predicts_deviations")
    assert convert_config(with_current_keys(content, ModelConfig)).predicts_deviations
    card = b'{"sha256":"0","word_vectors":{"pieces":{"pieces":3,"found":2,"words_in_file":9,"width":4}}}'
    coverage = Coverage(tokens=3, found=2, words_in_file=9, width=4)
    assert decode_stored(card, StoredWeightsCard) == StoredWeightsCard(sha256="0", word_vectors={"pieces": coverage})
    side = ImportedVocabularyRecord(
        algorithm=WordPieceRecord(), ids={}, size=3, pad_id=0, eos_id=1, unk_id=2, special_tokens=("<s>", "</s>", "<m>")
    )
    content = msgspec.to_builtins(ImportedTokenizerRecord(source=side, target=side))
    for each in ("source", "target"):
        content[each]["marks"] = content[each].pop("special_tokens")
    assert decode_stored(msgspec.json.encode(content), ImportedTokenizerRecord).target == side
    with pytest.raises(msgspec.ValidationError, match="Expected `object`, got `array`"):
        decode_stored(b"[]", StoredWeightsCard)


def test_search_settings_have_the_new_name() -> None:
    assert SearchSettings(batch_invariant=True) != SearchSettings()


_TINY = ModelConfig(
    source_vocabulary_size=4, target_vocabulary_size=4, d_model=4, d_ff=4, num_heads=1, output_scale=0.5
)


def test_the_old_method_of_models_gives_the_result_of_the_new_one() -> None:
    with pytest.warns(DeprecationWarning, match="`finish` is now `scale_output`"):
        assert Transformer(_TINY).finish(torch.ones(1, 4)).tolist() == [[0.5] * 4]


def test_a_subclass_with_the_old_method_of_models_still_changes_the_output() -> None:
    class Doubled(Transformer):
        def finish(self, x: torch.Tensor) -> torch.Tensor:
            with pytest.warns(DeprecationWarning, match="`finish` is now `scale_output`"):
                return 2.0 * super().finish(x)

    ids = torch.tensor([[3, 2]])
    plain, model = Transformer(_TINY).eval(), Doubled(_TINY).eval()
    model.load_state_dict(plain.state_dict())
    with pytest.warns(DeprecationWarning, match="`finish` is now `scale_output`"):
        found = model(ids, ids)
    torch.testing.assert_close(found, 2.0 * plain(ids, ids))


def test_a_model_with_the_new_method_uses_it_under_the_old_name() -> None:
    class Doubled(Transformer):
        def scale_output(self, x: torch.Tensor) -> torch.Tensor:
            return 2.0 * super().scale_output(x)

    with pytest.warns(DeprecationWarning, match="`finish` is now `scale_output`"):
        assert Doubled(_TINY).finish(torch.ones(1, 4)).tolist() == [[1.0] * 4]


class _Received(Callback):
    """A callback with the old method, which also calls that of its base class, as one that follows others does."""

    def __init__(self, *others: Callback) -> None:
        self.events: list[object] = []
        self.others = others

    def on_forecast(self, event: RunEstimate) -> None:
        self.events.append(event)
        with warnings.catch_warnings(action="ignore"):
            super().on_forecast(event)
            for each in self.others:
                each.on_forecast(event)


def test_a_callback_with_the_old_method_gets_the_estimate_once() -> None:
    class New(Callback):
        def on_estimate(self, event: RunEstimate) -> None:
            received.append(event)

    received: list[object] = []
    estimate: Any = object()
    inner = _Received()
    outer = _Received(inner, New())
    with pytest.warns(RenamedWarning, match="`on_forecast` is now `on_estimate`"):
        outer.on_estimate(estimate)
    assert outer.events == inner.events == received == [estimate]
