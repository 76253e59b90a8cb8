"""The Windows wheel on this machine: pip installs it into CPython for Windows, which runs under Wine.

- ``downloads``: CPython, pip and torch for Windows, by pinned hash;
- ``signature``: whether CPython's programs and libraries are what the Python Software Foundation signed;
- ``wine``: a Windows installation, and programs run in it;
- ``interpreter``: CPython, torch and the wheel under test, put together;
- ``dlls``: the mock driver as ``nvcuda.dll``;
- ``inside/``: what runs in there. Each script writes what it found as JSON; the tests judge it.
"""
