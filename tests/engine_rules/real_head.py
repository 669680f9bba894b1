# ruff: noqa: PLC0415
"""A child that lets the installed SGLang build and load drafters on the CPU, and says what really happened.

Standard input: a JSON list of {"drafter": folder, "target": folder}. Standard output, last line: a list of
{"parameters": {name: shape}, "unwritten": [names], "map": ids or null, "borrows_head": bool, "tied": bool} or
{"failure": text}, and the captures of every target class: see `captures`.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import traceback
from types import SimpleNamespace


def main() -> None:
    os.environ.setdefault("SGLANG_USE_CPU_ENGINE", "1")
    wanted = json.load(sys.stdin)
    output = os.dup(1)
    os.dup2(2, 1)  # SGLang prints to standard output
    started = start(wanted["pairs"][0])
    results = {"pairs": [one(started, pair) for pair in wanted["pairs"]], "captures": captures(wanted["captures"])}
    os.write(output, (json.dumps(results) + "\n").encode())
    sys.stderr.flush()
    os._exit(0)


def start(pair):
    from sglang.srt.distributed import parallel_state
    from sglang.srt.layers.dp_attention import initialize_dp_attention
    from sglang.srt.server_args import ServerArgs, set_global_server_args_for_scheduler

    arguments = ServerArgs(
        model_path=pair["target"],
        device="cpu",
        speculative_algorithm="EAGLE3",
        speculative_draft_model_path=pair["drafter"],
        speculative_num_steps=3,
        speculative_eagle_topk=1,
        speculative_num_draft_tokens=4,
        prefill_attention_backend="intel_amx",
        decode_attention_backend="intel_amx",
        skip_tokenizer_init=True,
    )
    set_global_server_args_for_scheduler(arguments)
    meeting = tempfile.mktemp()
    parallel_state.init_distributed_environment(
        world_size=1, rank=0, local_rank=0, backend="gloo", distributed_init_method=f"file://{meeting}"
    )
    try:
        parallel_state.initialize_model_parallel()
    except TypeError:
        parallel_state.initialize_model_parallel(1, 1)
    state_ranks()
    try:
        initialize_dp_attention(arguments)
    except TypeError:
        initialize_dp_attention(arguments, SimpleNamespace(hidden_size=32))
    return arguments


def state_ranks():
    """From 0.5.23 on, ranks are told by the launcher."""
    from sglang.srt import runtime_context

    parallel = runtime_context.get_parallel()
    if hasattr(parallel, "override_permanently"):
        names = ("tp_rank", "pp_rank", "attn_cp_rank", "moe_dp_rank", "moe_ep_rank", "moe_tp_rank", "attn_tp_rank")
        for name in names:
            try:
                parallel.override_permanently(**{name: 0})
            except (ValueError, RuntimeError):
                continue


def one(arguments, pair):
    import torch
    from sglang.srt.configs.load_config import LoadConfig
    from sglang.srt.configs.model_config import ModelConfig
    from sglang.srt.model_loader import loader

    try:
        config = ModelConfig(pair["drafter"], is_draft_model=True, dtype=pair.get("dtype", "bfloat16"))
        weights = loader.DefaultModelLoader(LoadConfig())
        torch.set_default_dtype(config.dtype)
        model = loader._initialize_model(config, LoadConfig())
        torch.set_default_dtype(torch.float32)
        for parameter in model.parameters():
            parameter.data.fill_(float("nan"))
        shapes = {name: list(parameter.shape) for name, parameter in model.named_parameters()}
        model.load_weights(weights._get_all_weights(config, model))
        unwritten = [name for name, parameter in model.named_parameters() if parameter.data.isnan().any()]
        chosen = model.hot_token_id
        return {
            "parameters": shapes,
            "unwritten": unwritten,
            "map": None if chosen is None else chosen.tolist(),
            "borrows_head": bool(model.load_lm_head_from_target),
            "tied": model.lm_head is model.model.embed_tokens,
        }
    except Exception as error:  # whatever it dies of is the answer
        torch.set_default_dtype(torch.float32)
        last = traceback.extract_tb(error.__traceback__)[-1]
        return {"failure": f"{type(error).__name__}: {error}"[:300] + f" ({last.filename}:{last.lineno})"}


def captures(wanted):
    """[class, layers, ids] to the numbers that the class's own set_eagle3_layers_to_capture stores."""
    from sglang.srt import runtime_context
    from sglang.srt.models.registry import ModelRegistry

    found = []
    group = SimpleNamespace(is_last_rank=True)
    runtime_context.get_parallel = lambda: SimpleNamespace(pp_group=group)
    for name, layers, ids in wanted:
        cls = ModelRegistry.models.get(name) or ModelRegistry.resolve_model_cls(name)[0]
        if cls.__name__ != name or not hasattr(cls, "set_eagle3_layers_to_capture"):
            found.append(None)
            continue
        found.append(stored(cls, layers, ids, group))
    return found


def stored(cls, layers, ids, group):
    module = sys.modules[cls.set_eagle3_layers_to_capture.__module__]
    for function in ("get_parallel", "get_pp_group"):
        if hasattr(module, function):
            value = SimpleNamespace(pp_group=group) if function == "get_parallel" else group
            setattr(module, function, lambda value=value: value)
    inner = SimpleNamespace(layers_to_capture=None, layers=[SimpleNamespace() for _ in range(layers + 2)])
    inner.set_eagle3_layers_to_capture = lambda numbers: setattr(inner, "layers_to_capture", list(numbers))
    config = SimpleNamespace(num_hidden_layers=layers)
    config.text_config = config
    fake = SimpleNamespace(pp_group=group, config=config, model=inner, language_model=None)
    delegate = {
        "KimiK25ForConditionalGeneration": "DeepseekV3ForCausalLM",
        "Llama4ForConditionalGeneration": "Llama4ForCausalLM",
        "Gemma3ForConditionalGeneration": "Gemma3ForCausalLM",
    }.get(cls.__name__)
    if delegate is not None:
        from sglang.srt.models.registry import ModelRegistry

        other = ModelRegistry.models[delegate]
        fake.language_model = SimpleNamespace(
            set_eagle3_layers_to_capture=lambda numbers=None: other.set_eagle3_layers_to_capture(fake, numbers)
        )
    elif cls.__name__.startswith("Gemma4"):
        fake.language_model = inner
    cls.set_eagle3_layers_to_capture(fake, ids)
    return inner.layers_to_capture


if __name__ == "__main__":
    main()
