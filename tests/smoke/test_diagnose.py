"""What is likely wrong: each kind of broken drafter gets its own sentence."""

from __future__ import annotations

from guarded_serve.smoke.diagnose import likely_causes
from guarded_serve.smoke.facts import Acceptance, Clues

EAGLE3 = Clues("EAGLE3", 3, True, captured=(2, 4, 5), usual=(2, 4, 5))


def counts(*histogram: int) -> Acceptance:
    return Acceptance(sum(histogram) + sum(i * n for i, n in enumerate(histogram)), sum(histogram), histogram)


NOTHING, LITTLE, WEAK = counts(995, 5, 0, 0), counts(900, 90, 10, 0), counts(600, 250, 100, 50)


def test_eagle_instead_of_eagle3() -> None:
    clues = Clues("EAGLE", 3, True)
    assert "set EAGLE3" in likely_causes(NOTHING, clues, {})[0]
    assert "EAGLE3" not in likely_causes(NOTHING, EAGLE3, {})[0]


def test_random_weights() -> None:
    clues = Clues("EAGLE3", 3, True, untrained=("all 4 norms are exactly 1, as before any training",))
    assert "weights look random" in likely_causes(NOTHING, clues, {})[0]


def test_nothing_accepted_without_a_clue() -> None:
    first = likely_causes(NOTHING, EAGLE3, {})[0]
    assert "random or missing weights" in first
    assert "d2t" in first


def test_shifted_layers() -> None:
    clues = Clues("EAGLE3", 3, True, captured=(3, 5, 6), usual=(2, 4, 5))
    causes = likely_causes(LITTLE, clues, {})
    assert "shifted by +1" in causes[0]
    assert "[3, 5, 6]" in causes[0]
    odd = Clues("EAGLE3", 3, True, captured=(2, 3, 7), usual=(2, 4, 5))
    assert "may be wrong" in likely_causes(LITTLE, odd, {})[0]
    assert not [cause for cause in likely_causes(LITTLE, EAGLE3, {}) if "shifted" in cause]


def test_another_target() -> None:
    clues = Clues("EAGLE3", 3, True, trained_for="/models/Kimi-K2")
    assert "not made for (the profile says /models/Kimi-K2)" in likely_causes(LITTLE, clues, {})[-1]
    assert "sibling" in likely_causes(WEAK, EAGLE3, {})[-1]


def test_one_kind_of_text_is_worst() -> None:
    kinds = {"code": counts(300, 300, 200, 200), "multilingual": counts(900, 80, 10, 10)}
    causes = likely_causes(WEAK, EAGLE3, kinds)
    assert any("multilingual is worst, at 1.13" in cause for cause in causes)
    assert not any("code is worst" in cause for cause in causes)


def test_only_the_first_draft_is_good() -> None:
    causes = likely_causes(counts(300, 660, 35, 5), EAGLE3, {})
    assert "draft 2 is right in 6%" in causes[0]


def test_what_the_preflight_warned_of_is_named() -> None:
    clues = Clues("EAGLE3", 3, True, warned=("drafter.map_values: the map is shuffled",))
    assert "the map is shuffled" in likely_causes(NOTHING, clues, {})[-1]
