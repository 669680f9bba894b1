"""The tables of target classes against SGLang's source, read without importing it.

The installed SGLang is read, and every unpacked wheel named in GUARDED_SERVE_SGLANG_SOURCES (folders that hold
`sglang/`, separated by colons, named by version).
"""

from __future__ import annotations

import ast
import importlib.util
import os
import re
from functools import cache
from pathlib import Path

import pytest

from guarded_serve.checkpoint.config import parse_config
from guarded_serve.engine_rules.capture import Shift, known_targets, shift_rule
from guarded_serve.engine_rules.drafter import DIVIDING
from guarded_serve.engine_rules.self_draft import _CLASSES, drafts_itself
from guarded_serve.engine_rules.settings import FORCED_DTYPES, forced_dtype, raises_on_longer_context
from guarded_serve.engine_rules.versions import Version, parse_version
from guarded_serve.profile.sglang_parser import installed_version

METHOD = "set_eagle3_layers_to_capture"
OTHER_USE = ("Eagle", "NextN", "MTP", "Assistant", "EmbeddingGemma", "MindSpore", "LlamaForCausalLMEagle")


def sources() -> list[tuple[str, Path]]:
    found = []
    spec = importlib.util.find_spec("sglang")
    version = installed_version()
    if spec is not None and spec.submodule_search_locations and version is not None:
        found.append((version, Path(spec.submodule_search_locations[0]) / "srt"))
    for folder in filter(None, os.environ.get("GUARDED_SERVE_SGLANG_SOURCES", "").split(":")):
        found.append((Path(folder).name, Path(folder) / "sglang" / "srt"))
    return found


SOURCES = sources()
each_source = pytest.mark.parametrize(("version", "srt"), SOURCES, ids=[name for name, _ in SOURCES])
pytestmark = pytest.mark.skipif(not SOURCES, reason="SGLang is not installed")


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text("utf-8-sig"))


class Classes:
    """All classes of `srt/models`, by file and name, and the names that SGLang registers."""

    def __init__(self, srt: Path) -> None:
        self.by_file: dict[str, dict[str, ast.ClassDef]] = {}
        self.registered: list[tuple[str, str]] = []
        for path in sorted((srt / "models").glob("*.py")):
            body = tree(path).body
            self.by_file[path.name] = {node.name: node for node in body if isinstance(node, ast.ClassDef)}
            for node in body:
                if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "EntryClass":
                    names = node.value.elts if isinstance(node.value, (ast.List, ast.Tuple)) else [node.value]
                    self.registered += [(ast.unparse(name), path.name) for name in names]

    def method(self, name: str, file: str, seen: frozenset[tuple[str, str]] = frozenset()) -> str | None:
        """Source of a class's METHOD, its own or inherited."""
        if name not in self.by_file[file]:
            file = next((other for other, classes in self.by_file.items() if name in classes), "")
        if not file or (name, file) in seen:
            return None
        node = self.by_file[file][name]
        for item in node.body:
            if isinstance(item, ast.FunctionDef) and item.name == METHOD:
                return ast.unparse(item)
        for base in node.bases:
            parent = ast.unparse(base).rpartition(".")[2]
            found = self.method(parent, file, seen | {(name, file)})
            if found is None and parent == name:  # a class that extends its namesake of another file
                other = next((f for f, c in self.by_file.items() if name in c and f != file), None)
                found = self.method(name, other, seen | {(name, file)}) if other else None
            if found is not None:
                return found
        return None


@cache
def classes(srt: Path) -> Classes:
    return Classes(srt)


def shift_in(source: str) -> Shift | None:
    """What the source of the method does with ids."""
    if "layer_ids[0] == 1" in source:
        return Shift.IF_FIRST_IS_1
    if "max(layer_ids) == num_layers" in source:
        return Shift.UNLESS_LAST_LAYER
    if "layer_ids = [2, num_layers // 2" in source:
        return Shift.DEFAULT_TOO
    return Shift.ALWAYS if "[val + 1 for val in layer_ids]" in source else None


DELEGATES = {
    "KimiK25ForConditionalGeneration": "DeepseekV3ForCausalLM",
    "Llama4ForConditionalGeneration": "Llama4ForCausalLM",
    "Gemma3ForConditionalGeneration": "Gemma3ForCausalLM",
}


@each_source
def test_capture_table(version: str, srt: Path) -> None:
    number = parsed(version)
    found: dict[str, Shift] = {}
    for name, file in classes(srt).registered:
        source = classes(srt).method(name, file)
        if source is None:
            continue
        shift = shift_in(source)
        if shift is None:
            assert name in DELEGATES or "MindSpore" in name, f"{name}: a form that the rules do not know:\n{source}"
            continue
        found[name] = shift
    for name, other in DELEGATES.items():
        found[name] = found[other]
    for name, shift in found.items():
        if not any(word in name for word in OTHER_USE):
            assert shift_rule(name, number) is shift, name
    assert known_targets(number) <= set(found)
    assert len(found) > 30


def parsed(version: str) -> Version:
    number = parse_version(version)
    assert number is not None
    return number


@each_source
def test_targets_that_draft_themselves(version: str, srt: Path) -> None:
    """`_config_draft_model` compares `architectures[0]` with the names of our table, and with no others."""
    number = parsed(version)
    body = next(
        node
        for node in ast.walk(tree(srt / "configs" / "model_config.py"))
        if isinstance(node, ast.FunctionDef) and node.name == "_config_draft_model"
    )
    compared: set[str] = set()
    for node in ast.walk(body):
        if isinstance(node, ast.Compare) and "architectures[0]" in ast.unparse(node.left):
            compared |= set(re.findall(r"'(\w+)'", ast.unparse(node.comparators[0])))
            if "MIMO_V2_MODEL_ARCHS" in ast.unparse(node.comparators[0]):
                compared |= {"MiMoV2ForCausalLM", "MiMoV2FlashForCausalLM"}
    compared.discard("DSparkMiniMaxDraftModel")  # a drafter's own class
    ours = {name for name in _CLASSES if drafts_itself(name, number)}
    assert ours == compared


@each_source
def test_norm_before_fc_comes_with_0_5_17(version: str, srt: Path) -> None:
    has = "norm_before_fc" in (srt / "models" / "llama_eagle3.py").read_text()
    assert has is (parsed(version) >= (0, 5, 17))
    assert "norm_before_fc" not in (srt / "models" / "kimi_k25_eagle3.py").read_text()
    for file in ("llama_eagle3.py", "kimi_k25_eagle3.py"):
        assert "norm_before_residual" not in (srt / "models" / file).read_text()


@each_source
def test_the_ids_are_read_from_eagle_config_alone(version: str, srt: Path) -> None:
    source = (srt / "model_executor" / "model_runner_components" / "spec_aux_hidden_state.py").read_text()
    packed = re.sub(r"\s+", "", source)
    assert 'eagle_config=getattr(draft_model_config.hf_config,"eagle_config",None)' in packed
    assert source.count('"eagle_aux_hidden_state_layer_ids"') == 1


@each_source
def test_context_length_of_the_drafter(version: str, srt: Path) -> None:
    """Every version but 0.5.17 hands the target's context length to the EAGLE drafter."""
    source = (srt / "speculative" / "eagle_worker_v2.py").read_text()
    hands_over = "context_length=target_worker.model_runner.model_config.context_len" in source
    assert hands_over is raises_on_longer_context(parsed(version), explicit=False)


@each_source
def test_targets_whose_dtype_is_forced(version: str, srt: Path) -> None:
    """Every override of `dtype` in SGLang's table and override functions is one that the rules know."""
    constant: dict[str, str] = {}
    by_function: dict[str, str] = {}
    for path in (srt / "arg_groups").rglob("*.py"):
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.AnnAssign) and ast.unparse(node.target) == "MODEL_OVERRIDES" and node.value:
                table = ast.literal_eval(node.value)
                constant |= {name: settings["dtype"] for name, settings in table.items() if "dtype" in settings}
            if isinstance(node, ast.FunctionDef):
                assigned = [
                    inner
                    for inner in ast.walk(node)
                    if isinstance(inner, ast.Assign) and ast.unparse(inner.targets[0]) == "overrides['dtype']"
                ]
                for inner in assigned:
                    for decorator in node.decorator_list:
                        for name in re.findall(r"'(\w+)'", ast.unparse(decorator)):
                            by_function[name] = ast.literal_eval(inner.value)
    assert constant == FORCED_DTYPES
    assert by_function == {"GptOssForCausalLM": "bfloat16"}


@pytest.mark.parametrize("model_type", ["qwen3", *DIVIDING])
def test_config_classes_without_a_head_dim_of_their_own(model_type: str) -> None:
    transformers = pytest.importorskip("transformers")
    made = transformers.AutoConfig.for_model(model_type, hidden_size=96, num_attention_heads=4, num_key_value_heads=2)
    found = getattr(made, "head_dim", None) or 96 // 4  # LlamaAttention: getattr(config, "head_dim", hidden // heads)
    assert (found == 24) is (model_type in DIVIDING)


@each_source
def test_attention_divides_where_there_is_no_head_dim(version: str, srt: Path) -> None:
    packed = re.sub(r"\s+", "", (srt / "models" / "llama.py").read_text())
    assert 'self.head_dim=getattr(config,"head_dim",self.hidden_size//self.total_num_heads)' in packed


@pytest.mark.parametrize(
    ("architecture", "method", "forced"),
    [
        ("GptOssForCausalLM", "mxfp4", "bfloat16"),
        ("GptOssForCausalLM", "fp8", None),
        ("GptOssForCausalLM", None, None),
        ("LlamaForCausalLM", "mxfp4", None),
        ("MistralLarge3ForCausalLM", None, "bfloat16"),
    ],
)
def test_forced_dtype(architecture: str, method: str | None, forced: str | None) -> None:
    quantization = {"quantization_config": {"quant_method": method}} if method else {}
    config = parse_config({"architectures": [architecture], **quantization}, Path("config.json"))
    assert forced_dtype(config) == forced
