"""Which layers' hidden states the target hands to an EAGLE-3 drafter.

Source: every target class's `set_eagle3_layers_to_capture` in `srt/models/`, and
`model_executor/model_runner_components/spec_aux_hidden_state.py`, SGLang 0.5.16 to 0.5.23. SGLang reads the ids from
`eagle_config.eagle_aux_hidden_state_layer_ids` alone; whatever fails there, under a bare `except`, means the target's
default. Number i means the state *entering* layer i; states are taken in layer order, whatever the list's order.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from guarded_serve.checkpoint.config import ModelConfig
from guarded_serve.engine_rules.versions import Version


class Shift(str, Enum):
    """What a target class does with configured ids."""

    ALWAYS = "adds 1 to each"  # the ids name states leaving a layer
    IF_FIRST_IS_1 = "adds 1 to each only if the first id is 1"  # sglang 25454
    UNLESS_LAST_LAYER = "adds 1 to each unless the largest is the number of layers"  # sglang 32226
    DEFAULT_TOO = "adds 1 to each, its own default included"


_RULES: dict[str, Shift] = {
    **dict.fromkeys(
        (
            "ApertusForCausalLM",
            "BailingMoEForCausalLM",
            "BailingMoeForCausalLM",
            "BailingMoeV2ForCausalLM",
            "Cosmos3ForConditionalGeneration",
            "ExaoneMoEForCausalLM",
            "ExaoneMoeForCausalLM",
            "Gemma3ForCausalLM",
            "Gemma3ForConditionalGeneration",
            "Gemma4ForCausalLM",
            "Gemma4ForConditionalGeneration",
            "Gemma4UnifiedForConditionalGeneration",
            "Glm4MoeForCausalLM",
            "Glm5NextForConditionalGeneration",
            "IQuestCoderForCausalLM",
            "InternLM3ForCausalLM",
            "InternS1ProForConditionalGeneration",
            "InternS2MobiusForConditionalGeneration",
            "InternS2PreviewForConditionalGeneration",
            "Llama4ForCausalLM",
            "Llama4ForConditionalGeneration",
            "LlamaForCausalLM",
            "LongcatFlashForCausalLM",
            "MellumForCausalLM",
            "MiniMaxM2ForCausalLM",
            "MiniMaxM3SparseForCausalLM",
            "Ministral3ForCausalLM",
            "MistralForCausalLM",
            "Phi3ForCausalLM",
            "Qwen2ForCausalLM",
            "Qwen2MoeForCausalLM",
            "Qwen2_5_VLForConditionalGeneration",
            "Qwen3ForCausalLM",
            "Qwen3MoeForCausalLM",
            "Qwen3NextForCausalLM",
            "Qwen3VLForConditionalGeneration",
            "Qwen3VLMoeForConditionalGeneration",
            "Qwen3_5ForCausalLM",
            "Qwen3_5ForConditionalGeneration",
            "Qwen3_5MoeForCausalLM",
            "Qwen3_5MoeForConditionalGeneration",
            "Qwen4ExpForConditionalGeneration",
            "SarvamMoEForCausalLM",
            "TeleFLMForCausalLM",
        ),
        Shift.ALWAYS,
    ),
    **dict.fromkeys(
        (
            "DeepseekV2ForCausalLM",
            "DeepseekV32ForCausalLM",
            "DeepseekV3ForCausalLM",
            "Glm4MoeLiteForCausalLM",
            "GlmMoeDsaForCausalLM",
            "KimiK25ForConditionalGeneration",
            "MistralLarge3ForCausalLM",
        ),
        Shift.IF_FIRST_IS_1,
    ),
    "GptOssForCausalLM": Shift.UNLESS_LAST_LAYER,
    "MiniMaxM3SparseForConditionalGeneration": Shift.DEFAULT_TOO,
}
_SINCE: dict[str, Version] = {
    "InternS2MobiusForConditionalGeneration": (0, 5, 18),
    "MiniMaxM3SparseForConditionalGeneration": (0, 5, 18),
    "Cosmos3ForConditionalGeneration": (0, 5, 20),
    "Glm5NextForConditionalGeneration": (0, 5, 20),
    "Qwen4ExpForConditionalGeneration": (0, 5, 20),
    "ExaoneMoeForCausalLM": (0, 5, 22),
    "Qwen3_5ForCausalLM": (0, 5, 22),
    "Qwen3_5MoeForCausalLM": (0, 5, 22),
}
_LAST_STATE = (
    "GptOssForCausalLM",
    "Gemma3ForCausalLM",
    "Gemma3ForConditionalGeneration",
    "Gemma4ForCausalLM",
    "Gemma4ForConditionalGeneration",
    "Gemma4UnifiedForConditionalGeneration",
    "MiniMaxM3SparseForCausalLM",
    "MiniMaxM3SparseForConditionalGeneration",
)
"""Targets that also capture the state leaving their last layer, as number n."""


def shift_rule(target_class: str, version: Version) -> Shift | None:
    """The rule of a target class in a version, or None where the class cannot capture layers for EAGLE-3."""
    if version < _SINCE.get(target_class, (0, 0, 0)):
        return None
    if target_class == "GptOssForCausalLM" and version < (0, 5, 17):
        return Shift.ALWAYS
    return _RULES.get(target_class)


def known_targets(version: Version) -> frozenset[str]:
    """Target classes whose rule is known for a version."""
    return frozenset(name for name in _RULES if shift_rule(name, version) is not None)


@dataclass(frozen=True)
class Capture:
    """What the target will capture. ``requested`` are the numbers after the shift, as SGLang stores them;
    ``captured`` those that exist, in layer order, once each: the states that the drafter really gets."""

    requested: tuple[int, ...]
    captured: tuple[int, ...]
    configured: tuple[int, ...] | None  # the ids that SGLang read; None: its default applies
    shift: Shift
    layers: int

    @property
    def is_default(self) -> bool:
        """Whether the target's default applies, because the config names no layers where SGLang looks."""
        return self.configured is None

    @property
    def lost(self) -> tuple[int, ...]:
        """Requested numbers that the target does not have."""
        return tuple(number for number in self.requested if number not in self.captured)


def default_layers(layers: int) -> tuple[int, int, int]:
    """The fallback of every target class for n layers, as states entering a layer."""
    return (2, layers // 2, layers - 3)


def layer_count(target: ModelConfig) -> int | None:
    """A target's layers; LongCat calls them num_layers (srt/configs/longcat_flash.py)."""
    found = target.integer("num_hidden_layers")
    if found is None and target.architecture == "LongcatFlashForCausalLM":
        value = target.get("num_layers")
        return value if type(value) is int and value > 0 else None
    return found


def uses_aux_states(drafter: ModelConfig) -> bool:
    """`eagle_config.use_aux_hidden_state`, true where it is absent (spec_aux_hidden_state.py)."""
    return bool(drafter.eagle.get("use_aux_hidden_state", True))


def predict_capture(target_class: str, layers: int, drafter: ModelConfig, version: Version) -> Capture | None:
    """What a target class with ``layers`` layers captures for a drafter; None for a class without a known rule."""
    shift = shift_rule(target_class, version)
    if shift is None:
        return None
    configured = drafter.nested_aux_ids
    if configured is None:
        requested = default_layers(layers)
        if shift is Shift.DEFAULT_TOO:
            requested = (requested[0] + 1, requested[1] + 1, requested[2] + 1)
    else:
        requested = _shifted(configured, shift, layers)  # type: ignore[assignment]
    last = layers if target_class in _LAST_STATE else layers - 1
    captured = tuple(sorted({number for number in requested if 0 <= number <= last}))
    return Capture(tuple(requested), captured, configured, shift, layers)


def _shifted(ids: tuple[int, ...], shift: Shift, layers: int) -> tuple[int, ...]:
    if shift is Shift.IF_FIRST_IS_1 and ids[0] != 1:
        return ids
    if shift is Shift.UNLESS_LAST_LAYER and max(ids) == layers:
        return ids
    return tuple(number + 1 for number in ids)
