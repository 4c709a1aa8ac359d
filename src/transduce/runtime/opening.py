"""Load translation models from model folders."""

from collections.abc import Sequence
from pathlib import Path

import torch

from transduce.errors import TransduceError
from transduce.given import as_paths
from transduce.model.precision import Precision
from transduce.runtime.ensembles import check_vocabularies
from transduce.runtime.examples import read_examples
from transduce.runtime.folder import read_encoder_decoder_folder
from transduce.runtime.languages import with_languages
from transduce.runtime.machine import detect_machine
from transduce.runtime.precision import at_precision, check_precision
from transduce.runtime.search_defaults import read_longest_source, read_search_settings
from transduce.runtime.task_card import refuse_parsers
from transduce.runtime.translator import Translator


def load(
    folder: str | Path | Sequence[str | Path],
    *,
    precision: Precision | str = "auto",
    device: str = "auto",
    threads: int | None = None,
    source_language: str | None = None,
    target_language: str | None = None,
    examples: str | Path | None = None,
) -> Translator:
    """Load a translation model, or several as an ensemble, which uses the first folder's search settings.

    Args:
        folder: a folder that `transduce train` or `transduce import` wrote, or a Hugging Face folder. The models of an
            ensemble must have the same vocabulary.
        precision: "fp32", "bf16", "int8" (8-bit weights, for a CPU), or "auto": bf16 if the hardware multiplies it
            faster.
        device: "cpu", "cuda", or "auto": a GPU if there is one.
        threads: number of compute threads in the whole process; None: $OMP_NUM_THREADS, or all usable cores.
        source_language: source language, for models with language tags (NLLB, mBART, M2M100).
        target_language: target language, for models with language tags.
        examples: a datastore file of `transduce remember` for kNN retrieval.

    Returns:
        The translator.

    Raises:
        TransduceError: a folder cannot be read, or an option is invalid.
    """
    check_precision(precision)
    folders = as_paths(folder, "A model's folder")
    if not folders:
        raise TransduceError("At least one model folder is needed, but none was named.")
    refuse_parsers(folders)
    machine = detect_machine(device, threads)
    torch.set_num_threads(machine.threads)
    contents = [with_languages(read_encoder_decoder_folder(each), source_language, target_language) for each in folders]
    check_vocabularies(folders, contents)
    first, *further_models = (at_precision(each.model, precision, machine) for each in contents)
    return Translator(
        first,
        contents[0].tokenizer,
        source_language=contents[0].manifest.source_language,
        target_language=contents[0].manifest.target_language,
        search=read_search_settings(folders[0]),
        ensemble=further_models,
        longest_source=min(map(read_longest_source, folders)),
        examples=None if examples is None else read_examples(examples, first),
    )
