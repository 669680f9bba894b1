"""Gate 2: what SGLang really did with the drafter, seen while it loads and judged before the first request.

SGLang passes over names that it does not know and never asks whether every parameter was filled; what a file lacks
keeps the random value that the constructor gave it, and the server is merely slow. So each parameter's loader is
wrapped for the length of `load_weights`. A parameter that no loader was called for *and* whose value did not change was
never written. It is wrong unless something else takes its place before serving: SGLang replaces the embedding and the
head by the target's after the load, which shows as another tensor under the same name.

The findings are values; `attach` sends them, and a refusal ends the engine before it serves.
"""

from __future__ import annotations

import hashlib
import math
import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

SAMPLES = 64  # values compared to see whether a parameter changed
_PARTS = ({"q", "k", "v"}, {0, 1})  # what a stacked parameter is filled from


@dataclass(frozen=True)
class Refusal:
    """Why the engine must not serve. The fields are those of the `refused` event."""

    check: str
    message: str
    expected: str
    found: str
    remedy: str


@dataclass
class _Parameter:
    value: weakref.ref[Any]  # what SGLang lets go of, such as an embedding that the target's replaces, is freed
    before: tuple[float, ...]
    called: bool = False
    parts: set[Any] = field(default_factory=set)
    changed: bool = False


class LoadWatch:
    """One model's load. `begin` before its weights come, `end` after."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self.loaded = False
        self._parameters: dict[str, _Parameter] = {}
        self._restore: list[Callable[[], None]] = []

    def begin(self, default_loader: Callable[..., Any]) -> None:
        """Note every parameter as it is now and wrap its loader."""
        for name, parameter in self.model.named_parameters():
            noted = self._parameters[name] = _Parameter(weakref.ref(parameter), _samples(parameter))
            self._wrap(parameter, noted, default_loader)

    def end(self) -> None:
        """Put the loaders back and see which values changed; a parameter that is gone was replaced."""
        self.release()
        for noted in self._parameters.values():
            parameter = noted.value()
            noted.changed = parameter is None or _samples(parameter) != noted.before
        self.loaded = True

    def release(self) -> None:
        """Put the loaders back."""
        for restore in self._restore:
            restore()
        self._restore.clear()

    def unwritten(self) -> list[str]:
        """Parameters that were never written and are still in place."""
        now = dict(self.model.named_parameters())
        return [
            name
            for name, noted in self._parameters.items()
            if not noted.called and not noted.changed and now.get(name) is noted.value()
        ]

    def partial(self) -> dict[str, list[str]]:
        """Stacked parameters of which only a part was written, with what is missing."""
        return {
            name: sorted(map(str, whole - noted.parts))
            for name, noted in self._parameters.items()
            for whole in _PARTS
            if noted.parts and noted.parts < whole
        }

    def replaced(self) -> list[str]:
        """Parameters that stand for another tensor now: shared with the target."""
        now = dict(self.model.named_parameters())
        return [name for name, noted in self._parameters.items() if name in now and now[name] is not noted.value()]

    def _wrap(self, parameter: Any, noted: _Parameter, default_loader: Callable[..., Any]) -> None:
        original = getattr(parameter, "weight_loader", None)

        def loader(target: Any, weight: Any, *args: Any, **kwargs: Any) -> Any:
            noted.called = True
            part = args[0] if args else kwargs.get("loaded_shard_id", kwargs.get("shard_id"))
            if isinstance(part, (str, int)):
                noted.parts.add(part)
            return (original or default_loader)(target, weight, *args, **kwargs)

        attribute = "_weight_loader" if hasattr(parameter, "_weight_loader") else "weight_loader"
        held = getattr(parameter, attribute, None)
        try:
            setattr(parameter, attribute, loader)
        except AttributeError:
            return  # a class that lets nobody in: the change of value has to do

        def restore() -> None:
            if held is None:
                delattr(parameter, attribute)
            else:
                setattr(parameter, attribute, held)

        self._restore.append(restore)


def _samples(parameter: Any) -> tuple[float, ...]:
    """Values spread over a parameter, as floats; NaN is written so that it equals itself."""
    flat = parameter.detach().reshape(-1)
    count = flat.numel()
    if not count:
        return ()
    import torch  # noqa: PLC0415

    places = torch.linspace(0, count - 1, min(count, SAMPLES), device=flat.device, dtype=torch.float64).long()
    return tuple(-1e308 if math.isnan(value) else value for value in flat[places].float().tolist())


class LoadGate:
    """All drafters of one scheduler process."""

    def __init__(self) -> None:
        self.watches: list[LoadWatch] = []
        self.errors: list[str] = []  # ours, while watching: that load is not judged
        self.hook: Callable[..., Any] = self._initialize  # one object, so that it is found again in SGLang's wrapper

    def _initialize(self, original: Callable[..., Any], model_config: Any, *args: Any, **kwargs: Any) -> Any:
        """Wraps `engine_link.INITIALIZE`: a drafter that it builds is watched while it loads."""
        model = original(model_config, *args, **kwargs)
        try:
            if getattr(model_config, "is_draft_model", False):
                self._watch(model)
        except Exception as error:
            self._give_up(model, error)
        return model

    def _give_up(self, model: Any, error: Exception) -> None:
        self.watches = [watch for watch in self.watches if watch.model is not model]
        self.errors.append(f"{type(error).__name__}: {error}")

    def _watch(self, model: Any) -> None:
        from sglang.srt.model_loader.weight_utils import default_weight_loader  # noqa: PLC0415

        watch = LoadWatch(model)
        self.watches.append(watch)
        original = model.load_weights

        def load_weights(*args: Any, **kwargs: Any) -> Any:
            model.__dict__.pop("load_weights", None)  # the class's own again, for every later load
            try:
                watch.begin(default_weight_loader)
            except Exception as error:  # a kind of parameter that cannot be looked at: SGLang's load goes on
                watch.release()
                self._give_up(model, error)
                return original(*args, **kwargs)
            try:
                return original(*args, **kwargs)
            finally:
                try:
                    watch.end()
                except Exception as error:
                    self._give_up(model, error)

        model.__dict__["load_weights"] = load_weights

    def facts(self, scheduler: Any) -> dict[str, Any]:
        """The `drafter-loaded` event: what was loaded, from where, and what it looks at."""
        target = scheduler.tp_worker.model_runner.model
        return {
            "drafters": [_drafter(watch) for watch in self.watches],
            "map": map_facts(_map(scheduler.model_worker, self.watches)),
            "captured_layers": captured_layers(target),
            "target_vocab": int(scheduler.tp_worker.model_config.vocab_size),
        }


def _drafter(watch: LoadWatch) -> dict[str, Any]:
    config = getattr(watch.model, "config", None)
    return {
        "class": type(watch.model).__name__,
        "loaded": watch.loaded,
        "unwritten": watch.unwritten() if watch.loaded else [],
        "partial": watch.partial(),
        "shared": watch.replaced(),
        "draft_vocab": getattr(config, "draft_vocab_size", None),
        "fc_columns": getattr(getattr(getattr(watch.model, "model", None), "fc", None), "in_features", None),
    }


def _map(worker: Any, watches: Iterable[LoadWatch]) -> Any:
    """The map from draft to target ids in use, as SGLang's workers and models keep it; None when there is none."""
    holders = [getattr(worker, "draft_worker", None), *(watch.model for watch in watches)]
    return next(
        (held for holder in holders if (held := getattr(holder, "hot_token_id", None)) is not None),
        None,
    )


def map_facts(tokens: Any) -> dict[str, Any] | None:
    """Length, range, dtype, repeats and fingerprint (sha256 over little-endian int64) of a map."""
    if tokens is None:
        return None
    kept = tokens.detach().to("cpu")
    dtype = str(kept.dtype).removeprefix("torch.")
    if kept.is_floating_point():
        return {"length": kept.numel(), "dtype": dtype}
    whole = kept.long().contiguous()
    if not whole.numel():
        return {"length": 0, "dtype": dtype, "lowest": 0, "highest": -1, "repeats": 0, "sha256": ""}
    return {
        "length": whole.numel(),
        "dtype": dtype,
        "lowest": int(whole.min()),
        "highest": int(whole.max()),
        "repeats": int(whole.numel() - whole.unique().numel()),
        "sha256": hashlib.sha256(whole.numpy().astype("<i8").tobytes()).hexdigest(),
    }


def captured_layers(target: Any) -> list[int] | None:
    """The layers before which the target keeps its hidden state, as its modules hold them; None when it keeps none."""
    for module in target.modules():
        layers = getattr(module, "layers_to_capture", None)
        if layers:
            return sorted(int(layer) for layer in layers)
    return None


def effective_settings(scheduler: Any) -> dict[str, Any]:
    """The `settings` event: what is in force, after SGLang's own defaults and adjustments."""
    worker = scheduler.model_worker
    runner = scheduler.tp_worker.model_runner
    draft_worker = getattr(worker, "draft_worker", None)
    draft = getattr(draft_worker, "draft_attn_backend", None)
    return {
        "max_running_requests": scheduler.max_running_requests,
        "max_total_num_tokens": scheduler.max_total_num_tokens,
        "speculative_num_steps": getattr(worker, "speculative_num_steps", None),
        "speculative_eagle_topk": getattr(worker, "topk", None),
        "speculative_num_draft_tokens": getattr(worker, "speculative_num_draft_tokens", None),
        "target_attention_backend": type(runner.attn_backend).__name__,
        "draft_attention_backend": None if draft is None else type(draft).__name__,
        "target_graph_batch_sizes": _graph_sizes(getattr(runner, "decode_cuda_graph_runner", None)),
        "draft_graph_batch_sizes": _graph_sizes(getattr(draft_worker, "cuda_graph_runner", None)),
        "context_length": int(scheduler.tp_worker.model_config.context_len),
        "dtype": str(scheduler.tp_worker.model_config.dtype).removeprefix("torch."),
        "overlap": bool(scheduler.enable_overlap),
    }


def _graph_sizes(graphs: Any) -> list[int]:
    """Batch sizes that have a CUDA graph, ascending; none where nothing was captured (SGLang's `EagerRunner`)."""
    return sorted(int(size) for size in getattr(graphs, "capture_bs", None) or ())


def judge(facts: dict[str, Any]) -> list[Refusal]:
    """What is wrong for certain, from the facts of a load."""
    refusals = []
    for drafter in facts["drafters"]:
        fc_is_read = facts["captured_layers"] is not None
        eagle3 = "Eagle3" in drafter["class"]
        missing = [
            name for name in drafter["unwritten"] if fc_is_read or not name.rpartition(".")[0].endswith("model.fc")
        ]
        if eagle3 and missing:
            refusals.append(
                Refusal(
                    "load.unwritten",
                    f"the drafter's file filled {'no' if len(missing) > 20 else 'not every'} parameter that"
                    f" {drafter['class']} reads: {len(missing)} keep the random values they were made with",
                    "every parameter written by the checkpoint or shared with the target",
                    _shown(missing),
                    "compare the names with `guarded-serve inspect DRAFTER`; check num_hidden_layers and the export",
                )
            )
        if eagle3 and drafter["partial"]:
            parts = [f"{name} without {', '.join(gone)}" for name, gone in drafter["partial"].items()]
            refusals.append(
                Refusal(
                    "load.partial",
                    f"{len(parts)} stacked parameters of the drafter were filled in part only",
                    "q, k and v of every attention, gate and up of every MLP",
                    _shown(parts),
                    "the export lost tensors: look at `guarded-serve inspect DRAFTER`",
                )
            )
        refusals += _judge_map(facts, drafter)
    return refusals


def _judge_map(facts: dict[str, Any], drafter: dict[str, Any]) -> Iterable[Refusal]:
    tokens, draft_vocab, target_vocab = facts["map"], drafter["draft_vocab"], facts["target_vocab"]
    remedy = "export d2t as int64 offsets: target id = draft id + d2t[draft id]"
    if tokens is None:
        if draft_vocab is not None and draft_vocab < target_vocab:
            yield Refusal(
                "load.map",
                f"the drafter predicts {draft_vocab} of the target's {target_vocab} tokens and no map was loaded, so"
                " its ids are taken for the target's",
                "a d2t tensor in the drafter's file",
                "none",
                remedy,
            )
        return
    if "highest" not in tokens:
        yield Refusal("load.map", "the drafter's map holds no whole numbers", "integers", str(tokens["dtype"]), remedy)
        return
    if tokens["lowest"] < 0 or tokens["highest"] >= target_vocab:
        yield Refusal(
            "load.map",
            "the drafter's map points outside the target's vocabulary",
            f"target ids from 0 to {target_vocab - 1}",
            f"{tokens['lowest']} to {tokens['highest']}",
            remedy,
        )
    if draft_vocab is not None and tokens["length"] != draft_vocab:
        yield Refusal(
            "load.map",
            "the drafter's map is not as long as its head",
            f"{draft_vocab} entries, draft_vocab_size",
            str(tokens["length"]),
            remedy,
        )


def _shown(names: list[str]) -> str:
    more = f" and {len(names) - 10} more" if len(names) > 10 else ""
    return ", ".join(names[:10]) + more
