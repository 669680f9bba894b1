"""What is likely wrong with a drafter that is not accepted, from the numbers and from what its files say. Pure.

Where the causes come from: sglang 21272 (an EAGLE-3 head under EAGLE), 27829 (tensors missing: accept length 1.00),
25454 (layers one apart: about 0.1 lost), vLLM 18909 (no map: 1.12), vLLM 50170 (wrong layers: 1 % of drafts), EAGLE 196
(no chat template: 5.88 becomes 2.42).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from guarded_serve.smoke.facts import Acceptance, Clues

NOTHING = 0.03
"""First drafted tokens accepted below this: no better than guessing frequent tokens."""
BROKEN = 0.2
"""Below this a pairing is broken, not weak."""
STEEP = 0.4
"""A later position accepted this much more rarely than the one before it, given the one before was right."""


def likely_causes(acceptance: Acceptance, clues: Clues, by_kind: Mapping[str, Acceptance]) -> list[str]:
    """Sentences, the likeliest first; at least one."""
    first = acceptance.by_position[0] if acceptance.by_position else 0.0
    causes = list(_certain(clues))
    causes += _layers(clues)
    if first < BROKEN:
        causes += _nothing(clues) if first < NOTHING else _little(clues)
    else:
        causes += _weak(acceptance, clues, by_kind)
    causes += [f"the preflight only warned of it: {sentence}" for sentence in clues.warned]
    return causes


def _certain(clues: Clues) -> Sequence[str]:
    if clues.eagle3_head and clues.algorithm == "EAGLE":
        return ["an EAGLE-3 head runs under speculative_algorithm EAGLE, which feeds it one hidden state: set EAGLE3"]
    return [f"the weights look random: {sentence}" for sentence in clues.untrained]


def _layers(clues: Clues) -> Sequence[str]:
    captured, usual = clues.captured, clues.usual
    if not captured or not usual or captured == usual:
        return []
    apart = {mine - theirs for mine, theirs in zip(captured, usual, strict=False)}
    shown, wanted = list(captured), list(usual)
    if len(captured) == len(usual) and len(apart) == 1:
        (step,) = apart
        return [
            f"the aux layers are shifted by {step:+d}: SGLang captures the states entering layers {shown}, and heads "
            f"for so many layers are usually made for {wanted}; see eagle_aux_hidden_state_layer_ids in the config"
        ]
    return [f"the aux layers may be wrong: SGLang captures {shown}, and heads are usually made for {wanted}"]


def _nothing(clues: Clues) -> Sequence[str]:
    causes = [
        "next to nothing is accepted, as with random or missing weights, or a d2t map with wrong values (shuffled)"
    ]
    if not clues.eagle3_head:
        causes.append(f"the head may not be one for speculative_algorithm {clues.algorithm}")
    if clues.trained_for:
        causes.append(f"it was made for {clues.trained_for}: compare that model's tokenizer with the target's")
    return causes


def _little(clues: Clues) -> Sequence[str]:
    made_for = f" (the profile says {clues.trained_for})" if clues.trained_for else ""
    return [
        "the head sees hidden states that it was not trained on: other aux layers, another quantization or dtype, "
        f"or a target that it was not made for{made_for}",
    ]


def _weak(acceptance: Acceptance, clues: Clues, by_kind: Mapping[str, Acceptance]) -> Sequence[str]:
    positions = acceptance.by_position
    causes = []
    for place in range(1, len(positions)):
        given = positions[place] / positions[place - 1] if positions[place - 1] else 0.0
        if given < STEEP * positions[0]:
            causes.append(
                f"draft {place + 1} is right in {given:.0%} of the cases where draft {place} was, against "
                f"{positions[0]:.0%} for draft 1: the head's own hidden state is not what it was trained on "
                "(norm_output, norm_before_residual), or it was trained for fewer steps"
            )
            break
    whole = acceptance.length or 0.0
    poor = sorted(
        (part.length, kind)
        for kind, part in by_kind.items()
        if len(by_kind) > 1 and part.length is not None and part.length < 0.8 * whole
    )
    causes += [f"{kind} is worst, at {length:.2f}: the head has not seen such text" for length, kind in poor[:2]]
    made_for = f": the profile says {clues.trained_for}" if clues.trained_for else ""
    causes.append(
        "drafter and target fit, but weakly: the head was made for a sibling or an earlier version of this target"
        f"{made_for}, for other text, for another chat template, or is not trained enough"
    )
    return causes
