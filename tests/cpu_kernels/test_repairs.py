"""The lengths that old SGLangs overwrite, on a backend that overwrites them as those do."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from sgl_kernel import _operators, _repairs


def _module() -> Any:
    class Backend:
        extend_metadata: Any = None
        draft_decode_metadata: Any = None

        def forward_extend(self, q: Any, k: Any, v: Any, layer: Any, forward_batch: Any, save: bool = True) -> Any:
            if q == "fail":
                raise ValueError(q)
            return forward_batch.seq_lens, save

        def forward_decode(self, q: Any, k: Any, v: Any, layer: Any, forward_batch: Any) -> Any:
            return forward_batch.seq_lens

    module: Any = ModuleType("backend")
    module.IntelAMXAttnBackend = Backend
    return module


@pytest.mark.parametrize(("version", "repaired"), [("0.5.16", True), ("0.5.18.post1", True), ("0.5.19", False)])
def test_old_versions_get_the_lengths_worked_out(monkeypatch: pytest.MonkeyPatch, version: str, repaired: bool) -> None:
    module = _module()
    monkeypatch.setitem(sys.modules, _repairs._BACKEND_MODULE, module)
    for _ in range(2):  # looked up by every backend that is built
        _repairs.repair_lengths(version)
    backend, batch = module.IntelAMXAttnBackend(), SimpleNamespace(seq_lens="own")
    assert backend.forward_extend(1, 2, 3, 4, batch, save=False) == ("own", False)
    backend.extend_metadata = ("verify", "extend", "start", None)
    backend.draft_decode_metadata = ("table", "draft", "rows")
    assert backend.forward_extend(1, 2, 3, 4, batch) == ("verify" if repaired else "own", True)
    assert backend.forward_decode(1, 2, 3, 4, forward_batch=batch) == ("draft" if repaired else "own")
    with pytest.raises(ValueError, match="fail"):
        backend.forward_extend("fail", 2, 3, 4, batch)
    assert batch.seq_lens == "own"


def test_the_installed_sglang_is_repaired_if_and_only_if_it_needs_it() -> None:
    spec = importlib.util.find_spec("sglang")
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("SGLang is not installed")
    folder = Path(next(iter(spec.submodule_search_locations)))
    source = (folder / "srt/layers/attention/intel_amx_backend.py").read_text()
    resolved = source.index("= self.extend_metadata\n")
    overwrites = re.search(r"^ +seq_lens = forward_batch\.seq_lens$", source[resolved : resolved + 400], re.MULTILINE)
    version = _operators.numbers(importlib.metadata.version("sglang"))
    assert (overwrites is not None) == (_repairs.FIRST <= version <= _repairs.LAST)
