"""Test that file names from files and requests never lead outside of their folder."""

from pathlib import Path

import pytest

from transduce.errors import TransduceError
from transduce.model_folder.safety import file_inside, read_bounded

HOSTILE = [
    "",
    ".",
    "..",
    "...",
    "../secret",
    "../../etc/passwd",
    "/etc/passwd",
    "//etc/passwd",
    "model/../../secret",
    "./../secret",
    "sub/file",
    "..\\secret",
    "..\\..\\windows\\win.ini",
    "C:\\secret",
    "C:secret",
    "\\\\server\\share",
    "file\x00.json",
    "\x00",
    "config.json\n",
    "config.json\r\nx",
    "\x1b[2Jconfig.json",
    "config.json ",
    "config.json.",
    " .. ",
    "con*",
    "a?b",
    "a|b",
    "<script>",
    'a"b',
    "x" * 256,
    "字" * 100,
    "file:///etc/passwd",
    "../model-evil/secret",
    "\x7f",
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder `model` with secrets around it, one of them in a sibling `model-evil`."""
    for place in ("model", "model-evil"):
        (tmp_path / place).mkdir()
    for secret in (tmp_path / "secret", tmp_path / "model-evil" / "secret"):
        secret.write_text("secret", "utf-8")
    (tmp_path / "model" / "config.json").write_text("{}", "utf-8")
    return tmp_path / "model"


def test_at_least_30_hostile_names_are_tested() -> None:
    assert len(HOSTILE) >= 30


@pytest.mark.parametrize("name", HOSTILE, ids=ascii)
def test_a_hostile_name_is_refused(folder: Path, name: str) -> None:
    with pytest.raises(TransduceError, match=r"model must list files of its own folder, but lists `") as caught:
        read_bounded(folder, name, 100)
    assert str(caught.value).isprintable()


# Encoded names are not decoded, so they name files that do not exist.
@pytest.mark.parametrize("name", ["%2e%2e%2fsecret", "..%2fsecret", "%252e%252e%252fsecret", "~", "$HOME", "..;"])
def test_url_encoded_names_are_not_decoded(folder: Path, name: str) -> None:
    assert file_inside(folder, name) == folder / name
    with pytest.raises(TransduceError, match="there is no such file"):
        read_bounded(folder, name, 100)


@pytest.mark.parametrize("target", ["../secret", "../model-evil/secret", "/dev/zero", "/etc/hostname", ".."])
def test_a_link_that_leads_out_of_the_folder_is_refused(folder: Path, target: str) -> None:
    (folder / "link").symlink_to(target)
    with pytest.raises(TransduceError, match=r"link is a link that leads out of its folder, so it is not read"):
        read_bounded(folder, "link", 100)


def test_names_and_links_inside_the_folder_are_read(folder: Path) -> None:
    (folder / "link").symlink_to("config.json")
    (folder.parent / "latest").symlink_to("model")
    assert read_bounded(folder, "config.json", 2) == b"{}"
    assert read_bounded(folder, "link", 2) == b"{}"
    assert read_bounded(folder.parent / "latest", "config.json", 2) == b"{}"
    for name in ("模型.json", "a b.json", ".hidden", "x" * 255):
        assert file_inside(folder, name) == folder / name


def test_a_file_that_is_too_large_is_refused(folder: Path) -> None:
    with pytest.raises(TransduceError, match=r"config\.json may have 1 bytes at most, but has more"):
        read_bounded(folder, "config.json", 1)
