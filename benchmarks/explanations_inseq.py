"""Run `inseq` as a worker of explanations.py: integrated gradients of each target token by each source token.

It runs in the peer's environment and imports no part of transduce. It reads a JSON file with `folder`, `steps` and
`pairs` of source and target, and writes a line of JSON for each pair: `tokens` and `targets`, the contributions `norm`
(inseq's default, the Euclidean norm over the embedding) and `sum` (over the embedding), (targets, tokens), the
`probability` of each target, and the processor time in `seconds`.
"""

import json
import sys
import time
from pathlib import Path

import inseq
import numpy as np
import torch


def main() -> None:
    """Attribute every pair of the plan."""
    plan = json.loads(Path(sys.argv[1]).read_text("utf-8"))
    torch.set_num_threads(1)
    model = inseq.load_model(plan["folder"], "integrated_gradients", device="cpu")
    # inseq passes scaled embeddings, which this decoder of transformers would scale again.
    model.model.get_decoder().embed_scale = 1.0
    for number, (source, target) in enumerate([plan["pairs"][0], *plan["pairs"]]):
        started = time.process_time()
        found = model.attribute(source, target, n_steps=plan["steps"], show_progress=False, step_scores=["probability"])
        seconds = time.process_time() - started
        if number == 0:  # the first call warms up
            continue
        (attribution,) = found.sequence_attributions
        scores = attribution.source_attributions.float().numpy()  # (tokens, targets, D)
        targets = [token.token for token in attribution.target][-scores.shape[1] :]
        answer = {
            "tokens": [token.token for token in attribution.source],
            "targets": targets,
            "norm": np.linalg.norm(scores, axis=-1).T.tolist(),
            "sum": scores.sum(axis=-1).T.tolist(),
            "probability": attribution.step_scores["probability"].tolist(),
            "seconds": seconds,
        }
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
