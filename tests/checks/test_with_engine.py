"""`check --with-engine`: SGLang's own word beside the prediction; a clear sentence where there is no SGLang."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from guarded_serve.checks.drafter_engine import compare, engine_load
from guarded_serve.checks.runner import run_checks
from guarded_serve.engine_rules.drafter import LLAMA_HEAD
from guarded_serve.exit_codes import ExitCode
from guarded_serve.facts.bag import Facts
from guarded_serve.facts.engine_load import EngineLoad, LoadedParameter, NoAnswer, with_engine_load
from guarded_serve.facts.model import ModelFacts, gather_models
from guarded_serve.findings import Report, Severity
from guarded_serve.profile.deployment import Deployment
from tests.support.checkpoints import drafter, target
from tests.support.verdicts import deployment


@pytest.fixture
def pair(tmp_path: Path) -> Deployment:
    return deployment(target().write(tmp_path / "target"), drafter().write(tmp_path / "drafter"))


def as_foretold(model: ModelFacts) -> EngineLoad:
    """What SGLang would say of the right drafter, put together from the prediction."""
    from guarded_serve.checks.load import map_fingerprint  # noqa: PLC0415

    assert model.rules is not None
    assert model.loading is not None
    assert model.map.statistics is not None
    parameters: dict[str, LoadedParameter] = {}
    for slot in model.rules.slots:
        rows = parameters[slot.parameter].shape[0] if slot.parameter in parameters else 0
        sources = parameters[slot.parameter].sources if slot.parameter in parameters else ()
        source = model.loading.filled.get(slot.key)
        parameters[slot.parameter] = LoadedParameter(
            (rows + slot.shape[0], *slot.shape[1:]),
            (*sources, source) if source else sources,
            "no" if source else "wholly",
        )
    for name, rows in (("model.embed_tokens.weight", 128), ("lm_head.weight", 64)):
        parameters[name] = replace(parameters[name], shape=(rows, 32))
    ids = model.map.statistics.ids
    return EngineLoad(
        version="0.5.23", stage="done", failure=None, class_name=LLAMA_HEAD, parameters=parameters,
        without_effect=("t2d",), map={"length": len(ids), "dtype": "int64", "sha256": map_fingerprint(ids)},
        map_names=("d2t",), shared=("model.embed_tokens.weight",), tied=False, captured_layers=(2, 4, 5),
        capture_failure=None,
    )  # fmt: skip


def judged(pair: Deployment, engine: EngineLoad | NoAnswer | None) -> Report:
    model = replace(gather_models(pair), engine=engine)
    return run_checks([engine_load], Facts(deployment=pair, model=model))


def told(report: Report) -> list[tuple[Severity, str]]:
    return [(finding.severity, finding.message) for finding in report.findings]


def test_agreement_is_information(pair: Deployment) -> None:
    report = judged(pair, as_foretold(gather_models(pair)))
    assert {severity for severity, _ in told(report)} == {Severity.INFO}
    assert "SGLang 0.5.23: captured layers, as foretold" in [message for _, message in told(report)]


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"captured_layers": (1, 3, 4)}, "captured layers"),
        ({"without_effect": ()}, "tensors without effect"),
        ({"map": None, "map_names": ()}, "map"),
        ({"shared": ()}, "taken from the target"),
        ({"class_name": "LlamaForCausalLM"}, "class"),
        ({"parameters": {}}, "parameters"),
        ({"failure": "ValueError: no (x.py: y)", "stage": "build"}, "load"),
    ],
)
def test_a_difference_is_a_warning_that_shows_both(pair: Deployment, change: dict[str, Any], what: str) -> None:
    model = gather_models(pair)
    load = replace(as_foretold(model), **change)
    assert what in [one.what for one in compare(model, load) if not one.agree]
    report = judged(pair, load)
    warned = [finding for finding in report.findings if finding.severity is Severity.WARNING]
    assert any(f"{what}: SGLang 0.5.23 does something else" in finding.message for finding in warned)
    assert all(finding.expected != finding.found for finding in warned)


def test_an_unwritten_parameter_is_an_error(pair: Deployment) -> None:
    load = as_foretold(gather_models(pair))
    parameters = dict(load.parameters)
    parameters["model.norm.weight"] = LoadedParameter((32,), (), "wholly")
    report = judged(pair, replace(load, parameters=parameters))
    assert [m for s, m in told(report) if s is Severity.ERROR] == [
        "SGLang 0.5.23 leaves model.norm.weight unwritten: what their memory held would stay there"
    ]


def test_without_the_flag_it_is_skipped(pair: Deployment) -> None:
    (outcome,) = judged(pair, None).outcomes
    assert outcome.reason == "only `check --with-engine` asks SGLang itself"


def test_without_sglang_it_says_so(pair: Deployment, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    engine = with_engine_load(gather_models(pair), pair).engine
    (finding,) = judged(pair, engine).findings
    assert (finding.severity, finding.exit_code) == (Severity.ERROR, ExitCode.USAGE)
    assert f"SGLang is not installed for {sys.executable}" in finding.message
    assert "leave --with-engine out" in (finding.remedy or "")


@pytest.mark.engine
@pytest.mark.skipif(importlib.util.find_spec("sglang") is None, reason="SGLang is not installed")
def test_the_command(tmp_path: Path) -> None:
    """A drafter without its head and without k: prediction and truth agree; we import neither torch nor SGLang."""
    target().write(tmp_path / "target")
    model = drafter()
    del model.tensors["lm_head.weight"], model.tensors["midlayer.self_attn.k_proj.weight"]
    model.write(tmp_path / "drafter")
    script = (
        "import sys; from guarded_serve.cli import main; code = main(sys.argv[1:]);"
        " assert not {'torch', 'sglang'} & set(sys.modules); sys.exit(code)"
    )
    command = [sys.executable, "-c", script, "check", "--with-engine", "--only", "drafter", "--format", "json"]
    command += ["--model-path", "target", "--speculative-algorithm", "EAGLE3"]
    command += ["--speculative-draft-model-path", "drafter"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 65, done.stderr
    found = [
        (finding["severity"], finding["message"])
        for outcome in json.loads(done.stdout)["outcomes"]
        for finding in outcome["findings"]
        if outcome["check"] == "drafter.engine_load"
    ]
    assert [severity for severity, _ in found].count("error") == 1
    assert "leaves model.layers.0.self_attn.qkv_proj.weight, lm_head.weight unwritten" in found[0][1]
    assert "warning" not in {severity for severity, _ in found}
