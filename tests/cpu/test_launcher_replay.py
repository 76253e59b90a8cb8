"""The program that compares launchers of different platforms says what a launcher in this process says."""

from __future__ import annotations

from pathlib import Path

import pytest
from mock_driver import driver, replay, toolchain
from mock_driver.driver import Launch, MockDriver
from mock_driver.isolated import isolated
from mock_driver.kernel_table import write_fatbins
from mock_driver.launcher import Launcher, LauncherError, append_args

pytestmark = pytest.mark.skipif(toolchain.compiler() is None, reason="the mock driver needs a C compiler")


def line(launch: Launch) -> str:
    grid, block = (",".join(map(str, sizes)) for sizes in (launch.grid, launch.block))
    numbers = f"{grid} {block} {launch.smem_bytes} {launch.device} {launch.stream:x}"
    return f"{launch.kernel} {numbers} {launch.params.hex()}"


@isolated
def test_replay_prints_what_was_launched(tmp_path: str) -> None:
    kernels = Path(tmp_path) / "kernels"
    digests = write_fatbins(kernels)
    calls = replay.sample_calls()
    path = replay.write_calls(Path(tmp_path) / "calls", digests, calls)
    printed = replay.run([], toolchain.replay(), toolchain.launcher(), toolchain.mock_driver(), kernels, path)

    mock = MockDriver(toolchain.mock_driver(), driver.HOPPER)
    launcher = Launcher(toolchain.launcher())
    launcher.set_kernels(kernels, digests)
    expected: list[str] = []
    for args in calls:
        before = mock.launch_count
        try:
            launcher.run(args) if type(args) is type(append_args()) else launcher.run_with_scratch(args)
        except LauncherError as error:
            expected.append(f"error: {error}")
        expected += map(line, mock.launches[before:])
    assert printed == expected
    assert len(printed) > 32 * 2 * 11
    assert len([text for text in printed if text.startswith("error: ")]) == 4
