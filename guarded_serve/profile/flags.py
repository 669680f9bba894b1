"""SGLang's command line, parsed here exactly as SGLang parses it, and profile settings rendered as its flags.

An argparse parser is rebuilt from the dump of SGLang's own (`sglang_parser.py`), so abbreviations, `--a=b`, `nargs`,
JSON values and error wording are argparse's and SGLang's, not imitations. Nothing is set that nobody set: there are no
defaults in it, and each value comes with the option that set it.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, NoReturn

from guarded_serve.profile.sglang_parser import Action, ParserDump
from guarded_serve.profile.wording import found, listed


class FlagError(Exception):
    """A command line that SGLang would refuse, in argparse's words.

    ``action`` is the setting whose value is wrong, ``unknown`` are the words that no flag takes.
    """

    def __init__(self, message: str, *, action: Action | None = None, unknown: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.action = action
        self.unknown = tuple(unknown)

    @property
    def found(self) -> str | None:
        """The value that was given, where argparse quotes it."""
        quoted = re.search(r"invalid [\w ]+: ('.*?'|\".*?\")", str(self), re.IGNORECASE)
        return quoted[1] if quoted else "no value" if "expected" in str(self) else None


class Mismatch(Exception):
    """A profile value that cannot be the value of a flag."""

    def __init__(self, expected: str, remedy: str | None = None) -> None:
        super().__init__(expected)
        self.expected = expected
        self.remedy = remedy


@dataclass(frozen=True)
class Given:
    """A setting that a command line gives: its value as SGLang reads it, and the option that gave it last."""

    value: Any
    option: str
    action: Action


@dataclass(frozen=True)
class Parsed:
    """A command line. ``unknown`` is empty unless the parser is the shipped snapshot."""

    given: Mapping[str, Given]
    unknown: tuple[str, ...] = ()


class FlagParser:
    """SGLang's parser, rebuilt."""

    def __init__(self, dump: ParserDump) -> None:
        self.dump = dump
        self._parser = _Parser(
            prog="sglang serve", argument_default=argparse.SUPPRESS, add_help=False, exit_on_error=False
        )
        self._parser.add_argument("-h", "--help", action=_Help, nargs=0)
        for action in dump.actions:
            _add(self._parser, action)

    def parse(self, argv: Sequence[str]) -> Parsed:
        """What a command line sets. Raises FlagError; unknown flags are an error of an installed SGLang only."""
        try:
            namespace, unknown = self._parser.parse_known_args(list(argv), argparse.Namespace(given={}))
        except argparse.ArgumentError as error:
            first = (error.argument_name or "").partition("/")[0]
            action = next((action for action in self.dump.actions if first in action.options), None)
            raise FlagError(str(error), action=action) from None
        if unknown and self.dump.installed:
            raise FlagError(f"unrecognized arguments: {' '.join(unknown)}", unknown=unknown)
        return Parsed(namespace.given, tuple(unknown))

    def parse_setting(self, action: Action, tokens: Sequence[str]) -> Any:
        """The value that one setting's own tokens give. Raises FlagError with the reason alone."""
        try:
            given = self.parse(tokens).given.get(action.name)
            return True if given is None else given.value  # a flag that has become a no-op sets nothing
        except FlagError as error:
            raise FlagError(re.sub(r"^argument [^:]+: ", "", str(error))) from None


def help_text(dump: ParserDump) -> str:
    """SGLang's flags as its own `--help` shows them, with the first line of each description."""
    source = "" if dump.installed else " (from a snapshot: SGLang is not installed here)"
    parser = argparse.ArgumentParser(usage=argparse.SUPPRESS, add_help=False)
    group = parser.add_argument_group(f"flags of SGLang {dump.version}{source}")
    for action in dump.actions:
        _add(group, action)
    return parser.format_help().strip("\n") + "\n"


def _add(parser: argparse._ActionsContainer, action: Action) -> None:
    parser.add_argument(
        *action.options,
        action=_Recorder,
        sglang=action,
        dest=action.dest,
        nargs=action.nargs,
        const=action.const,
        type=_type_of(action),
        choices=None if action.choices is None else list(action.choices),
        default=argparse.SUPPRESS,
        metavar=action.metavar,
        help=action.help.replace("%", "%%"),
    )


def render(action: Action, value: Any) -> list[str]:
    """A profile's value as command-line tokens. Raises Mismatch where the flag cannot take it."""
    if action.is_switch:
        return _render_switch(action, value)
    if action.takes_list:
        return _render_list(action, value)
    if action.nargs == "?" and value is True:
        return [action.flag]
    return _joined(action.flag, _token(action, value))


def _render_switch(action: Action, value: Any) -> list[str]:
    if not isinstance(value, bool):
        remedy = f"write {str(value).lower()} without quotes" if str(value).lower() in ("true", "false") else None
        raise Mismatch("true or false", remedy)
    if value:
        return [action.flag]
    if action.has_opposite:
        return [next(option for option in action.options if option.startswith("--no-"))]
    if action.default:
        raise Mismatch("true: SGLang has no flag that turns it off")
    if action.default is None:
        raise Mismatch("true or absent: SGLang decides by itself then, and has no flag for false", "leave the key out")
    return []


def _render_list(action: Action, value: Any) -> list[str]:
    element = _expected_scalar(action)
    if not isinstance(value, list):
        raise Mismatch(f"a list, each {element}", f"write [{found(value).rpartition(' (')[0]}]")
    if not value and action.nargs == "+":
        raise Mismatch(f"a list with at least one element, each {element}", "leave the key out")
    try:
        tokens = [_token(action, item) for item in value]
    except Mismatch as mismatch:
        raise Mismatch(f"a list, each {mismatch.expected}", mismatch.remedy) from None
    if len(tokens) == 1 and _looks_like_option(tokens[0]):
        return [f"{action.flag}={tokens[0]}"]
    dashed = [token for token in tokens if _looks_like_option(token)]
    if dashed:
        raise Mismatch(f"a list without {listed(dashed)}: a command line would read that as a flag")
    return [action.flag, *tokens]


def _joined(flag: str, token: str) -> list[str]:
    return [f"{flag}={token}"] if _looks_like_option(token) else [flag, token]


def _looks_like_option(token: str) -> bool:
    return token.startswith("-") and not re.fullmatch(r"-\d+|-\d*\.\d+", token)


def _token(action: Action, value: Any) -> str:
    if isinstance(value, (dict, list)) and (action.takes_json or isinstance(value, dict)):
        # SGLang renders a table in its own --config files the same way
        return json.dumps(value, ensure_ascii=False)
    fits = {
        "int": isinstance(value, int),
        "human_readable_int": isinstance(value, (int, str)),
        "float": isinstance(value, (int, float)),
        "str": isinstance(value, str),
        "nullable_str": isinstance(value, str),
    }.get(action.type or "str", isinstance(value, (str, int, float)))
    if isinstance(value, bool) or not fits:
        raise Mismatch(_expected_scalar(action), _requote(action, value))
    return str(value)


def _requote(action: Action, value: Any) -> str | None:
    if isinstance(value, str) and action.type in ("int", "float"):
        return f"write {value.strip()} without quotes" if re.fullmatch(r"\s*-?\d+(\.\d+)?\s*", value) else None
    if isinstance(value, (bool, int, float)) and action.type in ("str", "nullable_str", None):
        return f'write "{json.dumps(value)}"'
    return None


def _expected_scalar(action: Action) -> str:
    if action.choices:
        return f"one of {listed(action.choices)}"
    if "LoRAPathAction" in action.classes:
        return "a string or a table"
    return {
        "int": "an integer",
        "human_readable_int": 'an integer, or a string such as "64k" or "1Mi"',
        "float": "a number",
        "loads": "a table, or a string with JSON",
        "json_list_type": "an array, or a string with JSON",
        "parse_cuda_graph_config_arg": "a table, or a string with JSON",
    }.get(action.type or "str", "a string")


def expected_value(action: Action) -> str:
    """What a profile may set, in words."""
    if action.is_switch:
        return "true or false"
    return f"a list, each {_expected_scalar(action)}" if action.takes_list else _expected_scalar(action)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise FlagError(message)


class _Help(argparse.Action):
    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> NoReturn:
        raise FlagError("write --help in full")


class _Recorder(argparse.Action):
    """Stores what SGLang's action would store, and which option did it."""

    def __init__(self, option_strings: Sequence[str], dest: str, sglang: Action, **rest: Any) -> None:
        super().__init__(option_strings, dest, **rest)
        self.sglang = sglang

    def format_usage(self) -> str:
        return " | ".join(self.option_strings)

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        option = option_string or self.sglang.flag
        if self.sglang.classes[0] == "DeprecatedAction" and not self.sglang.extra.get("error_message"):
            return  # SGLang only warns: the flag has become a no-op
        value = self._stored(namespace, values, option)
        namespace.given[self.sglang.name] = Given(value, option, self.sglang)

    def _stored(self, namespace: Any, values: Any, option: str) -> Any:
        classes, extra = self.sglang.classes, self.sglang.extra
        if "BooleanOptionalAction" in classes:
            return not option.startswith("--no-")
        if extra.get("error_message"):
            raise FlagError(str(extra["error_message"]))
        if "const_value" in extra:
            return extra["const_value"]
        if "LoRAPathAction" in classes:
            return [self._lora_path(text.strip()) for text in values or ()]
        if "_AppendAction" in classes:
            before = namespace.given.get(self.sglang.name)
            return [*(before.value if before else ()), values]
        if self.sglang.is_switch:
            return True if self.const is None else self.const
        return values

    def _lora_path(self, text: str) -> Any:
        if not (text.startswith("{") and text.endswith("}")):
            return text
        try:
            entry = json.loads(text)
        except ValueError:
            entry = {}
        if not {"lora_path", "lora_name"} <= set(entry):
            raise argparse.ArgumentError(self, f"{text!r} is no JSON object with 'lora_name' and 'lora_path'")
        return entry


def _human_readable_int(text: str) -> int:
    """As SGLang reads sizes: 1k is 1000, 1Ki is 1024 (`srt/utils/common.py: human_readable_int`)."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)(k|M|G|T|Ki|Mi|Gi|Ti)", text.strip())
    if match:
        number, suffix = match.groups()
        power = "kMGT".index(suffix[0]) + 1
        if not suffix.endswith("i"):
            return int(Decimal(number) * Decimal(1000) ** power)
        if "." in number:
            raise argparse.ArgumentTypeError(f"Decimals are not allowed with IEC suffixes like '{suffix}'.")
        return int(number) << (10 * power)
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"Invalid integer value: '{text}'. Use a plain integer, SI suffixes (1k, 1M), or IEC suffixes (1Ki, 1Mi). "
            "Suffixes are case-sensitive."
        ) from None


def _nullable_str(text: str) -> str | None:
    return None if text in ("", "None") else text


def _json_list(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"Invalid JSON list: {text}. Please provide a valid JSON list.") from None


def _cuda_graph_config(text: str) -> Any:
    """The shape alone; SGLang judges phases and keys."""
    try:
        parsed = json.loads(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"--cuda-graph-config must be JSON: {error}") from None
    if not isinstance(parsed, dict):
        raise argparse.ArgumentTypeError(f"--cuda-graph-config must be a JSON object, got {type(parsed).__name__}")
    return parsed


def _loads(text: str) -> Any:
    return json.loads(text)


_loads.__name__ = "loads"  # argparse names the type in its message: "invalid loads value"

_TYPES: Mapping[str, Callable[[str], Any]] = {
    "int": int,
    "float": float,
    "loads": _loads,
    "human_readable_int": _human_readable_int,
    "nullable_str": _nullable_str,
    "json_list_type": _json_list,
    "parse_cuda_graph_config_arg": _cuda_graph_config,
}


def _type_of(action: Action) -> Callable[[str], Any]:
    """The type function; text stays text where SGLang's own function is not known here, and SGLang judges it."""
    return _TYPES.get(action.type or "str", str)
