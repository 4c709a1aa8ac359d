"""Run a server whose model waits at a gate, so that its behavior under load can be counted exactly.

    python benchmarks/serving_gated.py --set max_running=2 --set max_waiting=8

The first line of the output is the server's address. Then it reads commands, one per line: `open` opens the gate,
`close` closes it, and `steps` prints the number of decoding steps so far.
"""

import argparse
import sys
import threading
from collections import deque
from collections.abc import Sequence

import msgspec
import torch

from transduce.errors import TransduceError
from transduce.inference.batching import Documents
from transduce.inference.translation import Alternative, Translation
from transduce.search.scorer import Observer
from transduce.search.settings import SearchSettings
from transduce.serving.app import Application
from transduce.serving.server import Server, address_of, open_socket
from transduce.serving.service import ModelCatalog, Service
from transduce.serving.settings import ServingSettings
from transduce.text.glossary import Glossary
from transduce.text.text_settings import TextSettings
from transduce.text.word_spans import Span

_GATE_SECONDS = 60.0  # a test that forgets to open the gate fails instead of hanging


class GatedModel:
    """Implements `serving.jobs.Model` by upper-casing text, in several steps that each wait at a gate."""

    def __init__(
        self,
        *,
        steps: int = 4,
        is_open: bool = True,
        languages: tuple[str, str] = ("de", "en"),
        beam_size: int = 1,
        most_batches: int | None = None,
        leak_bytes: int = 0,
        glossary: Glossary | None = None,
    ) -> None:
        """Create a model; `leak_bytes` are leaked on every sentence, for tests that must detect a leak."""
        self.max_source_tokens = 256
        self.source_language, self.target_language = languages
        self.search = SearchSettings(beam_size=beam_size)
        self.glossary = glossary
        self.context_before = 0
        self.steps = steps
        self.steps_run = 0
        """Number of decoding steps of all batches."""
        self.batches: deque[list[str]] = deque(maxlen=most_batches)
        """The decoded batches, in order."""
        self._leak_bytes = leak_bytes
        self._leaked: list[bytes] = []
        self._changed = threading.Condition()
        self._is_open = is_open
        self._permits = 0

    def open(self) -> None:
        """Open the gate."""
        with self._changed:
            self._is_open = True
            self._changed.notify_all()

    def close(self) -> None:
        """Close the gate."""
        with self._changed:
            self._is_open, self._permits = False, 0

    def let_through(self, steps: int) -> None:
        """Let this number of steps pass the closed gate."""
        with self._changed:
            self._permits += steps
            self._changed.notify_all()

    def _pass_gate(self) -> None:
        with self._changed:
            if not self._changed.wait_for(lambda: self._is_open or self._permits, timeout=_GATE_SECONDS):
                raise TimeoutError("nobody opened the gate")
            self._permits -= 0 if self._is_open else 1

    def count_tokens(self, sentences: Sequence[str]) -> list[int]:
        """Return one token per word, plus the end symbol."""
        return [len(sentence.split()) + 1 for sentence in sentences]

    def translate(
        self,
        sentences: list[str],
        search: SearchSettings,
        indices: Sequence[int],  # noqa: ARG002
        observer: Observer,
        glossary: Glossary | None,
        text_settings: TextSettings,  # noqa: ARG002
        *,
        protected: Sequence[Sequence[Span]] | None = None,  # noqa: ARG002
        documents: Documents | None = None,  # noqa: ARG002
    ) -> list[Translation]:
        """Return sentences in upper case with glossary terms; a sentence with the word `poison` raises an error."""
        self.batches.append(list(sentences))
        self._leaked.extend(bytes(self._leak_bytes) for _ in sentences if self._leak_bytes)
        if any("poison" in sentence for sentence in sentences):
            raise RuntimeError("this model cannot bear poison")
        rows = list(range(len(sentences)))
        for step in range(1, self.steps + 1):
            self._pass_gate()
            self.steps_run += 1
            if step == self.steps or not rows:
                break
            pieces = torch.arange(step).expand(len(rows), 1, step)
            given_up = observer.after_step(torch.tensor(rows), pieces)
            rows = [row for row in rows if row not in given_up]
            if not rows:
                break
        return [Translation(sentence, _alternatives(sentence, search.n_best, glossary)) for sentence in sentences]

    def is_plain_sentence(self, text: str, text_settings: TextSettings) -> bool:  # noqa: ARG002
        """Return True, because every text is one sentence for this model."""
        return True

    def check(self, glossary: Glossary, search: SearchSettings) -> None:  # noqa: ARG002
        """Reject a glossary with a character that the model cannot write (☃)."""
        if any("☃" in target for term in glossary.terms for target in term.targets):
            raise TransduceError("this model cannot write ☃")

    def align_spans(
        self,
        translations: Sequence[Translation],
        spans: Sequence[Sequence[Span]],
        glossary: Glossary | None,  # noqa: ARG002
    ) -> list[list[Span]]:
        """Return the spans unchanged, because upper case keeps lengths."""
        assert all(each.text.startswith(each.source.upper()) for each in translations)
        return [list(sentence_spans) for sentence_spans in spans]

    def unknown_characters(self, sentence: str) -> str:
        """Return the characters of a sentence that the model cannot read (☃)."""
        return "☃" * sentence.count("☃")

    def encode_target(self, text: str) -> list[int]:
        """Return one token per word."""
        return list(range(len(text.split())))

    def decode_start(self, ids: Sequence[int], source: str) -> str:  # noqa: ARG002
        """Return one word per step."""
        return " ".join(f"word{id}" for id in ids)


def _alternatives(sentence: str, count: int, glossary: Glossary | None) -> tuple[Alternative, ...]:
    words = [sentence.upper(), *(term.targets[0] for term in (glossary.find(sentence) if glossary else ()))]
    best = " ".join(words)
    texts = [best if number == 0 else f"{best} ({number})" for number in range(count)]
    return tuple(Alternative(text, (), (), score=0.0, ended=True) for text in texts)


def main() -> int:
    """Serve until standard input ends."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="a serving setting")
    options.add_argument("--steps", type=int, default=4, help="steps of a translation")
    options.add_argument("--open", action="store_true", help="start with an open gate")
    options.add_argument("--leak-kilobytes", type=int, default=0, help="memory leaked on every sentence")
    args = options.parse_args()
    values = dict(entry.split("=", 1) for entry in args.set)
    settings = msgspec.convert(values | {"port": 0}, ServingSettings, strict=False)
    leak_bytes = 1024 * args.leak_kilobytes
    model = GatedModel(steps=args.steps, is_open=args.open, most_batches=10, leak_bytes=leak_bytes)
    opened = open_socket(settings.host, settings.port)
    address = address_of(opened)
    server = Server(Application(Service(ModelCatalog([model]), settings)), settings, lambda: print(address, flush=True))
    threading.Thread(target=_obey, args=(model, server), daemon=True).start()
    server.run(sockets=[opened])
    return 0


def _obey(model: GatedModel, server: Server) -> None:
    for line in sys.stdin:
        if line.strip() == "steps":
            print(model.steps_run, flush=True)
        elif line.strip() == "open":
            model.open()
        else:
            model.close()
    server.should_exit = True


if __name__ == "__main__":
    sys.exit(main())
