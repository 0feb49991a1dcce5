"""The calls of iLiT and LPOT, for code that was written for them: change the import line, keep the rest.

    from octune.compat import ilit                             # was: import ilit
    from octune.compat.lpot import Quantization                # was: from lpot import Quantization

Thin: both translate and call :func:`octune.tune`. docs/migrating.md maps the old names to the new ones.
"""
