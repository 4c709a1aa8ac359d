"""The model card: README.md of a model folder, with the front matter that Hugging Face reads."""

from transduce.evaluation.scores import ScoreReport
from transduce.interop.huggingface import class_for
from transduce.tasks.corpus import TaskCorpus
from transduce.tasks.resolve import ResolvedSettings


def model_card(resolved: ResolvedSettings, corpus: TaskCorpus, *, step: int | None, report: ScoreReport | None) -> str:
    """The card's text.

    Args:
        resolved: the run's settings.
        corpus: what it was trained on.
        step: of the weights.
        report: scores on the dev set, when there are any.
    """
    model, (source, target) = resolved.model, corpus.languages
    codes = [code for code in (source, target) if code]
    languages = "".join(["language:\n", *(f"- {code}\n" for code in codes)]) if codes else ""
    front = f"---\n{languages}pipeline_tag: translation\nlibrary_name: transduce\n---\n"
    scores = f"## Scores on the dev set\n\n```\n{report}\n```\n\n" if report else ""
    held = class_for(model)
    opens = (
        f"The folder is also one of Hugging Face's class `{held}`: `AutoModelForSeq2SeqLM` and `AutoTokenizer` open it."
        if held and corpus.tokenizer.joint
        else "No class of Hugging Face's holds this model; `transduce.load` opens it."
    )
    return (
        f"{front}\n# {source or 'source'} → {target or 'target'}\n\n"
        f"A Transformer of {model.num_encoder_layers}+{model.num_decoder_layers} layers × {model.d_model} "
        f"({model.norm_order}-norm), trained by transduce on {corpus.pairs:,} sentence pairs"
        f"{f', weights of step {step:,}' if step else ''}.\n\n"
        f"    transduce translate THIS_FOLDER < in.txt > out.txt\n\n{opens}\n\n"
        f"{scores}All settings stand in `settings.toml`.\n"
    )
