"""A drop-in replacement for ``sglang.launch_server`` with guardrails.

Importing this package imports neither torch nor SGLang; a test holds that.
"""

__version__ = "0.1.0"
