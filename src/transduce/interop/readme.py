"""The README.md of an exported folder: what it is and how it is run there."""

from transduce.interop.hugging_face.imported_tokenizer import ForeignTokenizer
from transduce.model.config import Kind
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
_CTRANSLATE2_FOREIGN = """\
    import ctranslate2
    from transduce.interop.hugging_face.imported_tokenizer import ForeignTokenizer

    tokenizer = ForeignTokenizer.load(".")
    source, target = tokenizer.source, tokenizer.target
    translator = ctranslate2.Translator(".")
    pieces = [source.pieces(source.with_special_tokens(source.encode(line))) for line in lines]
    results = translator.translate_batch(
        pieces, target_prefix=[target.pieces(target.forced)] * len(pieces), beam_size=4, suppress_sequences=[["{pad}"]]
    )
    for result in results:
        print(target.decode(map(target.id, result.hypotheses[0])))
"""
_CTRANSLATE2_LANGUAGE_MODEL = """\
    import ctranslate2, sentencepiece

    vocabulary = sentencepiece.SentencePieceProcessor(model_file="{source}")
    generator = ctranslate2.Generator(".")
    prompt = ["{end}", *vocabulary.encode("the beginning", out_type=str)]
    results = generator.generate_batch(
        [prompt], max_length=100, sampling_topk=0, sampling_temperature=0.8, suppress_sequences=[["{pad}"], ["{unk}"]]
    )
    print(vocabulary.decode(results[0].sequences[0]))

A text begins after the end of a line, `{end}`, which also stands between lines, and at which this stops.
"""
_CTRANSLATE2_FOREIGN_LANGUAGE_MODEL = """\
    import ctranslate2
    from transduce.interop.hugging_face.imported_tokenizer import ForeignTokenizer

    vocabulary = ForeignTokenizer.load(".").target
    generator = ctranslate2.Generator(".")
    start = vocabulary.before or (() if vocabulary.keeps_line_feeds else (vocabulary.eos_id,))
    prompt = vocabulary.pieces([*start, *vocabulary.encode("the beginning")])
    ends = vocabulary.pieces(vocabulary.ends)
    results = generator.generate_batch(
        [prompt], max_length=100, sampling_topk=0, sampling_temperature=0.8, end_token=ends
    )
    print(vocabulary.decode(map(vocabulary.id, results[0].sequences[0]), line_feeds=True))
"""
_ONNX = """\
`encoder.onnx` takes `source_ids` (batch, source), pieces with the end symbol, filled up with padding. What it gives is
given on to `decoder.onnx` as it is. That takes `target_ids` (batch, target) besides, the newest pieces, at first the
start symbol; and the cache: `past_key.N` and `past_value.N` for each layer N, of length 0 at first, then what the last
call gave as `key.N` and `value.N`. `logits` (batch, target, vocabulary) are of the piece after each. Ids of padding,
end and start stand in the graphs' metadata; padding is never to be chosen. {cutting}
"""
_ONNX_RECURRENT = """\
`encoder.onnx` takes `source_ids` (batch, source), pieces with the end symbol, filled up with padding. What it gives is
given on to `decoder.onnx` as it is; names that begin with `past_` are the state before the first piece. The decoder
takes `target_ids` (batch, 1) besides, the newest piece, at first the start symbol. It gives `logits` (batch, 1,
vocabulary) of the piece after it, and the new state: what it calls `hidden.0` the next call takes as `past_hidden.0`.
Ids of padding, end and start stand in the graphs' metadata; padding is never to be chosen. {cutting}
"""
_ONNX_LANGUAGE_MODEL = """\
`model.onnx` takes `ids` (batch, length), the newest pieces: at first a prompt, which begins with
{start}. `positions` (batch, total) are those of all pieces of a row so far, 0, 1, 2, …, and -1 where a shorter
prompt of a batch is filled up. `past_key.N` and `past_value.N` for each layer N have length 0 at first, then they are
what the last call gave as `key.N` and `value.N`. `logits` (batch, length, vocabulary) are of the piece after each. Ids
of padding, end and start stand in the graph's metadata; padding is never to be chosen. {cutting}
"""
_ONNX_ENCODER = """\
`model.onnx` takes `ids` (batch, length),
pieces between {begin} and {separator}, filled up with padding at the right, and `token_types` of the same shape where
the model has segments (0 for a text alone). It gives `states` (batch, length, width) and, where the model has heads for
them, `logits` (batch, length, vocabulary) of the piece at each place, the `pooled` first state, and logits of `classes`
in the order of `task.json`. Ids of padding stand in the graph's metadata. {cutting}
"""
_USES: dict[tuple[str, Kind], str] = {
    ("ctranslate2", "transformer"): _CTRANSLATE2,
    ("ctranslate2", "decoder"): _CTRANSLATE2_LANGUAGE_MODEL,
    ("onnx", "transformer"): _ONNX,
    ("onnx", "recurrent"): _ONNX_RECURRENT,
    ("onnx", "decoder"): _ONNX_LANGUAGE_MODEL,
    ("onnx", "encoder"): _ONNX_ENCODER,
}
_FOREIGN_USES: dict[tuple[str, Kind], str] = {
    ("ctranslate2", "transformer"): _CTRANSLATE2_FOREIGN,
    ("ctranslate2", "decoder"): _CTRANSLATE2_FOREIGN_LANGUAGE_MODEL,
}
_CUTTING = """\
Texts are cut into pieces by
sentencepiece with `{source}`, and joined with `{target}`."""
_FOREIGN_CUTTING = """\
The tokenizer is `foreign_tokenizer.json`:
`transduce.interop.hugging_face.imported_tokenizer.ForeignTokenizer.load(".")` opens it, and of its two sides
`source.with_special_tokens(source.encode(text))` turns a text into ids with its special tokens, and
`target.decode(ids)` turns ids into a text. {beginning}"""
_FORCED = """\
Every translation begins with
{forced}: the decoder is given the ids in `target.forced` after the start symbol, and goes on from there."""
_LINE_END = "the end of a line (`eos_id`)"
_PROGRAMS = {"ctranslate2": "CTranslate2", "onnx": "onnxruntime"}


def readme(
    export_format: str,
    kind: Kind,
    tokenizer: Tokenizer,
    languages: tuple[str | None, str | None],
    measured: str,
    longest: int,
) -> str:
    """The text.

    Args:
        export_format: ctranslate2 or onnx.
        kind: of the model.
        tokenizer: the model's.
        languages: source and target.
        measured: what the comparison with the model found.
        longest: pieces that a text can have.
    """
    is_foreign = isinstance(tokenizer, ForeignTokenizer)
    source, target = ("sentencepiece.model",) * 2 if tokenizer.joint else ("source.spm", "target.spm")
    vocabulary = tokenizer.target
    pad, end, unk = vocabulary.pieces((vocabulary.pad_id, vocabulary.eos_id, vocabulary.unk_id))
    words = {"source": source, "target": target, "pad": pad, "end": end, "unk": unk}
    words["start"] = "what the tokenizer puts before a text" if vocabulary.keeps_line_feeds else _LINE_END
    words["begin"], words["separator"], _ = vocabulary.special_token_names
    forced = ", ".join(f"`{piece}`" for piece in vocabulary.pieces(vocabulary.forced))
    words["beginning"] = _FORCED.format(forced=forced) if forced else ""
    cutting = (_FOREIGN_CUTTING if is_foreign else _CUTTING).format(**words)
    uses = _USES | _FOREIGN_USES if is_foreign else _USES
    use = uses[export_format, kind].format(**words, cutting=cutting)
    composed = "Texts must be in Unicode's composed form (NFC). " if tokenizer.source.nfc else ""
    titles = {"encoder": ("An encoder", "An encoder"), "decoder": ("A language model", "A language model")}
    pair = f"{languages[0] or 'source'} → {languages[1] or 'target'}"
    title, what = titles.get(kind, (pair, "A translation model"))
    return (
        f"# {title} for {_PROGRAMS[export_format]}\n\n"
        f"{what} that was {'imported' if is_foreign else 'trained'} by transduce and exported by it.\n\n{use}\n"
        f"{composed}A text can have {longest:,} pieces.\n\n"
        f"The export was run beside the model:\n\n```\n{measured}\n```\n"
    )
