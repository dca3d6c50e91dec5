"""The documentation, the examples and the stubs."""

from __future__ import annotations

import ast
import doctest
import importlib
import inspect
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import fulmen
from conftest import DEVICES
from fulmen import _fulmen

ROOT = Path(os.environ.get("FULMEN_REPOSITORY", Path(__file__).resolve().parents[3]))
EXAMPLES = ROOT / "examples" / "python"
MODULES = ["fulmen", "fulmen._arrays", "fulmen._graph", "fulmen._model", "fulmen._text", "fulmen._tokenizer",
           "fulmen.gguf"]  # fmt: skip
needs_gpu = pytest.mark.skipif("wgpu" not in DEVICES, reason="no device of wgpu")


@pytest.mark.parametrize("name", MODULES)
def test_docstrings(name: str) -> None:
    if name == "fulmen._arrays" and "wgpu" not in DEVICES:
        pytest.skip("no device of wgpu")
    failed, tried = doctest.testmod(importlib.import_module(name))
    assert tried > 0 and failed == 0


@pytest.mark.parametrize("name", ["chat", "many_prompts", "search", "structured", "ffn"])
def test_examples(name: str) -> None:
    if name == "ffn" and "wgpu" not in DEVICES:
        pytest.skip("no device of wgpu")
    done = subprocess.run(
        [sys.executable, EXAMPLES / f"{name}.py"], capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) > 2


@needs_gpu
def test_the_notebook() -> None:
    cells = json.loads((EXAMPLES / "roofline.ipynb").read_text("utf-8"))["cells"]
    code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    assert len(code) == 3 and all(not cell["outputs"] for cell in cells if cell["cell_type"] == "code")
    names: dict[str, object] = {}
    for cell in code:
        exec(compile(cell, "roofline.ipynb", "exec", dont_inherit=True), names)
    assert names["measured"] and names["figure"]


def snippets(path: Path) -> list[str]:
    return re.findall(r"```python\n(.*?)```", path.read_text("utf-8"), re.DOTALL)


@needs_gpu
@pytest.mark.parametrize("name", ["README.md", "docs/python.md", "crates/fulmen-python/README.md"])
def test_snippets_of_the_documents(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Files that the snippets name.
    for file in ("model.gguf", "model-f16.gguf"):
        (tmp_path / file).write_bytes(_fulmen.story_bytes())
    monkeypatch.chdir(tmp_path)
    found = snippets(ROOT / name)
    assert found
    names: dict[str, object] = {}
    for at, snippet in enumerate(found):
        exec(compile(snippet, f"{name}, snippet {at}", "exec", dont_inherit=True), names)


def test_what_python_costs_is_measured() -> None:
    command = [sys.executable, EXAMPLES / "overhead.py", "cpu", "", "24", "64"]
    asked = "generate\nstream\narrays\n"
    done = subprocess.run(command, input=asked, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    generate, stream, arrays = map(json.loads, done.stdout.splitlines())
    assert generate["whole"] > generate["first"] > 0 and stream["decode"] > 0
    assert {"write_us", "read_us", "replay_us", "layer_us"} <= set(arrays) or "wgpu" not in DEVICES
    assert all(value > 0 for value in arrays.values())


def test_everything_public_is_documented() -> None:
    for name in fulmen.__all__:
        exported = getattr(fulmen, name)
        assert exported.__doc__, name
        if inspect.isclass(exported) and not issubclass(exported, BaseException):
            for attribute, member in vars(exported).items():
                called = inspect.isfunction(member) or isinstance(member, property)
                if called and not attribute.startswith("_"):
                    assert member.__doc__, f"{name}.{attribute}"


def test_the_stubs_have_what_the_module_has() -> None:
    stubs = ast.parse((Path(fulmen.__file__).parent / "_fulmen.pyi").read_text("utf-8"))
    types = {"Answer", "DeviceDict"}
    for node in stubs.body:
        if isinstance(node, ast.FunctionDef):
            assert callable(getattr(_fulmen, node.name))
        if isinstance(node, ast.ClassDef) and node.name not in types:
            native = getattr(_fulmen, node.name)
            methods = {item.name for item in node.body if isinstance(item, ast.FunctionDef)} - {"__init__"}
            there = {method for method in vars(native) if not method.startswith("_")}
            assert methods == there, node.name
    declared = {node.name for node in stubs.body if isinstance(node, (ast.FunctionDef, ast.ClassDef))} - types
    there = {name for name in dir(_fulmen) if not name.startswith("_")}
    assert declared == there


def test_the_package_is_typed() -> None:
    assert (Path(fulmen.__file__).parent / "py.typed").is_file()
    assert re.fullmatch(r"\d+\.\d+\.\d+", fulmen.__version__)
