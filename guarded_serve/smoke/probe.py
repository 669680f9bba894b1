"""Gate 3 at every start: a few real generations between the first answer and READY, judged by what SGLang accepted.

`judge` is pure; `probe` generates through the public port and is what the supervisor calls, in a thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from guarded_serve.findings import Finding, Severity
from guarded_serve.profile.deployment import Deployment
from guarded_serve.profile.variant import without_drafter
from guarded_serve.smoke import client
from guarded_serve.smoke.client import PromptRefused, ServerError
from guarded_serve.smoke.diagnose import likely_causes
from guarded_serve.smoke.facts import Acceptance, Clues, Sample
from guarded_serve.smoke.prompts import BadPrompts, Prompt, load_prompts, spread
from guarded_serve.supervisor.probing import Probed
from guarded_serve.supervisor.ready import Address

PROMPTS = 8
NEW_TOKENS = 48
TIMEOUT_S = 60.0
"""Of each wait on the socket; `supervise.start_deadline_s` still bounds the whole."""

ANSWERS, LENGTH, FIRST, NOTHING, PROMPTS_CHECK = (
    "probe.answers",
    "probe.accept_length",
    "probe.first_position",
    "probe.nothing_counted",
    "profile.prompts",
)


@dataclass(frozen=True)
class Answers:
    """What the generations gave."""

    samples: tuple[Sample, ...]
    left_out: tuple[str, ...] = ()


def wanted(deployment: Deployment) -> bool:
    """Whether there is a drafter whose acceptance can be probed."""
    other = deployment.get("is_embedding") or deployment.get("skip_tokenizer_init")
    return deployment.profile.probe.enabled and bool(deployment.get("speculative_algorithm")) and not other


def prompts_finding(deployment: Deployment) -> Finding | None:
    """What is wrong with the profile's prompts, before anything starts."""
    if not wanted(deployment):
        return None
    try:
        load_prompts(deployment.profile.probe.prompts)
    except BadPrompts as error:
        return Finding(
            PROMPTS_CHECK,
            Severity.ERROR,
            str(error),
            where=deployment.origins.get("probe.prompts"),
            expected='"builtin", or a JSONL file with a list of chat messages a line',
            found=deployment.profile.probe.prompts,
            remedy='name a JSONL file, or set probe.prompts = "builtin"',
            exit_code=error.code,
        )
    return None


def judge(answers: Answers, deployment: Deployment) -> Probed:
    """By the floors of the profile: `probe.min_accept_length`, and `smoke.min_first_position` for the first draft."""
    counted = Acceptance.of(answers.samples)
    if counted.length is None:
        nothing = Finding(
            NOTHING,
            Severity.WARNING,
            f"SGLang counted no verification with {deployment.get('speculative_algorithm')}: the drafter is not judged",
        )
        return Probed("probe: nothing to judge", (nothing,))
    shares = " / ".join(f"{share:.2f}" for share in counted.by_position)
    summary = (
        f"probe: accept length {counted.length:.2f} over {counted.verifications} verifications of "
        f"{len(answers.samples)} prompts" + (f", accepted by position {shares}" if shares else "")
    )
    finding = _finding(counted, answers, deployment)
    return Probed(summary, (finding,) if finding else ())


def _finding(counted: Acceptance, answers: Answers, deployment: Deployment) -> Finding | None:
    profile = deployment.profile
    floor, first_floor = profile.probe.min_accept_length, profile.smoke.min_first_position
    first = counted.by_position[0] if counted.by_position else None
    causes = likely_causes(counted, Clues(algorithm=deployment.get("speculative_algorithm")), _by_kind(answers.samples))
    remedy = f"likely: {causes[0]}; `guarded-serve smoke` measures more and says more"
    if first is not None and first < first_floor:
        return Finding(
            FIRST,
            Severity.ERROR,
            f"the target accepts {first:.1%} of the first drafted tokens: drafter and target do not fit",
            expected=f"at least {first_floor:.0%}",
            found=f"{first:.1%}, accept length {counted.length:.2f}",
            remedy=remedy,
        )
    assert counted.length is not None
    if counted.length < floor:
        return Finding(
            LENGTH,
            Severity.ERROR,
            f"accept length is {counted.length:.2f}, below probe.min_accept_length",
            expected=f"at least {floor:g}",
            found=f"{counted.length:.2f}",
            remedy=remedy,
        )
    return None


def _by_kind(samples: Sequence[Sample]) -> dict[str, Acceptance]:
    kinds = {sample.kind for sample in samples}
    return {kind: Acceptance.of(sample for sample in samples if sample.kind == kind) for kind in sorted(kinds)}


def generate(address: Address, prompts: Sequence[Prompt]) -> Answers:
    """Answers to some of the prompts, all at once. Raises ServerError, PromptRefused when it takes none of them."""
    samples: list[Sample] = []
    left_out: list[str] = []

    def one(prompt: Prompt) -> Sample | str:
        try:
            ready = client.prepare(address, prompt, TIMEOUT_S)
            return client.generate(address, ready, NEW_TOKENS, TIMEOUT_S)
        except PromptRefused as refusal:
            return f"{prompt.name}: {refusal}"

    with ThreadPoolExecutor(len(prompts)) as pool:
        for result in pool.map(one, prompts):
            if isinstance(result, Sample):
                samples.append(result)
            else:
                left_out.append(result)
    if not samples:
        raise PromptRefused(f"the server takes none of the {len(prompts)} prompts; the first: {left_out[0]}")
    return Answers(tuple(samples), tuple(left_out))


def probe(deployment: Deployment, address: Address) -> Probed:
    """Generate, judge, and do as `probe.on_failure` says."""
    if not wanted(deployment):
        return Probed("probe: not asked for" if not deployment.profile.probe.enabled else "probe: there is no drafter")
    try:
        prompts = spread(load_prompts(deployment.profile.probe.prompts), PROMPTS)
        said = judge(generate(address, prompts), deployment)
    except ServerError as error:
        return Probed("probe: failed", server_failure=f"the probe got no answer: {error}")
    except (BadPrompts, PromptRefused) as error:
        remedy = 'name other prompts in probe.prompts, or set it to "builtin"'
        said = Probed("probe: failed", (Finding(ANSWERS, Severity.ERROR, str(error), remedy=remedy),))
    return as_the_profile_says(said, deployment)


def as_the_profile_says(said: Probed, deployment: Deployment) -> Probed:
    """A failed probe refuses, only warns, or has the server start again without its drafter."""
    if not any(finding.severity is Severity.ERROR for finding in said.findings):
        return said
    wish = deployment.profile.probe.on_failure
    if wish == "serve-without-drafter":
        return Probed(said.summary, said.findings, without_drafter(deployment))
    if wish == "warn":
        return Probed(said.summary, tuple(_as_warning(finding) for finding in said.findings))
    return said


def _as_warning(finding: Finding) -> Finding:
    return Finding(
        finding.check,
        Severity.WARNING,
        finding.message,
        finding.expected,
        finding.found,
        finding.where,
        finding.remedy,
        finding.exit_code,
    )
