"""Run CTranslate2 as a worker of decoding_speed.py, in a separate environment without transduce."""

import ctranslate2
from decoding_worker import Clock, read_plan, resident_bytes, serve


def main() -> None:
    """Open the model and decode as requested."""
    plan, sentences = read_plan()
    bare, opening = resident_bytes(), Clock()
    translator = ctranslate2.Translator(
        plan.folder, device=plan.device, compute_type=plan.form, intra_threads=plan.threads, inter_threads=plan.together
    )
    pieces = sentences["pieces"]

    def decode(indices: list[int], beam_size: int) -> int:
        found = translator.translate_batch(
            [pieces[index] for index in indices],
            beam_size=beam_size,
            length_penalty=plan.length_penalty,
            max_input_length=0,
            max_decoding_length=plan.longest,
            min_decoding_length=plan.shortest,
        )
        return sum(len(result.hypotheses[0]) + 1 for result in found)

    serve(decode, len(pieces), bare, plan.together, opening=opening)


if __name__ == "__main__":
    main()
