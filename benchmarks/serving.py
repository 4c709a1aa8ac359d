"""Measure `transduce serve` under load, with disconnecting clients, hostile requests, and over time.

    python benchmarks/serving.py                     # everything: about an hour on two cores
    python benchmarks/serving.py --quick             # the same on less work
    python benchmarks/serving.py --only speed        # speed, burst, deadlines, aborts, hostile, fuzz or soak
    python benchmarks/serving.py --json rows.json    # the figures as a list of rows; `-` for standard output

Speed: 64 clients that send one sentence each at a time. Peers are `translate` on the same sentences in one call, and a
server built like LibreTranslate's (described in serving_peer.py). The clients' own computing time is subtracted from
both servers' times. The model has random weights unless --model names one; --max-length limits all outputs. Latency:
one client that sends sentences one after another, against translating them offline one at a time.

Burst, deadlines: a model that waits at a gate, with capacity for 2 + 8 requests. Aborts: clients that disconnect before
the answer. Hostile, fuzz: described in serving_hostile.py and serving_fuzz.py. Soak: many translations, some aborted,
some invalid; a control server that leaks on purpose must be detected. Memory is read from Linux's /proc. The rows state
the bars; the exit status is 1 if one is missed.
"""

import asyncio
import json
import random
import subprocess
import sys
import tempfile
import time
import urllib.request
from argparse import Namespace
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import serving_fuzz
import serving_hostile
from environments import peer_python, pinned
from report import REPOSITORY, Row, machine, parser, report
from serving_burst import send_burst
from serving_load import Answer, Client, Process, ask_all, gated, running, transduce_serve
from serving_models import sentences, write_random_model

CLIENTS = 64
PEER = ("ctranslate2==4.8.5", "transformers==5.23.0", "waitress>=3", "sentencepiece>=0.2.1")


def bar(name: str, value: float, unit: str, *, at_most: float | None = None, at_least: float | None = None) -> Row:
    """Return a row whose bar is an upper or a lower bound of the value."""
    if at_most is not None:
        return Row(name, value, unit, bar=f"at most {at_most:g}", holds=value <= at_most)
    assert at_least is not None
    return Row(name, value, unit, bar=f"at least {at_least:g}", holds=value >= at_least)


def percentile(values: Sequence[float], share: float) -> float:
    """Return the value that the given share of the values does not exceed."""
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


# --- speed ---


def speed(args: Namespace, folder: Path) -> list[Row]:
    """Measure throughput and latency."""
    model = Path(args.model) if args.model else write_random_model(folder / "large", large=True)
    lines = sentences(256 if args.quick else 1000)
    singles = 20 if args.quick else 100
    search = ["--beam-size", "4", "--max-length", str(args.max_length)]
    search += ["--threads", str(args.threads)] if args.threads else []
    options = [*search, "--precision", args.precision]
    offline = _offline(model, lines, singles, options)
    patient = [
        "--queue-seconds",
        "3600",
        "--deadline-seconds",
        "3600",
    ]  # no request may be refused while speed is measured
    workers = ["--workers", str(args.workers)] if args.workers else []
    with transduce_serve(model, *options, *patient, *workers) as server:
        served, answers = _throughput(server.url, lines)
        alone = asyncio.run(ask_all(server.url, lines[:singles], clients=1))
    translated = [json.loads(answer.body).get("translatedText") for answer in answers]
    different = sum(ours != theirs for ours, theirs in zip(translated, offline["translations"], strict=True))
    direct = len(lines) / offline["seconds"]
    p99, p99_offline = (percentile(found, 0.99) for found in ([a.seconds for a in alone], offline["single_seconds"]))
    rows = [
        Row(
            f"{CLIENTS} clients, one sentence each",
            served,
            "sentences/s",
            "translate, all in one go",
            direct,
            served / direct,
            "at least 0.8 times",
            served >= 0.8 * direct,
        ),
        Row(
            "one client, 99th percentile",
            1000 * p99,
            "ms",
            "translate, one at a time",
            1000 * p99_offline,
            p99 / p99_offline,
            "at most 1.5 times",
            p99 <= 1.5 * p99_offline,
        ),
        _equality_row(different, args.precision),
    ]
    return rows if args.without_peer else [*rows, _peer(model, lines, search, served)]


def _equality_row(different: int, precision: str) -> Row:
    name = "answers that are not the offline translation"
    return bar(name, different, "of all", at_most=0) if precision == "fp32" else Row(name, different, "of all")


def _offline(model: Path, lines: Sequence[str], singles: int, options: Sequence[str]) -> dict[str, Any]:
    with tempfile.NamedTemporaryFile("w", encoding="utf-8", suffix=".zh") as file:
        file.write("".join(f"{line}\n" for line in lines))
        file.flush()
        script = REPOSITORY / "benchmarks" / "serving_offline.py"
        command = [sys.executable, script, model, file.name, "--singles", str(singles), *options]
        done = subprocess.run([str(part) for part in command], check=True, stdout=subprocess.PIPE)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def _throughput(url: str, lines: Sequence[str]) -> tuple[float, list[Answer]]:
    """Return the sentences per second, without the clients' computing time, and all answers."""
    asyncio.run(ask_all(url, lines[:8], clients=8))
    began_at, computed = time.monotonic(), time.process_time()
    answers = asyncio.run(ask_all(url, lines, clients=CLIENTS))
    seconds = time.monotonic() - began_at - (time.process_time() - computed)
    failed = [answer.status for answer in answers if answer.status != 200]
    if failed:
        raise SystemExit(f"{len(failed)} of {len(answers)} requests failed, the first with status {failed[0]}.")
    return len(lines) / seconds, answers


def _peer(model: Path, lines: Sequence[str], search: Sequence[str], served: float) -> Row:
    python = peer_python("serving", [*PEER, pinned("numpy")])
    script = REPOSITORY / "benchmarks" / "serving_peer.py"
    with running([python, script, model, *search], announces_on="stdout") as server:
        theirs, _ = _throughput(server.url, lines)
    peer = "waitress, 4 threads, around CTranslate2 float32"
    ratio = served / theirs
    return Row(f"{CLIENTS} clients", served, "sentences/s", peer, theirs, ratio, "at least 1.5 times", ratio >= 1.5)


# --- limits ---


def burst(args: Namespace, folder: Path) -> list[Row]:  # noqa: ARG001
    """Send 200 requests at once to a server with capacity for 10, on open and on new connections."""
    with gated("--set", "max_running=2", "--set", "max_waiting=8") as server:
        _burst(server, 20, are_connected=True)
        before = server.memory_megabytes()
        server.forget_peak()
        computed = server.processor_seconds()
        answers = _burst(server, 200, are_connected=True)
        computed = server.processor_seconds() - computed
        grown = server.memory_megabytes("VmHWM") - before
        time.sleep(1.5)  # until the server has closed the refused connections
        newcomers = _burst(server, 200, are_connected=False)
    accepted = [sum(answer.status == 200 for answer in each) for each in (answers, newcomers)]
    refused = [[answer for answer in each if answer.status != 200] for each in (answers, newcomers)]
    right = min(sum(answer.is_refusal_as_it_should_be for answer in each) for each in refused)
    p99, p99_new = (1000 * percentile([answer.seconds for answer in each], 0.99) for each in refused)
    return [
        Row("burst of 200: accepted", max(accepted), "requests", bar="exactly 10", holds=accepted == [10, 10]),
        bar("burst of 200: refused as it should be", right, "requests", at_least=190),
        bar("burst of 200: refusals, 99th percentile", p99, "ms", at_most=50),
        bar("burst of 200, connecting included: refusals, 99th percentile", p99_new, "ms", at_most=50),
        Row("burst of 200: the server computed, accepting and answering included", 1000 * computed, "ms"),
        bar("burst of 200: growth of memory", grown, "MB", at_most=30),
    ]


def _burst(server: Process, count: int, *, are_connected: bool) -> list[Answer]:
    """Send a burst of requests while the gate is closed, open the gate after all refusals, and return the answers."""
    server.say("close")
    time.sleep(0.1)
    return send_burst(server, count, accepted=10, are_connected=are_connected, let_through=lambda: server.say("open"))


def deadlines(args: Namespace, folder: Path) -> list[Row]:  # noqa: ARG001
    """Measure how late the refusals for exceeded deadlines arrive: of waiting, decoding, and reading a body."""
    lateness = []
    for seconds in (0.5, 1.0):
        settings = [f"{name}={seconds}" for name in ("queue_seconds", "deadline_seconds", "read_seconds")]
        arguments = [part for entry in ["max_running=1", *settings] for part in ("--set", entry)]
        with gated(*arguments) as server:
            found = asyncio.run(_wait_for_refusals(server))
        lateness += [answer_seconds - seconds for status, answer_seconds in found if status in (408, 503, 504)]
    return [
        Row("deadlines that were kept", len(lateness), "of 12", bar="all", holds=len(lateness) == 12),
        bar("deadlines: latest", 1000 * max(lateness, default=1e9), "ms", at_most=100),
        bar("deadlines: earliest", 1000 * min(lateness, default=-1e9), "ms", at_least=-5),
    ]


async def _wait_for_refusals(server: Process) -> list[tuple[int, float]]:
    """Send four requests, one of which is decoded, and two whose body never arrives; return each status and time."""
    requests = [Client(server.url).translate("ein Satz", "de", "en") for _ in range(4)]
    answers = await asyncio.gather(*requests, _half_a_body(server.url), _half_a_body(server.url))
    return [(answer.status, answer.seconds) for answer in answers]


async def _half_a_body(url: str) -> Answer:
    host, port = url.removeprefix("http://").split(":")
    started_at = time.monotonic()
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(b"POST /translate HTTP/1.1\r\nHost: a\r\nContent-Length: 50\r\n\r\n{")
    status = int((await reader.readline()).split()[1])
    seconds = time.monotonic() - started_at
    writer.close()
    return Answer(status, seconds, b"", {})


def aborts(args: Namespace, folder: Path) -> list[Row]:
    """Disconnect 100 clients with long texts before their answers, then measure one client that waits."""
    model = write_random_model(folder / "large", large=True)
    threads = ["--threads", str(args.threads)] if args.threads else []
    with transduce_serve(model, "--max-length", "200", "--workers", "1", *threads) as server:
        idle = min(asyncio.run(_probe(server.url)) for _ in range(5))
        count = 20 if args.quick else 100
        steps = asyncio.run(_hang_up(server.url, count))
        probe = asyncio.run(_probe(server.url))
    name = f"after {count} aborted requests"
    return [
        bar(f"{name}: steps of decoding for nobody", steps, "steps", at_most=2),
        bar(f"{name}: one request, against an idle server", probe / idle, "times", at_most=2),
    ]


async def _probe(url: str) -> float:
    client = Client(url)
    answer = await client.translate("你好。", "zh", "en")
    client.close()
    return answer.seconds


async def _hang_up(url: str, count: int) -> int:
    """Return the number of decoding steps after all clients have disconnected."""
    text = "\n".join(sentences(20))
    clients = [Client(url) for _ in range(count)]
    requests = [asyncio.ensure_future(client.translate(text, "zh", "en")) for client in clients]
    await asyncio.sleep(0.5)
    before = _steps(url)
    for client in clients:
        client.close()
    await asyncio.gather(*requests)
    await asyncio.sleep(2.0)
    return _steps(url) - before


def _steps(url: str) -> int:
    with urllib.request.urlopen(f"{url}/metrics") as answer:
        lines = answer.read().decode().split("\n")
    return next(int(float(line.split()[1])) for line in lines if line.startswith("transduce_decoding_steps_total "))


def hostile(args: Namespace, folder: Path) -> list[Row]:  # noqa: ARG001
    """Send 68 hostile requests, and more to the addresses of the web page."""
    model = write_random_model(folder / "small", large=False)
    with gated("--open", "--set", "read_seconds=5") as server:
        rows = _hostile(server, ("de", "en"), serving_hostile.hostile_requests(), "hostile requests")
    with transduce_serve(model, "--max-length", "8", "--threads", "1", "--read-seconds", "5") as server:
        studies = serving_hostile.hostile_studies(("zh", "en"))
        return rows + _hostile(server, ("zh", "en"), studies, "hostile requests to look into a translation")


def _hostile(
    server: Process, languages: tuple[str, str], requests: Sequence[serving_hostile.Hostile], name: str
) -> list[Row]:
    asyncio.run(ask_all(server.url, ["ein Satz"] * 50, clients=5, languages=languages))
    before = server.memory_megabytes()
    server.forget_peak()
    verdicts = [serving_hostile.judge(server.url, request) for request in requests]
    grown = server.memory_megabytes("VmHWM") - before
    healthy = asyncio.run(ask_all(server.url, ["ein Satz"], clients=1, languages=languages))
    for verdict in verdicts:
        if not verdict.is_right:
            print(verdict, file=sys.stderr)
    right = sum(verdict.is_right for verdict in verdicts)
    return [
        bar(f"{name} that were refused in a sentence", right, f"of {len(requests)}", at_least=len(requests)),
        bar(f"{name}: peak growth of memory", grown, "MB", at_most=20),
        bar(f"{name}: translations after them", sum(a.status == 200 for a in healthy), "of 1", at_least=1),
    ]


def fuzz(args: Namespace, folder: Path) -> list[Row]:
    """Send requests generated from the server's OpenAPI document, including those of the web page, and damaged ones."""
    cases, mutations = (500, 200) if args.quick else (5000, 2000)
    model = write_random_model(folder / "small", large=False)
    options = ["--beam-size", "2", "--max-length", "8", "--threads", "1", "--read-seconds", "5"]
    with transduce_serve(model, *options) as server:
        statuses, findings = serving_fuzz.fuzz(server.url, cases)
        _, damaged = serving_fuzz.mutate(server.url, mutations)
    for finding in [*findings, *damaged][:10]:
        print(finding, file=sys.stderr)
    return [
        bar(f"{cases:,} generated requests: errors and wrong answers", len(findings), "requests", at_most=0),
        Row("generated requests that were granted", statuses[200], f"of {cases:,}"),
        bar(f"{mutations:,} damaged requests: errors and hangs", len(damaged), "requests", at_most=0),
    ]


# --- soak ---


def soak(args: Namespace, folder: Path) -> list[Row]:
    """Measure memory, descriptors and threads over many requests, and check that a leak is detected."""
    count = 1000 if args.quick else 20_000
    model = write_random_model(folder / "small", large=False)
    options = ["--beam-size", "1", "--max-length", "12", "--threads", "1", "--precision", "fp32"]
    with transduce_serve(model, *options) as server:
        grown, files, threads = _grow(server, count, ("zh", "en"))
    with gated("--open", "--leak-kilobytes", "2") as leaking:
        leaked, _, _ = _grow(leaking, count, ("de", "en"))
    found = leaked > 10.0 * count / 20_000
    return [
        bar(f"{count:,} translations: growth of memory", grown, "MB", at_most=10),
        bar(f"{count:,} translations: more open files", files, "files", at_most=0),
        bar(f"{count:,} translations: more threads", threads, "threads", at_most=0),
        Row("the same of a server that leaks 2 kB a sentence", leaked, "MB", bar="found to grow", holds=found),
    ]


def _grow(server: Process, count: int, languages: tuple[str, str]) -> tuple[float, int, int]:
    """Return the growth in memory, files and threads after a warm-up of a tenth of the requests (at least 500)."""
    asyncio.run(_mixed_requests(server.url, max(500, count // 10), languages, start=0))
    before = server.memory_megabytes(), server.open_files(), server.threads()
    asyncio.run(_mixed_requests(server.url, count, languages, start=1))
    time.sleep(1.0)
    return (
        server.memory_megabytes() - before[0],
        server.open_files() - before[1],
        server.threads() - before[2],
    )


async def _mixed_requests(url: str, count: int, languages: tuple[str, str], *, start: int) -> None:
    """Send requests of various lengths from 8 clients; one in twenty is aborted, one in twenty has an unknown
    language.
    """
    randomness = random.Random(start)
    lines = sentences(1000)
    numbers = iter(range(count))

    async def work() -> None:
        client = Client(url)
        for _ in numbers:
            text = " ".join(randomness.choices(lines, k=randomness.randint(1, 3)))
            kind = randomness.random()
            source = "xx" if kind < 0.05 else languages[0]
            await client.translate(text, source, languages[1], hang_up_after=0.005 if kind > 0.95 else None)
        client.close()

    await asyncio.gather(*(work() for _ in range(8)))
    await asyncio.sleep(0.5)


PARTS: dict[str, Callable[[Namespace, Path], list[Row]]] = {
    "speed": speed,
    "burst": burst,
    "deadlines": deadlines,
    "aborts": aborts,
    "hostile": hostile,
    "fuzz": fuzz,
    "soak": soak,
}


def main() -> int:
    """Run the benchmark, report its rows, and return 1 if a bar is missed."""
    options = parser(__doc__)
    options.add_argument("--only", choices=PARTS, action="append", help="run only this part; may be repeated")
    options.add_argument("--model", metavar="FOLDER", help="the model for speed (default: random weights of 6+6 × 512)")
    options.add_argument(
        "--max-length", type=int, default=25, metavar="N", help="maximum number of tokens of a translation"
    )
    options.add_argument("--threads", type=int, metavar="N", help="threads (default: all cores)")
    options.add_argument("--workers", type=int, metavar="N", help="workers of the server (default: its choice)")
    options.add_argument("--precision", default="fp32", choices=("auto", "fp32", "bf16"))
    options.add_argument("--without-peer", action="store_true", help="do not compare with another toolkit")
    args = options.parse_args()
    print(machine(), file=sys.stderr, flush=True)
    with tempfile.TemporaryDirectory() as folder:
        rows = [row for name in args.only or PARTS for row in PARTS[name](args, Path(folder))]
    return report(rows, args.json)


if __name__ == "__main__":
    sys.exit(main())
