"""Progress of long calls: a callable, a bar of tqdm where it is installed, or nothing."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import Any, Callable, Iterator, Union

Progress = Union[bool, Callable[[int, int], object], None]


@contextmanager
def reporter(progress: Progress, what: str, unit: str) -> Iterator[Callable[[int, int], object] | None]:
    """What a call reports to.

    ``None`` shows a bar where tqdm is installed and standard error is a terminal, ``True`` wherever tqdm is
    installed, ``False`` never; a callable gets what is done and the total.
    """
    if callable(progress):
        yield progress
        return
    if progress is False or (progress is None and not sys.stderr.isatty()):
        yield None
        return
    try:
        from tqdm.auto import tqdm  # type: ignore[import-untyped, unused-ignore]
    except ImportError:
        yield None
        return
    bar: Any = None

    def report(done: int, total: int) -> None:
        nonlocal bar
        if bar is None:
            bar = tqdm(total=total, desc=what, unit=unit, unit_scale=True, leave=False)
        if bar.total != total:
            bar.total = total
        bar.update(done - bar.n)

    try:
        yield report
    finally:
        if bar is not None:
            bar.close()
