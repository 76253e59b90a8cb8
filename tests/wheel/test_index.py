"""The package index: what it offers, what the page says, and what it refuses without touching anything."""

from __future__ import annotations

import json
import re
import sys
import zipfile
from collections.abc import Callable
from hashlib import sha256
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from plain_wheel import PLATFORMS, metadata, plain_sdist, plain_wheel
from typer.testing import CliRunner

from tools.__main__ import build_app

EPOCH = 1767225600  # 2026-01-01
Index = Callable[..., Any]


@pytest.fixture(autouse=True)
def fixed_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", str(EPOCH))


@pytest.fixture
def index(tmp_path: Path) -> Index:
    """Runs the command on these distributions, with site/ as its output."""

    def run(*arguments: object, output: Path | None = None) -> Any:
        command = ["index", *map(str, arguments), "--output", str(output or tmp_path / "site")]
        return CliRunner().invoke(build_app(command), command)

    return run


def read(site: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((site / "simple/flash-attn/index.json").read_bytes())
    return found


def tree(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


class Elements(HTMLParser):
    """Every start tag with its attributes, and the text of the page."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(page.read_text(encoding="utf-8"))
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data

    def links(self) -> list[dict[str, str | None]]:
        return [attributes for tag, attributes in self.tags if tag == "a"]


def test_html_and_json_say_the_same(index: Index, tmp_path: Path) -> None:
    wheels = [plain_wheel(tmp_path / "dist", platform=platform) for platform in PLATFORMS]
    sdist = plain_sdist(tmp_path / "dist")
    done = index(tmp_path / "dist")
    assert (done.exit_code, done.output) == (0, f"{tmp_path / 'site'}: 5 files of 1 version.\n")
    site = tmp_path / "site"
    project = read(site)
    assert project["meta"] == {"api-version": "1.1"}
    assert (project["name"], project["versions"]) == ("flash-attn", ["2.9.0"])
    assert [file["filename"] for file in project["files"]] == sorted(path.name for path in (*wheels, sdist))
    links = Elements(site / "simple/flash-attn/index.html").links()
    digest = sha256(metadata("2.9.0")).hexdigest()
    for file, link in zip(project["files"], links, strict=True):
        original = tmp_path / "dist" / file["filename"]
        content = (site / "simple/flash-attn" / file["url"]).resolve().read_bytes()
        assert content == original.read_bytes()
        assert file["hashes"] == {"sha256": sha256(content).hexdigest()}
        assert file["size"] == len(content)
        assert file["upload-time"] == "2026-01-01T00:00:00.000000Z"
        assert file["requires-python"] == link["data-requires-python"] == ">=3.10"
        assert file["yanked"] is False
        assert link["href"] == f"{file['url']}#sha256={file['hashes']['sha256']}"
        if original.suffix == ".whl":
            assert file["core-metadata"] == file["dist-info-metadata"] == {"sha256": digest}
            assert link["data-core-metadata"] == link["data-dist-info-metadata"] == f"sha256={digest}"
            assert (site / f"files/{original.name}.metadata").read_bytes() == metadata("2.9.0")
        else:
            assert not {"core-metadata", "dist-info-metadata"} & file.keys()
            assert not {"data-core-metadata", "data-dist-info-metadata"} & link.keys()
    (root,) = Elements(site / "simple/index.html").links()
    assert root["href"] == "flash-attn/"
    assert json.loads((site / "simple/index.json").read_bytes())["projects"] == [{"name": "flash-attn"}]


def test_the_page_names_one_wheel_for_each_system(index: Index, tmp_path: Path) -> None:
    for platform in (*PLATFORMS, "manylinux_2_28_x86_64"):
        plain_wheel(tmp_path / "dist", platform=platform)
    plain_wheel(tmp_path / "dist", "2.10.0.dev20270101")
    assert index(tmp_path / "dist", "--url", "https://example.org/simple").exit_code == 0
    page = Elements(tmp_path / "site/index.html")
    text = " ".join(page.text.split())
    assert "flash-attn 2.9.0: which wheel to take" in text
    assert '"flash-attn==2.9.0" --index https://example.org/simple/' in text
    for name in ("linux-x86_64", "linux-aarch64", "win-amd64", "win-arm64"):
        assert text.count(f"when that says {name}") == 1
    assert "linux-x86_64, with glibc 2.17 or newer" in text
    assert text.count("glibc") == 2, "Windows has none"
    (wheel,) = (tmp_path / "dist").glob("*win_amd64.whl")
    assert f"python -m pip install https://example.org/files/{wheel.name} SHA-256" in text
    assert "machine code for sm_80, sm_90; PTX of compute_90" in text
    assert "This is a version for testing" not in text
    for link in page.links():
        target = str(link["href"]).partition("#")[0]
        assert (tmp_path / "site" / target).exists(), target


def test_the_page_asks_for_what_the_package_asks_for(index: Index, tmp_path: Path) -> None:
    """The driver, and where PyTorch for Windows comes from, as python -m flash_attn has them."""
    plain_wheel(tmp_path / "dist", platform="win_amd64")
    index(tmp_path / "dist")
    text = " ".join(Elements(tmp_path / "site/index.html").text.split())
    judge = (Path(__file__).parents[2] / "flash_attn/_diagnosis/judge.py").read_text(encoding="utf-8")
    (driver,) = re.findall(r"^OLDEST_RELEASE = (\d+)", judge, re.MULTILINE)
    (torch,) = re.findall(r'^INSTALL_TORCH = ".* torch (--index-url [^"]+)"', judge, re.MULTILINE)
    assert f"{driver} or newer; no CUDA toolkit" in text
    assert f"python -m pip install torch {torch} " in text
    assert "python -m pip install flash_attn-2.9.0-py3-none-win_amd64.whl" in text, "no address was given"


def test_a_command_is_copied_as_one_line(index: Index, tmp_path: Path) -> None:
    plain_wheel(tmp_path / "dist")
    index(tmp_path / "dist", "--url", "https://example.org/simple", "--files-url", "https://example.net/f")
    page = (tmp_path / "site/index.html").read_text(encoding="utf-8")
    commands = [re.sub(r"<[^>]+>", "", one) for one in re.findall(r"<pre[^>]*>(.*?)</pre>", page, re.DOTALL)]
    assert len(commands) == 6
    assert not any("\n" in one for one in commands)
    assert commands[-1].startswith("python -m pip install https://example.net/f/flash_attn-2.9.0-py3-none-")


def test_the_page_stands_alone(index: Index, tmp_path: Path) -> None:
    """No script, nothing loaded from elsewhere, a language, a heading order without gaps, a colour scheme."""
    plain_wheel(tmp_path / "dist")
    index(tmp_path / "dist")
    page = Elements(tmp_path / "site/index.html")
    names = [tag for tag, _ in page.tags]
    assert not {"script", "link", "img", "iframe"} & set(names)
    assert "url(" not in (tmp_path / "site/index.html").read_text()
    assert not [a for _, a in page.tags if any(str(key).startswith("on") or key == "src" for key in a)]
    assert dict(page.tags)["html"] == {"lang": "en"}
    assert {"name": "color-scheme", "content": "light dark"} in [a for tag, a in page.tags if tag == "meta"]
    levels = [int(name[1]) for name in names if re.fullmatch(r"h\d", name)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after - before <= 1 for before, after in pairwise(levels))


def test_a_page_of_nightlies_says_so(index: Index, tmp_path: Path) -> None:
    plain_wheel(tmp_path / "dist", "2.9.0.dev20261203")
    index(tmp_path / "dist")
    text = Elements(tmp_path / "site/index.html").text
    assert "flash-attn 2.9.0.dev20261203: which wheel to take" in text
    assert "This is a version for testing" in text


def test_only_the_newest_nightlies_stay(
    index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Added one after the other, each with the time at which it came."""
    plain_wheel(tmp_path / "release", "2.8.9")
    index(tmp_path / "release")
    for day in range(1, 34):
        monkeypatch.setenv("SOURCE_DATE_EPOCH", str(EPOCH + day * 86400))
        folder = tmp_path / f"day{day}"
        plain_wheel(folder, f"2.9.0.dev202701{day:02}")
        plain_wheel(folder, f"2.9.0.dev202701{day:02}", "win_amd64")
        assert index(folder, "--keep", 30).exit_code == 0
    project = read(tmp_path / "site")
    kept = [f"2.9.0.dev202701{day:02}" for day in range(4, 34)]
    assert project["versions"] == ["2.8.9", *kept]
    assert len(project["files"]) == 61
    times = [file["upload-time"] for file in project["files"]]
    assert times == sorted(times)
    assert len(set(times)) == 31
    offered = {file["filename"] for file in project["files"]}
    there = {path.name for path in (tmp_path / "site/files").iterdir()}
    assert there == offered | {f"{name}.metadata" for name in offered}


def test_the_same_again_gives_the_same_bytes(
    index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain_wheel(tmp_path / "dist")
    plain_sdist(tmp_path / "dist")
    index(tmp_path / "dist")
    before = tree(tmp_path / "site")
    monkeypatch.setenv("SOURCE_DATE_EPOCH", str(EPOCH + 86400))
    assert index(tmp_path / "dist").exit_code == 0
    assert tree(tmp_path / "site") == before


def test_a_yanked_version_keeps_its_reason(index: Index, tmp_path: Path) -> None:
    plain_wheel(tmp_path / "old", "2.9.0")
    plain_wheel(tmp_path / "new", "2.9.1")
    assert (
        index(tmp_path / "old", tmp_path / "new", "--yank", '2.9.1=wrong <gradients> & "more"').exit_code == 0
    )
    reason = 'wrong <gradients> & "more"'
    for extra in ((), ("--yank", "2.9.1= ")):
        done = index(tmp_path / "old", *extra)
        assert done.exit_code == (1 if extra else 0)
        assert {f["filename"].split("-")[1]: f["yanked"] for f in read(tmp_path / "site")["files"]} == {
            "2.9.0": False,
            "2.9.1": reason,
        }
    links = Elements(tmp_path / "site/simple/flash-attn/index.html").links()
    assert [link.get("data-yanked") for link in links] == [None, reason]
    text = Elements(tmp_path / "site/index.html").text
    assert "flash-attn 2.9.0: which wheel to take" in text
    assert f"2.9.1 (withdrawn: {reason})" in text
    index(tmp_path / "old", "--unyank", "2.9.1")
    assert not any(file["yanked"] for file in read(tmp_path / "site")["files"])


def _flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 3] ^= 0xFF
    path.write_bytes(data)


class TestRefused:
    """One sentence that names the file; an index that was there stays as it was, and no other appears."""

    @pytest.fixture(autouse=True)
    def there(self, index: Index, tmp_path: Path) -> None:
        plain_wheel(tmp_path / "first", "2.8.9")
        index(tmp_path / "first")
        self.before = tree(tmp_path / "site")
        self.index, self.folder = index, tmp_path

    def refused(self, *arguments: object) -> str:
        names = {path.name for path in self.folder.iterdir()}
        for output in (self.folder / "site", self.folder / "fresh"):
            done = self.index(*arguments, output=output)
            assert done.exit_code == 1, done.output
            assert done.exception is None or isinstance(done.exception, SystemExit)
            (line,) = done.output.splitlines()
            assert tree(self.folder / "site") == self.before
            assert {path.name for path in self.folder.iterdir()} == names
        assert line.startswith("error: ")
        return str(line)

    @pytest.mark.parametrize("same", [True, False])
    def test_two_files_of_one_name(self, same: bool) -> None:
        one = plain_wheel(self.folder / "one")
        two = plain_wheel(self.folder / "two", files={} if same else {"flash_attn/more.py": b""})
        line = self.refused(one, two)
        assert f"{one.name} is there twice, with {'the same' if same else 'different'} bytes: " in line
        assert f"{one} and {two}" in line

    def test_one_wheel_in_two_spellings(self) -> None:
        one = plain_wheel(self.folder / "one")
        two = one.with_name(f"Flash.Attn-2.9.0-py3-none-{'.'.join(reversed(PLATFORMS[0].split('.')))}.whl")
        two.write_bytes(one.read_bytes())
        assert f"{one.name} is there twice, with the same bytes: {two} and {one}" in self.refused(one.parent)

    def test_damage(self) -> None:
        wheel = plain_wheel(self.folder / "one")
        _flip(wheel)
        assert f"error: {wheel}: " in self.refused(wheel)
        sdist = plain_sdist(self.folder / "two")
        sdist.write_bytes(sdist.read_bytes()[:-20])
        assert f"{sdist}: it is not a whole tar.gz file" in self.refused(sdist)

    def test_a_wheel_whose_record_is_not_right(self) -> None:
        wheel = plain_wheel(self.folder / "one")
        with zipfile.ZipFile(wheel, "a") as archive:
            archive.writestr("flash_attn/hidden.py", "1")
        assert f"{wheel}: flash_attn/hidden.py is not listed in RECORD" in self.refused(wheel)

    def test_other_contents_than_the_name_says(self) -> None:
        wrong = {"flash_attn-2.9.0.dist-info/METADATA": metadata("2.9.1")}
        wheel = plain_wheel(self.folder / "one", files=wrong)
        line = self.refused(wheel)
        assert "its name says flash-attn 2.9.0, but the metadata inside says flash-attn 2.9.1" in line
        other = plain_wheel(self.folder / "two", name="other")
        assert f"{other}: it is a distribution of other, and this index holds flash-attn" in self.refused(
            other
        )
        broken = {"flash_attn-2.9.0.dist-info/METADATA": b"Name: flash-attn\nRequires-Python: \xff\n"}
        bad = plain_wheel(self.folder / "three", files=broken)
        assert f"{bad}: its metadata is not valid (" in self.refused(bad)
        assert "there is no flash_attn-2.9.0/PKG-INFO in it" in self.refused(
            plain_sdist(self.folder / "four", pkg_info=b"")
        )

    def test_other_bytes_under_a_published_name(self) -> None:
        wheel = plain_wheel(self.folder / "other", "2.8.9", files={"flash_attn/more.py": b""})
        done = self.index(wheel)
        assert done.exit_code == 1
        assert f"error: {wheel} has SHA-256 {sha256(wheel.read_bytes()).hexdigest()}, but " in done.output
        assert "what is published never changes" in done.output
        assert tree(self.folder / "site") == self.before

    def test_places_that_hold_nothing(self) -> None:
        (self.folder / "empty").mkdir()
        (self.folder / "a.txt").touch()
        assert "empty holds no wheel and no source" in self.refused(self.folder / "empty")
        assert "nowhere does not exist" in self.refused(self.folder / "nowhere")
        assert "a.txt is neither a wheel" in self.refused(self.folder / "a.txt")
        bad = self.folder / "a.whl"
        bad.touch()
        assert "a.whl: the file name is not that of a wheel" in self.refused(bad)

    def test_settings(self, monkeypatch: pytest.MonkeyPatch) -> None:
        wheel = plain_wheel(self.folder / "one")
        assert "The index has no version 3.0 to yank; it has" in self.refused(wheel, "--yank", "3.0=x")
        assert "The index has no version 3.0 to unyank; it" in self.refused(wheel, "--unyank", "3.0")
        assert "Version 2.9.0 is not yanked" in self.refused(wheel, "--unyank", "2.9.0")
        assert "'x' is no version" in self.refused(wheel, "--yank", "x=y")
        assert "--yank '2.9.0' gives no reason" in self.refused(wheel, "--yank", "2.9.0")
        assert "--url is 'ftp://x'" in self.refused(wheel, "--url", "ftp://x")
        monkeypatch.setenv("SOURCE_DATE_EPOCH", "soon")
        assert "SOURCE_DATE_EPOCH is 'soon'" in self.refused(wheel)

    @pytest.mark.parametrize("tag", ["linux_x86_64", "macosx_14_0_arm64", "manylinux_2_28_i686", "any"])
    def test_a_platform_that_nobody_installs_from(self, tag: str) -> None:
        """PyPI takes no linux_x86_64, which is what a build leaves that nobody repaired."""
        wheel = plain_wheel(self.folder / "one", platform=tag)
        assert f"{wheel} is tagged {tag}, which is no platform of ci/matrix.toml" in self.refused(wheel)

    def test_a_folder_that_is_no_index(self) -> None:
        wheel = plain_wheel(self.folder / "one")
        for name, make, said in (
            (
                "photos",
                lambda folder: (folder / "photo.jpg").touch(),
                "photos holds photo.jpg, which no index",
            ),
            ("bare", lambda folder: (folder / "files").mkdir(), "index.json can't be read (No such file"),
        ):
            folder = self.folder / name
            folder.mkdir()
            make(folder)
            before = sorted(folder.rglob("*"))
            done = self.index(wheel, output=folder)
            assert done.exit_code == 1
            assert said in done.output
            assert sorted(folder.rglob("*")) == before
        done = self.index(wheel, output=wheel)
        assert f"{wheel} is no folder; name another output." in done.output

    def test_an_index_that_was_changed(self) -> None:
        wheel = plain_wheel(self.folder / "one")
        site = self.folder / "site"
        listing = site / "simple/flash-attn/index.json"
        (published,) = (site / "files").glob("*.whl")
        good, listed = published.read_bytes(), listing.read_bytes()

        def said() -> str:
            before = tree(site)
            done = self.index(wheel)
            assert done.exit_code == 1
            assert tree(site) == before
            return str(done.output)

        _flip(published)
        assert f"{published} has SHA-256 " in said()
        published.unlink()
        assert f"{published} can't be read (No such file" in said()
        published.write_bytes(good)
        extra = site / "files/other.whl"
        extra.touch()
        assert f"{extra} is not in {listing}" in said()
        extra.unlink()
        for text in (b"{", b"[]", b'{"files": [{}]}', b'{"files": [{"filename": "../../x"}]}', b"\xff"):
            listing.write_bytes(text)
            assert f"{listing} is not the JSON that this command writes" in said()
        listing.write_bytes(listed)
        assert self.index(wheel).exit_code == 0


def test_a_failed_write_leaves_the_old_index(
    index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain_wheel(tmp_path / "first", "2.8.9")
    index(tmp_path / "first")
    before = tree(tmp_path / "site")
    new = plain_wheel(tmp_path / "dist")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device", "index.json")

    publish = sys.modules["tools.index.publish"]
    for name in ("project_json", "digest_of"):
        with monkeypatch.context() as patched:
            patched.setattr(publish, name, full)
            done = index(new)
        assert done.exit_code == 1
        assert "The index can't be written: index.json: No space left on device" in done.output
        assert tree(tmp_path / "site") == before
    assert {path.name for path in tmp_path.iterdir()} == {"first", "site", "dist"}
