"""The model card: README.md of a model folder, with the front matter that Hugging Face reads."""

from transduce.evaluation.scores import ScoreReport
from transduce.interop.huggingface import class_for
from transduce.model.config import ModelConfig
from transduce.tasks.corpus import TaskCorpus
from transduce.tasks.resolved import ResolvedSettings


def model_card(resolved: ResolvedSettings, corpus: TaskCorpus, *, step: int | None, report: ScoreReport | None) -> str:
    """The card's text.

    Args:
        resolved: the run's settings.
        corpus: what it was trained on.
        step: of the weights.
        report: scores on the dev set, when there are any.
    """
    model, (source, target) = resolved.model, corpus.languages
    front = front_matter(corpus.languages, "translation")
    scores = f"## Scores on the dev set\n\n```\n{report}\n```\n\n" if report else ""
    held = class_for(model)
    opens = (
        f"The folder is also one of Hugging Face's class `{held}`: `AutoModelForSeq2SeqLM` and `AutoTokenizer` open it."
        if held and corpus.tokenizer.joint
        else "No class of Hugging Face's holds this model; `transduce.load` opens it."
    )
    return (
        f"{front}\n# {source or 'source'} → {target or 'target'}\n\n"
        f"{'A Transformer' if model.kind == 'transformer' else 'A recurrent model'} of "
        f"{model.num_encoder_layers}+{model.num_decoder_layers} layers × {model.d_model} "
        f"({_kind(model)}), trained by transduce on {corpus.pairs:,} sentence pairs"
        f"{f', weights of step {step:,}' if step else ''}.\n\n"
        f"    transduce translate THIS_FOLDER < in.txt > out.txt\n\n{opens}\n\n"
        f"{scores}All settings stand in `settings.toml`.\n"
    )


def front_matter(languages: tuple[str | None, str | None], pipeline_tag: str) -> str:
    """What Hugging Face reads: the languages, and what a model does."""
    codes = [code for code in languages if code]
    lines = "".join(["language:\n", *(f"- {code}\n" for code in codes)]) if codes else ""
    return f"---\n{lines}pipeline_tag: {pipeline_tag}\nlibrary_name: transduce\n---\n"


def _kind(model: ModelConfig) -> str:
    """The line of models that it is of, in a word."""
    return model.recurrent_cell.upper() if model.kind == "recurrent" else f"{model.norm_order}-norm"
