"""Write the model card: README.md of a model folder, with the front matter that Hugging Face reads."""

from transduce.evaluation.scores import ScoreReport
from transduce.interop.huggingface import automatic_class_for, class_for
from transduce.interop.tokenizer_files import has_tokenizer
from transduce.model.config import ModelConfig
from transduce.runtime.exporters import formats_for
from transduce.tasks.corpus import TaskCorpus
from transduce.tasks.resolved import ResolvedSettings
from transduce.text.tokenizer import Tokenizer


def model_card(resolved: ResolvedSettings, corpus: TaskCorpus, *, step: int | None, report: ScoreReport | None) -> str:
    """Return the text of a translation model's card.

    Args:
        resolved: the run's settings.
        corpus: the training corpus.
        step: step of the weights; None: unknown.
        report: scores on the dev set; None: not scored.
    """
    model, (source, target) = resolved.model, corpus.languages
    front = front_matter(corpus.languages, "translation")
    among = ", back-translated ones among them" if resolved.data.back_translated else ""
    scores = f"## Scores on the dev set\n\n```\n{report}\n```\n\n" if report else ""
    return (
        f"{front}\n# {source or 'source'} → {target or 'target'}\n\n"
        f"{'A Transformer' if model.kind == 'transformer' else 'A recurrent model'} of "
        f"{model.num_encoder_layers}+{model.num_decoder_layers} layers × {model.d_model} "
        f"({_kind(model)}), trained by transduce on {corpus.pairs:,} sentence pairs{among}"
        f"{f', weights of step {step:,}' if step else ''}.\n\n"
        f"    transduce translate THIS_FOLDER < in.txt > out.txt\n\n{opened_by(model, corpus.tokenizer)}\n\n"
        f"{scores}All settings are in `settings.toml`.\n"
    )


def opened_by(model: ModelConfig, tokenizer: Tokenizer) -> str:
    """Return the sentence that names the Hugging Face class that opens the folder, or else the exports available."""
    class_name = class_for(model)
    if class_name is not None and has_tokenizer(tokenizer, model):
        return (
            f"The folder is also one of Hugging Face's class `{class_name}`: `{automatic_class_for(model)}` and "
            "`AutoTokenizer` open it."
        )
    nothing = (
        "No class of Hugging Face's holds this model" if class_name is None else "Hugging Face has no such tokenizer"
    )
    exports = [f"`--to {name}`" for name in formats_for(model) if name != "huggingface"]
    for_others = f", and `transduce export` writes it for other programs: {' or '.join(exports)}" if exports else ""
    return f"{nothing}; `transduce.load` opens it{for_others}."


def front_matter(languages: tuple[str | None, str | None], pipeline_tag: str) -> str:
    """Return the front matter that Hugging Face reads: the languages and the model's pipeline tag."""
    codes = [code for code in languages if code]
    lines = "".join(["language:\n", *(f"- {code}\n" for code in codes)]) if codes else ""
    return f"---\n{lines}pipeline_tag: {pipeline_tag}\nlibrary_name: transduce\n---\n"


def _kind(model: ModelConfig) -> str:
    """Return the model's variant in a word, such as "GRU" or "pre-norm"."""
    return model.recurrent_cell.upper() if model.kind == "recurrent" else f"{model.norm_order}-norm"
