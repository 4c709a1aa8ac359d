"""The README.md of an exported folder: what it is and how it is run there."""

from transduce.text.tokenizer import Tokenizer

_CTRANSLATE2 = """\
    import ctranslate2, sentencepiece

    source = sentencepiece.SentencePieceProcessor(model_file="{source}")
    target = sentencepiece.SentencePieceProcessor(model_file="{target}")
    translator = ctranslate2.Translator(".")
    pieces = [source.encode(line, out_type=str) for line in lines]
    results = translator.translate_batch(pieces, beam_size=4, suppress_sequences=[["{pad}"]])
    for result in results:
        print(target.decode(result.hypotheses[0]))
"""
_ONNX = """\
`encoder.onnx` takes `source_ids` (batch, source), pieces with the end symbol, filled up with padding. What it gives is
given on to `decoder.onnx` as it is. That takes `target_ids` (batch, target) besides, the newest pieces, at first the
start symbol; and the cache: `past_key.N` and `past_value.N` for each layer N, of length 0 at first, then what the last
call gave as `key.N` and `value.N`. `logits` (batch, target, vocabulary) are of the piece after each. Ids of padding,
end and start stand in the graphs' metadata; padding is never to be chosen. Texts are cut into pieces by sentencepiece
with `{source}`, and joined with `{target}`.
"""
_USES = {"ctranslate2": _CTRANSLATE2, "onnx": _ONNX}
_TITLES = {"ctranslate2": "CTranslate2", "onnx": "onnxruntime"}


def readme(
    export_format: str, tokenizer: Tokenizer, languages: tuple[str | None, str | None], measured: str, longest: int
) -> str:
    """The text.

    Args:
        export_format: ctranslate2 or onnx.
        tokenizer: the model's.
        languages: source and target.
        measured: what the comparison with the model found.
        longest: pieces that a sentence can have.
    """
    source, target = ("sentencepiece.model",) * 2 if tokenizer.joint else ("source.spm", "target.spm")
    use = _USES[export_format].format(source=source, target=target, pad=tokenizer.target.piece(tokenizer.target.pad_id))
    composed = "Texts must be in Unicode's composed form (NFC). " if tokenizer.source.nfc else ""
    return (
        f"# {languages[0] or 'source'} → {languages[1] or 'target'} for {_TITLES[export_format]}\n\n"
        f"A translation model that was trained by transduce and exported by it.\n\n{use}\n"
        f"{composed}A sentence can have {longest:,} pieces.\n\n"
        f"The export was run beside the model:\n\n```\n{measured}\n```\n"
    )
