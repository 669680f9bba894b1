"""The draft vocabulary's map, d2t, and its mask, t2d: one map, an offset, in range, in order, and agreeing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from guarded_serve.checkpoint.safetensors import Tensor
from guarded_serve.checkpoint.vocab_map import MapStatistics, Meaning
from guarded_serve.checks.interface import Check, Skip, check
from guarded_serve.checks.model_facts import drafter_config, drafter_weights, head, models, only_eagle3, target_config
from guarded_serve.findings import Finding

if TYPE_CHECKING:
    from guarded_serve.facts.bag import Facts

SOURCE = "srt/models/llama_eagle3.py: hot_token_id = d2t + arange(len(d2t)), unchecked"


@check(
    "drafter.map",
    needs=("drafter.builds", "drafter.files", "drafter.tied"),
    source=f"{SOURCE}; vLLM 18909",
    remedy="export d2t as int64",
)
def vocabulary_map(self: Check, facts: Facts) -> Iterator[Finding]:
    """A reduced vocabulary has a d2t of one int64 a draft token; a full one needs none."""
    expected, _ = head(facts)
    only_eagle3(facts)
    size, tensor = expected.dimensions, models(facts).map.d2t
    reduced = size.draft_vocabulary < size.vocabulary
    if tensor is None:
        if reduced and not expected.tied:
            yield self.error(
                f"the draft vocabulary has {size.draft_vocabulary} of {size.vocabulary} tokens, but there is no d2t: "
                "SGLang would take draft ids for target ids",
                expected=f"d2t [{size.draft_vocabulary}] int64",
                found="absent",
                where=str(drafter_weights(facts).directory),
                remedy="export d2t with the drafter; it may have been left in another file or renamed",
            )
        return
    where = _where(tensor)
    if len(tensor.shape) != 1:
        yield self.error(
            f"d2t is {list(tensor.shape)}, expected a vector",
            expected="1 dimension",
            found=str(list(tensor.shape)),
            where=where,
            remedy="export d2t as a vector of one offset a draft token",
        )
        return
    if tensor.shape[0] != size.draft_vocabulary:
        what = "draft_vocab_size" if drafter_config(facts).integer("draft_vocab_size") else "the vocabulary"
        yield self.error(
            f"d2t has {tensor.shape[0]} entries, {what} is {size.draft_vocabulary}",
            expected=str(size.draft_vocabulary),
            found=str(tensor.shape[0]),
            where=where,
            remedy="export map, lm_head and config.json from one training run",
        )
    if tensor.dtype in ("F16", "BF16", "F32", "F64", "BOOL") or tensor.dtype.startswith("F"):
        yield self.error(
            f"d2t is {tensor.dtype}: token ids of that type index nothing",
            expected="I64",
            found=tensor.dtype,
            where=where,
            remedy="export d2t as int64, not cast together with the weights",
        )
    elif tensor.dtype != "I64":
        yield self.warning(
            f"d2t is {tensor.dtype}, expected I64; SGLang adds an int64 range to it, which makes it whole",
            expected="I64",
            found=tensor.dtype,
            where=where,
        )


@check(
    "drafter.map_values",
    needs=("drafter.map", "target.config"),
    source=f"{SOURCE}; verl-SpeCo 66, 67; EAGLE 222, 241, 248; Model-Optimizer: calibrate_frequent_vocab",
)
def map_values(self: Check, facts: Facts) -> Iterator[Finding]:
    """i + d2t[i] is a target token of its own for every i, a larger one each time where there is a t2d."""
    tensor, statistics = _judged(facts)
    vocabulary = target_config(facts).integer("vocab_size") or 0
    where, count = _where(tensor), len(statistics.ids)
    if statistics.meaning is Meaning.ABSOLUTE:
        yield self.error(
            "d2t holds absolute token ids, not offsets: SGLang reads target id = i + d2t[i], so nearly every draft "
            f"would be a wrong token{_consequence(statistics, vocabulary)}",
            expected="offsets: d2t[i] = target id - i",
            found="absolute ids",
            where=where,
            remedy="store d2t - arange(len(d2t))",
        )
    elif statistics.meaning is Meaning.ARANGE:
        yield self.error(
            "d2t is 0, 1, 2, ...: the identity as absolute ids, which SGLang reads as target ids 0, 2, 4, ...",
            expected="offsets: all zero for the identity",
            found="arange",
            where=where,
            remedy="store d2t - arange(len(d2t)), after checking that the head was really trained on ids 0 and up",
        )
    elif statistics.meaning is Meaning.ALL_ZERO:
        yield self.error(
            f"d2t is all zero with {count} of {vocabulary} tokens: nearly always a buffer that nobody filled",
            expected="the ids of the draft vocabulary as offsets",
            found="all zero",
            where=where,
            remedy=f"export the real map; if the head was trained on ids 0 to {count - 1}, ignore {self.name}",
        )
    else:
        yield from _faults(self, statistics, vocabulary, where, masked=models(facts).map.t2d is not None)
        yield from _beyond_the_tokenizer(self, statistics, models(facts).tokenizer_length, vocabulary, where)


def _faults(self: Check, statistics: MapStatistics, vocabulary: int, where: str, *, masked: bool) -> Iterator[Finding]:
    count, first = len(statistics.ids), statistics.first_bad
    if statistics.out_of_range and first is not None:
        yield self.error(
            f"{statistics.out_of_range} of {count} ids are outside the target's vocabulary of {vocabulary} "
            f"(the first: draft token {first} becomes {statistics.ids[first]})",
            expected=f"0 to {vocabulary - 1}",
            found=str(statistics.ids[first]),
            where=where,
            remedy="export the map of this target's vocabulary",
        )
    if statistics.descents and first is not None:
        also = f", {statistics.duplicates} of {count} ids are there twice" if statistics.duplicates else ""
        at = next(i for i in range(1, count) if statistics.ids[i] <= statistics.ids[i - 1])
        message = (
            f"i + d2t[i] does not rise at {statistics.descents} place{'s' if statistics.descents > 1 else ''} "
            f"(the first: {statistics.ids[at - 1]} then {statistics.ids[at]} at draft token {at}){also}"
        )
        evidence = {
            "expected": "strictly rising ids",
            "found": f"{statistics.descents} descents, {statistics.duplicates} duplicates",
            "where": where,
        }
        if statistics.out_of_range or statistics.duplicates or masked:
            # Whoever writes a t2d (EAGLE, SpecForge, speculators) takes d2t from its marks, in ascending order.
            yield self.error(message, remedy="export the map that the head was trained with", **evidence)
        else:
            # Model-Optimizer writes no t2d and orders tokens by how often they occur; SGLang takes any order.
            yield self.warning(
                f"{message}: tokens ordered by frequency, as Model-Optimizer writes them, or a map of another head; "
                "the file holds no t2d to tell",
                remedy="the load gate and the probe will judge it; a smoke test does so before",
                **evidence,
            )


def _beyond_the_tokenizer(
    self: Check, statistics: MapStatistics, length: int | None, vocabulary: int, where: str
) -> Iterator[Finding]:
    """Padding of the vocabulary is no token: vLLM 7252."""
    if length is None:
        return
    padding = [token for token in statistics.ids if length <= token < vocabulary]
    if padding:
        yield self.warning(
            f"{len(padding)} of {len(statistics.ids)} ids are padding of the target's vocabulary, beyond the {length} "
            f"tokens of its tokenizer (the first: {padding[0]})",
            expected=f"0 to {length - 1}",
            found=str(padding[0]),
            where=where,
            remedy="export the map that the head was trained with",
        )


def _consequence(statistics: MapStatistics, vocabulary: int) -> str:
    if not statistics.out_of_range:
        return ""
    return f", and {statistics.out_of_range} of {len(statistics.ids)} would lie outside its {vocabulary} tokens"


@check(
    "drafter.map_mask",
    needs=("drafter.map", "drafter.map_values", "target.config"),
    source="SpecForge: nonzero(t2d) == d2t + arange",
)
def map_mask(self: Check, facts: Facts) -> Iterator[Finding]:
    """nonzero(t2d) is i + d2t[i], where there is a t2d."""
    _, statistics = _judged(facts)
    mask = models(facts).map.t2d
    if mask is None:
        raise Skip("the file holds no t2d")
    if statistics.meaning in (Meaning.ABSOLUTE, Meaning.ARANGE):
        raise Skip("d2t holds no offsets, so that there is nothing to compare")
    where, count = _where(mask), len(statistics.ids)
    vocabulary = target_config(facts).integer("vocab_size") or 0
    if statistics.t2d_trues is None:
        yield self.error(
            f"t2d is {mask.dtype} {list(mask.shape)}, expected one bool a target token",
            expected=f"BOOL [{vocabulary}]",
            found=f"{mask.dtype} {list(mask.shape)}",
            where=where,
        )
        return
    if statistics.t2d_trues != count:
        yield self.error(
            f"t2d marks {statistics.t2d_trues} tokens, d2t has {count}: they come from two different maps",
            expected=str(count),
            found=str(statistics.t2d_trues),
            where=where,
            remedy="export both maps from one training run",
        )
    elif statistics.differing:
        yield self.error(
            f"t2d and d2t differ in {statistics.differing} of {count} tokens: they come from two different maps",
            expected="nonzero(t2d) equal to i + d2t[i]",
            found=f"{statistics.differing} differ",
            where=where,
            remedy="export both maps from one training run",
        )


def _judged(facts: Facts) -> tuple[Tensor, MapStatistics]:
    only_eagle3(facts)
    found = models(facts).map
    if found.d2t is None:
        raise Skip("the drafter has no d2t: its vocabulary is the target's")
    if found.statistics is None:
        raise Skip(found.unreadable or "d2t could not be judged")
    return found.d2t, found.statistics


def _where(tensor: Tensor) -> str:
    return f"{tensor.path}: {tensor.name}"


CHECKS = (vocabulary_map, map_values, map_mask)
