"""Run CTranslate2 as a worker of generation_speed.py, in a separate environment without transduce."""

import ctranslate2
from decoding_worker import Clock, read_plan, resident_bytes, serve


def main() -> None:
    """Open the model and generate as requested."""
    plan, prompts = read_plan()
    bare, opening = resident_bytes(), Clock()
    generator = ctranslate2.Generator(
        plan.folder, device="cpu", compute_type=plan.form, intra_threads=plan.threads, inter_threads=1
    )
    pieces = prompts["pieces"]

    def decode(indices: list[int], _beam_size: int) -> int:
        found = generator.generate_batch(
            [pieces[index] for index in indices],
            beam_size=1,
            max_length=plan.longest,
            min_length=plan.longest,
            include_prompt_in_result=False,
        )
        return sum(len(result.sequences_ids[0]) for result in found)

    serve(decode, len(pieces), bare, opening=opening)


if __name__ == "__main__":
    main()
