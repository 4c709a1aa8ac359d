"""Weights that a run begins with and that its checkpoints do not hold, kept in its folder for as long as it goes on.

LoRA leaves a model's own weights as they were, and checkpoints hold the updates alone; embeddings may be filled with
word vectors, some of which may stay. So the run needs neither the model of `--from` nor the vectors again.
"""

from pathlib import Path

import msgspec
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from transduce.durable import file_sha256, replace_file, write_file
from transduce.errors import TransduceError
from transduce.interop.word_vectors import Coverage, FoundVectors, find_vectors, put_vectors, vector_width
from transduce.model.build import AnyModel, Model, build_model
from transduce.model.recurrent import Recurrent
from transduce.model.transformer import Transformer
from transduce.tasks.account import Account
from transduce.tasks.resolved import ResolvedSettings
from transduce.tasks.settings import Settings
from transduce.text.tokenizer import Tokenizer
from transduce.training.choices import Choice
from transduce.training.frozen import freeze_rows
from transduce.training.lora import adapt, count_parameters, low_rank_settings

_WEIGHTS = "beginning.safetensors"
_CARD = "beginning.json"
# Names of tensors in the file that are no weights: the rows of a matrix that have a vector.
_ROWS = "rows."


class BeginningCard(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What stands in the folder beside the weights."""

    sha256: str
    """Of the weights' file."""
    word_vectors: dict[str, Coverage] = {}
    """How many pieces of each side got a vector."""


def check_adaptation(settings: Settings) -> None:
    """Refuses LoRA and word vectors where they cannot be had, before any text is read.

    Raises:
        TransduceError: LoRA without a model to adapt; word vectors for a model that has learnt its own, of another
            width, or to be kept by an optimiser that would change them.
    """
    training, said = settings.training, settings.word_vectors
    if training.lora_rank and settings.start_from is None:
        raise TransduceError(
            f"`training.lora_rank` is {training.lora_rank}, which leaves a model's weights as they are, but they would "
            "be random numbers: name the model to adapt with --from, or leave it out."
        )
    if said is None:
        return
    if settings.start_from is not None:
        raise TransduceError(
            f"`word_vectors` fill embeddings that are random, but those of the model in {settings.start_from} have "
            "learnt something: leave one of them out."
        )
    check_frozen(settings)
    width = settings.model.d_model
    for path in filter(None, (said.source, said.target)):
        width = vector_width(path, width)


def check_frozen(settings: Settings) -> None:
    """Refuses what would change rows that shall stay.

    Raises:
        TransduceError: a setting would.
    """
    training, said = settings.training, settings.word_vectors
    if said is None or not said.frozen:
        return
    for name, clashes in (("weight_decay", bool(training.weight_decay)), ("sharded", training.sharded)):
        if clashes:
            raise TransduceError(
                f"`word_vectors.frozen` keeps rows of the embeddings as they are, which `training.{name}` would not: "
                "leave one of them out."
            )


def account_for_adaptation(resolved: ResolvedSettings, account: Account, fresh: tuple[str, ...]) -> None:
    """Enters how much of the model LoRA trains.

    Raises:
        TransduceError: the model has none of the projections that were asked for.
    """
    settings = low_rank_settings(resolved.training)
    if settings is None:
        return
    with torch.device("meta"):
        outline = build_model(resolved.model)
    adapt(outline, settings, fresh=fresh)
    learning, whole = count_parameters(outline)
    reason = f"{learning:,} parameters learn, {learning / whole:.2%} of the model's {whole:,}"
    account.take("training.lora_rank", None, Choice(settings.rank, reason))


def needs_stored(resolved: ResolvedSettings | Settings) -> bool:
    """Whether the run keeps the weights that it begins with."""
    return resolved.training.lora_rank > 0 or resolved.word_vectors is not None


def store_beginning(folder: Path, model: Model, vectors: dict[str, FoundVectors]) -> None:
    """Writes the weights, and the rows that word vectors filled."""
    tensors = {name: tensor.contiguous() for name, tensor in model.state_dict().items()}
    for side, found in vectors.items():
        name, _ = embeddings_of(model)[side]
        tensors[_ROWS + name] = torch.cat([tensors.get(_ROWS + name, found.rows[:0]), found.rows]).unique()
    partial = folder / f".partial-{_WEIGHTS}"
    save_file(tensors, partial)
    card = BeginningCard(
        sha256=file_sha256(partial), word_vectors={side: found.coverage for side, found in vectors.items()}
    )
    replace_file(partial, folder / _WEIGHTS)
    write_file(folder / _CARD, msgspec.json.format(msgspec.json.encode(card)) + b"\n")


def load_beginning(folder: Path) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """The weights, and by the names of matrices the rows that word vectors filled.

    Raises:
        TransduceError: a file is missing or damaged.
    """
    path = folder / _WEIGHTS
    try:
        card = msgspec.json.decode((folder / _CARD).read_bytes(), type=BeginningCard)
        if file_sha256(path) != card.sha256:
            raise TransduceError(f"{path} is not what the run wrote: start another run with another --out.")
        tensors = load_file(path)
    except (OSError, msgspec.MsgspecError, SafetensorError) as error:
        raise TransduceError(
            f"{path}, the weights that the run began with, cannot be read ({error}): start another run with another "
            "--out."
        ) from error
    rows = {name.removeprefix(_ROWS): tensor for name, tensor in tensors.items() if name.startswith(_ROWS)}
    return {name: tensor for name, tensor in tensors.items() if not name.startswith(_ROWS)}, rows


def fill_with_vectors(
    model: Model, resolved: ResolvedSettings, tokenizer: Tokenizer, account: Account
) -> dict[str, FoundVectors]:
    """Puts word vectors into the embeddings, and into the account how many pieces got one.

    Returns:
        What was found, by side; of a shared matrix the target's vectors stand where both have one.

    Raises:
        TransduceError: a file is not what it should be, or there is no such side.
    """
    said = resolved.word_vectors
    assert said is not None
    found: dict[str, FoundVectors] = {}
    sides = {"source": (said.source, tokenizer.source), "target": (said.target, tokenizer.target)}
    for side, (path, vocabulary) in sides.items():
        if path is None:
            continue
        if side not in embeddings_of(model):
            raise TransduceError(
                f"`word_vectors.target` is {path}, but `task.kind` = {resolved.task.kind} has one text and one matrix "
                "of embeddings: name the file in `word_vectors.source`."
            )
        _, weight = embeddings_of(model)[side]
        found[side] = find_vectors(vocabulary, path, weight.shape[1])
        put_vectors(weight, found[side], rescale=said.rescale)
        account.take(f"word_vectors.{side}", None, Choice(Path(path).name, str(found[side].coverage)))
    return found


def embeddings_of(model: Model) -> dict[str, tuple[str, torch.nn.Parameter]]:
    """The matrix of each side that reads text, and its name."""
    found = {"source": ("source_weight", model.source_weight)}
    if isinstance(model, Transformer | Recurrent):
        tied = model.own_target_weight is None
        found["target"] = found["source"] if tied else ("own_target_weight", model.target_weight)
    return found


def restrict_learning(model: AnyModel, resolved: ResolvedSettings, folder: Path, fresh: tuple[str, ...]) -> None:
    """Puts LoRA's updates on a model, or keeps the rows of word vectors, as the settings say.

    Raises:
        TransduceError: the folder does not tell which rows.
    """
    settings = low_rank_settings(resolved.training)
    if settings is not None:
        adapt(model, settings, fresh=fresh)
    if resolved.word_vectors is not None and resolved.word_vectors.frozen:
        for name, rows in load_beginning(folder)[1].items():
            freeze_rows(model.get_parameter(name), rows)
