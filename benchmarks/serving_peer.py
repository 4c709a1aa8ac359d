"""A server as LibreTranslate's is made: waitress with 4 threads around CTranslate2, one translation a request.

    python serving_peer.py MODEL --beam-size 4 --max-length 25

Runs in its own environment and imports nothing of ours. LibreTranslate itself downloads its language packages when it
starts, so it cannot be started offline with a model of one's own; this does what is underneath it with the same
weights, and none of what it does besides, which favours it. MODEL is one of our folders, which CTranslate2's own
converter takes as the Hugging Face folder that it is.
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
    """POST /translate in JSON, in WSGI."""

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
    """Serves until it is ended."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("model")
    options.add_argument("--threads", type=int, default=0)
    options.add_argument("--beam-size", type=int, default=4)
    options.add_argument("--max-length", type=int, default=25)
    options.add_argument("--compute-type", default="float32")
    said = options.parse_args()
    application = Application(
        said.model,
        threads=said.threads,
        beam_size=said.beam_size,
        max_length=said.max_length,
        compute_type=said.compute_type,
    )
    logging.getLogger("waitress.queue").setLevel(logging.ERROR)  # one line a request otherwise
    server = create_server(application, host="127.0.0.1", port=0, threads=WAITRESS_THREADS)
    print(f"http://127.0.0.1:{server.effective_port}", flush=True)
    server.run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
