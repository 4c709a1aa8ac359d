"""Test that decoding with a KV cache equals decoding without: token by token, in chunks, and for several hypotheses."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from transduce.model.attention import KeyValueCache
from transduce.model.build import build_any_model
from transduce.model.config import Kind, ModelConfig, Positions
from transduce.model.series import SeriesTransformer
from transduce.model.transformer import Decoder, Transformer

aten = torch.ops.aten
PAD, EOS, V = 0, 1, 17
SOURCES = torch.tensor([[5, 6, 7, 8, EOS], [9, 3, EOS, PAD, PAD], [4, EOS, PAD, PAD, PAD]])


def build(norm_order: str = "pre") -> Transformer:
    config = ModelConfig(
        source_vocabulary_size=V,
        target_vocabulary_size=V,
        num_encoder_layers=1,
        num_decoder_layers=2,
        d_model=16,
        d_ff=32,
        num_heads=2,
        d_k=6,
        d_v=10,
        norm_order="post" if norm_order == "post" else "pre",
    )
    model = Transformer(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.5)
    return model


def close(ours: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(ours, expected, atol=2e-5, rtol=1e-5)


@pytest.mark.parametrize("norm_order", ["pre", "post"])
def test_cached_equals_uncached_decoding(norm_order: str) -> None:
    model = build(norm_order)
    target = torch.randint(2, V, (3, 40))  # longer than the cache's first buffer
    target[:, 0] = PAD
    with torch.inference_mode():
        memory, mask = model.encode(SOURCES)
        expected = model.decode(target, memory, mask)
        cache = model.new_cache()
        for step in range(40):
            hidden = model.decode(target[:, step : step + 1], memory, mask, cache=cache)
            close(hidden, expected[:, step : step + 1])
        assert cache.length == 40


def test_decoding_several_positions_per_call_equals_decoding_all_at_once() -> None:
    model = build()
    target = torch.randint(2, V, (3, 10))
    with torch.inference_mode():
        memory, mask = model.encode(SOURCES)
        expected = model.decode(target, memory, mask)
        cache = model.new_cache()
        parts = [model.decode(part, memory, mask, cache=cache) for part in target.split([3, 1, 4, 2], dim=1)]
    close(torch.cat(parts, dim=1), expected)


def test_removing_sentences_from_the_cache_keeps_the_others_unchanged() -> None:
    model = build()
    target = torch.randint(2, V, (3, 6))
    keep = torch.tensor([0, 2])
    with torch.inference_mode():
        memory, mask = model.encode(SOURCES)
        expected = model.decode(target, memory, mask)
        cache = model.new_cache()
        model.decode(target[:, :4], memory, mask, cache=cache)
        cache.keep_sentences(keep)
        kept_memory, kept_mask = model.encode(SOURCES[keep])
        hidden = model.decode(target[keep, 4:], kept_memory, kept_mask, cache=cache)
    close(hidden, expected[keep, 4:])


def test_the_memory_is_projected_once() -> None:
    """After the first step only the cache is read: another encoder output of the same shape changes nothing."""
    model = build()
    with torch.inference_mode():
        memory, mask = model.encode(SOURCES)
        outputs = []
        for second in (memory, torch.zeros_like(memory)):
            cache = model.new_cache()
            model.decode(torch.tensor([[PAD]] * 3), memory, mask, cache=cache)
            outputs.append(model.decode(torch.tensor([[3]] * 3), second, mask, cache=cache))
    assert torch.equal(*outputs)


def decode_alone(model: Transformer, source: Tensor, pieces: list[int]) -> Tensor:
    """Return the logits (V,) after the last of these tokens, without cache, padding or other sentences."""
    source = source[source != PAD][None]
    return model(source, torch.tensor([pieces]))[0, -1]  # type: ignore[no-any-return]


def test_beam_hypotheses_in_one_batch_equal_each_alone() -> None:
    """Use one cache as beam search does: random parents at each step, and sentences that finish."""
    model, width = build(), 3
    generator = torch.Generator().manual_seed(4)
    with torch.inference_mode():
        state = model.start(SOURCES)
        histories = [[[PAD]] for _ in range(3)]  # by sentence, by hypothesis
        sentences = [0, 1, 2]
        newest = torch.full((3, 1), PAD)
        for step in range(20):
            logits = model.project(state.step(newest))
            assert logits.shape == (len(sentences), len(histories[0]), V)
            for row, sentence in enumerate(sentences):
                for hypothesis, pieces in enumerate(histories[row]):
                    close(logits[row, hypothesis], decode_alone(model, SOURCES[sentence], pieces))
            parents = torch.randint(len(histories[0]), (len(sentences), width), generator=generator)
            newest = torch.randint(2, V, (len(sentences), width), generator=generator)
            state.reorder(parents)
            histories = [
                [[*histories[row][parent], piece] for parent, piece in zip(chosen, added, strict=True)]
                for row, (chosen, added) in enumerate(zip(parents.tolist(), newest.tolist(), strict=True))
            ]
            if step in {4, 11}:  # the second sentence finishes, then the first
                rows = torch.tensor([0, 2] if step == 4 else [1])
                state.keep_sentences(rows)
                newest = newest[rows]
                histories = [histories[row] for row in rows.tolist()]
                sentences = [sentences[row] for row in rows.tolist()]
    assert sentences == [2]


def test_greedy_steps_of_a_batch_equal_each_sentence_alone() -> None:
    model = build()
    with torch.inference_mode():
        state = model.start(SOURCES)
        histories = [[PAD], [PAD], [PAD]]
        for step in range(6):
            newest = torch.tensor([[pieces[-1]] for pieces in histories])
            logits = model.project(state.step(newest))
            for row, pieces in enumerate(histories):
                close(logits[row, 0], decode_alone(model, SOURCES[row], pieces))
                pieces.append(2 + step + row)


def test_a_cache_holds_what_was_appended_in_order() -> None:
    cache = KeyValueCache()
    keys, values = torch.randn(2, 1, 50, 3), torch.randn(2, 1, 50, 4)
    for start, stop in ((0, 1), (1, 20), (20, 21), (21, 50)):
        all_keys, all_values = cache.append(keys[:, :, start:stop], values[:, :, start:stop])
        assert torch.equal(all_keys, keys[:, :, :stop])
        assert torch.equal(all_values, values[:, :, :stop])
    assert cache.length == 50


def test_an_empty_cache_has_no_content() -> None:
    with pytest.raises(ValueError, match="the cache is empty: append to it first"):
        KeyValueCache().content()


class NoReads(TorchDispatchMode):
    """A mode that fails if a number is read out of a tensor, for which a GPU would have to finish its work."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        assert func not in (aten.item.default, aten._local_scalar_dense.default), "a number was read out of a tensor"
        return func(*args, **(kwargs or {}))


def no_reads() -> TorchDispatchMode:
    return NoReads()  # type: ignore[no-untyped-call]


@pytest.mark.parametrize("kind", ["transformer", "decoder"])
@pytest.mark.parametrize("positions", ["sinusoidal", "learned", "rotary", "relative"])
def test_a_step_reads_no_number_from_the_device(positions: Positions, kind: Kind) -> None:
    config = ModelConfig(
        source_vocabulary_size=9, target_vocabulary_size=9, num_encoder_layers=1, num_decoder_layers=1, d_model=8,
        d_ff=8, num_heads=2, positions=positions, kind=kind, max_positions=5 if positions == "learned" else 1024,
    )  # fmt: skip
    model = build_any_model(config).eval()
    assert isinstance(model, Transformer | Decoder)
    with torch.inference_mode():
        state = model.start(torch.tensor([[4, 5, 7], [6, 7, PAD]]))
        state.keep_sentences(torch.tensor([1, 0]))
        with no_reads():
            for token in (3, 6, 7):
                assert state.step(torch.full((2, 1), token)).shape == (2, 1, 8)
        state.keep_sentences(torch.tensor([0]))  # the shorter prompt, which has free positions left
        with no_reads():
            state.step(torch.tensor([[5]]))


@pytest.mark.parametrize("positions", ["sinusoidal", "rotary"])
def test_positions_after_a_cache_are_known_without_reading_them(positions: Positions) -> None:
    config = ModelConfig(
        kind="decoder", source_vocabulary_size=9, target_vocabulary_size=9, num_decoder_layers=1, d_model=8, d_ff=8,
        num_heads=2, positions=positions,
    )  # fmt: skip
    model = Decoder(config).eval()
    with torch.inference_mode():
        cache = model.new_cache()
        with no_reads():
            for ids in ([[4, 5]], [[6]], [[7, 3]]):
                model.decode(torch.tensor(ids), cache=cache)
        assert cache.length == 5


def test_a_rolled_out_series_reads_no_number_from_the_device() -> None:
    config = ModelConfig(
        kind="series", num_series=2, source_vocabulary_size=0, target_vocabulary_size=0, num_encoder_layers=1,
        num_decoder_layers=1, d_model=8, d_ff=8, num_heads=2, positions="rotary",
    )  # fmt: skip
    model = SeriesTransformer(config).eval()
    with torch.inference_mode(), no_reads():
        assert model.roll_out(torch.randn(1, 5, 2), 3).means.shape == (1, 3, 2)
