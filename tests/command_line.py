"""What the tests of the command line share."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

REPOSITORY = Path(__file__).parent.parent
SPEC = """\
version: 1
kernels:
  - name: rms_norm
    variant: rms_norm
    hidden_size: 4096
    eps: 1e-5
"""
Run = Callable[..., tuple[int, str, str]]


class Renderer:
    """Stands in for normgen.render, so that a test can change what it makes."""

    suffix = ""
    template = "source"

    def render_body(self, spec: object) -> SimpleNamespace:
        kernels = spec.kernels  # type: ignore[attr-defined]
        lines = [f"{norm.name} = {norm.eps!r}\n" for norm in kernels]
        return SimpleNamespace(
            text='"""Norms."""\n\n' + "".join(lines) + self.suffix,
            templates={"module.py.jinja": self.template},
        )


def snapshot(root: Path) -> dict[Path, tuple[bytes, int]]:
    paths = (path for path in root.rglob("*") if path.is_file())
    return {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in paths}


def process(*argv: str, **environment: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-m", "normgen", *argv],
        capture_output=True,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY), **environment},
        check=False,
    )
