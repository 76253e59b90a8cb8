"""`python -m flash_attn` as a command: mock GPUs, a stand-in for torch, installations gone wrong."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import Any

import pytest
from mock_driver import toolchain
from mock_driver.driver import AMPERE, DEVICES, RTX_4090, TURING, Device
from mock_driver.package import install

from flash_attn import __version__

pytestmark = pytest.mark.skipif(toolchain.compiler() is None, reason="the mock driver needs a C compiler")

SOURCES = Path(__file__).parents[2]
TORCH = """
__version__ = "{version}"
class version:
    cuda = {cuda!r}
class cuda:
    is_available = staticmethod(lambda: {sees_gpus})
    @staticmethod
    def init():
        raise RuntimeError("No CUDA GPUs are available\\nmore of it")
"""


class Machine:
    """A site-packages with this package in it, a torch that only says what it is, and mock GPUs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.site = folder / "site-packages"
        self.package = self.site / "flash_attn"
        shutil.copytree(SOURCES / "flash_attn", self.package, ignore=shutil.ignore_patterns(
            "__pycache__", "lib", "kernels"
        ))  # fmt: skip
        shutil.copy(SOURCES / "flash_attn_2_cuda.py", self.site)
        install(self.package)
        self.record(__version__, self.site)
        self.write_torch()
        toolchain.mock_driver()
        self.environment = {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": str(self.site),
            "LD_LIBRARY_PATH": str(toolchain.mock_driver().parent),
        }
        self.use(DEVICES[3])

    def record(self, version: str, site: Path, tag: str = "py3-none-any") -> None:
        folder = site / f"flash_attn-{version}.dist-info"
        folder.mkdir(parents=True)
        (folder / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: flash-attn\nVersion: {version}\n", encoding="utf-8"
        )
        (folder / "WHEEL").write_text(f"Wheel-Version: 1.0\nTag: {tag}\n", encoding="utf-8")

    def write_torch(
        self, version: str = "2.13.0+cu130", cuda: str | None = "13.0", sees_gpus: bool = False
    ) -> None:
        text = TORCH.format(version=version, cuda=cuda, sees_gpus=sees_gpus)
        self.write_module("torch", text)

    def write_module(self, name: str, text: str) -> None:
        (self.site / name).mkdir(exist_ok=True)
        (self.site / name / "__init__.py").write_text(text, encoding="utf-8")

    def use(self, *devices: Device) -> None:
        self.environment["MOCK_CUDA_DEVICES"] = ";".join(
            f"{one.compute_capability},{one.multiprocessors},{one.smem_optin},{one.l2_bytes}"
            for one in devices
        )

    def run(self, *arguments: str, cwd: Path | None = None, flag: str = "-S") -> Any:
        """-S: without the site-packages of the Python that runs the tests, where torch is."""
        return subprocess.run(
            [sys.executable, flag, "-m", "flash_attn", *arguments],
            env=self.environment, cwd=cwd or self.folder, capture_output=True, text=True, timeout=120,
            check=False,
        )  # fmt: skip

    def diagnose(self, *arguments: str, cwd: Path | None = None) -> tuple[int, list[str], dict[str, Any]]:
        """Exit code, codes of the problems, and all of the JSON; the text must agree."""
        result = self.run("--json", *arguments, cwd=cwd)
        assert "Traceback" not in result.stderr
        found = json.loads(result.stdout)
        text = self.run(*arguments, cwd=cwd)
        assert "Traceback" not in text.stderr
        assert text.returncode == result.returncode == (0 if found["ok"] else 1)
        assert text.stdout.splitlines()[-1] == f"verdict:    {found['verdict']}"
        return result.returncode, [problem["code"] for problem in found["problems"]], found


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_all_well_without_running_anything(machine: Machine) -> None:
    code, problems, found = machine.diagnose("--no-gpu")
    assert (code, problems) == (0, [])
    assert found["version"] == __version__
    assert found["wheel_tags"] == ["py3-none-any"]
    assert Path(found["folder"]) == machine.package.resolve()
    assert found["driver"] == {"is_found": True, "cuda": "13.0", "release": None, "error": None}
    (gpu,) = found["gpus"]
    assert (gpu["compute_capability"], gpu["code"], gpu["run"]) == ("9.0", "sm_90", None)
    assert found["launcher"]["error"] is None
    assert found["launcher"]["driver_error"] is None


def test_several_gpus(machine: Machine) -> None:
    manifest = machine.package / "kernels/manifest.json"
    contents = json.loads(manifest.read_text(encoding="utf-8"))
    contents["architectures"] = {"sass": ["80", "120"], "ptx": ["80"]}
    manifest.write_text(json.dumps(contents), encoding="utf-8")
    machine.use(AMPERE, RTX_4090, DEVICES[3], DEVICES[8], TURING)
    code, problems, found = machine.diagnose("--no-gpu")
    assert (code, problems) == (0, [])
    assert [gpu["code"] for gpu in found["gpus"]] == ["sm_80", "sm_80", "compute_80", "sm_120", None]
    assert any("7.5" in note for note in found["notes"])


def test_without_torch(machine: Machine) -> None:
    shutil.rmtree(machine.site / "torch")
    for arguments in ((), ("--no-gpu",)):
        code, problems, found = machine.diagnose(*arguments)
        assert code == 1
        assert problems[0] == "no_torch"
        assert found["torch"]["version"] is None
        assert len(found["gpus"]) == 1  # all else is told nevertheless


def test_torch_that_fails_to_import(machine: Machine) -> None:
    machine.write_module("torch", "raise OSError('[WinError 126] c10.dll or one of its dependencies')")
    code, problems, found = machine.diagnose("--no-gpu")
    assert (code, problems) == (1, ["broken_torch"])
    assert "c10.dll" in found["verdict"]


def test_remains_of_a_torch(machine: Machine) -> None:
    shutil.rmtree(machine.site / "torch")
    (machine.site / "torch").mkdir()  # an empty folder imports as a namespace
    assert machine.diagnose("--no-gpu")[1] == ["broken_torch"]


@pytest.mark.parametrize(
    ("version", "cuda", "problem"),
    [("2.13.0+cpu", None, "cpu_torch"), ("2.9.1+cu128", "12.8", "old_torch")],
)
def test_torch_that_does_not_do(machine: Machine, version: str, cuda: str | None, problem: str) -> None:
    machine.write_torch(version, cuda)
    for arguments in ((), ("--no-gpu",)):
        code, problems, _ = machine.diagnose(*arguments)
        assert code == 1
        assert problems[0] == problem


def test_torch_that_sees_no_gpu(machine: Machine) -> None:
    code, problems, found = machine.diagnose()
    assert (code, problems) == (1, ["blind_torch"])
    assert "No CUDA GPUs are available" in found["verdict"]
    assert "more of it" not in found["verdict"]


def test_a_run_that_fails_is_told(machine: Machine) -> None:
    machine.write_torch(sees_gpus=True)  # and has no tensors
    code, problems, found = machine.diagnose()
    assert (code, problems) == (1, ["kernel_failed"])
    assert found["gpus"][0]["run"]["error"]


def test_no_driver(machine: Machine) -> None:
    machine.environment["LD_LIBRARY_PATH"] = str(machine.folder)
    code, problems, _ = machine.diagnose()
    assert (code, problems) == (1, ["no_driver"])
    assert machine.diagnose("--no-gpu")[:2] == (0, [])


def test_old_driver(machine: Machine) -> None:
    machine.environment["MOCK_CUDA_DRIVER_VERSION"] = "12090"
    for arguments in ((), ("--no-gpu",)):
        code, problems, found = machine.diagnose(*arguments)
        assert (code, problems) == (1, ["old_driver"])
        assert "12.9" in found["verdict"]
        assert "580" in found["verdict"]
        assert len(found["gpus"]) == 1


@pytest.mark.parametrize(
    ("failure", "problem"),
    [
        ("cuInit=803", "broken_driver"),
        ("cuDriverGetVersion=999", "broken_driver"),
        ("cuDeviceGetAttribute=1", "broken_driver"),
    ],
)
def test_driver_that_fails(machine: Machine, failure: str, problem: str) -> None:
    machine.environment["MOCK_CUDA_FAIL"] = failure
    code, problems, found = machine.diagnose()
    assert (code, problems) == (1, [problem])
    assert failure.partition("=")[0] in found["verdict"]


def test_driver_without_an_entry_point(machine: Machine) -> None:
    machine.environment["LD_LIBRARY_PATH"] = str(toolchain.mock_driver_without_get_proc_address().parent)
    code, problems, found = machine.diagnose("--no-gpu")
    assert (code, problems) == (1, ["broken_driver"])
    assert "cuGetProcAddress" in found["verdict"]


def test_something_else_under_the_driver_s_name(machine: Machine) -> None:
    machine.environment["LD_LIBRARY_PATH"] = str(machine.folder)
    (machine.folder / "libcuda.so.1").write_bytes(b"not a library")
    assert machine.diagnose()[1] == ["no_driver"]
    shutil.copy(toolchain.launcher(), machine.folder / "libcuda.so.1")
    assert machine.diagnose()[1] == ["broken_driver"]


def test_no_gpu(machine: Machine) -> None:
    machine.use()
    assert machine.diagnose()[:2] == (1, ["no_gpu"])
    assert machine.diagnose("--no-gpu")[:2] == (0, [])


def test_old_gpu(machine: Machine) -> None:
    machine.use(TURING)
    code, problems, found = machine.diagnose("--no-gpu")
    assert (code, problems) == (1, ["old_gpu"])
    assert "7.5" in found["verdict"]


def test_two_copies_in_two_places(machine: Machine) -> None:
    other = machine.folder / "other"
    shutil.copytree(machine.package, other / "flash_attn")
    machine.record("2.8.3", other, "cp311-cp311-linux_x86_64")
    machine.environment["PYTHONPATH"] += os.pathsep + str(other)
    code, problems, found = machine.diagnose("--no-gpu")
    assert (code, problems) == (1, ["two_copies"])
    assert found["folders"] == [str(machine.package.resolve()), str((other / "flash_attn").resolve())]
    assert "pip uninstall flash-attn" in found["verdict"]
    assert [one["version"] for one in found["distributions"]] == [__version__, "2.8.3"]


def test_a_folder_of_sources_before_the_installed_one(machine: Machine) -> None:
    """As when Python is started in a checkout."""
    checkout = machine.folder / "checkout"
    shutil.copytree(machine.package, checkout / "flash_attn")
    _, problems, found = machine.diagnose("--no-gpu", cwd=checkout)
    assert problems == ["two_copies"]
    assert f"from another folder than {checkout.resolve()}" in found["verdict"]


def test_two_records_of_one_folder(machine: Machine) -> None:
    machine.record("2.8.3", machine.site)
    code, problems, found = machine.diagnose("--no-gpu")
    assert (code, problems) == (1, ["two_copies"])
    assert "2.8.3" in found["verdict"]


def test_files_of_another_version_than_the_record(machine: Machine) -> None:
    (machine.site / f"flash_attn-{__version__}.dist-info").rename(machine.folder / "gone")
    machine.record("2.8.3", machine.site)
    assert machine.diagnose("--no-gpu")[:2] == (1, ["mixed_versions"])


def test_no_record_and_damaged_records(machine: Machine) -> None:
    info = machine.site / f"flash_attn-{__version__}.dist-info"
    (info / "WHEEL").unlink()
    assert machine.diagnose("--no-gpu")[:2] == (0, [])
    (info / "METADATA").write_bytes(b"\xff\xfe\x00")
    code, _, found = machine.diagnose("--no-gpu")
    assert code == 0
    assert found["distributions"] == []
    shutil.rmtree(info)
    code, _, found = machine.diagnose("--no-gpu")
    assert code == 0
    assert "pip knows of no installed flash-attn" in found["notes"][0]


def test_old_extension_module(machine: Machine) -> None:
    old = machine.site / f"flash_attn_2_cuda{EXTENSION_SUFFIXES[0]}"
    old.write_bytes(b"an old extension")
    code, problems, found = machine.diagnose("--no-gpu")
    assert (code, problems) == (1, ["old_extension"])
    assert str(old.resolve()) in found["verdict"]


def test_extension_module_that_this_python_does_not_take(machine: Machine) -> None:
    (machine.site / "flash_attn_2_cuda.cp39-win_amd64.pyd").write_bytes(b"of another Python")
    code, problems, found = machine.diagnose("--no-gpu")
    assert (code, problems) == (0, [])
    assert any("cp39" in note for note in found["notes"])


def test_kernels_missing_and_damaged(machine: Machine) -> None:
    folder = machine.package / "kernels"
    fatbins = sorted(folder.glob("*.fatbin"))
    fatbins[0].write_bytes(fatbins[0].read_bytes()[:-1])
    _, problems, found = machine.diagnose("--no-gpu")
    assert problems == ["damaged_kernels"]
    assert fatbins[0].name in found["verdict"]
    fatbins[0].unlink()
    fatbins[1].unlink()
    fatbins[1].mkdir()
    _, problems, found = machine.diagnose("--no-gpu")
    assert problems == ["damaged_kernels"]
    assert "is missing, and 1 more" in found["verdict"]
    for text in ('{"schema": 1', "[]", '{"schema": 1, "version": 1, "toolkit": 1, "architectures": 3, '
                 '"fatbins": []}'):  # fmt: skip
        (folder / "manifest.json").write_text(text, encoding="utf-8")
        assert machine.diagnose("--no-gpu")[1][0] == "no_kernels"
    shutil.rmtree(folder)
    assert machine.diagnose("--no-gpu")[1] == ["no_kernels"]


def test_launcher_missing_and_damaged(machine: Machine) -> None:
    library = machine.package / "lib" / "libflash_attn.so"
    library.write_bytes(b"no library")
    _, problems, found = machine.diagnose("--no-gpu")
    assert problems == ["broken_launcher"]
    assert str(library.resolve()) in found["verdict"]
    library.unlink()
    assert machine.diagnose("--no-gpu")[1] == ["broken_launcher"]


def test_wrong_arguments_are_one_sentence(machine: Machine) -> None:
    for arguments in (["--nonsense"], ["--no"], ["file"], ["--json=3"]):
        result = machine.run(*arguments)
        assert result.returncode == 2
        assert result.stdout == ""
        assert len(result.stderr.splitlines()) == 1
    result = machine.run("--help")
    assert result.returncode == 0
    assert "--no-gpu" in result.stdout


def test_folder_with_letters_that_the_console_lacks(machine: Machine) -> None:
    place = machine.folder / "Vidéos ✓"
    machine.site.rename(place)
    machine.environment |= {"PYTHONPATH": str(place), "PYTHONIOENCODING": "ascii"}
    result = machine.run("--no-gpu")
    assert result.returncode == 0, result.stderr
    assert "Vid\\xe9os \\u2713" in result.stdout
    assert json.loads(machine.run("--json", "--no-gpu").stdout)["folder"].endswith("Vidéos ✓/flash_attn")


def test_import_without_torch_still_fails_as_imports_do(machine: Machine) -> None:
    shutil.rmtree(machine.site / "torch")
    program = "import sys; sys.argv = ['-m', 'flash_attn']; import flash_attn"
    for arguments in (("-c", "import flash_attn"), ("-c", program)):
        result = subprocess.run(
            [sys.executable, "-S", *arguments],
            env=machine.environment, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert "No module named 'torch'" in result.stderr


@pytest.mark.parametrize("start", [["-m", "flash_attn"], ["-mflash_attn"], ["-m", "flash_attn.__main__"],
                                   ["-OSmflash_attn"]])  # fmt: skip
def test_every_way_to_start_it(machine: Machine, start: list[str]) -> None:
    shutil.rmtree(machine.site / "torch")
    result = subprocess.run(
        [sys.executable, "-S", *start, "--no-gpu"],
        env=machine.environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert result.returncode == 1
    assert "PyTorch is not installed" in result.stdout.splitlines()[-1]


def test_documented_keys_and_codes(machine: Machine) -> None:
    import re

    from mock_driver.made_up import CASES

    text = (SOURCES / "docs/diagnosis.md").read_text(encoding="utf-8")
    problems = text[text.index("## Problems") : text.index("## JSON")]
    assert set(re.findall(r"^\| `([a-z_]+)` \|", problems, re.MULTILINE)) == set(CASES)
    keys = re.findall(r"^\| ((?:`[a-z_]+`(?:, )?)+) \|", text[text.index("## JSON") :], re.MULTILINE)
    documented = [key for cell in keys for key in re.findall(r"`([a-z_]+)`", cell)]
    found = machine.diagnose("--no-gpu")[2]
    assert sorted(documented) == sorted(found)
    for parts in (found["torch"], found["kernels"], found["launcher"], found["driver"], found["gpus"][0]):
        for key in parts:
            assert f"`{key}`" in text[text.index("## JSON") :], key
