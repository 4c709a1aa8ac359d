"""Train JoeyNMT for a number of minutes and translate the test set, as the peer of tatoeba_zh_en.py.

    python joeynmt_run.py plan.json

Runs in JoeyNMT's environment with its TrainManager, without transduce. The clock excludes validation and saving. The
script writes to the plan's folder: `test.hypotheses`, the best checkpoint's translations, and `training.json` with
steps, target tokens, seconds of training, and each validation's results.
"""

import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import sentencepiece
import torch
from joeynmt.config import BaseConfig, parse_global_args, set_validation_args
from joeynmt.helpers import load_checkpoint, make_model_dir, set_seed
from joeynmt.helpers_for_ddp import get_logger
from joeynmt.model import Model
from joeynmt.prediction import predict, prepare
from joeynmt.training import TrainManager
from torch.utils.data import Dataset


class Plan(NamedTuple):
    """The plan that tatoeba_zh_en.py writes: data, sizes and training settings."""

    data: str  # the folder with train, dev and test
    source: str  # suffix of the files, and language code
    target: str
    num_encoder_layers: int
    num_decoder_layers: int
    d_model: int
    d_ff: int
    num_heads: int
    dropout: float
    vocabulary_size: int
    batch_tokens: int  # by JoeyNMT's count: sentences times the longest length of either side
    learning_rate_factor: float  # of the paper's equation (3)
    warmup_steps: int
    beam_size: int
    most_pieces: int  # in a translation
    training_seconds: float
    validations: int
    threads: int
    seed: int


class Clock:
    """A clock of training time that can be paused."""

    def __init__(self) -> None:
        self._before = 0.0
        self._started_at: float | None = None

    def start(self) -> None:
        self._started_at = time.monotonic()

    @property
    def seconds(self) -> float:
        return self._before + (0.0 if self._started_at is None else time.monotonic() - self._started_at)

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """Pause the clock within the context."""
        self._before, self._started_at = self.seconds, None
        yield
        self.start()


class TimedTrainManager(TrainManager):
    """JoeyNMT's TrainManager, validating and stopping by training time instead of steps."""

    def limit(self, training_seconds: float, validations: int) -> None:
        """Set the training time, and the number of evenly spaced validations, the last of which is at the end."""
        self.clock = Clock()
        self.training_seconds = training_seconds
        self.interval_seconds = training_seconds / validations
        self.next_validation = self.interval_seconds
        self.found: list[dict[str, Any]] = []

    def train_and_validate(self, train_data: Dataset[Any], valid_data: Dataset[Any]) -> None:
        self.clock.start()
        super().train_and_validate(train_data, valid_data)

    def _validate(self, valid_data: Dataset[Any]) -> None:
        """Validate if that is due; called after every step."""
        seconds = self.clock.seconds
        if seconds >= self.training_seconds:
            self.stats.is_max_update = True  # ends the loop
        elif seconds < self.next_validation:
            return
        with self.clock.stopped():
            super()._validate(valid_data)
        self.next_validation += self.interval_seconds

    def _add_report(self, valid_scores: dict[str, float], new_best: bool = False) -> None:
        super()._add_report(valid_scores, new_best)
        self.found.append(
            {
                "step": self.stats.steps,
                "target_tokens": self.stats.total_tokens,
                "training_seconds": round(self.clock.seconds, 1),
                "bleu": valid_scores["bleu"],
                "perplexity": valid_scores["ppl"],
                "best": new_best,
            }
        )


def learn_vocabulary(plan: Plan, folder: Path) -> tuple[str, str]:
    """Learn a joint sentencepiece vocabulary of the training text; return the files of its model and of its tokens."""
    model, pieces = folder / "joint.model", folder / "joint.txt"
    sentencepiece.SentencePieceTrainer.train(
        input=[str(Path(plan.data, f"train.{side}")) for side in (plan.source, plan.target)],
        model_prefix=str(model.with_suffix("")),
        model_type="bpe",
        vocab_size=plan.vocabulary_size,
        character_coverage=0.9995,
        unk_id=0,
        pad_id=1,
        bos_id=2,
        eos_id=3,
        minloglevel=1,
    )
    processor = sentencepiece.SentencePieceProcessor(model_file=str(model))
    lines = (processor.id_to_piece(i) for i in range(processor.get_piece_size()))
    pieces.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8", newline="\n")
    return str(model), str(pieces)


def joeynmt_config(plan: Plan, folder: Path) -> dict[str, Any]:
    """Return settings as in JoeyNMT's Transformer examples, wmt17_ende_sp and iwslt14_deen_sp.

    The schedule is that of transformer_small: the other examples' warm-up of 4,000 steps is longer than the run, and
    "plateau" passes an argument that torch rejects.
    """
    model_file, voc_file = learn_vocabulary(plan, folder)
    return {
        "name": "tatoeba",
        "model_dir": str(folder / "model"),
        "use_cuda": False,
        "random_seed": plan.seed,
        "data": {
            **{part: str(Path(plan.data, part)) for part in ("train", "dev", "test")},
            "dataset_type": "plain",
            "src": _side(plan.source, model_file, voc_file),
            "trg": _side(plan.target, model_file, voc_file),
        },
        "training": {
            "optimizer": "adam",
            "adam_betas": [0.9, 0.98],
            "normalization": "tokens",
            "scheduling": "noam",
            "learning_rate_factor": plan.learning_rate_factor,
            "learning_rate_warmup": plan.warmup_steps,
            "learning_rate_min": 1.0e-8,
            "label_smoothing": 0.1,
            "batch_size": plan.batch_tokens,
            "batch_type": "token",
            "early_stopping_metric": "bleu",
            "epochs": 1_000_000,
            "logging_freq": 20,
            "validation_freq": 20,
            "print_valid_sents": [0, 1, 2],
            "keep_best_ckpts": 2,
        },
        "testing": {
            "beam_size": plan.beam_size,
            "beam_alpha": 1.0,
            "batch_size": 1024,
            "batch_type": "token",
            "max_output_length": plan.most_pieces,
            "generate_unk": False,
            "eval_metrics": ["bleu"],
            "sacrebleu_cfg": {"tokenize": "13a"},
        },
        "model": {
            "initializer": "xavier_uniform",
            "embed_initializer": "xavier_uniform",
            "bias_initializer": "zeros",
            "tied_embeddings": True,
            "tied_softmax": True,
            "encoder": _stack(plan, plan.num_encoder_layers),
            "decoder": _stack(plan, plan.num_decoder_layers),
        },
    }


def _side(language: str, model_file: str, voc_file: str) -> dict[str, Any]:
    return {
        "lang": language,
        "level": "bpe",
        "voc_file": voc_file,
        "tokenizer_type": "sentencepiece",
        "tokenizer_cfg": {"model_file": model_file},
    }


def _stack(plan: Plan, num_layers: int) -> dict[str, Any]:
    return {
        "type": "transformer",
        "num_layers": num_layers,
        "num_heads": plan.num_heads,
        "hidden_size": plan.d_model,
        "ff_size": plan.d_ff,
        "dropout": plan.dropout,
        "layer_norm": "pre",
        "embeddings": {"embedding_dim": plan.d_model, "scale": True, "dropout": 0.0},
    }


def train(
    plan: Plan, args: BaseConfig, model: Model, train_data: Dataset[Any], dev_data: Dataset[Any]
) -> dict[str, Any]:
    """Train until the time is up, and return the results."""
    manager = TimedTrainManager(
        rank=0,
        model=model,
        model_dir=args.model_dir,
        device=args.device,
        autocast=args.autocast,
        seed=args.seed,
        # Call `_validate` after every step, which checks the clock.
        train_args=args.train._replace(validation_freq=1),
        dev_args=set_validation_args(args.test),
    )
    manager.limit(plan.training_seconds, plan.validations)
    manager.train_and_validate(train_data=train_data, valid_data=dev_data)
    return {
        "steps": manager.stats.steps,
        "target_tokens": manager.stats.total_tokens,
        "training_seconds": manager.found[-1]["training_seconds"],
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "best_step": manager.stats.best_ckpt_iter,
        "best_dev_bleu": manager.stats.best_ckpt_score,
        "checkpoints": manager.found,
    }


def translate(args: BaseConfig, model: Model, test_data: Dataset[Any]) -> list[str]:
    """Translate the test set by beam search with the best checkpoint."""
    checkpoint = load_checkpoint(args.model_dir / "best.ckpt", map_location=args.device)
    model.load_state_dict(checkpoint["model_state"])
    _, _, hypotheses, _, _, _ = predict(
        model=model,
        data=test_data,
        device=args.device,
        n_gpu=0,
        args=args.test,
        autocast=args.autocast,
    )
    return hypotheses


def main() -> None:
    """Run the plan."""
    path = Path(sys.argv[1])
    plan, folder = Plan(**json.loads(path.read_text(encoding="utf-8"))), path.parent
    torch.set_num_threads(plan.threads)
    config = joeynmt_config(plan, folder)
    make_model_dir(folder / "model", overwrite=True)
    get_logger("", log_file=str(folder / "model" / "train.log"))
    args = parse_global_args(config, rank=0, mode="train")
    set_seed(args.seed)  # JoeyNMT sets the seed only after initializing the weights
    model, train_data, dev_data, test_data = prepare(args, rank=0, mode="train")
    training = train(plan, args, model, train_data, dev_data)
    hypotheses = translate(args, model, test_data)
    _write(folder / "test.hypotheses", "".join(line.replace("\n", " ") + "\n" for line in hypotheses))
    _write(folder / "training.json", json.dumps(training, indent=1) + "\n")


def _write(path: Path, text: str) -> None:
    temporary = path.with_name(f"{path.name}.partial")
    temporary.write_text(text, encoding="utf-8", newline="\n")
    os.replace(temporary, path)


if __name__ == "__main__":
    main()
