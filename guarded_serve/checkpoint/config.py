"""config.json in every published form, behind one set of names.

Forms: SpecForge, EAGLE, AngelSlim, TorchSpec and NeMo put a decoder's keys at top level; Model-Optimizer adds a nested
`eagle_config`; speculators nests the decoder in `transformer_layer_config` and records its target in
`speculators_config`; multimodal targets nest the language model in `text_config` or the like. `dtype` and
`torch_dtype` mean the same; rope stands at top level, in `rope_scaling` or in `rope_parameters`.

This module says what the file says. What a given SGLang makes of it is `engine_rules`' business.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from guarded_serve.checkpoint.files import Unreadable, read_json
from guarded_serve.checkpoint.problem import Problem

CONFIG_NAME = "config.json"
QUANTIZATION_NAME = "hf_quant_config.json"
CONFIG_LIMIT = 4 * 2**20
"""Longest config.json that is parsed, in bytes; the longest published ones are some 100 KB."""
_TEXT_KEYS = ("thinker_config", "llm_config", "language_config", "text_config")
SPECULATORS_LAYER = "transformer_layer_config"

_POSITIVE = (
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "vocab_size",
    "draft_vocab_size",
    "target_hidden_size",
    "max_position_embeddings",
    "num_aux_hidden_states",
    "q_lora_rank",
    "kv_lora_rank",
    "qk_nope_head_dim",
    "qk_rope_head_dim",
    "v_head_dim",
)
_FLAGS = ("tie_word_embeddings", "norm_before_residual", "norm_before_fc", "norm_output", "use_aux_norm", "bias")
_MAX_SIZE = 2**31
MAX_ROPE_FACTOR = 1e6
"""Beyond any real one (DeepSeek 40, Kimi 64)."""


@dataclass(frozen=True)
class Rope:
    """Rotary settings: base, the place they were read from, and the scaling as it stands (without the base)."""

    theta: float | None
    place: str | None
    scaling: Mapping[str, Any] = field(default_factory=dict)

    @property
    def type(self) -> str:
        """``default`` where nothing is scaled."""
        return str(self.scaling.get("rope_type") or self.scaling.get("type") or "default")


@dataclass(frozen=True)
class ModelConfig:
    """One parsed config.json. ``raw`` is the file; ``decoder`` the part that describes the language model."""

    path: Path
    raw: Mapping[str, Any]
    decoder: Mapping[str, Any]
    problems: tuple[Problem, ...] = ()
    quant_algo: str | None = None  # of Model-Optimizer's hf_quant_config.json, which stands beside config.json

    def get(self, key: str, default: Any = None) -> Any:
        """A decoder's value: nested first, then top level."""
        value = self.decoder.get(key)
        if value is None:
            value = self.raw.get(key)
        return default if value is None else value

    def has(self, key: str) -> bool:
        """Whether the key stands there, be it null."""
        return key in self.decoder or key in self.raw

    def integer(self, key: str) -> int | None:
        """A positive size, or None where it is absent or no size (then it is among `problems`)."""
        value = self.get(key)
        return value if type(value) is int and 0 < value < _MAX_SIZE else None

    @property
    def flat(self) -> ModelConfig:
        """The same with nothing nested: as SGLang's EAGLE-3 classes read a drafter's."""
        return self if self.decoder is self.raw else replace(self, decoder=self.raw)

    @property
    def architecture(self) -> str | None:
        """The first of `architectures`: the one that SGLang looks up."""
        names = self.raw.get("architectures")
        return names[0] if isinstance(names, list) and names and isinstance(names[0], str) else None

    @property
    def model_type(self) -> str | None:
        """`model_type` at top level, as it chooses the config class."""
        value = self.raw.get("model_type")
        return value if isinstance(value, str) else None

    @property
    def quantized(self) -> bool:
        """Whether its weights are quantized on disk (SGLang: `model_config.py: _parse_quant_hf_config`)."""
        return bool(
            self.get("quantization_config") or self.raw.get("compression_config") or self.quant_algo is not None
        )

    @property
    def is_speculators(self) -> bool:
        """Whether it is in the speculators format."""
        return "speculators_model_type" in self.raw or SPECULATORS_LAYER in self.raw

    @property
    def dtype(self) -> str | None:
        """`dtype` or `torch_dtype` without its ``torch.`` prefix."""
        for key in ("dtype", "torch_dtype"):
            value = self.get(key)
            if isinstance(value, str):
                return value.removeprefix("torch.")
        return None

    @property
    def rope(self) -> Rope:
        """Rotary settings from whichever of the three places has them."""
        for key in ("rope_parameters", "rope_scaling"):
            nested = self.get(key)
            if isinstance(nested, dict):
                scaling = {name: value for name, value in nested.items() if name != "rope_theta"}
                theta = nested.get("rope_theta")
                if theta is not None:
                    return Rope(_number(theta), key, scaling)
                return Rope(_number(self.get("rope_theta")), "rope_theta" if self.has("rope_theta") else None, scaling)
        return Rope(_number(self.get("rope_theta")), "rope_theta" if self.get("rope_theta") is not None else None)

    @property
    def eagle(self) -> Mapping[str, Any]:
        """The nested `eagle_config`, empty where there is none."""
        value = self.raw.get("eagle_config")
        return value if isinstance(value, dict) else {}

    @property
    def nested_aux_ids(self) -> tuple[int, ...] | None:
        """`eagle_config.eagle_aux_hidden_state_layer_ids`."""
        return _ids(self.eagle.get("eagle_aux_hidden_state_layer_ids"))

    @property
    def top_aux_ids(self) -> tuple[int, ...] | None:
        """`eagle_aux_hidden_state_layer_ids` at top level."""
        return _ids(self.raw.get("eagle_aux_hidden_state_layer_ids"))

    @property
    def verifier(self) -> tuple[str | None, str | None]:
        """(name or path, architecture) of the target that a speculators drafter was trained for."""
        outer = self.raw.get("speculators_config")
        inner = outer.get("verifier") if isinstance(outer, dict) else None
        if not isinstance(inner, dict):
            return None, None
        name, names = inner.get("name_or_path"), inner.get("architectures")
        architecture = names[0] if isinstance(names, list) and names and isinstance(names[0], str) else None
        return (name if isinstance(name, str) else None), architecture


def read_config(directory: Path, *, overrides: Mapping[str, Any] | None = None) -> ModelConfig:
    """Read a folder's config.json; what is wrong with it is in `problems`, and an unreadable one is empty.

    ``overrides`` is `--json-model-override-args`, laid over it as SGLang does (a nested object is merged, any other
    value replaces).
    """
    path = directory / CONFIG_NAME
    try:
        raw = read_json(path, limit=CONFIG_LIMIT)
    except Unreadable as unreadable:
        return ModelConfig(path, {}, {}, (unreadable.problem,))
    if not isinstance(raw, dict):
        return ModelConfig(path, {}, {}, (Problem("bad-config", "config.json is not an object", path),))
    for key, value in (overrides or {}).items():
        current = raw.get(key)
        raw[key] = {**current, **value} if isinstance(current, dict) and isinstance(value, dict) else value
    return replace(parse_config(raw, path), quant_algo=_quant_algo(directory / QUANTIZATION_NAME))


def _quant_algo(path: Path) -> str | None:
    """`quantization.quant_algo`; null where Model-Optimizer exported a model that it did not quantize."""
    try:
        raw = read_json(path, limit=CONFIG_LIMIT)
    except Unreadable:
        return None
    inner = raw.get("quantization", raw) if isinstance(raw, dict) else None
    value = inner.get("quant_algo") if isinstance(inner, dict) else None
    return value if isinstance(value, str) else None


def parse_config(raw: Mapping[str, Any], path: Path) -> ModelConfig:
    """A config from its parsed JSON."""
    decoder = _decoder(raw)
    return ModelConfig(path, raw, decoder, tuple(_problems(raw, decoder, path)))


def _decoder(raw: Mapping[str, Any]) -> Mapping[str, Any]:
    """The nested part that describes the language model, else the whole (SGLang: `get_hf_text_config`)."""
    nested = raw.get(SPECULATORS_LAYER)
    if isinstance(nested, dict):
        return nested
    for key in _TEXT_KEYS:
        nested = raw.get(key)
        if isinstance(nested, dict):
            inner = nested.get("text_config")
            return inner if isinstance(inner, dict) else nested
    return raw


def _problems(raw: Mapping[str, Any], decoder: Mapping[str, Any], path: Path) -> list[Problem]:
    problems = []
    for source in (raw,) if decoder is raw else (raw, decoder):
        for key in _POSITIVE:
            value = source.get(key)
            if value is not None and not (type(value) is int and 0 < value < _MAX_SIZE):
                problems.append(_wrong(path, key, "a positive whole number", value))
        for key in _FLAGS:
            value = source.get(key)
            if value is not None and not isinstance(value, bool):
                problems.append(_wrong(path, key, "true or false", value))
        theta, epsilon = source.get("rope_theta"), source.get("rms_norm_eps")
        if theta is not None and not (_number(theta) or 0) > 0:
            problems.append(_wrong(path, "rope_theta", "a positive number", theta))
        if epsilon is not None and (_number(epsilon) is None or epsilon < 0):
            problems.append(_wrong(path, "rms_norm_eps", "a small number", epsilon))
        for place in ("rope_scaling", "rope_parameters"):
            nested = source.get(place)
            theta = nested.get("rope_theta") if isinstance(nested, dict) else None
            if theta is not None and not (_number(theta) or 0) > 0:
                problems.append(_wrong(path, f"{place}.rope_theta", "a positive number", theta))
            factor = nested.get("factor") if isinstance(nested, dict) else None
            if factor is not None and not 0 < (_number(factor) or 0) < MAX_ROPE_FACTOR:
                problems.append(_wrong(path, f"{place}.factor", f"a number below {MAX_ROPE_FACTOR:g}", factor))
    names = raw.get("architectures")
    if names is not None and not (isinstance(names, list) and all(isinstance(name, str) for name in names)):
        problems.append(_wrong(path, "architectures", "a list of names", names))
    eagle = raw.get("eagle_config")
    if eagle is not None and not isinstance(eagle, dict):
        problems.append(_wrong(path, "eagle_config", "an object", eagle))
        eagle = None
    for place, source in (("eagle_config.", eagle or {}), ("", raw)):
        ids = source.get("eagle_aux_hidden_state_layer_ids")
        if ids is not None and _ids(ids) is None:
            problems.append(_wrong(path, f"{place}eagle_aux_hidden_state_layer_ids", "a list of layer numbers", ids))
    return problems


def _wrong(path: Path, key: str, expected: str, value: Any) -> Problem:
    shown = repr(value)
    shown = shown if len(shown) <= 80 else shown[:77] + "..."
    message = f"{path.name}: {key} is {shown}, expected {expected}"
    return Problem("bad-value", message, path, expected=expected, found=shown, key=key)


def _ids(value: Any) -> tuple[int, ...] | None:
    if not isinstance(value, list) or not value or len(value) > 4096:
        return None
    if not all(type(item) is int and -_MAX_SIZE < item < _MAX_SIZE for item in value):
        return None
    return tuple(value)


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None
