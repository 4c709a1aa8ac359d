"""Test the model folder: content reads back, damage is refused, and an interrupted write leaves a readable folder."""

import errno
import json
import os
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from transduce.atomic_io import file_sha256
from transduce.errors import TransduceError
from transduce.inference.translator import Translator
from transduce.interop.hugging_face.import_weights import LazyTensors
from transduce.model.config import ModelConfig
from transduce.model.transformer import Transformer
from transduce.model_folder.read import read_model_folder
from transduce.model_folder.write import write_model_folder
from transduce.text.tokenizer import Tokenizer

SHAPES: dict[str, dict[str, Any]] = {
    "pre": {},
    "post": {"norm_order": "post"},
    "own": {"activation": "swiglu", "bias": False, "d_k": 5, "d_v": 7},
    "untied": {"tie_source_target": False, "tie_output": False},
}


def make_config(size: int, **changes: Any) -> ModelConfig:
    shape: dict[str, Any] = {"num_encoder_layers": 1, "num_decoder_layers": 2, "d_model": 8, "d_ff": 12, "num_heads": 2}
    return ModelConfig(source_vocabulary_size=size, target_vocabulary_size=size, **(shape | changes))


def write(folder: Path, model: Transformer, tokenizer: Tokenizer) -> None:
    weights = {name: parameter.detach() for name, parameter in model.named_parameters()}
    write_model_folder(
        folder,
        weights=weights,
        config=model.config,
        tokenizer=tokenizer,
        languages=("zh", None),
        documents={"README.md": "a card"},
    )


def logits(model: Transformer) -> Tensor:
    source = torch.tensor([[5, 6, 7, 1], [8, 1, 0, 0]])
    target = torch.tensor([[0, 9, 10], [0, 11, 0]])
    with torch.inference_mode():
        return model.eval()(source, target)  # type: ignore[no-any-return]


@pytest.fixture
def copy(trained: Path, tmp_path: Path) -> Path:
    """Return a copy of the model folder, which tests may damage."""
    folder = tmp_path / "copy"
    shutil.copytree(trained, folder, ignore=shutil.ignore_patterns("checkpoints", "corpus*", "tensorboard"))
    return folder


def change_weights(folder: Path, change: Callable[[dict[str, Tensor]], None]) -> None:
    """Change the weights of a folder, and update its manifest so that their digest is right."""
    weights = load_file(folder / "model.safetensors")
    change(weights)
    save_file({name: tensor.contiguous() for name, tensor in weights.items()}, folder / "model.safetensors")
    sign(folder, "model.safetensors")


def sign(folder: Path, name: str) -> None:
    manifest = json.loads((folder / "manifest.json").read_bytes())
    manifest["sha256"][name] = [file_sha256(folder / name)]
    (folder / "manifest.json").write_text(json.dumps(manifest), "utf-8")


@pytest.mark.parametrize("shape", SHAPES)
def test_a_written_model_folder_reads_back_equal(translator: Translator, tmp_path: Path, shape: str) -> None:
    tokenizer = translator.tokenizer
    model = Transformer(make_config(tokenizer.source.size, **SHAPES[shape]))
    write(tmp_path / "model", model, tokenizer)
    content = read_model_folder(tmp_path / "model")
    assert content.model.config == model.config
    assert torch.equal(logits(content.model), logits(model))
    assert content.tokenizer.fingerprint == tokenizer.fingerprint
    assert (content.manifest.source_language, content.manifest.target_language) == ("zh", None)
    assert (tmp_path / "model" / "README.md").read_text("utf-8") == "a card"


def test_the_manifest_has_the_digests_of_what_decides_the_output(trained: Path) -> None:
    manifest = json.loads((trained / "manifest.json").read_bytes())
    assert set(manifest["sha256"]) == {
        "model.safetensors", "config.json", "sentencepiece.model", "tokenizer_settings.json"
    }  # fmt: skip
    for name, digests in manifest["sha256"].items():
        assert digests == [file_sha256(trained / name)]
    assert set(manifest["versions"]) == {"transduce", "torch", "numpy", "sentencepiece"}
    assert manifest["format_version"] == 1


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "sentencepiece.model", "tokenizer_settings.json"])
def test_one_changed_byte_is_noticed(copy: Path, name: str) -> None:
    content = bytearray((copy / name).read_bytes())
    content[len(content) // 2] ^= 1
    (copy / name).write_bytes(bytes(content))
    with pytest.raises(
        TransduceError, match=rf"{name} is damaged: it is not what the manifest says|cannot be read as a"
    ):
        read_model_folder(copy)


@pytest.mark.parametrize("name", ["model.safetensors", "sentencepiece.model"])
def test_a_missing_file_is_named(copy: Path, name: str) -> None:
    (copy / name).unlink()
    with pytest.raises(TransduceError, match=rf"copy is incomplete: its manifest lists {name}, which is not there"):
        read_model_folder(copy)


def test_weights_that_the_manifest_does_not_list_are_refused(copy: Path) -> None:
    manifest = json.loads((copy / "manifest.json").read_bytes())
    del manifest["sha256"]["model.safetensors"]
    (copy / "manifest.json").write_text(json.dumps(manifest), "utf-8")
    with pytest.raises(TransduceError, match=r"model\.safetensors is damaged"):
        read_model_folder(copy)


def test_a_missing_model_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TransduceError, match="nowhere does not exist: name the folder of a model"):
        read_model_folder(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"{", r"config\.json cannot be read as a model's configuration"),
        (b"[]", r"config\.json cannot be read as a model's configuration"),
        (b'{"vocab_size": 9}', r"config\.json is not of a model that transduce wrote: .* no key `transduce`"),
        (b'{"model_type": "whisper"}', r"config\.json: `model_type` must be one of .* imported, but is 'whisper'\.$"),
        (b'{"model_type": ["bart"]}', r"config\.json: `model_type` must be one of .* imported, but is \['bart'\]\.$"),
        (b'{"model_type": "bart", "auto_map": {}}', r"config\.json asks for code of its own to be run"),
        (b'{"transduce": {"d_model": 5}}', r"config\.json cannot be read as a model's configuration: Object missing"),
    ],
)
def test_an_unreadable_or_unknown_config_json_is_refused(copy: Path, content: bytes, message: str) -> None:
    (copy / "config.json").write_bytes(content)
    with pytest.raises(TransduceError, match=message):
        read_model_folder(copy)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, r"manifest\.json cannot be read"),
        ("{", r"manifest\.json cannot be read"),
        ('{"format_version": 2}', "has format 2, and this version of transduce reads 1"),
    ],
)
def test_a_missing_or_unreadable_manifest_is_refused(copy: Path, content: str | None, message: str) -> None:
    path = copy / "manifest.json"
    if content is None:
        path.unlink()
    elif content == "{":
        path.write_text(content, "utf-8")
    else:
        path.write_text(json.dumps(json.loads(path.read_bytes()) | json.loads(content)), "utf-8")
    with pytest.raises(TransduceError, match=message):
        read_model_folder(copy)


@pytest.mark.parametrize("name", ["../x", "/etc/hostname", "corpus/x", ".."])
def test_a_manifest_that_lists_files_outside_its_folder_is_refused(copy: Path, name: str) -> None:
    (copy.parent / "x").write_bytes(b"outside")
    manifest = json.loads((copy / "manifest.json").read_bytes())
    manifest["sha256"][name] = ["0" * 64]
    (copy / "manifest.json").write_text(json.dumps(manifest), "utf-8")
    with pytest.raises(
        TransduceError, match=rf"must list files of its own folder, but lists `{name}`|which is not there"
    ):
        read_model_folder(copy)


def test_missing_and_unexpected_tensors_are_listed_in_full(copy: Path) -> None:
    def change(weights: dict[str, Tensor]) -> None:
        del weights["model.shared.weight"], weights["model.decoder.layers.1.fc1.bias"]
        weights.update({"stray.one": torch.zeros(2), "stray.two": torch.zeros(3)})

    change_weights(copy, change)
    with pytest.raises(TransduceError) as caught:
        read_model_folder(copy)
    message = str(caught.value)
    missing = message.partition(": missing ")[2].partition("; unexpected ")[0]
    assert set(missing.split(", ")) == {"model.shared.weight", "model.decoder.layers.1.fc1.bias"}
    assert message.endswith("; unexpected stray.one, stray.two.")


@pytest.mark.parametrize(
    ("name", "shape", "message"),
    [
        ("model.shared.weight", (300, 30), r"source_weight must have the shape \(300, 32\) by .*, but has \(300, 30\)"),
        (
            "model.encoder.layers.0.self_attn.q_proj.bias",
            (30,),
            r"projection\.bias must have the shape \(96,\) .* \(94,\)",
        ),
        (
            "model.encoder.layers.0.self_attn.k_proj.weight",
            (32, 30),
            r"must have rows of one length, .*k_proj.*\(32, 30\)",
        ),
        ("model.encoder.layers.0.self_attn.v_proj.bias", (), r"must have rows of one length"),
    ],
)
def test_wrong_shapes_are_reported(copy: Path, name: str, shape: tuple[int, ...], message: str) -> None:
    change_weights(copy, lambda weights: weights.update({name: torch.zeros(shape)}))
    with pytest.raises(TransduceError, match=message):
        read_model_folder(copy)


def test_a_file_that_is_not_safetensors_is_refused(copy: Path) -> None:
    (copy / "model.safetensors").write_bytes(b"not tensors")
    sign(copy, "model.safetensors")
    with pytest.raises(TransduceError, match=r"model\.safetensors cannot be read"):
        read_model_folder(copy)


# --- killed while it writes ---


class Killed(BaseException):
    """An exception that simulates a killed process."""


def kill_at(monkeypatch: pytest.MonkeyPatch, call: int) -> list[str]:
    """Raise `Killed` from the rename with this number (from 1) on; return a list that collects the earlier targets."""
    real = os.replace
    done: list[str] = []

    def replace(source: Path, target: Path) -> None:
        if len(done) + 1 >= call:
            raise Killed
        real(source, target)
        done.append(Path(target).name)

    monkeypatch.setattr(os, "replace", replace)
    return done


def test_a_folder_loads_at_every_moment_while_it_is_rewritten(
    translator: Translator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the writer before was killed, so that it is not known which weights the folder holds."""
    folder, tokenizer = tmp_path / "model", translator.tokenizer
    config = make_config(tokenizer.source.size)
    models = [Transformer(config) for _ in range(3)]
    expected = [logits(model) for model in models]
    with monkeypatch.context() as patch:
        names = kill_at(patch, 1_000)
        write(folder, models[0], tokenizer)
    assert names[-3:] == ["manifest.json", "model.safetensors", "manifest.json"]
    possible: set[int] = {0}
    seen: set[int] = set()
    for call in range(1, len(names) + 1):
        for number in (1, 2):
            with monkeypatch.context() as patch:
                kill_at(patch, call)
                with pytest.raises(Killed):
                    write(folder, models[number], tokenizer)
            possible.add(number)
            found = logits(read_model_folder(folder).model)
            (which,) = [n for n in possible if torch.equal(found, expected[n])]
            seen.add(which)
    assert seen == {0, 1, 2}
    write(folder, models[0], tokenizer)
    assert torch.equal(logits(read_model_folder(folder).model), expected[0])
    assert len(json.loads((folder / "manifest.json").read_bytes())["sha256"]["model.safetensors"]) == 1


def test_a_folder_rewritten_while_it_is_read_is_read_again(
    translator: Translator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, tokenizer = tmp_path / "model", translator.tokenizer
    old, new = (Transformer(make_config(tokenizer.source.size)) for _ in range(2))
    write(folder, old, tokenizer)
    overtaken: list[Path] = []

    def overtake(path: Path, start: int) -> str:
        if not overtaken:
            overtaken.append(path)
            write(folder, new, tokenizer)
        return file_sha256(path, start)

    monkeypatch.setattr("transduce.model_folder.weight_cache.file_sha256", overtake)
    assert torch.equal(logits(read_model_folder(folder).model), logits(new))


def test_a_user_who_may_read_the_configuration_may_read_the_weights(trained: Path) -> None:
    newest = max((trained / "checkpoints").iterdir())
    for folder, readable in ((trained, "config.json"), (newest, "state.json")):
        modes = {path.stat().st_mode & 0o777 for path in folder.iterdir() if path.suffix == ".safetensors"}
        assert modes == {(folder / readable).stat().st_mode & 0o777}


def test_weights_that_cannot_be_computed_leave_no_part_of_a_folder(translator: Translator, tmp_path: Path) -> None:
    model = Transformer(make_config(translator.tokenizer.source.size))

    def fail() -> Tensor:
        raise TransduceError("damaged")

    weights = {name: parameter.detach() for name, parameter in model.named_parameters()}
    functions = {
        name: fail if name == "decoder_norm.weight" else partial(weights.__getitem__, name) for name in weights
    }
    with pytest.raises(TransduceError, match="damaged"):
        write_model_folder(
            tmp_path / "m",
            weights=LazyTensors(functions, weights),
            config=model.config,
            tokenizer=translator.tokenizer,
            languages=("zh", None),
            documents={},
        )
    assert list((tmp_path / "m").iterdir()) == []


def test_weights_for_which_there_is_no_capacity_are_reported(
    translator: Translator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fill_the_disk(path: Path, *_: object) -> None:
        path.write_bytes(b"a part")
        raise OSError(errno.ENOSPC, "No space left on device")

    model = Transformer(make_config(translator.tokenizer.source.size))
    write(tmp_path / "m", model, translator.tokenizer)
    before = (tmp_path / "m" / "model.safetensors").read_bytes()
    monkeypatch.setattr("transduce.model_folder.write.write_tensors", fill_the_disk)
    with pytest.raises(TransduceError, match=r"model\.safetensors cannot be written \(No space left .*free disk space"):
        write(tmp_path / "m", model, translator.tokenizer)
    assert (tmp_path / "m" / "model.safetensors").read_bytes() == before
    assert not list((tmp_path / "m").glob(".partial*"))


def test_a_model_that_does_not_fit_in_the_free_memory_is_not_read(
    trained: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("transduce.model_folder.read.available_memory", lambda **_: 1_000)
    monkeypatch.setattr("transduce.model_folder.read._SMALL", 0)
    with pytest.raises(TransduceError, match=r"weights, which need at least .* of memory, but only 0 MiB are free"):
        read_model_folder(trained)
