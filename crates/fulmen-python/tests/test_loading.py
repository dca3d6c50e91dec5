"""Loading and closing models, devices, errors."""

from __future__ import annotations

import gc
import hashlib
import json
import logging
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

import fulmen
from conftest import DEVICES


def test_a_file(story_path: Path) -> None:
    with fulmen.Model.load(story_path, device="cpu", context=64, kv="q8_0", threads=1) as model:
        assert model.info.context == 64 and model.info.kv == "Q8_0"
        assert model.generate("Once upon a time", max_tokens=4) == ", there was a"
        assert model.metadata["general.architecture"] == model.info.architecture
        assert "parameters, on cpu" in repr(model)


def test_the_context_ends_the_text() -> None:
    with fulmen.Model.load(device="cpu", context=16) as model:
        text = model.generate("Once upon a time", ignore_end=True)
        assert text.finish_reason == "length" and len(text.tokens) + text.prompt_tokens == 16


def test_key_figures(cpu_model: fulmen.Model) -> None:
    info = cpu_model.info
    assert info.vocabulary == 2048 and info.parameters > 5_000_000 and info.device == "cpu"
    assert info.heads % info.kv_heads == 0 and info.context <= info.model_context


def test_progress_is_reported(story_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    fulmen.Model.load(story_path, device="cpu", progress=lambda *at: seen.append(at)).close()
    assert seen[-1][0] == seen[-1][1] > 0 and seen == sorted(seen)


def test_an_exception_of_the_progress_ends_loading(story_path: Path) -> None:
    def stop(done: int, total: int) -> None:
        raise LookupError("enough")

    with pytest.raises(LookupError, match="enough"):
        fulmen.Model.load(story_path, device="cpu", progress=stop)


def test_tqdm_is_used_where_it_is(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    fulmen.Model.load(device="cpu", progress=True).close()
    assert "load" in capsys.readouterr().err


def test_loading_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "fulmen"):
        fulmen.Model.load(device="cpu").close()
    assert "loaded the built-in model" in caplog.text


def test_a_closed_model() -> None:
    model = fulmen.Model.load(device="cpu")
    stream = model.generate("Once upon a time", max_tokens=20, stream=True)
    model.close()
    model.close()
    assert model.closed and repr(model) == "<fulmen.Model, closed>"
    assert len(stream.result.tokens) == 20, "what runs goes on"
    for call in (
        lambda: model.generate("x"),
        lambda: model.generate_many(["x"]),
        lambda: model.embed("x"),
        lambda: model.logits("x"),
        lambda: model.score("x"),
        lambda: model.info,
        lambda: model.tokenizer,
        lambda: model.chat([]),
        lambda: model.graph(),
    ):
        with pytest.raises(fulmen.ClosedError, match="the model was closed"):
            call()


def test_models_are_freed() -> None:
    for _ in range(3):
        model = fulmen.Model.load(device="cpu")
        model.generate_many(["a", "b"], max_tokens=2)
        del model
        gc.collect()


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"path": "/no/such/model.gguf"}, fulmen.FileError, "No such file"),
        ({"path": "no-such-model"}, OSError, "No such file"),
        ({"path": "nobody/nothing-here"}, fulmen.FileError, "from_pretrained"),
        ({"path": "/"}, fulmen.FileError, "is a directory"),
        ({"path": "/dev/null"}, fulmen.FileError, "not a file"),
        ({"device": "tpu"}, fulmen.ArgumentError, 'unknown device "tpu"'),
        ({"device": "cpu:7"}, fulmen.DeviceNotFoundError, "does not exist"),
        ({"device": ""}, ValueError, "unknown device"),
        ({"kv": "q4_k"}, fulmen.ArgumentError, "F16, Q8_0 or F32"),
        ({"kv": "f99"}, fulmen.ArgumentError, "unknown type name"),
        ({"context": 10**9}, fulmen.ContextError, "exceeds the model's limit"),
        ({"context": -1}, OverflowError, None),
        ({"context": 2**70}, OverflowError, None),
        ({"threads": 0}, fulmen.ArgumentError, "threads must be at least 1"),
        ({"path": 5}, TypeError, None),
        ({"path": "a\0b"}, fulmen.FileError, None),
        ({"path": "\ud800.gguf"}, UnicodeEncodeError, None),
    ],
)
def test_wrong_options_are_exceptions(
    options: dict[str, Any], error: type[Exception], words: str | None
) -> None:
    with pytest.raises(error, match=words):
        fulmen.Model.load(**{"device": "cpu", **options})


@pytest.mark.parametrize("size", [0, 3, 20, 1000, 100_000])
def test_damaged_files_are_exceptions(story_path: Path, tmp_path: Path, size: int) -> None:
    path = tmp_path / "cut.gguf"
    path.write_bytes(story_path.read_bytes()[:size])
    with pytest.raises(fulmen.FormatError, match="cut.gguf"):
        fulmen.Model.load(path, device="cpu")


def test_another_file_is_an_exception(tmp_path: Path) -> None:
    path = tmp_path / "text.gguf"
    path.write_text("This is not a model." * 100)
    with pytest.raises(fulmen.FormatError, match='not "GGUF"'):
        fulmen.Model.load(path)


def test_the_hub_is_asked_for_what_is_not_cached(tmp_path: Path) -> None:
    with pytest.raises(fulmen.HubError):
        fulmen.Model.from_pretrained("a/b", endpoint="http://127.0.0.1:9", cache_dir=tmp_path)
    with pytest.raises(fulmen.ArgumentError, match="is not a model"):
        fulmen.Model.from_pretrained("a/b/c/d e", update=True)


class Hub(BaseHTTPRequestHandler):
    """A hub on loopback with one repository: ``org/story`` with ``story.gguf``."""

    COMMIT = "0123456789abcdef0123456789abcdef01234567"
    model = b""
    requests: list[str] = []

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = self.path.split("?")[0]
        self.requests.append(path)
        if path == "/api/models/org/story/revision/main":
            files = [{"rfilename": "story.gguf", "size": len(self.model)}]
            listed = {"id": "org/story", "sha": self.COMMIT, "siblings": files}
            return self.answer(200, json.dumps(listed).encode())
        if path == f"/org/story/resolve/{self.COMMIT}/story.gguf":
            digest = hashlib.sha256(self.model).hexdigest()
            headers = {"X-Repo-Commit": self.COMMIT, "ETag": f'"{digest}"'}
            return self.answer(200, self.model, headers)
        return self.answer(404, b"", {"X-Error-Code": "RepoNotFound"})

    def answer(self, status: int, body: bytes, headers: dict[str, str] = {}) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def log_message(self, format: str, *arguments: Any) -> None:
        """Nothing is printed."""


@pytest.fixture()
def hub(story_path: Path) -> Iterator[str]:
    """The address of a hub."""
    Hub.model, Hub.requests = story_path.read_bytes(), []
    with ThreadingHTTPServer(("127.0.0.1", 0), Hub) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_a_model_of_a_hub_is_downloaded_once(
    hub: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[int, int]] = []
    options: dict[str, Any] = {"device": "cpu", "context": 64}
    with fulmen.Model.from_pretrained(
        "org/story", endpoint=hub, cache_dir=tmp_path, progress=lambda *at: seen.append(at), **options
    ) as model:
        assert model.info.context == 64
        assert model.generate("Once upon a time", max_tokens=4) == ", there was a"
    size = len(Hub.model)
    assert (size, size) in seen, "the download reports all of its bytes"
    assert [path for path in tmp_path.rglob("story.gguf") if path.read_bytes() == Hub.model]
    asked = len(Hub.requests)
    # The name of the model finds it in the cache, and the hub is not asked again.
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setenv("HF_ENDPOINT", hub)
    for load in (fulmen.Model.from_pretrained, fulmen.Model.load):
        with load("org/story", **options) as model:
            assert model.generate("Once upon a time", max_tokens=4) == ", there was a"
    assert len(Hub.requests) == asked
    with pytest.raises(fulmen.HubError, match="org/other"):
        fulmen.Model.from_pretrained("org/other")


def test_devices() -> None:
    found = fulmen.devices()
    assert [device.selector for device in found if device.backend == "cpu"] == ["cpu"]
    assert sum(device.best for device in found) == 1
    for device in found:
        assert device.kind and device.name and isinstance(device.facts, dict)
    missing = fulmen.unavailable_backends()
    assert set(missing) | {device.backend for device in found} == {"cpu", "wgpu", "cuda"}
    assert all(missing.values()), "each says why"


def test_the_devices_of_the_tests() -> None:
    assert "cpu" in DEVICES


def test_exceptions_are_those_of_python() -> None:
    assert issubclass(fulmen.OutOfMemoryError, MemoryError)
    assert issubclass(fulmen.ArgumentError, ValueError)
    assert issubclass(fulmen.FileError, OSError)
    assert issubclass(fulmen.UnsupportedError, NotImplementedError)
    for name in fulmen.__all__:
        exported = getattr(fulmen, name)
        if isinstance(exported, type) and issubclass(exported, Exception):
            assert issubclass(exported, fulmen.FulmenError) and exported.__doc__


def test_graphs_of_a_model(cpu_model: fulmen.Model) -> None:
    assert "attention" in cpu_model.graph("decode")
    assert cpu_model.graph("prefill", 4, fused=False).count("\n") > cpu_model.graph("prefill", 4).count("\n")
    assert cpu_model.graph(dot=True).startswith("digraph")
    with pytest.raises(fulmen.ArgumentError, match='"decode" or "prefill"'):
        cpu_model.graph("train")


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="no /proc on this system")
def test_nothing_goes_on_behind_a_load_that_was_ended(story_path: Path) -> None:
    def stop(done: int, total: int) -> None:
        raise LookupError("enough")

    for check in (True, False):
        with pytest.raises(LookupError, match="enough"):
            fulmen.Model.load(story_path, device="cpu", progress=stop, check_weights=check)
        assert "story.gguf" not in Path("/proc/self/maps").read_text()


def test_a_download_that_is_ended_asks_for_no_more(
    hub: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed, stop = threading.Event(), threading.Event()

    def drip(self: Hub, status: int, body: bytes, headers: dict[str, str] = {}) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "HEAD":
            return
        if self.path.startswith("/api"):
            self.wfile.write(body)
            return
        try:
            while not stop.is_set():
                self.wfile.write(b"x" * 16)
                self.wfile.flush()
                time.sleep(0.02)
        except OSError:
            closed.set()

    def ended(done: int, total: int) -> None:
        if done > 0:
            raise LookupError("enough")

    monkeypatch.setattr(Hub, "answer", drip)
    with pytest.raises(LookupError, match="enough"):
        fulmen.Model.from_pretrained("org/story", endpoint=hub, cache_dir=tmp_path, progress=ended)
    try:
        assert closed.wait(20), "the connection stays open"
    finally:
        stop.set()
