"""`transduce generate MODEL "the beginning"`: continue a text, or answer messages, with a language model."""

import argparse
import io
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from transduce.commands.options import (
    GENERATED_TOKENS,
    SAMPLING_OPTIONS,
    SEARCH_OPTIONS,
    add_computing,
    add_json,
    add_sampling,
    add_settings,
    check_writable,
    loading_options,
    passed_options,
    refuse_options,
    search_from,
    standard_output,
    stdin_lines,
    text_argument,
    typed_lines,
    write_report,
)
from transduce.errors import TransduceError, shown_names
from transduce.text.files import read_lines
from transduce.ui_language import localized

if TYPE_CHECKING:
    from transduce.inference.generator import Continuation, Generation, Generator
    from transduce.search.settings import SearchSettings

_TEMPERATURE = 0.8
_SEARCH_OPTIONS = ("no_repeated_ngrams", "repetition_penalty", "forbid")


class GenerationReport(msgspec.Struct, frozen=True, kw_only=True):
    """A prompt with its continuations by a language model, and the settings that they were generated with."""

    prompt: str
    continuations: "tuple[Continuation, ...]"
    search: "SearchSettings"
    precision: str
    """Number format of the model's weights, such as `fp32`."""
    is_chat: bool = False
    """True if the prompt is a conversation, written by the model's chat template."""

    def __str__(self) -> str:
        shown_prompt = "" if self.is_chat else self.prompt
        return "\n---\n".join(shown_prompt + each.text for each in self.continuations)


class GenerationReports(msgspec.Struct, frozen=True):
    """The reports on several prompts with their continuations, in the order of the prompts."""

    generations: tuple[GenerationReport, ...]

    def __str__(self) -> str:
        return "\n---\n".join(map(str, self.generations))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments and options of `transduce generate` in its argparse parser."""
    add = parser.add_argument
    add("model", help="the folder of a language model")
    add(
        "prompt",
        nargs="?",
        default="",
        type=text_argument,
        help="the beginning of the text; -: read it from standard input (default: empty)",
    )
    add(
        "--prompts",
        metavar="FILE",
        help="beginnings of texts, one per line, which are continued together; lines of --- separate the texts",
    )
    add("--max-length", type=int, default=GENERATED_TOKENS, metavar="N", help="maximum number of new tokens")
    add("--n-best", type=int, default=1, metavar="N", help="number of texts, separated by lines of ---")
    add(
        "--chat",
        action="store_true",
        help="answer the prompt, a user's message, by the model's chat template; with --prompts each line by itself; "
        "with neither, the lines of standard input as one conversation",
    )
    add("--system", metavar="TEXT", type=text_argument, help="with --chat: the system's message before a conversation")
    add("--one-line", action="store_true", help="end a text at its first line feed")
    add_settings(add, *_SEARCH_OPTIONS, table=SEARCH_OPTIONS)
    add_json(add, "the texts with their probabilities")
    add_sampling(parser.add_argument_group("sampling").add_argument, temperature=_TEMPERATURE)
    search = parser.add_argument_group("search instead of sampling").add_argument
    search("--greedy", action="store_true", help="always take the most likely token")
    search("--beam-size", type=int, default=0, metavar="N", help="hypotheses of a beam search; 0: no beam search")
    search(
        "--length-penalty",
        type=float,
        metavar="ALPHA",
        help="with --beam-size: greater values favor longer output (default: 0)",
    )
    add_computing(parser)


def run(options: argparse.Namespace) -> None:
    """Continue prompts by a language model, and print the texts.

    A single continuation is printed while it is generated; several, or JSON, are printed when complete.
    """
    from transduce.inference.generator import load_generator

    search = search_from_options(options)
    check_writable(report=options.json, inputs=[options.model, options.prompts])
    if options.prompts and options.prompt:
        raise TransduceError("A prompt and --prompts are both set: leave one of them out.")
    is_conversation = options.chat and not options.prompts and not options.prompt
    _check_chat(options, is_conversation=is_conversation)
    prompts = list(read_lines(options.prompts)) if options.prompts else []
    prompt = _standard_input() if options.prompt == "-" else options.prompt
    generator = load_generator(options.model, **loading_options(options))
    if is_conversation:
        _converse(generator, search, options)
        return
    _warn_of_unknown(generator, prompts or [prompt])
    if options.chat:
        prompts = [generator.chat_prompt(_messages(options, text)) for text in prompts]
        prompt = "" if options.prompts else generator.chat_prompt(_messages(options, prompt))
    if options.prompts:
        generations = generator(prompts, search=search, one_line=options.one_line)
        reports = (_report(each, search, generator, is_chat=options.chat) for each in generations)
        write_report(GenerationReports(tuple(reports)), options.json)
        return
    if options.n_best == 1 and options.json is None:
        with standard_output() as output:
            _stream(generator, prompt, search, output, one_line=options.one_line)
        return
    generation = generator(prompt, search=search, one_line=options.one_line)
    write_report(_report(generation, search, generator, is_chat=options.chat), options.json)


def _check_chat(options: argparse.Namespace, *, is_conversation: bool) -> None:
    """Check the options of a chat.

    Raises:
        TransduceError: an option contradicts another.
    """
    if not options.chat:
        refuse_options(options, ("system",), "`{option}` begins a conversation: add --chat, or leave it out.")
    elif is_conversation and (options.json is not None or options.n_best > 1):
        raise TransduceError(
            "A conversation goes on with one answer, which is printed: leave --json and --n-best out, or set a prompt "
            "or --prompts."
        )


def _messages(options: argparse.Namespace, text: str) -> list[dict[str, str]]:
    """Return a conversation with `text` as the user's message, preceded by the text of --system, if that is set."""
    system = [] if options.system is None else [{"role": "system", "content": options.system}]
    return [*system, {"role": "user", "content": text}]


def _converse(generator: "Generator", search: "SearchSettings", options: argparse.Namespace) -> None:
    """Answer the lines of standard input as a user's messages in one conversation, and print the answers.

    At a terminal, an empty line ends the conversation; otherwise empty lines are skipped.
    """
    if is_terminal := sys.stdin.isatty():
        sys.stderr.write(localized("Type a message; an empty line ends.\n"))
    messages: list[dict[str, str]] = []
    with standard_output() as output:
        for line in typed_lines() if is_terminal else stdin_lines(is_any_text=True):
            if not line.strip():
                continue
            _warn_of_unknown(generator, [line])
            messages += [{"role": "user", "content": line}] if messages else _messages(options, line)
            prompt = generator.chat_prompt(messages)
            answer = _stream(generator, prompt, search, output, one_line=options.one_line)
            messages.append({"role": "assistant", "content": answer})


def _warn_of_unknown(generator: "Generator", prompts: Sequence[str]) -> None:
    """Warn on standard error about letters of the prompts that the model has not learned.

    The vocabulary has no tokens for these letters, or only tokens for their bytes.
    """
    from transduce.commands.line_warnings import unknown_letters

    find = unknown_letters(generator.vocabulary)
    found = dict.fromkeys(letter for prompt in prompts for letters in find(prompt) for letter in letters)
    if found:
        sys.stderr.write(
            localized(
                f"warning: The model has not learned these characters of the prompt: {shown_names(found)}. Do not rely "
                "on its continuation.\n"
            )
        )


def _report(
    generation: "Generation", search: "SearchSettings", generator: "Generator", *, is_chat: bool
) -> GenerationReport:
    """Return a report on a prompt's continuations, with the search settings and precision they were generated with."""
    return GenerationReport(
        prompt=generation.prompt,
        continuations=generation.continuations,
        search=search,
        precision=generator.precision,
        is_chat=is_chat,
    )


def _standard_input() -> str:
    """Return all of standard input as UTF-8 text, without the last line break, which `echo` adds."""
    text = sys.stdin.buffer.read().decode("utf-8-sig", "replace")
    return text.removesuffix("\n").removesuffix("\r")


def search_from_options(options: argparse.Namespace) -> "SearchSettings":
    """Return the search settings that the options of `transduce generate` describe.

    Without --greedy and --beam-size, the settings are those of sampling.

    Raises:
        TransduceError: an option is out of range, or contradicts another.
    """
    from transduce.search.settings import SamplingSettings, SearchSettings

    if options.greedy and options.beam_size:
        raise TransduceError("--greedy and --beam-size are two ways to search: leave one of them out.")
    if options.greedy and options.n_best > 1:
        raise TransduceError(f"--greedy finds one text, but --n-best is {options.n_best}: use --beam-size, or sample.")
    samples = not (options.greedy or options.beam_size)
    if not samples:
        way = "--greedy" if options.greedy else "--beam-size"
        refuse_options(
            options,
            SAMPLING_OPTIONS,
            f"`{{option}}` sets how to sample, but {way} does not sample: leave one of them out.",
        )
    if not options.beam_size:
        refuse_options(
            options, ("length_penalty",), "`{option}` ranks the hypotheses of a beam: add --beam-size, or leave it out."
        )
    return SearchSettings(
        beam_size=options.beam_size or 1,
        n_best=options.n_best,
        length_penalty=options.length_penalty or 0.0,
        max_length=options.max_length,
        **search_from(options, _SEARCH_OPTIONS),
        sampling=SamplingSettings(**{"temperature": _TEMPERATURE} | passed_options(options, SAMPLING_OPTIONS))
        if samples
        else None,
    )


def _stream(
    generator: "Generator", prompt: str, search: "SearchSettings", output: io.TextIOWrapper, *, one_line: bool
) -> str:
    """Print a text while it is generated, after its prompt unless this is a conversation; return the new text."""
    from transduce.inference.generator import ChatPrompt

    growing = generator.stream(prompt, search, one_line=one_line)
    parts = [next(growing, "")]  # errors are raised before anything is written
    output.write(parts[0] if isinstance(prompt, ChatPrompt) else prompt + parts[0])
    output.flush()
    for text in growing:
        parts.append(text)
        output.write(text)
        output.flush()
    output.write("\n")
    output.flush()
    return "".join(parts)
