"""The Transformer of "Attention Is All You Need" as a Python package.

import transduce
transduce.train(source="train.zh", target="train.en", out="models/zh-en")
translator = transduce.load("models/zh-en")
print(translator("我爱你").text)
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from transduce.deprecation import PUBLIC_NAMES, warn_renamed
from transduce.errors import TransduceError

if TYPE_CHECKING:
    from transduce.demonstration.run import DemoResult, demo
    from transduce.documents.markup import translate_markup
    from transduce.documents.markup_tokens import MarkupSettings
    from transduce.documents.translate import translate_document
    from transduce.documents.units import DocumentSettings
    from transduce.evaluation.scores import ScoreReport, score
    from transduce.evaluation.significance import Comparison, compare
    from transduce.exchange.export import ExportReport, export
    from transduce.exchange.import_folder import ImportReport
    from transduce.exchange.import_folder import import_model_folder as import_model
    from transduce.inference.batching import Documents
    from transduce.inference.classifier import Classification, Classifier
    from transduce.inference.datastore import Datastore, build_datastore
    from transduce.inference.embedder import Embedder, TokenStates
    from transduce.inference.evaluate import evaluate, prove_int8
    from transduce.inference.forecaster import Forecast, Forecaster
    from transduce.inference.generator import Continuation, Generation, Generator
    from transduce.inference.load import load
    from transduce.inference.mask_filler import Candidate, Filler, Filling
    from transduce.inference.parser import Parse, Parser
    from transduce.inference.quality_estimation import QualityWarning
    from transduce.inference.redecoding import estimate_quality, redecode
    from transduce.inference.scoring import Score, TextScore
    from transduce.inference.tagger import Tagger, Tagging
    from transduce.inference.translation import Alternative, Translation
    from transduce.inference.translation_pipeline import pipeline
    from transduce.inference.translator import Translator
    from transduce.inspection.alignment import align
    from transduce.inspection.attention import attention_maps, word_attention
    from transduce.inspection.attribution import Attribution, attribute, attributions
    from transduce.inspection.causal import Ablation, LogitLens, Patching, ablate, logit_lens, patch_activations
    from transduce.inspection.coreference import pronoun_attention
    from transduce.inspection.doctor import DoctorReport, ResidualLayer, SplitModel, examine
    from transduce.inspection.doctor import Subject as DoctorSubject
    from transduce.inspection.experiments import ExperimentReport, experiment
    from transduce.inspection.installation import InstallReport, check_install
    from transduce.inspection.interventions import Head, Intervention, intervene, replace_word
    from transduce.inspection.probing import Probing, probe
    from transduce.inspection.recorder import HookPoint, Recording, hook_points, record_activations
    from transduce.inspection.sentence import inspect_sentence as inspect
    from transduce.inspection.sentence import inspect_text
    from transduce.inspection.sentence_view import (
        Inspection,
        InspectionPage,
        PronounAttention,
        PronounPair,
        TextInspection,
        TextInspectionPage,
    )
    from transduce.interop.tutorials import TutorialNames, import_tutorial, language_model_config
    from transduce.interop.vocabulary_files import read_vocabulary
    from transduce.interop.word_vectors import fill_embeddings
    from transduce.model.attention import AttentionTrace, MultiHeadAttention, ScoredAttention
    from transduce.model.build import register
    from transduce.model.config import ModelConfig, RotaryScaling
    from transduce.model.masks import AttentionMask
    from transduce.model.recurrent import Recurrent
    from transduce.model.transformer import Transformer
    from transduce.model_folder.upkeep import QuantizeReport, VerifyReport, verify
    from transduce.model_folder.upkeep import quantize_folder as quantize
    from transduce.model_folder.weight_cache import Int8Comparison, Int8Proof
    from transduce.model_folder.write import save
    from transduce.search.rules import GenerateSettings
    from transduce.search.settings import SamplingSettings, SearchSettings
    from transduce.tasks.preparing import PreparationReport, ShardReport, TokenizerReport, merge_shards, prepare
    from transduce.tasks.train import train
    from transduce.text.glossary import Glossary, Term, read_glossary
    from transduce.text.sentencepiece_model import TokenizerSettings
    from transduce.text.text_settings import TextSettings
    from transduce.text.tokenizer import Tokenizer
    from transduce.training.callbacks import (
        Callback,
        CheckpointEvent,
        MlflowTracker,
        RunEnd,
        RunStart,
        TensorBoardTracker,
        Tracker,
        TrackioTracker,
        WandbTracker,
    )
    from transduce.training.events import TrainEvent, ValidationEvent
    from transduce.training.loop import TrainResult
    from transduce.training.lora import LowRankSettings
    from transduce.training.lora import adapt as add_lora
    from transduce.training.lora import merge as merge_lora
    from transduce.training.run_estimate import RunEstimate, ScoreEstimate
    from transduce.ui_language_choice import set_ui_language

__all__ = [
    "Ablation",
    "Alternative",
    "AttentionMask",
    "AttentionTrace",
    "Attribution",
    "Callback",
    "Candidate",
    "CheckpointEvent",
    "Classification",
    "Classifier",
    "Comparison",
    "Continuation",
    "Datastore",
    "DemoResult",
    "DoctorReport",
    "DoctorSubject",
    "DocumentSettings",
    "Documents",
    "Embedder",
    "ExperimentReport",
    "ExportReport",
    "Filler",
    "Filling",
    "Forecast",
    "Forecaster",
    "GenerateSettings",
    "Generation",
    "Generator",
    "Glossary",
    "Head",
    "HookPoint",
    "ImportReport",
    "Inspection",
    "InspectionPage",
    "InstallReport",
    "Int8Comparison",
    "Int8Proof",
    "Intervention",
    "LogitLens",
    "LowRankSettings",
    "MarkupSettings",
    "MlflowTracker",
    "ModelConfig",
    "MultiHeadAttention",
    "Parse",
    "Parser",
    "Patching",
    "PreparationReport",
    "Probing",
    "PronounAttention",
    "PronounPair",
    "QualityWarning",
    "QuantizeReport",
    "Recording",
    "Recurrent",
    "ResidualLayer",
    "RotaryScaling",
    "RunEnd",
    "RunEstimate",
    "RunStart",
    "SamplingSettings",
    "Score",
    "ScoreEstimate",
    "ScoreReport",
    "ScoredAttention",
    "SearchSettings",
    "ShardReport",
    "SplitModel",
    "Tagger",
    "Tagging",
    "TensorBoardTracker",
    "Term",
    "TextInspection",
    "TextInspectionPage",
    "TextScore",
    "TextSettings",
    "TokenStates",
    "Tokenizer",
    "TokenizerReport",
    "TokenizerSettings",
    "Tracker",
    "TrackioTracker",
    "TrainEvent",
    "TrainResult",
    "TransduceError",
    "Transformer",
    "Translation",
    "Translator",
    "TutorialNames",
    "ValidationEvent",
    "VerifyReport",
    "WandbTracker",
    "ablate",
    "add_lora",
    "align",
    "attention_maps",
    "attribute",
    "attributions",
    "build_datastore",
    "check_install",
    "compare",
    "demo",
    "estimate_quality",
    "evaluate",
    "examine",
    "experiment",
    "export",
    "fill_embeddings",
    "hook_points",
    "import_model",
    "import_tutorial",
    "inspect",
    "inspect_text",
    "intervene",
    "language_model_config",
    "load",
    "logit_lens",
    "merge_lora",
    "merge_shards",
    "patch_activations",
    "pipeline",
    "prepare",
    "probe",
    "pronoun_attention",
    "prove_int8",
    "quantize",
    "read_glossary",
    "read_vocabulary",
    "record_activations",
    "redecode",
    "register",
    "replace_word",
    "save",
    "score",
    "set_ui_language",
    "train",
    "translate_document",
    "translate_markup",
    "verify",
    "word_attention",
]

# A name is imported on first use, so that `import transduce` stays fast.
_NAMES = {
    "demonstration.run": ("DemoResult", "demo"),
    "documents.markup": ("translate_markup",),
    "documents.markup_tokens": ("MarkupSettings",),
    "documents.translate": ("translate_document",),
    "documents.units": ("DocumentSettings",),
    "evaluation.scores": ("ScoreReport", "score"),
    "evaluation.significance": ("Comparison", "compare"),
    "exchange.export": ("ExportReport", "export"),
    "exchange.import_folder": ("ImportReport", "import_model=import_model_folder"),
    "inference.batching": ("Documents",),
    "inference.classifier": ("Classification", "Classifier"),
    "inference.datastore": ("Datastore", "build_datastore"),
    "inference.embedder": ("Embedder", "TokenStates"),
    "inference.evaluate": ("evaluate", "prove_int8"),
    "inference.forecaster": ("Forecast", "Forecaster"),
    "inference.generator": ("Continuation", "Generation", "Generator"),
    "inference.load": ("load",),
    "inference.mask_filler": ("Candidate", "Filler", "Filling"),
    "inference.parser": ("Parse", "Parser"),
    "inference.quality_estimation": ("QualityWarning",),
    "inference.redecoding": ("estimate_quality", "redecode"),
    "inference.scoring": ("Score", "TextScore"),
    "inference.tagger": ("Tagger", "Tagging"),
    "inference.translation": ("Alternative", "Translation"),
    "inference.translation_pipeline": ("pipeline",),
    "inference.translator": ("Translator",),
    "inspection.alignment": ("align",),
    "inspection.attention": ("attention_maps", "word_attention"),
    "inspection.attribution": ("Attribution", "attribute", "attributions"),
    "inspection.causal": ("Ablation", "LogitLens", "Patching", "ablate", "logit_lens", "patch_activations"),
    "inspection.coreference": ("pronoun_attention",),
    "inspection.doctor": ("DoctorReport", "DoctorSubject=Subject", "ResidualLayer", "SplitModel", "examine"),
    "inspection.experiments": ("ExperimentReport", "experiment"),
    "inspection.installation": ("InstallReport", "check_install"),
    "inspection.interventions": ("Head", "Intervention", "intervene", "replace_word"),
    "inspection.probing": ("Probing", "probe"),
    "inspection.recorder": ("HookPoint", "Recording", "hook_points", "record_activations"),
    "inspection.sentence": ("inspect=inspect_sentence", "inspect_text"),
    "inspection.sentence_view": (
        "Inspection",
        "InspectionPage",
        "PronounAttention",
        "PronounPair",
        "TextInspection",
        "TextInspectionPage",
    ),
    "interop.tutorials": ("TutorialNames", "import_tutorial", "language_model_config"),
    "interop.vocabulary_files": ("read_vocabulary",),
    "interop.word_vectors": ("fill_embeddings",),
    "model.attention": ("AttentionTrace", "MultiHeadAttention", "ScoredAttention"),
    "model.build": ("register",),
    "model.config": ("ModelConfig", "RotaryScaling"),
    "model.masks": ("AttentionMask",),
    "model.recurrent": ("Recurrent",),
    "model.transformer": ("Transformer",),
    "model_folder.upkeep": ("QuantizeReport", "VerifyReport", "quantize=quantize_folder", "verify"),
    "model_folder.weight_cache": ("Int8Comparison", "Int8Proof"),
    "model_folder.write": ("save",),
    "search.rules": ("GenerateSettings",),
    "search.settings": ("SamplingSettings", "SearchSettings"),
    "tasks.preparing": ("PreparationReport", "ShardReport", "TokenizerReport", "merge_shards", "prepare"),
    "tasks.train": ("train",),
    "text.glossary": ("Glossary", "Term", "read_glossary"),
    "text.sentencepiece_model": ("TokenizerSettings",),
    "text.text_settings": ("TextSettings",),
    "text.tokenizer": ("Tokenizer",),
    "training.callbacks": (
        "Callback",
        "CheckpointEvent",
        "MlflowTracker",
        "RunEnd",
        "RunStart",
        "TensorBoardTracker",
        "Tracker",
        "TrackioTracker",
        "WandbTracker",
    ),
    "training.events": ("TrainEvent", "ValidationEvent"),
    "training.run_estimate": ("RunEstimate", "ScoreEstimate"),
    "training.loop": ("TrainResult",),
    "training.lora": ("LowRankSettings", "add_lora=adapt", "merge_lora=merge"),
    "ui_language_choice": ("set_ui_language",),
}
"""A dict from each module to its public names; behind `=` is the module's own name where that differs."""
_DEFINED_IN = {
    name.partition("=")[0]: (f"transduce.{module}", name.rpartition("=")[2])
    for module, names in _NAMES.items()
    for name in names
}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version  # most of the time of `import transduce`, if imported above

        return version("transduce")
    if name in PUBLIC_NAMES:
        warn_renamed(f"transduce.{name}", f"transduce.{PUBLIC_NAMES[name]}")
        name = PUBLIC_NAMES[name]
    if name not in _DEFINED_IN:
        raise AttributeError(f"module 'transduce' has no attribute '{name}'")
    module, defined_as = _DEFINED_IN[name]
    return getattr(import_module(module), defined_as)


def __dir__() -> list[str]:
    return sorted(__all__)
