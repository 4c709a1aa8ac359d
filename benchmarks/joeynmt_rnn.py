"""Train JoeyNMT's recurrent model for a number of steps and translate the test set, as the peer of family.py.

    python joeynmt_rnn.py plan.json

Runs in JoeyNMT's environment with its TrainManager, without transduce. The model is an LSTM with Luong's attention and
input feeding, as in JoeyNMT's example for IWSLT; learning rate, warm-up and clipping are those of our model. The script
writes `test.hypotheses`, the best checkpoint's translations, and `training.json` to the plan's folder.
"""

import json
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import joeynmt_run
import torch
from joeynmt.config import parse_global_args, set_validation_args
from joeynmt.helpers import make_model_dir, set_seed
from joeynmt.helpers_for_ddp import get_logger
from joeynmt.prediction import prepare
from joeynmt.training import TrainManager


class Plan(NamedTuple):
    """The plan that family.py writes: data, sizes and training settings."""

    data: str  # the folder with train, dev and test
    source: str  # suffix of the files, and language code
    target: str
    num_layers: int  # on each side
    d_model: int  # of embeddings, of the decoder, and of both directions of the encoder together
    dropout: float
    vocabulary_size: int
    batch_tokens: int  # by JoeyNMT's count: sentences times the longest length of either side
    learning_rate: float  # at its peak
    beam_size: int
    most_pieces: int  # in a translation
    steps: int
    validations: int
    threads: int
    seed: int


def config_of(plan: Plan, folder: Path) -> dict[str, Any]:
    """Return JoeyNMT's settings: those of its Transformer in joeynmt_run.py, except for the model and its schedule."""
    base = joeynmt_run.Plan(
        data=plan.data,
        source=plan.source,
        target=plan.target,
        num_encoder_layers=plan.num_layers,
        num_decoder_layers=plan.num_layers,
        d_model=plan.d_model,
        d_ff=plan.d_model,
        num_heads=1,
        dropout=plan.dropout,
        vocabulary_size=plan.vocabulary_size,
        batch_tokens=plan.batch_tokens,
        learning_rate_factor=1.0,
        warmup_steps=max(1, plan.steps // 10),
        beam_size=plan.beam_size,
        most_pieces=plan.most_pieces,
        training_seconds=0.0,
        validations=plan.validations,
        threads=plan.threads,
        seed=plan.seed,
    )
    config = joeynmt_run.joeynmt_config(base, folder)
    every = max(1, plan.steps // plan.validations)
    config["training"] |= {
        "scheduling": "warmupinversesquareroot",
        "learning_rate": plan.learning_rate,
        "learning_rate_peak": plan.learning_rate,
        "clip_grad_norm": 1.0,
        "updates": plan.steps,
        "validation_freq": every,
        "logging_freq": min(20, every),
    }
    config["model"] |= {
        "encoder": _stack(plan, plan.d_model // 2) | {"bidirectional": True},
        "decoder": _stack(plan, plan.d_model)
        | {"attention": "luong", "input_feeding": True, "hidden_dropout": plan.dropout, "init_hidden": "bridge"},
    }
    return config


def _stack(plan: Plan, hidden_size: int) -> dict[str, Any]:
    return {
        "type": "recurrent",
        "rnn_type": "lstm",
        "num_layers": plan.num_layers,
        "hidden_size": hidden_size,
        "dropout": plan.dropout,
        "embeddings": {"embedding_dim": plan.d_model, "scale": False, "dropout": plan.dropout},
    }


def main() -> None:
    """Run the plan."""
    path = Path(sys.argv[1])
    plan, folder = Plan(**json.loads(path.read_text(encoding="utf-8"))), path.parent
    torch.set_num_threads(plan.threads)
    config = config_of(plan, folder)
    make_model_dir(folder / "model", overwrite=True)
    get_logger("", log_file=str(folder / "model" / "train.log"))
    args = parse_global_args(config, rank=0, mode="train")
    set_seed(args.seed)
    model, train_data, dev_data, test_data = prepare(args, rank=0, mode="train")
    manager = TrainManager(
        rank=0,
        model=model,
        model_dir=args.model_dir,
        device=args.device,
        autocast=args.autocast,
        seed=args.seed,
        train_args=args.train,
        dev_args=set_validation_args(args.test),
    )
    started_at = time.monotonic()
    manager.train_and_validate(train_data=train_data, valid_data=dev_data)
    training = {
        "steps": manager.stats.steps,
        "target_tokens": manager.stats.total_tokens,
        "seconds_with_validation": time.monotonic() - started_at,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "best_dev_bleu": manager.stats.best_ckpt_score,
    }
    hypotheses = joeynmt_run.translate(args, model, test_data)
    content = "".join(line.replace("\n", " ") + "\n" for line in hypotheses)
    (folder / "test.hypotheses").write_text(content, encoding="utf-8", newline="\n")
    (folder / "training.json").write_text(json.dumps(training, indent=1) + "\n", encoding="utf-8", newline="\n")


if __name__ == "__main__":
    main()
