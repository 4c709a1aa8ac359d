"""transduce as a worker of decoding_speed.py."""

from decoding_worker import read_plan, resident_bytes, serve

import transduce
from transduce.search.settings import SearchSettings


def main() -> None:
    """Decodes."""
    plan, sentences = read_plan()
    bare = resident_bytes()
    translator = transduce.load(plan.folder, precision=plan.form, threads=plan.threads, device="cpu")
    ids = sentences["ids"]

    def decode(places: list[int], beam_size: int) -> int:
        search = SearchSettings(beam_size=beam_size, max_length=plan.longest, length_penalty=plan.length_penalty)
        found = translator.search_ids([ids[place] for place in places], search)
        return sum(len(hypotheses[0].piece_log_probabilities) for hypotheses in found)

    serve(decode, len(ids), bare)


if __name__ == "__main__":
    main()
