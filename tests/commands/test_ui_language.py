"""Test messages in the user's language: the catalog is complete, commands speak Chinese, English is the default."""

import importlib.util
import json
import re
from collections.abc import Iterator
from pathlib import Path
from string import Formatter
from types import ModuleType, SimpleNamespace
from typing import Any, get_type_hints

import msgspec
import polib
import pytest

import transduce
from transduce import ui_language
from transduce.commands.line_warnings import LineWarnings, UnknownLetters
from transduce.commands.main import VERBS, build_parser, main
from transduce.data.series import read_table as read_series
from transduce.errors import TransduceError
from transduce.exchange.exporters import exporter_for
from transduce.inspection.corpus_doctor import _describe
from transduce.inspection.corpus_doctor.alignment import LineRange
from transduce.interop.hugging_face.stored_names import wrong_tensors
from transduce.model.config import REGISTERED_NAMES, ModelConfig, convert_config, explained
from transduce.tasks.kinds.classification import ClassificationKind
from transduce.tasks.run.resolving import _resolve_weight_decay, explain_languages
from transduce.tasks.settings.reading import _names, make_settings, read_settings, setting_names, struct_of
from transduce.tasks.settings.structs import Settings
from transduce.text.languages import SCRIPTS, detect_other_language
from transduce.text.pair_files import Columns, read_table
from transduce.training.choices import Choice, ChoiceLog
from transduce.ui_language import CATALOGS, Catalog, aligned, listed, localized, wrap
from transduce.ui_language_choice import language_of_environment, use_ui_language

ROOT = Path(__file__).resolve().parents[2]
_MAX_UNTRANSLATED = 100
"""Messages that may wait for somebody who writes Chinese; they are shown in English."""


def _generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate_messages", ROOT / "docs" / "generate_messages.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


GENERATOR = _generator()
CHINESE = CATALOGS / "zh" / "LC_MESSAGES" / "transduce.po"
TRANSLATED = {entry.msgid: entry.msgstr for entry in polib.pofile(str(CHINESE)) if entry.msgstr}


@pytest.fixture(scope="module")
def untranslated() -> list[str]:
    """Return the messages of the code that have no Chinese entry."""
    return [text for text in GENERATOR.messages() if text not in TRANSLATED]


@pytest.fixture
def chinese() -> Iterator[None]:
    with use_ui_language("zh"):
        yield


def _fields(text: str) -> set[str]:
    return {name for _, name, _, _ in Formatter().parse(text) if name is not None}


# --- the catalog ---


def test_nearly_every_message_of_the_code_has_a_chinese_entry(untranslated: list[str]) -> None:
    shown = "\n".join(untranslated)
    assert len(untranslated) <= _MAX_UNTRANSLATED, f"Run `python docs/generate_messages.py`, and translate:\n{shown}"


def test_the_extractor_finds_texts_with_fields_and_conditional_parts() -> None:
    code = """
raise TransduceError(f"`{names[0]}` must be {'positive' if zero else f'at least {least:,}'}, but is {len(value)}.")
print(localized("step"))
"""
    tree = GENERATOR.ast.parse(code)
    assert set(GENERATOR._messages_of(tree)) == {
        "step",
        "`{names}` must be positive, but is {value}.",
        "`{names}` must be at least {least}, but is {value}.",
    }


def test_translations_have_the_fields_of_their_messages() -> None:
    for text, translation in TRANSLATED.items():
        english_only = {*re.findall(r"\w\{(\w+)\}", text), "verb", "noun"}  # such as the "s" of a plural
        assert _fields(translation) - english_only == _fields(text) - english_only, text


def test_messages_with_fields_are_found_by_their_text() -> None:
    catalog = Catalog(TRANSLATED)
    wrong = []
    for text, translation in TRANSLATED.items():
        fields = enumerate(sorted(_fields(text)))
        values = {name: "s" if name not in _fields(translation) else f"x{number}" for number, name in fields}
        values |= {"n": "7"} if "n" in values else {}
        found, expected = catalog.find(text.format(**values)), re.sub(r"![tnw]\}", "}", translation).format(**values)
        if found is None or found.replace(" ", "") != expected.replace(" ", ""):  # spaces beside fields vary
            wrong.append(text)
    assert len(wrong) <= len(TRANSLATED) // 50, wrong  # texts that another template describes as well


@pytest.mark.parametrize("activation", ["", "source .venv/bin/activate; "])
def test_suggestions_of_the_demonstration_are_in_chinese(activation: str) -> None:
    command = f'{activation}transduce inspect models/demo "我爱你"'
    found = Catalog(TRANSLATED).find(f"Next, look into a translation: {command}")
    assert found == f"下一步，看看一句译文是怎样得来的：{command}"


@pytest.mark.usefixtures("chinese")
@pytest.mark.parametrize("noun", ["line", "output line"])
def test_warnings_about_a_line_are_chinese_under_every_name_of_a_line(noun: str) -> None:
    def unknown_letters(text: str) -> UnknownLetters:
        return UnknownLetters({"龘"} & {*text}, {"彁"} & {*text})

    for text in ("I am no Chinese sentence at all", "我有龘", "我有彁"):
        for word, count in ((noun, 1), (noun, 8), ("sentence", 1)):
            warnings = LineWarnings("zh", "en", unknown_characters=unknown_letters, noun=word)
            for number in range(1, count + 1):
                warnings.add(number, text, None)
            shown = localized(str(warnings))
            assert shown
            assert not re.search("[A-Za-z]", shown), shown


def test_the_catalog_is_read_as_by_other_programs() -> None:
    assert ui_language.read_translations("zh") == TRANSLATED


# --- looking messages up ---


def test_a_message_in_english_needs_no_catalog(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ui_language, "_catalog", None)
    assert localized("step") == "step"
    assert str(TransduceError("There is no command `x`.")) == "There is no command `x`."


@pytest.mark.usefixtures("chinese")
def test_fields_that_are_messages_are_translated_and_others_repeated() -> None:
    assert localized("`beam_size` must be at least 1, but is 0.") == "`beam_size` 至少应为 1，但现在是 0。"
    assert localized("warning: step\n") == "警告：步\n"
    assert localized("3 lines") == "3 行"
    warning = "warning: line 3 is in English, not in Chinese: the translation is then fluent nonsense; use a model that"
    assert localized(f"{warning} reads this language.").startswith("警告：第 3 行是英语，不是中文：")
    assert localized("`step` must be a number, but is step.") == "`step` 必须是数，但现在是 step。"


@pytest.mark.usefixtures("chinese")
@pytest.mark.parametrize(
    "text",
    [
        "",
        "我爱你",
        "I ate apples yesterday.",
        "{braces} stay",
        "a cat with a hat has fun",
        "fine lines",
        "Read all lines of a text, and compare them",
    ],
)
def test_a_text_that_is_no_message_stays(text: str) -> None:
    assert localized(text) == text


@pytest.mark.usefixtures("chinese")
@pytest.mark.parametrize("data", ["a, none, b", "train.en, none", "loss; step 5; data", "news; none, x"])
def test_parts_of_data_are_not_translated(data: str) -> None:
    assert localized(data) == data
    log = ChoiceLog()
    log.record("data.corpora", None, Choice("none, step", "as the text needs"))
    log.record("task.class_weights", None, Choice("1 to 2", "as the text needs"), is_message=True)
    assert [line.shown_value for line in log.lines] == ["none, step", "1 到 2"]
    log.record("training.batch_tokens", 32, None, note=ClassificationKind.batch_note)
    assert localized(log.lines[-1].reason) == "由你设定；这个任务数的是文本，不是词元"


@pytest.mark.usefixtures("chinese")
def test_values_of_the_choice_log_that_are_messages_are_in_chinese() -> None:
    log = ChoiceLog()
    run_settings = make_settings({"data": {"source": ["a.tsv"]}})
    _resolve_weight_decay(run_settings, Choice(None, "searched in the first steps"), 0.1, log)
    explain_languages(run_settings, (None, None), log)
    explain_languages(run_settings, ("en", None), log)
    assert [line.shown_value for line in log.lines] == ["以后再定", "未知", "en ?"]


@pytest.mark.usefixtures("chinese")
def test_each_of_several_messages_in_one_line_is_translated() -> None:
    """A template of one message must not take the others for the content of a field."""
    ranges = [LineRange(1, 200, 3), LineRange(201, 300, None), LineRange(301, 400, 3), LineRange(401, 4000, -1)]
    messages = [_describe(each, lag_before) for each, lag_before in zip(ranges, (0, 3, 3, 3), strict=True)]
    shown = [localized(each) for each in messages]
    assert not re.search("[a-z]", "".join(shown))
    assert localized("; ".join(messages)) == "；".join(shown)
    variant = (
        "Variant `a` has changed since runs/a was started ({}): restore it, delete that folder, or set another `out`."
    )
    changes = ["model.layers: 3, which was 2 before", "training.steps: 5, which was 4 before"]
    assert "（model.layers：3，原来是 2；training.steps：5，原来是 4）" in localized(variant.format("; ".join(changes)))


@pytest.mark.usefixtures("chinese")
def test_an_empty_list_of_names_is_in_chinese_and_names_stay() -> None:
    error = wrong_tensors("m", [], ["weight"])
    assert localized(str(error)) == "m 里的权重与 config.json 不符：缺少：没有；多出：weight。"


@pytest.mark.usefixtures("chinese")
def test_marks_between_chinese_parts_are_full_width_and_have_no_spaces() -> None:
    assert listed(["Linux x86_64", localized("1 thread"), "AVX2"]) == "Linux x86_64，1 个线程，AVX2"
    assert localized("6 lines in a.en and 1 line in b.en") == "a.en 有 6 行，b.en 有 1 行"
    shown = localized("greedily 292, BLEU -0.23, with 4 hypotheses 294, BLEU -0.07")
    assert shown == "贪心搜索 292，BLEU -0.23，4 个假设的束搜索 294，BLEU -0.07"
    assert localized("`model.d_model`, 32, is no multiple of 64") == "`model.d_model` 是 32，不是 64 的倍数"
    assert localized("the width of a head, 8, is no multiple of 16") == "一个头的宽度是 8，不是 16 的倍数"
    assert ui_language.labeled("Machine", "Linux") == "机器：Linux"


@pytest.mark.usefixtures("chinese")
@pytest.mark.parametrize(("millions", "shown"), [("0.44", "44"), ("1.1", "110"), ("1,000.5", "100,050")])
def test_millions_are_shown_in_units_of_ten_thousand(millions: str, shown: str) -> None:
    text = localized(f"2 + 2 layers × 128, 4 heads, {millions} million parameters")
    assert text == f"2 + 2 层 × 128，4 个头，{shown} 万个参数"


@pytest.mark.usefixtures("chinese")
def test_an_error_is_shown_in_chinese_and_keeps_its_english_text() -> None:
    with pytest.raises(TransduceError, match="模型文件夹里应有") as caught:
        transduce.load(str(ROOT / "docs"))
    assert caught.value.args[0].startswith("A model folder holds a config.json")


def test_refusals_of_exports_are_in_chinese() -> None:
    config = ModelConfig(source_vocabulary_size=9, target_vocabulary_size=9, attention_window=3)
    with use_ui_language("zh"), pytest.raises(TransduceError) as refused:
        exporter_for("ctranslate2", SimpleNamespace(config=config))._check_settings()  # type: ignore[arg-type]
    with use_ui_language("zh"):
        assert str(refused.value) == "CTranslate2 无法计算带有 `model.attention_window` = 3 的模型：请改为导出成 onnx。"


@pytest.mark.parametrize(
    ("environment", "language"),
    [
        ({}, "en"),
        ({"LANG": "C.UTF-8"}, "en"),
        ({"LANG": "zh_CN.UTF-8"}, "zh"),
        ({"LANG": "zh_TW", "LC_ALL": "de_DE.UTF-8"}, "en"),
        ({"LANG": "en_US.UTF-8", "LC_MESSAGES": "zh_CN.GBK"}, "zh"),
        ({"LANG": "zh_CN.UTF-8", "TRANSDUCE_LANGUAGE": "en"}, "en"),
        ({"LANG": "en_US.UTF-8", "TRANSDUCE_LANGUAGE": "zh-Hans"}, "zh"),
    ],
)
def test_the_environment_sets_the_language(environment: dict[str, str], language: str) -> None:
    assert language_of_environment(environment) == language


def test_python_sets_a_language_that_exists() -> None:
    with pytest.raises(TransduceError, match="`ui_language` must be en, zh or auto, but is 'fr': choose"):
        transduce.set_ui_language("fr")


# --- commands ---


@pytest.mark.usefixtures("chinese")
@pytest.mark.parametrize("verb", [None, *VERBS])
def test_help_in_chinese_has_no_english_sentence(verb: str | None, untranslated: list[str]) -> None:
    shown = " ".join(build_parser(verb).format_help().split())
    sentences = re.findall(r"(?<![-\w`.])[a-z]+(?: [a-z]+){3,}(?![-\w`.=])", shown)
    assert [each for each in sentences if not any(each in text for text in untranslated)] == []


@pytest.mark.usefixtures("chinese")
@pytest.mark.parametrize("verb", [None, *VERBS])
def test_help_in_chinese_has_chinese_marks(verb: str | None) -> None:
    """Command names and lists of values stay as they are typed."""
    character = r"[\u4e00-\u9fff，。；：、（）]"
    assert re.findall(rf".*{character}[:;,?!](?: |$)|{character} +（.*", build_parser(verb).format_help(), re.M) == []


def test_help_in_chinese_is_wrapped_by_the_width_of_characters() -> None:
    lines = wrap("模型文件夹（`transduce train` 写出的），或词表相同的几个；默认：标准输入。", 20)
    assert lines == ["模型文件夹", "（`transduce train`", "写出的），或词表相同", "的几个；默认：标准输", "入。"]


@pytest.mark.parametrize("place", ["before", "after", "joined"])
def test_the_option_may_stand_anywhere(place: str, capsys: pytest.CaptureFixture[str]) -> None:
    option = ["--ui-language", "zh"]
    arguments = {
        "before": [*option, "trane"],
        "after": ["trane", *option],
        "joined": ["trane", "--ui-language=zh"],
    }[place]
    assert main(arguments) == 2
    assert capsys.readouterr().err == "transduce：没有命令 `trane`：是不是要用 `train`？\n"
    assert ui_language.ui_language() == "en"


def test_an_unknown_language_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--ui-language", "fr", "train"])
    assert (
        capsys.readouterr().err == "transduce: argument --ui-language: choose en, zh or auto (see transduce --help)\n"
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train"], "transduce train：缺少参数：--out、--source（见 transduce train --help）"),
        (["train", "--source", "a"], "transduce train：缺少参数：--out（见 transduce train --help）"),
        (["plot", "poistions"], "lengths）；是不是要用 positions？"),
        (["inspect", "m", "x", "--html", "page.pdf"], "page.pdf 应当是 HTML 网页，而不是 .pdf：请以 .html 结尾"),
        (
            ["translate", "{folder}", "--plugin", "{folder}/my_layer.py"],
            "my_layer.py 不存在：请指定登记组件的 Python 文件。",
        ),
        (
            ["train", "--stepps", "3"],
            "transduce train：没有选项 --stepps；是不是要用 --steps？（见 transduce train --help）",
        ),
        (["translate", "m", "--beam-size", "x"], "参数 --beam-size：不是整数：'x'"),
        (["train", "--out", "{folder}/m"], "没有可供学习的文本：请用 `--source` 和 `--target` 指定"),
        (["train", "--out", "{folder}/m", "--source", "{folder}/a.zh", "--target", "{folder}/a.en"], "a.zh 不存在"),
        (
            ["train", "--out", "{folder}/m", "--set", "training.stepz=3"],
            "没有设置 `training.stepz`：是不是要用 `training.steps`？",
        ),
        (
            ["train", "--out", "{folder}/m", "--set", "model.dropout=０．１"],
            "必须是数，但现在是 `０．１`。请把全角的 `０．１` 改为半角的 `0.1`。",
        ),
        (["train", "--set", "model.dropout：0.1", "--out", "m"], "请把全角的 `：` 改为半角的 `:`。"),
        (["train", "—source", "a"], "`—source` 开头不是半角的 `-`：请输入 --source"),
        (["train", "－－steps＝5"], "请输入 --steps"),
        (
            ["train", "--out", "{folder}/m", "--source", "{folder}，{folder}", "--target", "x"],
            "多个文件之间请用空格分隔：",
        ),
        (["translate", __file__, "{folder}"], "test_ui_language.py 是文件：请写模型的文件夹，要读的文本写在它后面。"),
        (["doctor", __file__], "test_ui_language.py 是 .py 文件。"),
        (["translate", "{folder}/none"], "none 不存在：请指定模型的文件夹。"),
        (["generate", "{folder}"], "模型文件夹里应有 config.json，但"),
        (["evaluate", "{folder}", "--source", "x", "--reference", "y"], "不存在：请检查文件名。"),
    ],
)
def test_errors_that_learners_meet_are_in_chinese(
    arguments: list[str],
    message: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TRANSDUCE_LANGUAGE", "zh")
    try:
        code = main([each.format(folder=tmp_path) for each in arguments])
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    assert code == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("script", sorted(SCRIPTS.keys() - {"Latin"}))
def test_names_of_scripts_are_in_chinese(script: str) -> None:
    letters = "".join(each for each in map(chr, range(0x370, 0xD800)) if each.isalpha() and SCRIPTS[script].match(each))
    name = detect_other_language(" ".join([letters[:20]] * 5), "en")
    assert name is not None
    with use_ui_language("zh"):
        assert not re.search("[A-Za-z]|字母字母|语字母", localized(name))


def test_pages_and_terminals_name_kinds_of_models_alike() -> None:
    words = (ROOT / "src/transduce/inspection/page/words.js").read_text("utf-8")
    kinds = dict(re.findall(r'\["(\w+)", "(\w+)"\]', words))
    names = ("Classifier", "Tagger", "Parser", "Generator", "Forecaster", "Translator", "MaskFiller", "Embedder")
    assert kinds == {name: TRANSLATED[name] for name in names}


@pytest.mark.parametrize(
    ("message", "shown"),
    [
        ("56 points of 温度, x", "温度、x 的 56 个点"),
        ("forecast of 14 points", "14 个点的预测"),
        ("training.steps: 600, which was not set", "training.steps：600，原来没有设置"),
        ("training.minutes: not set, which was 4.0 before", "training.minutes：不再设置，原来是 4.0"),
        (
            "data.source: ['a', 'b', 'c', 'd'], which was ['a', 'b c', 'd'] before",
            "data.source：['a', 'b', 'c', 'd']，原来是 ['a', 'b c', 'd']",
        ),
        ("accuracy 89.25 % (357 of 400 texts)", "准确率 89.25 %（对 357，共 400 段文本）"),
        ("accuracy 99.00 % (99 of 100 words)", "准确率 99.00 %（对 99，共 100 个词）"),
        (
            "a.conll has no column `词`: its columns are numbers from 1 to 2.",
            "a.conll 没有列 `词`：它的列是从 1 到 2 的编号。",
        ),
        (
            "m/a cannot be written (No space left on device): name another folder.",
            "无法写入 m/a（磁盘空间不足）：请换一个文件夹。",
        ),
        (
            "transduce: A file or folder could not be used: m/a: No space left on device.",
            "transduce：无法使用文件或文件夹：m/a：磁盘空间不足。",
        ),
        (
            "40 texts of 41 classes (of the dev set alone: “好，x y z w”)",
            "40 段文本，共 41 类（仅在开发集中：“好，x y z w”）",
        ),
        ("f1 93.2 %", "F1 93.2 %"),
    ],
)
@pytest.mark.usefixtures("chinese")
def test_parts_of_messages_are_in_chinese(message: str, shown: str) -> None:
    assert localized(message) == shown


@pytest.mark.usefixtures("chinese")
@pytest.mark.parametrize(
    ("toml", "message"),
    [
        ("[training]\nsteps = ５０", "不是有效的 TOML：第 2 行第 9 列：无效的值。请把全角的 `５０` 改为半角的 `50`。"),
        ("[model]\nd_model：5", "请把全角的 `：` 改为半角的 `:`。"),
        ("a = “x”  # 注：", '请把全角的 `“”` 改为半角的 `""`。'),
        ('a = "，" b', "第 1 行第 9 列：语句之后应当换行或结束。"),
        ("a = [1，2]", "数组缺少 ]。请把全角的 `，` 改为半角的 `,`。"),
    ],
)
def test_an_error_of_toml_is_in_chinese_and_names_full_width_characters(
    toml: str, message: str, tmp_path: Path
) -> None:
    path = tmp_path / "a.toml"
    path.write_text(toml, "utf-8")
    with pytest.raises(TransduceError) as error:
        read_settings(path)
    assert str(error.value).endswith(message)


@pytest.mark.usefixtures("chinese")
@pytest.mark.parametrize(
    ("header", "columns", "message"),
    [
        ("中文，英文", None, "请把全角的 `，` 改为半角的 `,`。"),
        ("温度（℃）,湿度", ("温度(℃)", "湿度"), "是不是要用 '温度（℃）'？请改正 `data.columns`。"),
    ],
)
def test_columns_with_full_width_characters_are_named(
    header: str, columns: tuple[str, str] | None, message: str, tmp_path: Path
) -> None:
    path = tmp_path / "a.csv"
    path.write_text(f"{header}\n1,2\n", "utf-8")
    with pytest.raises(TransduceError) as error:
        list(read_table(str(path), "csv", Columns(columns)))
    assert str(error.value).endswith(message)


def test_a_series_is_suggested_for_a_name_with_half_width_marks(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("温度（℃）,湿度\n1,2\n", "utf-8")
    with pytest.raises(TransduceError, match=r"Did you mean `温度（℃）`\?$"):
        read_series(path, ["温度(℃)"])


def test_machine_readable_output_is_the_same_in_every_language(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    reports = []
    for language in ui_language.LANGUAGES:
        assert main(["check-install", "--json", "-", "--ui-language", language]) == 0
        reports.append(json.loads(capfdbinary.readouterr().out))
    assert reports[0] == reports[1]


def test_columns_are_aligned_where_a_chinese_character_takes_two() -> None:
    rows = [["变体", "BLEU"], ["base", "31.2"], ["大", "9"]]
    assert aligned(rows) == ["变体  BLEU", "base  31.2", "大    9"]
    assert aligned(rows, left=0) == ["变体  BLEU", "base  31.2", "  大     9"]
    assert aligned(rows, left=1) == ["变体  BLEU", "base  31.2", "大       9"]


# --- lists of values ---


def _wrong_setting(name: str) -> str:
    group, _, key = name.partition(".")
    with pytest.raises(TransduceError) as raised:
        make_settings({group: {key: {"no": "value"}}})
    return str(raised.value)


def _choices(name: str) -> list[str]:
    hint: Any = Settings
    for key in name.split("."):
        hint = get_type_hints(struct_of(hint))[key]
    return _names(hint)


CHOICES = {name: choices for name in setting_names() if name.count(".") == 1 and (choices := _choices(name))}


@pytest.mark.usefixtures("chinese")
@pytest.mark.parametrize("name", CHOICES)
def test_values_that_a_setting_accepts_are_never_translated(name: str) -> None:
    listed = "、".join([*CHOICES[name], *sorted(REGISTERED_NAMES.get(name.removeprefix("model."), ()))])
    shown = f"{listed} 之一，但现在是 `" if "、" in listed or name == "model.attention" else f"或 {listed}，但现在是 `"
    assert f"`{name}` 必须是" in _wrong_setting(name)
    assert shown in _wrong_setting(name)


@pytest.mark.usefixtures("chinese")
def test_a_list_of_values_is_not_translated_by_a_more_general_message() -> None:
    with pytest.raises(TransduceError) as raised:
        ModelConfig(source_vocabulary_size=9, target_vocabulary_size=9, positions="circular")  # type: ignore[arg-type]
    assert "必须是 sinusoidal、learned、rotary、rotary-interleaved、relative、none 之一，但现在是" in str(raised.value)
    general, special = "{a} must be {b}.", "{a} must be one of {b}."
    catalog = Catalog({general: "{a} 必须是{b!t}。", special: "{a} 必须是 {b} 之一。", "none": "没有"})
    assert catalog.find("x must be one of all, none.") == "x 必须是 all、none 之一。"
    assert catalog.find("`x, y` must be none.") == "`x, y` 必须是没有。"


# --- messages that hold others ---


@pytest.mark.usefixtures("chinese")
@pytest.mark.parametrize(
    ("message", "shown"),
    [
        (
            "just before, the source has extra lines or the target lacks some",
            "就在这之前，源侧多了几行，或者目标侧少了几行",
        ),
        ("source: Han and kana; target: Latin", "源：汉字和假名；目标：拉丁字母"),
        ("base, seed 1: training; log in a/log", "base，种子 1：开始训练；日志在 a/log"),
        ("base, seed 1: new, a/1", "base，种子 1：未开始，a/1"),
        (
            "a/config.json cannot be read as a model's configuration: JSON is malformed: trailing characters (byte 9).",
            "a/config.json 不能作为模型的配置读取：JSON 有错误：末尾有多余的字符（字节 9）。",
        ),
        ("Expected `int`, got `str` - at `$.d_model`", "`$.d_model` 应当是 `int`，而不是 `str`"),
        ("bleu: difference", "bleu：差别"),
        (
            (
                "No pair of a is left: of 9 read, the filters dropped 9 for source and target identical (first a:2) "
                "and 0 are held out; check the files or change `data.filters`."
            ),
            (
                "a 没有剩下任何句对：读了 9 个，过滤去掉了 9 个因为源和目标相同（第一个在 a:2），留出 0 个；"
                "请检查文件，或修改 `data.filters`。"
            ),
        ),
    ],
)
def test_messages_in_messages_are_translated_whole(message: str, shown: str) -> None:
    assert localized(message) == shown


@pytest.mark.usefixtures("chinese")
def test_a_list_that_is_cut_short_has_chinese_commas() -> None:
    shown = localized(
        "warning: the vocabulary spells some letters in bytes (a, b, …), as the training text had few or none of them: "
        "check the translations of 3 lines (1, 2, 3)."
    )
    assert "（a、b、…）" in shown
    assert shown.endswith("请检查 3 行（1、2、3）的译文。")


@pytest.mark.usefixtures("chinese")
def test_a_field_in_chinese_has_no_space_before_it() -> None:
    told = "which splits words at spaces, but the references are written without them: specify their language (for "
    for value, shown in (("not set", "现在是未设置。"), ("en", "现在是 en。")):
        message = f"BLEU was counted with the tokenizer '13a', {told}example zh), which is {value}."
        assert localized(message).endswith(shown)


def test_a_value_in_backticks_stays_as_it_is() -> None:
    catalog = Catalog({"no column `{name}` in {path}": "{path} 里没有列 `{name}`", "{a} of {b}": "{b}的{a}"})
    assert catalog.translate("no column `日期` in a.csv") == "a.csv 里没有列 `日期`"
    assert catalog.translate("词 of x") == "x 的词"


def test_of_several_ways_to_match_the_one_that_translates_most_is_taken() -> None:
    catalog = Catalog({"dropped {what} and kept {n}": "去掉{what!t}，留下 {n} 个", "salt and pepper": "盐和胡椒"})
    assert catalog.translate("dropped salt and pepper and kept 3") == "去掉盐和胡椒，留下 3 个"
    endless = Catalog({f"{'{a} and ' * 20}{{z}}!{'{b} or ' * 20}": "无"})
    text = "x and " * 3000
    assert endless.translate(text) == text  # found at once, though there are many ways to try


@pytest.mark.usefixtures("chinese")
def test_an_unknown_component_of_a_folder_is_explained() -> None:
    with pytest.raises(msgspec.ValidationError) as raised:
        convert_config({"source_vocabulary_size": 9, "target_vocabulary_size": 9, "attention_score": "euclid"})
    expected = "`model.attention_score` 是 'euclid'，不是内置的组件；请用 --plugin FILE.py 传入登记它的文件"
    assert localized(explained(raised.value)) == expected
