"""What the facts mean: what is wrong, worst first, each with what to do. Asks nothing of the machine."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from .. import _remedy
from .facts import Facts, Gpu, Kernels, Run

OLDEST_CAPABILITY = 80  # Ampere
OLDEST_CUDA = 13000  # of CUDA 13.0, as cuDriverGetVersion counts
OLDEST_RELEASE = 580  # the first driver for CUDA 13
OLDEST_TORCH = (2, 10)

INSTALL_TORCH = "install --force-reinstall torch --index-url https://download.pytorch.org/whl/cu130"
UNINSTALL = "uninstall flash-attn"
UPDATE_DRIVER = (
    f"install version {OLDEST_RELEASE} or newer from https://www.nvidia.com/drivers and restart the computer"
)


@dataclass(frozen=True)
class Problem:
    """One sentence: what is wrong, what was found, what to do. The code is for programs."""

    code: str
    sentence: str


@dataclass(frozen=True)
class Verdict:
    problems: tuple[Problem, ...]
    notes: tuple[str, ...]
    sentence: str

    @property
    def is_good(self) -> bool:
        return not self.problems


def judge(facts: Facts, needs_gpu: bool) -> Verdict:
    """Good only when kernels ran and were right or, with needs_gpu False, when all else is well."""
    problems = [*_torch(facts), *_copies(facts), *_installation(facts)]
    machine = list(_machine(facts, needs_gpu))
    problems += machine
    if needs_gpu and not problems:
        problems += _runs(facts)
    else:
        problems += _failed_runs(facts.runs)
    notes = tuple(_notes(facts, needs_gpu))
    if problems:
        return Verdict(tuple(problems), notes, problems[0].sentence)
    if not needs_gpu:
        return Verdict((), notes, "flash_attn is installed as it should be; no kernel was run (--no-gpu).")
    return Verdict(
        (), notes, "flash_attn works on this machine: its kernels ran and their results are right."
    )


def code_for(gpu: Gpu, kernels: Kernels) -> str | None:
    """The code of the fatbins that a GPU runs: sm_80 for 8.9; else PTX, such as compute_120; else None."""
    major, minor = divmod(gpu.compute_capability, 10)
    best = None
    for name in sorted(kernels.sass, key=_number):
        sass_major, sass_minor = divmod(_number(name), 10)
        fits = sass_major == major and sass_minor <= minor
        if fits and (not name.endswith("a") or sass_minor == minor):
            best = f"sm_{name}"
    if best:
        return best
    newest = [name for name in kernels.ptx if not name[-1:].isalpha()]
    runnable = [name for name in newest if _number(name) <= gpu.compute_capability]
    return f"compute_{max(runnable, key=_number)}" if runnable else None


def _number(architecture: str) -> int:
    digits = re.match(r"\d+", architecture)
    return int(digits[0]) if digits else 0


def dotted_cuda(version: int) -> str:
    """13010 as 13.1."""
    return f"{version // 1000}.{version % 1000 // 10}"


def dotted_capability(capability: int) -> str:
    """90 as 9.0."""
    return f"{capability // 10}.{capability % 10}"


def _pip(facts: Facts, arguments: str) -> str:
    return _remedy.pip(arguments, facts.package.executable)


def _reinstall(facts: Facts) -> str:
    return _remedy.reinstall(facts.package.origin, facts.package.executable)


# ---- torch ----


def _torch(facts: Facts) -> Iterator[Problem]:
    torch = facts.torch
    if torch.version is None:
        yield Problem("no_torch", f"PyTorch is not installed: run {_pip(facts, INSTALL_TORCH)}")
    elif torch.import_error is not None:
        yield Problem(
            "broken_torch",
            f"PyTorch {torch.version} can't be imported ({torch.import_error}): run "
            f"{_pip(facts, INSTALL_TORCH)}",
        )
    elif _release_of(torch.version) < OLDEST_TORCH:
        yield Problem(
            "old_torch",
            f"This is PyTorch {torch.version}, and flash_attn needs {'.'.join(map(str, OLDEST_TORCH))} or "
            f"newer: run {_pip(facts, INSTALL_TORCH)}",
        )
    elif torch.cuda is None:
        yield Problem(
            "cpu_torch",
            f"This PyTorch ({torch.version}) is built without CUDA, so it can't use an NVIDIA GPU: run "
            f"{_pip(facts, INSTALL_TORCH)}",
        )


def _release_of(version: str) -> tuple[int, ...]:
    numbers = re.findall(r"\d+", version)[:2]
    return tuple(map(int, numbers)) if numbers else OLDEST_TORCH  # one that can't be read isn't judged


# ---- what is installed ----


def _copies(facts: Facts) -> Iterator[Problem]:
    package = facts.package
    if len(package.folders) > 1:
        used, *others = package.folders
        yield Problem(
            "two_copies",
            f"flash_attn is on the path {len(package.folders)} times, and Python takes {used} rather than "
            f"{' or '.join(others)}: {_remedy_for_copies(facts)}.",
        )
    elif len(package.distributions) > 1:
        records = ", ".join(f"{one.version} in {one.folder}" for one in package.distributions)
        yield Problem(
            "two_copies",
            f"flash-attn is installed {len(package.distributions)} times ({records}): run "
            f"{_pip(facts, UNINSTALL)} until it finds none, then install it once.",
        )
    elif package.distributions and package.distributions[0].version != package.version:
        yield Problem(
            "mixed_versions",
            f"The files of flash_attn are of version {package.version}, but pip has installed "
            f"{package.distributions[0].version}: {_reinstall(facts)}",
        )
    imported = [extension.path for extension in package.extensions if extension.is_imported]
    if imported:
        yield Problem(
            "old_extension",
            f"An old extension module lies in the way of flash_attn's own flash_attn_2_cuda: delete the file "
            f"{imported[0]}",
        )


def _remedy_for_copies(facts: Facts) -> str:
    used = re.sub(r"[/\\][^/\\]*$", "", facts.package.folders[0])  # of either system, for facts of either
    if used not in [one.folder for one in facts.package.distributions]:
        return f"run Python from another folder than {used}, or take it off PYTHONPATH"
    return f"run {_pip(facts, UNINSTALL)} until it finds none, then install it once"


def _installation(facts: Facts) -> Iterator[Problem]:
    kernels, launcher = facts.kernels, facts.launcher
    if kernels.manifest_error is not None:
        yield Problem("no_kernels", kernels.manifest_error)
    elif kernels.damaged:
        more = f", and {len(kernels.damaged) - 1} more like it" if len(kernels.damaged) > 1 else ""
        yield Problem("damaged_kernels", f"{kernels.damaged[0]}{more}: {_reinstall(facts)}")
    elif launcher.error is not None:
        yield Problem("broken_launcher", launcher.error)


# ---- the machine ----


def _machine(facts: Facts, needs_gpu: bool) -> Iterator[Problem]:
    driver = facts.driver
    if not driver.is_found:
        if needs_gpu:
            yield Problem(
                "no_driver",
                f"There is no NVIDIA driver ({driver.error or 'none was found'}): {UPDATE_DRIVER}.",
            )
        return
    if driver.cuda is not None and driver.cuda < OLDEST_CUDA:
        release = f" {driver.release}" if driver.release else ""
        yield Problem(
            "old_driver",
            f"The NVIDIA driver{release} is for CUDA {dotted_cuda(driver.cuda)}, and flash_attn needs one "
            f"for CUDA {dotted_cuda(OLDEST_CUDA)}: {UPDATE_DRIVER}.",
        )
        return
    if driver.error is not None or driver.cuda is None:
        yield Problem("broken_driver", f"The NVIDIA driver doesn't answer ({driver.error}): {UPDATE_DRIVER}.")
        return
    if not facts.gpus:
        if needs_gpu:
            yield Problem(
                "no_gpu",
                "The NVIDIA driver shows no GPU: see whether nvidia-smi lists one and CUDA_VISIBLE_DEVICES "
                "doesn't hide it.",
            )
        return
    if facts.launcher.driver_error is not None:
        yield Problem("broken_driver", facts.launcher.driver_error)
    yield from _gpus(facts)
    torch = facts.torch
    if needs_gpu and torch.cuda is not None and torch.import_error is None and not torch.sees_gpus:
        yield Problem(
            "blind_torch",
            f"PyTorch {torch.version} sees no GPU ({torch.cuda_error or 'it does not say why'}), though the "
            f"driver shows {facts.gpus[0].name}: run {_pip(facts, INSTALL_TORCH)}",
        )


def _gpus(facts: Facts) -> Iterator[Problem]:
    young = [gpu for gpu in facts.gpus if gpu.compute_capability >= OLDEST_CAPABILITY]
    if not young:
        yield Problem("old_gpu", _too_old(facts.gpus[0]) + ": use a GPU of the RTX 30 series or newer.")
    elif facts.kernels.manifest_error is None:
        for gpu in young:
            if code_for(gpu, facts.kernels) is None:
                yield Problem(
                    "no_code",
                    f"The kernels hold no code for GPU {gpu.ordinal} ({gpu.name}, compute capability "
                    f"{dotted_capability(gpu.compute_capability)}): install a wheel of flash-attn that has "
                    "it.",
                )


def _too_old(gpu: Gpu) -> str:
    return (
        f"GPU {gpu.ordinal} ({gpu.name}) has compute capability {dotted_capability(gpu.compute_capability)}, "
        f"and flash_attn needs {dotted_capability(OLDEST_CAPABILITY)} (Ampere) or newer"
    )


# ---- what ran ----


def _runs(facts: Facts) -> Iterator[Problem]:
    if not any(run.comparisons and run.error is None for run in facts.runs) and not any(
        run.error for run in facts.runs
    ):
        yield Problem("not_run", "No kernel ran, so nothing is known of its result: run it again on a GPU.")
    yield from _failed_runs(facts.runs)


def _failed_runs(runs: tuple[Run, ...]) -> Iterator[Problem]:
    for run in runs:
        if run.error is not None:
            yield Problem("kernel_failed", f"A call on GPU {run.gpu} failed: {run.error}")
        wrong = next((one for one in run.comparisons if not one.is_right), None)
        if wrong is not None:
            yield Problem(
                "wrong_result",
                f"A result on GPU {run.gpu} is wrong ({wrong.name} is off by {wrong.error:.3g}, more than "
                f"{wrong.allowed:.3g}): don't use it, and report this output with the model of the GPU.",
            )


# ---- what isn't wrong ----


def _notes(facts: Facts, needs_gpu: bool) -> Iterator[str]:
    package = facts.package
    if not package.distributions:
        yield "pip knows of no installed flash-attn: it runs from a folder on the path."
    for extension in package.extensions:
        if not extension.is_imported:
            yield f"{extension.path} is an old extension module that is not used; delete it."
    old = [gpu for gpu in facts.gpus if gpu.compute_capability < OLDEST_CAPABILITY]
    if len(old) < len(facts.gpus):
        yield from (_too_old(gpu) + "; it can't be used." for gpu in old)
    for gpu in facts.gpus:
        code = code_for(gpu, facts.kernels)
        if code and code.startswith("compute_"):
            yield f"GPU {gpu.ordinal} runs PTX, which the driver compiles when a kernel is first called."
    if not needs_gpu and not facts.driver.is_found:
        yield "There is no NVIDIA driver here."
    elif not needs_gpu and not facts.gpus and facts.driver.error is None:
        yield "There is no GPU here."
