"""What the installed SGLang itself makes of a drafter: its class, built and loaded on the CPU without serving.

A child process, ``python -m guarded_serve.engine.oracle``: it imports SGLang and torch, which the launcher never does.
It is the reference for `engine_rules`, and `check --with-engine` asks it. SGLang 0.5.16 to 0.5.23.

Standard input: JSON, ``{"pairs": [PAIR, ...], "captures": [[class, layers, ids or null], ...]}``; a PAIR has
``drafter`` and ``target`` (folders) and may have ``algorithm`` (EAGLE3), ``overrides`` (`--json-model-override-args`,
text) and ``trust_remote_code``. Standard output, its last line: ``{"version", "pairs": [...], "captures": [...]}``; see
`loaded` and `captured_by_class`.

Parameters start as NaN, so that what is never written shows. Every tensor of an unquantized file comes as a constant
that says which tensor it is, so that the parameters tell afterwards which names reached them, be they stacked, fused
or cut; the map keeps its values. Names, their order and shapes are the file's, as SGLang's own loader reads it. A
pickle is not opened.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import tempfile
import traceback
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

FIRST_MARK = 0x2000  # bfloat16 bit patterns from here on mark tensors: finite, normal, told apart exactly
MARKS = 24000  # the last is below infinity
WIDTH = 8  # columns of a parameter that are looked at
_SIZES = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 8, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 96, "max_position_embeddings": 512, "rms_norm_eps": 1e-5,
    "model_type": "llama", "torch_dtype": "bfloat16", "tie_word_embeddings": False,
}  # fmt: skip


def main() -> None:
    """Answer one request."""
    os.environ.setdefault("SGLANG_USE_CPU_ENGINE", "1")
    wanted = json.load(sys.stdin)
    output = os.dup(1)
    os.dup2(2, 1)  # SGLang prints to standard output
    from sglang.version import __version__  # noqa: PLC0415

    start()
    answer = {
        "version": __version__,
        "pairs": [loaded(pair) for pair in wanted.get("pairs", ())],
        "captures": [_captured_or_none(*one) for one in wanted.get("captures", ())],
    }
    text = (json.dumps(answer) + "\n").encode()
    while text:
        text = text[os.write(output, text) :]
    sys.stderr.flush()
    os._exit(0)  # SGLang's threads need not be waited for


def start() -> None:
    """What SGLang needs before it builds a model: arguments (of a made-up pair), one rank, parallel groups."""
    from sglang.srt.distributed import parallel_state  # noqa: PLC0415
    from sglang.srt.layers.dp_attention import initialize_dp_attention  # noqa: PLC0415
    from sglang.srt.server_args import ServerArgs, set_global_server_args_for_scheduler  # noqa: PLC0415

    folder = Path(tempfile.mkdtemp(prefix="guarded-serve-oracle-"))
    configs = {
        "target": {**_SIZES, "architectures": ["LlamaForCausalLM"]},
        "drafter": {
            **_SIZES,
            "architectures": ["LlamaForCausalLMEagle3"],
            "num_hidden_layers": 1,
            "draft_vocab_size": 40,
        },
    }
    for name, config in configs.items():
        (folder / name).mkdir()
        (folder / name / "config.json").write_text(json.dumps(config))
    arguments = ServerArgs(
        model_path=str(folder / "target"),
        device="cpu",
        speculative_algorithm="EAGLE3",
        speculative_draft_model_path=str(folder / "drafter"),
        speculative_num_steps=3,
        speculative_eagle_topk=1,
        speculative_num_draft_tokens=4,
        prefill_attention_backend="intel_amx",
        decode_attention_backend="intel_amx",
        skip_tokenizer_init=True,
    )
    set_global_server_args_for_scheduler(arguments)
    parallel_state.init_distributed_environment(
        world_size=1, rank=0, local_rank=0, backend="gloo", distributed_init_method=f"file://{folder / 'meeting'}"
    )
    parallel_state.initialize_model_parallel()
    _state_ranks()
    try:
        initialize_dp_attention(arguments)
    except TypeError:  # older: with the model's config
        sizes = SimpleNamespace(**_SIZES, hf_config=SimpleNamespace(**_SIZES), dtype=None)
        initialize_dp_attention(arguments, sizes)
    _forget_devices()
    gc.collect()
    gc.freeze()  # SGLang collects garbage after each sharing: half a second over what its import left
    for name in configs:
        (folder / name / "config.json").unlink()
        (folder / name).rmdir()


def _state_ranks() -> None:
    """From 0.5.23 on, ranks are told by the launcher."""
    try:
        from sglang.srt import runtime_context  # noqa: PLC0415
    except ImportError:
        return
    parallel = runtime_context.get_parallel()
    if hasattr(parallel, "override_permanently"):
        names = ("tp_rank", "pp_rank", "attn_cp_rank", "moe_dp_rank", "moe_ep_rank", "moe_tp_rank", "attn_tp_rank")
        for name in names:
            try:
                parallel.override_permanently(**{name: 0})
            except (ValueError, RuntimeError):
                continue


def _forget_devices() -> None:
    """The MLA head waits for a GPU after it shares the embedding; there is none to wait for."""
    import torch  # noqa: PLC0415

    torch.cuda.synchronize = lambda *_: None
    torch.cuda.empty_cache = lambda: None


def loaded(pair: dict[str, Any]) -> dict[str, Any]:
    """Build, load and share one drafter; what fails ends it, with ``stage`` and ``failure``.

    ``class``; ``parameters``: name to shape, ``from`` (tensor names, those that left a value) and ``unwritten`` ("no",
    "partly", "wholly"); ``names``: the tensors in SGLang's order; ``without_effect``: those that left no value;
    ``map``: see `load_gate.map_facts`; ``map_names``: tensors taken for it; ``shared``: parameters replaced by the
    target's; ``tied``; ``captured_layers`` with ``capture_failure``.
    """
    import torch  # noqa: PLC0415

    found: dict[str, Any] = {"stage": "config", "failure": None}
    try:
        _load(pair, found)
    except Exception as error:  # whatever it dies of is the answer
        found["failure"] = _sentence(error)
    finally:
        torch.set_default_dtype(torch.float32)
    found["captured_layers"], found["capture_failure"] = _captured(pair)
    return found


def _load(pair: dict[str, Any], found: dict[str, Any]) -> None:
    import torch  # noqa: PLC0415
    from sglang.srt.configs.load_config import LoadConfig  # noqa: PLC0415
    from sglang.srt.model_loader import loader  # noqa: PLC0415

    from guarded_serve.engine.load_gate import map_facts  # noqa: PLC0415

    config = _config(pair, draft=True)
    quantized = config.quantization is not None
    found["stage"] = "build"
    torch.set_default_dtype(config.dtype)
    model = loader._initialize_model(config, LoadConfig())
    torch.set_default_dtype(torch.float32)
    found["class"] = type(model).__name__
    for parameter in model.parameters():
        if parameter.is_floating_point():
            parameter.data.fill_(float("nan"))
    found["parameters"] = {name: {"shape": list(one.shape)} for name, one in model.named_parameters()}
    found["stage"] = "load"
    names: list[str] = []
    maps: list[str] = []
    weights = loader.DefaultModelLoader(LoadConfig(load_format="safetensors"))._get_all_weights(config, model)
    found |= {"names": names, "map_names": maps}
    model.load_weights(_marked(weights, model, names, maps, quantized=quantized))
    reached = set(maps)
    for name, parameter in model.named_parameters():
        entry = found["parameters"][name]
        entry["from"] = [] if quantized else _sources(parameter, names)
        entry["unwritten"] = _unwritten(parameter)
        reached.update(entry["from"])
    found["without_effect"] = None if quantized else [name for name in names if name not in reached]
    found["map"] = map_facts(getattr(model, "hot_token_id", None))
    found["stage"] = "share"
    found["shared"] = _share(model, str(pair.get("algorithm", "EAGLE3")))
    found["tied"] = getattr(model, "lm_head", None) is getattr(getattr(model, "model", None), "embed_tokens", model)
    found["stage"] = "done"


def _config(pair: dict[str, Any], *, draft: bool) -> Any:
    """SGLang's own reading of a config.json."""
    from sglang.srt.configs.model_config import ModelConfig  # noqa: PLC0415

    return ModelConfig(
        pair["drafter" if draft else "target"],
        model_override_args=pair.get("overrides") or "{}",
        trust_remote_code=bool(pair.get("trust_remote_code")),
        dtype="bfloat16",  # has no say in names and shapes
        is_draft_model=draft,
    )


def _marked(
    weights: Iterable[tuple[str, Any]], model: Any, names: list[str], maps: list[str], *, quantized: bool
) -> Iterator[tuple[str, Any]]:
    """The file's tensors, as marks; notes each name, and those after which the class holds another map."""
    import torch  # noqa: PLC0415

    for name, tensor in weights:
        held = getattr(model, "hot_token_id", None)
        number = len(names)
        names.append(name)
        if quantized or "d2t" in name or number >= MARKS:
            yield name, tensor
        else:
            mark = torch.tensor(FIRST_MARK + number, dtype=torch.int16).view(torch.bfloat16)
            yield name, mark.expand(tensor.shape).contiguous()
        if getattr(model, "hot_token_id", None) is not held:
            maps.append(name)


def _sources(parameter: Any, names: list[str]) -> list[str]:
    """The tensors whose marks a parameter holds, in the file's order. A tensor fills rows: a few columns will do."""
    import torch  # noqa: PLC0415

    if not parameter.is_floating_point() or not parameter.numel():
        return []
    rows = parameter.detach()
    if rows.dim() > 1:
        rows = rows.reshape(-1, rows.shape[-1])[:, :: max(1, rows.shape[-1] // WIDTH)]
    marks = rows.to(torch.bfloat16).contiguous().view(torch.int16).unique().tolist()
    return [names[mark - FIRST_MARK] for mark in sorted(marks) if 0 <= mark - FIRST_MARK < len(names)]


def _unwritten(parameter: Any) -> str:
    if not parameter.is_floating_point():
        return "no"
    missing = parameter.detach().float().isnan()
    return "wholly" if bool(missing.all()) else "partly" if bool(missing.any()) else "no"


def _share(model: Any, algorithm: str) -> list[str]:
    """Hand over the target's embedding and head as `EagleDraftWorker.init_lm_head` does; the parameters replaced."""
    import torch  # noqa: PLC0415

    embed, head = (torch.nn.Parameter(torch.empty(0), requires_grad=False) for _ in range(2))
    if algorithm == "EAGLE3" and not getattr(model, "load_lm_head_from_target", False):
        if hasattr(model, "set_embed"):
            model.set_embed(embed)
    elif hasattr(model, "set_embed_and_head"):
        model.set_embed_and_head(embed, head)
    return [name for name, parameter in model.named_parameters() if parameter is embed or parameter is head]


def _captured(pair: dict[str, Any]) -> tuple[list[int] | None, str | None]:
    """The layers that the target's class would capture for this drafter, and why that cannot be said."""
    if str(pair.get("algorithm", "EAGLE3")) != "EAGLE3":
        return None, None
    try:
        ids, uses = _configured_ids(_config(pair, draft=True))
        if not uses:
            return None, None
        name, layers = _target_class(pair)
        return captured_by_class(name, layers, ids), None
    except Exception as error:
        return None, _sentence(error)


def _target_class(pair: dict[str, Any]) -> tuple[str, int]:
    """The target's class and its number of layers, by SGLang's reading; by config.json where that reading fails."""
    try:
        target = _config(pair, draft=False)
        return target.hf_config.architectures[0], int(target.hf_text_config.num_hidden_layers)
    except Exception:
        raw = json.loads((Path(pair["target"]) / "config.json").read_text())
        return raw["architectures"][0], int(raw.get("text_config", raw)["num_hidden_layers"])


def _configured_ids(drafter: Any) -> tuple[Any, bool]:
    """The layer ids that SGLang reads from a drafter's config, and whether it uses aux states: its own function."""
    import inspect  # noqa: PLC0415

    from sglang.srt.model_executor.model_runner_components import spec_aux_hidden_state as own  # noqa: PLC0415
    from sglang.srt.speculative.spec_info import SpeculativeAlgorithm  # noqa: PLC0415

    settings = SimpleNamespace(speculative_draft_model_path="drafter", speculative_draft_model_revision=None)
    kept = {name: getattr(own, name) for name in ("ModelConfig", "get_spec") if hasattr(own, name)}
    stand_in = {
        "ModelConfig": SimpleNamespace(from_server_args=lambda *_, **__: drafter),
        "get_spec": lambda: settings,
    }
    config = own.SpecAuxHiddenStateConfig()
    given = {
        "config": config, "server_args": settings, "model_config": drafter,
        "spec_algorithm": SpeculativeAlgorithm.EAGLE3, "is_draft_worker": False,
    }  # fmt: skip
    function = own._resolve_eagle_aux_hidden_state
    try:
        for name in kept:
            setattr(own, name, stand_in[name])
        function(**{name: given[name] for name in inspect.signature(function).parameters})
    finally:
        for name, value in kept.items():
            setattr(own, name, value)
    return config.eagle_aux_hidden_state_layer_ids, bool(config.eagle_use_aux_hidden_state)


def _captured_or_none(name: str, layers: int, ids: list[int] | None) -> list[int] | None:
    try:
        return captured_by_class(name, layers, ids)
    except LookupError:
        return None


def captured_by_class(name: str, layers: int, ids: Any) -> list[int]:
    """The numbers that a target class's own `set_eagle3_layers_to_capture` stores, for ids from the config or None.

    The method runs on a stand-in that has the number of layers and nothing else. LookupError where the class is not
    there, does not import, or has no such method.
    """
    from sglang.srt.models.registry import ModelRegistry  # noqa: PLC0415

    cls = _model_class(ModelRegistry, name)
    if not hasattr(cls, "set_eagle3_layers_to_capture"):
        raise LookupError(f"{name} does not implement set_eagle3_layers_to_capture")
    group = SimpleNamespace(is_last_rank=True)
    inner = SimpleNamespace(layers_to_capture=None, layers=[SimpleNamespace() for _ in range(layers + 2)])
    inner.set_eagle3_layers_to_capture = lambda numbers: setattr(inner, "layers_to_capture", list(numbers))
    config = SimpleNamespace(num_hidden_layers=layers)
    config.text_config = config
    model = SimpleNamespace(pp_group=group, config=config, model=inner, language_model=None)
    delegate, other = _DELEGATES.get(name), cls
    if delegate is not None:
        other = _model_class(ModelRegistry, delegate)
        model.language_model = SimpleNamespace(
            set_eagle3_layers_to_capture=lambda numbers=None: other.set_eagle3_layers_to_capture(model, numbers)
        )
    elif name.startswith("Gemma4"):
        model.language_model = inner
    with _one_stage(cls, group), _one_stage(other, group):
        cls.set_eagle3_layers_to_capture(model, ids)
    stored = inner.layers_to_capture
    if stored is None:
        raise LookupError(f"{name} kept no layers")
    return [int(number) for number in stored]


_DELEGATES = {
    "KimiK25ForConditionalGeneration": "DeepseekV3ForCausalLM",
    "Llama4ForConditionalGeneration": "Llama4ForCausalLM",
    "Gemma3ForConditionalGeneration": "Gemma3ForCausalLM",
}
"""Multimodal targets that hand the ids to a language model of this class."""


def _model_class(registry: Any, name: str) -> Any:
    cls = registry.models.get(name)
    if cls is None:
        raise LookupError(f"this SGLang has no model class {name}")
    return cls


@contextmanager
def _one_stage(cls: Any, group: Any) -> Iterator[None]:
    """The method asks for its pipeline stage through names of its module; meanwhile they answer that it is the last."""
    module = sys.modules[cls.set_eagle3_layers_to_capture.__module__]
    answers = {"get_parallel": SimpleNamespace(pp_group=group), "get_pp_group": group}
    kept = {name: getattr(module, name) for name in answers if hasattr(module, name)}
    try:
        for name in kept:
            setattr(module, name, lambda answer=answers[name]: answer)
        yield
    finally:
        for name, function in kept.items():
            setattr(module, name, function)


def _sentence(error: BaseException) -> str:
    """An error in one line, with the place in SGLang that raised it."""
    frames = traceback.extract_tb(error.__traceback__)
    inside = [frame for frame in frames if "/sglang/" in frame.filename] or frames
    place = f"{Path(inside[-1].filename).name}: {inside[-1].name}" if inside else "?"
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:300]} ({place})"


if __name__ == "__main__":
    main()
