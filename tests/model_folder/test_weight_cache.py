"""Test what opening a folder keeps: digests of verified files, and prepacked weights that are mapped from disk."""

import errno
import os
import re
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import transduce
from transduce.atomic_io import exclusive_lock, file_sha256
from transduce.commands.main import main
from transduce.errors import TransduceError
from transduce.inference.evaluate import prove_int8
from transduce.inference.load import open_translator
from transduce.inference.translator import Translator
from transduce.kernels.select import has_kernels
from transduce.model.build import build_model
from transduce.model.config import ModelConfig
from transduce.model_folder import weight_cache
from transduce.model_folder.load import load_model_at, quantize_to_int8
from transduce.model_folder.read import ModelFolder, read_any_model_folder
from transduce.model_folder.tensor_files import MappedTensors, write_tensors
from transduce.model_folder.weight_cache import Int8Comparison, Int8Proof
from transduce.model_folder.write import write_model_folder
from transduce.text.tokenizer import Tokenizer
from transduce.ui_language import localized
from transduce.ui_language_choice import use_ui_language

SENTENCES = ["我喜欢苹果。", "他昨天看书。", "你们买书。"]
SHAPES: dict[str, dict[str, Any]] = {
    "tied": {},
    "untied": {"tie_source_target": False, "tie_output": False, "output_bias": True},
    "post-norm and gated": {"norm_order": "post", "activation": "swiglu", "bias": False, "norm": "rms"},
    "relative": {"positions": "relative"},
    "decoder": {"kind": "decoder", "positions": "rotary", "num_key_value_heads": 2, "num_encoder_layers": 0},
    "encoder": {"kind": "encoder", "num_decoder_layers": 0, "output_bias": True},
}


@pytest.fixture
def cache_small_models(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the weight cache treat small new files of tests as large files that were written a while ago."""
    monkeypatch.setattr(weight_cache, "_SMALL_BYTES", 0)
    monkeypatch.setattr(weight_cache, "_SETTLED_NS", 0)


@pytest.fixture
def write_small_model(translator: Translator, tmp_path: Path) -> Callable[..., Path]:
    """Return a function that writes a model folder with random weights of a shape that the kernels support."""
    if not has_kernels():
        pytest.skip("there are no kernels for 8-bit weights here")
    tokenizer: Tokenizer = translator.tokenizer

    def make(seed: int = 1, **changes: Any) -> Path:
        torch.manual_seed(seed)
        sizes = {"num_encoder_layers": 1, "num_decoder_layers": 2, "d_model": 128, "d_ff": 256, "num_heads": 4}
        vocabulary = {"source_vocabulary_size": tokenizer.source.size, "target_vocabulary_size": tokenizer.target.size}
        config = ModelConfig(**(sizes | vocabulary | changes))
        model = build_model(config)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(torch.randn_like(parameter), alpha=0.1)
        write_model_folder(
            tmp_path / "model",
            weights=model.state_dict(),
            config=config,
            tokenizer=tokenizer,
            languages=(None, None),
            documents={},
        )
        return tmp_path / "model"

    return make


def opened(folder: Path) -> ModelFolder[Any]:
    return load_model_at(read_any_model_folder, folder, precision="int8", device="cpu", threads=1)


def replace(path: Path, content: bytes) -> None:
    """Give a file another content as another file, because a mapped file must not change in place."""
    path.with_name("new").write_bytes(content)
    os.replace(path.with_name("new"), path)


def cached(folder: Path) -> list[Path]:
    return sorted((folder / weight_cache.CACHE_FOLDER).glob("*.safetensors"))


class Weights:
    """The weights of a model by name, which are equal if all bits are."""

    def __init__(self, model: torch.nn.Module) -> None:
        self.tensors = dict(model.named_parameters(remove_duplicate=False))

    def __eq__(self, other: object) -> bool:
        assert isinstance(other, Weights)
        names = self.tensors.keys()
        return names == other.tensors.keys() and all(
            torch.equal(self.tensors[name], other.tensors[name]) for name in names
        )

    __hash__ = None  # type: ignore[assignment]


def weights_of(folder: Path) -> Weights:
    """Return all weights with which the folder's model computes in 8 bits."""
    return Weights(opened(folder).model)


@pytest.mark.usefixtures("cache_small_models")
@pytest.mark.parametrize("shape", SHAPES)
def test_a_model_from_the_cache_equals_one_that_was_quantized(
    write_small_model: Callable[..., Path], shape: str
) -> None:
    folder = write_small_model(**SHAPES[shape])
    fresh: Any = quantize_to_int8(read_any_model_folder(folder).model, "cpu")
    assert [opened(folder).prepacked is not None for _ in range(2)] == [True, True]
    found = opened(folder).model
    assert type(found) is type(fresh)
    assert Weights(found) == Weights(fresh)
    ids = torch.tensor([[5, 6, 7, 8, 9]])
    arguments = (ids, ids) if found.config.kind == "transformer" else (ids,)
    with torch.inference_mode():
        assert torch.equal(found(*arguments), fresh(*arguments))


@pytest.mark.usefixtures("cache_small_models")
def test_a_translator_from_the_cache_answers_as_one_that_was_quantized(write_small_model: Callable[..., Path]) -> None:
    folder = write_small_model()
    answers = []
    for setting in ("", None, None):
        with pytest.MonkeyPatch.context() as patch:
            if setting is not None:
                patch.setenv("TRANSDUCE_CACHE", setting)  # nothing is kept
            translator = open_translator(folder, precision="int8", device="cpu", threads=1)
        answers.append([each.alternatives for each in translator(SENTENCES, beam_size=3, n_best=2, max_length=9)])
        assert bool(cached(folder)) == (setting is None)
    assert answers[0] == answers[1] == answers[2]


def test_auto_takes_8_bits_only_with_a_valid_proof(
    write_small_model: Callable[..., Path],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = write_small_model()

    def taken() -> str:
        return open_translator(folder, device="cpu", threads=1).precision

    usual = taken()
    lines = "".join(f"{SENTENCES[number % 3]}\n" for number in range(120))
    (tmp_path / "lines").write_text(lines, "utf-8")
    assert main(["quantize", str(folder), "--prove", str(tmp_path / "lines")]) == 0
    proof = prove_int8(folder, lines.splitlines(), lines.splitlines())
    shown = capsys.readouterr().out
    assert "greedily" in shown
    assert "with 4 hypotheses" in shown  # the folder's own search
    assert proof.sentences == 120
    assert [each.beam_size for each in proof.comparisons] == [1, 4]
    assert all(each.bleu_difference is not None for each in proof.comparisons)
    prepacked = read_any_model_folder(folder, prepacked=True).prepacked
    assert prepacked is not None
    for sentences, equal, difference, holds in ((120, 119, 0.05, True), (120, 118, 0.0, False), (99, 99, None, False)):
        found = [Int8Comparison(1, False, sentences), Int8Comparison(4, False, equal, difference)]
        assert weight_cache.write_proof(prepacked, sentences, found).holds == holds
        assert taken() == ("int8" if holds else usual)
    assert not weight_cache.write_proof(prepacked, 500, [Int8Comparison(1, False, 500, -0.2)]).holds
    failed = Int8Proof("", "", "", 120, (Int8Comparison(1, False, 119), Int8Comparison(4, False, 118, -0.234)))
    assert str(failed).endswith(
        "greedily 119, with 4 hypotheses 118, BLEU -0.23. `--precision auto` does not take the 8-bit weights:\n"
        "  at least 119 must be equal with 4 hypotheses, but 118 are\n"
        "  BLEU may differ by 0.1 with 4 hypotheses, but differs by -0.234"
    )
    with use_ui_language("zh"):
        shown = localized(str(failed))
    assert "贪心搜索 119，" in shown
    assert "用 4 个假设时至少须有 119 个相同" in shown
    assert not re.search("[a-z]{5}", shown.replace("precision", ""))
    assert "it needs at least 100 sentences, but has 99" in str(Int8Proof("", "", "", 99, ()))
    weight_cache.write_proof(prepacked, 500, [Int8Comparison(1, False, 500)])
    assert open_translator([folder, folder], device="cpu", threads=1).precision == usual  # an ensemble
    monkeypatch.setattr(weight_cache, "version", lambda _: "another")
    assert taken() == usual
    monkeypatch.undo()
    assert taken() == "int8"
    write_small_model(seed=2)  # another model in the folder
    assert taken() == usual


@pytest.mark.usefixtures("cache_small_models")
def test_another_model_in_the_folder_does_not_use_the_cache_of_the_one_before(
    write_small_model: Callable[..., Path],
) -> None:
    folder = write_small_model()
    first = weights_of(folder)
    content = cached(folder)[0].read_bytes()
    second = weights_of(write_small_model(seed=2))
    assert second != first
    assert cached(folder)[0].read_bytes() != content
    write_small_model()
    assert weights_of(folder) == first


def _cut(content: bytes) -> bytes:
    return content[:-1]


def _other_format(content: bytes) -> bytes:
    return content.replace(b"prepacked weights 1", b"prepacked weights 2")


def _other_shape(content: bytes) -> bytes:
    return content.replace(b'"dtype":"I32"', b'"dtype":"F32"', 1)


def _other_data(content: bytes) -> bytes:
    return content[:-100] + bytes([content[-100] ^ 1]) + content[-99:]


def _no_header(content: bytes) -> bytes:
    return b"\x00" * 64 + content[64:]


@pytest.mark.usefixtures("cache_small_models")
@pytest.mark.parametrize("damage", [_cut, _other_format, _other_shape, _other_data, _no_header, lambda _: b""])
def test_a_damaged_cache_is_rebuilt(write_small_model: Callable[..., Path], damage: Callable[[bytes], bytes]) -> None:
    folder = write_small_model()
    expected = weights_of(folder)
    (path,) = cached(folder)
    whole = path.read_bytes()
    assert damage(whole) != whole
    replace(path, damage(whole))
    assert weights_of(folder) == expected
    assert path.read_bytes() == whole


@pytest.mark.usefixtures("cache_small_models")
def test_verify_removes_damaged_weights(write_small_model: Callable[..., Path]) -> None:
    folder = write_small_model()
    report = transduce.quantize(folder)
    assert [report.file] == [str(path) for path in cached(folder)]
    assert transduce.verify(folder).cached == (report.file,)
    content = bytearray(Path(report.file).read_bytes())
    content[-100] ^= 1
    replace(Path(report.file), bytes(content))
    found = transduce.verify(folder)
    assert (found.cached, found.removed) == ((), (report.file,))
    assert f"{report.file}: damaged, removed" in str(found)
    assert not cached(folder)
    weights = folder / "model.safetensors"
    damaged = bytearray(weights.read_bytes())
    damaged[-100] ^= 1
    replace(weights, bytes(damaged))
    with pytest.raises(TransduceError, match=r"model\.safetensors is damaged.*Copy the folder again"):
        transduce.verify(folder)


def test_small_models_cache_no_weights_unless_quantize_is_called(write_small_model: Callable[..., Path]) -> None:
    folder = write_small_model()
    before = sorted(path.name for path in folder.iterdir())
    weights_of(folder)
    assert sorted(path.name for path in folder.iterdir()) == before
    assert Path(transduce.quantize(folder).file).is_file()
    assert opened(folder).prepacked is not None


@pytest.mark.usefixtures("cache_small_models")
def test_a_full_disk_gives_one_warning_and_the_model_opens_without_a_cache(
    write_small_model: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_small_model()
    expected = weights_of(folder)
    cached(folder)[0].unlink()

    def fill(path: Path, *_: object) -> None:
        path.write_bytes(b"a part")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(weight_cache, "write_tensors", fill)
    with pytest.warns(UserWarning, match=r"int8 weights of .* cannot be kept \(.*No space left") as caught:
        assert weights_of(folder) == expected
    assert len(caught) == 1
    assert not [*(folder / weight_cache.CACHE_FOLDER).glob(".partial*"), *cached(folder)]
    with pytest.raises(TransduceError, match="No space left on device"):
        transduce.quantize(folder)


@pytest.mark.usefixtures("cache_small_models")
def test_a_read_only_folder_uses_the_users_cache(
    write_small_model: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    folder = write_small_model()
    expected = weights_of(folder)
    for path in (folder / weight_cache.CACHE_FOLDER).iterdir():
        path.unlink()
    (folder / weight_cache.CACHE_FOLDER).rmdir()
    (folder / weight_cache.CACHE_FOLDER).write_bytes(b"")  # root may write to any folder, but not into a file
    monkeypatch.setenv("TRANSDUCE_CACHE", str(tmp_path / "users"))
    monkeypatch.setattr("os.access", lambda *_: False)
    assert weights_of(folder) == expected
    assert len(list((tmp_path / "users" / "models").glob("*/int8-*.safetensors"))) == 1
    assert opened(folder).prepacked is not None
    monkeypatch.setenv("TRANSDUCE_CACHE", "")
    assert opened(folder).prepacked is None


@pytest.mark.skipif(not hasattr(os, "getuid"), reason="files have no owners here")
@pytest.mark.parametrize("of_another", ["users/models", "users"])
def test_a_users_cache_of_another_user_is_ignored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, of_another: str
) -> None:
    (tmp_path / "users" / "models").mkdir(parents=True)
    monkeypatch.setenv("TRANSDUCE_CACHE", str(tmp_path / "users"))
    monkeypatch.setattr("os.access", lambda *_: False)
    beside = tmp_path / weight_cache.CACHE_FOLDER
    _, in_users_cache = weight_cache.cache_folders(tmp_path)
    assert in_users_cache.parent == tmp_path / "users" / "models"
    find_stat = Path.stat

    def stat_of_another(path: Path, **options: bool) -> os.stat_result:
        found = list(find_stat(path, **options))
        found[stat.ST_UID] += path == tmp_path / of_another
        return os.stat_result(found)

    monkeypatch.setattr(Path, "stat", stat_of_another)
    assert weight_cache.cache_folders(tmp_path) == [beside]


@pytest.mark.usefixtures("cache_small_models")
def test_while_another_process_writes_the_cache_a_model_opens_without_it(
    write_small_model: Callable[..., Path],
) -> None:
    folder = write_small_model()
    expected = weights_of(folder)
    (path,) = cached(folder)
    path.unlink()
    with exclusive_lock(path.with_name(f".{path.name}.lock")):
        assert weights_of(folder) == expected
        assert not cached(folder)
    assert weights_of(folder) == expected
    assert cached(folder) == [path]


@pytest.mark.usefixtures("cache_small_models")
def test_a_file_is_hashed_once_for_each_version(
    write_small_model: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_small_model()
    hashed: list[str] = []

    def count(path: Path, start: int) -> str:
        hashed.append(path.name)
        return file_sha256(path, start)

    monkeypatch.setattr(weight_cache, "file_sha256", count)
    weights = folder / "model.safetensors"
    for _ in range(3):
        read_any_model_folder(folder)
    assert hashed.count("model.safetensors") == 1
    # Another content of the same size and date is another version all the same.
    status = weights.stat()
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    os.utime(weights, ns=(status.st_atime_ns, status.st_mtime_ns))
    with pytest.raises(TransduceError, match=r"model\.safetensors is damaged"):
        read_any_model_folder(folder)


def test_a_file_that_changed_just_now_is_hashed_again(
    write_small_model: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A later change could have the same date."""
    monkeypatch.setattr(weight_cache, "_SMALL_BYTES", 0)
    monkeypatch.setattr(weight_cache, "_SETTLED_NS", 3_600_000_000_000)
    folder = write_small_model()
    read_any_model_folder(folder)
    hashed: list[str] = []

    def count(path: Path, start: int) -> str:
        hashed.append(path.name)
        return file_sha256(path, start)

    monkeypatch.setattr(weight_cache, "file_sha256", count)
    read_any_model_folder(folder)
    assert "model.safetensors" in hashed


def test_tensor_files_are_those_of_safetensors_and_neighbors_are_mapped_as_one(tmp_path: Path) -> None:
    tensors = {
        "ids": torch.arange(5),
        "b": torch.randn(3, 4),
        "a": torch.randn(2, 4),
        "empty": torch.zeros(0, 4),
        "one": torch.tensor(2.0, dtype=torch.bfloat16),
    }
    digest = write_tensors(tmp_path / "x.safetensors", tensors, tensors.items(), {"format": "pt"})
    assert digest == file_sha256(tmp_path / "x.safetensors")
    found = load_file(tmp_path / "x.safetensors")
    file = MappedTensors(tmp_path, "x.safetensors", whole_numbers=None)
    assert found.keys() == tensors.keys() == file.entries.keys()
    for name, tensor in tensors.items():
        assert torch.equal(found[name], tensor)
        assert torch.equal(file.tensor(name), tensor)
        assert file.tensor(name).dtype == tensor.dtype
    joined = file.rows(["b", "a"])
    assert joined is not None
    assert torch.equal(joined, torch.cat([tensors["b"], tensors["a"]]))
    assert file.rows(["a", "b"]) is None
    with pytest.raises(ValueError, match="expected ids"):
        write_tensors(tmp_path / "y.safetensors", tensors, [("b", tensors["b"])], {})
