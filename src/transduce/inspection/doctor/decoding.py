"""Check that step-by-step decoding with the cache computes the same logits as training."""

from transduce.inspection.doctor.probe import Check, Figure, Pieces, change, padded, unchanged
from transduce.inspection.doctor.subject import Subject


def _check_cache(subject: Subject) -> Figure | None:
    if subject.decode_steps is None:
        return None
    samples = Pieces(subject)
    source, target = padded(samples.source(3, 6), subject.pad_id, 2), samples.target_input(3, 21)
    # Decoding may set the logits of special tokens to minus infinity, so these are not compared.
    columns = [id for id in (subject.pad_id, subject.start_id, *subject.reserved_ids) if id != subject.eos_id]
    expected = subject.logits(source, target)
    stepwise = subject.decode_steps(source, target).clone()
    stepwise[..., columns] = expected[..., columns]
    return unchanged(subject, change(expected, stepwise))


CHECKS = (
    Check(
        "cache",
        "21 positions one by one with the cache, and all at once; largest difference of a logit",
        "Decoding with the cache computes what was trained.",
        "Decoding with the cache computes other logits than training did. Check the position of the newest token, and "
        "when keys and values are appended.",
        _check_cache,
    ),
)
