"""Facts and verdict as text for people and as JSON for programs. docs/diagnosis.md lists the keys."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from .facts import Facts, Gpu, Run, Speed
from .judge import Verdict, code_for, dotted_capability, dotted_cuda

SCHEMA = 1


def text(facts: Facts, verdict: Verdict) -> str:
    rows = [*_rows(facts), *(("note", note) for note in verdict.notes)]
    rows += [("problem", problem.sentence) for problem in verdict.problems[1:]]
    rows.append(("verdict", verdict.sentence))
    return "\n".join(f"{name + ':' if name else '':<12}{value}" for name, value in rows)


def _rows(facts: Facts) -> Iterator[tuple[str, str]]:
    package, torch, kernels, driver = facts.package, facts.torch, facts.kernels, facts.driver
    tags = package.distributions[0].wheel_tags if package.distributions else ()
    yield "flash_attn", f"{package.version}, wheel {', '.join(tags) or 'unknown'}"
    yield "folder", package.folder
    yield "python", f"{package.python} on {package.platform}, {package.executable}"
    yield "torch", _torch(facts)
    if torch.folder:
        yield "", torch.folder
    if kernels.manifest_error is None:
        code = [*(f"sm_{name}" for name in kernels.sass), *(f"compute_{name} (PTX)" for name in kernels.ptx)]
        yield "kernels", f"{', '.join(kernels.families)} for {', '.join(code)}"
        yield "", f"{kernels.files} files, compiled with CUDA {kernels.toolkit}"
    if driver.is_found:
        cuda = dotted_cuda(driver.cuda) if driver.cuda is not None else "unknown"
        yield "driver", f"{driver.release or 'version unknown'}, for CUDA {cuda}"
    else:
        yield "driver", "none"
    for gpu in facts.gpus:
        yield f"GPU {gpu.ordinal}", _gpu(gpu, facts)
        for run in facts.runs:
            if run.gpu == gpu.ordinal:
                yield from (("", line) for line in _run(run))


def _torch(facts: Facts) -> str:
    torch = facts.torch
    if torch.version is None:
        return "not installed"
    if torch.import_error is not None:
        return f"{torch.version}, which can't be imported"
    return f"{torch.version}, " + (f"built for CUDA {torch.cuda}" if torch.cuda else "built without CUDA")


def _gpu(gpu: Gpu, facts: Facts) -> str:
    return (
        f"{gpu.name}, compute capability {dotted_capability(gpu.compute_capability)}, "
        f"{gpu.multiprocessors} multiprocessors, {gpu.smem_per_block // 1024} KB of shared memory a block; "
        f"runs {code_for(gpu, facts.kernels) or 'none of the kernels'}"
    )


def _run(run: Run) -> Iterator[str]:
    for one in run.comparisons:
        yield (
            f"{one.name}: {'right' if one.is_right else 'WRONG'} (off by {one.error:.2g}, allowed "
            f"{one.allowed:.2g})"
        )
    if run.error is not None:
        yield f"failed: {run.error}"
    if run.speed is not None:
        yield from _speed(run.speed)
    if run.speed_error is not None:
        yield f"speed not measured: {run.speed_error}"


def _speed(speed: Speed) -> Iterator[str]:
    forward = f"forward {speed.forward_ms:.3f} ms ({speed.forward_tflops:.0f} TFLOP/s)"
    backward = f"backward {speed.backward_ms:.3f} ms" if speed.backward_ms is not None else ""
    yield f"speed ({speed.shape}): " + ", ".join(filter(None, (forward, backward)))
    if speed.backend is None:
        yield f"nothing to compare it with: {speed.note}"
        return
    times = [
        f"{name} {other / own:.2f} times as fast"
        for name, own, other in (
            ("forward", speed.forward_ms, speed.torch_forward_ms),
            ("backward", speed.backward_ms, speed.torch_backward_ms),
        )
        if own and other
    ]
    note = f" ({speed.note})" if speed.note else ""
    yield f"against PyTorch's {speed.backend}{note}: {', '.join(times)}"


def as_json(facts: Facts, verdict: Verdict) -> dict[str, Any]:
    package = facts.package
    driver = asdict(facts.driver)
    cuda = driver.pop("cuda")
    runs = {run.gpu: run for run in facts.runs}
    return {
        "schema": SCHEMA,
        "ok": verdict.is_good,
        "verdict": verdict.sentence,
        "problems": [asdict(problem) for problem in verdict.problems],
        "notes": list(verdict.notes),
        "version": package.version,
        "wheel_tags": list(package.distributions[0].wheel_tags) if package.distributions else [],
        "folder": package.folder,
        "python": {"version": package.python, "executable": package.executable},
        "platform": package.platform,
        "distributions": [asdict(one) for one in package.distributions],
        "folders": list(package.folders),
        "extensions": [asdict(one) for one in package.extensions],
        "torch": asdict(facts.torch),
        "kernels": asdict(facts.kernels),
        "launcher": asdict(facts.launcher),
        "driver": {**driver, "cuda": None if cuda is None else dotted_cuda(cuda)},
        "gpus": [
            {
                **asdict(gpu),
                "compute_capability": dotted_capability(gpu.compute_capability),
                "code": code_for(gpu, facts.kernels),
                "run": _run_as_json(runs[gpu.ordinal]) if gpu.ordinal in runs else None,
            }
            for gpu in facts.gpus
        ],
    }


def _run_as_json(run: Run) -> dict[str, Any]:
    result = asdict(run)
    del result["gpu"]
    result["comparisons"] = [
        {**asdict(one), "error": _finite(one.error), "is_right": one.is_right} for one in run.comparisons
    ]
    return result


def _finite(number: float) -> float | None:
    """JSON has no NaN and no infinity."""
    return number if abs(number) < float("inf") else None
