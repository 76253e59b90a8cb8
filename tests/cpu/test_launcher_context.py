"""Contexts, devices, stream capture and threads."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from mock_driver import driver, toolchain
from mock_driver.driver import MockDriver
from mock_driver.isolated import isolated
from mock_driver.launcher import Launcher, LauncherError, append_args, bwd_args, fwd_args

pytestmark = pytest.mark.skipif(toolchain.compiler() is None, reason="the mock driver needs a C compiler")


def start(tmp_path: str, *devices: driver.Device) -> tuple[MockDriver, Launcher]:
    mock = MockDriver(toolchain.mock_driver(), *(devices or (driver.HOPPER,)))
    launcher = Launcher(toolchain.launcher())
    launcher.use_made_up_kernels(Path(tmp_path))
    assert mock.library.cuInit(0) == 0
    return mock, launcher


@isolated
def test_the_current_context_is_put_back(tmp_path: str) -> None:
    mock, launcher = start(tmp_path, driver.HOPPER, driver.AMPERE)
    for context in (None, mock.other_context(0), mock.other_context(1)):
        for device in (0, 1):
            mock.current_context = context
            launcher.run(fwd_args(device=device))
            assert mock.launches[-1].device == device
            assert mock.current_context == context
            mock.fail("cuLaunchKernel", 1)
            with pytest.raises(LauncherError):
                launcher.run(fwd_args(device=device))
            mock.fail("cuLaunchKernel", 0)
            assert mock.current_context == context
    assert mock.count("cuDevicePrimaryCtxRetain") == 2


@isolated
def test_the_primary_context_stays_when_it_is_current(tmp_path: str) -> None:
    import ctypes

    mock, launcher = start(tmp_path)
    primary = ctypes.c_void_p()
    assert mock.library.cuDevicePrimaryCtxRetain(ctypes.byref(primary), 0) == 0
    mock.current_context = primary.value
    before = mock.count("cuCtxSetCurrent")
    launcher.run(fwd_args())
    assert mock.count("cuCtxSetCurrent") == before
    assert mock.current_context == primary.value


@isolated
def test_kernels_may_be_loaded_while_a_stream_is_captured(tmp_path: str) -> None:
    mock, launcher = start(tmp_path)
    mock.set_capturing(True)
    launcher.run(fwd_args(head_dim=192))
    launcher.run_with_scratch(bwd_args(head_dim=256))
    launcher.run(append_args())
    assert mock.launch_count == 5
    # The thread's capture mode is as it was: a call that allocates is still forbidden.
    assert mock.library.cuLibraryLoadData(None, None, None, None, 0, None, None, 0) == 900


@isolated
def test_nothing_asked_launches_nothing(tmp_path: str) -> None:
    mock, launcher = start(tmp_path)
    launcher.run(fwd_args(batch=0))
    launcher.run(fwd_args(seqlen_q=0))
    launcher.run(fwd_args(batch=0, num_splits=0, seqlen_q=1))
    launcher.run_with_scratch(bwd_args(batch=0))
    launcher.run_with_scratch(bwd_args(seqlen_q=0, seqlen_k=0))
    launcher.run(append_args(batch=0))
    assert mock.launch_count == 0
    assert mock.load_count == 0


@isolated
def test_threads_load_once_and_keep_their_own_errors(tmp_path: str) -> None:
    mock, launcher = start(tmp_path, driver.HOPPER, driver.RTX_4090)
    threads, rounds = 8, 50
    barrier = threading.Barrier(threads)
    failures: list[BaseException] = []

    def work(number: int) -> None:
        try:
            barrier.wait()
            for i in range(rounds):
                head_dim = 32 + i % 4 * 32
                launcher.run(fwd_args(device=number % 2, head_dim=head_dim, stream=number))
                with pytest.raises(LauncherError, match=f"nheads is {-number}: "):
                    launcher.run(fwd_args(nheads=-number, nheads_k=1))
                assert launcher.last_error.startswith(f"nheads is {-number}: ")
        except BaseException as failure:
            failures.append(failure)

    workers = [threading.Thread(target=work, args=(number,)) for number in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not failures, failures
    assert mock.launch_count == threads * rounds
    assert mock.load_count == 4
    assert mock.count("cuInit") == 2  # the test's own and the launcher's
    assert mock.count("cuDevicePrimaryCtxRetain") == 2
    for launch in mock.launches:
        assert launch.device == launch.stream % 2
    assert len({launch.thread for launch in mock.launches}) == threads
