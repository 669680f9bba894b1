"""From the preflight's facts and findings to the clues that a diagnosis uses."""

from __future__ import annotations

from typing import TYPE_CHECKING

from guarded_serve.engine_rules.capture import default_layers
from guarded_serve.findings import Report, Severity
from guarded_serve.smoke.facts import Clues

if TYPE_CHECKING:
    from guarded_serve.facts.bag import Facts


def clues(facts: Facts, report: Report) -> Clues:
    """What the files and the settings say."""
    model, deployment = facts.model, facts.deployment
    if model is None:
        return Clues()
    capture, layers = model.capture, model.target_layers
    steps = deployment.get("speculative_num_steps")
    return Clues(
        algorithm=model.algorithm,
        steps=int(steps) if steps else None,
        eagle3_head=model.head_class is not None,
        captured=capture.captured if capture else None,
        usual=default_layers(layers) if layers else None,
        untrained=tuple(
            found.message.partition(": ")[0] for found in report.findings if found.check == "drafter.untrained"
        ),
        trained_for=deployment.profile.drafter.trained_for,
        warned=tuple(
            f"{found.check}: {found.message}"
            for found in report.findings
            if found.severity is Severity.WARNING
            and found.check.startswith("drafter.")
            and found.check != "drafter.untrained"
        ),
    )
