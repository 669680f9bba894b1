"""SGLang's own test kit for speculative decoding against a running server: `python -m unittest` of this module.

The server is named by environment variables; SGLang is imported here, and so not in the tests' process.
"""

from __future__ import annotations

import os
import unittest

from sglang.test.kits.spec_decoding_kit import SpecDecodingMixin


class TestSpecDecoding(SpecDecodingMixin, unittest.TestCase):
    """As SGLang's tests use it."""

    base_url = os.environ["KIT_BASE_URL"]
    model = os.environ["KIT_MODEL"]
    accept_length_thres = float(os.environ["KIT_ACCEPT_LENGTH"])
    bs_1_speed_attempts = 1  # of up to 2,048 tokens each: minutes on a busy CPU
    bs_1_speed_thres = float(os.environ["KIT_SPEED"])
