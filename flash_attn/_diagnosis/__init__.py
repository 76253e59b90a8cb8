"""What `python -m flash_attn` does: gather facts, judge them, print both.

Nothing here imports torch before it is asked to: a torch that is missing or broken is one of the findings.
"""
