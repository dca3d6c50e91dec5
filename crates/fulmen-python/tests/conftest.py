"""What the tests share: the devices of this machine, and models on them.

FULMEN_TEST_DEVICES (``cpu,wgpu,cuda``) names the devices; without it, those that there are.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

import fulmen
from fulmen import _fulmen

# Examples are not kept from run to run.
settings.register_profile("fulmen", database=None)
settings.load_profile("fulmen")


def device_names() -> list[str]:
    named = os.environ.get("FULMEN_TEST_DEVICES")
    if named:
        return named.split(",")
    found = {device.backend for device in fulmen.devices() if device.unusable is None}
    return [name for name in ("cpu", "wgpu", "cuda") if name in found]


DEVICES = device_names()


def runs_models(name: str) -> bool:
    """Whether a device runs models fast enough for all tests: a software GPU takes long for a token."""
    kinds = {device.kind for device in fulmen.devices() if device.backend == name}
    return "FULMEN_TEST_DEVICES" in os.environ or kinds != {"software gpu"}


@pytest.fixture(scope="session", params=[name for name in DEVICES if runs_models(name)])
def model(request: pytest.FixtureRequest) -> Iterator[fulmen.Model]:
    """The built-in model on each device."""
    with fulmen.Model.load(device=request.param, progress=False) as loaded:
        yield loaded


@pytest.fixture(scope="session")
def cpu_model() -> Iterator[fulmen.Model]:
    """The built-in model on the CPU."""
    with fulmen.Model.load(device="cpu", progress=False) as loaded:
        yield loaded


@pytest.fixture(scope="session")
def story_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of the built-in model."""
    path = tmp_path_factory.mktemp("models") / "story.gguf"
    path.write_bytes(_fulmen.story_bytes())
    return path


@pytest.fixture()
def batch() -> fulmen.Batch:
    """An empty batch."""
    if "wgpu" not in DEVICES:
        pytest.skip("no device of wgpu")
    return fulmen.Batch()


@pytest.fixture()
def cache() -> fulmen.MatmulCache:
    """An empty matmul cache."""
    if "wgpu" not in DEVICES:
        pytest.skip("no device of wgpu")
    return fulmen.MatmulCache()
