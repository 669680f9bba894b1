"""Look-alikes of published drafters, right and wrong, as folders; `grid.toml` says what each must be found to be.

Letters are the forms: A EAGLE, B SpecForge, C Kimi-like, D DeepSeek-like, E and F speculators, G Model-Optimizer, H
full vocabulary, I headless, J EAGLE-3.1, K another hidden size, L two layers, M layer count of the target, N tied, O
MLA, P prefixed names, Q maps, R files, S sizes and layers, T settings, U other algorithms, V origin.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from tests.support.checkpoints import (
    ABSENT,
    DRAFT_VOCABULARY,
    TARGET_VOCABULARY,
    Data,
    Model,
    drafter,
    kept_ids,
    maps,
    mla_drafter,
    target,
)


@dataclass
class Case:
    """A pair to be written. ``settings`` go to `verdicts.deployment`; ``finish`` spoils what was written."""

    drafter: Model | None
    target: Model = field(default_factory=target)
    settings: dict[str, Any] = field(default_factory=dict)
    shards: int = 1
    finish: Callable[[Path], None] | None = None  # gets the drafter's folder; the target's is ../target


@dataclass(frozen=True)
class Built:
    """Folders of one case."""

    target: Path
    drafter: Path | None
    settings: Mapping[str, Any]


CASES: dict[str, Callable[[], Case]] = {}


def build(name: str, folder: Path) -> Built:
    """Write one case below ``folder``."""
    case = CASES[name]()
    case.target.write(folder / "target")
    path = None
    if case.drafter is not None:
        path = case.drafter.write(folder / "drafter", shards=case.shards)
        if case.finish is not None:
            case.finish(path)
    settings = {key: _place(value, folder) for key, value in case.settings.items()}
    return Built(folder / "target", settings.pop("drafter", path), settings)


def _place(value: Any, folder: Path) -> Any:
    """``@folder`` in settings is the case's folder."""
    if isinstance(value, str):
        return value.replace("@folder", str(folder))
    if isinstance(value, dict):
        return {key: _place(inner, folder) for key, inner in value.items()}
    return value


def case(name: str) -> Callable[[Callable[[], Case]], Callable[[], Case]]:
    """Register a case."""

    def register(make: Callable[[], Case]) -> Callable[[], Case]:
        if name in CASES:
            raise ValueError(name)
        CASES[name] = make
        return make

    return register


def simple(name: str, change: Callable[[Model], Any] = lambda model: None, **settings: Any) -> None:
    """A SpecForge-like drafter with one change."""

    def make() -> Case:
        model = drafter()
        change(model)
        return Case(model, settings=dict(settings))

    case(name)(make)


def setting(key: str, value: Any) -> Callable[[Model], None]:
    """Set a config key, or take it out with ABSENT."""

    def change(model: Model) -> None:
        if value is ABSENT:
            model.config.pop(key, None)
        else:
            model.config[key] = value

    return change


def aux(*ids: int) -> Callable[[Model], None]:
    """Nested aux layer ids."""
    return setting("eagle_config", {"eagle_aux_hidden_state_layer_ids": list(ids), "use_aux_hidden_state": True})


def without(*names: str) -> Callable[[Model], None]:
    """Take tensors out."""

    def change(model: Model) -> None:
        for name in names:
            del model.tensors[name]

    return change


def every(*changes: Callable[[Model], Any]) -> Callable[[Model], None]:
    """Several changes."""

    def change(model: Model) -> None:
        for one in changes:
            one(model)

    return change


def tensor(name: str, data: Data) -> Callable[[Model], None]:
    """Put a tensor in."""

    def change(model: Model) -> None:
        model.tensors[name] = data

    return change


# --- A: EAGLE ---------------------------------------------------------------------------------------------------------


def eagle(**config: Any) -> Model:
    settings = {"architectures": ["LlamaForCausalLM"], "rope_theta": ABSENT, "torch_dtype": "float16"}
    model = drafter(dtype="F16", **{**settings, "eagle_config": ABSENT, **config})
    del model.config["head_dim"]
    return model


def half_target(**config: Any) -> Model:
    return target(torch_dtype="float16", **config)


CASES["A as published"] = lambda: Case(eagle(), half_target())
CASES["A mended"] = lambda: Case(eagle(architectures=["LlamaForCausalLMEagle3"]), half_target())
CASES["A float16 beside bfloat16"] = lambda: Case(eagle(architectures=["LlamaForCausalLMEagle3"]))
CASES["A float16 beside bfloat16, dtype set"] = lambda: Case(
    eagle(architectures=["LlamaForCausalLMEagle3"]), settings={"dtype": "bfloat16"}
)


def dtype_less(architecture: str, **config: Any) -> Model:
    """A target whose config.json says no dtype, as gpt-oss has none."""
    model = target(architectures=[architecture], **config)
    del model.config["torch_dtype"]
    return model


CASES["A dtype forced: gpt-oss"] = lambda: Case(
    drafter(), dtype_less("GptOssForCausalLM", quantization_config={"quant_method": "mxfp4"})
)
CASES["A dtype forced: Mistral Large 3"] = lambda: Case(drafter(), dtype_less("MistralLarge3ForCausalLM"))
CASES["A dtype forced on a float16 drafter"] = lambda: Case(
    drafter(torch_dtype="float16", eagle_config=KIMI_IDS), target(architectures=["MistralLarge3ForCausalLM"])
)
CASES["A dtype of the target absent"] = lambda: Case(drafter(), dtype_less("LlamaForCausalLM"))
CASES["A dtype under STANDALONE"] = lambda: Case(
    target(layers=2, hidden=16, torch_dtype="float16"), settings={"algorithm": "STANDALONE"}
)
CASES["A dtype under EAGLE"] = lambda: Case(eagle_1(torch_dtype="float16"), settings={"algorithm": "EAGLE"})
CASES["A short context"] = lambda: Case(
    eagle(architectures=["LlamaForCausalLMEagle3"], max_position_embeddings=64), half_target()
)
CASES["A short context, 0.5.17"] = lambda: Case(
    eagle(architectures=["LlamaForCausalLMEagle3"], max_position_embeddings=64), half_target(),
    {"version": "0.5.17"},
)  # fmt: skip
CASES["A short context, served shorter"] = lambda: Case(
    eagle(architectures=["LlamaForCausalLMEagle3"], max_position_embeddings=64), half_target(), {"context_length": 64}
)

# --- B: SpecForge -----------------------------------------------------------------------------------------------------

simple("B SpecForge")
simple("B SpecForge, 0.5.16", version="0.5.16")
simple("B dtype for torch_dtype", every(setting("torch_dtype", ABSENT), setting("dtype", "bfloat16")))
CASES["B in three shards"] = lambda: Case(drafter(), shards=3)
simple("B under EAGLE", algorithm="EAGLE")
simple("B under NEXTN", algorithm="NEXTN")
simple("B under STANDALONE", algorithm="STANDALONE")
simple("B newer SGLang", version="0.6.1")
simple("B rope in rope_parameters", every(
    setting("rope_theta", ABSENT),
    setting("rope_parameters", {"rope_theta": 1e6, "rope_type": "default"})))  # fmt: skip

# --- C and D: Kimi and DeepSeek ---------------------------------------------------------------------------------------


def kimi_target(**config: Any) -> Model:
    """A multimodal target with its sizes in text_config."""
    model = target()
    text = {**model.config, "architectures": ["DeepseekV3ForCausalLM"], "model_type": "kimi_k2", **config}
    model.config = {
        "architectures": ["KimiK25ForConditionalGeneration"], "model_type": "kimi_k25", "text_config": text,
        "vision_config": {"hidden_size": 8}, "torch_dtype": "bfloat16",
    }  # fmt: skip
    return model


def wide_heads(**config: Any) -> Model:
    """heads * head_dim is not the hidden size."""
    return drafter(heads=4, kv_heads=4, head_dim=12, **config)


KIMI_IDS = {"eagle_aux_hidden_state_layer_ids": [2, 4, 5], "use_aux_hidden_state": True}
CASES["C Kimi"] = lambda: Case(wide_heads(eagle_config=KIMI_IDS), kimi_target())
CASES["C Kimi ids on a Llama"] = lambda: Case(wide_heads(eagle_config=KIMI_IDS))
CASES["D DeepSeek"] = lambda: Case(drafter(), target(architectures=["DeepseekV3ForCausalLM"]))
CASES["D DeepSeek ids on a Kimi"] = lambda: Case(drafter(), kimi_target())

# --- E and F: speculators ---------------------------------------------------------------------------------------------


def speculators(norm_before_residual: bool | None = False, ids: list[int] | None = None, states: int = 3) -> Model:
    model = drafter(prefix="layers.0.", states=states)
    layer = {
        key: model.config.pop(key)
        for key in (
            "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads",
            "head_dim", "vocab_size", "max_position_embeddings", "rms_norm_eps", "rope_theta", "hidden_act",
            "model_type",
        )
    }  # fmt: skip
    model.config = {
        "architectures": ["Eagle3Speculator"], "speculators_model_type": "eagle3", "speculators_version": "0.2.0",
        "draft_vocab_size": DRAFT_VOCABULARY, "target_hidden_size": None, "torch_dtype": "bfloat16",
        "transformer_layer_config": layer,
        "speculators_config": {"verifier": {"name_or_path": "some/target", "architectures": ["LlamaForCausalLM"]}},
    }  # fmt: skip
    if norm_before_residual is not None:
        model.config["norm_before_residual"] = norm_before_residual
    if ids is not None:
        model.config["eagle_aux_hidden_state_layer_ids"] = ids
    model.tensors["embed_tokens.weight"] = Data("BF16", (TARGET_VOCABULARY, 32), like="model.embed_tokens.weight")
    return model


def converted(model: Model, ids: list[int] | None = None) -> Model:
    """As the remedy says: the decoder's keys at top level, the class, the ids in eagle_config."""
    layer = model.config.pop("transformer_layer_config")
    model.config = {**model.config, **layer, "architectures": ["LlamaForCausalLMEagle3"], "tie_word_embeddings": False}
    for key in ("speculators_config", "speculators_model_type", "speculators_version", "target_hidden_size"):
        del model.config[key]
    if ids is not None:
        model.config.pop("eagle_aux_hidden_state_layer_ids", None)
        model.config["eagle_config"] = {"eagle_aux_hidden_state_layer_ids": ids}
    return model


CASES["E speculators, true"] = lambda: Case(speculators(True))
CASES["E speculators, false"] = lambda: Case(speculators(False))
CASES["E speculators, missing"] = lambda: Case(speculators(None))
CASES["E converted, true"] = lambda: Case(converted(speculators(True), [1, 3, 4]))
CASES["E converted, false"] = lambda: Case(converted(speculators(False), [1, 3, 4]))
CASES["E converted, missing"] = lambda: Case(converted(speculators(None), [1, 3, 4]))


def half_converted(**top: Any) -> Model:
    """The class renamed and the ids in place, the decoder's keys left where they were."""
    model = speculators(False)
    model.config |= {
        "architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama", "tie_word_embeddings": False, **top,
        "eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 3, 4]},
    }  # fmt: skip
    del model.config["target_hidden_size"]
    return model


SIZES = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 8, "vocab_size": TARGET_VOCABULARY, "max_position_embeddings": 512,
}  # fmt: skip
CASES["E half converted"] = lambda: Case(half_converted())
CASES["E half converted, sizes in both places"] = lambda: Case(half_converted(**SIZES))
CASES["E half converted, other sizes at top level"] = lambda: Case(half_converted(**{**SIZES, "intermediate_size": 64}))
simple("E half converted, in text_config", every(
    setting("text_config", {**SIZES, "model_type": "llama"}), *(setting(key, ABSENT) for key in SIZES)))  # fmt: skip
CASES["F speculators, 4 ids"] = lambda: Case(speculators(False, [2, 3, 4, 5], 4))
CASES["F converted, 4 ids"] = lambda: Case(converted(speculators(False, None, 4), [1, 2, 3, 4]))
CASES["F converted, 4 ids left at top level"] = lambda: Case(converted(speculators(False, [2, 3, 4, 5], 4)))
CASES["F converted, default ids left at top level"] = lambda: Case(converted(speculators(False, [2, 4, 5])))
CASES["F converted, other ids left at top level"] = lambda: Case(converted(speculators(False, [1, 2, 3])))


# --- G, H, I: what is and is not in the file --------------------------------------------------------------------------


def optimizer(**config: Any) -> Model:
    model = drafter(prefix="layers.0.", **config)
    model.tensors.pop("t2d", None)
    return model


CASES["G Model-Optimizer"] = lambda: Case(optimizer())


def by_frequency(order: int = 5, *, mask: bool = False, spoil: Callable[[list[int]], None] = lambda ids: None) -> Case:
    """As calibrate_frequent_vocab writes it: mapping[i] = most_common[i] - i."""
    model = optimizer()
    ids = kept_ids()
    Random(order).shuffle(ids)
    spoil(ids)
    model.tensors["d2t"] = Data("I64", (len(ids),), [token - i for i, token in enumerate(ids)])
    if mask:
        model.tensors["t2d"] = maps(ids)["t2d"]
    return Case(model)


CASES["G frequency order"] = by_frequency
CASES["G frequency order, beside a mask"] = lambda: by_frequency(mask=True)
CASES["G frequency order, a token twice"] = lambda: by_frequency(spoil=lambda ids: ids.__setitem__(3, ids[30]))
CASES["G frequency order, out of range"] = lambda: by_frequency(spoil=lambda ids: ids.__setitem__(3, 96))
CASES["G Model-Optimizer, full vocabulary"] = lambda: Case(optimizer(draft=TARGET_VOCABULARY))


@case("G full head with a small vocabulary")
def _() -> Case:
    model = optimizer()
    model.tensors["lm_head.weight"] = Data("BF16", (TARGET_VOCABULARY, 32))
    return Case(model)


CASES["H full vocabulary"] = lambda: Case(drafter(draft=TARGET_VOCABULARY))


@case("H full vocabulary, zero map")
def _() -> Case:
    model = drafter(draft=TARGET_VOCABULARY)
    model.tensors["d2t"] = Data("I64", (TARGET_VOCABULARY,), [0] * TARGET_VOCABULARY)
    return Case(model)


def headless(**config: Any) -> Model:
    model = drafter(draft=TARGET_VOCABULARY, **config)
    del model.tensors["lm_head.weight"]
    return model


CASES["I headless"] = lambda: Case(headless())
CASES["I headless, null"] = lambda: Case(headless(draft_vocab_size=None))
CASES["I headless, absent"] = lambda: Case(headless(draft_vocab_size=ABSENT))
CASES["I null with a head"] = lambda: Case(drafter(draft=TARGET_VOCABULARY, draft_vocab_size=None))

# --- J: EAGLE-3.1 -----------------------------------------------------------------------------------------------------

FC_NORMS = {f"fc_norm.{i}.weight": Data("BF16", (32,)) for i in range(3)}
AUX_NORMS = {f"aux_norm_{place}.weight": Data("BF16", (32,)) for place in ("low", "mid", "high")}


def extra(tensors: Mapping[str, Data], **config: Any) -> Callable[[], Case]:
    def make() -> Case:
        model = drafter(**config)
        model.tensors |= tensors
        return Case(model)

    return make


INPUT_NORM = {"input_norm.weight": Data("BF16", (96,))}
CASES["J fc_norm and norm_output"] = extra(FC_NORMS, fc_norm=True, norm_output=True)
CASES["J norm_before_fc"] = extra(INPUT_NORM, norm_before_fc=True)
CASES["J norm_before_fc, nested"] = extra(
    INPUT_NORM, eagle_config={"eagle_aux_hidden_state_layer_ids": [1, 3, 4], "norm_before_fc": True}
)
CASES["J legacy aux_norm names"] = extra(AUX_NORMS, use_aux_norm=True)
CASES["J fc_norm without its switch"] = extra(FC_NORMS)
CASES["J input_norm without its switch"] = extra(INPUT_NORM)
CASES["J fc_norm switch without tensors"] = extra({}, fc_norm=True)
CASES["J fc_norm switch in the wrong place"] = extra(
    FC_NORMS, eagle_config={"eagle_aux_hidden_state_layer_ids": [1, 3, 4], "fc_norm": True}
)


@case("J norm_before_fc, 0.5.16")
def _() -> Case:
    made = extra(INPUT_NORM, norm_before_fc=True)()
    made.settings["version"] = "0.5.16"
    return made


# --- K: another hidden size -------------------------------------------------------------------------------------------


def narrow(**config: Any) -> Model:
    model = drafter(hidden=24, target_hidden=32, head_dim=6, **config)
    model.tensors["embed_tokens.weight"] = Data("BF16", (TARGET_VOCABULARY, 24))
    return model


CASES["K own embedding"] = lambda: Case(narrow())


@case("K without an embedding")
def _() -> Case:
    model = narrow()
    del model.tensors["embed_tokens.weight"]
    return Case(model)


CASES["K target_hidden_size of another target"] = lambda: Case(narrow(), target(hidden=40))
CASES["K hidden size of another target"] = lambda: Case(drafter(), target(hidden=40))
simple("K target_hidden_size null", setting("target_hidden_size", None))

# --- L, M, N ----------------------------------------------------------------------------------------------------------

CASES["L two layers"] = lambda: Case(drafter(layers=2))


@case("L second layer lacks a norm")
def _() -> Case:
    model = drafter(layers=2)
    del model.tensors["layers.1.hidden_norm.weight"]
    return Case(model)


@case("L second layer as wide as the first")
def _() -> Case:
    model = drafter(layers=2)
    model.tensors["layers.1.self_attn.q_proj.weight"] = Data("BF16", (32, 64))
    return Case(model)


@case("L second layer lacks its unread norm")
def _() -> Case:
    model = drafter(layers=2)
    del model.tensors["layers.1.input_layernorm.weight"]
    return Case(model)


simple("M layers of the target", setting("num_hidden_layers", 36))


@case("M fewer layers than the file")
def _() -> Case:
    return Case(drafter(layers=2, num_hidden_layers=1))


simple("M layers absent", setting("num_hidden_layers", ABSENT))
simple("N tied with a small vocabulary", setting("tie_word_embeddings", True))
CASES["N tied with a head"] = lambda: Case(drafter(draft=TARGET_VOCABULARY, tie_word_embeddings=True))
CASES["N tied"] = lambda: Case(headless(tie_word_embeddings=True))

# --- O: MLA -----------------------------------------------------------------------------------------------------------


def mla(change: Callable[[Model], Any] = lambda model: None, **config: Any) -> Callable[[], Case]:
    def make() -> Case:
        model = mla_drafter(**config)
        change(model)
        return Case(model, kimi_target())

    return make


CASES["O MLA"] = mla()
CASES["O MLA, fc_norm"] = mla(lambda model: model.tensors.update(FC_NORMS), fc_norm=True, norm_output=True)
CASES["O MLA, no draft_vocab_size"] = mla(without("lm_head.weight"), draft_vocab_size=ABSENT)
CASES["O MLA, midlayer names"] = mla(lambda model: model.rename("layers.0.", "midlayer."))
CASES["O MLA without kv_b_proj"] = mla(without("layers.0.self_attn.kv_b_proj.weight"))
CASES["O MLA without q_a_proj"] = mla(without("layers.0.self_attn.q_a_proj.weight"))
CASES["O MLA, model. prefix"] = mla(lambda model: model.rename("layers.0.", "model.layers.0."))
CASES["O MLA, two layers"] = mla(num_hidden_layers=2)
CASES["O MLA, norm_before_fc"] = mla(norm_before_fc=True)
CASES["O MLA tensors under the Llama class"] = mla(architectures=["LlamaForCausalLMEagle3"])
CASES["O Llama tensors under the MLA class"] = lambda: Case(
    drafter(architectures=["Eagle3DeepseekV2ForCausalLM"]), kimi_target()
)


@case("O MLA, 4 ids at top level")
def _() -> Case:
    model = mla_drafter(eagle_config=ABSENT, eagle_aux_hidden_state_layer_ids=[2, 3, 4, 5])
    model.tensors["fc.weight"] = Data("BF16", (32, 128))
    return Case(model, kimi_target())


CASES["O MLA, default ids at top level"] = mla(eagle_config=ABSENT, eagle_aux_hidden_state_layer_ids=[2, 4, 5])

# --- P: prefix --------------------------------------------------------------------------------------------------------


@case("P model. prefix")
def _() -> Case:
    model = drafter()
    model.tensors = {
        name if name.startswith("lm_head") else f"model.{name}": entry for name, entry in model.tensors.items()
    }
    return Case(model)


# --- Q: maps ----------------------------------------------------------------------------------------------------------

IDS = kept_ids()
OFFSETS = [token - i for i, token in enumerate(IDS)]
OTHER = kept_ids(DRAFT_VOCABULARY - 1, TARGET_VOCABULARY)


def d2t(values: list[int], dtype: str = "I64") -> Callable[[Model], None]:
    return tensor("d2t", Data(dtype, (len(values),), values))


simple("Q absolute ids", d2t(IDS))
simple("Q absolute ids, no mask", every(d2t(IDS), without("t2d")))
simple("Q arange", d2t(list(range(DRAFT_VOCABULARY))))
simple("Q out of range", d2t([*OFFSETS[:-1], TARGET_VOCABULARY]))
simple("Q negative", d2t([*OFFSETS[:-1], -60]))
simple("Q duplicates", d2t([*OFFSETS[:20], OFFSETS[20] - 1, *OFFSETS[21:]]))
simple("Q all zero", d2t([0] * DRAFT_VOCABULARY))
simple("Q short", d2t(OFFSETS[:-1]))
simple("Q float", d2t(OFFSETS, "F32"))
simple("Q int32", d2t(OFFSETS, "I32"))
simple("Q mask of another size", tensor("t2d", maps(OTHER)["t2d"]))
simple(
    "Q mask of another map", tensor("t2d", maps([*IDS[:-1], next(i for i in range(95, 0, -1) if i not in IDS)])["t2d"])
)
simple("Q no map", without("d2t", "t2d"))
simple("Q map under another name", lambda model: model.rename("d2t", "draft_to_target"))
simple("Q first tokens, really", every(
    d2t([0] * DRAFT_VOCABULARY), tensor("t2d", maps(list(range(DRAFT_VOCABULARY)))["t2d"])))  # fmt: skip

# --- R: files ---------------------------------------------------------------------------------------------------------

FILE = "model.safetensors"


def spoilt(name: str, finish: Callable[[Path], None], *, shards: int = 1, **settings: Any) -> None:
    CASES[name] = lambda: Case(drafter(), settings=dict(settings), shards=shards, finish=finish)


def lfs_pointer(folder: Path) -> None:
    (folder / FILE).write_text("version https://git-lfs.github.com/spec/v1\noid sha256:ab\nsize 2373654528\n")


def cut(folder: Path) -> None:
    path = folder / FILE
    path.write_bytes(path.read_bytes()[:-1000])


def trailing(folder: Path) -> None:
    path = folder / FILE
    path.write_bytes(path.read_bytes() + b"\0" * 100)


def index(change: Callable[[dict[str, str]], None]) -> Callable[[Path], None]:
    def finish(folder: Path) -> None:
        path = folder / "model.safetensors.index.json"
        document = json.loads(path.read_text())
        change(document["weight_map"])
        path.write_text(json.dumps(document))

    return finish


def to_pickle(folder: Path) -> None:
    (folder / FILE).unlink()
    (folder / "pytorch_model.bin").write_bytes(b"\x80\x02cos\nsystem\n(S'touch /tmp/never'\ntR.")


def old_config(folder: Path) -> None:
    newest = (folder / FILE).stat().st_mtime
    os.utime(folder / "config.json", (newest - 10 * 86400,) * 2)


spoilt("R LFS pointer", lfs_pointer)
spoilt("R truncated", cut)
spoilt("R trailing bytes", trailing)
spoilt("R missing shard", lambda folder: (folder / "model-00002-of-00003.safetensors").unlink(), shards=3)
spoilt("R index names a tensor that its shard lacks", index(
    lambda entries: entries.update({"norm.bias": "model-00001-of-00003.safetensors"})), shards=3)  # fmt: skip
spoilt("R index is no map", lambda folder: (folder / "model.safetensors.index.json").write_text("[]"), shards=3)
spoilt("R unlisted shard", lambda folder: drafter().write(folder), shards=3)
spoilt("R pickle only", to_pickle)
spoilt("R pickle only, allowed", to_pickle, profile={"drafter": {"allow_pickle": True}})
spoilt("R no weights", lambda folder: (folder / FILE).unlink())
spoilt("R no config", lambda folder: (folder / "config.json").unlink())
spoilt("R broken config", lambda folder: (folder / "config.json").write_text('{"architectures": ["Llama'))
spoilt("R config of wrong types", lambda folder: (folder / "config.json").write_text('{"hidden_size": "32"}'))
spoilt("R old config", old_config)
spoilt("R link loop", lambda folder: ((folder / FILE).unlink(), (folder / FILE).symlink_to(folder / FILE))[0])
spoilt("R no drafter", lambda folder: None, drafter="@folder/nowhere")
spoilt("R the target as drafter", lambda folder: None, drafter="@folder/target")
spoilt("R the target as drafter, through a link", lambda folder: (folder.parent / "link").symlink_to("target"),
       drafter="@folder/link")  # fmt: skip
spoilt("R no target", lambda folder: None, model_path="@folder/nowhere")
spoilt("R broken target config", lambda folder: cut_text(folder.parent / "target" / "config.json"))
CASES["R target with a list of sizes"] = lambda: Case(drafter(), target(intermediate_size=[48] * 8))
CASES["R target with an unusual vocabulary"] = lambda: Case(drafter(), target(vocab_size="96"))
CASES["R target with an unusual vocabulary, alone"] = lambda: Case(None, target(vocab_size="96"), {"algorithm": None})
spoilt("R cut target tokenizer", lambda folder: cut_tokenizer(folder.parent / "target"))
spoilt("R truncated target", lambda folder: cut(folder.parent / "target"))


def cut_text(path: Path) -> None:
    path.write_text(path.read_text()[:-20])


def cut_tokenizer(folder: Path) -> None:
    for name, content in tokenizer().items():
        (folder / name).write_bytes(content)
    cut_text(folder / "tokenizer.json")


def numbers(name: str, value: float, count: int | None = None) -> Callable[[Model], None]:
    """Fill a tensor with one value, or its first ``count`` numbers."""

    def change(model: Model) -> None:
        entry = model.tensors[name]
        size = entry.shape[0] * (entry.shape[1] if len(entry.shape) > 1 else 1)
        filled = [value] * (size if count is None else count) + [
            0.01 * (i % 7 + 1) for i in range(size - (count or size))
        ]
        model.tensors[name] = Data(entry.dtype, entry.shape, filled)

    return change


simple("R NaN", numbers("midlayer.mlp.down_proj.weight", float("nan"), 1), deep=True)
simple(
    "R NaN in double precision", tensor("norm.weight", Data("F64", (32,), [1.5, float("nan"), *[1.25] * 30])), deep=True
)
simple("R NaN in eight bits", every(
    setting("quantization_config", {"quant_method": "fp8"}),
    tensor("midlayer.self_attn.o_proj.weight", Data("F8_E4M3", (32, 32), [*(i % 127 for i in range(1023)), 0x7F])),
), deep=True)  # fmt: skip
simple("R Inf", numbers("fc.weight", float("inf"), 2), deep=True)
simple("R all-zero matrix", numbers("midlayer.self_attn.o_proj.weight", 0.0), deep=True)
simple("R constant matrix", numbers("lm_head.weight", 0.5), deep=True)
simple("R norms of one", every(*(
    numbers(f"{name}.weight", 1.0)
    for name in ("norm", "midlayer.hidden_norm", "midlayer.input_layernorm", "midlayer.post_attention_layernorm")
)), deep=True)  # fmt: skip

# --- S: sizes and layers ----------------------------------------------------------------------------------------------

simple("S head_dim of another drafter", setting("head_dim", 5))
simple("S intermediate_size of another drafter", setting("intermediate_size", 64))
simple("S q_proj takes one state", tensor("midlayer.self_attn.q_proj.weight", Data("BF16", (32, 32))))
simple("S other tensor names", lambda model: model.rename("midlayer.", "decoder."))
simple("S no fc", without("fc.weight"))
simple("S no fc, no aux states", every(
    without("fc.weight"), setting("eagle_config", {"use_aux_hidden_state": False})))  # fmt: skip
simple("S one name twice", tensor("layers.0.hidden_norm.weight", Data("BF16", (32,), seed=1)))
simple("S unknown tensor", tensor("confidence.weight", Data("BF16", (1, 32))))
simple("S rotary buffer", tensor("midlayer.self_attn.rotary_emb.inv_freq", Data("F32", (4,))))
simple("S fp8 tensor without a quantization_config", tensor("fc.weight", Data("F8_E4M3", (32, 96))))
simple("S ids beyond the target", aux(1, 3, 9))
simple("S last layer", aux(1, 3, 7))
simple("S ids out of order", aux(4, 3, 1))
simple("S two equal ids", aux(1, 3, 3))
simple("S four ids for three states", aux(1, 2, 3, 4))
simple("S ids at top level, other layers", every(
    setting("eagle_config", ABSENT), setting("eagle_aux_hidden_state_layer_ids", [1, 2, 6])))  # fmt: skip
simple("S ids at top level, the default's", every(
    setting("eagle_config", ABSENT), setting("eagle_aux_hidden_state_layer_ids", [1, 3, 4])))  # fmt: skip
simple("S no ids", setting("eagle_config", ABSENT))
simple("S num_aux_hidden_states contradicts", setting("num_aux_hidden_states", 2))
CASES["S target of 6 layers"] = lambda: Case(drafter(eagle_config=ABSENT), target(layers=6))
CASES["S gpt-oss, its last layer"] = lambda: Case(
    drafter(eagle_config={"eagle_aux_hidden_state_layer_ids": [4, 6, 8]}), target(architectures=["GptOssForCausalLM"])
)
CASES["S gpt-oss, its last layer, 0.5.16"] = lambda: Case(
    drafter(eagle_config={"eagle_aux_hidden_state_layer_ids": [4, 6, 8]}),
    target(architectures=["GptOssForCausalLM"]),
    {"version": "0.5.16"},
)
CASES["S unknown target class"] = lambda: Case(drafter(), target(architectures=["NewForCausalLM"]))
CASES["S padded vocabulary"] = lambda: Case(drafter(), target(vocabulary=TARGET_VOCABULARY + 32))
CASES["S padded vocabulary, the tokenizer tells"] = lambda: Case(
    drafter(), with_files(target(vocabulary=TARGET_VOCABULARY + 32), tokenizer())
)
CASES["S longer vocabulary, the tokenizer tells"] = lambda: Case(
    drafter(vocabulary=TARGET_VOCABULARY - 8), with_files(target(), tokenizer())
)
CASES["S ids beyond the tokenizer"] = lambda: Case(drafter(), with_files(target(), shorter(tokenizer(), 90)))
CASES["S LongCat"] = lambda: Case(drafter(), longcat())
CASES["S LongCat, ids of deeper layers"] = lambda: Case(drafter(eagle_config=LATE_IDS), longcat())
CASES["S target without a number of layers"] = lambda: Case(drafter(), without_layers())
CASES["S another vocabulary"] = lambda: Case(drafter(), target(vocabulary=4 * TARGET_VOCABULARY + 1024))
LATE_IDS = {"eagle_aux_hidden_state_layer_ids": [1, 3, 9]}


def longcat() -> Model:
    """Calls its layers num_layers."""
    model = target(architectures=["LongcatFlashForCausalLM"])
    model.config["num_layers"] = model.config.pop("num_hidden_layers")
    return model


def without_layers() -> Model:
    model = target()
    del model.config["num_hidden_layers"]
    return model


simple("S hidden_act gelu", setting("hidden_act", "gelu"))
simple("S unknown rope type", setting("rope_scaling", {"rope_type": "spiral", "factor": 2.0}))
simple("S two rope bases", setting("rope_parameters", {"rope_theta": 5e5}))
simple("S no model_type", setting("model_type", ABSENT))
simple("S Qwen3 config without head_dim", every(setting("model_type", "qwen3"), setting("head_dim", ABSENT)))
simple("S Qwen2 config without head_dim", every(setting("model_type", "qwen2"), setting("head_dim", ABSENT)))
simple("T rope factor without bound", setting("rope_scaling", {"rope_type": "linear", "factor": float("inf")}))
simple("S no architecture", setting("architectures", ABSENT))
simple("S class of its own", setting("architectures", ["MyEagle3Head"]))
simple("S class of its own, external package", setting("architectures", ["MyEagle3Head"]),
       environment={"SGLANG_EXTERNAL_MODEL_PACKAGE": "my_models"})  # fmt: skip

# --- T: settings ------------------------------------------------------------------------------------------------------

THREE = ("speculative_num_steps", "speculative_eagle_topk", "speculative_num_draft_tokens")
simple("T chain", **dict(zip(THREE, (3, 1, 4), strict=True)))
simple("T chain, wrong draft tokens", **dict(zip(THREE, (3, 1, 8), strict=True)))
simple("T tree", **dict(zip(THREE, (3, 4, 16), strict=True)))
simple("T tree too small", **dict(zip(THREE, (2, 2, 16), strict=True)))
simple("T steps alone", speculative_num_steps=3)
simple("T quantization inherited", quantization="fp8")
simple("T quantization kept apart", quantization="fp8", speculative_draft_model_quantization="unquant")
spoilt("T quantized drafter, by Model-Optimizer", lambda folder: hf_quant(folder, "FP8"))
spoilt("T drafter that Model-Optimizer left alone", lambda folder: hf_quant(folder, None))


def hf_quant(folder: Path, algorithm: str | None) -> None:
    document = {"producer": {"name": "modelopt"}, "quantization": {"quant_algo": algorithm}}
    (folder / "hf_quant_config.json").write_text(json.dumps(document))


simple("T quantized drafter", setting("quantization_config", {"quant_method": "fp8"}))
simple("T graphs below the batch size", cuda_graph_max_bs=8, max_running_requests=32)
simple("T graphs below the smoke test's batch size", cuda_graph_max_bs_decode=8,
       profile={"smoke": {"batch_sizes": [1, 16]}})  # fmt: skip
simple("T graphs up to the batch size", cuda_graph_max_bs=32, max_running_requests=32)
simple("T invented accept length", environment={"SGLANG_SIMULATE_ACC_LEN": "2.5"})
simple("T invented accept length, off", environment={"SGLANG_SIMULATE_ACC_LEN": "-1"})
simple("T dummy weights", load_format="dummy")
simple("T dummy target, real drafter", load_format="dummy", speculative_draft_load_format="auto")
CASES["T dummy target without weights"] = lambda: Case(
    None, Model(target().config, {}), {"algorithm": None, "load_format": "dummy"}
)
simple("T target elsewhere", model_path="s3://bucket/model")
simple("T target in GGUF", model_path="/models/model.gguf")
simple("T drafter elsewhere", speculative_draft_model_path="s3://bucket/drafter")
simple("T token map", speculative_token_map="/somewhere/map.pt")
simple("T override args that are no JSON", json_model_override_args="{draft_vocab_size: 40}")
simple("T override args that are no object", json_model_override_args="[40]")
CASES["T token map that is not there"] = lambda: Case(
    eagle_1(), settings={"algorithm": "EAGLE", "speculative_token_map": "/no/such/map.pt"}
)
CASES["T token map of the hub"] = lambda: Case(
    eagle_1(), settings={"algorithm": "EAGLE", "speculative_token_map": "owner/model/freq_32768.pt"}
)
simple("T override args", setting("draft_vocab_size", ABSENT), json_model_override_args='{"draft_vocab_size": 40}')

# --- U: other algorithms ----------------------------------------------------------------------------------------------

CASES["U none"] = lambda: Case(None, settings={"algorithm": None})
CASES["U NGRAM"] = lambda: Case(None, settings={"algorithm": "NGRAM"})
CASES["U drafter without an algorithm"] = lambda: Case(drafter(), settings={"algorithm": None})
CASES["U EAGLE3 without a drafter"] = lambda: Case(None)
CASES["U unknown algorithm"] = lambda: Case(drafter(), settings={"algorithm": "DSPARK"})
CASES["U NEXTN without layers of its own"] = lambda: Case(None, settings={"algorithm": "NEXTN"})


def deepseek_target(*, mtp: bool) -> Model:
    model = target(architectures=["DeepseekV3ForCausalLM"], num_nextn_predict_layers=1)
    if mtp:
        model.tensors["model.layers.8.eh_proj.weight"] = Data("BF16", (32, 64))
    return model


CASES["U NEXTN, DeepSeek"] = lambda: Case(None, deepseek_target(mtp=True), {"algorithm": "NEXTN"})
CASES["U NEXTN, DeepSeek without its MTP layer"] = lambda: Case(
    None, deepseek_target(mtp=False), {"algorithm": "NEXTN"}
)
CASES["U STANDALONE"] = lambda: Case(target(layers=2, hidden=16), settings={"algorithm": "STANDALONE"})


def gpt2_like() -> Model:
    """A drafter whose feed-forward parts are called c_fc."""
    model = target(layers=2, hidden=16)
    model.tensors["transformer.h.0.mlp.c_fc.weight"] = Data("BF16", (16, 64))
    return model


CASES["U STANDALONE with a c_fc"] = lambda: Case(gpt2_like(), settings={"algorithm": "STANDALONE"})
CASES["U STANDALONE, another vocabulary"] = lambda: Case(
    target(layers=2, hidden=16, vocabulary=2048), settings={"algorithm": "STANDALONE"}
)


def eagle_1(**config: Any) -> Model:
    model = target(layers=1, architectures=["LlamaForCausalLMEagle"], **config)
    model.tensors = {"fc.weight": Data("BF16", (32, 64)), **model.tensors}
    return model


CASES["U EAGLE head"] = lambda: Case(eagle_1(), settings={"algorithm": "EAGLE"})
CASES["U EAGLE head of another target"] = lambda: Case(eagle_1(), target(hidden=40), {"algorithm": "EAGLE"})

# --- V: origin --------------------------------------------------------------------------------------------------------


def tokenizer(swap: int = 0, *, end: int = 2) -> dict[str, bytes]:
    """tokenizer.json of 96 tokens; ``swap`` exchanges that many pairs."""
    tokens = [f"t{i}" for i in range(TARGET_VOCABULARY)]
    for i in range(swap):
        tokens[2 * i + 3], tokens[2 * i + 4] = tokens[2 * i + 4], tokens[2 * i + 3]
    document = {
        "added_tokens": [{"id": 1, "content": "<s>", "special": True}, {"id": end, "content": "</s>", "special": True}],
        "model": {"type": "BPE", "vocab": {text: i for i, text in enumerate(tokens)}, "merges": []},
    }
    settings = {"eos_token": "</s>", "chat_template": "{{ '<s>' }}{{ messages[0].content }}</s>"}
    return {"tokenizer.json": json.dumps(document).encode(), "tokenizer_config.json": json.dumps(settings).encode()}


def with_files(model: Model, files: Mapping[str, bytes], **config: Any) -> Model:
    model.files |= files
    model.config |= config
    return model


CASES["V same tokenizer"] = lambda: Case(with_files(drafter(), tokenizer()), with_files(target(), tokenizer()))
CASES["V another tokenizer"] = lambda: Case(with_files(drafter(), tokenizer(20)), with_files(target(), tokenizer()))


def standalone(files: Mapping[str, bytes], theirs: Mapping[str, bytes]) -> Callable[[], Case]:
    """A whole small model as drafter, each with a tokenizer."""
    return lambda: Case(
        with_files(target(layers=2, hidden=16), files),
        with_files(target(), theirs),
        {"algorithm": "STANDALONE"},
    )


def shorter(files: Mapping[str, bytes], length: int) -> dict[str, bytes]:
    """The same tokenizer without its last tokens."""
    document = json.loads(files["tokenizer.json"])
    vocabulary = document["model"]["vocab"]
    document["model"]["vocab"] = {text: i for text, i in vocabulary.items() if i < length}
    return {**files, "tokenizer.json": json.dumps(document).encode()}


CASES["V STANDALONE, same tokenizer"] = standalone(tokenizer(), tokenizer())
CASES["V STANDALONE, tokens of the target alone"] = standalone(shorter(tokenizer(), 90), tokenizer())
CASES["V STANDALONE, tokens of the drafter alone"] = standalone(tokenizer(), shorter(tokenizer(), 90))
CASES["V STANDALONE, another tokenizer"] = standalone(tokenizer(1), tokenizer())
CASES["V end that cannot be drafted"] = lambda: Case(
    drafter(), with_files(target(), tokenizer(end=_unkept()), eos_token_id=_unkept())
)


def _unkept() -> int:
    return next(i for i in range(TARGET_VOCABULARY - 1, 0, -1) if i not in IDS)


@case("V own embedding, another's")
def _() -> Case:
    model = drafter()
    model.tensors["embed_tokens.weight"] = Data("BF16", (TARGET_VOCABULARY, 32), seed=7)
    return Case(model)


def started_from_target(ids: list[int]) -> Model:
    """A head whose rows are the target's at these ids, a little trained."""
    model = drafter()
    rows = 32
    source = _values(target().tensors["lm_head.weight"], "lm_head.weight")
    noise = _values(Data("BF16", (DRAFT_VOCABULARY, rows), seed=3), "noise")
    values = [
        source[token * rows + column] + 0.3 * noise[i * rows + column]
        for i, token in enumerate(ids)
        for column in range(rows)
    ]
    model.tensors["lm_head.weight"] = Data("BF16", (DRAFT_VOCABULARY, rows), values)
    return model


def _values(data: Data, name: str) -> list[float]:
    from guarded_serve.checkpoint.values import decode_floats  # noqa: PLC0415

    return list(decode_floats(data.encoded(name), data.dtype))


CASES["V head started from the target's"] = lambda: Case(started_from_target(IDS))
CASES["V head started from the target's first rows"] = lambda: Case(started_from_target(list(range(DRAFT_VOCABULARY))))
simple("V pinned sha256 of another file", profile={"drafter": {"sha256": "0" * 64}})
CASES["V reference"] = lambda: Case(
    drafter(rope_theta=1e6), settings={"profile": {"drafter": {"reference": "@folder/reference"}}},
    finish=lambda folder: (drafter().write(folder.parent / "reference"), None)[1],
)  # fmt: skip
CASES["V made for deeper layers"] = lambda: Case(
    drafter(), settings={"profile": {"drafter": {"trained_for": "@folder/original"}}},
    finish=lambda folder: (target(layers=12).write(folder.parent / "original"), None)[1],
)  # fmt: skip
CASES["V made for another tokenizer"] = lambda: Case(
    drafter(),
    with_files(target(), tokenizer()),
    {"profile": {"drafter": {"trained_for": "@folder/original"}}},
    finish=lambda folder: (with_files(target(), tokenizer(20)).write(folder.parent / "original"), None)[1],
)
CASES["V verifier of another class"] = lambda: Case(
    drafter(speculators_config={"verifier": {"name_or_path": "x/y", "architectures": ["Qwen3ForCausalLM"]}})
)
