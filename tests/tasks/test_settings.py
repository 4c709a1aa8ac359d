"""Test settings from a TOML file and `--set`: checked up front, and written so that they read back."""

import re
import tomllib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, get_type_hints

import numpy as np
import pytest

from transduce.deprecation import RenamedWarning
from transduce.errors import TransduceError
from transduce.model.config import ModelConfig
from transduce.model_folder.write import to_toml
from transduce.tasks.settings.reading import make_settings, put_setting, read_settings, setting_names
from transduce.tasks.settings.structs import SET_WITHOUT_SETTINGS, DataSettings, ModelSettings, Settings
from transduce.tasks.train import train

WriteLines = Callable[[str, Iterable[str]], Path]


def test_model_settings_are_the_fields_of_a_configuration_that_users_set() -> None:
    stored = {name: kind for name, kind in get_type_hints(ModelConfig).items() if name not in SET_WITHOUT_SETTINGS}
    assert get_type_hints(ModelSettings) == {name: kind | None for name, kind in stored.items()}
    assert list(ModelConfig.__struct_fields__) == list(get_type_hints(ModelConfig))
    assert set(ModelConfig.__struct_fields__) >= SET_WITHOUT_SETTINGS
    assert ModelSettings() == ModelSettings(**dict.fromkeys(stored))


def test_a_file_may_begin_with_a_byte_order_mark(tmp_path: Path) -> None:
    (tmp_path / "settings.toml").write_bytes(b'\xef\xbb\xbfpreset = "small"\r\n')
    assert read_settings(tmp_path / "settings.toml") == {"preset": "small"}


def test_a_malformed_assignment_is_reported_before_a_missing_file() -> None:
    with pytest.raises(TransduceError, match=r"`--set` takes a key and a value.*but was given `training\.steps`"):
        read_settings(Path("5"), ["training.steps"])


def test_assignments_override_the_settings_file_in_order(write_lines: WriteLines) -> None:
    path = write_lines("settings.toml", ['preset = "small"', "[training]", "steps = 100", "seed = 3"])
    content = read_settings(path, ["training.steps=200", "training.steps = 300", "model.dropout=0.25", "preset=tiny"])
    settings = make_settings(content)
    assert (settings.preset, settings.training.steps, settings.training.seed) == ("tiny", 300, 3)
    assert settings.model.dropout == 0.25


def test_an_assigned_list_and_a_string_with_and_without_quotes() -> None:
    content = read_settings(
        None, ['data.source=["a.zh", "b.zh"]', "data.target=['a.en', 'b.en']", 'model.norm_order="post"']
    )
    settings = make_settings(content)
    assert settings.data.source == ("a.zh", "b.zh")
    assert settings.data.target == ("a.en", "b.en")
    assert settings.model.norm_order == "post"


@pytest.mark.parametrize(
    ("assignment", "nearest"),
    [
        ("training.step=5", "training.steps"),
        ("training.batch_token=5", "training.batch_tokens"),
        ("model.num_layers=5", "model.num_encoder_layers|model.num_decoder_layers"),
        ("dropout=0.1", "model.dropout"),
        ("modle.d_model=5", "model.d_model"),
        ("data.filters.max_token=5", "data.filters.max_tokens"),
    ],
)
def test_an_unknown_key_is_refused_with_the_nearest(assignment: str, nearest: str) -> None:
    name = assignment.partition("=")[0]
    with pytest.raises(TransduceError, match=rf"There is no setting `{name}`: did you mean `({nearest})`\?"):
        make_settings(read_settings(None, [assignment]))


@pytest.mark.parametrize("value", ["inf", "nan", "-inf"])
def test_non_finite_settings_are_refused(value: str) -> None:
    with pytest.raises(TransduceError, match=rf"`data\.filters\.max_length_ratio` must be finite, but is {value}"):
        make_settings(read_settings(None, [f"data.filters.max_length_ratio={value}"]))


def test_an_unknown_key_without_a_similar_one_gets_no_suggestion() -> None:
    with pytest.raises(TransduceError, match=r"There is no setting `zzzz`: docs/settings\.md lists all there are\.$"):
        make_settings({"zzzz": 1})


@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        ("training.steps=abc", r"`training\.steps` must be a whole number, but is `abc`\.$"),
        ("training.steps=1.5", r"`training\.steps` must be a whole number, but is `1\.5`"),
        ("model.dropout=high", r"`model\.dropout` must be a number, but is `high`"),
        ("model.norm_order=middle", r"`model\.norm_order` must be one of pre, post, sandwich, but is `middle`"),
        ("data.source=train.zh", r'`data\.source` must be a list, such as \["a", "b"\], but is `train\.zh`'),
        ("model.positions=rope", "`model.positions` must be one of .*, but is `rope`: did you mean `rotary`"),
        ("data.filters.max_tokens=many", r"`data\.filters\.max_tokens` must be a whole number, but is `many`"),
        ("training=5", r"`training` must be a table, but is `5`"),
        (
            "task.kind=translaton",
            r"`task\.kind` must be one of translation, .* but is `translaton`: .* `translation`\?",
        ),
        ("training.steps=0", r"`training\.steps` must be greater than 0, but is 0"),
        ("preset=huge", r"`preset` must be one of tiny, small, .*, but is `huge`"),
        ('data.languages=["zh", "English"]', r"`data\.languages` must be language codes .* one is `English`"),
        ('data.target=["a.en"]', r"`data\.target` needs the side that it translates"),
        ('data.dev_target=["a.en"]', r"`data\.dev_target` needs the side that it translates"),
        ("search.beam_size=0", r"`beam_size` must be at least 1, but is 0"),
    ],
)
def test_a_wrong_value_is_refused_with_the_name_of_its_setting(assignment: str, message: str) -> None:
    with pytest.raises(TransduceError, match=message):
        make_settings(read_settings(None, [assignment]))


@pytest.mark.parametrize(("text", "value"), [(".3", 0.3), ("-.5e-3", -0.5e-3), ("1.", 1.0)])
def test_a_number_may_be_written_without_the_zero_that_toml_asks_for(text: str, value: float) -> None:
    assert read_settings(None, [f"training.learning_rate={text}"]) == {"training": {"learning_rate": value}}
    assert read_settings(None, ["data.prepared=./.3"]) == {"data": {"prepared": "./.3"}}


def test_steps_and_minutes_together_are_refused() -> None:
    with pytest.raises(TransduceError, match=r"`training\.steps` \(5\) and `training\.minutes` \(1\.5\) both set when"):
        make_settings(read_settings(None, ["training.steps=5", "training.minutes=1.5"]))


@pytest.mark.parametrize("assignment", ["training.steps", "=5", "training..steps=5", "a b=5"])
def test_an_assignment_without_form_is_refused(assignment: str) -> None:
    with pytest.raises(TransduceError, match=r"`--set` takes a key and a value, such as training\.steps=2000"):
        read_settings(None, [assignment])


def test_a_value_where_a_table_should_be_is_refused() -> None:
    with pytest.raises(TransduceError, match=r"`data\.source` belongs to the table `data`, but `data` was set to 5"):
        put_setting({"data": 5}, "data.source", ["x"])


def test_a_settings_file_that_is_missing_or_no_toml(tmp_path: Path, write_lines: WriteLines) -> None:
    with pytest.raises(TransduceError, match=r"nowhere\.toml cannot be read: No such file or directory"):
        read_settings(tmp_path / "nowhere.toml")
    with pytest.raises(TransduceError, match=r"bad\.toml is not valid TOML: .*line 1"):
        read_settings(write_lines("bad.toml", ["steps: 5"]))
    latin = tmp_path / "latin.toml"
    latin.write_bytes(b'preset = "\xe9"\n')
    with pytest.raises(TransduceError, match=r"latin\.toml:1: files must be UTF-8, but this line is not: "):
        read_settings(latin)


def test_written_settings_read_back() -> None:
    source = ('a "b" \\ c.zh', "tab\there", "del\x7f", "我.zh", "line\nfeed")
    settings = Settings(data=DataSettings(source=source, target=source, languages=("zh", "en")))
    content = tomllib.loads(to_toml(settings))
    assert make_settings(content) == settings
    assert "steps" not in content["training"]  # TOML has no null: what is open is left out


def test_setting_names_include_those_used_in_scripts() -> None:
    promised = {
        "training.seed", "training.steps", "training.minutes", "training.save_every", "training.validate_every",
        "training.report_every", "training.batch_tokens", "model.kind", "model.positions", "model.attention_score",
        "model.norm", "model.norm_order", "task.kind",
    }  # fmt: skip
    assert promised <= set(setting_names())


def test_settings_are_frozen() -> None:
    with pytest.raises(AttributeError, match="immutable"):
        Settings().preset = "tiny"  # type: ignore[misc]


def test_tied_embeddings_of_two_vocabularies_are_refused(toy_corpus: Path, tmp_path: Path) -> None:
    settings = {"tokenizer.joint": False, "model.tie_source_target": True, "tokenizer.vocabulary_size": 300}
    with pytest.raises(TransduceError, match="but source and target have separate vocabularies"):
        train(
            out=tmp_path / "m",
            source=toy_corpus / "train.zh",
            target=toy_corpus / "train.en",
            settings=settings,
            dry_run=True,
        )


def test_an_assigned_table_is_merged_into_the_present_one(write_lines: WriteLines) -> None:
    path = write_lines("settings.toml", ["[model]", "d_model = 32", "num_heads = 2"])
    content = read_settings(path, ["model={dropout=0.05, num_heads=4}", "training={steps=5}"])
    assert content == {"model": {"d_model": 32, "num_heads": 4, "dropout": 0.05}, "training": {"steps": 5}}
    put_setting(content, "model", {"d_ff": 8})
    put_setting(content, "task.noise", {})
    assert content["model"]["d_model"] == 32
    assert content["task"] == {"noise": {}}
    with pytest.raises(TransduceError, match=r"A setting's name is a text, such as `training\.steps`, but one is 5"):
        put_setting(content, 5, 1)  # type: ignore[arg-type]


_INLINE = "training = {batch_tokens = 4, steps = 5, learning_rate = 0.1}"


@pytest.mark.parametrize(
    ("lines", "assignment", "expected"),
    [
        ([_INLINE], "training.batch_tokens=8", {"batch_tokens": 8, "steps": 5, "learning_rate": 0.1}),
        ([_INLINE], "training.batch_size=8", {"batch_size": 8, "steps": 5, "learning_rate": 0.1}),
        ([_INLINE], "training={batch_size=8}", {"batch_size": 8, "steps": 5, "learning_rate": 0.1}),
        ([_INLINE], "training={}", {"batch_tokens": 4, "steps": 5, "learning_rate": 0.1}),
        (["[training]", "batch_tokens = 4"], "training={batch_size=8, steps=6}", {"batch_size": 8, "steps": 6}),
        (["training.batch_tokens = 4"], "training={batch_size=8}", {"batch_size": 8}),
        (['"training"."batch_tokens" = 4'], "training.batch_size=8", {"batch_size": 8}),
        (["training.batch_tokens = 4"], 'training."batch_size"=8', {"batch_size": 8}),
        (["training.batch_tokens = 4"], " 'training' . batch_size = 8", {"batch_size": 8}),
    ],
)
def test_assignments_override_all_forms_of_toml(
    write_lines: WriteLines, lines: list[str], assignment: str, expected: dict[str, Any]
) -> None:
    content = read_settings(write_lines("settings.toml", lines), [assignment])
    assert content == {"training": expected}
    make_settings(content)


def test_an_assigned_table_keeps_what_it_does_not_set(write_lines: WriteLines) -> None:
    lines = ["[data.filters]", "max_tokens = 9", "[search]", "diversity_penalty = 0.5", "length_penalty = -1.5"]
    path = write_lines("settings.toml", lines)
    with pytest.warns(RenamedWarning, match=r"max_pieces` is now `data\.filters\.max_tokens`; .* until version"):
        content = read_settings(path, ["data.filters={max_pieces=7}", "search={beam_size=5}"])
    assert content["data"] == {"filters": {"max_tokens": 7}}
    with pytest.raises(TransduceError, match=r"settings\.toml, line 5: `length_penalty` must not"):
        make_settings(content)
    put_setting(content, "search", {"length_penalty": 1.0})
    assert make_settings(content).search.beam_size == 5


def test_keys_of_a_table_of_values_may_have_dots() -> None:
    assignments = ['task.class_weights={"a.b"=2}', 'task.class_weights."c.d"=3', "task.class_weights.好=4"]
    content = read_settings(None, assignments)
    assert content == {"task": {"class_weights": {"a.b": 2, "c.d": 3, "好": 4}}}


@pytest.mark.parametrize("name", ["data.corpora[0].share", "data.corpora.share", "data.corpora.0.share"])
def test_one_table_of_an_array_cannot_be_assigned(write_lines: WriteLines, name: str) -> None:
    path = write_lines("settings.toml", ["[[data.corpora]]", 'source = ["a.zh"]'])
    with pytest.raises(TransduceError, match=r"is in an array of tables.*write `data\.corpora=\[\{"):
        read_settings(path, [f"{name}=0.5"])
    with pytest.raises(TransduceError, match="is in an array of tables"):
        put_setting(read_settings(path), name, 0.5)


def test_a_quoted_key_with_dots_is_refused_in_a_file(write_lines: WriteLines) -> None:
    content = read_settings(write_lines("settings.toml", ['"training.steps" = 5']))
    with pytest.raises(TransduceError, match=r"`training\.steps` is quoted as one key, .* without quotes"):
        make_settings(content)


def test_a_value_of_several_lines_is_refused() -> None:
    with pytest.raises(TransduceError, match=r"`training\.steps` must be a whole number"):
        make_settings(read_settings(None, ["training.steps=8\nseed = 3"]))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"task": {"kind": "denoising", "noise": {"kind": "masking", "mean_span": 9.0}}},
            "`task.noise.mean_span` means",
        ),
        ({"training": {"lora_projections": ["attention-output"]}}, "`training.lora_projections` means nothing where"),
    ],
)
def test_settings_without_effect_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(TransduceError, match=message):
        make_settings(settings)


def test_numpy_numbers_and_paths_are_accepted_as_settings() -> None:
    content: dict[str, Any] = {}
    for name, value in (
        ("training.steps", np.int64(10)),
        ("model.dropout", np.float64(0.25)),
        ("tokenizer.text", (Path("a.txt"),)),
        ("init_from", Path("m")),
    ):
        put_setting(content, name, value)
    settings = make_settings(content)
    assert (settings.training.steps, settings.model.dropout) == (10, 0.25)
    assert (settings.tokenizer.text, settings.init_from) == (("a.txt",), "m")


@pytest.mark.parametrize(
    ("lines", "assignments", "message"),
    [
        (["[training]", "stpes = 5"], [], r"run\.toml, line 2: There is no setting `training.stpes`: did you mean"),
        (
            ["# ours", "training.steps = 'x'"],
            [],
            r"run\.toml, line 2: `training.steps` must be a whole number, but is `x`\.$",
        ),
        (["[training]", "", "steps = 0"], [], r"run\.toml, line 3: `training.steps` must be greater than 0, but is 0"),
        (
            ["[data.filters]", '"max_tokens" = "many"'],
            [],
            r"run\.toml, line 2: `data.filters.max_tokens` must be a whole number",
        ),
        (["[search]", "beam_size = 0"], [], r"run\.toml, line 2: `beam_size` must be at least 1, but is 0"),
        (
            ["[data]", "languages = 5", "[[data.corpora]]", 'languages = ["en", "de"]'],
            [],
            r"run\.toml, line 2: `data\.languages` must be a list",
        ),
        (
            ["[[data.corpora]]", 'source = ["a.en"]', "[[data.corpora]] # more", 'source = ["b.en"]', "wieght = 2"],
            [],
            r"line 5: There is no setting `data\.corpora\[1\]\.wieght`: did you mean `data\.corpora\[1\]\.sampling_w",
        ),
        (
            [
                "[[data.corpora]]",
                'source = ["a.en"]',
                "sampling_weight = 1",
                "[[data.corpora]]",
                'source = "b.en"',
                "[training]",
            ],
            [],
            r"line 5: `data\.corpora\[1\]\.source` must be a list",
        ),
        (
            ["[[data.corpora]]", 'source = ["a.en"]', 'languages = ["en", "?"]', "[data]", 'languages = ["en", "de"]'],
            [],
            r"run\.toml: `languages` must be language codes",  # of one of two tables
        ),
        (["training = {steps = 0}"], [], r"run\.toml: `training.steps` must be greater than 0, but is 0"),
        (["training = 5"], [], r"run\.toml, line 1: `training` must be a table, but is `5`"),
        (["[training]", "steps = 5"], ["training.minutes=1.5"], r"run\.toml, line 2: `training.steps` \(5\) and"),
    ],
)
def test_a_mistake_in_a_file_comes_with_its_line(
    write_lines: WriteLines, lines: list[str], assignments: list[str], message: str
) -> None:
    content = read_settings(write_lines("run.toml", lines), assignments)
    with pytest.raises(TransduceError, match=message):
        make_settings(content)


@pytest.mark.parametrize("value", ["x", "0"])
def test_an_error_in_an_assignment_does_not_name_the_settings_file(write_lines: WriteLines, value: str) -> None:
    path = write_lines("run.toml", ["[training]", "steps = 5"])
    with pytest.raises(TransduceError, match=r"^`training.steps` must be "):
        make_settings(read_settings(path, [f"training.steps={value}"]))
    with pytest.raises(TransduceError, match=r"^There is no setting `training.stpes`"):
        make_settings(read_settings(path, ["training.stpes=5"]))
    content = read_settings(path)
    put_setting(content, "training", {"steps": 0})
    with pytest.raises(TransduceError, match=r"^`training.steps` must be greater than 0"):
        make_settings(content)
    path = write_lines("run.toml", ["[[data.corpora]]", 'source = "a.en"'])
    with pytest.raises(TransduceError, match=r"^`data.corpora\[0\].source` must be a list"):
        make_settings(read_settings(path, ['data.corpora=[{source="b.en"}]']))


@pytest.mark.parametrize("value", ["SWIGLU", "ｓｗｉｇｌｕ"])
def test_a_wrong_name_is_recognized_in_other_case_and_width(value: str) -> None:
    with pytest.raises(TransduceError, match=r"`model\.activation` .* did you mean `swiglu`\?"):
        make_settings({"model": {"activation": value}})


def test_a_default_weight_decay_of_a_run_is_chosen_anew_for_other_steps(trained: Path, tmp_path: Path) -> None:
    path = trained / "settings.toml"
    assert "weight_decay" in read_settings(path)["training"]
    for assignments, kept in (
        (["training.steps=800"], False),
        (["training.learning_rate=0.001", "training.steps=800"], False),
        (["training.minutes=1"], False),
        (["training.steps=80"], True),  # those of the file
        (["training.patience=3"], True),
        (["training.weight_decay=0.5", "training.steps=800"], True),
    ):
        assert ("weight_decay" in read_settings(path, assignments)["training"]) == kept, assignments
    own = tmp_path / "settings.toml"
    own.write_text(re.sub(r"^weight_decay = .*$", "weight_decay = 0.5", path.read_text("utf-8"), flags=re.MULTILINE))
    assert read_settings(own, ["training.steps=800"])["training"]["weight_decay"] == 0.5


@pytest.mark.parametrize("kind", ["classification", "tagging", "time-series"])
def test_the_batch_size_of_a_task_that_counts_no_tokens_has_two_names(kind: str) -> None:
    task = {"task": {"kind": kind}}
    settings = make_settings(task | {"training": {"batch_size": 24}})
    assert settings == make_settings(task | {"training": {"batch_tokens": 24}})
    assert (settings.training.batch_tokens, settings.training.batch_size) == (24, None)
    with pytest.raises(TransduceError, match=r"`training\.batch_size` \(24\) and `training\.batch_tokens` \(32\) set"):
        make_settings(task | {"training": {"batch_size": 24, "batch_tokens": 32}})
    with pytest.raises(TransduceError, match=r"`training\.batch_size` must be greater than 0, but is 0\."):
        make_settings(task | {"training": {"batch_size": 0}})


@pytest.mark.parametrize(("name", "other"), [("batch_size", "batch_tokens"), ("batch_tokens", "batch_size")])
def test_a_size_of_a_step_overrides_that_of_a_file_by_its_other_name(tmp_path: Path, name: str, other: str) -> None:
    path = tmp_path / "settings.toml"
    path.write_text(f'task.kind = "tagging"\n[training]\n{other} = 32\n', encoding="utf-8")
    assert read_settings(path, [f"training.{name}=24"])["training"] == {name: 24}
    assert make_settings(read_settings(path, [f"training.{name}=24"])).training.batch_tokens == 24
    both = read_settings(path, [f"training.{name}=24", f"training.{other}=48"])
    with pytest.raises(TransduceError, match=r"set the same: set one of them\."):
        make_settings(both)


def test_a_default_of_earlier_versions_in_a_file_is_dropped_only_where_it_has_no_effect(tmp_path: Path) -> None:
    path = tmp_path / "settings.toml"
    path.write_text("[search]\ndiverse_groups = 1\ndiversity_penalty = 0.5\n", "utf-8")
    assert make_settings(read_settings(path)).search.diversity_penalty == 1.0
    assert make_settings(read_settings(path, ["search.diverse_groups=2"])).search.diversity_penalty == 0.5
    for content in (
        read_settings(path, ["search.diversity_penalty=0.5"]),
        {"search": {"diversity_penalty": 0.5}},
    ):
        with pytest.raises(TransduceError, match="`diversity_penalty` applies between groups of a beam"):
            make_settings(content)
