"""The host side without a GPU: a CUDA driver that only records, and helpers to test the launcher over it.

- ``mock_cuda.c``: the driver, built as ``libcuda.so.1`` or ``nvcuda.dll``;
- ``toolchain``: builds it, and the launcher with a table of kernels made up for tests;
- ``c_structs``: the structs of the C headers as ctypes;
- ``driver``: what was loaded and launched, and how to make a call fail;
- ``launcher``: the launcher's calls and arguments for them;
- ``installed``: finds the package that a wheel installed;
- ``isolated``: runs a test in a fresh interpreter, since driver and launcher keep state as long as it lives.
"""
