"""Variants of a deployment: some of SGLang's settings taken out or set, everything else as it was.

The smoke test serves the same deployment with and without its drafter, and a failed probe serves it without.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from guarded_serve.profile.deployment import Deployment, Setting
from guarded_serve.profile.flags import render
from guarded_serve.profile.sglang_parser import ParserDump, sglang_parser

DRAFTER_PREFIX = "speculative_"
"""Every setting of SGLang's that concerns speculation begins so, but for those in `_MORE`."""

_MORE = ("enable_multi_layer_eagle",)


def without_drafter(deployment: Deployment) -> Deployment:
    """The same deployment with plain decoding: no speculative setting is left, from wherever it came."""
    names = {name for name in deployment.server if name.startswith(DRAFTER_PREFIX) or name in _MORE}
    return with_settings(deployment, {}, remove=names)


def with_settings(
    deployment: Deployment, settings: Mapping[str, Any], *, remove: Collection[str] = (), origin: str = "the guard"
) -> Deployment:
    """``settings`` by SGLang's name in place of what was set, and those in ``remove`` as if nobody had set them.

    What a `--config` file sets becomes flags of its own when one of its settings is removed, since nothing on a command
    line can unset it.
    """
    dump = sglang_parser()
    gone = {*settings, *remove}
    config = {
        name: setting
        for name, setting in deployment.server.items()
        if setting.origin.endswith("(--config)") and name not in gone
    }
    unfold = any(deployment.server[name].origin.endswith("(--config)") for name in remove if name in deployment.server)
    arguments = list(_less(deployment.arguments, {*gone, "config"} if unfold else gone, dump))
    if unfold:
        for name, setting in config.items():
            arguments = [*render(dump.by_name[name], setting.value), *arguments]
    for name, value in settings.items():
        arguments += render(dump.by_name[name], value)
    server = {name: setting for name, setting in deployment.server.items() if name not in gone}
    server |= {name: Setting(value, origin) for name, value in settings.items()}
    return replace(deployment, arguments=tuple(arguments), server=server)


def _less(arguments: Sequence[str], names: Collection[str], dump: ParserDump) -> Sequence[str]:
    """The command line without these settings: an option goes with the words up to the next option."""
    options = {option: action.name for action in dump.actions for option in action.options}
    kept: list[str] = []
    keeping = True
    for word in arguments:
        name = _setting_of(word, options)
        if name is not None:
            keeping = name not in names
        if keeping:
            kept.append(word)
    return kept


def _setting_of(word: str, options: Mapping[str, str]) -> str | None:
    """The setting that a word of a command line gives; None for a value. Abbreviations count, as in argparse."""
    if not word.startswith("-"):
        return None
    option = word.partition("=")[0]
    if option in options:
        return options[option]
    names = {name for full, name in options.items() if option.startswith("--") and full.startswith(option)}
    return names.pop() if len(names) == 1 else None
