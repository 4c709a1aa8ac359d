"""Run transduce as a worker of imported_speed.py: import a Hugging Face folder, and decode by token ids."""

import json
import sys
from functools import partial
from pathlib import Path

import msgspec
import torch
from decoding_worker import Clock, read_plan, resident_bytes, serve

from transduce.inference.compiled_search import find_compiled_search
from transduce.inference.decoding import SentenceBatch, start_search
from transduce.inference.scorers import DecoderOnlyScorer
from transduce.interop.hugging_face.import_settings import import_generation
from transduce.interop.hugging_face.import_weights import StoredTensors, import_model
from transduce.interop.hugging_face.imported_tokenizer import (
    ImportedTokenizer,
    ImportedTokenizerRecord,
    ImportedVocabularyRecord,
)
from transduce.interop.hugging_face.token_pipelines import WordListRecord
from transduce.kernels.select import has_kernels
from transduce.model.transformer import Decoder, Transformer
from transduce.model_folder.load import load_model_at
from transduce.model_folder.read import read_any_model_folder
from transduce.model_folder.tensor_files import MappedTensors
from transduce.model_folder.write import write_model_folder
from transduce.search.beam import BeamOptions
from transduce.search.greedy import GreedySearch, take_argmax
from transduce.search.scorer import Search, SequenceLimits, run_search
from transduce.text.vocabulary import Vocabulary

_ENDLESS = -1  # an end symbol that no token has
_CONTEXT = 1024


class NoVocabulary(Vocabulary):
    """A vocabulary without texts, for a search that needs only the end symbol."""

    def __init__(self, eos_id: int) -> None:
        self.forced = ()
        self.eos_id = eos_id


def bring_in(folder: Path, out: Path) -> None:
    """Import a Hugging Face folder, which has no tokenizer, as a model folder with made-up words."""
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    file = MappedTensors(folder, "model.safetensors", whole_numbers=None)
    readers = {name: partial(file.tensor, name) for name in file.entries}
    start = {"start_id": config["decoder_start_token_id"]} if config.get("is_encoder_decoder") else {}
    found = import_model(config, StoredTensors(readers, str(folder)), start)
    size, ids = found.config.target_vocabulary_size, (found.config.pad_id, found.config.eos_id)
    words = {f"t{id}": id for id in range(size)}
    record = ImportedVocabularyRecord(
        algorithm=WordListRecord(), ids=words, size=size, pad_id=ids[0], eos_id=ids[1], unk_id=3
    )
    write_model_folder(
        out,
        weights=found.weights,
        config=found.config,
        tokenizer=ImportedTokenizer(ImportedTokenizerRecord(source=record)),
        languages=(None, None),
        documents={},
    )


def main() -> None:
    """Open the model and decode as requested."""
    plan, sentences = read_plan()
    has_kernels()  # loads LLVM's library if installed, which other engines do during import
    folder = Path(plan.folder)
    bare, opening = resident_bytes(), Clock()
    own = folder.with_name("transduce")
    model = load_model_at(read_any_model_folder, own, precision=plan.form, device="cpu", threads=plan.threads).model
    config, generation = (
        json.loads((folder / name).read_text(encoding="utf-8")) for name in ("config.json", "generation_config.json")
    )
    ids = sentences["ids"]

    def translation(rows: list[list[int]], beam_size: int) -> Search:
        assert isinstance(model, Transformer)
        search = msgspec.structs.replace(
            import_generation(generation, config, plan.folder, max_positions=None),
            beam_size=beam_size,
            max_length=plan.longest,
            min_length=plan.shortest,
            length_penalty=plan.length_penalty,
        )
        count = len(rows)
        batch = SentenceBatch(rows, [[]] * count, [()] * count, range(count))
        return start_search([model], NoVocabulary(model.config.eos_id), batch, search)

    def continuation(rows: list[list[int]]) -> Search:
        assert isinstance(model, Decoder)
        scorer = DecoderOnlyScorer(model, rows, max_context=_CONTEXT, excluded_ids=())
        limits = SequenceLimits(0, _ENDLESS, torch.full((len(rows),), plan.longest))
        found = find_compiled_search(scorer, limits, BeamOptions(beam_size=1, alpha=0.0))
        return found or GreedySearch(scorer, limits, take_argmax)

    @torch.inference_mode()
    def decode(indices: list[int], beam_size: int) -> int:
        rows = [ids[index] for index in indices]
        found = run_search(continuation(rows) if isinstance(model, Decoder) else translation(rows, beam_size))
        return sum(len(hypotheses[0].token_log_probabilities) for hypotheses in found)

    serve(decode, len(ids), bare, opening=opening)


if __name__ == "__main__":
    if sys.argv[1] == "import":
        bring_in(Path(sys.argv[2]), Path(sys.argv[3]))
    else:
        main()
