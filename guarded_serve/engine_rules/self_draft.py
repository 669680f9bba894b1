"""Targets that bring layers of their own to draft with (MTP, NextN), for EAGLE and NEXTN without a drafter.

Source: `srt/configs/model_config.py: _config_draft_model`, SGLang 0.5.16 to 0.5.23: the classes that it rewrites to
their drafting form.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from guarded_serve.engine_rules.versions import Version

_CLASSES: dict[str, Version] = {
    "DeepseekV3ForCausalLM": (0, 5, 16),
    "DeepseekV32ForCausalLM": (0, 5, 16),
    "DeepseekV4ForCausalLM": (0, 5, 16),
    "GlmMoeDsaForCausalLM": (0, 5, 16),
    "Glm4MoeForCausalLM": (0, 5, 16),
    "Glm4MoeLiteForCausalLM": (0, 5, 16),
    "GlmOcrForConditionalGeneration": (0, 5, 16),
    "LongcatFlashForCausalLM": (0, 5, 16),
    "MiMoForCausalLM": (0, 5, 16),
    "MiMoV2ForCausalLM": (0, 5, 16),
    "MiMoV2FlashForCausalLM": (0, 5, 16),
    "Step3p5ForCausalLM": (0, 5, 16),
    "Step3p7ForConditionalGeneration": (0, 5, 16),
    "BailingMoeV2ForCausalLM": (0, 5, 16),
    "BailingMoeForCausalLM": (0, 5, 16),
    "BailingMoeV2_5ForCausalLM": (0, 5, 16),
    "Ernie4_5_MoeForCausalLM": (0, 5, 16),
    "Qwen3NextForCausalLM": (0, 5, 16),
    "Qwen3MoeForCausalLM": (0, 5, 16),
    "Qwen3_5ForConditionalGeneration": (0, 5, 16),
    "Qwen3_5MoeForConditionalGeneration": (0, 5, 16),
    "InternS2PreviewForConditionalGeneration": (0, 5, 16),
    "ExaoneMoEForCausalLM": (0, 5, 16),
    "NemotronHForCausalLM": (0, 5, 16),
    "NemotronHPuzzleForCausalLM": (0, 5, 16),
    "HYV3ForCausalLM": (0, 5, 16),
    "InklingForConditionalGeneration": (0, 5, 16),
    "Qwen3_5ForCausalLM": (0, 5, 17),
    "Qwen3_5MoeForCausalLM": (0, 5, 17),
    "InternS2MobiusForConditionalGeneration": (0, 5, 18),
    "BailingMoeV3ForCausalLM": (0, 5, 19),
    "Glm5NextForConditionalGeneration": (0, 5, 20),
    "Qwen4ExpForConditionalGeneration": (0, 5, 20),
    "NemotronH_Omni_Reasoning_V3": (0, 5, 20),
    "HYV4ForCausalLM": (0, 5, 20),
    "GigaChat35ForCausalLM": (0, 5, 21),
    "ExaoneMoeForCausalLM": (0, 5, 22),
}
_EXTRA = re.compile(r"(^|[._])(mtp|nextn|eh_proj|enorm|hnorm)([._]|$)", re.IGNORECASE)
_LAYER = re.compile(r"(?:^|\.)layers\.(\d{1,6})\.")


def drafts_itself(target_class: str, version: Version) -> bool:
    """Whether a target class has a drafting form in this version."""
    return target_class in _CLASSES and version >= _CLASSES[target_class]


def self_draft_tensors(names: Iterable[str], layers: int) -> int:
    """How many tensors belong to layers beyond the target's own, or are named as MTP layers are."""
    return sum(
        1
        for name in names
        if _EXTRA.search(name) or ((found := _LAYER.search(name)) is not None and int(found[1]) >= layers)
    )
