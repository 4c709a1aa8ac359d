"""Run a server built like LibreTranslate's: waitress with 4 threads around CTranslate2, one translation per request.

    python serving_peer.py MODEL --beam-size 4 --max-length 25

Runs in a separate environment without transduce. LibreTranslate downloads its language packages at start, so it cannot
run offline with other models. This server uses its components with the same weights, without its other work, which
favors the peer. MODEL is a folder of transduce, which CTranslate2's converter reads as a Hugging Face folder.
"""

import argparse
import json
import logging
import sys
import tempfile
from pathlib import Path

import ctranslate2
import sentencepiece
from ctranslate2.converters import TransformersConverter
from waitress.server import create_server

WAITRESS_THREADS = 4


class Application:
    """A WSGI application that answers POST /translate with JSON."""

    def __init__(self, model, *, threads, beam_size, max_length, compute_type):
        converted = str(Path(tempfile.mkdtemp()) / "model")
        TransformersConverter(model).convert(converted)
        self.translator = ctranslate2.Translator(converted, intra_threads=threads, compute_type=compute_type)
        self.vocabulary = sentencepiece.SentencePieceProcessor(model_file=str(Path(model) / "sentencepiece.model"))
        self.options = {"beam_size": beam_size, "max_decoding_length": max_length, "length_penalty": 0.6}

    def __call__(self, environment, start_response):
        message = json.loads(environment["wsgi.input"].read(int(environment["CONTENT_LENGTH"])))
        pieces = [*self.vocabulary.encode(message["q"], out_type=str), "</s>"]
        result = self.translator.translate_batch([pieces], **self.options)[0]
        text = self.vocabulary.decode([piece for piece in result.hypotheses[0] if piece != "</s>"])
        content = json.dumps({"translatedText": text}).encode()
        start_response("200 OK", [("Content-Type", "application/json"), ("Content-Length", str(len(content)))])
        return [content]


def main():
    """Serve until terminated."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("model")
    options.add_argument("--threads", type=int, default=0)
    options.add_argument("--beam-size", type=int, default=4)
    options.add_argument("--max-length", type=int, default=25)
    options.add_argument("--compute-type", default="float32")
    args = options.parse_args()
    application = Application(
        args.model,
        threads=args.threads,
        beam_size=args.beam_size,
        max_length=args.max_length,
        compute_type=args.compute_type,
    )
    logging.getLogger("waitress.queue").setLevel(logging.ERROR)  # otherwise one line per request
    server = create_server(application, host="127.0.0.1", port=0, threads=WAITRESS_THREADS)
    print(f"http://127.0.0.1:{server.effective_port}", flush=True)
    server.run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
