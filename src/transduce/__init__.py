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
from transduce.process_environment import set_library_defaults

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
    from transduce.inference.classifier import Classification, Classifier
    from transduce.inference.datastore import Datastore, build_datastore
    from transduce.inference.embedder import Embedder, TokenStates
    from transduce.inference.evaluate import evaluate, prove_int8
    from transduce.inference.forecaster import Forecast, Forecaster
    from transduce.inference.generator import Continuation, Generation, Generator, TextScore
    from transduce.inference.load import load, pipeline
    from transduce.inference.mask_filler import Candidate, Filler, Filling
    from transduce.inference.parser import Parse, Parser
    from transduce.inference.quality_estimation import QualityWarning
    from transduce.inference.redecoding import estimate_quality, redecode
    from transduce.inference.scoring import Score
    from transduce.inference.tagger import Tagger, Tagging
    from transduce.inference.translation import Alternative, Translation
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
    from transduce.model.attention import MultiHeadAttention, ScoredAttention
    from transduce.model.build import register
    from transduce.model.config import ModelConfig
    from transduce.model.masks import AttentionMask
    from transduce.model.transformer import Transformer
    from transduce.model_folder.upkeep import QuantizeReport, VerifyReport, verify
    from transduce.model_folder.upkeep import quantize_folder as quantize
    from transduce.model_folder.weight_cache import Int8Comparison, Int8Proof
    from transduce.model_folder.write import save
    from transduce.search.settings import SamplingSettings, SearchSettings
    from transduce.tasks.preparing import PreparationReport, ShardReport, TokenizerReport, merge_shards, prepare
    from transduce.tasks.train import train
    from transduce.text.glossary import Glossary, Term, read_glossary
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
    from transduce.training.forecast import RunForecast, ScoreForecast
    from transduce.training.loop import TrainResult
    from transduce.training.lora import LowRankSettings
    from transduce.training.lora import adapt as add_lora
    from transduce.training.lora import merge as merge_lora
    from transduce.ui_language_choice import set_ui_language

__all__ = [
    "Ablation",
    "Alternative",
    "AttentionMask",
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
    "Embedder",
    "ExperimentReport",
    "ExportReport",
    "Filler",
    "Filling",
    "Forecast",
    "Forecaster",
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
    "ResidualLayer",
    "RunEnd",
    "RunForecast",
    "RunStart",
    "SamplingSettings",
    "Score",
    "ScoreForecast",
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
    "TokenStates",
    "Tokenizer",
    "TokenizerReport",
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

set_library_defaults()

# The module that defines each public name, and the name in it where that differs. A name is imported on first use, so
# that `import transduce` stays fast.
_DEFINED_IN = {
    "TensorBoardTracker": "transduce.training.callbacks",
    "ValidationEvent": "transduce.training.events",
    "TrainEvent": "transduce.training.events",
    "WandbTracker": "transduce.training.callbacks",
    "TrackioTracker": "transduce.training.callbacks",
    "Tracker": "transduce.training.callbacks",
    "RunStart": "transduce.training.callbacks",
    "RunEnd": "transduce.training.callbacks",
    "MlflowTracker": "transduce.training.callbacks",
    "CheckpointEvent": "transduce.training.callbacks",
    "Callback": "transduce.training.callbacks",
    "Alternative": "transduce.inference.translation",
    "AttentionMask": "transduce.model.masks",
    "Candidate": "transduce.inference.mask_filler",
    "Classification": "transduce.inference.classifier",
    "Classifier": "transduce.inference.classifier",
    "Comparison": "transduce.evaluation.significance",
    "Continuation": "transduce.inference.generator",
    "Datastore": "transduce.inference.datastore",
    "DemoResult": "transduce.demonstration.run",
    "DoctorReport": "transduce.inspection.doctor",
    "DoctorSubject": "transduce.inspection.doctor:Subject",
    "ResidualLayer": "transduce.inspection.doctor",
    "SplitModel": "transduce.inspection.doctor",
    "DocumentSettings": "transduce.documents.units",
    "ExperimentReport": "transduce.inspection.experiments",
    "ExportReport": "transduce.exchange.export",
    "Embedder": "transduce.inference.embedder",
    "TokenStates": "transduce.inference.embedder",
    "Filler": "transduce.inference.mask_filler",
    "Filling": "transduce.inference.mask_filler",
    "Forecast": "transduce.inference.forecaster",
    "Forecaster": "transduce.inference.forecaster",
    "Generation": "transduce.inference.generator",
    "Generator": "transduce.inference.generator",
    "Glossary": "transduce.text.glossary",
    "Head": "transduce.inspection.interventions",
    "ImportReport": "transduce.exchange.import_folder",
    "InstallReport": "transduce.inspection.installation",
    "Inspection": "transduce.inspection.sentence_view",
    "InspectionPage": "transduce.inspection.sentence_view",
    "Intervention": "transduce.inspection.interventions",
    "LowRankSettings": "transduce.training.lora",
    "ModelConfig": "transduce.model.config",
    "MultiHeadAttention": "transduce.model.attention",
    "ScoredAttention": "transduce.model.attention",
    "Parse": "transduce.inference.parser",
    "Parser": "transduce.inference.parser",
    "PreparationReport": "transduce.tasks.preparing",
    "PronounAttention": "transduce.inspection.sentence_view",
    "PronounPair": "transduce.inspection.sentence_view",
    "QualityWarning": "transduce.inference.quality_estimation",
    "QuantizeReport": "transduce.model_folder.upkeep",
    "Int8Comparison": "transduce.model_folder.weight_cache",
    "Int8Proof": "transduce.model_folder.weight_cache",
    "SamplingSettings": "transduce.search.settings",
    "Score": "transduce.inference.scoring",
    "ScoreReport": "transduce.evaluation.scores",
    "SearchSettings": "transduce.search.settings",
    "ShardReport": "transduce.tasks.preparing",
    "Tagger": "transduce.inference.tagger",
    "Tagging": "transduce.inference.tagger",
    "Term": "transduce.text.glossary",
    "TextScore": "transduce.inference.generator",
    "Tokenizer": "transduce.text.tokenizer",
    "TokenizerReport": "transduce.tasks.preparing",
    "TrainResult": "transduce.training.loop",
    "RunForecast": "transduce.training.forecast",
    "ScoreForecast": "transduce.training.forecast",
    "Transformer": "transduce.model.transformer",
    "Translation": "transduce.inference.translation",
    "Translator": "transduce.inference.translator",
    "TutorialNames": "transduce.interop.tutorials",
    "VerifyReport": "transduce.model_folder.upkeep",
    "add_lora": "transduce.training.lora:adapt",
    "align": "transduce.inspection.alignment",
    "attention_maps": "transduce.inspection.attention",
    "attribute": "transduce.inspection.attribution",
    "Attribution": "transduce.inspection.attribution",
    "build_datastore": "transduce.inference.datastore",
    "check_install": "transduce.inspection.installation",
    "compare": "transduce.evaluation.significance",
    "demo": "transduce.demonstration.run",
    "estimate_quality": "transduce.inference.redecoding",
    "evaluate": "transduce.inference.evaluate",
    "examine": "transduce.inspection.doctor",
    "experiment": "transduce.inspection.experiments",
    "export": "transduce.exchange.export",
    "fill_embeddings": "transduce.interop.word_vectors",
    "import_model": "transduce.exchange.import_folder:import_model_folder",
    "import_tutorial": "transduce.interop.tutorials",
    "language_model_config": "transduce.interop.tutorials",
    "inspect": "transduce.inspection.sentence:inspect_sentence",
    "intervene": "transduce.inspection.interventions",
    "load": "transduce.inference.load",
    "merge_lora": "transduce.training.lora:merge",
    "merge_shards": "transduce.tasks.preparing",
    "pipeline": "transduce.inference.load",
    "prepare": "transduce.tasks.preparing",
    "prove_int8": "transduce.inference.evaluate",
    "pronoun_attention": "transduce.inspection.coreference",
    "quantize": "transduce.model_folder.upkeep:quantize_folder",
    "read_glossary": "transduce.text.glossary",
    "read_vocabulary": "transduce.interop.vocabulary_files",
    "redecode": "transduce.inference.redecoding",
    "register": "transduce.model.build",
    "replace_word": "transduce.inspection.interventions",
    "save": "transduce.model_folder.write",
    "set_ui_language": "transduce.ui_language_choice",
    "score": "transduce.evaluation.scores",
    "train": "transduce.tasks.train",
    "translate_document": "transduce.documents.translate",
    "verify": "transduce.model_folder.upkeep",
    "translate_markup": "transduce.documents.markup",
    "MarkupSettings": "transduce.documents.markup_tokens",
    "Ablation": "transduce.inspection.causal",
    "LogitLens": "transduce.inspection.causal",
    "Patching": "transduce.inspection.causal",
    "ablate": "transduce.inspection.causal",
    "logit_lens": "transduce.inspection.causal",
    "patch_activations": "transduce.inspection.causal",
    "Probing": "transduce.inspection.probing",
    "probe": "transduce.inspection.probing",
    "HookPoint": "transduce.inspection.recorder",
    "Recording": "transduce.inspection.recorder",
    "hook_points": "transduce.inspection.recorder",
    "record_activations": "transduce.inspection.recorder",
    "inspect_text": "transduce.inspection.sentence",
    "TextInspection": "transduce.inspection.sentence_view",
    "TextInspectionPage": "transduce.inspection.sentence_view",
    "attributions": "transduce.inspection.attribution",
    "word_attention": "transduce.inspection.attention",
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
    module, _, defined_as = _DEFINED_IN[name].partition(":")
    return getattr(import_module(module), defined_as or name)


def __dir__() -> list[str]:
    return sorted(__all__)
