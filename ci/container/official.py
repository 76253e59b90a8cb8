"""The official manylinux image that cibuildwheel pins, where it can be pulled."""

from __future__ import annotations

import configparser
import subprocess
import urllib.error
import urllib.request
from importlib.resources import files

POLICY = "manylinux_2_28"


def pinned_image(machine: str) -> str:
    """The image of POLICY that the installed cibuildwheel uses for this machine."""
    pins = configparser.ConfigParser(inline_comment_prefixes=("#",))
    pins.read_string(
        files("cibuildwheel").joinpath("resources/pinned_docker_images.cfg").read_text(encoding="utf-8")
    )
    return pins[machine][POLICY]


def registry_answers(image: str) -> bool:
    """Whether the image's registry can be reached; being refused for lack of a login is an answer."""
    try:
        urllib.request.urlopen(f"https://{image.split('/')[0]}/v2/", timeout=15).close()
    except urllib.error.HTTPError:
        return True
    except OSError:
        return False
    return True


def pull(engine: str, image: str, environment: dict[str, str]) -> bool:
    """Whether the image is on this machine now."""
    here = subprocess.run([engine, "image", "inspect", image], capture_output=True, env=environment)
    if here.returncode == 0:
        return True
    if not registry_answers(image):
        return False
    return subprocess.run([engine, "pull", image], env=environment).returncode == 0
