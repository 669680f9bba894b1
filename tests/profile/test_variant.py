"""Variants of a deployment: what is taken out is gone from the command line and from the settings, the rest stays."""

from __future__ import annotations

from pathlib import Path

import pytest

from guarded_serve.profile.deployment import Deployment
from guarded_serve.profile.resolve import resolve
from guarded_serve.profile.variant import with_settings, without_drafter

DRAFTER = """
speculative_algorithm = "EAGLE3"
speculative_draft_model_path = "/models/drafter"
speculative_num_steps = 3
speculative_eagle_topk = 1
speculative_num_draft_tokens = 4
"""


@pytest.fixture
def deployment(tmp_path: Path) -> Deployment:
    profile = tmp_path / "p.toml"
    profile.write_text(f'[server]\nmodel_path = "/models/target"\ntp_size = 2\n{DRAFTER}')
    return resolve(profile, ["--dtype", "bfloat16", "--speculative-num-st", "5", "--served-model-name", "m"]).deployment


def test_without_drafter(deployment: Deployment) -> None:
    """Profile settings, flags and abbreviated flags alike."""
    plain = without_drafter(deployment)
    assert not any(name.startswith("speculative") for name in plain.server)
    assert not any("speculative" in word or word == "5" for word in plain.arguments)
    assert plain.get("speculative_algorithm") is None
    assert plain.arguments == (
        *("--model-path", "/models/target", "--tp-size", "2"),
        *("--dtype", "bfloat16", "--served-model-name", "m"),
    )


def test_another_drafter(deployment: Deployment) -> None:
    """A value that was set is replaced, not doubled."""
    other = with_settings(deployment, {"speculative_draft_model_path": "/models/other", "port": 7}, origin="a test")
    assert other.arguments.count("--speculative-draft-model-path") == 1
    assert "/models/drafter" not in other.arguments
    assert other.get("speculative_draft_model_path") == "/models/other"
    assert other.server["port"].origin == "a test"
    assert other.get("tp_size") == 2


def test_a_config_file_that_names_the_drafter(tmp_path: Path) -> None:
    """Nothing on a command line unsets what a --config file sets, so its other settings become flags."""
    config = tmp_path / "c.yaml"
    config.write_text("speculative-algorithm: NGRAM\ncontext-length: 512\n")
    deployment = resolve(None, ["--model-path", "/models/target", "--config", str(config)]).deployment
    assert deployment.get("speculative_algorithm") == "NGRAM"
    plain = without_drafter(deployment)
    assert "--config" not in plain.arguments
    assert plain.get("speculative_algorithm") is None
    assert plain.get("context_length") == 512
    assert "--context-length" in plain.arguments
