"""Search's view of the model against training's."""

from transduce.inspection.doctor.probe import Check, Figure, Pieces, change, padded, unchanged
from transduce.inspection.doctor.subject import Subject


def _cache(subject: Subject) -> Figure | None:
    if subject.decode_steps is None:
        return None
    pieces = Pieces(subject)
    source, target = padded(pieces.source(3, 6), subject.pad_id, 2), pieces.target_input(3, 21)
    # Search may forbid the ids that no sentence has.
    columns = [id for id in (subject.pad_id, subject.start_id, *subject.reserved_ids) if id != subject.eos_id]
    at_once = subject.logits(source, target)
    one_by_one = subject.decode_steps(source, target).clone()
    one_by_one[..., columns] = at_once[..., columns]
    return unchanged(subject, change(at_once, one_by_one))


CHECKS = (
    Check(
        "cache",
        "21 positions one by one with the cache, and all at once; largest difference of a logit",
        "Search computes what training trained.",
        "Decoding with the cache is another function than the one that was trained. Look at the position of the newest "
        "piece, and at what is appended when.",
        _cache,
    ),
)
