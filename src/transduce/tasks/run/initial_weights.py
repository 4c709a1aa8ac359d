"""Create the initial weights of a run, random or those of a base model (`--init-from`), and store them for resuming.

The base model's tokenizer and model settings are kept. The run stores a copy of the settings, so that it can resume
when the base model's folder is gone.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from transduce.atomic_io import file_sha256, replace_file, write_json
from transduce.deprecation import with_current_keys
from transduce.errors import TransduceError, shown_names
from transduce.interop.hugging_face.imported_tokenizer import load_tokenizer
from transduce.interop.vocabulary_files import extend_tokenizer, tokens_before
from transduce.interop.word_vectors import Coverage, MatchedVectors, copy_vectors, match_vectors, vector_width
from transduce.model.build import AnyModel, Model, build_any_model, build_model
from transduce.model.config import ModelConfig, convert_config
from transduce.model.recurrent import Recurrent
from transduce.model.transformer import Transformer
from transduce.model_folder.hugging_face import is_hugging_face_folder
from transduce.model_folder.load import read_search_settings
from transduce.model_folder.read import ModelFolder, read_any_model_folder, read_directions
from transduce.search.settings import BEAM_SETTINGS, BY_SOURCE, SearchSettings, override_search
from transduce.tasks.corpus import languages_of
from transduce.tasks.kinds import kind_of
from transduce.tasks.kinds.kind import Reinitialized
from transduce.tasks.prepared_folder import check_kept_vocabulary, check_stored_file, check_vocabulary, read_stored_card
from transduce.tasks.settings.structs import ResolvedSettings, Settings
from transduce.text.languages import fitting_code
from transduce.text.tokenizer import Tokenizer
from transduce.training.choices import PRESETS, Choice, ChoiceLog
from transduce.training.lora import adapt, count_parameters, freeze_rows, low_rank_settings

# --- stored initial weights ---
# LoRA leaves the base model's weights unchanged, and checkpoints contain only the adapter weights. Embeddings may
# start as word vectors, some of which may be frozen. With the stored weights, a run can resume without the base model
# and the vectors.


_WEIGHTS = "beginning.safetensors"
_CARD = "beginning.json"
# Prefix of tensors in the file that are not weights: the rows of a matrix that have a word vector.
_ROWS_PREFIX = "rows."


class StoredWeightsCard(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A record of a run's stored initial weights, with a digest by which a resumed run detects damage."""

    sha256: str
    """SHA-256 digest of the weights' file."""
    word_vectors: dict[str, Coverage] = {}
    """Dict: side ("source", "target") → how many tokens have a word vector; empty without word vectors."""


def check_adaptation(settings: Settings) -> None:
    """Raise an error for impossible settings of LoRA or word vectors, before any text is read.

    Raises:
        TransduceError: LoRA is set without a base model; or word vectors are set with a base model, cannot be read,
            have another width than the embeddings, or are frozen although a training setting would change them.
    """
    training, vector_settings = settings.training, settings.word_vectors
    if training.lora_rank and settings.init_from is None:
        raise TransduceError(
            f"`training.lora_rank` is {training.lora_rank}, which keeps a model's weights fixed, but they would "
            "be random: name the base model by `init_from`, or leave it out."
        )
    if vector_settings is None:
        return
    if settings.init_from is not None:
        raise TransduceError(
            f"`word_vectors` fill random embeddings, but those of the model in {settings.init_from} are already "
            "trained: leave one of them out."
        )
    check_frozen(settings)
    width = settings.model.embedding_size or settings.model.d_model
    for path in filter(None, (vector_settings.source, vector_settings.target)):
        width = vector_width(path, width)


def check_frozen(settings: Settings) -> None:
    """Raise an error for training settings that would change frozen word vectors.

    With `word_vectors.frozen`, the embedding rows that come from word vectors must not change during training.

    Raises:
        TransduceError: `training.weight_decay` or `training.sharded` is set, which would change frozen rows.
    """
    training, vector_settings = settings.training, settings.word_vectors
    if vector_settings is None or not vector_settings.frozen:
        return
    for name, conflicts in (("weight_decay", bool(training.weight_decay)), ("sharded", training.sharded)):
        if conflicts:
            raise TransduceError(
                f"`word_vectors.frozen` keeps rows of the embeddings as they are, which `training.{name}` would not: "
                "leave one of them out."
            )


def log_adaptation(resolved: ResolvedSettings, choice_log: ChoiceLog, reinitialized: tuple[str, ...]) -> None:
    """Log the share of the parameters that LoRA trains, and check that the model has the selected projections.

    Without LoRA, nothing is logged.

    Args:
        resolved: the run's settings.
        choice_log: receives the rank of LoRA, with the share as the reason.
        reinitialized: prefixes of the names of parameters that are trained fully in spite of LoRA.

    Raises:
        TransduceError: the model has none of the selected projections.
    """
    settings = low_rank_settings(resolved.training)
    if settings is None:
        return
    with torch.device("meta"):
        meta_model = build_model(resolved.model)
    adapt(meta_model, settings, fresh=reinitialized)
    trainable, total = count_parameters(meta_model)
    reason = f"{trainable:,} parameters are trained, {trainable / total:.2%} of the model's {total:,}"
    choice_log.record("training.lora_rank", None, Choice(settings.rank, reason))


def needs_stored_weights(resolved: ResolvedSettings | Settings) -> bool:
    """Return whether a run must store its initial weights to be resumable: with LoRA, or with word vectors.

    With LoRA, checkpoints hold only the adapters' weights; the files of word vectors may be gone later.
    """
    return resolved.training.lora_rank > 0 or resolved.word_vectors is not None


def store_initial_weights(folder: Path, model: Model, vectors: dict[str, MatchedVectors]) -> None:
    """Write a model's initial weights, the indices of rows that word vectors filled, and a record of the file.

    Args:
        folder: the run's folder.
        model: the model with its initial weights.
        vectors: the word vectors found, by side ("source", "target"); empty without word vectors.
    """
    tensors = {name: tensor.contiguous() for name, tensor in model.state_dict().items()}
    for side, filled in vectors.items():
        name, _ = embeddings_of(model)[side]
        tensors[_ROWS_PREFIX + name] = torch.cat(
            [tensors.get(_ROWS_PREFIX + name, filled.rows[:0]), filled.rows]
        ).unique()
    partial = folder / f".partial-{_WEIGHTS}"
    save_file(tensors, partial)
    card = StoredWeightsCard(
        sha256=file_sha256(partial), word_vectors={side: filled.coverage for side, filled in vectors.items()}
    )
    replace_file(partial, folder / _WEIGHTS)
    write_json(folder / _CARD, card)


def load_initial_weights(folder: Path) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Return two dicts by parameter name: the stored initial weights, and indices of rows that word vectors filled.

    Raises:
        TransduceError: a file is missing or damaged.
    """
    check_stored_file(folder / _WEIGHTS, read_stored_card(folder / _CARD, StoredWeightsCard).sha256)
    tensors = load_file(folder / _WEIGHTS)
    rows = {
        name.removeprefix(_ROWS_PREFIX): tensor for name, tensor in tensors.items() if name.startswith(_ROWS_PREFIX)
    }
    return {name: tensor for name, tensor in tensors.items() if not name.startswith(_ROWS_PREFIX)}, rows


def fill_with_vectors(
    model: Model, resolved: ResolvedSettings, tokenizer: Tokenizer, choice_log: ChoiceLog
) -> dict[str, MatchedVectors]:
    """Copy word vectors into a model's embeddings in place, and log how many tokens have one.

    Returns:
        A dict of the vectors found, by side ("source", "target"). In a shared matrix, the target's vectors override the
        source's.

    Raises:
        TransduceError: a file is invalid, or the model has no such side.
    """
    vector_settings = resolved.word_vectors
    assert vector_settings is not None
    found: dict[str, MatchedVectors] = {}
    sides = {"source": (vector_settings.source, tokenizer.source), "target": (vector_settings.target, tokenizer.target)}
    for side, (path, vocabulary) in sides.items():
        if path is None:
            continue
        if side not in embeddings_of(model):
            raise TransduceError(
                f"`word_vectors.target` is {path}, but `task.kind` = {resolved.task.kind} has one text and one "
                "embedding matrix: name the file in `word_vectors.source`."
            )
        _, weight = embeddings_of(model)[side]
        found[side] = match_vectors(vocabulary, path, weight.shape[1])
        copy_vectors(weight, found[side], rescale=vector_settings.rescale)
        choice_log.record(f"word_vectors.{side}", None, Choice(Path(path).name, str(found[side].coverage)))
    return found


def embeddings_of(model: Model) -> dict[str, tuple[str, torch.nn.Parameter]]:
    """Return a dict from side to the parameter name and matrix of the side's embedding.

    The sides are "source" and, in a model that reads targets, "target". If the sides share a matrix, their entries are
    equal.
    """
    embeddings = {"source": ("source_weight", model.source_weight)}
    if isinstance(model, Transformer | Recurrent):
        tied = model.own_target_weight is None
        embeddings["target"] = embeddings["source"] if tied else ("own_target_weight", model.target_weight)
    return embeddings


def restrict_training(
    model: AnyModel, resolved: ResolvedSettings, folder: Path, reinitialized: tuple[str, ...]
) -> None:
    """Add LoRA adapters and freeze word vectors in the model, if the settings ask for it.

    Args:
        model: the model with its initial weights, changed in place.
        resolved: the run's settings.
        folder: the run's folder, which stores the indices of the rows.
        reinitialized: prefixes of the names of parameters that are trained fully in spite of LoRA.

    Raises:
        TransduceError: the stored row indices cannot be read.
    """
    settings = low_rank_settings(resolved.training)
    if settings is not None:
        adapt(model, settings, fresh=reinitialized)
    if resolved.word_vectors is not None and resolved.word_vectors.frozen:
        for name, rows in load_initial_weights(folder)[1].items():
            freeze_rows(model.get_parameter(name), rows)


# --- creation ---


_CONFIG_COPY = "started_from.json"


def read_base_model(settings: Settings) -> ModelFolder[Model] | None:
    """Return the content of the base model's folder (`ModelFolder`); None if training starts from random weights.

    Raises:
        TransduceError: the folder holds no model, or the settings ask for another vocabulary or size.
    """
    if settings.init_from is None:
        return None
    content = read_any_model_folder(Path(settings.init_from))
    width = content.model.config.d_model
    if settings.preset is not None and PRESETS[settings.preset].d_model != width:
        raise TransduceError(
            f"`preset` is {settings.preset}, which is {PRESETS[settings.preset].d_model} wide, but the model in "
            f"{settings.init_from} has a width of {width}, and its weights are kept: leave it out."
        )
    if settings.tokenizer.text:
        raise TransduceError(
            f"`tokenizer.text` is for a vocabulary that is learned, but that of {settings.init_from} is kept: leave "
            "it out."
        )
    # Symbols that the base model lacks are added to its vocabulary.
    kept = msgspec.structs.replace(settings.tokenizer, user_symbols=(), line_feeds=False)
    check_vocabulary(kept, content.tokenizer, settings.init_from)
    check_kept_vocabulary(kept, content.tokenizer, settings.init_from)
    if settings.training.lora_rank and settings.tokenizer.symbols:
        raise TransduceError(
            f"`training.lora_rank` is {settings.training.lora_rank}, which keeps the embeddings as they are, so that "
            "`tokenizer.user_symbols` and `tokenizer.line_feeds` could not be learned: leave one of them out."
        )
    vocabulary_size, size = settings.tokenizer.vocabulary_size, content.tokenizer.target.size
    extended_size = extend_tokenizer(content.tokenizer, settings.tokenizer.symbols).target.size
    if vocabulary_size not in (None, size, extended_size):
        raise TransduceError(
            f"`tokenizer.vocabulary_size` is {vocabulary_size:,}, but the model in {settings.init_from} has {size:,} "
            "tokens, and its tokenizer is kept: leave it out."
        )
    return content


def follow_base_languages(settings: Settings, choice_log: ChoiceLog) -> Settings:
    """Return settings that decide whether a token of the target language starts each source.

    The base model decides: the token is used if the base model has learned one for the target language. If the
    languages of the text are unknown and the base model has one language pair, that pair is assumed. Settings stay as
    they are if they already decide about the token, or if the base model has no such tokens.

    Args:
        settings: the settings, with a base model.
        choice_log: receives the choice.

    Raises:
        TransduceError: the base model translates several pairs of languages, and the languages of the text are unknown.
    """
    data, folder = settings.data, Path(str(settings.init_from))
    directions = read_directions(folder) if "data.corpora" in kind_of(settings.task.kind).uses else ()
    if not directions or data.language_tokens is not None or data.has_language_tokens:
        return settings
    source, target = languages_of(data)
    if (source is None or target is None) and len(directions) == 1:
        ((source, target),) = directions
    if source is None or target is None:
        pairs = shown_names([f"{one} → {other}" for one, other in directions], 40)
        raise TransduceError(
            f"The model in {folder} was trained on several pairs of languages ({pairs}), and those of your text are "
            "not in the files' suffixes: pass `--languages`."
        )
    known = fitting_code(target, (other for _, other in directions))
    is_renamed = bool(data.target) and not data.corpora  # codes of a file of pairs may be names of columns
    has_token = known is not None and (is_renamed or known == target)
    if known is None:
        reason = f"the model in {folder} has learned none for {target}"
    elif not has_token:
        reason = f"the model in {folder} has none for {target}, but one for {known}: name the language {known}, too"
    else:
        if is_renamed:
            source, target = fitting_code(source, (one for one, _ in directions)) or source, known
        reason = (
            f"as in {folder}; the new model translates {source} → {target} only: add `--corpus` to keep other pairs"
        )
    choice_log.record("data.language_tokens", None, Choice(has_token, reason))
    languages = None if data.corpora else (source, target)
    if not (has_token and is_renamed):
        languages = data.languages or languages
    changed = msgspec.structs.replace(data, language_tokens=has_token, languages=languages)
    return msgspec.structs.replace(settings, data=changed)


def follow_base_search(settings: Settings, specified: Mapping[str, Any], choice_log: ChoiceLog) -> Settings:
    """Return settings with the base model's search settings wherever the user set none.

    Args:
        settings: the settings, with a base model.
        specified: the table `search` of the user's settings, without defaults.
        choice_log: receives each setting that the base model determines.

    Raises:
        TransduceError: the base model's settings cannot be read, or contradict the user's.
    """
    kind, folder = kind_of(settings.task.kind), Path(str(settings.init_from))
    used = set(SearchSettings.__struct_fields__ if kind.search_advice is None else kind.used_search_settings)
    if not used:
        return settings
    try:
        base = read_search_settings(folder)
    except TransduceError as error:
        if not is_hugging_face_folder(folder):
            raise
        reason = f"not as in {folder}: {str(error).rstrip('.')}"
        choice_log.record("search", None, Choice("default", reason), is_message=True)
        return settings
    if base.generate is not None and "generate" not in used:
        return settings  # its length penalty is a different formula
    defaults = SearchSettings()
    base = msgspec.structs.replace(
        defaults, **{name: getattr(base, name) for name in SearchSettings.__struct_fields__ if name in used}
    )
    changes = {name: getattr(settings.search, name) for name in specified}
    # A run's settings.toml also has default values that would have no effect beside others.
    idle = [*(BEAM_SETTINGS if changes.get("sampling") else ()), *(BY_SOURCE if changes.get("max_length") else ())]
    idle.append("diversity_penalty")
    for name in idle:
        if name in changes and changes[name] == getattr(defaults, name):
            del changes[name]
    draws = dict[str, float | None]()
    if changes.get("sampling") is not None and base.sampling is not None:
        sampling = changes.pop("sampling")
        draws = {name: getattr(sampling, name) for name in specified["sampling"]}
    if changes.get("generate") is not None and base.generate is not None:
        own = {name: getattr(changes["generate"], name) for name in specified["generate"]}
        changes["generate"] = msgspec.structs.replace(base.generate, **own)
    try:
        search = override_search(base, changes, draws)
    except TransduceError as error:
        raise TransduceError(
            f"{str(error).rstrip('.')}. Search settings that you leave out are as in {folder}."
        ) from None
    for name in SearchSettings.__struct_fields__:
        value = getattr(search, name)
        if name in used and name not in specified and value != getattr(defaults, name):
            is_number = isinstance(value, int | float)
            shown = value if is_number else "set"
            choice_log.record(f"search.{name}", None, Choice(shown, f"as in {folder}"), is_message=not is_number)
    return msgspec.structs.replace(settings, search=search)


def store_base_config(folder: Path, config: ModelConfig) -> None:
    """Store the base model's configuration in the run's folder, so that the run can resume without the base model."""
    write_json(folder / _CONFIG_COPY, config)


def load_base_config(folder: Path) -> ModelConfig:
    """Return the base model's configuration, which the run stored in its folder when it started.

    Raises:
        TransduceError: the file is missing or damaged.
    """
    path = folder / _CONFIG_COPY
    try:
        content = msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
        return convert_config(with_current_keys(content, ModelConfig))
    except (OSError, msgspec.MsgspecError) as error:
        raise TransduceError(f"{path} cannot be read ({error}): start another run with another --out.") from error


def prepare_initial_weights(
    folder: Path,
    resolved: ResolvedSettings,
    tokenizer: Tokenizer | None,
    choice_log: ChoiceLog,
    reinitialized: Reinitialized,
) -> None:
    """Log how LoRA and word vectors change a run's initial weights, and store the weights in the run's folder.

    They are stored only for a run with LoRA or word vectors, which needs them to resume.

    Args:
        folder: the run's folder.
        resolved: the run's settings.
        tokenizer: the tokenizer; None for a task without text.
        choice_log: receives each chosen setting with its value and the reason.
        reinitialized: the weights that are not taken from the base model.

    Raises:
        TransduceError: a file of word vectors is invalid, word vectors are set for a task without text or for a
            side that the model lacks, LoRA finds no layers to adapt, or the base model cannot be read or has changed.
    """
    if resolved.word_vectors is not None and tokenizer is None:
        raise TransduceError(
            f"`word_vectors` are for text, but `task.kind` = {resolved.task.kind} learns from numbers: leave them out."
        )
    log_adaptation(resolved, choice_log, reinitialized.may_lack)
    if not needs_stored_weights(resolved):
        return
    torch.manual_seed(resolved.training.seed)
    model, vectors = _build(resolved, reinitialized, tokenizer), {}
    if resolved.word_vectors is not None and tokenizer is not None:
        vectors = fill_with_vectors(model, resolved, tokenizer, choice_log)
    store_initial_weights(folder, model, vectors)


def build_initial_model(
    resolved: ResolvedSettings, folder: Path, *, trained: bool, reinitialized: Reinitialized
) -> AnyModel:
    """Return the model of a run with its initial weights: stored ones, those of the base model, or random ones.

    Args:
        resolved: the run's settings.
        folder: the run's folder, which holds the weights if the run had to store them.
        trained: True if a checkpoint will replace all weights, so that those of the base model need not be read.
        reinitialized: the weights that are not taken from the base model.

    Raises:
        TransduceError: the stored weights are missing or damaged, or the base model cannot be read or has changed since
            the run started.
    """
    if needs_stored_weights(resolved):
        model = build_model(resolved.model)
        model.load_state_dict(load_initial_weights(folder)[0])
        return model
    if trained or resolved.init_from is None:
        return build_any_model(resolved.model)
    return _build(resolved, reinitialized, None if resolved.built_tokenizer is None else load_tokenizer(folder))


def extend_weights(
    weights: Mapping[str, Tensor], config: ModelConfig, base: Tokenizer, tokenizer: Tokenizer
) -> dict[str, Tensor]:
    """Return a base model's weights with new rows for the tokens that extend its vocabulary.

    The base model splits the text of a new token into several of its own tokens. The rows of the new token in the
    embeddings and the output projection are the means of the rows of these tokens (Hewitt 2021, "Initializing New Word
    Embeddings for Pretrained Language Models").

    Args:
        weights: the base model's weights by name.
        config: the base model's configuration.
        base: the base model's tokenizer.
        tokenizer: the extended tokenizer.

    Returns:
        A dict of all weights by name.
    """
    sides = {"source": (base.source, tokenizer.source), "target": (base.target, tokenizer.target)}
    sides_of = {"own_target_weight": "target", "own_output_weight": "target", "output_bias": "target"}
    sides_of["source_weight"] = "target" if config.tie_source_target else "source"
    extended = dict(weights)
    for name, side in sides_of.items():
        if name not in weights:
            continue
        rows = tokens_before(*sides[side])
        means = [weights[name][ids].mean(dim=0, keepdim=True) for ids in rows]
        extended[name] = torch.cat([weights[name], *means])
    return extended


def _build(resolved: ResolvedSettings, reinitialized: Reinitialized, tokenizer: Tokenizer | None) -> Model:
    model = build_model(resolved.model)
    if resolved.init_from is None:
        return model
    folder = Path(resolved.init_from)
    base = read_any_model_folder(folder)
    base_weights: Mapping[str, Tensor] = base.model.state_dict()
    if tokenizer is not None and base.tokenizer is not None and resolved.tokenizer.symbols:
        base_weights = extend_weights(base_weights, base.model.config, base.tokenizer, tokenizer)
    shapes = {name: tensor.shape for name, tensor in model.state_dict().items()}
    if reinitialized.reinitialize is not None:
        prefixes = reinitialized.reinitialize(folder)
        base_weights = {name: tensor for name, tensor in base_weights.items() if not name.startswith(prefixes)}
    if reinitialized.may_lack:
        base_weights = {name: tensor for name, tensor in base_weights.items() if shapes.get(name) == tensor.shape}
        shapes = {
            name: shape
            for name, shape in shapes.items()
            if name in base_weights or not name.startswith(reinitialized.may_lack)
        }
    if {name: tensor.shape for name, tensor in base_weights.items()} != shapes:
        raise TransduceError(
            f"The model in {resolved.init_from} is not the one that this run was started from: start another run with "
            "another --out."
        )
    model.load_state_dict(base_weights, strict=not reinitialized.may_lack)
    return model
