"""Test that random requests get equal results from every search, alone and together, and from plain definitions."""

import copy
import math
import random
from collections.abc import Callable, Sequence
from functools import cache

import msgspec
import pytest
import torch
from torch import Tensor

from transduce.acceleration import exact_projection
from transduce.inference import decoding, scorers
from transduce.inference.decoding import SentenceBatch, forbid_texts, start_search
from transduce.inference.translator import Translator
from transduce.kernels.select import has_kernels, make_inference_copy, quantize
from transduce.model.build import EncoderDecoder
from transduce.model.config import ModelConfig
from transduce.model.recurrent import Recurrent
from transduce.model.transformer import Transformer
from transduce.search.rules import GenerateSettings
from transduce.search.scorer import GENERATE_RANKING, PAPER_RANKING, Hypothesis, run_search
from transduce.search.settings import SamplingSettings, SearchSettings
from transduce.text.vocabulary import Vocabulary

KINDS: list[dict[str, object]] = [
    {"positions": "rotary", "num_key_value_heads": 1},
    {"norm_order": "post", "activation": "swiglu"},
    {"positions": "learned", "max_positions": 24, "norm": "rms"},
    {"kind": "recurrent"},
]
MAX_DIFFERENCE = 2e-3  # nats; two hypotheses may change places if their scores differ by less


@cache
def build(kind: int, size: int) -> EncoderDecoder:
    torch.manual_seed(kind)
    changes = KINDS[kind]
    sizes = {} if changes.get("kind") == "recurrent" else {"d_ff": 128, "num_heads": 2}
    shape = {"num_encoder_layers": 1, "num_decoder_layers": 2, "d_model": 64, "output_bias": True, **sizes, **changes}
    vocabulary = {"source_vocabulary_size": size, "target_vocabulary_size": size}
    config = msgspec.convert(vocabulary | shape, ModelConfig)
    model = (Recurrent if config.kind == "recurrent" else Transformer)(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.1)
        model.get_parameter("output_bias")[1] = 3.0
    return model


@cache
def prepare(kind: int, size: int, precision: str) -> EncoderDecoder:
    model = copy.deepcopy(build(kind, size))
    if precision == "int8" and isinstance(model, Transformer):
        return quantize(model)
    make_inference_copy(model, torch.float32)
    return model


def draw_search(generator: random.Random) -> SearchSettings:
    """Draw search settings: some of each kind, every other one at its default."""
    beam_size, is_sampled = generator.choice((1, 2, 4)), generator.random() < 0.2
    drawn: dict[str, object] = {
        "length_penalty": generator.choice((0.0, 0.6, 2.0)),
        "max_length": generator.randint(9, 20),
        "min_length": generator.randint(1, 8),
        "no_repeated_ngrams": generator.randint(1, 3),
        "repetition_penalty": generator.choice((0.8, 1.5)),
        "frequency_penalty": 0.3,
        "presence_penalty": 0.4,
        "forbidden": ("apples", "fish"),
        "generate": GenerateSettings(
            forced_first_id=generator.choice((None, 9)),
            forced_last_id=generator.choice((None, 1)),
            forbidden_ids=generator.choice(((), (12, 13))),
            stop=generator.choice(("full", "likely", "never")),
            renormalize=generator.random() < 0.5,
        ),
    }
    if beam_size == 4 and not is_sampled:
        drawn["diverse_groups"] = 2
    chosen = {name: value for name, value in drawn.items() if generator.random() < 0.35}
    if is_sampled:
        chosen["sampling"] = SamplingSettings(top_k=generator.choice((0, 5)), top_p=generator.choice((1.0, 0.8)))
    width = generator.randint(1, 3) if is_sampled else generator.randint(1, beam_size)
    return SearchSettings(beam_size=beam_size, n_best=width, **chosen)  # type: ignore[arg-type]


def draw_batch(generator: random.Random, search: SearchSettings, vocabulary: Vocabulary) -> SentenceBatch:
    count, size = generator.choice((1, 3, 7)), vocabulary.size
    sources = [[*generator.choices(range(3, size), k=generator.choice((1, 4, 11))), 1] for _ in range(count)]
    lengths = [generator.choice((0, 1, 2)) for _ in range(count)] if generator.random() < 0.4 else [0] * count
    prefixes = [generator.choices(range(15, size), k=length) for length in lengths]
    phrases: list[tuple[tuple[tuple[int, ...], ...], ...]] = [()] * count
    if search.sampling is None and search.diverse_groups == 1 and generator.random() < 0.2:
        phrases = [(decoding.tokenize_phrase(generator.choice(("tea", "water")), vocabulary),) for _ in range(count)]
    return SentenceBatch(sources, prefixes, phrases, range(count))


class Silent:
    """An observer that abandons nothing, for which search runs step by step."""

    def after_step(self, sentence_indices: Tensor, tokens: Tensor) -> tuple[int, ...]:  # noqa: ARG002
        return ()


def assert_alike(found: Sequence[Sequence[Hypothesis]], expected: Sequence[Sequence[Hypothesis]]) -> None:
    """Assert equal hypotheses, where two of nearly equal scores may have changed places."""
    assert [len(own) for own in found] == [len(own) for own in expected]
    for one, other in ((a, b) for own, others in zip(found, expected, strict=True) for a, b in zip(own, others)):  # noqa: B905
        assert one.score == pytest.approx(other.score, abs=MAX_DIFFERENCE)
        if one.ids == other.ids:
            assert one.ended == other.ended
            assert one.token_log_probabilities == pytest.approx(other.token_log_probabilities, abs=MAX_DIFFERENCE)


@pytest.mark.parametrize("precision", ["fp32", "int8"])
@pytest.mark.parametrize("seed", range(24))
def test_a_random_request_has_one_result(
    translator: Translator, monkeypatch: pytest.MonkeyPatch, seed: int, precision: str
) -> None:
    if precision == "int8" and not has_kernels():
        pytest.skip("int8 needs kernels")
    generator, vocabulary = random.Random(seed), translator.tokenizer.target
    kind, search = seed % (len(KINDS) - (precision == "int8")), draw_search(generator)  # recurrent models have no int8
    batch, model = draw_batch(generator, search, vocabulary), prepare(kind, vocabulary.size, precision)

    def run(rows: SentenceBatch = batch, *, observed: bool = False) -> list[list[Hypothesis]]:
        with torch.inference_mode():
            return run_search(start_search([model], vocabulary, rows, search), Silent() if observed else None)

    found = run()
    assert_alike(run(observed=True), found)
    if precision == "fp32":  # the rounding of int8's inputs may depend on the batch
        for row in range(len(found)):
            alone = SentenceBatch(*([values[row]] for values in batch[:4]))  # type: ignore[arg-type]
            assert_alike(run(alone), [found[row]])
    monkeypatch.setattr(decoding, "find_compiled_search", lambda *_, **__: None)
    assert_alike(run(), found)
    if precision == "fp32":
        monkeypatch.setattr(decoding, "search_reductions", lambda: None)
        monkeypatch.setattr(scorers, "start_fast", lambda plain, source: plain.start(source))
        assert_alike(run(), found)
        if search.sampling is None and search.diverse_groups == 1 and not any(batch.phrases):
            expected = search_by_definition(build(kind, vocabulary.size), vocabulary, batch, search)
            assert [hypothesis.score for hypothesis in found[0]] == pytest.approx(expected, abs=MAX_DIFFERENCE)


# --- the definitions of search, for the first sentence of a batch ---


def search_by_definition(
    model: EncoderDecoder, vocabulary: Vocabulary, batch: SentenceBatch, search: SearchSettings
) -> list[float]:
    """Return the scores of the best hypotheses, which a slow beam over Python lists finds."""
    generate, prefix = search.generate, list(batch.prefixes[0])
    first = None if generate is None else generate.forced_first_id
    prefix = [first, *prefix] if first is not None and prefix else prefix
    positions = model.config.max_positions if model.config.positions == "learned" else 1 << 30
    longest = min(search.max_length_for(len(batch.source_ids[0])), positions)
    if search.max_length is None:
        longest = max(longest, min(max(len(prefix), search.min_length) + 1, positions))
    ranking = PAPER_RANKING if generate is None else GENERATE_RANKING
    following = next_scores(model, vocabulary, batch, search, prefix, longest)
    live: list[tuple[tuple[int, ...], float]] = [((), 0.0)]
    width, done = search.beam_size, list[tuple[bool, float]]()  # sort keys: whether it was cut, negative score
    for length in range(1, longest + 1):
        best = sorted(
            ((total + score, ids, token) for ids, total in live for token, score in enumerate(following(ids))),
            key=lambda candidate: -candidate[0],
        )[: 2 * width]
        best = [candidate for candidate in best if candidate[0] > -math.inf]
        if width == 1:
            best = best[:1]
        divisor = ranking.length_penalty(length, search.length_penalty)
        ended = [total for total, _, token in best[:width] if token == 1]
        live = [((*ids, token), total) for total, ids, token in best if token != 1][:width]
        done += [(False, -total / divisor) for total in ended]
        if length == longest:
            cut = live[: width - len(ended)] if generate is not None else live
            done += [(generate is None, -total / divisor) for _, total in cut]
        done = sorted(done)[:width]
        if not live or is_decided(live[0][1], done, length, longest, search):
            break
    return [-negative for _, negative in done[: search.n_best]]


def is_decided(
    best_live: float, done: list[tuple[bool, float]], length: int, longest: int, search: SearchSettings
) -> bool:
    """Return whether no live hypothesis can become a result."""
    if search.generate is None:
        bound = best_live / PAPER_RANKING.length_penalty(longest, search.length_penalty)
        return len(done) >= search.n_best and -bound >= done[search.n_best - 1][1]
    if search.generate.stop == "never" and search.length_penalty > 0.0:
        length = longest
    bound = best_live / GENERATE_RANKING.length_penalty(length, search.length_penalty)
    return len(done) >= search.beam_size and (search.generate.stop == "full" or -bound >= done[-1][1])


def next_scores(
    model: EncoderDecoder,
    vocabulary: Vocabulary,
    batch: SentenceBatch,
    search: SearchSettings,
    prefix: list[int],
    longest: int,
) -> Callable[[tuple[int, ...]], list[float]]:
    """Return a function from the tokens of a hypothesis to the log-probability of each next one after all rules."""
    source, generate = torch.tensor([batch.source_ids[0]]), search.generate
    project = exact_projection(model)
    texts = forbid_texts(search.forbidden, vocabulary) if search.forbidden else ()

    @cache
    @torch.inference_mode()
    def following(ids: tuple[int, ...]) -> list[float]:
        state, hidden = model.start(source), torch.empty(0)
        for token in (0, *ids):
            hidden = state.step(torch.tensor([[token]]))
        logits = project(hidden)[0, 0].clone()
        if generate is None:
            logits[model.config.forbidden_tokens] = -math.inf
        normalizer = logits.logsumexp(0)
        plain, offset = logits - normalizer, 0.0 if search.beam_size > 1 else normalizer
        scores = penalize(plain + offset, ids, search) - offset
        for rule in texts:
            rule.apply(scores[None, None], torch.tensor([[ids]]).long(), torch.zeros(1).long())
        if len(ids) < search.min_length:
            scores[1] = -math.inf
        count = search.no_repeated_ngrams
        ngrams = {ids[start : start + count] for start in range(len(ids) - count + 1)} if count else set()
        for token in {ngram[-1] for ngram in ngrams if ngram[:-1] == ids[len(ids) - count + 1 :]}:
            scores[token] = -math.inf
        if len(ids) < len(prefix):
            scores = only(scores, prefix[len(ids)], plain[prefix[len(ids)]])
        if generate is not None:
            scores[list(generate.forbidden_ids)] = -math.inf
            if generate.forced_first_id is not None and not ids:
                scores = only(scores, generate.forced_first_id, 0.0)
            if generate.forced_last_id is not None and len(ids) == longest - 1:
                scores = only(scores, generate.forced_last_id, 0.0)
            scores = scores.log_softmax(0) if generate.renormalize else scores
        return scores.tolist()

    return following


def penalize(scores: Tensor, ids: tuple[int, ...], search: SearchSettings) -> Tensor:
    """Return the scores of the next token with the penalties of tokens that occurred, including the start symbol."""
    penalized = scores.clone()
    for token in {0, *ids} if search.repetition_penalty != 1.0 else ():
        penalized[token] *= search.repetition_penalty ** (1 if scores[token] < 0 else -1)
    for token in set(ids):
        penalized[token] -= search.presence_penalty + search.frequency_penalty * ids.count(token)
    return penalized


def only(scores: Tensor, token: int, score: Tensor | float) -> Tensor:
    forced = torch.full_like(scores, -math.inf)
    forced[token] = score
    return forced
