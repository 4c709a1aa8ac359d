"""Test large inputs: portions, shards, and resuming an incomplete output file."""

import multiprocessing
import shutil
import tempfile
import threading
from pathlib import Path

import pytest

from transduce.argument_checks import as_shard
from transduce.errors import TransduceError
from transduce.inference.bulk_files import (
    LineOptions,
    Portion,
    ResumableFile,
    WorkerProcesses,
    WorkerSettings,
    _Worker,
    portions,
    receive_messages,
    skip_lines,
    translate_portion,
)
from transduce.inference.translator import Translator
from transduce.search.settings import SamplingSettings, SearchSettings

LINES = [f"line {number}" for number in range(10)]


def test_portions_have_all_lines_with_their_positions() -> None:
    made = list(portions(LINES, size=4))
    assert [len(portion.lines) for portion in made] == [4, 4, 2]
    assert [place for portion in made for place in portion.indices] == list(range(10))
    assert [line for portion in made for line in portion.lines] == LINES


@pytest.mark.parametrize("count", [1, 2, 3, 4, 11])
def test_shards_share_out_the_lines(count: int) -> None:
    shards = [list(portions(LINES, shard=(number, count), size=2)) for number in range(1, count + 1)]
    places = [[place for portion in shard for place in portion.indices] for shard in shards]
    assert [own[:1] for own in places] == [[number] if number < 10 else [] for number in range(count)]
    assert sorted(place for own in places for place in own) == list(range(10))
    assert [[line for portion in shard for line in portion.lines] for shard in shards] == [
        [LINES[place] for place in own] for own in places
    ]


@pytest.mark.parametrize("text", ["", "1", "0/2", "3/2", "a/b", "1/0", "-1/2", "1/2/3", "1.5/2"])
def test_malformed_shards_are_refused(text: str) -> None:
    with pytest.raises(TransduceError, match="A shard must be I/N with I from 1 to N, such as 1/4, but is "):
        as_shard(text)


def test_phrases_are_sharded_with_their_lines() -> None:
    (made,) = portions(["a", "b", "c"], phrases=["tea\tgreen tea", "", " \tx"], shard=(1, 2))
    assert (made.lines, made.phrases) == (["a", "c"], [["tea", "green tea"], ["x"]])


@pytest.mark.parametrize(("lines", "phrases", "shorter"), [(2, 3, "input"), (3, 2, "file of phrases")])
def test_phrases_for_other_lines_are_refused(lines: int, phrases: int, shorter: str) -> None:
    with pytest.raises(TransduceError, match=f"but the {shorter} ends before line 3: use files with"):
        list(portions(["x"] * lines, phrases=["y"] * phrases))


def test_finished_lines_are_skipped() -> None:
    skipped, left = skip_lines(portions(LINES, size=4), 8)
    assert skipped == LINES[:8]
    assert [portion.lines for portion in left] == [LINES[8:]]
    assert skip_lines(portions(LINES[:4], size=4), 8)[0] == LINES[:4]


def test_finished_lines_are_skipped_where_portions_had_another_size() -> None:
    """The portion size differs if a job moves from CPU to GPU, or if the input has grown."""
    phrases = [f"{number}" for number in range(len(LINES))]
    skipped, left = skip_lines(portions(LINES, size=len(LINES), phrases=phrases), 3)
    assert skipped == LINES[:3]
    (rest,) = left
    assert (rest.indices, rest.lines) == (list(range(3, len(LINES))), LINES[3:])
    assert rest.phrases[0] == ["3"]


def test_samples_do_not_depend_on_shards(translator: Translator, toy_corpus: Path) -> None:
    lines = (toy_corpus / "dev.zh").read_text("utf-8").split("\n")[:12]
    job = LineOptions(search=SearchSettings(sampling=SamplingSettings(seed=3), max_length=8))

    def translated(shard: tuple[int, int]) -> list[str]:
        texts = [translate_portion(translator, job, portion) for portion in portions(lines, shard=shard, size=5)]
        return "".join(texts).split("\n")[:-1]

    shards = [translated((number, 3)) for number in (1, 2, 3)]
    assert [line for lines in zip(*shards, strict=True) for line in lines] == translated((1, 1))


# --- a file that can be gone on with ---


def begin(path: Path, *, resume: bool = False, options: bytes = b"o") -> ResumableFile:
    return ResumableFile(path, options=options, resume=resume)


def write_some(path: Path) -> None:
    file = begin(path)
    file.open()
    file.append(LINES[:4], "one\ntwo\nthree\nfour\n")


def test_an_output_file_gets_its_name_when_it_is_complete(tmp_path: Path) -> None:
    path = tmp_path / "out.txt"
    write_some(path)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["out.txt.partial", "out.txt.progress"]
    file = begin(path, resume=True)
    file.skip(LINES[:4])
    file.open()
    file.append(LINES[4:6], "five\nsix\n")
    file.finish()
    assert path.read_bytes() == b"one\ntwo\nthree\nfour\nfive\nsix\n"
    assert [file.name for file in tmp_path.iterdir()] == ["out.txt"]
    assert begin(path, resume=True).is_finished
    assert not begin(path).is_finished  # without --resume it is written anew


def test_output_not_recorded_as_finished_is_written_again(tmp_path: Path) -> None:
    path = tmp_path / "out.txt"
    write_some(path)
    with (tmp_path / "out.txt.partial").open("ab") as partial:
        partial.write(b"half a l")  # killed here
    file = begin(path, resume=True)
    file.skip(LINES[:4])
    file.open()
    file.append(LINES[4:5], "five\n")
    file.finish()
    assert path.read_bytes() == b"one\ntwo\nthree\nfour\nfive\n"


def test_a_run_that_was_killed_in_its_first_portion_is_not_finished_by_an_earlier_file(tmp_path: Path) -> None:
    path = tmp_path / "out.txt"
    path.write_text("of an earlier run\n")
    begin(path).open()  # killed here
    assert not begin(path, resume=True).is_finished
    interrupted = begin(path, resume=True)
    interrupted.open()
    interrupted.__exit__(KeyboardInterrupt, None, None)
    with begin(path, resume=True) as file:
        assert not file.is_finished
        file.open()
        file.append(LINES[:1], "one\n")
        file.finish()
    assert path.read_text() == "one\n"
    assert begin(path, resume=True).is_finished


def test_an_interrupted_file_is_not_overwritten(tmp_path: Path) -> None:
    write_some(tmp_path / "out.txt")
    with pytest.raises(TransduceError, match=r"out\.txt\.partial has 4 lines of an interrupted .*: pass --resume"):
        begin(tmp_path / "out.txt")


def test_two_processes_do_not_write_one_file(tmp_path: Path) -> None:
    path = tmp_path / "out.txt"
    first, second = begin(path), begin(path)
    first.open()
    with pytest.raises(TransduceError, match=r"^Another process is writing .*out\.txt: wait until it has ended, or"):
        second.open()
    first.append(LINES[:4], "one\ntwo\nthree\nfour\n")
    with begin(path, resume=True) as late:  # of a lock that is the file's, and not of when it was asked for
        late.skip(LINES[:4])
        first.append(LINES[4:5], "five\n")
        with pytest.raises(TransduceError, match="Another process is writing"):
            late.open()
        first.__exit__(None, None, None)
        with pytest.raises(TransduceError, match="Another process is writing"):  # what it knows is old
            late.open()
    with begin(path, resume=True) as again:
        again.skip(LINES[:5])
        again.open()
        again.finish()
    assert path.read_bytes() == b"one\ntwo\nthree\nfour\nfive\n"


def test_a_file_that_something_else_wrote_into_does_not_get_its_name(tmp_path: Path) -> None:
    file = begin(tmp_path / "out.txt")
    file.open()
    file.append(LINES[:1], "one\n")
    with (tmp_path / "out.txt.partial").open("ab") as partial:
        partial.write(b"strange\n")
    with pytest.raises(TransduceError, match="Another process is writing"):
        file.finish()


def test_other_options_other_lines_and_damage_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "out.txt"
    write_some(path)
    with pytest.raises(TransduceError, match="was started with another model or other options"):
        begin(path, resume=True, options=b"p")
    for lines in (["other", *LINES[1:4]], LINES[:2]):
        with pytest.raises(
            TransduceError, match="holds translations of 4 lines, but the input begins with other lines"
        ):
            begin(path, resume=True).skip(lines)
    (tmp_path / "out.txt.partial").write_bytes(b"one\n")
    with pytest.raises(TransduceError, match=r"out\.txt\.partial is shorter than .*out\.txt\.progress says"):
        begin(path, resume=True)
    (tmp_path / "out.txt.progress").write_bytes(b"{")
    with pytest.raises(TransduceError, match=r"out\.txt\.progress cannot be read .*: delete it to start again"):
        begin(path, resume=True)


def test_a_file_that_has_its_name_already_is_finished(tmp_path: Path) -> None:
    path = tmp_path / "out.txt"
    write_some(path)
    (tmp_path / "out.txt.partial").rename(path)  # killed here, before out.txt.progress was gone
    assert begin(path, resume=True).is_finished
    assert [file.name for file in tmp_path.iterdir()] == ["out.txt"]
    write_some(tmp_path / "other.txt")
    (tmp_path / "other.txt.partial").unlink()
    (tmp_path / "other.txt").write_bytes(b"of an earlier run\n")
    with pytest.raises(TransduceError, match=r"other\.txt\.partial is shorter than .* says"):
        begin(tmp_path / "other.txt", resume=True)


# --- workers ---


@pytest.mark.parametrize("replaced", ["before the first worker", "between two workers"])
def test_workers_refuse_a_model_that_was_replaced(trained: Path, tmp_path: Path, replaced: str) -> None:
    folder = tmp_path / "model"
    shutil.copytree(trained, folder, ignore=shutil.ignore_patterns("checkpoints"))
    settings = WorkerSettings(folders=[str(folder)], job=LineOptions(search=SearchSettings(beam_size=1)))
    portion = Portion(lines=["我"], indices=[0], phrases=[[]])
    with WorkerProcesses(settings, 2) as workers:
        if replaced == "between two workers":
            assert [text for _, text in workers.translate([portion])] != []
        manifest = folder / "manifest.json"
        manifest.write_bytes(manifest.read_bytes() + b" ")
        worker = _Worker(workers._settings)
        workers.workers.append(worker)
        worker.send(1, portion)
        with pytest.raises(TransduceError, match="model was replaced after workers had started with it: start again"):
            worker.receive()


def test_a_worker_reads_input_larger_than_a_pipe_buffer_while_answering() -> None:
    ours, theirs = multiprocessing.Pipe()
    message = b"x" * (4 << 20)  # of long lines; a pipe holds a fraction of it
    waiting = receive_messages(theirs)

    def answer() -> None:
        for each in waiting:
            theirs.send_bytes(each)

    def send() -> None:
        ours.send_bytes(message)
        ours.send_bytes(message)

    threading.Thread(target=answer, daemon=True).start()
    sending = threading.Thread(target=send, daemon=True)
    sending.start()
    sending.join(30)
    assert not sending.is_alive()
    assert [ours.recv_bytes(), ours.recv_bytes()] == [message, message]
    ours.close()


@pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="this system has no /dev/shm")
def test_a_link_in_shared_memory_stays_and_its_target_is_written() -> None:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        link = Path(folder) / "link"
        link.symlink_to("real")
        assert ResumableFile(link, options=b"", resume=False).path == Path(folder) / "real"
