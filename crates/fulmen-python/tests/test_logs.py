"""Records of Rust libraries in Python's logging."""

from __future__ import annotations

import logging

import pytest

import fulmen
from fulmen import _fulmen


def test_records_reach_the_logs_of_their_modules(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="fulmen"):
        fulmen.devices()
        caplog.clear()
        _fulmen.log_record("warn", "wgpu_core::device", "100 % wrong")
        _fulmen.log_record("info", "naga", "translated")
        _fulmen.log_record("debug", "naga", "too much")
    found = [(record.name, record.levelname, record.getMessage()) for record in caplog.records]
    assert found == [
        ("fulmen.wgpu_core.device", "WARNING", "100 % wrong"),
        ("fulmen.naga", "INFO", "translated"),
    ]


def test_the_level_is_that_of_the_log(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.CRITICAL, logger="fulmen"):
        fulmen.devices()
        _fulmen.log_record("error", "wgpu_hal", "nobody listens")
    with caplog.at_level(logging.ERROR, logger="fulmen"):
        fulmen.devices()
        _fulmen.log_record("error", "wgpu_hal", "somebody listens")
    assert [record.getMessage() for record in caplog.records] == ["somebody listens"]
