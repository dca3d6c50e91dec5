"""A model on a GPU in software: each kind of call once, for it takes long for a token."""

from __future__ import annotations

import numpy as np
import pytest

import fulmen
from conftest import DEVICES, runs_models

PROMPT = "Once upon a time"


@pytest.mark.skipif("wgpu" not in DEVICES or runs_models("wgpu"), reason="no GPU in software")
def test_a_model_on_a_gpu_in_software(cpu_model: fulmen.Model) -> None:
    with fulmen.Model.load(device="wgpu", context=128, max_sequences=2) as model:
        assert model.info.device == "wgpu:0"
        stream = model.generate(PROMPT, max_tokens=4, stream=True)
        assert "".join(stream) == cpu_model.generate(PROMPT, max_tokens=4)
        # Both round in their own way.
        np.testing.assert_allclose(model.embed(PROMPT), cpu_model.embed(PROMPT), rtol=0.1, atol=0.2)
