"""Test that `transduce.pipeline("translation", folder)` answers like the pipeline of transformers."""

from pathlib import Path
from typing import Any

import pytest

import transduce
from transduce.errors import TransduceError
from transduce.inference.translation_pipeline import TranslationPipeline
from transduce.inference.translator import Translator

SENTENCES = ["我喜欢苹果。", "老师今天买书。"]


@pytest.fixture(scope="module")
def pipe(translator: Translator) -> TranslationPipeline:
    return TranslationPipeline(translator)


def test_a_folder_becomes_a_pipeline(trained: Path, translator: Translator) -> None:
    pipe = transduce.pipeline("translation", trained, device=-1)
    pipe.translator = translator  # in float32, whatever this machine chooses
    assert pipe(SENTENCES[0]) == [{"translation_text": translator(SENTENCES[0]).text}]
    assert str(transduce.pipeline("translation_zh_to_en", str(trained), device="cpu").translator.device) == "cpu"


def test_lists_give_lists_and_single_texts_give_one_answer(pipe: TranslationPipeline, translator: Translator) -> None:
    assert pipe(SENTENCES) == [{"translation_text": found.text} for found in translator(SENTENCES)]
    assert pipe(tuple(SENTENCES)) == pipe(SENTENCES)
    assert pipe(SENTENCES[:1]) == pipe(SENTENCES[0])
    assert pipe([]) == []
    assert pipe("") == [{"translation_text": ""}]


def test_num_return_sequences_returns_the_alternatives_of_each_text(
    pipe: TranslationPipeline, translator: Translator
) -> None:
    found = [
        [{"translation_text": each.text} for each in best.alternatives]
        for best in translator(SENTENCES, n_best=2, beam_size=3)
    ]
    assert pipe(SENTENCES, num_return_sequences=2, num_beams=3) == found
    assert pipe(SENTENCES[0], num_return_sequences=2, num_beams=3) == found[0]


def test_max_length_counts_the_start_symbol_and_max_new_tokens_does_not(pipe: TranslationPipeline) -> None:
    def pieces(**options: Any) -> int:
        (answer,) = pipe(SENTENCES[0], return_tensors=True, return_text=False, **options)
        assert set(answer) == {"translation_token_ids"}
        return len(answer["translation_token_ids"])

    assert pieces(max_length=4) == 3
    assert pieces(max_new_tokens=4) == 4
    assert pieces(max_length=9, max_new_tokens=4) == 4
    natural = pieces()
    assert pieces(min_length=natural + 4, num_beams=1) >= natural + 2


def test_max_new_tokens_cuts_translations_but_leaves_none_empty(pipe: TranslationPipeline, toy_corpus: Path) -> None:
    sentences = (toy_corpus / "dev.zh").read_text("utf-8").split("\n")[:-1]
    assert {"translation_text": ""} not in pipe(sentences, max_new_tokens=2, num_beams=16)


def test_no_repeat_ngram_size_forbids_repeated_tokens(pipe: TranslationPipeline) -> None:
    (answer,) = pipe(SENTENCES[0] * 3, no_repeat_ngram_size=1, return_tensors=True, num_beams=1)
    ids = answer["translation_token_ids"]
    assert len(set(ids)) == len(ids) > 3


def test_returned_token_ids_decode_to_the_translation(pipe: TranslationPipeline, translator: Translator) -> None:
    (answer,) = pipe(SENTENCES[0], return_tensors=True)
    assert translator.tokenizer.target.decode(answer["translation_token_ids"]) == answer["translation_text"]


@pytest.mark.parametrize("task", ["summarization", "translation_", "text2text-generation", "translation_zh"])
def test_tasks_other_than_translation_are_refused(trained: Path, task: str) -> None:
    with pytest.raises(TransduceError, match=f"must be `translation` or `translation_XX_to_YY`, but is `{task}`"):
        transduce.pipeline(task, trained)


def test_a_task_with_languages_that_the_model_lacks_is_refused(trained: Path) -> None:
    with pytest.raises(TransduceError, match=r"`translation_de_to_en`, but .* translates zh to en: use `translation`"):
        transduce.pipeline("translation_de_to_en", trained, device="cpu")
