"""The demo's models as files: a Llama target and a drafter in SpecForge's format, bfloat16 safetensors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from demo.model import DRAFTER, TARGET, Drafter, Shape, Target
from demo.tokenizer import BOS_ID, EOS_ID, PAD_ID


def _config(shape: Shape, **more: Any) -> dict[str, Any]:
    return {
        "model_type": "llama",
        "hidden_size": shape.hidden,
        "intermediate_size": shape.intermediate,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "hidden_act": "silu",
        "vocab_size": shape.vocab,
        "max_position_embeddings": shape.positions,
        "rope_theta": shape.rope_theta,
        "rms_norm_eps": shape.eps,
        "attention_bias": False,
        "mlp_bias": False,
        "attention_dropout": 0.0,
        "initializer_range": 0.02,
        "bos_token_id": BOS_ID,
        "eos_token_id": EOS_ID,
        "pad_token_id": PAD_ID,
        "torch_dtype": "bfloat16",
        "use_cache": True,
        **more,
    }


def target_config(shape: Shape) -> dict[str, Any]:
    """config.json of the target."""
    return {"architectures": ["LlamaForCausalLM"], **_config(shape, tie_word_embeddings=True)}


def drafter_config(shape: Shape) -> dict[str, Any]:
    """config.json of the drafter; the layer ids count states that leave a layer, one below `Shape.aux`."""
    return {
        "architectures": ["LlamaForCausalLMEagle3"],
        **_config(
            shape,
            tie_word_embeddings=False,
            draft_vocab_size=shape.draft_vocab,
            eagle_config={
                "eagle_aux_hidden_state_layer_ids": [layer - 1 for layer in shape.aux],
                "use_aux_hidden_state": True,
            },
        ),
    }


def save(model: Target | Drafter, folder: Path) -> None:
    """Write config.json and model.safetensors; floating-point tensors as bfloat16."""
    folder.mkdir(parents=True, exist_ok=True)
    config = target_config(model.shape) if isinstance(model, Target) else drafter_config(model.shape)
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    tensors = {
        name: (tensor.bfloat16() if tensor.is_floating_point() else tensor).cpu().contiguous()
        for name, tensor in model.state_dict().items()
    }
    weights = folder / "model.safetensors"
    save_file(tensors, weights, metadata={"format": "pt"})
    weights.chmod(0o644)


def round_to_disk(model: torch.nn.Module) -> None:
    """Round a float32 model's parameters to what `save` will write."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(parameter.bfloat16().float())


def _shape(folder: Path, default: Shape) -> Shape:
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    ids = config.get("eagle_config", {}).get("eagle_aux_hidden_state_layer_ids")
    return Shape(
        vocab=config["vocab_size"],
        hidden=config["hidden_size"],
        layers=config["num_hidden_layers"],
        heads=config["num_attention_heads"],
        kv_heads=config["num_key_value_heads"],
        head_dim=config["head_dim"],
        intermediate=config["intermediate_size"],
        positions=config["max_position_embeddings"],
        rope_theta=config["rope_theta"],
        eps=config["rms_norm_eps"],
        draft_vocab=config.get("draft_vocab_size", 0),
        aux=tuple(i + 1 for i in ids) if ids else default.aux,
    )


def load_target(folder: Path) -> Target:
    """The target of a folder, in float32, ready to evaluate."""
    model = Target(_shape(folder, TARGET))
    model.load_state_dict({k: v.float() for k, v in load_file(folder / "model.safetensors").items()})
    return model.eval()


def load_drafter(folder: Path) -> Drafter:
    """The drafter of a folder, in float32, ready to evaluate."""
    model = Drafter(_shape(folder, DRAFTER))
    tensors = load_file(folder / "model.safetensors")
    model.load_state_dict({k: v.float() if v.is_floating_point() else v for k, v in tensors.items()})
    return model.eval()
