"""A `--quantization` that is meant for the target alone is kept from the drafter, and a note says so (sglang 28196)."""

from __future__ import annotations

from dataclasses import replace

from guarded_serve.checkpoint.config import ModelConfig
from guarded_serve.facts.model import read_checkpoint
from guarded_serve.profile.deployment import Deployment
from guarded_serve.profile.variant import with_settings

SETTING = "speculative_draft_model_quantization"


def inherits(deployment: Deployment, drafter: ModelConfig) -> bool:
    """Whether SGLang would give the target's `--quantization` to a drafter whose weights are not quantized."""
    wanted = deployment.get("quantization")
    return bool(wanted) and wanted != "unquant" and not drafter.quantized and not deployment.get(SETTING)


def kept_apart(deployment: Deployment) -> Deployment:
    """The deployment with `--speculative-draft-model-quantization unquant` where it needs it; else as it is."""
    get = deployment.get
    name = get("speculative_draft_model_path")
    if not (get("quantization") and get("speculative_algorithm") and name) or get(SETTING):
        return deployment
    found = read_checkpoint(
        "drafter", str(name), revision=get("speculative_draft_model_revision"), fetch_weights=False, only=()
    )
    config = found.readable_config
    if config is None or not inherits(deployment, config):
        return deployment
    reason = f"the guard: the drafter is not quantized, and --quantization {get('quantization')} is the target's"
    note = f"--speculative-draft-model-quantization unquant ({reason})"
    changed = with_settings(deployment, {SETTING: "unquant"}, origin=reason)
    return replace(changed, notes=(*changed.notes, note))
