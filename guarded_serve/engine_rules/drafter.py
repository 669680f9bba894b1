"""The EAGLE-3 drafter classes: their parameters with shapes, and what their `load_weights` makes of tensor names.

Source: `srt/models/llama_eagle3.py` (`LlamaForCausalLMEagle3`) and `srt/models/kimi_k25_eagle3.py`
(`Eagle3DeepseekV2ForCausalLM`, the MLA head), SGLang 0.5.16 to 0.5.23. The two differ across these versions in one
thing that matters here: `norm_before_fc` (and `input_norm`) exists from 0.5.17 on.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from guarded_serve.checkpoint.config import ModelConfig
from guarded_serve.checkpoint.safetensors import Tensor
from guarded_serve.engine_rules.capture import uses_aux_states
from guarded_serve.engine_rules.versions import Version

LLAMA_HEAD = "LlamaForCausalLMEagle3"
MLA_HEAD = "Eagle3DeepseekV2ForCausalLM"
EAGLE3_CLASSES = (LLAMA_HEAD, MLA_HEAD)

# What transformers' LlamaConfig holds where config.json is silent (configuration_llama.py, 5.x).
_LLAMA_DEFAULTS = {
    "vocab_size": 32000,
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "max_position_embeddings": 2048,
}
DIVIDING = ("llama", "mistral", "mixtral", "phi3", "qwen2", "qwen2_moe")
"""Values of `model_type` whose config class has no head_dim of its own, so that it is hidden size / heads: in the class
(LlamaConfig, MistralConfig) or in `srt/models/llama.py: LlamaAttention`."""
_MLA_KEYS = ("q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")


@dataclass(frozen=True)
class Dimensions:
    """A drafter's sizes as SGLang takes them from its config, defaults included."""

    hidden: int
    target_hidden: int
    aux_states: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    draft_vocabulary: int
    assumed: tuple[str, ...] = ()  # keys that config.json lacks, so that a default applies
    mla: Mapping[str, int] = field(default_factory=dict)

    @property
    def fc_inputs(self) -> int:
        """Columns of fc.weight."""
        return self.aux_states * self.target_hidden


@dataclass(frozen=True)
class Slot:
    """A part of a parameter that one tensor of the file fills (q, k and v share one parameter)."""

    parameter: str
    part: str  # "" for the whole
    shape: tuple[int, ...]
    usual_name: str  # what the tensor is called in most files
    read: bool = True  # whether the forward pass reads it once everything is loaded and shared
    why_unread: str = ""

    @property
    def key(self) -> tuple[str, str]:
        """What a tensor name leads to."""
        return self.parameter, self.part


@dataclass(frozen=True)
class Loading:
    """What load_weights does with a file's names."""

    filled: Mapping[tuple[str, str], str]  # slot key to the tensor that fills it (the last one written)
    overwritten: tuple[str, ...]  # tensors that a later one replaces
    map_name: str | None  # the tensor taken as d2t
    other_maps: tuple[str, ...]  # further names taken for the map, in vain or instead
    masks: tuple[str, ...]  # t2d
    dropped: tuple[str, ...]  # names that lead to no parameter


@dataclass(frozen=True)
class HeadRules:
    """One drafter class, for one config."""

    class_name: str
    slots: tuple[Slot, ...]
    dimensions: Dimensions
    borrows_embedding: bool
    borrows_head: bool
    tied: bool
    failures: tuple[str, ...] = ()  # why the class cannot even be built, a sentence each

    def slot(self, key: tuple[str, str]) -> Slot | None:
        """The slot with this key."""
        return next((slot for slot in self.slots if slot.key == key), None)


def head_rules(class_name: str, config: ModelConfig, version: Version) -> HeadRules:
    """Rules of one of `EAGLE3_CLASSES`, which read the top level alone, whatever is nested."""
    return _mla_rules(config.flat) if class_name == MLA_HEAD else _llama_rules(config.flat, version)


def load_order(tensors: Mapping[str, Tensor]) -> list[str]:
    """Names in the order in which SGLang hands them over: file by file, each sorted (weight_utils.py:
    `buffered_multi_thread_safetensors_weights_iterator`)."""
    return sorted(tensors, key=lambda name: (tensors[name].path.name, name))


def load_names(class_name: str, names: Iterable[str], rules: HeadRules) -> Loading:
    """Follow every tensor name through the class's `load_weights`. Order matters only where two fill one slot."""
    parameters = {slot.parameter for slot in rules.slots}
    keys = {slot.key for slot in rules.slots}
    route = _route_mla if class_name == MLA_HEAD else _route_llama
    filled: dict[tuple[str, str], str] = {}
    overwritten: list[str] = []
    maps: list[str] = []
    masks: list[str] = []
    dropped: list[str] = []
    for name in names:
        key = route(name, parameters)
        if key == "map":
            maps.append(name)
        elif key == "mask":
            masks.append(name)
        elif isinstance(key, tuple) and key in keys:
            if key in filled:
                overwritten.append(filled[key])
            filled[key] = name
        else:
            dropped.append(name)
    if class_name == MLA_HEAD:
        _drop_half_fused(filled, dropped)
    return Loading(
        filled, tuple(overwritten), maps[-1] if maps else None, tuple(maps[:-1]), tuple(masks), tuple(dropped)
    )


# --- LlamaForCausalLMEagle3 -------------------------------------------------------------------------------------------

_LLAMA_LEGACY = (
    ("midlayer", "layers.0"),
    ("aux_norm_low", "fc_norm.0"),
    ("aux_norm_mid", "fc_norm.1"),
    ("aux_norm_high", "fc_norm.2"),
)
_LLAMA_STACKED = (
    (".qkv_proj", ".q_proj", "q"),
    (".qkv_proj", ".k_proj", "k"),
    (".qkv_proj", ".v_proj", "v"),
    (".gate_up_proj", ".gate_proj", "gate"),
    (".gate_up_proj", ".up_proj", "up"),
)


def _route_llama(name: str, parameters: set[str]) -> tuple[str, str] | str | None:
    for legacy, new in _LLAMA_LEGACY:
        name = name.replace(legacy, new)
    if "d2t" in name:
        return "map"
    if "t2d" in name:
        return "mask"
    for stacked, single, part in _LLAMA_STACKED:
        if single in name:
            name = name.replace(single, stacked)
            parameter = name if name in parameters else f"model.{name}"
            return (parameter, part) if parameter in parameters else None
    parameter = name if name in parameters else f"model.{name}"
    return (parameter, "") if parameter in parameters else None


def _llama_rules(config: ModelConfig, version: Version) -> HeadRules:
    size = _llama_dimensions(config)
    hidden, rows = size.hidden, size.heads * size.head_dim
    kv_rows = size.kv_heads * size.head_dim
    aux = uses_aux_states(config)
    tied = bool(config.get("tie_word_embeddings", False))
    borrows_head = not tied and config.has("draft_vocab_size") and config.get("draft_vocab_size") is None
    own_embedding = config.has("target_hidden_size") and config.get("target_hidden_size") != hidden
    failures = _llama_failures(config, tied)
    slots = [
        _embedding(size, borrowed=not own_embedding),
        _fc(size, aux, hidden),
    ]
    if bool(config.raw.get("bias", False)):
        slots.append(Slot("model.fc.bias", "", (hidden,), "fc.bias", aux, "" if aux else _NO_AUX))
    norm_first = config.eagle.get("norm_before_fc", config.raw.get("norm_before_fc", False))
    if version >= (0, 5, 17) and bool(norm_first):
        slots.append(Slot("model.input_norm.weight", "", (size.fc_inputs,), "input_norm.weight", aux, _NO_AUX))
    slots += _fc_norms(config, size, aux)
    for layer in range(size.layers):
        slots += _llama_layer(layer, hidden, rows, kv_rows, size.intermediate, config)
    slots.append(Slot("model.norm.weight", "", (hidden,), "norm.weight"))
    if not tied:
        slots.append(_head(size, borrowed=borrows_head))
    return HeadRules(LLAMA_HEAD, tuple(slots), size, not own_embedding, borrows_head, tied, failures)


def _llama_dimensions(config: ModelConfig) -> Dimensions:
    assumed = [key for key in _LLAMA_DEFAULTS if config.integer(key) is None]
    if config.integer("head_dim") is None and config.model_type not in DIVIDING:
        assumed.append("head_dim")  # some have a default of their own (Qwen3Config: 128)
    value = {key: config.integer(key) or default for key, default in _LLAMA_DEFAULTS.items()}
    heads = value["num_attention_heads"]
    hidden = value["hidden_size"]
    return Dimensions(
        hidden=hidden,
        target_hidden=config.integer("target_hidden_size") or hidden,
        aux_states=_llama_aux_states(config),
        intermediate=value["intermediate_size"],
        layers=min(value["num_hidden_layers"], 4096),
        heads=heads,
        kv_heads=config.integer("num_key_value_heads") or heads,
        head_dim=config.integer("head_dim") or _default_head_dim(config, hidden, heads),
        vocabulary=value["vocab_size"],
        draft_vocabulary=config.integer("draft_vocab_size") or value["vocab_size"],
        assumed=tuple(assumed),
    )


def _default_head_dim(config: ModelConfig, hidden: int, heads: int) -> int:
    """What transformers' config class for this model_type holds where config.json has none."""
    kind = config.model_type or ""
    if kind.startswith("qwen3"):
        return 128
    rope = config.integer("qk_rope_head_dim")
    if rope is not None and kind.startswith(("deepseek_v", "kimi_k2")):
        return rope
    return max(hidden // heads, 1)


def _llama_aux_states(config: ModelConfig) -> int:
    """`num_aux_hidden_states`, else the length of the nested id list, else 3."""
    explicit = config.integer("num_aux_hidden_states")
    return explicit if explicit is not None else len(config.nested_aux_ids or (0, 0, 0))


def _llama_failures(config: ModelConfig, tied: bool) -> tuple[str, ...]:
    failures = _without_model_type(config)
    if not tied and not config.has("draft_vocab_size"):
        failures.append("config.json has no draft_vocab_size, which the class reads (AttributeError)")
    if "target_hidden_size" in config.raw and config.raw["target_hidden_size"] is None:
        failures.append("target_hidden_size is null, which the class multiplies (TypeError)")
    activation = config.get("hidden_act", "silu")
    if activation != "silu":
        failures.append(f"hidden_act is {activation!r}; the class knows silu only (ValueError)")
    return tuple(failures)


def _without_model_type(config: ModelConfig) -> list[str]:
    """transformers chooses the config class by it (AutoConfig)."""
    return (
        [] if config.model_type else ["config.json has no model_type, so that transformers cannot read it (ValueError)"]
    )


def _llama_layer(
    layer: int, hidden: int, rows: int, kv_rows: int, intermediate: int, config: ModelConfig
) -> list[Slot]:
    prefix, usual = f"model.layers.{layer}.", f"layers.{layer}." if layer else "midlayer."
    inputs = hidden if layer else 2 * hidden
    unused = "only the first layer reads the embedding" if layer else ""
    slots = [
        Slot(f"{prefix}input_layernorm.weight", "", (hidden,), f"{usual}input_layernorm.weight", not layer, unused),
        Slot(f"{prefix}hidden_norm.weight", "", (hidden,), f"{usual}hidden_norm.weight"),
        Slot(f"{prefix}post_attention_layernorm.weight", "", (hidden,), f"{usual}post_attention_layernorm.weight"),
        Slot(f"{prefix}self_attn.qkv_proj.weight", "q", (rows, inputs), f"{usual}self_attn.q_proj.weight"),
        Slot(f"{prefix}self_attn.qkv_proj.weight", "k", (kv_rows, inputs), f"{usual}self_attn.k_proj.weight"),
        Slot(f"{prefix}self_attn.qkv_proj.weight", "v", (kv_rows, inputs), f"{usual}self_attn.v_proj.weight"),
        Slot(f"{prefix}self_attn.o_proj.weight", "", (hidden, rows), f"{usual}self_attn.o_proj.weight"),
        *_mlp(prefix, usual, hidden, intermediate),
    ]
    if bool(config.raw.get("attention_bias", False)) or bool(config.raw.get("bias", False)):
        # qkv_proj is rebuilt with bias=False; o_proj keeps LlamaAttention's.
        slots.append(Slot(f"{prefix}self_attn.o_proj.bias", "", (hidden,), f"{usual}self_attn.o_proj.bias"))
    return slots


# --- Eagle3DeepseekV2ForCausalLM --------------------------------------------------------------------------------------

_MLA_FUSED = "model.midlayer.self_attn.fused_qkv_a_proj_with_mqa.weight"
_MLA_STACKED = ((".gate_up_proj", ".gate_proj", "gate"), (".gate_up_proj", ".up_proj", "up"))


def _route_mla(name: str, parameters: set[str]) -> tuple[str, str] | str | None:
    if name == "d2t" or name.endswith(".d2t"):
        return "map"
    if name == "t2d" or name.endswith(".t2d"):
        return "mask"
    mapped = re.sub(r"^layers\.0\.", "midlayer.", name)
    if not mapped.startswith("lm_head."):
        mapped = f"model.{mapped}"
    for stacked, single, part in _MLA_STACKED:
        if single in mapped and mapped.replace(single, stacked) in parameters:
            return mapped.replace(single, stacked), part
    for single, part in (("q_a_proj", "q_a"), ("kv_a_proj_with_mqa", "kv_a")):
        if single in mapped:
            fused = mapped.replace(single, "fused_qkv_a_proj_with_mqa")
            return (fused, part) if fused in parameters else None
    return (mapped, "") if mapped in parameters else None


def _drop_half_fused(filled: dict[tuple[str, str], str], dropped: list[str]) -> None:
    """One half of the fused projection alone stays in the cache and is never written."""
    halves = [(_MLA_FUSED, "q_a"), (_MLA_FUSED, "kv_a")]
    present = [half for half in halves if half in filled]
    if len(present) == 1:
        dropped.append(filled.pop(present[0]))


def _mla_rules(config: ModelConfig) -> HeadRules:
    size = _mla_dimensions(config)
    hidden, heads, mla = size.hidden, size.heads, size.mla
    nope, rope, value = mla["qk_nope_head_dim"], mla["qk_rope_head_dim"], mla["v_head_dim"]
    q_rank, kv_rank = mla["q_lora_rank"], mla["kv_lora_rank"]
    aux = uses_aux_states(config)
    tied = bool(config.get("tie_word_embeddings", False))
    borrows_head = not tied and config.get("draft_vocab_size") is None
    target_hidden = config.get("target_hidden_size")
    own_embedding = target_hidden is not None and target_hidden != hidden
    prefix, usual = "model.midlayer.", "midlayer."
    attention = f"{prefix}self_attn."
    slots = [
        _embedding(size, borrowed=not own_embedding),
        _fc(size, aux, hidden),
        *_fc_norms(config, size, aux),
        Slot(f"{prefix}input_layernorm.weight", "", (hidden,), f"{usual}input_layernorm.weight"),
        Slot(f"{prefix}hidden_norm.weight", "", (hidden,), f"{usual}hidden_norm.weight"),
        Slot(f"{prefix}post_attention_layernorm.weight", "", (hidden,), f"{usual}post_attention_layernorm.weight"),
        Slot(_MLA_FUSED, "q_a", (q_rank, 2 * hidden), f"{usual}self_attn.q_a_proj.weight"),
        Slot(_MLA_FUSED, "kv_a", (kv_rank + rope, 2 * hidden), f"{usual}self_attn.kv_a_proj_with_mqa.weight"),
        Slot(f"{attention}q_a_layernorm.weight", "", (q_rank,), f"{usual}self_attn.q_a_layernorm.weight"),
        Slot(f"{attention}q_b_proj.weight", "", (heads * (nope + rope), q_rank), f"{usual}self_attn.q_b_proj.weight"),
        Slot(f"{attention}kv_a_layernorm.weight", "", (kv_rank,), f"{usual}self_attn.kv_a_layernorm.weight"),
        Slot(
            f"{attention}kv_b_proj.weight", "", (heads * (nope + value), kv_rank), f"{usual}self_attn.kv_b_proj.weight"
        ),
        Slot(f"{attention}o_proj.weight", "", (hidden, heads * value), f"{usual}self_attn.o_proj.weight"),
        *_mlp(prefix, usual, hidden, size.intermediate),
        Slot("model.norm.weight", "", (hidden,), "norm.weight"),
    ]
    if bool(config.raw.get("bias", False)):
        slots.append(Slot("model.fc.bias", "", (hidden,), "fc.bias", aux, "" if aux else _NO_AUX))
    if not tied:
        slots.append(_head(size, borrowed=borrows_head))
    return HeadRules(
        MLA_HEAD, tuple(slots), size, not own_embedding, borrows_head, tied, _mla_failures(config, size.layers)
    )


def _mla_dimensions(config: ModelConfig) -> Dimensions:
    size = _llama_dimensions(config)
    ids = config.eagle.get("eagle_aux_hidden_state_layer_ids")
    if ids is None:
        ids = config.raw.get("eagle_aux_hidden_state_layer_ids")
    missing = tuple(key for key in _MLA_KEYS if config.integer(key) is None)
    return Dimensions(
        hidden=size.hidden,
        target_hidden=size.target_hidden,
        aux_states=len(ids) if isinstance(ids, list) else 3,
        intermediate=size.intermediate,
        layers=size.layers,
        heads=size.heads,
        kv_heads=size.kv_heads,
        head_dim=size.head_dim,
        vocabulary=size.vocabulary,
        draft_vocabulary=size.draft_vocabulary,
        assumed=tuple(key for key in size.assumed if key != "head_dim") + missing,
        mla={key: config.integer(key) or 1 for key in _MLA_KEYS},
    )


def _mla_failures(config: ModelConfig, layers: int) -> tuple[str, ...]:
    failures = _without_model_type(config)
    if layers != 1:
        failures.append(f"num_hidden_layers is {layers}; the class takes 1 only (ValueError)")
    if config.get("q_lora_rank") is None:
        failures.append("config.json has no q_lora_rank, which the class requires (ValueError)")
    return tuple(failures)


# --- shared -----------------------------------------------------------------------------------------------------------

_NO_AUX = "eagle_config.use_aux_hidden_state is false, so the target's last state goes in directly"


def _embedding(size: Dimensions, *, borrowed: bool) -> Slot:
    why = "SGLang replaces it with the target's" if borrowed else ""
    shape = (size.vocabulary, size.hidden)
    return Slot("model.embed_tokens.weight", "", shape, "embed_tokens.weight", not borrowed, why)


def _fc(size: Dimensions, aux: bool, hidden: int) -> Slot:
    read = aux or size.target_hidden != hidden
    return Slot("model.fc.weight", "", (hidden, size.fc_inputs), "fc.weight", read, "" if read else _NO_AUX)


def _fc_norms(config: ModelConfig, size: Dimensions, aux: bool) -> list[Slot]:
    if not (config.raw.get("fc_norm") or config.raw.get("use_aux_norm", False)):
        return []
    return [
        Slot(f"model.fc_norm.{i}.weight", "", (size.target_hidden,), f"fc_norm.{i}.weight", aux, _NO_AUX)
        for i in range(size.aux_states)
    ]


def _head(size: Dimensions, *, borrowed: bool) -> Slot:
    why = "draft_vocab_size is null, so SGLang uses the target's" if borrowed else ""
    return Slot("lm_head.weight", "", (size.draft_vocabulary, size.hidden), "lm_head.weight", not borrowed, why)


def _mlp(prefix: str, usual: str, hidden: int, intermediate: int) -> list[Slot]:
    return [
        Slot(f"{prefix}mlp.gate_up_proj.weight", "gate", (intermediate, hidden), f"{usual}mlp.gate_proj.weight"),
        Slot(f"{prefix}mlp.gate_up_proj.weight", "up", (intermediate, hidden), f"{usual}mlp.up_proj.weight"),
        Slot(f"{prefix}mlp.down_proj.weight", "", (hidden, intermediate), f"{usual}mlp.down_proj.weight"),
    ]
