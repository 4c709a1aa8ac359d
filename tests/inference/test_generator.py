"""Test text generation: the KV cache against recomputation, sampling, beams, streams, lines."""

from typing import Any

import msgspec
import pytest
import torch

from transduce.errors import IdleSettingWarning, TransduceError
from transduce.inference.generator import ContinuousGeneration, Generation, Generator
from transduce.inference.scorers import DecoderOnlyScorer
from transduce.kernels.select import decoding_model, make_inference_copy
from transduce.model.attention import KeyValueCache
from transduce.model.config import ModelConfig
from transduce.model.transformer import Decoder
from transduce.search.rules import GenerateSettings
from transduce.search.settings import SamplingSettings, SearchSettings
from transduce.text.corpus import Pair
from transduce.text.sentencepiece_model import TokenizerSettings
from transduce.text.tokenizer import Tokenizer

CONTEXT = 12
GREEDY = SearchSettings(beam_size=1, length_penalty=0.0, max_length=40)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    pairs = [Pair("abc def ghi", "", 1), Pair("  gab  hid ", "", 2)]
    return Tokenizer.train(lambda: pairs, TokenizerSettings(kind="character", byte_fallback=False))


def make_generator(tokenizer: Tokenizer, backend: str, context: int) -> Generator:
    """Return a float32 generator, computed by PyTorch or by kernels."""
    torch.manual_seed(3)
    size = tokenizer.target.size
    config = ModelConfig(
        kind="decoder",
        source_vocabulary_size=size,
        target_vocabulary_size=size,
        num_decoder_layers=2,
        d_model=64,
        d_ff=128,
        num_heads=2,
        positions="learned",
        max_positions=context,
        pad_id=tokenizer.target.pad_id,
        eos_id=tokenizer.target.eos_id,
        start_id=tokenizer.target.eos_id,
    )
    model = Decoder(config).eval()
    if backend == "machine code":
        make_inference_copy(model, torch.float32)
        if decoding_model(model) is model:
            pytest.skip("there are no kernels for this processor")
    return Generator(model, tokenizer, context=context)


@pytest.fixture(scope="module", params=["PyTorch", "machine code"])
def generator(tokenizer: Tokenizer, request: pytest.FixtureRequest) -> Generator:
    """Return a float32 generator, computed by PyTorch or by kernels."""
    return make_generator(tokenizer, request.param, CONTEXT)


def window_of(text: list[int], prompt: int) -> list[int]:
    """Return the part of a text that the model sees after a prompt of this length.

    The window grows to the context, then keeps its second half.
    """
    start = 0
    for length in range(prompt, len(text) + 1):
        if length - start > CONTEXT:
            start = length - CONTEXT // 2
    return text[start:]


def test_cached_greedy_continuations_equal_recomputed_ones(generator: Generator) -> None:
    found = generator("abc\nd", search=GREEDY).continuations[0]
    ids = generator.prompt_ids("abc\nd")
    prompt, values = len(ids), []
    with torch.inference_mode():
        for _ in range(40):
            logits = generator.model(torch.tensor([window_of(ids, prompt)]))[0, -1].float()
            logits[[generator.vocabulary.pad_id, generator.vocabulary.unk_id]] = float("-inf")
            ids.append(int(logits.argmax()))
            values.append(float(logits.log_softmax(dim=-1).max()))
    assert list(found.tokens) == generator.vocabulary.tokens(ids[prompt:])
    assert found.token_log_probabilities == pytest.approx(values, abs=1e-4)
    assert not found.ended


def test_texts_in_one_batch_equal_each_alone(generator: Generator) -> None:
    """Prompts of several lengths, some of which leave, and then a window that moves along."""
    prompts = [generator.prompt_ids(text) for text in ("abc def", "g", "hi\nab")]
    never = [generator.vocabulary.pad_id]

    def scorer(*chosen: int) -> DecoderOnlyScorer:
        own = [prompts[number] for number in chosen]
        return DecoderOnlyScorer(generator.model, own, max_context=CONTEXT, excluded_ids=never)

    with torch.inference_mode():
        together, alone = scorer(0, 1, 2), [scorer(0), scorer(1), scorer(2)]
        for step in torch.randint(3, 8, (3, 3)):
            logits = together.step(step[:, None])
            each = torch.cat([own.step(piece.view(1, 1)) for own, piece in zip(alone, step, strict=True)])
            torch.testing.assert_close(logits, each, atol=1e-5, rtol=1e-4)
        together.keep_sentences(torch.tensor([0]))
        for piece in torch.randint(3, 8, (2 * CONTEXT, 1, 1)):
            torch.testing.assert_close(together.step(piece), alone[0].step(piece), atol=1e-5, rtol=1e-4)


def test_reordered_texts_go_on_from_their_parents(generator: Generator) -> None:
    prompt = generator.prompt_ids("abc")
    never = [generator.vocabulary.pad_id]
    with torch.inference_mode():
        scorer = DecoderOnlyScorer(generator.model, [prompt], max_context=CONTEXT, excluded_ids=never)
        scorer.step(torch.tensor([[prompt[-1]]]))
        scorer.reorder(torch.tensor([[0, 0]]))
        scorer.step(torch.tensor([[3, 4]]))
        scorer.reorder(torch.tensor([[1, 1]]))
        logits = scorer.step(torch.tensor([[5, 6]]))[0]
        for row, newest in zip(logits, (5, 6), strict=True):
            wanted = generator.model(torch.tensor([[*prompt, 4, newest]]))[0, -1]
            wanted[never] = float("-inf")
            torch.testing.assert_close(row, wanted, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("row_per_text", [False, True])
def test_texts_of_a_prompt_are_continued_from_their_parents_also_beyond_the_context(
    generator: Generator, row_per_text: bool
) -> None:
    prompts, never = [generator.prompt_ids("abc"), generator.prompt_ids("d")], [generator.vocabulary.pad_id]
    texts, random = [[list(prompt)] for prompt in prompts], torch.Generator().manual_seed(2)
    with torch.inference_mode():
        scorer = DecoderOnlyScorer(
            generator.model, prompts, max_context=CONTEXT, excluded_ids=never, row_per_text=row_per_text
        )
        scorer.step(torch.zeros(2, 1, dtype=torch.int64))
        for step in range(2 * CONTEXT):
            parents = torch.randint(len(texts[0]), (len(texts), 3), generator=random)
            tokens = torch.randint(3, 8, (len(texts), 3), generator=random)
            scorer.reorder(parents)
            texts = [
                [[*own[parent], token] for parent, token in zip(*each, strict=True)]
                for own, each in zip(texts, zip(parents.tolist(), tokens.tolist(), strict=True), strict=True)
            ]
            if max(len(text) for own in texts for text in own) > CONTEXT:
                texts = [[text[-CONTEXT // 2 :] for text in own] for own in texts]
            logits = scorer.step(tokens)
            for own, found in zip(texts, logits, strict=True):
                for text, row in zip(own, found, strict=True):
                    wanted = generator.model(torch.tensor([text]))[0, -1]
                    wanted[never] = float("-inf")
                    torch.testing.assert_close(row, wanted, atol=1e-4, rtol=1e-3)
            if step == CONTEXT + 4:
                scorer.keep_sentences(torch.tensor([1]))
                texts = texts[1:]


@pytest.mark.parametrize("heads", [2, 1])
def test_a_beam_copies_no_keys(heads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    config = ModelConfig(
        kind="decoder", source_vocabulary_size=9, target_vocabulary_size=9, num_decoder_layers=1, d_model=8, d_ff=8,
        num_heads=2, num_key_value_heads=heads, positions="rotary",
    )  # fmt: skip
    model = Decoder(config).eval()
    with torch.inference_mode():
        scorer = DecoderOnlyScorer(model, [[3, 4]], max_context=50, excluded_ids=[])
        scorer.step(torch.zeros(1, 1, dtype=torch.int64))
        monkeypatch.setattr(KeyValueCache, "keep_sentences", lambda *_: pytest.fail("keys were copied"))
        monkeypatch.setattr(torch.Tensor, "repeat_interleave", lambda *_, **__: pytest.fail("keys were repeated"))
        for parents in ([[0, 0, 0]], [[1, 0, 2]], [[2, 2, 0]]):
            scorer.reorder(torch.tensor(parents))
            assert scorer.step(torch.tensor([[5, 6, 7]])).shape == (1, 3, 9)


def test_samples_depend_on_the_seed(generator: Generator) -> None:
    one, other = generator("abc", seed=1), generator("abc", seed=2)
    assert one == generator("abc", seed=1)
    assert one != other
    several = generator("abc", seed=1, n_best=3)
    assert len({each.text for each in several.continuations}) == 3
    assert len(several.continuations[0].tokens) == 200


@pytest.mark.parametrize("temperature", [1.5, 8.0])
@pytest.mark.parametrize("top_k", [0, 4, 8])
@pytest.mark.parametrize(("top_p", "min_p"), [(1.0, 0.0), (0.6, 0.0), (0.8, 0.1), (1.0, 0.4)])
def test_the_tokens_that_may_be_drawn_are_those_of_transformers(
    generator: Generator, temperature: float, top_k: int, top_p: float, min_p: float
) -> None:
    processors = pytest.importorskip("transformers", reason="needs transformers: pip install 'transduce[hf]'")
    ids = torch.tensor([generator.prompt_ids("abc")])
    with torch.no_grad():
        scores = generator.model(ids)[:, -1].float() / temperature
    scores[:, [generator.vocabulary.pad_id, generator.vocabulary.unk_id]] = float("-inf")
    for warper, value, neutral in (
        (processors.TopKLogitsWarper, top_k, 0),
        (processors.TopPLogitsWarper, top_p, 1.0),
        (processors.MinPLogitsWarper, min_p, 0.0),
    ):
        scores = scores if value == neutral else warper(value)(ids, scores)
    shares = scores.softmax(dim=-1)[0]
    sampling = SamplingSettings(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    found = generator("abc", search=SearchSettings(n_best=2000, max_length=1, sampling=sampling)).continuations
    tokens = [generator.vocabulary.id(each.tokens[0]) for each in found]
    drawn = torch.bincount(torch.tensor(tokens), minlength=len(shares)) / len(tokens)
    assert not drawn[shares == 0.0].any()
    torch.testing.assert_close(drawn, shares, atol=0.05, rtol=0.0)


def test_a_stream_joined_is_the_continuation(generator: Generator) -> None:
    for search in (GREEDY, SearchSettings(max_length=50, sampling=SamplingSettings(seed=7))):
        parts = list(generator.stream("abc d", search))
        assert len(parts) > 20
        assert "".join(parts) == generator("abc d", search=search).continuations[0].text
    for one_line in (False, True):
        beam = SearchSettings(beam_size=2, max_length=50, repetition_penalty=2.0)
        streams = {text: list(generator.stream(text, beam, one_line=one_line)) for text in ("a", "abc d", "d d b")}
        for text, parts in streams.items():
            assert "".join(parts) == generator(text, search=beam, one_line=one_line).continuations[0].text
        assert max(map(len, streams.values())) > 1


def test_a_stream_takes_the_length_and_the_seed_of_a_call(generator: Generator) -> None:
    found = generator("abc", max_length=30, seed=3)
    assert "".join(generator.stream("abc", max_length=30, seed=3)) == found.continuations[0].text
    assert "".join(generator.stream("abc", max_length=30, seed=4)) != found.continuations[0].text


def test_one_line_ends_a_text_at_its_line_feed(generator: Generator) -> None:
    search = SearchSettings(max_length=60, n_best=8, sampling=SamplingSettings(temperature=2.0))
    endless, lines = generator("ab", search=search), generator("ab", search=search, one_line=True)
    assert any("\n" in each.text for each in endless.continuations)
    assert not any("\n" in each.text for each in lines.continuations)
    assert any(each.ended for each in lines.continuations)
    assert not any(each.ended for each in endless.continuations)


def test_beams_find_no_less_probable_texts_than_the_greedy_one(generator: Generator) -> None:
    beam = SearchSettings(beam_size=4, n_best=4, length_penalty=0.0, max_length=8)
    found = generator("ab", search=beam).continuations
    greedy = generator("ab", search=GREEDY, max_length=8).continuations[0]
    assert [each.score for each in found] == sorted((each.score for each in found), reverse=True)
    assert found[0].score >= greedy.score - 1e-4


def test_a_least_length_is_for_texts_that_end(generator: Generator) -> None:
    search = SearchSettings(beam_size=1, max_length=30, min_length=12)
    found = generator("ab", search=search, one_line=True).continuations[0]
    assert len(found.tokens) >= 12
    with pytest.raises(TransduceError, match="`min_length` keeps a text from ending, but is 12"):
        generator("ab", search=search)


def test_no_repeated_ngrams_applies_to_generated_text(generator: Generator) -> None:
    search = SearchSettings(max_length=30, no_repeated_ngrams=2, sampling=SamplingSettings())
    pieces = generator("ab", search=search).continuations[0].tokens
    pairs = list(zip(pieces, pieces[1:]))  # noqa: B905, RUF007
    assert len(set(pairs)) == len(pairs)


def test_the_score_of_a_text_is_the_sum_over_its_tokens(generator: Generator) -> None:
    ids = generator.prompt_ids("abc def")
    with torch.inference_mode():
        probabilities = generator.model(torch.tensor([ids[:-1]]))[0].log_softmax(dim=-1)
    wanted = -float(probabilities.gather(1, torch.tensor(ids[1:])[:, None]).sum())
    found = generator.score("abc def")
    assert (found.tokens, found.characters) == (7, 7)
    assert found.nats == pytest.approx(wanted, abs=1e-4)
    assert generator.score("abc def ghi" * 10).tokens == 110  # through several windows


def test_an_empty_prompt_begins_a_line(generator: Generator) -> None:
    assert generator.prompt_ids("") == [generator.vocabulary.eos_id]
    assert generator.prompt_ids("a\n") == [generator.vocabulary.eos_id, generator.vocabulary.id("a"), 1]
    assert len(generator(search=GREEDY).text) >= 1


@pytest.mark.parametrize(
    ("search", "name"),
    [
        (SearchSettings(coverage_penalty=0.2), "coverage_penalty"),
        (SearchSettings(diverse_groups=2), "diverse_groups"),
        (SearchSettings(batch_invariant=True), "batch_invariant"),
        (SearchSettings(generate=GenerateSettings()), "generate"),
    ],
)
def test_search_settings_for_translation_are_refused_by_a_generator(
    generator: Generator, search: SearchSettings, name: str
) -> None:
    with pytest.raises(TransduceError, match=f"`{name}` is for models that translate"):
        generator("abc", search=search)
    with pytest.raises(TransduceError, match=f"`{name}` is for models that translate"):
        next(generator.stream("abc", search))


def test_arguments_override_search_settings_as_in_a_translator(generator: Generator) -> None:
    greedy = SearchSettings(beam_size=1, max_length=50)
    sampled = msgspec.structs.replace(greedy, sampling=SamplingSettings(seed=3))
    with pytest.warns(IdleSettingWarning, match=r"`beam_size` \(1 in the search settings\) has no effect") as shown:
        found = generator("abc", search=greedy, seed=3)
    assert shown[0].filename == __file__
    assert found == generator("abc", search=sampled)
    with pytest.warns(IdleSettingWarning, match="`beam_size`"):
        assert "".join(generator.stream("abc", greedy, seed=3)) == found.continuations[0].text
    longer = SearchSettings(min_length=20, max_length=30, sampling=SamplingSettings())
    with pytest.warns(IdleSettingWarning, match=r"`min_length` \(20 in the search settings\) is 9"):
        found = generator("abc", search=longer, max_length=10, one_line=True)
    assert len(found.continuations[0].tokens) <= 10
    with pytest.raises(TransduceError, match="with `temperature` 0 search is greedy"):
        generator("abc", temperature=0, seed=3)


def test_repr_of_a_generator_and_its_continuations_is_one_line(
    generator: Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert repr(generator) == "Generator(text, decoder, 2 layers × 64, fp32, cpu)"
    found = generator("abc", search=GREEDY).continuations[0]
    assert repr(found) == f"Continuation({found.text!r}, score={found.score:.4f})"
    one_layer = msgspec.structs.replace(generator.model.config, num_decoder_layers=1)
    monkeypatch.setattr(generator.model, "config", one_layer)
    assert repr(generator) == "Generator(text, decoder, 1 layer × 64, fp32, cpu)"


def test_a_line_may_end_where_the_end_symbol_is_the_padding_too(generator: Generator, tokenizer: Tokenizer) -> None:
    config = msgspec.structs.replace(generator.model.config, pad_id=tokenizer.target.eos_id, zero_padding_row=False)
    model = Decoder(config).eval()
    model.load_state_dict(generator.model.state_dict())
    found = DecoderOnlyScorer(model, [generator.prompt_ids("abc\n")], max_context=CONTEXT, excluded_ids=())
    expected = DecoderOnlyScorer(generator.model, [generator.prompt_ids("abc\n")], max_context=CONTEXT, excluded_ids=())
    newest = torch.tensor([[config.eos_id]])
    for _ in range(3):
        torch.testing.assert_close(found.step(newest), expected.step(newest))


def test_stored_beams_do_not_count_toward_a_batch_of_samples(
    generator: Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin, sizes = generator._begin, list[int]()

    def recording(prompts: Any, *arguments: Any, **options: Any) -> Any:
        sizes.append(len(prompts))
        return begin(prompts, *arguments, **options)

    monkeypatch.setattr(generator, "_begin", recording)
    generator(["a"] * 64, search=SearchSettings(beam_size=4, max_length=2, sampling=SamplingSettings()))
    assert sizes == [64]


def test_sampling_options_of_a_call_sample(generator: Generator) -> None:
    search = SearchSettings(max_length=9, sampling=SamplingSettings(temperature=0.5, top_k=4, top_p=0.8, seed=2))
    assert generator("ab", max_length=9, temperature=0.5, top_k=4, top_p=0.8, seed=2) == generator("ab", search=search)
    greedy = generator("ab", search=SearchSettings(beam_size=1, max_length=9))
    assert generator("ab", max_length=9, temperature=0).text == greedy.text


@pytest.mark.parametrize(
    "search", [GREEDY, msgspec.structs.replace(GREEDY, beam_size=2, n_best=2)], ids=["greedy", "beam"]
)
def test_several_prompts_are_continued_as_each_alone(generator: Generator, search: SearchSettings) -> None:
    """Some of them fill the context, some do not."""
    search = msgspec.structs.replace(search, max_length=7)
    prompts = ["abc", "", "d e f g h i a b c", "hi", "a b\nc d e f"]
    found = generator(prompts, search=search)
    assert [each.prompt for each in found] == prompts
    for prompt, each in zip(prompts, found, strict=True):
        alone = generator(prompt, search=search)
        assert [one.text for one in each.continuations] == [one.text for one in alone.continuations]


LETTERS = "".join(chr(0x4E00 + number) for number in range(100))
"""Enough of them for a vocabulary that compiled searches support."""


@pytest.fixture(scope="module", params=["PyTorch", "machine code"])
def generator_of_letters(request: pytest.FixtureRequest) -> Generator:
    tokenizer = Tokenizer.train(
        lambda: [Pair(LETTERS, "", 1)], TokenizerSettings(kind="character", byte_fallback=False)
    )
    return make_generator(tokenizer, request.param, 40)


@pytest.mark.parametrize("search", [GREEDY, SearchSettings(beam_size=2, n_best=2)], ids=["greedy", "beam"])
@pytest.mark.parametrize("letters", [2, 37, 39])
def test_a_continuation_may_end_anywhere_around_the_context(
    generator_of_letters: Generator, letters: int, search: SearchSettings
) -> None:
    """The last token is not read, so that prompt and continuation may have one token more than the context."""
    generator, prompt = generator_of_letters, LETTERS[:letters]
    vocabulary, start = generator.vocabulary, generator.prompt_ids(LETTERS[:letters])
    free = 40 - len(start)
    for length in range(max(1, free - 1), free + 4):
        settings = msgspec.structs.replace(search, max_length=length)
        found = [generator(prompt, search=settings), *generator([prompt, prompt], search=settings)]
        for continuation in (one for each in found for one in each.continuations):
            assert len(continuation.tokens) == length
            if length <= free + 1:  # else the window moves, as the tests of greedy continuations compute it
                new = [vocabulary.id(token) for token in continuation.tokens]
                with torch.inference_mode():
                    logits = generator.model(torch.tensor([start + new[:-1]]))[0, len(start) - 1 :].float()
                    logits[:, [vocabulary.pad_id, vocabulary.unk_id]] = float("-inf")
                values = logits.log_softmax(dim=-1)[range(length), new].tolist()
                assert continuation.token_log_probabilities == pytest.approx(values, abs=1e-4)
        if search.beam_size == 1:
            assert "".join(generator.stream(prompt, settings)) == found[0].continuations[0].text


def test_prompts_that_join_later_are_continued_as_each_alone(generator_of_letters: Generator) -> None:
    """Prompts have different settings, and some fill the context."""
    letters, generator = LETTERS, generator_of_letters
    samples = SearchSettings(n_best=2, max_length=9, sampling=SamplingSettings(temperature=0.9, top_k=4, seed=5))
    other = msgspec.structs.replace(samples, max_length=20, sampling=SamplingSettings(temperature=0.9, top_k=4, seed=8))
    greedy, beam = msgspec.structs.replace(GREEDY, max_length=8), SearchSettings(beam_size=2, n_best=2, max_length=5)
    orders = [
        (letters[:9], msgspec.structs.replace(GREEDY, max_length=30)),
        (letters[10:14], samples),
        (letters[:2], other),
        (letters[3], greedy),
        ("", msgspec.structs.replace(other, max_length=1)),
        (letters[:35], other),
        (letters[20:30], beam),
        (letters[50:60], greedy),
        (letters[60:64], samples),
    ]
    running, found = ContinuousGeneration(generator), dict[int, Generation]()
    for prompt, search in orders:
        running.join([prompt], [search])
        running.step()
        found |= running.take_finished()
    assert {0, 5} <= running.texts().keys()
    running.abandon([0])
    for _ in range(20):
        running.step()
        found |= running.take_finished()
    assert (running.texts(), running.free_texts) == ({}, 64)
    for number, (prompt, search) in enumerate(orders):
        alone = generator.generate(prompt, search)
        texts, expected = ([one.text for one in each.continuations] for each in (found[number], alone))
        assert texts == expected if number else expected[0].startswith(texts[0])


def test_samples_of_a_prompt_do_not_depend_on_other_prompts(generator: Generator) -> None:
    search = SearchSettings(n_best=2, max_length=6, sampling=SamplingSettings(temperature=0.9, top_k=4, seed=5))
    prompts = ["abc", "hi d", "b"]
    found = generator(prompts, search=search)
    for prompt, each in zip(prompts, found, strict=True):
        alone = generator(prompt, search=search)
        assert [one.text for one in each.continuations] == [one.text for one in alone.continuations]
