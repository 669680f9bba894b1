"""Which GPUs a deployment uses: what CUDA would make of the environment, and what SGLang makes of its flags.

Pure: cards, settings and an environment in, devices and problems out. The launcher gives `GpuChoice.environment` to the
server, so that the cards that were checked are the cards that are used, in the same order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from guarded_serve.exit_codes import ExitCode

if TYPE_CHECKING:
    from guarded_serve.profile.deployment import Deployment

VISIBLE = "CUDA_VISIBLE_DEVICES"
ORDER = "CUDA_DEVICE_ORDER"


@dataclass(frozen=True)
class Card:
    """A GPU as the choice sees it; ``index`` is NVML's, which is PCI order. A lost card has no UUID."""

    index: int
    uuid: str
    name: str = ""
    mig: tuple[str, ...] = ()  # UUIDs of its MIG devices


@dataclass(frozen=True)
class Device:
    """What CUDA calls a device: a whole card, or one MIG device of it."""

    uuid: str
    index: int  # of its card
    mig: bool = False


@dataclass(frozen=True)
class Rank:
    """One scheduler process of SGLang on this node and the device it uses."""

    device: Device
    tp_rank: int
    pp_rank: int
    dp_rank: int | None = None


@dataclass(frozen=True)
class ChoiceProblem:
    """Why the choice cannot be made."""

    message: str
    expected: str
    found: str
    remedy: str
    exit_code: ExitCode = ExitCode.USAGE


@dataclass(frozen=True)
class GpuChoice:
    """``visible`` in CUDA's order, ``ranks`` in SGLang's, ``environment`` for the server process."""

    visible: tuple[Device, ...] = ()
    ranks: tuple[Rank, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    problems: tuple[ChoiceProblem, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def chosen(self) -> tuple[Device, ...]:
        """The devices that the ranks use, each once."""
        return tuple(dict.fromkeys(rank.device for rank in self.ranks))


@dataclass(frozen=True)
class _Sizes:
    tp: int
    pp: int
    dp: int  # replicas; data-parallel attention lives inside tp
    nodes: int
    node: int
    base: int
    step: int


class _Cannot(Exception):
    def __init__(self, problem: ChoiceProblem) -> None:
        super().__init__(problem.message)
        self.problem = problem


def other_device(deployment: Deployment, view: Mapping[str, str]) -> str | None:
    """What the deployment runs on where that is not CUDA: then no GPU is looked at.

    ``view`` is the server's environment; SGLang compares the variable with "1" (utils/common.py: is_cpu).
    """
    if deployment.profile.engine.cpu_kernels:
        return "cpu"
    device = deployment.get("device")
    if device is None and view.get("SGLANG_USE_CPU_ENGINE") == "1":
        return "cpu"
    return None if device in (None, "cuda") else str(device)


def choose_gpus(deployment: Deployment, cards: Sequence[Card], environment: Mapping[str, str]) -> GpuChoice:
    """Resolve profile, environment and flags to devices; problems instead of an exception."""
    wanted = deployment.profile.gpus.devices
    notes: list[str] = []
    visible: tuple[Device, ...] = ()
    try:
        visible = _visible(environment, cards, notes)
        if wanted != "visible":
            visible = _from_profile(wanted, visible, cards)
        sizes = _sizes(deployment)
        positions = _positions(sizes)
        _check_positions(positions, visible, sizes)
    except _Cannot as cannot:
        return GpuChoice(visible=visible, problems=(cannot.problem,), notes=tuple(notes))
    ranks = tuple(Rank(visible[place], tp, pp, dp) for place, tp, pp, dp in positions)
    return GpuChoice(visible, ranks, _environment(visible, ranks), notes=tuple(notes))


def _environment(visible: tuple[Device, ...], ranks: tuple[Rank, ...]) -> dict[str, str]:
    """Both variables, so that NVML's order and CUDA's agree.

    One rank: UUIDs, which no order can change. Several: indices in PCI order, because SGLang's custom all-reduce reads
    the variable with ``int()`` (custom_all_reduce_utils.py) and would be lost, with a warning only, over a UUID.
    """
    by_uuid = len(ranks) == 1 or any(device.mig for device in visible)
    names = [device.uuid if by_uuid else str(device.index) for device in visible]
    return {VISIBLE: ",".join(names), ORDER: "PCI_BUS_ID"}


def _visible(environment: Mapping[str, str], cards: Sequence[Card], notes: list[str]) -> tuple[Device, ...]:
    """What CUDA would see, every entry resolved; CUDA itself hides in silence what follows an invalid entry."""
    text = environment.get(VISIBLE)
    if text is None:
        return tuple(Device(card.uuid, card.index) for card in cards)
    devices: list[Device] = []
    tokens = [token.strip() for token in text.split(",")] if text.strip() else []
    for position, token in enumerate(tokens):
        if token in ("-1", "NoDevFiles"):
            if hidden := tokens[position + 1 :]:
                notes.append(f"{VISIBLE}={text}: CUDA stops at {token} and does not see {', '.join(hidden)}")
            break
        devices.append(_resolve(token, cards, f"{VISIBLE}={text}", ExitCode.USAGE))
    if not devices:
        raise _Cannot(
            ChoiceProblem(
                f'{VISIBLE}="{text}" hides every GPU',
                expected="at least one GPU",
                found="none visible",
                remedy=f"unset {VISIBLE}, or name the GPUs by index, UUID or unique UUID prefix",
            )
        )
    _refuse_twice(devices, f"{VISIBLE}={text}", ExitCode.USAGE)
    fastest_first = environment.get(ORDER, "FASTEST_FIRST") == "FASTEST_FIRST"
    mixed = len({card.name for card in cards if card.name}) > 1
    if fastest_first and mixed and any(token.isdigit() for token in tokens):
        notes.append(
            f"{VISIBLE}={text} is read in PCI order, as nvidia-smi shows it; CUDA alone would number these "
            f"different cards fastest first ({ORDER} is not set)"
        )
    return tuple(devices)


def _from_profile(wanted: object, visible: tuple[Device, ...], cards: Sequence[Card]) -> tuple[Device, ...]:
    entries = list(wanted) if isinstance(wanted, (list, tuple)) else [wanted]
    devices = [_resolve(str(entry), cards, f"[gpus] devices = {entries}", ExitCode.PROFILE) for entry in entries]
    _refuse_twice(devices, f"[gpus] devices = {entries}", ExitCode.PROFILE)
    seen = {device.index for device in visible}
    hidden = [device for device in devices if device.index not in seen]
    if hidden:
        raise _Cannot(
            ChoiceProblem(
                f"[gpus] devices asks for GPU {hidden[0].index} ({hidden[0].uuid}), which {VISIBLE} hides",
                expected=f"GPUs among {', '.join(str(device.index) for device in visible)}",
                found=f"GPU {hidden[0].index}",
                remedy=f'unset {VISIBLE}, or use devices = "visible"',
                exit_code=ExitCode.PROFILE,
            )
        )
    return tuple(devices)


def _resolve(token: str, cards: Sequence[Card], where: str, code: ExitCode) -> Device:
    """An index, a UUID, a unique prefix of one, or a MIG device (`MIG-UUID`, or `MIG-GPU-UUID/GI/CI`)."""
    if token.isdigit():
        for card in cards:
            if card.index == int(token):
                return Device(card.uuid, card.index)
        raise _Cannot(_unknown(token, cards, where, code))
    if token.lower().startswith("mig-"):
        found = [
            Device(uuid, card.index, mig=True)
            for card in cards
            for uuid in card.mig
            if uuid.lower().startswith(token.lower())
        ]
    else:
        found = [Device(card.uuid, card.index) for card in cards if _has_prefix(card.uuid, token)]
    if len(found) > 1:
        raise _Cannot(
            ChoiceProblem(
                f"{where}: {token} is the beginning of {len(found)} UUIDs",
                expected="a prefix that one GPU alone has",
                found=", ".join(device.uuid for device in found),
                remedy="add characters until one GPU is left",
                exit_code=code,
            )
        )
    if not found:
        raise _Cannot(_unknown(token, cards, where, code))
    return found[0]


def _has_prefix(uuid: str, token: str) -> bool:
    return bool(uuid and token) and (uuid.lower().startswith(token.lower()) and token.lower().startswith("gpu-"))


def _unknown(token: str, cards: Sequence[Card], where: str, code: ExitCode) -> ChoiceProblem:
    known = [f"{card.index} {card.uuid or '(lost)'}" for card in cards]
    known += [uuid for card in cards for uuid in card.mig]
    return ChoiceProblem(
        f"{where}: there is no GPU {token or '(empty entry)'}; CUDA would stop there and hide every GPU after it",
        expected="; ".join(known) or "no GPU is known",
        found=token or "an empty entry",
        remedy="name the GPUs by index (nvidia-smi's), UUID or unique UUID prefix",
        exit_code=code,
    )


def _refuse_twice(devices: Sequence[Device], where: str, code: ExitCode) -> None:
    twice = [device for position, device in enumerate(devices) if device in devices[:position]]
    if twice:
        raise _Cannot(
            ChoiceProblem(
                f"{where} names GPU {twice[0].index} ({twice[0].uuid}) twice; CUDA then sees no GPU at all",
                expected="each GPU once",
                found=f"GPU {twice[0].index} twice",
                remedy="name each GPU once",
                exit_code=code,
            )
        )


def _sizes(deployment: Deployment) -> _Sizes:
    def size(name: str, default: int) -> int:
        value = deployment.get(name)
        return default if value is None else int(value)

    replicas = 1 if deployment.get("enable_dp_attention") else size("dp_size", 1)
    sizes = _Sizes(
        tp=size("tp_size", 1),
        pp=size("pp_size", 1),
        dp=replicas,
        nodes=size("nnodes", 1),
        node=size("node_rank", 0),
        base=size("base_gpu_id", 0),
        step=size("gpu_id_step", 1),
    )
    smallest = min(sizes.tp, sizes.pp, sizes.dp, sizes.nodes, sizes.step)
    if smallest < 1 or sizes.base < 0 or not 0 <= sizes.node < sizes.nodes:
        raise _Cannot(_impossible(sizes, "sizes are 1 or more, and node_rank is below nnodes"))
    if (sizes.tp * sizes.pp) % sizes.nodes:  # server_args.py: tp_size * pp_size must be divisible by nnodes
        raise _Cannot(_impossible(sizes, f"tp_size * pp_size is a multiple of nnodes = {sizes.nodes}"))
    if sizes.tp % max(sizes.nodes // sizes.pp, 1):
        raise _Cannot(_impossible(sizes, "the ranks of a pipeline stage spread evenly over its nodes"))
    return sizes


def ranks_here(deployment: Deployment) -> int:
    """Scheduler processes on this node; 1 where the sizes are impossible, which `choose_gpus` says."""
    try:
        return len(_positions(_sizes(deployment)))
    except _Cannot:
        return 1


def _positions(sizes: _Sizes) -> list[tuple[int, int, int, int | None]]:
    """Where in CUDA's list each rank of this node sits.

    From entrypoints/engine.py: _launch_scheduler_processes, and managers/data_parallel_controller.py for replicas.
    """
    pp_per_node = max(sizes.pp // sizes.nodes, 1)
    nodes_per_stage = max(sizes.nodes // sizes.pp, 1)
    tp_per_node = sizes.tp // nodes_per_stage
    stages = range(pp_per_node * (sizes.node // nodes_per_stage), pp_per_node * (sizes.node // nodes_per_stage + 1))
    ranks = range(tp_per_node * (sizes.node % nodes_per_stage), tp_per_node * (sizes.node % nodes_per_stage + 1))
    return [
        (
            sizes.base
            + replica * sizes.tp * sizes.pp * sizes.step
            + (stage % pp_per_node) * tp_per_node
            + (rank % tp_per_node) * sizes.step,
            rank,
            stage,
            replica if sizes.dp > 1 else None,
        )
        for replica in range(sizes.dp)
        for stage in stages
        for rank in ranks
    ]


def _check_positions(
    positions: list[tuple[int, int, int, int | None]], visible: tuple[Device, ...], sizes: _Sizes
) -> None:
    places = [place for place, *_ in positions]
    if max(places) >= len(visible):
        raise _Cannot(
            ChoiceProblem(
                f"{_asked(sizes)} needs {len(set(places))} GPUs, the last at place {max(places)} of those visible, "
                f"and {len(visible)} {'is' if len(visible) == 1 else 'are'} visible",
                expected=f"at least {max(places) + 1} visible GPUs",
                found=f"{len(visible)}: " + ", ".join(device.uuid for device in visible),
                remedy="lower --tp-size (or pp, dp, --base-gpu-id), or make more GPUs visible",
            )
        )
    if len(set(places)) < len(places):
        raise _Cannot(_impossible(sizes, "a GPU for each rank (SGLang's own arithmetic puts two on one here)"))
    if any(device.mig for device in visible) and len(places) > 1:
        raise _Cannot(
            ChoiceProblem(
                f"{_asked(sizes)} on MIG devices: CUDA gives a process one MIG device, and NCCL does not join them",
                expected="one rank on a MIG device",
                found=f"{len(places)} ranks",
                remedy="use --tp-size 1, or switch MIG off",
            )
        )


def _impossible(sizes: _Sizes, rule: str) -> ChoiceProblem:
    return ChoiceProblem(
        f"{_asked(sizes)} cannot be placed",
        expected=rule,
        found=_asked(sizes),
        remedy="change --tp-size, --pp-size, --dp-size, --nnodes, --node-rank, --base-gpu-id or --gpu-id-step",
    )


def _asked(sizes: _Sizes) -> str:
    parts = [f"tp_size {sizes.tp}"]
    parts += [f"pp_size {sizes.pp}"] if sizes.pp != 1 else []
    parts += [f"dp_size {sizes.dp}"] if sizes.dp != 1 else []
    parts += [f"node {sizes.node} of {sizes.nodes}"] if sizes.nodes != 1 else []
    parts += [f"base_gpu_id {sizes.base}"] if sizes.base else []
    parts += [f"gpu_id_step {sizes.step}"] if sizes.step != 1 else []
    return ", ".join(parts)
