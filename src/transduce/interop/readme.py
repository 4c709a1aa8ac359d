"""Generator of an exported folder's README.md, which describes the model and shows how to run it."""

from transduce.interop.hugging_face.imported_tokenizer import ImportedTokenizer
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
_CTRANSLATE2_IMPORTED = """\
    import ctranslate2
    from transduce.interop.hugging_face.imported_tokenizer import ImportedTokenizer

    tokenizer = ImportedTokenizer.load(".")
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

A text begins with the end-of-line symbol, `{end}`, which also separates lines, and at which generation stops.
"""
_CTRANSLATE2_IMPORTED_LANGUAGE_MODEL = """\
    import ctranslate2
    from transduce.interop.hugging_face.imported_tokenizer import ImportedTokenizer

    vocabulary = ImportedTokenizer.load(".").target
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
`encoder.onnx` takes `source_ids` (batch, source): token ids with the end symbol, padded. Pass its outputs to
`decoder.onnx` unchanged. The decoder also takes `target_ids` (batch, target), the new tokens, at first the start
symbol. Its cache is `past_key.N` and `past_value.N` for each layer N: of length 0 at first, then the outputs `key.N`
and `value.N` of the previous call. `logits` (batch, target, vocabulary) predict the token after each input token. The
ids of padding, end and start are in the graphs' metadata; a search must never select padding. {cutting}
"""
_ONNX_RECURRENT = """\
`encoder.onnx` takes `source_ids` (batch, source): token ids with the end symbol, padded. Pass its outputs to
`decoder.onnx` unchanged; names that begin with `past_` are the initial state. The decoder also takes `target_ids`
(batch, 1), the newest token, at first the start symbol. It returns `logits` (batch, 1, vocabulary), which predict the
next token, and the new state: its output `hidden.0` is the input `past_hidden.0` of the next call. The ids of padding,
end and start are in the graphs' metadata; a search must never select padding. {cutting}
"""
_ONNX_LANGUAGE_MODEL = """\
`model.onnx` takes `ids` (batch, length), the new tokens: at first a prompt, which begins with
{start}. `positions` (batch, total) are those of all tokens of a row so far, 0, 1, 2, …, and -1 in the padding of a
shorter prompt. `past_key.N` and `past_value.N` for each layer N have length 0 at first, then they are the outputs
`key.N` and `value.N` of the previous call. `logits` (batch, length, vocabulary) predict the token after each input
token. The ids of padding, end and start are in the graph's metadata; a search must never select padding. {cutting}
"""
_ONNX_ENCODER = """\
`model.onnx` takes `ids` (batch, length),
tokens between {begin} and {separator}, padded at the right, and `token_types` of the same shape if the model has
segments (0 for a single text). It returns `states` (batch, length, width) and, if the model has the heads, `logits`
(batch, length, vocabulary) of the token at each position, the `pooled` first state, and the logits of `classes` in the
order of `task.json`. The padding id is in the graph's metadata. {cutting}
"""
_USES: dict[tuple[str, Kind], str] = {
    ("ctranslate2", "transformer"): _CTRANSLATE2,
    ("ctranslate2", "decoder"): _CTRANSLATE2_LANGUAGE_MODEL,
    ("onnx", "transformer"): _ONNX,
    ("onnx", "recurrent"): _ONNX_RECURRENT,
    ("onnx", "decoder"): _ONNX_LANGUAGE_MODEL,
    ("onnx", "encoder"): _ONNX_ENCODER,
}
_IMPORTED_USES: dict[tuple[str, Kind], str] = {
    ("ctranslate2", "transformer"): _CTRANSLATE2_IMPORTED,
    ("ctranslate2", "decoder"): _CTRANSLATE2_IMPORTED_LANGUAGE_MODEL,
}
_TOKENIZATION = """\
Texts are tokenized by
sentencepiece with `{source}`, and detokenized with `{target}`."""
_IMPORTED_TOKENIZATION = """\
The tokenizer is `foreign_tokenizer.json`:
`transduce.interop.hugging_face.imported_tokenizer.ImportedTokenizer.load(".")` opens it. Its
`source.with_special_tokens(source.encode(text))` returns a text's ids with special tokens, and `target.decode(ids)`
returns the text of ids. {beginning}"""
_FORCED = """\
Every translation begins with
{forced}: pass the ids in `target.forced` to the decoder after the start symbol, and continue from there."""
_LINE_END = "the end of a line (`eos_id`)"
_RUNTIMES = {"ctranslate2": "CTranslate2", "onnx": "onnxruntime"}


def readme(
    export_format: str,
    kind: Kind,
    tokenizer: Tokenizer,
    languages: tuple[str | None, str | None],
    measured: str,
    longest: int,
) -> str:
    """Return the text of an export's README.md.

    Args:
        export_format: "ctranslate2" or "onnx".
        kind: the kind of model.
        tokenizer: the model's tokenizer.
        languages: source and target language; None if unknown.
        measured: the report that compares the export with the model.
        longest: the maximum number of tokens of a text.
    """
    is_imported = isinstance(tokenizer, ImportedTokenizer)
    source, target = ("sentencepiece.model",) * 2 if tokenizer.joint else ("source.spm", "target.spm")
    vocabulary = tokenizer.target
    pad, end, unk = vocabulary.pieces((vocabulary.pad_id, vocabulary.eos_id, vocabulary.unk_id))
    words = {"source": source, "target": target, "pad": pad, "end": end, "unk": unk}
    words["start"] = "the tokens that the tokenizer puts before a text" if vocabulary.keeps_line_feeds else _LINE_END
    words["begin"], words["separator"], _ = vocabulary.special_token_names
    forced = ", ".join(f"`{piece}`" for piece in vocabulary.pieces(vocabulary.forced))
    words["beginning"] = _FORCED.format(forced=forced) if forced else ""
    cutting = (_IMPORTED_TOKENIZATION if is_imported else _TOKENIZATION).format(**words)
    templates = _USES | _IMPORTED_USES if is_imported else _USES
    use = templates[export_format, kind].format(**words, cutting=cutting)
    composed = "Texts must be in Unicode's composed form (NFC). " if tokenizer.source.nfc else ""
    titles = {"encoder": ("An encoder", "An encoder"), "decoder": ("A language model", "A language model")}
    pair = f"{languages[0] or 'source'} → {languages[1] or 'target'}"
    title, description = titles.get(kind, (pair, "A translation model"))
    return (
        f"# {title} for {_RUNTIMES[export_format]}\n\n"
        f"{description} that was {'imported' if is_imported else 'trained'} by transduce and exported by it.\n\n{use}\n"
        f"{composed}A text can have {longest:,} tokens.\n\n"
        f"The export was compared with the model:\n\n```\n{measured}\n```\n"
    )
