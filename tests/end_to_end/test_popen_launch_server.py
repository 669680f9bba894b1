"""Our `popen_launch_server` can stand where SGLang's stands, and says why no server came."""

from __future__ import annotations

import ast
import importlib.util
import inspect
import tempfile
from pathlib import Path

import pytest

from guarded_serve.facts.ports import free_port
from guarded_serve.profile.sglang_parser import installed_version
from tests.support.popen_launch_server import popen_launch_server


@pytest.mark.skipif(installed_version() is None, reason="SGLang is not installed")
def test_it_has_sglangs_signature() -> None:
    spec = importlib.util.find_spec("sglang")
    assert spec is not None
    assert spec.origin is not None
    source = Path(spec.origin).with_name("test") / "test_utils.py"
    if not source.is_file():
        pytest.skip("this SGLang comes without its test tools")
    nodes = ast.parse(source.read_text()).body
    theirs = next(node for node in nodes if isinstance(node, ast.FunctionDef) and node.name == "popen_launch_server")
    defaults = [ast.literal_eval(default) for default in theirs.args.defaults]
    ours = inspect.signature(popen_launch_server).parameters
    assert list(ours) == [argument.arg for argument in theirs.args.args]
    assert [own.default for own in ours.values() if own.default is not inspect.Parameter.empty] == defaults


def test_a_launch_that_is_refused_is_told_at_once(tmp_path: Path) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    with tempfile.TemporaryFile() as output, pytest.raises(RuntimeError, match="the launcher ended with 66"):
        popen_launch_server(str(tmp_path / "absent"), url, 60, return_stdout_stderr=(output, output))


def test_a_disaggregated_server_is_anothers() -> None:
    with pytest.raises(ValueError, match="launch_pd_server"):
        popen_launch_server("m", "http://127.0.0.1:1", 60, pd_separated=True)
