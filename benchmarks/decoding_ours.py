"""Run transduce as a worker of decoding_speed.py."""

from queue import SimpleQueue

from decoding_worker import read_plan, resident_bytes, serve

from transduce.inference.load import open_translator
from transduce.inference.translator import Translator
from transduce.kernels.select import has_kernels
from transduce.search.settings import SearchSettings


def main() -> None:
    """Open the model and decode as requested."""
    plan, sentences = read_plan()
    has_kernels()  # loads LLVM's library if installed, which other engines do during import
    bare = resident_bytes()
    idle: SimpleQueue[Translator] = SimpleQueue()
    for _ in range(plan.together):  # one translator per concurrent batch
        idle.put(open_translator(plan.folder, precision=plan.form, threads=plan.threads, device=plan.device))
    ids = sentences["ids"]

    def decode(indices: list[int], beam_size: int) -> int:
        search = SearchSettings(beam_size=beam_size, max_length=plan.longest, length_penalty=plan.length_penalty)
        translator = idle.get()
        found = translator.search_ids([ids[index] for index in indices], search)
        idle.put(translator)
        return sum(len(hypotheses[0].token_log_probabilities) for hypotheses in found)

    serve(decode, len(ids), bare, plan.together)


if __name__ == "__main__":
    main()
