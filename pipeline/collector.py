"""The collector of cycles while a program starts.

An import of SQLAlchemy, Celery or transformers makes some hundred thousand objects. None of them is garbage, and a
collector that looks through them again and again takes a fifth of the time that the start takes.
"""

from __future__ import annotations

import gc


def hold() -> None:
    """No collection until :func:`release`. For the entry of a program, where nothing is garbage yet."""
    gc.disable()


def release() -> None:
    """Collect from here on, and never look at what is there already; nothing happens where nobody held it."""
    if not gc.isenabled():
        gc.freeze()
        gc.enable()
