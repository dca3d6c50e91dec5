"""Signals, forks and the end of the interpreter, each in a process of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest


def run(code: str, timeout: float = 60) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=timeout)


def interrupted(code: str) -> tuple[int, str, float]:
    """Sends SIGINT after the first line of output; the exit code, what was printed, and the seconds since."""
    # A shell starts what runs in the background with SIGINT ignored, and Python leaves it so.
    code = "import signal\nsignal.signal(signal.SIGINT, signal.default_int_handler)\n" + code
    process = subprocess.Popen(
        [sys.executable, "-u", "-c", code], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert process.stdout is not None
    try:
        first = process.stdout.readline()
        time.sleep(0.2)
        process.send_signal(signal.SIGINT)
        began = time.monotonic()
        rest, _ = process.communicate(timeout=60)
        return process.returncode, first + rest, time.monotonic() - began
    finally:
        process.kill()


GENERATE = """
import os, tempfile, fulmen
folder = tempfile.TemporaryDirectory()
story, out = os.path.join(folder.name, "story.gguf"), os.path.join(folder.name, "out.gguf")
with open(story, "wb") as file:
    file.write(fulmen._fulmen.story_bytes())
model = fulmen.Model.load(device="cpu")
print("loaded", flush=True)
try:
    {call}
except KeyboardInterrupt:
    print("interrupted")
print(model.generate("Once upon a time", max_tokens=4))
"""


@pytest.mark.parametrize(
    "call",
    [
        "[model.generate('Once', ignore_end=True) for _ in range(1000)]",
        "[list(model.generate('Once', ignore_end=True, stream=True)) for _ in range(1000)]",
        "[model.generate_many(['Once', 'One'] * 16, ignore_end=True) for _ in range(1000)]",
        "[model.perplexity('Once upon a time ' * 100, window=64) for _ in range(10000)]",
        "[model.embed(['Once upon a time ' * 50] * 20) for _ in range(10000)]",
        "[model.logits('Once upon a time ' * 90, all=True) for _ in range(10000)]",
        "[model.score('Once upon a time ' * 90) for _ in range(10000)]",
        "[fulmen.Model.load(device='cpu').close() for _ in range(10000)]",
        "[fulmen.quantize(story, out, 'q4_0', replace=True) for _ in range(10000)]",
    ],
    ids=["generate", "stream", "many", "perplexity", "embed", "logits", "score", "load", "quantize"],
)
def test_ctrl_c_ends_the_call_and_the_model_goes_on(call: str) -> None:
    code, output, seconds = interrupted(GENERATE.format(call=call))
    assert code == 0, output
    assert "interrupted" in output and ", there was a" in output
    assert seconds < 20


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_after_a_fork_the_error_is_clear_and_a_new_model_works() -> None:
    done = run(
        """
import os, fulmen
model = fulmen.Model.load(device="cpu")
stream = model.generate("Once", stream=True, ignore_end=True)
child = os.fork()
if child == 0:
    for call in (lambda: model.generate("x"), lambda: model.info, lambda: next(stream), model.close):
        try:
            call()
        except fulmen.ForkError as error:
            assert "spawn" in str(error)
        else:
            os._exit(3)
    del model, stream
    own = fulmen.Model.load(device="cpu")
    os._exit(0 if own.generate("Once upon a time", max_tokens=4) == ", there was a" else 4)
_, status = os.waitpid(child, 0)
print(os.waitstatus_to_exitcode(status), model.generate("Once upon a time", max_tokens=4))
"""
    )
    assert done.stdout.strip() == "0 , there was a", done.stdout + done.stderr


@pytest.mark.parametrize(
    "code",
    [
        "s = m.generate('Once', stream=True, ignore_end=True); next(s)",
        "s = m.generate_many(['Once'] * 4, stream=True, ignore_end=True); next(s)",
        "import threading; threading.Thread(target=lambda: m.generate('Once'), daemon=True).start()",
        "import sys; sys.s = m.generate('Once', stream=True, ignore_end=True); sys.m = m",
        "m.close()",
        "m.generate_many(['Once'], max_tokens=2); raise SystemExit(0)",
    ],
    ids=["stream", "many", "daemon", "kept", "closed", "engine"],
)
def test_the_interpreter_ends_without_a_crash(code: str) -> None:
    done = run(f"import fulmen; m = fulmen.Model.load(device='cpu')\n{code}")
    assert done.returncode == 0, (done.returncode, done.stderr)
    assert done.stderr == ""


def test_spawned_processes_have_models_of_their_own(tmp_path: Path) -> None:
    script = tmp_path / "spawned.py"
    script.write_text(
        """
import multiprocessing
import fulmen

def work(prompt):
    return str(fulmen.Model.load(device="cpu").generate(prompt, max_tokens=4))

if __name__ == "__main__":
    fulmen.Model.load(device="cpu")
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        print(pool.map(work, ["Once upon a time"] * 2))
"""
    )
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "[', there was a', ', there was a']", done.stderr


def test_importing_is_quick_and_starts_nothing() -> None:
    done = run(
        "import threading, time; t = time.perf_counter(); import fulmen; "
        "print(threading.active_count(), time.perf_counter() - t < 5)"
    )
    assert done.stdout.split() == ["1", "True"], done.stderr


def test_ctrl_c_ends_a_download_and_the_process_with_it(tmp_path: Path) -> None:
    # A server that accepts and says nothing.
    code, output, seconds = interrupted(
        f"""
import socket, fulmen
server = socket.create_server(("127.0.0.1", 0))
print("loaded", flush=True)
try:
    endpoint = f"http://127.0.0.1:{{server.getsockname()[1]}}"
    fulmen.Model.from_pretrained("org/story", endpoint=endpoint, cache_dir={str(tmp_path)!r})
except KeyboardInterrupt:
    print("interrupted")
"""
    )
    assert code == 0 and "interrupted" in output, output
    # The end of the interpreter waits for work for 10 seconds.
    assert seconds < 8, seconds


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_locks_of_other_threads_are_free_after_a_fork() -> None:
    done = run(
        """
import logging, os, signal, threading, fulmen
from fulmen import _fulmen
logging.getLogger("fulmen").setLevel(logging.CRITICAL)
stop = threading.Event()

def write():
    while not stop.is_set():
        _fulmen.log_record("warn", "a", "b")

def work():
    while not stop.is_set():
        try:
            fulmen.quantize("/no/such.gguf", "/no/out.gguf")
        except fulmen.FulmenError:
            pass

threads = [threading.Thread(target=call) for call in (write, write, work)]
for thread in threads:
    thread.start()
codes = set()
for _ in range(60):
    child = os.fork()
    if child == 0:
        signal.alarm(10)
        _fulmen.log_record("warn", "a", "b")
        try:
            fulmen.quantize("/no/such.gguf", "/no/out.gguf")
        except fulmen.FileError:
            os._exit(0)
        os._exit(3)
    codes.add(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    if codes != {0}:
        break
stop.set()
for thread in threads:
    thread.join()
print(codes)
"""
    )
    assert done.stdout.strip() == "{0}", done.stdout + done.stderr
