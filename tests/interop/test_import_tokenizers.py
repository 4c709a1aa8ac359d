"""Test tokenizers of Hugging Face folders, trained here: ids equal transformers' on 1,000 lines of each language."""

import gzip
import io
import json
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import pytest
from sentencepiece import SentencePieceProcessor, SentencePieceTrainer

from transduce.data import prepare
from transduce.errors import TransduceError
from transduce.interop.hugging_face.import_tokenizer import ModelIds, TokenizerFiles, import_tokenizer
from transduce.interop.hugging_face.imported_tokenizer import ImportedTokenizer, ImportedVocabulary
from transduce.tasks.kinds.encoders import read_store
from transduce.text import CorpusFiles, FilterSettings
from transduce.text.vocabulary import special_tokens_of

BYTE_LEVEL = {"gpt2": "GPT2Tokenizer", "opt": "GPT2Tokenizer", "bart": "BartTokenizer", "roberta": "RobertaTokenizer"}


class Texts(NamedTuple):
    """Lines of Chinese, German and English: some to train tokenizers on, and others to compare them on."""

    training: list[str]
    lines: list[str]


@pytest.fixture(scope="module")
def texts(data_folder: Path) -> Texts:
    training, lines = [], []
    for name in ("tatoeba-zh-en/train.zh", "tatoeba-de-en/train.de", "tatoeba-de-en/train.en"):
        path = data_folder / f"{name}.gz"
        if not path.is_file():
            pytest.skip(f"{path} is missing")
        content = gzip.decompress(path.read_bytes()).decode("utf-8").split("\n")
        training += content[:1000]
        lines += content[20_000:21_000]
    return Texts(
        training, [*lines, "", "a  b\u3000c\t«é» ① ﬁ Ⅳ", "İstanbul ΣΑΣ 你好ab12 don't 'S 12345", "😀👍🏽 x\u200dy"]
    )


@pytest.fixture(scope="module")
def train(texts: Texts) -> Callable[..., bytes]:
    known: dict[str, bytes] = {}

    def make(kind: str, **options: Any) -> bytes:
        key = f"{kind}{options}"
        if key not in known:
            model = io.BytesIO()
            SentencePieceTrainer.train(
                sentence_iterator=iter(texts.training),
                model_writer=model,
                model_type=kind,
                **({"vocab_size": 2200, "character_coverage": 0.99, "minloglevel": 2} | options),
            )
            known[key] = model.getvalue()
        return known[key]

    return make


def peers() -> Any:
    return pytest.importorskip("transformers", reason="needs transformers: pip install 'transduce[hf]'")


def our_tokenizer(folder: Path, model_type: str, size: int = 4000, **ids: int | None) -> ImportedTokenizer:
    files = TokenizerFiles(lambda name: (folder / name).read_bytes() if (folder / name).exists() else None, str(folder))
    known = ModelIds(model_type=model_type, sizes=(size, size), pad_id=ids.get("pad_id"), eos_id=ids.get("eos_id"))
    return ImportedTokenizer(import_tokenizer(files, known))


def check_ids(theirs: Any, vocabulary: ImportedVocabulary, lines: Sequence[str], *, ends: bool = True) -> None:
    expected = theirs(list(lines))["input_ids"]
    for line, ids, pieces in zip(lines, expected, vocabulary.encode_batch(lines), strict=True):
        found = vocabulary.with_special_tokens(pieces)
        assert (found if ends else found[:-1]) == ids, line


def check_texts(theirs: Any, vocabulary: ImportedVocabulary, lines: Sequence[str]) -> None:
    ids = vocabulary.encode_batch(lines)
    expected = theirs.batch_decode(ids, skip_special_tokens=True)
    assert [vocabulary.decode(row) for row in ids] == expected


def write(folder: Path, name: str, content: bytes | dict[str, Any]) -> None:
    folder.mkdir(exist_ok=True)
    data = content if isinstance(content, bytes) else json.dumps(content, ensure_ascii=False).encode()
    (folder / name).write_bytes(data)


@pytest.mark.parametrize("saved", [False, True])
@pytest.mark.parametrize("family", ["t5", "pegasus"])
def test_t5_and_pegasus_ids_equal_those_of_transformers(
    family: str, saved: bool, texts: Texts, train: Callable[..., bytes], tmp_path: Path
) -> None:
    kind = {"t5": "T5Tokenizer", "pegasus": "PegasusTokenizer"}[family]
    write(tmp_path, "spiece.model", train("unigram", pad_id=0, eos_id=1, unk_id=2, bos_id=-1))
    write(tmp_path, "tokenizer_config.json", {"tokenizer_class": kind})
    theirs = peers().AutoTokenizer.from_pretrained(tmp_path)
    if saved:
        theirs.save_pretrained(tmp_path)
        (tmp_path / "spiece.model").unlink()
    vocabulary = our_tokenizer(tmp_path, family, pad_id=0, eos_id=1).source
    assert isinstance(vocabulary, ImportedVocabulary)
    check_ids(theirs, vocabulary, texts.lines[:3000])
    check_texts(theirs, vocabulary, texts.lines[:200])
    if family == "t5":
        check_ids(theirs, vocabulary, ["The <extra_id_0> walks in <extra_id_1> park"])


@pytest.mark.parametrize("saved", [False, True])
@pytest.mark.parametrize("kind", ["MBartTokenizer", "MBart50Tokenizer", "NllbTokenizer", "legacy NllbTokenizer"])
def test_mbart_and_nllb_ids_with_language_tags_equal_those_of_transformers(
    kind: str, saved: bool, texts: Texts, train: Callable[..., bytes], tmp_path: Path
) -> None:
    legacy, kind = kind.startswith("legacy"), kind.removeprefix("legacy ")
    nllb = kind == "NllbTokenizer"
    source, target = ("zho_Hans", "eng_Latn") if nllb else ("zh_CN", "en_XX")
    write(tmp_path, "sentencepiece.bpe.model", train("bpe" if nllb else "unigram"))
    more: dict[str, Any] = {"extra_special_tokens": [source, "deu_Latn", target]} if nllb else {}
    more |= {"legacy_behaviour": True} if legacy else {}
    theirs = getattr(peers(), kind).from_pretrained(tmp_path, src_lang=source, tgt_lang=target, **more)
    theirs.save_pretrained(tmp_path)
    if saved:
        (tmp_path / "sentencepiece.bpe.model").unlink()
    tokenizer = our_tokenizer(tmp_path, "m2m_100" if nllb else "mbart", pad_id=1, eos_id=2).for_languages(
        source, target
    )
    assert isinstance(tokenizer.source, ImportedVocabulary)
    check_ids(theirs, tokenizer.source, texts.lines[:3000])
    tag = theirs.convert_tokens_to_ids(target)
    assert tokenizer.target.forced == (() if kind == "MBartTokenizer" else (tag,))
    assert tokenizer.target.decode([tag, *tokenizer.target.encode("good"), 2]) == "good"
    with pytest.raises(TransduceError, match=r"languages are .* but `xx` was asked for"):
        tokenizer.for_languages(None, "xx")


@pytest.mark.parametrize("model_type", ["mbart", "m2m_100"])
def test_a_sentencepiece_model_without_the_languages_of_its_tags_is_refused(
    model_type: str, train: Callable[..., bytes], tmp_path: Path
) -> None:
    write(tmp_path, "sentencepiece.bpe.model", train("unigram"))
    with pytest.raises(TransduceError, match="must name the languages of its tokenizer, but its files do not"):
        our_tokenizer(tmp_path, model_type, pad_id=1, eos_id=2)


def test_m2m100_ids_equal_those_of_transformers(texts: Texts, train: Callable[..., bytes], tmp_path: Path) -> None:
    write(tmp_path, "sentencepiece.bpe.model", train("bpe"))
    write(tmp_path, "vocab.json", _fairseq_table(train("bpe")))
    theirs = peers().M2M100Tokenizer(
        str(tmp_path / "vocab.json"), str(tmp_path / "sentencepiece.bpe.model"), src_lang="zh", tgt_lang="de"
    )
    tokenizer = our_tokenizer(tmp_path, "m2m_100", pad_id=1, eos_id=2).for_languages("zh", "de")
    assert isinstance(tokenizer.source, ImportedVocabulary)
    check_ids(theirs, tokenizer.source, texts.lines)
    assert tokenizer.target.forced == (theirs.get_lang_id("de"),)


def _fairseq_table(model: bytes) -> dict[str, int]:
    pieces = SentencePieceProcessor(model_proto=model)
    special = ["<s>", "<pad>", "</s>", "<unk>"]
    names = special + [pieces.id_to_piece(id) for id in range(3, pieces.vocab_size())]
    return {name: id for id, name in enumerate(names)}


def test_marian_has_two_sentencepiece_models_and_one_table(
    texts: Texts, train: Callable[..., bytes], tmp_path: Path
) -> None:
    models = [SentencePieceProcessor(model_proto=train("unigram", vocab_size=size)) for size in (2200, 2100)]
    names = dict.fromkeys(model.id_to_piece(id) for model in models for id in range(3, model.vocab_size()))
    table = {name: id for id, name in enumerate(["</s>", "<unk>", *names, ">>fra<<", ">>zho<<", "<pad>"])}
    for name, size in (("source.spm", 2200), ("target.spm", 2100)):
        write(tmp_path, name, train("unigram", vocab_size=size))
    write(tmp_path, "vocab.json", table)
    write(tmp_path, "tokenizer_config.json", {"tokenizer_class": "MarianTokenizer", "source_lang": "zh"})
    with pytest.warns(UserWarning, match="sacremoses"):
        theirs = peers().AutoTokenizer.from_pretrained(tmp_path)
    tokenizer = our_tokenizer(tmp_path, "marian", len(table), pad_id=table["<pad>"], eos_id=0)
    assert isinstance(tokenizer.source, ImportedVocabulary)
    assert isinstance(tokenizer.target, ImportedVocabulary)
    check_ids(theirs, tokenizer.source, [*texts.lines, ">>fra<< hello"])
    check_texts(theirs, tokenizer.target, texts.lines[:200])
    told = tokenizer.for_languages(None, "zho")
    assert told.source.with_special_tokens(told.source.encode("hello")) == theirs(">>zho<< hello")["input_ids"]


@pytest.mark.parametrize("saved", [False, True])
@pytest.mark.parametrize("family", list(BYTE_LEVEL))
def test_byte_level_bpe_ids_equal_those_of_transformers(family: str, saved: bool, texts: Texts, tmp_path: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    trained = tokenizers.ByteLevelBPETokenizer()
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    trained.train_from_iterator(texts.training, vocab_size=1500, special_tokens=special, show_progress=False)
    trained.save_model(str(tmp_path))
    is_decoder = family in ("gpt2", "opt")
    names: dict[str, Any] = {"bos_token": "</s>", "eos_token": "</s>", "unk_token": "</s>"} if is_decoder else {}
    names |= {"add_bos_token": True} if family == "opt" else {}
    theirs = getattr(peers(), BYTE_LEVEL[family]).from_pretrained(tmp_path, **names)
    theirs.save_pretrained(tmp_path)
    settings = json.loads((tmp_path / "tokenizer_config.json").read_text("utf-8"))
    write(tmp_path, "tokenizer_config.json", settings | names)
    if not saved:
        (tmp_path / "tokenizer.json").unlink()
    ids: dict[str, Any] = {"pad_id": None if family == "gpt2" else 1, "eos_id": 2}
    vocabulary = our_tokenizer(tmp_path, family, **ids).source
    assert isinstance(vocabulary, ImportedVocabulary)
    check_ids(theirs, vocabulary, texts.lines, ends=not is_decoder)
    assert family != "opt" or theirs(["tea"])["input_ids"][0][0] == 2
    check_texts(theirs, vocabulary, [line for line in texts.lines[:300] if "," not in line])
    if family == "roberta" and saved:
        check_ids(theirs, vocabulary, ["I <mask> you .", "a<mask>"])


@pytest.mark.parametrize("saved", [False, True])
@pytest.mark.parametrize("lowercase", [False, True])
def test_wordpiece_ids_equal_those_of_transformers(lowercase: bool, saved: bool, texts: Texts, tmp_path: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    trained = tokenizers.BertWordPieceTokenizer(lowercase=lowercase)
    trained.train_from_iterator(texts.training, vocab_size=2500, show_progress=False)
    trained.save_model(str(tmp_path))
    theirs = peers().BertTokenizer.from_pretrained(tmp_path, do_lower_case=lowercase)
    theirs.save_pretrained(tmp_path)
    (tmp_path / ("vocab.txt" if saved else "tokenizer.json")).unlink()
    vocabulary = our_tokenizer(tmp_path, "bert", pad_id=0).source
    assert isinstance(vocabulary, ImportedVocabulary)
    check_ids(theirs, vocabulary, [*texts.lines, "I [MASK] you.", "x" * 101])
    assert vocabulary.decode(vocabulary.with_special_tokens(vocabulary.encode("good day, tom."))) == "good day, tom."


LINES = ["Héllo World, 你好", "two words", "Two 东西"]


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        ("BertTokenizer", {"do_lower_case": False}),
        ("BertTokenizer", {"strip_accents": False, "tokenize_chinese_chars": False}),
        ("GPT2Tokenizer", {"add_prefix_space": True}),
        ("RobertaTokenizer", {"add_prefix_space": True}),
    ],
)
def test_settings_of_a_class_override_the_stored_tokenizer(kind: str, settings: dict[str, Any], tmp_path: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    is_bert = kind == "BertTokenizer"
    family = {"BertTokenizer": "bert", "GPT2Tokenizer": "gpt2", "RobertaTokenizer": "bart"}[kind]
    trained = tokenizers.BertWordPieceTokenizer() if is_bert else tokenizers.ByteLevelBPETokenizer()
    special = {} if is_bert else {"special_tokens": ["<s>", "<pad>", "</s>", "<unk>", "<|endoftext|>"]}
    trained.train_from_iterator(
        [*LINES, "W H World Words T é e h l o"] * 9, vocab_size=400, show_progress=False, **special
    )
    trained.save_model(str(tmp_path))
    getattr(peers(), kind).from_pretrained(tmp_path).save_pretrained(tmp_path)
    (tmp_path / ("vocab.txt" if is_bert else "vocab.json")).unlink()
    before = our_tokenizer(tmp_path, family, pad_id=0, eos_id=2).source.encode_batch(LINES)
    content = json.loads((tmp_path / "tokenizer_config.json").read_text("utf-8"))
    write(tmp_path, "tokenizer_config.json", content | settings)
    theirs = peers().AutoTokenizer.from_pretrained(tmp_path)
    vocabulary = our_tokenizer(tmp_path, family, pad_id=0, eos_id=2).source
    assert vocabulary.encode_batch(LINES) == theirs(LINES, add_special_tokens=False)["input_ids"] != before


@pytest.mark.parametrize("model_type", ["bart", "roberta", "gpt2"])
@pytest.mark.parametrize("template", ["", "$A </s>", "<s> $A", "</s> $A <s>", "<s> <mask> $A </s> </s>", "$A <mask>"])
def test_tokens_around_a_text_are_those_of_the_post_processor(model_type: str, template: str, tmp_path: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    trained, names = tokenizers.ByteLevelBPETokenizer(), ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    trained.train_from_iterator(LINES * 9, vocab_size=300, show_progress=False, special_tokens=names)
    if template:
        trained.post_processor = tokenizers.processors.TemplateProcessing(
            single=template, special_tokens=[(name, names.index(name)) for name in names if name in template.split()]
        )
    else:
        trained.post_processor = tokenizers.processors.ByteLevel()
    named = {
        "bos_token": "<s>",
        "eos_token": "</s>",
        "pad_token": "<pad>",
        "unk_token": "<unk>",
        "mask_token": "<mask>",
    }
    theirs = peers().PreTrainedTokenizerFast(tokenizer_object=trained, **named)
    theirs.save_pretrained(tmp_path)
    before, after = (side.split() for side in (template or "$A").split("$A"))
    is_refused = after not in ([], ["</s>"]) if model_type == "gpt2" else (len(before), len(after)) != (1, 1)
    if model_type != "bart" and is_refused:
        rule = "nothing but the end symbol after a text" if model_type == "gpt2" else "one token before a text and one"
        with pytest.raises(TransduceError, match=f"tokenizer.json: .*`post_processor`.* must put {rule}"):
            our_tokenizer(tmp_path, model_type, pad_id=1, eos_id=2)
        return
    tokenizer = our_tokenizer(tmp_path, model_type, pad_id=1, eos_id=2)
    assert isinstance(tokenizer.source, ImportedVocabulary)
    check_ids(theirs, tokenizer.source, [*LINES, ""], ends=model_type != "gpt2" or after == ["</s>"])
    if model_type == "roberta":
        marks = special_tokens_of(tokenizer.source)
        assert [[marks.cls, marks.sep]] == theirs([""])["input_ids"]
    assert model_type == "roberta" or tokenizer.target.with_special_tokens([7])[-2:] == [7, 2]


@pytest.mark.parametrize("saved", [False, True])
@pytest.mark.parametrize("eos_id", [1, 4])
def test_a_language_model_with_the_tokenizer_of_bert_begins_with_cls(eos_id: int, saved: bool, tmp_path: Path) -> None:
    """A text that it continues has no [SEP] at its end."""
    words = ["[PAD]", "</s>", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "我", "你"]
    write(tmp_path, "vocab.txt", "\n".join(words).encode())
    write(tmp_path, "tokenizer_config.json", {"tokenizer_class": "BertTokenizerFast"})
    if saved:
        peers().BertTokenizerFast.from_pretrained(tmp_path).save_pretrained(tmp_path)
        assert (tmp_path / "tokenizer.json").exists()
    tokenizer = our_tokenizer(tmp_path, "gpt2", pad_id=0, eos_id=eos_id)
    assert isinstance(tokenizer.source, ImportedVocabulary)
    assert tokenizer.source.with_special_tokens(tokenizer.source.encode("我你")) == [3, 6, 7, eos_id]


def test_a_t5_with_the_tokenizer_of_bert_ends_sources_with_sep(tmp_path: Path) -> None:
    """Its end symbol, at which a generated text ends, is another token."""
    words = ["[PAD]", "</s>", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b"]
    write(tmp_path, "vocab.txt", "\n".join(words).encode())
    write(tmp_path, "tokenizer_config.json", {"tokenizer_class": "BertTokenizer"})
    theirs = peers().AutoTokenizer.from_pretrained(tmp_path)
    tokenizer = our_tokenizer(tmp_path, "t5", pad_id=0, eos_id=1)
    assert isinstance(tokenizer.source, ImportedVocabulary)
    check_ids(theirs, tokenizer.source, ["a b", "c", ""])
    assert tokenizer.source.with_special_tokens([6])[-1] == 4
    assert tokenizer.target.with_special_tokens([6])[-1] == 1


def test_padding_is_no_token_that_stands_around_a_text(tmp_path: Path) -> None:
    """A T5 whose padding is its end symbol is padded by the tokenizer's token; RoBERTa's positions depend on the id."""
    tokenizers = pytest.importorskip("tokenizers")
    trained, names = tokenizers.ByteLevelBPETokenizer(), ["<s>", "<pad>", "</s>", "<unk>"]
    trained.train_from_iterator(LINES * 9, vocab_size=300, show_progress=False, special_tokens=names)
    trained.post_processor = tokenizers.processors.RobertaProcessing(("</s>", 2), ("<s>", 0))
    trained.save(str(tmp_path / "tokenizer.json"))
    named = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "</s>", "unk_token": "<unk>"}
    write(tmp_path, "tokenizer_config.json", named | {"pad_token": "<pad>"})
    for model_type in ("bart", "t5", "bert"):
        assert our_tokenizer(tmp_path, model_type, pad_id=2, eos_id=2).source.pad_id == 1
    text = our_tokenizer(tmp_path, "bert", pad_id=1, eos_id=2).source
    for model_type in ("bart", "t5", "bert"):  # a padding that is text would be ignored in texts
        padded = our_tokenizer(tmp_path, model_type, pad_id=text.id("e"), eos_id=2).source
        assert (padded.pad_id, padded.encode("tea ee")) == (1, text.encode("tea ee"))
    with pytest.raises(TransduceError, match=r"`pad_token_id` must not be a token of text, but it is .* is 1:"):
        our_tokenizer(tmp_path, "roberta", pad_id=text.id("e"), eos_id=2)
    for model_type, pad_id in (("roberta", 0), ("xlm-roberta", 2)):
        with pytest.raises(TransduceError, match=f"neither for text nor around a text, but token {pad_id} does"):
            our_tokenizer(tmp_path, model_type, pad_id=pad_id, eos_id=2)
    write(tmp_path, "tokenizer_config.json", named | {"pad_token": "</s>"})
    for pad_id in (2, text.id("e")):
        with pytest.raises(TransduceError, match=f"neither for text nor around a text, but token {pad_id} does"):
            our_tokenizer(tmp_path, "bart", pad_id=pad_id, eos_id=2)


@pytest.mark.parametrize(
    ("single", "message"),
    [
        ([{"Sequence": {"id": "A", "type_id": 0}}] * 2, "must put the text between its tokens once, but .* 2 times"),
        ([], "must put the text between its tokens once, but .* 0 times"),
        (None, "tokenizer.json: `post_processor` cannot be read"),
    ],
)
def test_a_post_processor_that_does_not_keep_the_text_is_refused(
    single: list[Any] | None, message: str, tmp_path: Path
) -> None:
    model = {"type": "WordLevel", "vocab": {"</s>": 0, "<pad>": 1, "<unk>": 2}, "unk_token": "<unk>"}
    processor: dict[str, Any] = {"type": "TemplateProcessing", "single": single, "pair": [], "special_tokens": {}}
    write(tmp_path, "tokenizer.json", {"model": model, "added_tokens": [], "post_processor": processor})
    with pytest.raises(TransduceError, match=message):
        our_tokenizer(tmp_path, "bart", pad_id=1, eos_id=0)


BERT_NAMES = {
    "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]", "pad_token": "[PAD]", "mask_token": "[MASK]",
}  # fmt: skip


@pytest.mark.parametrize("kind", [None, "BertTokenizer", "ElectraTokenizerFast", "PreTrainedTokenizerFast"])
@pytest.mark.parametrize("lowercase", [False, True])
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"do_lower_case": False},
        {"do_lower_case": True, "strip_accents": False},
        {"tokenize_chinese_chars": False},
        {"extra_special_tokens": ["<two>", "<other>"], "mask_token": "<m>"},
        {"additional_special_tokens": ["<other>"]},
        {"extra_special_tokens": {"image_token": "<other>"}, "video_token": "<two>"},
        {"mask_token": {"content": "<other>", "lstrip": True, "__type": "AddedToken"}},
        {"sep_token": "<s>", "cls_token": "<c>", "extra_special_tokens": ["<other>"]},
    ],
)
def test_a_folder_of_bert_is_read_as_by_transformers(
    kind: str | None, lowercase: bool, settings: dict[str, Any], tmp_path: Path
) -> None:
    """The class may be left to the model's type, and tokens may be named that tokenizer.json lacks."""
    tokenizers = pytest.importorskip("tokenizers")
    words = [*BERT_NAMES.values(), *"hH", "##e", "##l", "##o", "##é", "hello", "Hello", "a", "b", "我", "##们", "我们"]
    model = tokenizers.Tokenizer(tokenizers.models.WordPiece({word: id for id, word in enumerate(words)}))
    model.normalizer = tokenizers.normalizers.BertNormalizer(lowercase=lowercase)
    model.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    model.post_processor = tokenizers.processors.BertProcessing(("[SEP]", 2), ("[CLS]", 1))
    model.add_special_tokens(list(BERT_NAMES.values()))
    model.save(str(tmp_path / "tokenizer.json"))
    write(tmp_path, "config.json", {"model_type": "bert"})
    named = {} if kind is None else {"tokenizer_class": kind}
    write(tmp_path, "tokenizer_config.json", named | BERT_NAMES | settings)
    theirs = peers().AutoTokenizer.from_pretrained(tmp_path)
    vocabulary = our_tokenizer(tmp_path, "bert", pad_id=3).source
    lines = ["Hello hello", "helé HELLO", "我们 a", "a <other>b <two> <m>", "a<other>", "a [MASK]"]
    assert isinstance(vocabulary, ImportedVocabulary)
    check_ids(theirs, vocabulary, lines)


def test_a_byte_level_folder_without_a_class_is_read_as_by_transformers(tmp_path: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    trained = tokenizers.ByteLevelBPETokenizer()
    trained.train_from_iterator(LINES * 9, vocab_size=400, show_progress=False, special_tokens=["<|endoftext|>"])
    trained.save(str(tmp_path / "tokenizer.json"))
    write(tmp_path, "config.json", {"model_type": "gpt2"})
    lines = [*LINES, "a<other>b <two>"]
    encoded = []
    for settings in ({}, {"add_prefix_space": True}, {"extra_special_tokens": ["<two>", "<other>"]}):
        write(tmp_path, "tokenizer_config.json", {"eos_token": "<|endoftext|>"} | settings)
        theirs = peers().AutoTokenizer.from_pretrained(tmp_path)
        encoded.append(our_tokenizer(tmp_path, "gpt2", eos_id=0).source.encode_batch(lines))
        assert encoded[-1] == theirs(lines, add_special_tokens=False)["input_ids"]
    assert encoded[0] != encoded[1]
    assert encoded[0] != encoded[2]
    size = len(json.loads((tmp_path / "tokenizer.json").read_text("utf-8"))["model"]["vocab"])
    assert (
        our_tokenizer(tmp_path, "gpt2", size, eos_id=0).source.encode_batch(lines) == encoded[0]
    )  # without embeddings


def write_llama(folder: Path, pipeline: str) -> dict[str, Any]:
    """Write a small Llama tokenizer with an added token `<old>` to a folder; return its tokenizer.json."""
    tokenizers = pytest.importorskip("tokenizers")
    model = tokenizers.Tokenizer(tokenizers.models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    if pipeline == "Prepend":
        steps = [tokenizers.normalizers.Prepend("▁"), tokenizers.normalizers.Replace(" ", "▁")]
        model.normalizer = tokenizers.normalizers.Sequence(steps)
    else:
        model.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace(prepend_scheme=pipeline, split=False)
    special = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    how = tokenizers.trainers.BpeTrainer(vocab_size=300, special_tokens=special, show_progress=False)
    model.train_from_iterator(["hello world this is a test", "the cat world hello"] * 9, how)
    content: dict[str, Any] = json.loads(model.to_str())
    old = content["added_tokens"][0] | {"id": 300, "content": "<old>", "special": False}
    content["added_tokens"] = [*content["added_tokens"][:3], old]
    assert len(content["model"]["vocab"]) == 300
    write(folder, "tokenizer.json", content)
    return content


LLAMA_LINES = ["hello world", " hello <old>world  cat", "<old>the <new>cat é<new>  test", "", "<old>", "a▁world 你"]
NAMES = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}


@pytest.mark.parametrize("family", ["llama", "mistral", "phi3"])
@pytest.mark.parametrize("pipeline", ["Prepend", "always", "never"])
def test_a_llama_class_replaces_the_stored_pipeline(family: str, pipeline: str, tmp_path: Path) -> None:
    """Transformers ignores a Llama tokenizer.json's treatment of the first space; in others it ignores the class."""
    write_llama(tmp_path, pipeline)
    write(tmp_path, "config.json", {"model_type": family})
    found = []
    for settings in (
        {},
        {"add_prefix_space": False},
        {"legacy": True, "add_prefix_space": None},
        {"legacy": False, "add_prefix_space": True},
        {"tokenizer_class": "PreTrainedTokenizerFast", "add_prefix_space": False},
    ):
        write(tmp_path, "tokenizer_config.json", {"tokenizer_class": "LlamaTokenizerFast"} | NAMES | settings)
        theirs = peers().AutoTokenizer.from_pretrained(tmp_path)
        vocabulary = our_tokenizer(tmp_path, family, eos_id=2).source
        found.append(vocabulary.encode_batch(LLAMA_LINES))
        assert found[-1] == theirs(LLAMA_LINES, add_special_tokens=False)["input_ids"]
        assert [vocabulary.decode(ids) for ids in found[-1][:3]] == theirs.batch_decode(found[-1][:3])
    assert (found[0] == found[1]) == (family != "llama")


def test_gemma_ids_equal_those_of_transformers(tmp_path: Path) -> None:
    content = write_llama(tmp_path, "never")
    content["normalizer"] = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
    pattern = {"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": False}
    around = {"single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]}
    tokens = {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}}
    processor = {"type": "TemplateProcessing", "pair": [], "special_tokens": tokens} | around
    write(tmp_path, "tokenizer.json", content | {"pre_tokenizer": pattern, "post_processor": processor})
    write(tmp_path, "config.json", {"model_type": "gemma"})
    write(tmp_path, "tokenizer_config.json", {"tokenizer_class": "GemmaTokenizer", "add_bos_token": True} | NAMES)
    theirs = peers().AutoTokenizer.from_pretrained(tmp_path)
    vocabulary = our_tokenizer(tmp_path, "gemma", eos_id=2).source
    assert isinstance(vocabulary, ImportedVocabulary)
    check_ids(theirs, vocabulary, LLAMA_LINES, ends=False)
    assert vocabulary.with_special_tokens([7])[:2] == [1, 7]


@pytest.mark.parametrize("family", ["gemma", "phi3"])
def test_a_sentencepiece_model_alone_is_no_tokenizer_of_gemma_or_phi3(family: str, tmp_path: Path) -> None:
    """Such a model shows neither the start symbol nor the markers of a chat."""
    model = io.BytesIO()
    lines = iter(["hello world this is a test"] * 9)
    SentencePieceTrainer.train(sentence_iterator=lines, model_writer=model, vocab_size=17, minloglevel=2)
    write(tmp_path, "tokenizer.model", model.getvalue())
    with pytest.raises(TransduceError, match=f"must hold a tokenizer.json for a model of the type {family}"):
        our_tokenizer(tmp_path, family, eos_id=2)


@pytest.mark.parametrize("settings", [{}, {"legacy": True}, {"legacy": False}, {"add_prefix_space": False}])
def test_a_llama_sentencepiece_model_puts_spaces_as_its_class_does(
    settings: dict[str, bool], train: Callable[..., bytes], tmp_path: Path
) -> None:
    """White space and special tokens in prompts are those of chats: line feeds at the end, `</s>` within."""
    options = {"normalization_rule_name": "identity", "byte_fallback": True, "remove_extra_whitespaces": False}
    write(tmp_path, "tokenizer.model", train("bpe", vocab_size=1000, **options))
    write(tmp_path, "config.json", {"model_type": "llama"})
    write(tmp_path, "tokenizer_config.json", {"tokenizer_class": "LlamaTokenizer"} | NAMES | settings)
    theirs = peers().AutoTokenizer.from_pretrained(tmp_path)
    lines = ["<s>[A] b </s> c<s>d", " a  b ", "a\n", "</s>", "▁a", "我 </s>\n<|x|>\n", "", " ", "  a"]
    vocabulary = our_tokenizer(tmp_path, "llama", size=theirs.vocab_size, eos_id=2).source
    found = vocabulary.encode_batch(lines)
    assert found == theirs(lines, add_special_tokens=False)["input_ids"]
    for ids in found:
        assert vocabulary.decode(ids, line_feeds=True) == theirs.decode(ids, skip_special_tokens=True)


@pytest.mark.parametrize("kind", ["LlamaTokenizerFast", "PreTrainedTokenizerFast"])
@pytest.mark.parametrize(
    "tokens",
    [
        {"301": {"content": "<new>", "special": True}},
        {"309": {"content": "<new>", "special": False}},
        {"300": {"content": "<old>", "lstrip": True}, "301": {"content": "<new>", "rstrip": True}},
        {"290": {"content": "o"}},
    ],
)
def test_added_tokens_of_tokenizer_config_json_give_equal_ids(
    kind: str, tokens: dict[str, dict[str, Any]], tmp_path: Path
) -> None:
    stored = write_llama(tmp_path, "first")["added_tokens"]
    listed = {str(token["id"]): {key: token[key] for key in token if key != "id"} for token in stored}
    described = {id: listed["300"] | token for id, token in tokens.items()}
    write(tmp_path, "config.json", {"model_type": "llama"})
    write(tmp_path, "tokenizer_config.json", {"tokenizer_class": kind} | NAMES)
    before = our_tokenizer(tmp_path, "llama", 302, eos_id=2).source.encode_batch(LLAMA_LINES)
    settings = {"tokenizer_class": kind, "added_tokens_decoder": listed | described}
    write(tmp_path, "tokenizer_config.json", settings | NAMES)
    theirs = peers().AutoTokenizer.from_pretrained(tmp_path)
    found = our_tokenizer(tmp_path, "llama", 302, eos_id=2).source.encode_batch(LLAMA_LINES)
    assert found == theirs(LLAMA_LINES, add_special_tokens=False)["input_ids"] != before


def test_a_start_symbol_that_a_byte_level_tokenizer_adds(tmp_path: Path) -> None:
    write(tmp_path, "vocab.json", {"<|endoftext|>": 0, "a": 1})
    write(tmp_path, "merges.txt", b"#version: 0.2\n")
    write(tmp_path, "tokenizer_config.json", {"tokenizer_class": "GPT2Tokenizer", "add_bos_token": True})
    vocabulary = our_tokenizer(tmp_path, "gpt2", eos_id=0).source
    assert vocabulary.with_special_tokens(vocabulary.encode("a"))[:2] == [0, 1]


@pytest.mark.parametrize("saved", [False, True])
def test_ids_of_the_first_llama_tokenizers_equal_those_of_transformers(
    saved: bool, texts: Texts, train: Callable[..., bytes], tmp_path: Path
) -> None:
    options = {"normalization_rule_name": "identity", "byte_fallback": True, "remove_extra_whitespaces": False}
    write(tmp_path, "tokenizer.model", train("bpe", vocab_size=2500, **options))
    write(tmp_path, "tokenizer_config.json", {"tokenizer_class": "LlamaTokenizer", "add_bos_token": True})
    theirs = peers().AutoTokenizer.from_pretrained(tmp_path)
    if saved:
        theirs.save_pretrained(tmp_path)
        (tmp_path / "tokenizer.model").unlink()
    vocabulary = our_tokenizer(tmp_path, "llama", eos_id=2).source
    assert isinstance(vocabulary, ImportedVocabulary)
    check_ids(theirs, vocabulary, texts.lines[:3000], ends=False)


@pytest.mark.parametrize("family", ["llama3", "qwen2"])
def test_llama3_and_qwen2_ids_equal_those_of_transformers(
    family: Literal["llama3", "qwen2"], texts: Texts, tmp_path: Path
) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

    from transduce.interop.hugging_face.token_pipelines import PATTERNS

    pattern = PATTERNS[family]
    model = tokenizers.Tokenizer(models.BPE(ignore_merges=family == "llama3"))
    if family == "qwen2":
        model.normalizer = normalizers.NFC()
    cut = pre_tokenizers.Split(tokenizers.Regex(pattern), "isolated")
    bytes_of = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    model.pre_tokenizer = pre_tokenizers.Sequence([cut, bytes_of])
    model.decoder = decoders.ByteLevel()
    special = ["<|begin|>", "<|end|>"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    how = trainers.BpeTrainer(vocab_size=1500, special_tokens=special, initial_alphabet=alphabet, show_progress=False)
    model.train_from_iterator(texts.training, how)
    model.post_processor = processors.TemplateProcessing(single="<|begin|> $A", special_tokens=[("<|begin|>", 0)])
    fast = peers().PreTrainedTokenizerFast
    theirs = fast(tokenizer_object=model, bos_token="<|begin|>", eos_token="<|end|>")
    theirs.save_pretrained(tmp_path)
    vocabulary = our_tokenizer(tmp_path, family.rstrip("3"), eos_id=1).source
    assert isinstance(vocabulary, ImportedVocabulary)
    check_ids(theirs, vocabulary, [*texts.lines, "a\n\n  b 12345 I'LL cafe\u0301"], ends=False)


ADDED: list[dict[str, Any]] = [
    {"content": "NewWord"},
    {"content": "RawWord", "normalized": False},
    {"content": "whole", "single_word": True, "normalized": False},
    {"content": "<left>", "lstrip": True, "normalized": False},
    {"content": "<right>", "rstrip": True},
    {"content": "<both>", "lstrip": True, "rstrip": True, "normalized": False, "special": True},
    {"content": "Café", "single_word": True},
]
NAMING = [
    "a NewWord newword NEWWORD RawWord rawword xNewWordx",
    "whole wholesome unwhole, whole-hearted (whole) whole_ 茶whole",
    "a <left> b <right>  c  <both>  d<left><right><both>",
    "café CAFÉ Cafe\u0301 cafés <LEFT>",
    "  <right>  <left>  ",
]


@pytest.mark.parametrize("saved", [False, True])
@pytest.mark.parametrize("family", ["bert", "cased-bert", "roberta"])
def test_added_tokens_are_recognised_as_their_flags_say(family: str, saved: bool, texts: Texts, tmp_path: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    if family == "roberta":
        trained = tokenizers.ByteLevelBPETokenizer()
        special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
        trained.train_from_iterator(texts.training, vocab_size=1500, special_tokens=special, show_progress=False)
        kind, options = "RobertaTokenizer", {}
    else:
        trained = tokenizers.BertWordPieceTokenizer(lowercase=family == "bert")
        trained.train_from_iterator(texts.training, vocab_size=2500, show_progress=False)
        kind, options = "BertTokenizer", {"do_lower_case": family == "bert"}
    trained.save_model(str(tmp_path))
    theirs = getattr(peers(), kind).from_pretrained(tmp_path, **options)
    for token in ADDED:
        named = {"special": False} | token
        theirs.add_tokens(tokenizers.AddedToken(**named), special_tokens=bool(named["special"]))
    theirs.save_pretrained(tmp_path)
    if not saved:
        (tmp_path / "tokenizer.json").unlink()
        decoder = {str(id): json.loads(_described(token)) for id, token in theirs.added_tokens_decoder.items()}
        settings = json.loads((tmp_path / "tokenizer_config.json").read_text("utf-8"))
        write(tmp_path, "tokenizer_config.json", settings | {"added_tokens_decoder": decoder})
    ids = {"pad_id": 1, "eos_id": 2} if family == "roberta" else {"pad_id": 0}
    vocabulary = our_tokenizer(tmp_path, family.removeprefix("cased-"), **ids).source
    assert isinstance(vocabulary, ImportedVocabulary)
    check_ids(theirs, vocabulary, NAMING)


def _described(token: Any) -> str:
    names = ("content", "single_word", "lstrip", "rstrip", "normalized", "special")
    return json.dumps({name: getattr(token, name) for name in names})


@pytest.mark.parametrize("kind", ["Unigram", "WordLevel"])
def test_names_of_special_tokens_in_a_text_are_plain_characters(kind: str, tmp_path: Path) -> None:
    """Such models have special tokens in their list of tokens, so that they would find them in any text."""
    pytest.importorskip("tokenizers")
    tokens = ["<pad>", "</s>", "<unk>", "<mask>", "▁", "a", "b", "<", "/", "s", ">", "p", "d"]
    model: dict[str, Any] = {"type": "WordLevel", "vocab": {token: id for id, token in enumerate(tokens)}}
    model["unk_token"] = "<unk>"
    if kind == "Unigram":
        model = {"type": "Unigram", "unk_id": 2, "vocab": [[token, -2.0 - (id > 3)] for id, token in enumerate(tokens)]}
    content: dict[str, Any] = {"added_tokens": [], "normalizer": None, "decoder": None, "model": model}
    content["post_processor"] = None
    content["pre_tokenizer"] = {"type": "WhitespaceSplit"}
    write(tmp_path, "tokenizer.json", content)
    write(tmp_path, "tokenizer_config.json", {"pad_token": "<pad>", "eos_token": "</s>", "mask_token": "<mask>"})
    vocabulary = our_tokenizer(tmp_path, "t5", len(tokens), pad_id=0, eos_id=1).source
    for spelled in ("</s>", "<pad>"):
        ids = vocabulary.encode(f"a {spelled} b")
        assert not {0, 1} & set(ids)
        assert vocabulary.tokens(ids[1:-1]) == (list(spelled) if kind == "Unigram" else ["<unk>"])
    assert vocabulary.encode("a é b") == [5, 2, 6]
    assert vocabulary.encode("a <mask> b") == [5, 3, 6]


@pytest.mark.parametrize("split", [False, True])
def test_byte_level_bpe_that_merges_across_words_has_equal_ids(split: bool, texts: Texts, tmp_path: Path) -> None:
    """`use_regex` = false alone cuts nothing."""
    tokenizers = pytest.importorskip("tokenizers")
    model = tokenizers.Tokenizer(tokenizers.models.BPE())
    model.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=split)
    model.decoder = tokenizers.decoders.ByteLevel()
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    how = tokenizers.trainers.BpeTrainer(
        vocab_size=900, special_tokens=["<end>"], initial_alphabet=alphabet, show_progress=False
    )
    model.train_from_iterator(texts.training[-1000:], how)
    theirs = peers().PreTrainedTokenizerFast(tokenizer_object=model, eos_token="<end>")
    theirs.save_pretrained(tmp_path)
    vocabulary = our_tokenizer(tmp_path, "gpt2", eos_id=0).source
    assert isinstance(vocabulary, ImportedVocabulary)
    assert any("Ġ" in piece.lstrip("Ġ") for piece in theirs.get_vocab()) is not split
    check_ids(theirs, vocabulary, texts.lines[-500:], ends=False)
    check_texts(theirs, vocabulary, [line for line in texts.lines[-500:] if "," not in line])


def test_an_imported_tokenizer_reads_back_equal_after_saving(tmp_path: Path) -> None:
    write(tmp_path, "vocab.txt", b"[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nlo\n##ve\nI\n##s\n.\n")
    write(tmp_path, "tokenizer_config.json", {"do_lower_case": False})
    tokenizer = our_tokenizer(tmp_path, "bert", 10, pad_id=0)
    tokenizer.save(tmp_path / "out")
    again = ImportedTokenizer.load(tmp_path / "out")
    assert again.fingerprint == tokenizer.fingerprint
    assert again.source.with_special_tokens(again.source.encode("Is [MASK] love.")) == [2, 7, 8, 4, 5, 6, 9, 3]
    assert again.source.tokens([5, 6]) == ["lo", "##ve"]


STORED = Path(__file__).parent / "stored_tokenizers"


@pytest.mark.parametrize("name", ["bert", "llama", "llama3", "nllb", "qwen2", "roberta"])
def test_tokenizers_that_version_0_1_stored_open_with_the_same_ids(name: str) -> None:
    pytest.importorskip("tokenizers")
    expected = json.loads((STORED / name / "ids.json").read_text("utf-8"))
    tokenizer = ImportedTokenizer.load(STORED / name)
    assert tokenizer.fingerprint == expected["fingerprint"]
    vocabulary = tokenizer.source
    assert vocabulary.encode_batch(expected["lines"]) == expected["ids"]
    found = [vocabulary.decode(ids) for ids in expected["ids"]]
    if name == "bert":  # version 0.1 wrote Chinese with a space between the characters
        assert any("的 事 是" in text for text in expected["texts"])
        assert found == [re.sub(r"(?<=[^\x00-\u2fff]) | (?=[^\x00-\u2fff])", "", text) for text in expected["texts"]]
    else:
        assert found == expected["texts"]
    assert [vocabulary.token_texts(ids) for ids in expected["ids"][:10]] == expected["spellings"]
    seventh = [id for id in range(0, vocabulary.size, 7) if vocabulary.is_text_token(id)]
    assert [vocabulary.surface(id).hex() for id in seventh] == expected["surfaces"]


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(TransduceError, match=r"needs the package tokenizers, .*: pip install 'transduce\[hf\]'"):
        ImportedTokenizer.load(STORED / "bert")


def test_characters_without_a_token_become_the_unknown_token(tmp_path: Path) -> None:
    write(tmp_path, "vocab.json", {"<s>": 0, "<pad>": 1, "</s>": 2, "<unk>": 3, "a": 4})
    write(tmp_path, "merges.txt", b"#version: 0.2\n")
    vocabulary = our_tokenizer(tmp_path, "bart", pad_id=1, eos_id=2).source
    assert vocabulary.encode("aba") == [4, 3, 4]
    assert vocabulary.unknown_characters("aba") == "aba"


def test_a_corpus_prepared_with_a_bert_tokenizer_stores_no_special_tokens(tmp_path: Path) -> None:
    write(tmp_path, "vocab.txt", b"[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nlo\n##ve\nI\n##s\n.\n")
    write(tmp_path, "tokenizer_config.json", {"do_lower_case": False})
    tokenizer = our_tokenizer(tmp_path, "bert", 10, pad_id=0)
    assert tokenizer.source.before
    (tmp_path / "text").write_bytes(b"Is love.\n\nI.\n")
    text = CorpusFiles(source=(str(tmp_path / "text"),), target=(str(tmp_path / "text"),))
    corpus = prepare(text, tokenizer, FilterSettings(drop_empty=False, drop_identical=False), tmp_path / "corpus")
    store = read_store(corpus, tokenizer, "target")
    assert store.lengths.tolist() == [5, 0, 2]
    assert [store.read(n, n + 1).tolist() for n in range(3)] == [[7, 8, 5, 6, 9], [], [7, 9]]
    assert special_tokens_of(tokenizer.source).frame(store.read(0, 1).tolist(), 64) == [2, 7, 8, 5, 6, 9, 3]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"normalizer": {"type": "Secret"}}, r"tokenizer\.json cannot be read .*: copy its file again"),
        ({"model": {"type": "Unigram", "unk_id": 9, "vocab": [["a", 0.0]]}}, r"tokenizer\.json cannot be read"),
        ({"model": {"type": "BPE", "dropout": 0.1, "vocab": {}, "merges": []}}, "BPE with dropout cannot be imported"),
        ({"added_tokens": None}, "is not a tokenizer.json that can be read"),
    ],
)
def test_a_tokenizer_json_with_damaged_or_unsupported_parts_is_refused(
    content: dict[str, Any], message: str, tmp_path: Path
) -> None:
    usual: dict[str, Any] = {"added_tokens": [], "normalizer": None, "pre_tokenizer": None}
    usual["model"] = {"type": "Unigram", "unk_id": 0, "vocab": [["<unk>", 0.0], ["</s>", 0.0], ["▁a", -1.0]]}
    write(tmp_path, "tokenizer.json", usual | content)
    with pytest.raises(TransduceError, match=message):
        our_tokenizer(tmp_path, "t5", pad_id=0, eos_id=1)


def test_a_folder_without_a_tokenizer(tmp_path: Path) -> None:
    with pytest.raises(TransduceError, match="holds no tokenizer that can be imported: it needs tokenizer"):
        our_tokenizer(tmp_path, "bart", pad_id=1, eos_id=2)
