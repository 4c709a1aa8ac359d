"""Generate text with a language model: its tokenizer, search settings and sampling.

Transduce's own models end each line with the end symbol, so a text is a sequence of tokens and a prompt is its start.
Imported models have line-feed tokens, and their end symbol ends the whole text.

Legend: W texts of one prompt, t new tokens so far.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict, overload

import msgspec
import torch
from msgspec import UNSET
from torch import Tensor
from typing_extensions import Unpack

from transduce.acceleration import decoding_model
from transduce.argument_checks import as_path, as_text, as_texts
from transduce.deprecation import renamed_attribute
from transduce.errors import TransduceError, explain_wrong_types
from transduce.inference.batching import check_evaluation_mode
from transduce.inference.compiled_search import CompiledSearch, run_joining
from transduce.inference.decoding import build_rules, explain_search_out_of_memory, make_search, stream_search
from transduce.inference.scorers import DecoderOnlyScorer
from transduce.inference.scoring import TextScore
from transduce.inference.translation import (
    GrowingText,
    decode_with_line_feeds,
    without_incomplete_character,
)
from transduce.interop.hugging_face.imported_tokenizer import ImportedTokenizer
from transduce.kernel_interfaces import JoinableSearch, ReservedCapacity
from transduce.model.transformer import Decoder
from transduce.model_folder.load import LoadOptions, check_parts, load_model_at, precision_of, read_max_context, summary
from transduce.model_folder.read import read_decoder_folder
from transduce.search.beam import BeamOptions
from transduce.search.greedy import Draw
from transduce.search.rules import ExtraEndTokens
from transduce.search.scorer import Hypothesis, Observer, Search, SequenceLimits, length_penalty, run_search
from transduce.search.settings import SamplingSettings, SearchSettings, checked_search, override_with_warnings
from transduce.text.tokenizer import Tokenizer
from transduce.text.vocabulary import Vocabulary

__all__ = ["ChatPrompt", "Continuation", "Generation", "Generator", "load_generator"]

DEFAULT_LENGTH = 200
# Sampling at a temperature slightly below 1 gives likely but varied texts.
DEFAULT_SEARCH = SearchSettings(max_length=DEFAULT_LENGTH, sampling=SamplingSettings(temperature=0.8))
_MAX_TEXTS = 64  # continued at once, counting the hypotheses of a beam
_ENDLESS = -1  # an end-symbol id that no token has
# Search settings that need a source text, with the values that leave them off.
_TRANSLATION_ONLY = {"coverage_penalty": 0.0, "diverse_groups": 1, "batch_invariant": False, "generate": None}


class Continuation(msgspec.Struct, frozen=True):
    """A continuation of a prompt, with its tokens and their probabilities."""

    text: str
    """The generated text without the prompt."""
    tokens: tuple[str, ...]
    """The generated tokens as the vocabulary spells them, without those of the prompt."""
    token_log_probabilities: tuple[float, ...]
    """The model's own log-probability of each token, in nats, before sampling settings are applied. If the text ended
    with its end symbol, which is not in `tokens`, its log-probability is the last value. Padding and the unknown
    token have zero probability here, unlike in `Generator.score`.
    """
    score: float
    """Sum of the tokens' log-probabilities in nats, divided by the length penalty if one is set."""
    ended: bool
    """True if the text ended with its end symbol (or its line, with `one_line`), not at the maximum length."""

    pieces = renamed_attribute("pieces", "tokens")
    piece_log_probabilities = renamed_attribute("piece_log_probabilities", "token_log_probabilities")

    def __repr__(self) -> str:
        return f"Continuation({self.text!r}, score={self.score:.4f})"


class ChatPrompt(str):
    """A conversation as a model's chat template writes it: a prompt to which no start symbol is added."""

    __slots__ = ()


class Generation(msgspec.Struct, frozen=True):
    """A prompt with the continuations that a language model generated for it."""

    prompt: str
    """The start of the text, as it was passed."""
    continuations: tuple[Continuation, ...]
    """The continuations, as many as requested; from beam search, best first, from sampling in the order drawn."""

    @property
    def text(self) -> str:
        """The prompt followed by its first continuation."""
        return self.prompt + self.continuations[0].text

    @property
    def answer(self) -> str:
        """The first continuation without the prompt: the answer to a conversation."""
        return self.continuations[0].text

    def __str__(self) -> str:
        return self.text


class GenerateOptions(TypedDict, total=False):
    """Types of the keyword arguments of a call of a `Generator`, which `Generator.__call__` explains."""

    n_best: int | None
    max_length: int | None
    temperature: float | None
    top_k: int | None
    top_p: float | None
    seed: int | None
    search: SearchSettings | None
    one_line: bool


@explain_wrong_types
class Generator:
    """A language model with its tokenizer.

    Call it with the start of a text (a prompt), or a list of prompts, to get continuations.
    """

    def __init__(self, model: Decoder, tokenizer: Tokenizer, *, context: int, language: str | None = None) -> None:
        """Create a generator.

        Args:
            model: a decoder-only model.
            tokenizer: the tokenizer that the model was trained with.
            context: maximum number of tokens that the model attends to, prompt and continuation together.
            language: the code of the texts' language; None: unknown.

        Raises:
            TransduceError: the model is of another kind, or the tokenizer is that of another model.
        """
        check_parts("Generator", ("decoder",), (model,), tokenizer)
        self.model = model
        self.tokenizer = tokenizer
        self.vocabulary: Vocabulary = tokenizer.target
        self.context = context
        self.language = language

    def __repr__(self) -> str:
        return summary("Generator", self.model, self.language or "text", self.precision, str(self.device))

    @property
    def device(self) -> torch.device:
        """The device that the model computes on."""
        return self.model.source_weight.device

    @property
    def precision(self) -> str:
        """The precision of the weights: "fp32", "bf16" or "int8"."""
        return precision_of(self.model)

    @overload
    def __call__(self, prompt: str = "", **options: Unpack[GenerateOptions]) -> Generation: ...
    @overload
    def __call__(self, prompt: list[str] | tuple[str, ...], **options: Unpack[GenerateOptions]) -> list[Generation]: ...
    def __call__(
        self,
        prompt: str | list[str] | tuple[str, ...] = "",
        *,
        n_best: int | None = None,
        max_length: int | None = None,
        temperature: float | None = None,
        top_k: int | None = None,
        top_p: float | None = None,
        seed: int | None = None,
        search: SearchSettings | None = None,
        one_line: bool = False,
    ) -> Generation | list[Generation]:
        """Continue a text, or several texts at once; return a `Generation` for each: prompt and continuations.

        Any of `temperature`, `top_k`, `top_p` and `seed` samples, even if `search` does not. The arguments win over
        other settings of `search`, as in a call of `Translator` (`search.settings.override_search`).

        Args:
            prompt: the start of the text, or a list of such; an empty prompt starts a new line.
            n_best: number of continuations of each prompt.
            max_length: maximum number of new tokens in each continuation.
            temperature: logits are divided by it before a token is drawn; below 1, likely tokens become more likely. 0:
                no sampling, but greedy search.
            top_k: only this many of the most likely tokens may be drawn; 0: all.
            top_p: only the most likely tokens that together have this probability may be drawn (Holtzman et al. 2020).
                With `top_k`, it is the probability among the tokens that `top_k` leaves.
            seed: random seed of sampling.
            search: search settings; None: sampling at temperature 0.8. The arguments above override them.
            one_line: end each continuation at the end of its line.

        Warns: IdleSettingWarning: the arguments leave other search settings without effect, or change them.

        Raises:
            TransduceError: an option is out of range or not supported by language models.
        """
        options = {"n_best": n_best, "max_length": max_length}
        sampling = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "seed": seed}
        changed = override_with_warnings(checked_search(search or DEFAULT_SEARCH), options, sampling)
        settings = self._settings(changed)
        if isinstance(prompt, str):
            return self.generate(prompt, settings, one_line=one_line)
        return self.generate_batch(prompt, settings, one_line=one_line)

    @property
    def has_chat_template(self) -> bool:
        """True if the model has a chat template, which turns the messages of a conversation into a prompt."""
        return isinstance(self.tokenizer, ImportedTokenizer) and self.tokenizer.record.chat_template is not UNSET

    def chat_prompt(
        self,
        messages: str | Sequence[Mapping[str, Any]],
        *,
        continue_final_message: bool = False,
        template_variables: Mapping[str, Any] | None = None,
        max_characters: int | None = None,
    ) -> ChatPrompt:
        """Return the prompt that the model's chat template makes of a conversation, with which the generator is called.

        Its token ids are those of transformers' `apply_chat_template`; its continuation ends when the context is full.

        Args:
            messages: the messages, such as `{"role": "user", "content": "Hello"}`; a text is a user's message.
            continue_final_message: let the model continue the final message, instead of answering it.
            template_variables: further variables of the template, such as `enable_thinking`; None: none.
            max_characters: the maximum number of characters of the prompt; None: no limit but the context.

        Raises:
            TransduceError: the model has no chat template, the template refuses the messages, or they are too long.
        """
        template = self.tokenizer.record.chat_template if isinstance(self.tokenizer, ImportedTokenizer) else UNSET
        if template is UNSET:
            raise TransduceError(
                "The model has no chat template: write a prompt, or import a Hugging Face folder that has one."
            )
        chat = [{"role": "user", "content": messages}] if isinstance(messages, str) else messages
        prompt = template.render(chat, template_variables, continue_final_message=continue_final_message)
        if max_characters is not None and len(prompt) > max_characters:
            raise TransduceError(
                f"A conversation must have at most {max_characters:,} characters with the template's markers, but has "
                f"{len(prompt):,}: leave out or shorten messages."
            )
        count = len(self.prompt_ids(ChatPrompt(prompt)))
        if count >= self.context:
            raise TransduceError(
                f"A conversation must have fewer tokens than the model's context of {self.context}, but has {count}: "
                "leave out or shorten messages."
            )
        return ChatPrompt(prompt)

    def chat(
        self,
        messages: str | Sequence[Mapping[str, Any]],
        *,
        continue_final_message: bool = False,
        template_variables: Mapping[str, Any] | None = None,
        **options: Unpack[GenerateOptions],
    ) -> Generation:
        """Answer a conversation; return a `Generation` of the rendered prompt, whose continuations are the answers.

        The first answer is its `answer`. The arguments are those of `chat_prompt`, which raises the same errors, and
        the options those of a call of the generator.
        """
        prompt = self.chat_prompt(
            messages, continue_final_message=continue_final_message, template_variables=template_variables
        )
        return self(prompt, **options)

    def generate(
        self, prompt: str, search: SearchSettings, *, one_line: bool = False, observer: Observer | None = None
    ) -> Generation:
        """Continue one text with search settings, and return a `Generation`: the prompt with its continuations.

        Args:
            prompt: the start of the text; an empty prompt starts a new line.
            search: search settings; without a `max_length`, it is 200 tokens.
            one_line: end each continuation at the end of its line.
            observer: called after each step with the new tokens; None: no observer. If it abandons the prompt, its
                continuations end.

        Raises:
            TransduceError: a setting is not supported by language models.
        """
        begun = self._prompt(prompt, settings := self._settings(search))
        watch = observer or self._observer(one_line=one_line)
        with torch.inference_mode(), explain_search_out_of_memory(settings):
            (hypotheses,) = run_search(self._begin([begun], settings, one_line=one_line), watch)
        return self._generation(begun, hypotheses, settings, one_line=one_line)

    def generate_batch(
        self, prompts: Sequence[str], search: SearchSettings, *, one_line: bool = False
    ) -> list[Generation]:
        """Continue several texts at once, each as `generate` would continue it alone.

        Args:
            prompts: the starts of the texts, of any lengths.
            search: search settings; without a `max_length`, it is 200 tokens.
            one_line: end each continuation at the end of its line.

        Returns:
            A list with a `Generation` (a prompt with its continuations) for each prompt, in order.

        Raises:
            TransduceError: a setting is not supported by language models.
        """
        settings = self._settings(search)
        waiting = [self._prompt(text, settings) for text in as_texts(prompts)]
        found = self._joined(waiting, settings, one_line=one_line)
        for batch in self._batches(waiting, settings):
            if not all(number in found for number in batch):
                with torch.inference_mode(), explain_search_out_of_memory(settings):
                    progress = self._begin([waiting[number] for number in batch], settings, one_line=one_line)
                    results = run_search(progress, self._observer(one_line=one_line))
                found |= zip(batch, results, strict=True)
        pairs = ((prompt, found[number]) for number, prompt in enumerate(waiting))
        return [self._generation(*pair, settings, one_line=one_line) for pair in pairs]

    def _batches(self, prompts: Sequence["_Prompt"], search: SearchSettings) -> Iterator[list[int]]:
        """Yield batches of prompts to continue, as lists of the prompts' indices.

        The prompts of a batch have similar lengths, and at most 64 hypotheses together. A prompt whose continuation may
        fill the model's context forms its own batch. When the context is full, all texts of a batch are cut and read
        again, so that other prompts would change the continuation.
        """
        size = _texts_at_once(search)
        order = sorted(range(len(prompts)), key=lambda number: len(prompts[number].ids))
        fitting = [number for number in order if prompts[number].max_positions <= self.context]
        yield from (fitting[first : first + size] for first in range(0, len(fitting), size))
        yield from ([number] for number in order if prompts[number].max_positions > self.context)

    def _joined(
        self, prompts: Sequence["_Prompt"], search: SearchSettings, *, one_line: bool
    ) -> dict[int, list[Hypothesis]]:
        """Continue prompts in one search, which new prompts join as others finish.

        Return a dict from prompt indices to hypotheses. Prompts whose continuation may fill the context are not in the
        dict. The dict is empty if all prompts fit into one batch, or if prompts cannot join the search. The caller
        continues the prompts that are not in the dict.
        """
        fitting = [number for number, each in enumerate(prompts) if each.max_positions <= self.context]
        order = sorted(fitting, key=lambda number: -len(prompts[number].ids))
        if len(order) <= _texts_at_once(search) or self._observer(one_line=one_line) is not None:
            return {}

        def begin(numbers: Sequence[int]) -> Search:
            return self._begin([prompts[order[number]] for number in numbers], search, one_line=one_line)

        with torch.inference_mode(), explain_search_out_of_memory(search):
            found = run_joining(begin, len(order), _texts_at_once(search))
        return {} if found is None else dict(zip(order, found, strict=True))

    def continuation_text(self, prompt: str, ids: Sequence[int]) -> str:
        """Return the text that new token ids add to a prompt, without an incomplete character at its end."""
        return without_incomplete_character(self._new_text(self.prompt_ids(prompt), ids))

    def stream(
        self,
        prompt: str = "",
        search: SearchSettings | None = None,
        *,
        max_length: int | None = None,
        seed: int | None = None,
        one_line: bool = False,
    ) -> Iterator[str]:
        """Yield a continuation while it is generated, in parts of text; closing the iterator stops the search.

        Greedy search and sampling yield the text of each step. Beam search yields what all hypotheses agree on, and the
        rest at the end.

        Args:
            prompt: the start of the text.
            search: search settings; None: sampling at temperature 0.8.
            max_length: maximum number of new tokens.
            seed: random seed of sampling; with a seed, the continuation is sampled even if `search` does not sample.
            one_line: end the continuation at the end of its line.

        Warns: IdleSettingWarning: the arguments leave other search settings without effect, or change them.

        Raises:
            TransduceError: an option is out of range.
        """
        options = {"n_best": 1, "max_length": max_length}
        changed = override_with_warnings(checked_search(search or DEFAULT_SEARCH), options, {"seed": seed})
        settings = self._settings(changed)
        begun, observer = self._prompt(prompt, settings), self._observer(one_line=one_line)

        def decode(new_ids: list[int]) -> str:
            text = self._new_text(begun.ids, new_ids)
            return without_incomplete_character(text if observer is None else text.split("\n")[0])

        yield from stream_search(
            lambda: self._begin([begun], settings, one_line=one_line),
            GrowingText(decode),
            lambda best: self._continuation(begun.ids, best, settings, one_line=one_line).text,
            settings,
            observer,
        )

    @torch.inference_mode()
    def score(self, text: str) -> TextScore:
        """Return a `TextScore`: the log-probability of a text, with its numbers of tokens and characters.

        A long text is read in windows of the context length that overlap by half, so that each token has context.

        Raises:
            TransduceError: the model is in training mode.
        """
        check_evaluation_mode(self.model)
        ids, model = self._scored_ids(text), decoding_model(self.model)
        nats, scored = 0.0, 1  # the first token is the line start and is not scored
        while scored < len(ids):
            start = max(0, scored - 1 - self.context // 2)
            stop = min(len(ids), start + self.context + 1)
            inputs = torch.tensor([ids[start : stop - 1]], device=self.device)
            labels = torch.tensor(ids[scored:stop], device=self.device)
            logits = model(inputs)[0, scored - 1 - start :].float()  # (stop - scored, V)
            nats -= float(logits.log_softmax(dim=-1).gather(-1, labels[:, None]).sum())
            scored = stop
        return TextScore(tokens=len(ids) - 1, characters=len(text), nats=nats)

    def prompt_ids(self, text: str) -> list[int]:
        """Return the token ids of a prompt, with the start and line-end tokens that texts had in training.

        The first line follows the tokenizer's start tokens, or the end symbol if the tokenizer has no start tokens.
        Each later line follows the end symbol and any start tokens.

        If an imported vocabulary has tokens for line feeds, the text is not split into lines. Start tokens are then
        added only if the text lacks them and is not a `ChatPrompt`.
        """
        if self.vocabulary.keeps_line_feeds:
            ids, start_ids = self.vocabulary.encode(as_text(text)), list(self.vocabulary.before)
            # A chat template writes the start tokens itself, or has none.
            if not isinstance(text, ChatPrompt) and ids[: len(start_ids)] != start_ids:
                ids = [*start_ids, *ids]
            return ids or [self.model.config.start_id]
        end, start_tokens = self.vocabulary.eos_id, self.vocabulary.before
        first, *other_lines = self.vocabulary.encode_batch(as_text(text).split("\n"))
        start = start_tokens or (end,)
        return [*start, *first, *(token for line in other_lines for token in (end, *start_tokens, *line))]

    def _prompt(self, text: str, search: SearchSettings) -> "_Prompt":
        """Return a prompt to continue; the answer to a conversation ends when the context is full."""
        prompt = _Prompt(self.prompt_ids(text), search, text)
        if isinstance(text, ChatPrompt):
            prompt.max_length = max(1, min(prompt.max_length, self.context - len(prompt.ids)))
        return prompt

    def _scored_ids(self, text: str) -> list[int]:
        """Return a list of a text's token ids to score, after at least one start token, which predicts the first."""
        begins = self.vocabulary.before or not self.vocabulary.keeps_line_feeds or not text
        return self.prompt_ids(text) if begins else [self.model.config.start_id, *self.prompt_ids(text)]

    def _settings(self, search: SearchSettings) -> SearchSettings:
        """Return the search settings with a maximum length, after checking that a language model supports them.

        Raises:
            TransduceError: a setting is for models that translate.
        """
        values = msgspec.structs.asdict(checked_search(search))
        for name, default in _TRANSLATION_ONLY.items():
            if values[name] != default:
                raise TransduceError(
                    f"`{name}` is for models that translate, but here it is {values[name]} for a language model: leave "
                    "it out."
                )
        return search if search.max_length is not None else msgspec.structs.replace(search, max_length=DEFAULT_LENGTH)

    def _begin(
        self,
        prompts: Sequence["_Prompt"],
        search: SearchSettings,
        *,
        one_line: bool,
        reserved: ReservedCapacity | None = None,
    ) -> Search:
        """Return the search that continues prompts, before its first step: a compiled one if kernels support it.

        With `one_line`, the end of a line ends a text. `reserved` is the capacity for prompts that join the search
        later; None: no later prompts.

        Raises:
            TransduceError: a minimum length is set, but only the maximum length ends a text. Or the model is in
                training mode.
        """
        check_evaluation_mode(self.model)
        vocabulary, ids = self.vocabulary, [prompt.ids for prompt in prompts]
        may_end = one_line or vocabulary.keeps_line_feeds
        if search.min_length and not may_end:
            raise TransduceError(
                f"`min_length` keeps a text from ending, but is {search.min_length} where only `max_length` ends it: "
                "leave it out, or set `one_line`."
            )
        with torch.inference_mode():
            line_feed = vocabulary.id("<0x0A>")  # or the unknown token's id: then lines end with the end symbol
            never = sorted({vocabulary.pad_id, vocabulary.unk_id, line_feed} - {vocabulary.eos_id})
            never = [] if vocabulary.keeps_line_feeds else never  # imported models may generate every token
            is_sampled = search.sampling is not None
            scorer = DecoderOnlyScorer(
                self.model, ids, max_context=self.context, excluded_ids=never, row_per_text=is_sampled
            )
        end = vocabulary.eos_id if may_end else _ENDLESS
        count, max_lengths = len(prompts), [prompt.max_length for prompt in prompts]
        limits = SequenceLimits(ids[0][-1], end, torch.tensor(max_lengths, device=self.device))
        rules = build_rules(search, [[]] * count, vocabulary, ids)
        if vocabulary.ends[1:]:
            ends = ExtraEndTokens(end, vocabulary.ends[1:], summed=is_sampled)
            rules.insert(int(search.penalizes_repetition), ends)  # penalties come first
        beam, draw = BeamOptions(beam_size=search.beam_size, n_best=search.n_best, alpha=search.length_penalty), None
        if search.sampling is not None:
            # The same random numbers for each prompt, so that a continuation does not depend on the other prompts.
            seeds = [prompt.seed for prompt in prompts]
            draw = Draw(search.sampling, [0] * count, samples=search.n_best, seeds=seeds)
            beam = BeamOptions(beam_size=search.n_best, n_best=search.n_best, alpha=0.0)
        with torch.inference_mode():
            return make_search(scorer, limits, beam, rules=rules, draw=draw, reserved=reserved)

    def _observer(self, *, one_line: bool) -> "_FirstLine | None":
        """Return an observer that ends the search after the first line; None if the search needs none.

        An observer is needed with `one_line` if line feeds are ordinary tokens, as in imported models.
        """
        return _FirstLine(self.vocabulary) if one_line and self.vocabulary.keeps_line_feeds else None

    def _generation(
        self, prompt: "_Prompt", hypotheses: Sequence[Hypothesis], search: SearchSettings, *, one_line: bool
    ) -> Generation:
        continuations = (self._continuation(prompt.ids, each, search, one_line=one_line) for each in hypotheses)
        return Generation(str(prompt.text), tuple(continuations))

    def _continuation(
        self, prompt_ids: Sequence[int], hypothesis: Hypothesis, search: SearchSettings, *, one_line: bool
    ) -> Continuation:
        ids, values = list(hypothesis.ids), hypothesis.token_log_probabilities
        score, ended = hypothesis.score, hypothesis.ended
        text = self._new_text(prompt_ids, ids)
        if one_line and (count := _first_line(ids, self.vocabulary)) is not None:
            ids, values, ended = ids[:count], values[:count], True
            score = sum(values) / length_penalty(count, search.length_penalty)
            text = text.split("\n")[0]
        return Continuation(text, tuple(self.vocabulary.tokens(ids)), values, score, ended)

    def _new_text(self, prompt_ids: Sequence[int], ids: Sequence[int]) -> str:
        """Return the text that new token ids add to the prompt's token ids.

        The ids of the prompt's last line and the new ids are decoded together, so that a space between them is right.
        """
        end = self.vocabulary.eos_id
        prompt = list(prompt_ids)
        last_line = prompt[len(prompt) - prompt[::-1].index(end) :] if end in prompt else prompt
        prompt_text = decode_with_line_feeds(last_line, self.vocabulary)
        return decode_with_line_feeds([*last_line, *ids], self.vocabulary)[len(prompt_text) :]


# --- prompts that join while others are continued ---


_MIN_TOKENS = 256  # every batch has capacity for this many new tokens of a text
_MIN_POSITIONS = 1024  # every batch has capacity for this many tokens of a prompt and its continuation


class ContinuousGeneration:
    """A group of prompts that a language model continues together; other prompts may join after any step.

    Every prompt gets the continuations that `Generator.generate` would give it alone. Prompts with the same settings
    share a batch if compiled kernels continue them; otherwise several batches take their steps in turn.
    """

    def __init__(self, generator: Generator) -> None:
        """Create a group without prompts for a language model; `join` adds prompts."""
        self._generator = generator
        self._batches: list[_GrowingBatch] = []
        self._prompts: dict[int, _Prompt] = {}  # that are being continued, by number
        self._finished: dict[int, Generation] = {}
        self._count = 0  # of all prompts so far

    @property
    def free_texts(self) -> int:
        """The number of further texts that can be continued at once; each hypothesis or sample of a prompt is one."""
        return max(0, _MAX_TEXTS - sum(prompt.search.num_hypotheses for prompt in self._prompts.values()))

    def join(self, prompts: Sequence[str], settings: Sequence[SearchSettings]) -> list[int]:
        """Add prompts, generate their first tokens, and return a list of numbers by which later results refer to them.

        Args:
            prompts: the starts of the texts, of any lengths.
            settings: the search settings of each prompt.

        Raises:
            TransduceError: a setting is not supported by language models.
        """
        generator, first = self._generator, self._count
        new = [
            generator._prompt(text, generator._settings(search)) for text, search in zip(prompts, settings, strict=True)
        ]
        self._count += len(new)
        alike: dict[SearchSettings, list[int]] = {}
        for index, prompt in enumerate(new):
            alike.setdefault(batch_settings(prompt.search), []).append(index)
        for search, indices in alike.items():
            for part in generator._batches([new[index] for index in indices], search):
                self._start({first + indices[index]: new[indices[index]] for index in part}, search)
        return list(range(first, self._count))

    def step(self) -> None:
        """Generate the next token of every text that is being continued, and store the prompts that finish."""
        for batch in list(self._batches):
            with torch.inference_mode(), explain_search_out_of_memory(batch.settings):
                batch.search.advance()
                self._collect(batch)

    def texts(self) -> dict[int, list[list[int]]]:
        """Return a dict from the numbers of unfinished prompts to the new token ids of each hypothesis (or sample)."""
        with torch.inference_mode():
            return {number: tokens for batch in self._batches for number, tokens in batch.texts().items()}

    def abandon(self, numbers: Collection[int]) -> None:
        """End the continuations of the prompts with these numbers; their texts so far become results.

        Numbers of finished prompts are ignored.
        """
        for batch in list(self._batches):
            if indices := [index for index, number in batch.numbers.items() if number in numbers]:
                with torch.inference_mode():
                    batch.search.abandon(indices)
                self._collect(batch)

    def take_finished(self) -> dict[int, Generation]:
        """Return a dict from prompt numbers to `Generation`s of the prompts that finished since the last call."""
        found, self._finished = self._finished, {}
        return found

    def _start(self, prompts: "dict[int, _Prompt]", settings: SearchSettings) -> None:
        """Generate the first tokens of new prompts, and put the unfinished prompts into a batch.

        They join a batch with equal settings that has space for them. Otherwise they form a batch of their own. It has
        capacity for later prompts, unless its prompts may fill the model's context.
        """
        generator, chosen = self._generator, list(prompts.values())
        tokens = max(each.max_length for each in chosen)
        needed = ReservedCapacity(len(chosen), tokens, max(len(each.ids) for each in chosen) + tokens)
        joined = next((each for each in self._batches if each.settings == settings and each.has_space(needed)), None)
        reserved = None
        if joined is None and needed.positions <= generator.context:
            positions = min(generator.context, max(_MIN_POSITIONS, 2 * needed.positions))
            tokens = min(positions, max(_MIN_TOKENS, 2 * tokens))
            reserved = ReservedCapacity(_texts_at_once(settings), tokens, positions)
        with torch.inference_mode(), explain_search_out_of_memory(settings):
            search = generator._begin(chosen, chosen[0].search, one_line=False, reserved=reserved)
            batch = _GrowingBatch(search, settings, list(prompts))
            search.advance()
            self._prompts |= prompts
            self._collect(batch)
            if batch.numbers and (joined is None or not joined.absorb(batch)):
                self._batches.append(batch)

    def _collect(self, batch: "_GrowingBatch") -> None:
        """Store the continuations of a batch's finished prompts, and drop the batch when it has no prompts left."""
        for number, hypotheses in batch.take_finished().items():
            prompt = self._prompts.pop(number)
            self._finished[number] = self._generator._generation(prompt, hypotheses, prompt.search, one_line=False)
        if not batch.numbers and batch in self._batches:
            self._batches.remove(batch)


class _GrowingBatch:
    """A batch of prompts that one search continues, and to which the prompts of another batch can be added."""

    def __init__(self, search: Search, settings: SearchSettings, numbers: Sequence[int]) -> None:
        self.search = search
        self.settings = settings
        self.numbers = dict(enumerate(numbers))
        """A dict from the index of each unfinished prompt in the search to the number that identifies the prompt to the
        caller.
        """

    def has_space(self, needed: ReservedCapacity) -> bool:
        """Return whether the batch has capacity for further prompts: free indices, and buffers for the prompts' tokens.

        `needed` is the capacity that the prompts need. The result is False if the search is not compiled, or has
        reserved no capacity.
        """
        capacity = self.search.reserved if isinstance(self.search, CompiledSearch) else None
        return (
            capacity is not None
            and needed.sentences <= capacity.sentences - len(self.numbers)
            and needed.tokens <= capacity.tokens
            and needed.positions <= capacity.positions
        )

    def absorb(self, other: "_GrowingBatch") -> bool:
        """Move the prompts of another batch, which has taken its first step, into this batch; return whether it worked.

        The result is False if either search is not compiled, or this batch cannot take the prompts; both batches are
        then unchanged.
        """
        mine, its = self.search, other.search
        if not isinstance(mine, CompiledSearch) or mine.reserved is None or not isinstance(its, CompiledSearch):
            return False
        assert isinstance(mine.search, JoinableSearch)
        if not mine.search.can_absorb(its.search):
            return False
        free = (index for index in range(mine.reserved.sentences) if index not in self.numbers)
        taken = [(next(free), own) for own in its.sentence_indices.tolist()]
        mine.search.absorb(its.search, [index for index, _ in taken])
        self.numbers |= {index: other.numbers[own] for index, own in taken}
        return True

    def texts(self) -> dict[int, list[list[int]]]:
        """Return a dict from the numbers of unfinished prompts to the new token ids of each hypothesis (or sample)."""
        tokens, indices = self.search.hypotheses(), self.search.sentence_indices.tolist()
        lengths = self.search.own_lengths() if isinstance(self.search, CompiledSearch) else [None] * len(indices)
        return {
            self.numbers[index]: own[:, :length].tolist()
            for index, own, length in zip(indices, tokens, lengths, strict=True)
        }

    def take_finished(self) -> dict[int, list[Hypothesis]]:
        """Return a dict from prompt numbers to hypotheses of the finished prompts, which leave the batch."""
        search, active = self.search, set(self.search.sentence_indices.tolist())
        take = search.take if isinstance(search, CompiledSearch) else search.results().__getitem__
        return {self.numbers.pop(index): take(index) for index in list(self.numbers) if index not in active}


class _Prompt:
    """A prompt to continue: its token ids, and settings that may differ between the prompts of a batch."""

    def __init__(self, ids: list[int], search: SearchSettings, text: str) -> None:
        assert search.max_length is not None
        self.text = text
        self.search = search
        self.ids = ids
        self.max_length = search.max_length
        self.seed = 0 if search.sampling is None else search.sampling.seed

    @property
    def max_positions(self) -> int:
        """The maximum number of tokens of the prompt and a continuation together."""
        return len(self.ids) + self.max_length


def _texts_at_once(search: SearchSettings) -> int:
    """Return the maximum number of prompts to continue at once, so that their hypotheses or samples are at most 64."""
    return max(1, _MAX_TEXTS // search.num_hypotheses)


def batch_settings(search: SearchSettings) -> SearchSettings:
    """Return search settings without maximum length and seed, to find prompts that can share a batch."""
    sampling = None if search.sampling is None else msgspec.structs.replace(search.sampling, seed=0)
    return msgspec.structs.replace(search, max_length=None, sampling=sampling)


class _FirstLine:
    """An `Observer` of a search that ends each prompt once all its hypotheses have a line feed or have ended."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary

    def after_step(self, sentence_indices: Tensor, tokens: Tensor) -> Collection[int]:
        """Return the indices of the prompts whose first line is complete in all hypotheses after this step."""
        return [
            index
            for index, texts in zip(sentence_indices.tolist(), tokens.tolist(), strict=True)
            if all(map(self._is_done, texts))
        ]

    def _is_done(self, ids: Sequence[int]) -> bool:
        return self._vocabulary.eos_id in ids or _first_line(ids, self._vocabulary) is not None


def _first_line(ids: Sequence[int], vocabulary: Vocabulary) -> int | None:
    """Return the number of tokens up to and including the first with a line feed.

    The result is None without such a token. It is also None if the vocabulary has no line feeds, because the model then
    ends lines with the end symbol.
    """
    if not vocabulary.keeps_line_feeds:
        return None
    return next((count for count, id in enumerate(ids, 1) if b"\n" in vocabulary.surface(id)), None)


def load_generator(folder: str | Path, **options: Unpack[LoadOptions]) -> Generator:
    """Load a language model as a `Generator` of text: trained with `--task language-model`, or a Hugging Face folder.

    The options are those of `load`.

    Raises:
        TransduceError: the folder holds no language model, or an option is invalid.
    """
    folder = as_path(folder, "A model's folder")
    content = load_model_at(read_decoder_folder, folder, **options)
    return Generator(
        content.model,
        content.tokenizer,
        context=read_max_context(folder, content.model.config),
        language=content.manifest.target_language,
    )
