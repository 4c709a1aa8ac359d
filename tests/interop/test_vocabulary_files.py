"""Test a user's vocabularies in all formats: ids stay, special tokens are found or added, bad files are explained."""

import io
import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from sentencepiece import SentencePieceTrainer

import transduce
from transduce.errors import TransduceError
from transduce.interop.hugging_face.imported_tokenizer import load_tokenizer
from transduce.interop.vocabulary_files import extend_tokenizer, learn_words, open_vocabulary, read_words, tokens_before
from transduce.model.config import ModelConfig
from transduce.model.transformer import Transformer
from transduce.text import Pair, Tokenizer, TokenizerSettings
from transduce.text.vocabulary import Vocabulary

WriteLines = Callable[[str, Iterable[str]], Path]
LINES = [f"the {one} {other} is here" for one in ("red", "green", "blue") for other in ("house", "horse", "mouse")] * 3
WORDS = ["<unk>", "<pad>", "<bos>", "<eos>", "a", "red", "house"]


def own_model(**options: Any) -> bytes:
    model = io.BytesIO()
    defaults: dict[str, Any] = {"vocab_size": 60, "model_type": "bpe", "minloglevel": 2, "hard_vocab_limit": False}
    SentencePieceTrainer.train(sentence_iterator=iter(LINES), model_writer=model, **defaults | options)
    return model.getvalue()


@pytest.fixture
def learned() -> Tokenizer:
    pairs = [Pair(line, line, number) for number, line in enumerate(LINES)]
    return Tokenizer.train(lambda: pairs, TokenizerSettings(vocabulary_size=320), adjust=True)


def save_model(tokenizer: Tokenizer, folder: Path) -> None:
    """Save a small random model with a tokenizer."""
    size, vocabulary = tokenizer.source.size, tokenizer.source
    config = ModelConfig(
        source_vocabulary_size=size, target_vocabulary_size=size, pad_id=vocabulary.pad_id, eos_id=vocabulary.eos_id,
        start_id=vocabulary.pad_id, d_model=16, d_ff=16, num_heads=2, num_encoder_layers=1, num_decoder_layers=1,
    )  # fmt: skip
    torch.manual_seed(1)
    transduce.save(Transformer(config), folder, tokenizer=tokenizer)


# --- sentencepiece ---


@pytest.mark.parametrize(
    ("options", "pad_id", "eos_id", "added", "note"),
    [
        ({}, 1, 2, 0, "its start symbol <s>, which nothing else uses, became <pad>"),
        ({"bos_id": -1}, 60, 2, 1, "has no padding: <pad> was added"),
        ({"bos_id": -1, "eos_id": -1}, 61, 60, 2, "has no token for the end of a text: </s> was added"),
        ({"pad_id": 3, "pad_piece": "[PAD]"}, 3, 2, 0, None),
        ({"bos_id": -1, "user_defined_symbols": ["<pad>"]}, 1, 2, 0, "<pad> was added"),
    ],
)
def test_a_sentencepiece_model_gets_padding_and_end(
    tmp_path: Path, options: dict[str, Any], pad_id: int, eos_id: int, added: int, note: str | None
) -> None:
    (tmp_path / "own.model").write_bytes(content := own_model(**options))
    opened = open_vocabulary([tmp_path / "own.model"])
    vocabulary, plain = opened.tokenizer.source, Vocabulary(content)
    assert (vocabulary.pad_id, vocabulary.eos_id, vocabulary.size) == (pad_id, eos_id, plain.size + added)
    assert (note or "") in " ".join(opened.notes)
    assert bool(note) == bool(opened.notes)
    for text in ("the red house", "a green fish"):
        assert vocabulary.encode(text) == plain.encode(text)
    opened.tokenizer.save(tmp_path / "folder")
    assert load_tokenizer(tmp_path / "folder").fingerprint == opened.tokenizer.fingerprint


def test_vocabularies_of_another_folder_serve_both_sides_or_one(tmp_path: Path, learned: Tokenizer) -> None:
    learned.save(tmp_path / "joint")
    Tokenizer(learned.source, Vocabulary(learned.source.model_bytes)).save(tmp_path / "separate")
    assert open_vocabulary([tmp_path / "joint"]).tokenizer.joint
    assert not open_vocabulary([tmp_path / "separate"]).tokenizer.joint
    sides = open_vocabulary([tmp_path / "separate", tmp_path / "joint" / "sentencepiece.model"]).tokenizer
    assert not sides.joint
    assert sides.target.encode("the red") == learned.source.encode("the red")


# --- word lists ---


def test_a_word_list_keeps_its_ids(write_lines: WriteLines, tmp_path: Path) -> None:
    forms = [
        write_lines("words.txt", WORDS),
        tmp_path / "list.json",
        tmp_path / "ids.json",
        WORDS,
        {word: id for id, word in enumerate(WORDS)},
    ]
    (tmp_path / "list.json").write_text(json.dumps(WORDS), "utf-8")
    (tmp_path / "ids.json").write_text(json.dumps(dict(zip(WORDS, range(7), strict=True))), "utf-8")
    for form in forms:
        vocabulary = transduce.read_vocabulary(form).source  # type: ignore[arg-type]
        assert (vocabulary.unk_id, vocabulary.pad_id, vocabulary.eos_id, vocabulary.size) == (0, 1, 3, 7)
        assert vocabulary.with_special_tokens(vocabulary.encode("a  red bike")) == [4, 5, 0, 3]
        assert vocabulary.decode([4, 5, 0, 6, 3]) == "a red <unk> house"  # nothing vanishes


def test_a_word_list_may_begin_with_a_token_in_brackets(tmp_path: Path) -> None:
    (tmp_path / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\nthe\ncat\n", "utf-8")
    vocabulary = transduce.read_vocabulary(tmp_path / "vocab.txt").source
    assert (vocabulary.pad_id, vocabulary.unk_id, vocabulary.eos_id) == (0, 1, 3)
    assert vocabulary.encode("the cat") == [4, 5]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("<pad>\n\x85a\nb\n".encode(), r"token 2: a word list has one token on each line, without spaces"),
        ("a\u2028b\nc\n".encode(), r"token 1: a word list has one token on each line, without spaces"),
        (b"a\nb\na\n", r"token 3: 'a' is token 1 already"),
        ("Mädchen\n".encode("latin-1"), r"files must be UTF-8, but this word list is not: convert it"),
    ],
)
def test_word_lists_whose_ids_would_be_ambiguous_are_refused(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "words").write_bytes(content)
    with pytest.raises(TransduceError, match=message):
        read_words(tmp_path / "words")


def test_character_lists_in_json_may_contain_spaces(tmp_path: Path) -> None:
    (tmp_path / "characters.json").write_text('["\\n", " ", "a"]', "utf-8")
    assert read_words(tmp_path / "characters.json", may_be_space=True) == {"\n": 0, " ": 1, "a": 2}


def test_a_tutorial_model_and_its_word_list_become_a_folder_that_translates(tmp_path: Path) -> None:
    tokenizer = transduce.read_vocabulary(
        WORDS, ["<unk>", "<pad>", "<bos>", "<eos>", "ein", "rotes"], source_start=True
    )
    config = ModelConfig(
        source_vocabulary_size=7, target_vocabulary_size=6, tie_source_target=False, pad_id=1, eos_id=3, start_id=2,
        d_model=16, d_ff=16, num_heads=2, num_encoder_layers=1, num_decoder_layers=1,
    )  # fmt: skip
    torch.manual_seed(1)
    transduce.save(Transformer(config), tmp_path / "model", tokenizer=tokenizer)
    translator = transduce.load(tmp_path / "model", device="cpu", precision="fp32")
    assert isinstance(translator, transduce.Translator)
    assert translator.tokenizer.source.with_special_tokens([4]) == [2, 4, 3]
    found = translator("a red house", max_length=5)
    assert set(found.text.split()) <= {"ein", "rotes", "<unk>"}


def test_an_export_of_a_vocabulary_that_hugging_face_cannot_read_is_refused(tmp_path: Path) -> None:
    (tmp_path / "own.model").write_bytes(own_model())
    for source, message in (
        (WORDS, "is a list of whole words, which no tokenizer of Hugging Face's reads"),
        (tmp_path / "own.model", "rewrites characters or places spaces in a way that tokenizer.json cannot express"),
    ):
        tokenizer = transduce.read_vocabulary(source)
        folder = tmp_path / f"model-{tokenizer.source.size}"
        save_model(tokenizer, folder)
        assert not (folder / "tokenizer.json").exists()
        with pytest.raises(TransduceError, match=message):
            transduce.export(folder, tmp_path / "export", to="huggingface")


def test_learned_words_restore_texts() -> None:
    texts = ["“Don't,” she said … now.", "我爱你, she said\n“now”.", "She said: see <ph>."] * 2
    vocabulary = learn_words([texts], 100, min_count=2, symbols=["<ph>", "\n"]).source
    for text in texts:
        assert vocabulary.decode(vocabulary.encode(text)) == text
    assert vocabulary.token_texts(vocabulary.encode("she loves 你.")) == ["▁she", "<unk>", "<unk>", "."]
    assert vocabulary.decode(vocabulary.encode("she loves.")) == "she <unk>."
    assert learn_words([texts], 20, min_count=2).source.size == 20


# --- tokenizer.json ---


def test_a_tokenizer_json_keeps_its_ids(tmp_path: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    own = tokenizers.Tokenizer(tokenizers.models.BPE(unk_token="[UNK]"))
    own.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace()
    own.decoder = tokenizers.decoders.Metaspace()
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=60, special_tokens=["[UNK]", "[CLS]", "[SEP]", "[MASK]"])
    own.train_from_iterator(LINES, trainer)
    own.save(str(tmp_path / "tokenizer.json"))
    opened = open_vocabulary([tmp_path], symbols=["<2de>"])
    vocabulary = opened.tokenizer.source
    assert opened.notes == [f"{tmp_path / 'tokenizer.json'} has no token for padding: <pad> was added."]
    assert (vocabulary.unk_id, vocabulary.eos_id) == (0, 2)
    assert vocabulary.pad_id == own.get_vocab_size()
    assert vocabulary.size == own.get_vocab_size() + 2
    assert vocabulary.encode("the red house") == own.encode("the red house").ids
    assert vocabulary.decode(vocabulary.encode("the <2de> red house")) == "the <2de> red house"
    save_model(opened.tokenizer, tmp_path / "model")
    pytest.importorskip("transformers")
    transduce.export(
        tmp_path / "model", tmp_path / "export", to="huggingface"
    )  # which compares tokens and translations
    (tmp_path / "tokenizer_config.json").write_text('{"pad_token": "[MASK]"}', "utf-8")
    assert open_vocabulary([tmp_path / "tokenizer.json"]).tokenizer.source.pad_id == 3


# --- files that are none ---


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"\x00\x01\x02", "is not a sentencepiece model"),
        (b'{"a": 1, "b": 1}', "must map each token to an id of its own"),
        (b'{"a": 999999999999, "b": 1}', "but ids are from 0 to"),
        (b'{"a": -1, "b": 1}', "has the id -1, but ids are from 0 to"),
        (b'{"model": {"vocab": 3}}', "is not a tokenizer.json that can be read"),
        (b'["a", 3]', "must hold tokens, but holds something else"),
        (b'["a"', "cannot be read as JSON"),
        (b"the 120\na 100\n", "a word list has one token on each line, without spaces, but this one is 'the 120'"),
        (b"the\n\na\n", "token 2: a word list has one token on each line"),
        (b"the\na\nthe\n", "token 3: 'the' is token 1 already"),
        (b"<pad>\n<unk>\n", "holds special tokens only"),
        (b"", "a word list has one token on each line"),
    ],
)
def test_a_file_that_is_no_vocabulary_is_refused(tmp_path: Path, content: bytes, message: str) -> None:
    if b"model" in content:
        pytest.importorskip("tokenizers")
    (tmp_path / "own").write_bytes(content)
    with pytest.raises(TransduceError, match=r"own") as refused:
        open_vocabulary([tmp_path / "own"])
    assert message in str(refused.value)


def test_vocabularies_of_two_sides_that_do_not_match_are_refused(tmp_path: Path, learned: Tokenizer) -> None:
    with pytest.raises(TransduceError, match=r"does-not-exist cannot be read as a vocabulary \(No such file"):
        open_vocabulary([tmp_path / "does-not-exist"])
    with pytest.raises(TransduceError, match=r"holds no vocabulary: name a folder with tokenizer\.json"):
        open_vocabulary([tmp_path])
    with pytest.raises(TransduceError, match=r"must give padding the same id, but the list has 1 and the list has 0"):
        open_vocabulary([WORDS, ["<pad>", "<unk>", "x", "<eos>", "y"]])
    learned.save(tmp_path / "joint")
    with pytest.raises(TransduceError, match=r"must have the same form"):
        open_vocabulary([tmp_path / "joint", WORDS])
    with pytest.raises(TransduceError, match=r"the vocabulary is no word list with one of <s>"):
        transduce.read_vocabulary(tmp_path / "joint", source_start=True)


# --- extension ---


def test_added_symbols_leave_all_other_ids_unchanged(learned: Tokenizer) -> None:
    symbols = ["<2de>", "Elch", "\n"]
    extended = extend_tokenizer(learned, symbols)
    vocabulary, before = extended.source, learned.source
    assert vocabulary.size == before.size + 3
    assert extended.joint
    assert not learned.writes_line_feeds
    for text in ("the red house", "a green fish 爱 </s> <pad>", "Elc h"):
        assert vocabulary.encode(text) == before.encode(text)
    text = "the Elch<2de>\nred house"
    assert [vocabulary.token(id) for id in vocabulary.encode(text) if id >= before.size] == ["Elch", "<2de>", "\n"]
    assert vocabulary.decode(vocabulary.encode(text)) == text
    assert [before.decode(ids) for ids in tokens_before(before, vocabulary)[:2]] == ["<2de>", "Elch"]
    assert extend_tokenizer(extended, symbols).fingerprint == extended.fingerprint
    with pytest.raises(TransduceError, match=r"</s> is a special token of the vocabulary"):
        extend_tokenizer(learned, ["</s>"])
    with pytest.raises(TransduceError, match=r"<eos> is a special token of the vocabulary"):
        transduce.read_vocabulary(WORDS, user_symbols=["<eos>"])


def test_a_known_token_can_become_a_symbol(learned: Tokenizer) -> None:
    extended = extend_tokenizer(learned, ["house"]).source
    assert extended.size == learned.source.size + ("house" not in learned.source.tokens(range(learned.source.size)))
    assert "house" in extended.tokens(extended.encode("the house")) + extended.tokens(extended.encode("xhousex"))
