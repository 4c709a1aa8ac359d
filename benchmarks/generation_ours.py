"""Run transduce as a worker of generation_speed.py."""

import torch
from decoding_worker import read_plan, resident_bytes, serve

from transduce.inference.generator import load_generator
from transduce.inference.scorers import DecoderOnlyScorer
from transduce.kernels.select import has_kernels
from transduce.search.greedy import greedy_search


def main() -> None:
    """Open the model and generate as requested."""
    plan, prompts = read_plan()
    has_kernels()  # loads LLVM's library if installed
    bare = resident_bytes()
    generator = load_generator(plan.folder, precision=plan.form, threads=plan.threads, device="cpu")
    ids, context = prompts["ids"], generator.context

    @torch.inference_mode()
    def decode(indices: list[int], _beam_size: int) -> int:
        scorer = DecoderOnlyScorer(
            generator.model, [ids[index] for index in indices], max_context=context, excluded_ids=()
        )
        longest = torch.full((len(indices),), plan.longest)
        found = greedy_search(scorer, start_id=0, eos_id=-1, max_lengths=longest)  # nothing ends a text
        return sum(len(best.ids) for best, *_ in found)

    serve(decode, len(ids), bare)


if __name__ == "__main__":
    main()
