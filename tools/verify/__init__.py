"""Opens wheels and proves what is inside them.

Reading and judging are apart: ``wheel``, ``fatbin``, ``elf`` and ``pe`` read files into frozen dataclasses,
the ``check_*`` modules yield one sentence for each thing that is wrong with those, ``report`` shows both.
"""
