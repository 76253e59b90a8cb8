"""The container engine: which one is there, and the settings under which podman runs without systemd."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from ci.container.errors import ContainerError

DEBIAN_PACKAGES = "podman runc debootstrap"
# More than a build needs, and less than podman leaves its own children (32768 processes).
# A machine that allows less gives the container no more.
WANTED_LIMITS = {"nofile": 65536, "nproc": 16384}


def answers(*command: str) -> bool:
    """Whether the program is there and ends well."""
    try:
        return subprocess.run(command, capture_output=True, timeout=60).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


def find_engine() -> str:
    """docker or podman: what CIBW_CONTAINER_ENGINE names, else the first that works; or ContainerError."""
    named = os.environ.get("CIBW_CONTAINER_ENGINE", "").split(";")[0].strip()
    if named:
        if named not in ("docker", "podman"):
            raise ContainerError(f"CIBW_CONTAINER_ENGINE names {named!r}; it must be docker or podman.")
        if not answers(named, "version"):
            raise ContainerError(
                f"CIBW_CONTAINER_ENGINE names {named}, but `{named} version` fails; install or start it."
            )
        return named
    for engine, question in (("docker", "info"), ("podman", "version")):
        if answers(engine, question):
            return engine
    raise ContainerError(
        "Neither docker nor podman runs here, and Linux wheels are built in a container; "
        f"on Debian, as root: apt-get install -y --no-install-recommends {DEBIAN_PACKAGES}"
    )


def _soft_limit(name: str) -> int:
    import resource  # only where there are containers

    soft, _ = resource.getrlimit(getattr(resource, f"RLIMIT_{name.upper()}"))
    return WANTED_LIMITS[name] if soft == resource.RLIM_INFINITY else min(soft, WANTED_LIMITS[name])


def podman_settings(folder: Path) -> dict[str, str]:
    """Environment under which podman runs on a machine without systemd, network bridges or raised limits.

    Nothing where CONTAINERS_CONF already names a file: then somebody has chosen.
    """
    if os.environ.get("CONTAINERS_CONF"):
        return {}
    runtime = next((name for name in ("runc", "crun") if shutil.which(name)), None)
    if runtime is None:
        raise ContainerError(
            "podman needs a runtime, and neither runc nor crun was found; "
            "on Debian, as root: apt-get install -y --no-install-recommends runc"
        )
    limits = ", ".join(f'"{name}={_soft_limit(name)}:{_soft_limit(name)}"' for name in WANTED_LIMITS)
    settings = folder / "containers.conf"
    settings.parent.mkdir(parents=True, exist_ok=True)
    settings.write_text(
        f'[containers]\nnetns = "host"\ndefault_ulimits = [{limits}]\n\n'
        f'[engine]\nruntime = "{runtime}"\ncgroup_manager = "cgroupfs"\nevents_logger = "file"\n',
        encoding="utf-8",
    )
    return {"CONTAINERS_CONF": str(settings)}
