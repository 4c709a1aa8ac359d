"""Run transduce as a worker of imported_speed.py: a Hugging Face folder without a tokenizer, decoded by token ids."""

import json
from functools import partial
from pathlib import Path

import msgspec
import torch
from decoding_worker import read_plan, resident_bytes, serve
from safetensors import safe_open

from transduce.inference.decoding import Batch, find_compiled_search, start_search
from transduce.inference.scorers import ContinuingScorer
from transduce.interop.hugging_face.import_families import import_generation
from transduce.interop.hugging_face.import_weights import StoredTensors, import_model
from transduce.kernels.select import has_kernels
from transduce.machine import detect_machine
from transduce.model.build import build_model
from transduce.model.decoder import Decoder
from transduce.model.transformer import Transformer
from transduce.model_folder.load import convert_to_precision
from transduce.search.beam import Beam
from transduce.search.greedy import GreedySearch, take_argmax
from transduce.search.scorer import Bounds, Search, run
from transduce.text.vocabulary import Vocabulary

_ENDLESS = -1  # an end symbol that no token has
_CONTEXT = 1024


class NoVocabulary(Vocabulary):
    """A vocabulary without texts: search needs only its end symbol."""

    def __init__(self, eos_id: int) -> None:
        self.forced = ()
        self.eos_id = eos_id


def load(folder: Path, precision: str, threads: int) -> Transformer | Decoder:
    """Import a model without its tokenizer, at a precision."""
    machine = detect_machine("cpu", threads)
    torch.set_num_threads(machine.threads)
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    with safe_open(folder / "model.safetensors", framework="pt") as file:
        readers = {name: partial(file.get_tensor, name) for name in file.keys()}  # noqa: SIM118
        start = {"start_id": config["decoder_start_token_id"]} if config.get("is_encoder_decoder") else {}
        found = import_model(config, StoredTensors(readers, str(folder)), start)
        model = build_model(found.config)
        model.load_state_dict(found.weights)
    assert isinstance(model, Transformer | Decoder)
    return convert_to_precision(model.eval(), precision, machine)


def main() -> None:
    """Open the model and decode as requested."""
    plan, sentences = read_plan()
    has_kernels()  # loads LLVM's library if installed, which other engines do during import
    bare = resident_bytes()
    folder = Path(plan.folder)
    model = load(folder, plan.form, plan.threads)
    config, generation = (
        json.loads((folder / name).read_text(encoding="utf-8")) for name in ("config.json", "generation_config.json")
    )
    ids = sentences["ids"]

    def translation(rows: list[list[int]], beam_size: int) -> Search:
        assert isinstance(model, Transformer)
        search = msgspec.structs.replace(
            import_generation(generation, config, plan.folder, greatest=None),
            beam_size=beam_size,
            max_length=plan.longest,
            length_penalty=plan.length_penalty,
        )
        count = len(rows)
        batch = Batch(rows, [[]] * count, [()] * count, range(count))
        return start_search([model], NoVocabulary(model.config.eos_id), batch, search)

    def continuation(rows: list[list[int]]) -> Search:
        assert isinstance(model, Decoder)
        scorer = ContinuingScorer(model, rows, context=_CONTEXT, excluded_ids=())
        bounds = Bounds(0, _ENDLESS, torch.full((len(rows),), plan.longest))
        found = find_compiled_search(scorer, bounds, Beam(beam_size=1, alpha=0.0))
        return found or GreedySearch(scorer, bounds, take_argmax)

    @torch.inference_mode()
    def decode(indices: list[int], beam_size: int) -> int:
        rows = [ids[index] for index in indices]
        found = run(continuation(rows) if isinstance(model, Decoder) else translation(rows, beam_size))
        return sum(len(hypotheses[0].token_log_probabilities) for hypotheses in found)

    serve(decode, len(ids), bare)


if __name__ == "__main__":
    main()
