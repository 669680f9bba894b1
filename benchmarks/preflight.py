"""Time and memory of `guarded-serve check` on a pair shaped like Kimi-K2.5, written as sparse files.

    python benchmarks/preflight.py [--folder DIR] [--runs 5] [--deep-bytes 2400000000]

Target: a tiktoken file of 163,584 tokens, 61 layers, 384 experts in INT4 (packed, scale, shape a matrix), 64 shards,
some 208,000 tensors and 595 GB of holes. Drafter: 1.19 B parameters, d2t of 32,000 entries. Prints one JSON object:
seconds (best and median of the runs, interpreter start included), processor time and the child's peak resident size;
for `--deep`, the same beside `sha256sum` on the file.
"""

from __future__ import annotations

import argparse
import base64
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from array import array
from collections.abc import Iterator
from pathlib import Path

LAYERS, EXPERTS, SHARDS, HIDDEN, VOCABULARY, DRAFT = 61, 384, 64, 7168, 163840, 32000
SIZES = {"BF16": 2, "I32": 4, "I64": 8, "BOOL": 1}
Spec = tuple[str, str, tuple[int, ...]]


def target_tensors() -> Iterator[Spec]:
    """Names as Kimi-K2.5's INT4 release has them."""
    prefix = "language_model.model."
    yield f"{prefix}embed_tokens.weight", "BF16", (VOCABULARY, HIDDEN)
    for layer in range(LAYERS):
        name = f"{prefix}layers.{layer}."
        for norm in ("input_layernorm", "post_attention_layernorm"):
            yield f"{name}{norm}.weight", "BF16", (HIDDEN,)
        attention = f"{name}self_attn."
        yield f"{attention}q_a_proj.weight", "BF16", (1536, HIDDEN)
        yield f"{attention}q_a_layernorm.weight", "BF16", (1536,)
        yield f"{attention}q_b_proj.weight", "BF16", (64 * 192, 1536)
        yield f"{attention}kv_a_proj_with_mqa.weight", "BF16", (576, HIDDEN)
        yield f"{attention}kv_a_layernorm.weight", "BF16", (512,)
        yield f"{attention}kv_b_proj.weight", "BF16", (64 * 256, 512)
        yield f"{attention}o_proj.weight", "BF16", (HIDDEN, 64 * 128)
        experts = [f"{name}mlp.shared_experts."] if layer else [f"{name}mlp."]
        width = 2048 if layer else 18432
        for expert in experts:
            yield f"{expert}gate_proj.weight", "BF16", (width, HIDDEN)
            yield f"{expert}up_proj.weight", "BF16", (width, HIDDEN)
            yield f"{expert}down_proj.weight", "BF16", (HIDDEN, width)
        if layer:
            yield f"{name}mlp.gate.weight", "BF16", (EXPERTS, HIDDEN)
            for expert_number in range(EXPERTS):
                for projection, rows, columns in (
                    ("gate_proj", 2048, HIDDEN), ("up_proj", 2048, HIDDEN), ("down_proj", HIDDEN, 2048),
                ):  # fmt: skip
                    matrix = f"{name}mlp.experts.{expert_number}.{projection}."
                    yield f"{matrix}weight_packed", "I32", (rows, columns // 8)
                    yield f"{matrix}weight_scale", "BF16", (rows, columns // 32)
                    yield f"{matrix}weight_shape", "I32", (2,)
    yield f"{prefix}norm.weight", "BF16", (HIDDEN,)
    yield "language_model.lm_head.weight", "BF16", (VOCABULARY, HIDDEN)


def drafter_tensors() -> Iterator[Spec]:
    """AQ-MedAI's Kimi head."""
    layer, width = "midlayer.", 18432
    yield "fc.weight", "BF16", (HIDDEN, 3 * HIDDEN)
    for norm in ("input_layernorm", "hidden_norm", "post_attention_layernorm"):
        yield f"{layer}{norm}.weight", "BF16", (HIDDEN,)
    for projection in "qkv":
        yield f"{layer}self_attn.{projection}_proj.weight", "BF16", (64 * 128, 2 * HIDDEN)
    yield f"{layer}self_attn.o_proj.weight", "BF16", (HIDDEN, 64 * 128)
    yield f"{layer}mlp.gate_proj.weight", "BF16", (width, HIDDEN)
    yield f"{layer}mlp.up_proj.weight", "BF16", (width, HIDDEN)
    yield f"{layer}mlp.down_proj.weight", "BF16", (HIDDEN, width)
    yield "norm.weight", "BF16", (HIDDEN,)
    yield "lm_head.weight", "BF16", (DRAFT, HIDDEN)
    yield "d2t", "I64", (DRAFT,)
    yield "t2d", "BOOL", (VOCABULARY,)


def write_sparse(path: Path, tensors: list[Spec], values: dict[str, bytes] | None = None) -> int:
    """A whole safetensors file of holes; returns its size in bytes."""
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    at, places = 0, {}
    for name, dtype, shape in tensors:
        size = SIZES[dtype]
        for dimension in shape:
            size *= dimension
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, at + size]}
        places[name] = at
        at += size
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name, content in (values or {}).items():
            file.seek(8 + len(text) + places[name])
            file.write(content)
        file.truncate(8 + len(text) + at)
    return 8 + len(text) + at


def write_pair(folder: Path) -> dict[str, int]:
    """Target and drafter; returns what was written."""
    target, drafter = folder / "target", folder / "drafter"
    target.mkdir(parents=True, exist_ok=True)
    drafter.mkdir(exist_ok=True)
    text = {
        "architectures": ["DeepseekV3ForCausalLM"], "model_type": "kimi_k2", "hidden_size": HIDDEN,
        "num_hidden_layers": LAYERS, "num_attention_heads": 64, "num_key_value_heads": 64,
        "vocab_size": VOCABULARY, "intermediate_size": 18432,
        "max_position_embeddings": 262144, "n_routed_experts": EXPERTS, "tie_word_embeddings": False,
    }  # fmt: skip
    config = {
        "architectures": ["KimiK25ForConditionalGeneration"], "model_type": "kimi_k25", "text_config": text,
        "dtype": "bfloat16",
    }  # fmt: skip
    (target / "config.json").write_text(json.dumps(config))
    noise = random.Random(2)
    lines = [b"%s %d\n" % (base64.b64encode(noise.randbytes(2 + i % 9)), i) for i in range(163584)]
    (target / "tiktoken.model").write_bytes(b"".join(lines))
    added = {str(163584 + i): {"content": f"<|special_{i}|>", "special": True} for i in range(256)}
    (target / "tokenizer_config.json").write_text(json.dumps({"added_tokens_decoder": added}))
    tensors = list(target_tensors())
    index, size = {}, 0
    for number in range(SHARDS):
        name = f"model-{number + 1:05}-of-{SHARDS:06}.safetensors"
        part = tensors[number * len(tensors) // SHARDS : (number + 1) * len(tensors) // SHARDS]
        size += write_sparse(target / name, part)
        index.update({tensor: name for tensor, _, _ in part})
    (target / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": index}, indent=2))
    head = {
        "architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama", "hidden_size": HIDDEN,
        "intermediate_size": 18432, "num_hidden_layers": 1, "num_attention_heads": 64,
        "num_key_value_heads": 64, "head_dim": 128,
        "vocab_size": VOCABULARY, "draft_vocab_size": DRAFT, "max_position_embeddings": 262144, "rope_theta": 1e6,
        "tie_word_embeddings": False, "dtype": "bfloat16",
        "eagle_config": {"eagle_aux_hidden_state_layer_ids": [2, 30, 58], "use_aux_hidden_state": True},
    }  # fmt: skip
    (drafter / "config.json").write_text(json.dumps(head))
    kept = sorted([*range(1000), *random.Random(0).sample(range(1000, VOCABULARY), DRAFT - 1000)])
    values = {
        "d2t": array("q", [token - i for i, token in enumerate(kept)]).tobytes(),
        "t2d": bytes(bytearray(1 if token in set_of else 0 for token in range(VOCABULARY)))
        if (set_of := set(kept))
        else b"",
    }
    heads = list(drafter_tensors())
    write_sparse(drafter / "model.safetensors", heads, values)
    return {"target_tensors": len(tensors), "target_bytes": size}


def measure(*commands: list[str], runs: int) -> list[dict[str, float]]:
    """For each: best and median seconds, best processor time, peak resident size in MB. Run in turn, A B A B."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    environment["PYTHONPYCACHEPREFIX"] = str(Path(tempfile.gettempdir()) / "guarded-serve-bytecode")
    for command in commands:  # byte code, as an installation has it, and the file in the cache
        subprocess.run(command, stdout=subprocess.DEVNULL, env=environment, check=True)
    seen: list[list[tuple[float, float, float]]] = [[] for _ in commands]
    for _ in range(runs):
        for command, found in zip(commands, seen, strict=True):
            found.append(once(command, environment))
    return [
        {
            "best_s": min(one[0] for one in found),
            "median_s": statistics.median(one[0] for one in found),
            "cpu_s": min(one[1] for one in found),
            "peak_mb": max(one[2] for one in found),
        }
        for found in seen
    ]


def once(command: list[str], environment: dict[str, str]) -> tuple[float, float, float]:
    """Seconds, processor seconds and peak resident MB of one run; raises SystemExit where it fails."""
    started = time.perf_counter()
    child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment)
    assert child.stdout is not None
    output = child.stdout.read()
    _, status, usage = os.wait4(child.pid, 0)
    seconds = time.perf_counter() - started
    if os.waitstatus_to_exitcode(status) != 0:
        raise SystemExit(f"{command} ended with {status}:\n{output}")
    return seconds, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024 / 1e6


def check(*arguments: str) -> list[str]:
    return [sys.executable, "-c", "from guarded_serve.cli import run; run()", "check", *arguments]


def deep(folder: Path, count: int, runs: int) -> dict[str, object]:
    """`--deep` beside sha256sum, on a drafter of real bytes; the file is read once before, so that it is cached."""
    path = folder / "deep"
    path.mkdir(exist_ok=True)
    rows = count // 2 // HIDDEN
    header = json.dumps(
        {"lm_head.weight": {"dtype": "BF16", "shape": [rows, HIDDEN], "data_offsets": [0, rows * HIDDEN * 2]}}
    )
    block = bytearray(random.Random(1).randbytes(8 * 2**20))
    block[1::2] = block[1::2].translate(bytes(0x3B + i % 4 | (i & 0x80) for i in range(256)))  # ordinary exponents
    with (path / "model.safetensors").open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header.encode())
        left = rows * HIDDEN * 2
        while left:
            left -= file.write(block[: min(left, len(block))])
    (path / "config.json").write_text((folder / "drafter" / "config.json").read_text())
    code = (
        "import sys, time; from pathlib import Path; from guarded_serve.checkpoint.weights import read_weights;"
        "from guarded_serve.checkpoint.scan import scan; found = scan(read_weights(Path(sys.argv[1])));"
        "assert found.numbers and not found.unread"
    )
    ours, sums = measure(
        [sys.executable, "-c", code, str(path)], ["sha256sum", str(path / "model.safetensors")], runs=runs
    )
    return {"bytes": count, "scan": ours, "sha256sum": sums, "ratio": ours["median_s"] / sums["median_s"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, help="where to write (default: a temporary folder)")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--write", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--deep-bytes", type=int, default=0, help="size of the drafter for --deep; 0: leave it out")
    options = parser.parse_args()
    if options.write is not None:
        print(json.dumps(write_pair(options.write)))
        return
    with tempfile.TemporaryDirectory() as scratch:
        folder = options.folder or Path(scratch)
        # In a process of its own: a child's peak size starts from its parent's.
        command = [sys.executable, __file__, "--write", str(folder)]
        written = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)
        flags = [
            "--only", "target,drafter", "--model-path", str(folder / "target"), "--speculative-algorithm", "EAGLE3",
            "--speculative-draft-model-path", str(folder / "drafter"),
        ]  # fmt: skip
        result: dict[str, object] = {**written, "check": measure(check(*flags), runs=options.runs)[0]}
        if options.deep_bytes:
            result["deep"] = deep(folder, options.deep_bytes, options.runs)
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
