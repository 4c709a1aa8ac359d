"""Test a run's output: each step once in metrics.jsonl, a bar on a terminal, lines elsewhere."""

import io
import json
import math
from pathlib import Path

import msgspec
import pytest
from rich.console import Console

from transduce.training.display import ProgressDisplay, format_duration
from transduce.training.events import EventLog, TrainEvent, ValidationEvent


def train_event(step: int) -> TrainEvent:
    return TrainEvent(
        step=step,
        epoch=step / 10,
        loss=1.25,
        perplexity=3.5,
        learning_rate=0.001,
        gradient_norm=0.5,
        tokens_per_second=1234.5,
        elapsed_seconds=step * 2.0,
        skipped=0,
    )


def validation_event(step: int) -> ValidationEvent:
    samples = [("我爱你", "I love you", "I [bold]love[/bold] you")]
    return ValidationEvent(step=step, loss=0.5, perplexity=math.e, bleu=12.34, chrf=45.67, samples=samples)


def steps_of(folder: Path) -> list[tuple[str, int]]:
    lines = (folder / "metrics.jsonl").read_text("utf-8").split("\n")
    assert lines.pop() == ""
    return [(event["event"], event["step"]) for event in map(json.loads, lines)]


def write_run(folder: Path, *, resume_at: int, last: int) -> None:
    log = EventLog(folder, resume_at=resume_at)
    for step in range(resume_at + 1, last + 1):
        log.write(train_event(step))
        if step % 3 == 0:
            log.write(validation_event(step))
    log.close()


def test_each_event_is_one_json_object_per_line(tmp_path: Path) -> None:
    write_run(tmp_path, resume_at=0, last=3)
    lines = (tmp_path / "metrics.jsonl").read_text("utf-8").split("\n")
    assert json.loads(lines[0]) == {
        "event": "train", "step": 1, "epoch": 0.1, "loss": 1.25, "perplexity": 3.5, "learning_rate": 0.001,
        "gradient_norm": 0.5, "tokens_per_second": 1234.5, "elapsed_seconds": 2.0, "skipped": 0,
    }  # fmt: skip
    validation = json.loads(lines[3])
    assert (validation["event"], validation["bleu"], validation["samples"][0][0]) == ("validation", 12.34, "我爱你")


def test_a_resumed_run_has_each_step_once(tmp_path: Path) -> None:
    write_run(tmp_path, resume_at=0, last=7)
    # The checkpoint was of step 4, and the process was killed while it wrote a line.
    with (tmp_path / "metrics.jsonl").open("ab") as file:
        file.write(b'{"event":"train","st')
    write_run(tmp_path, resume_at=4, last=8)
    expected = [("train", step) for step in range(1, 9)]
    expected.insert(3, ("validation", 3))
    expected.insert(7, ("validation", 6))
    assert steps_of(tmp_path) == expected


def test_a_line_that_a_power_cut_corrupted_does_not_keep_a_run_from_going_on(tmp_path: Path) -> None:
    write_run(tmp_path, resume_at=0, last=2)
    with (tmp_path / "metrics.jsonl").open("ab") as file:
        file.write(b"\0\0\0\0\n")
    write_run(tmp_path, resume_at=2, last=3)
    assert steps_of(tmp_path) == [("train", 1), ("train", 2), ("train", 3), ("validation", 3)]


def test_a_validation_that_is_repeated_stands_there_once(tmp_path: Path) -> None:
    write_run(tmp_path, resume_at=0, last=6)
    EventLog(tmp_path, resume_at=6, validate_again=True).close()
    assert steps_of(tmp_path)[-2:] == [("train", 5), ("train", 6)]
    EventLog(tmp_path, resume_at=6).close()
    assert steps_of(tmp_path).count(("validation", 3)) == 1


def test_a_run_from_the_start_replaces_an_earlier_log(tmp_path: Path) -> None:
    write_run(tmp_path, resume_at=0, last=5)
    write_run(tmp_path, resume_at=0, last=2)
    assert steps_of(tmp_path) == [("train", 1), ("train", 2)]


def test_events_are_on_the_disk_at_once(tmp_path: Path) -> None:
    log = EventLog(tmp_path, resume_at=0)
    log.write(train_event(1))
    assert steps_of(tmp_path) == [("train", 1)]
    log.close()


def test_non_finite_numbers_are_logged_as_null(tmp_path: Path) -> None:
    log = EventLog(tmp_path, resume_at=0)
    log.write(ValidationEvent(step=1, loss=math.nan, perplexity=math.inf))
    log.close()
    event = json.loads((tmp_path / "metrics.jsonl").read_text("utf-8"))
    assert event == {"event": "validation", "step": 1, "loss": None, "perplexity": None}


def show(console: Console) -> None:
    display = ProgressDisplay(console)
    display.start(0, 2000)
    display.advance(1, 2000)
    display.report(train_event(1), 2000, 75.0)
    display.report(train_event(2), None, None)
    display.validation(validation_event(2), best=True)
    display.stop()


def test_progress_is_printed_as_lines_without_a_terminal() -> None:
    stream = io.StringIO()
    show(Console(file=stream, width=40))
    assert stream.getvalue().split("\n") == [
        "step 1/2,000 · loss 1.250 · 1,234 tokens/s · 1 min 15 s left",
        "step 2/? · loss 1.250 · 1,234 tokens/s",
        "step 2 · dev loss 0.500 (perplexity 2.72) · BLEU 12.3 · chrF 45.7 · best so far",
        "    source       我爱你",
        "    reference    I love you",
        "    translation  I [bold]love[/bold] you",
        "",
    ]


def test_scores_that_are_shares_are_shown_in_percent() -> None:
    stream = io.StringIO()
    scores = {"exact_match": 0.235, "accuracy": 80.0, "masked_accuracy": 14.2857, "bits_per_character": 1.25}
    event = msgspec.structs.replace(validation_event(2), bleu=None, chrf=None, scores=scores, samples=[])
    ProgressDisplay(Console(file=stream, width=300)).validation(event, best=False)
    shown = "exact match 23.5 % · accuracy 80.0 % · masked accuracy 14.3 % · bits per character 1.250"
    assert stream.getvalue().endswith(f" · {shown}\n")


def test_progress_lines_count_the_units_of_the_task() -> None:
    stream = io.StringIO()
    display = ProgressDisplay(Console(file=stream, width=40))
    display.counted, display.has_perplexity = "numbers", False
    display.report(train_event(1), 2000, None)
    display.validation(msgspec.structs.replace(validation_event(2), bleu=None, chrf=None), best=False)
    assert stream.getvalue().split("\n") == [
        "step 1/2,000 · loss 1.250 · 1,234 numbers/s",
        "step 2 · dev loss 0.500",
        "    text         我爱你",
        "    reference    I love you",
        "    output       I [bold]love[/bold] you",
        "",
    ]


def test_progress_is_a_bar_on_a_terminal() -> None:
    stream = io.StringIO()
    show(Console(file=stream, width=120, force_terminal=True, color_system=None))
    shown = stream.getvalue()
    assert "2,000" in shown
    assert "step 2 · dev loss 0.500" in shown
    assert "step 1/2,000 · loss" not in shown  # reports change the bar and leave no lines


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.4, "0 s"),
        (48, "48 s"),
        (59.6, "1 min 00 s"),
        (200, "3 min 20 s"),
        (3599.7, "1 h 00 min"),
        (3900, "1 h 05 min"),
    ],
)
def test_durations_are_rounded_to_readable_units(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text
