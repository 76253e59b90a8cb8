"""The command line of `python -m flash_attn`."""

from __future__ import annotations

import argparse
import io
import json
import sys
from collections.abc import Sequence
from typing import NoReturn

from . import installed, judge, machine, report
from .facts import Facts, Run

WELL, UNWELL, MISUSED, INTERRUPTED = 0, 1, 2, 130


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(MISUSED, f"{self.prog}: {message}; --help says what it takes.\n")


def parser() -> argparse.ArgumentParser:
    result = _Parser(
        prog="python -m flash_attn",
        description="Says what is installed, what this machine has, and whether the two fit; runs kernels on "
        "each GPU, compares their results with fp32 and measures their speed.",
        epilog="Exit code: 0 when kernels ran and their results are right (with --no-gpu: when all else is "
        "well), 1 when something is wrong, 2 for wrong arguments.",
        allow_abbrev=False,
    )
    result.add_argument(
        "--no-gpu", action="store_true", help="run nothing on a GPU and don't ask that there be one"
    )
    result.add_argument("--json", action="store_true", help="print one JSON object instead of text")
    return result


def gather(needs_gpu: bool) -> Facts:
    package, torch, kernels = installed.package(), installed.torch(), installed.kernels()
    launcher = installed.launcher()
    driver, gpus = machine.driver_and_gpus()
    runs: tuple[Run, ...] = ()
    if needs_gpu and torch.sees_gpus and launcher.error is None and launcher.driver_error is None:
        young = (gpu for gpu in gpus if gpu.compute_capability >= judge.OLDEST_CAPABILITY)
        runs = tuple(_run(gpu.ordinal) for gpu in young)
    return Facts(package, torch, kernels, launcher, driver, gpus, runs)


def _run(gpu: int) -> Run:
    try:
        from . import smoke
    except Exception as error:  # a torch that has less than it should
        return Run(gpu, error=installed.one_line(error))
    return smoke.run(gpu)


def main(arguments: Sequence[str] | None = None) -> int:
    if isinstance(sys.stdout, io.TextIOWrapper):  # a path may hold letters that a console can't show
        sys.stdout.reconfigure(errors="backslashreplace")
    options = parser().parse_args(arguments)
    needs_gpu = not options.no_gpu
    try:
        facts = gather(needs_gpu)
        verdict = judge.judge(facts, needs_gpu)
        print(json.dumps(report.as_json(facts, verdict)) if options.json else report.text(facts, verdict))
        sys.stdout.flush()
    except KeyboardInterrupt:
        return INTERRUPTED
    except Exception as error:  # a diagnosis that dies would be no help
        sentence = (
            f"The diagnosis itself failed ({type(error).__name__}: {installed.one_line(error)}): report it."
        )
        print(
            json.dumps({"schema": report.SCHEMA, "ok": False, "verdict": sentence})
            if options.json
            else sentence
        )
        return UNWELL
    return WELL if verdict.is_good else UNWELL
