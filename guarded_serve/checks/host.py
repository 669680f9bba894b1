"""Judges of the host: can the server bind its ports, hold its shared memory, open its files.

A port or a shared-memory segment in use may be free in a moment: exit 75. What waiting cannot mend has its own code.
"""

from __future__ import annotations

from collections.abc import Iterator

from guarded_serve.checks.interface import Check, Skip, check
from guarded_serve.exit_codes import ExitCode
from guarded_serve.facts.bag import Facts
from guarded_serve.facts.gpu_choice import ranks_here
from guarded_serve.facts.host import GIB, MIB, HostFacts
from guarded_serve.facts.ports import Port, PortState
from guarded_serve.findings import Finding

SHM_PER_RANK_MIB = 32
"""What one rank takes of /dev/shm at least: NCCL's buffers, SGLang's load snapshots, semaphores."""
SMALL_SHM_MIB = 1024
"""Docker's default is 64; eight ranks of NCCL over shared memory take several hundred."""
WANTED_FILES = 65535
FEW_FILES = 4096
"""Below this a busy server runs out: a connection is a file, and each rank has some 300 of its own."""
PROCESS_GIB = 2.0
"""Memory of one process that has imported torch and SGLang and opened a CUDA context."""
EARLIEST_UNIX_S = 1735689600  # 2025-01-01


def _host(facts: Facts) -> HostFacts:
    if facts.host is None:
        raise Skip("the host was not looked at")
    return facts.host


@check(
    "host.port", source="uvicorn binds host:port last, minutes after the weights are loaded", exit_code=ExitCode.BUSY
)
def port(self: Check, facts: Facts) -> Iterator[Finding]:
    """The serving port is free on the host asked for."""
    for found in _host(facts).ports:
        if found.wanted.serving:
            yield from _port_findings(self, found)


@check(
    "host.derived_ports",
    source="server_args.py: PortArgs.init_new; distributed/bootstrap.py: _resolve_dist_init_method",
    exit_code=ExitCode.BUSY,
)
def derived_ports(self: Check, facts: Facts) -> Iterator[Finding]:
    """The rendezvous, data-parallel, bootstrap and metrics ports are free, and no two are the same."""
    ports = _host(facts).ports
    if all(found.wanted.serving for found in ports):
        raise Skip("this deployment binds no port but the serving one (SGLang picks free ones for the rest)")
    taken: dict[int, str] = {}
    for found in ports:
        earlier = taken.setdefault(found.wanted.port, found.wanted.purpose)
        if earlier != found.wanted.purpose:
            yield self.error(
                f"{found.wanted.purpose} and {earlier} are both port {found.wanted.port}",
                where=found.wanted.setting,
                remedy=f"give {found.wanted.setting} a port of its own",
                exit_code=ExitCode.USAGE,
            )
        elif not found.wanted.serving:
            yield from _port_findings(self, found)


def _port_findings(self: Check, found: Port) -> Iterator[Finding]:
    wanted, where = found.wanted, f"{found.wanted.host}:{found.wanted.port}"
    if found.state is PortState.IN_USE:
        held = " and ".join(holder.describe() for holder in found.holders)
        if not held:
            held = "a process that this user may not see" if found.holder_unseen else "nobody that can be seen"
        yield self.error(
            f"{wanted.purpose} {wanted.port} is in use on {wanted.host}: held by {held}",
            expected="free",
            found=f"{found.error}",
            where=where,
            remedy=f"stop it, wait for it to end ([gpus] wait_s), or choose another {wanted.setting}",
        )
    elif found.state is PortState.NOT_ALLOWED:
        yield self.error(
            f"this user may not bind {wanted.purpose} {wanted.port} on {wanted.host}: {found.error}",
            where=where,
            remedy=f"choose {wanted.setting} from 1024 up, or grant CAP_NET_BIND_SERVICE",
            exit_code=ExitCode.PERMISSION,
        )
    elif found.state is not PortState.FREE:
        yield self.error(
            f"{wanted.purpose} cannot be bound on {where}: {found.error}",
            expected="an address of this machine",
            found=wanted.host,
            where=where,
            remedy="give --host an address of this machine (0.0.0.0 for all), and a port from 1 to 65535",
            exit_code=ExitCode.USAGE,
        )


@check("host.shared_memory", source="sglang 40723; NCCL in a container with 64 MiB", exit_code=ExitCode.BUSY)
def shared_memory(self: Check, facts: Facts) -> Iterator[Finding]:
    """/dev/shm has room for the ranks, and what dead processes left there is named."""
    found = _host(facts).shared_memory
    if found.total is None or found.free is None:
        yield self.error(
            "/dev/shm is not there or cannot be read: SGLang and NCCL keep their shared memory in it",
            expected="a tmpfs at /dev/shm",
            found="nothing",
            where="/dev/shm",
            remedy="mount one; in a container, use --ipc=host or --shm-size",
            exit_code=ExitCode.UNFIT,
        )
        return
    ranks = ranks_here(facts.deployment)
    needed = SHM_PER_RANK_MIB * MIB * max(1, ranks)
    left = found.leftovers
    size = sum(segment.size for segment in left)
    what = f"{len(left)} segments of {_mib(size)} were left there by dead processes" if left else ""
    remove = (
        "remove them: `rm -- "
        + " ".join(f"/dev/shm/{segment.name}" for segment in left[:5])
        + (f"` and {len(left) - 5} more" if len(left) > 5 else "`")
    )
    if found.free < needed:
        yield self.error(
            f"/dev/shm has {_mib(found.free)} free of {_mib(found.total)}; {ranks} rank(s) need about {_mib(needed)}"
            + (f"; {what}" if left else ""),
            expected=f"at least {_mib(needed)} free",
            found=_mib(found.free),
            where="/dev/shm",
            remedy=remove if left else "enlarge it; in a container, use --ipc=host or --shm-size",
            exit_code=ExitCode.BUSY if found.total >= needed else ExitCode.UNFIT,
        )
    elif ranks > 1 and found.total < SMALL_SHM_MIB * MIB:
        yield self.warning(
            f"/dev/shm is {_mib(found.total)} in all: NCCL between {ranks} ranks may fill it",
            expected=f"at least {SMALL_SHM_MIB} MiB",
            found=_mib(found.total),
            where="/dev/shm",
            remedy="in a container, use --ipc=host or --shm-size=16g",
        )
    elif left:
        yield self.info(f"{what}; {_mib(found.free)} are free", where="/dev/shm", remedy=remove)


@check("host.open_files", source="utils/common.py: set_ulimit raises the soft limit to 65535", exit_code=ExitCode.UNFIT)
def open_files(self: Check, facts: Facts) -> Iterator[Finding]:
    """The hard limit of open files lets SGLang raise its own to 65535."""
    hard = _host(facts).files.hard
    if hard is None or hard >= WANTED_FILES:
        return
    say = self.warning if hard < FEW_FILES else self.info
    yield say(
        f"at most {hard} open files are allowed; SGLang asks for {WANTED_FILES} and goes on without: with many "
        "connections it then fails",
        expected=f"at least {WANTED_FILES}",
        found=str(hard),
        remedy="LimitNOFILE=65535 in the unit, or --ulimit nofile=65535 for a container",
    )


@check("host.locked_memory", source="InfiniBand and RDMA register locked memory", exit_code=ExitCode.UNFIT)
def locked_memory(self: Check, facts: Facts) -> Iterator[Finding]:
    """Over several nodes, or with prefill and decode apart, locked memory is not limited."""
    deployment = facts.deployment
    apart = (deployment.get("disaggregation_mode") or "null") != "null"
    if int(deployment.get("nnodes") or 1) < 2 and not apart:
        raise Skip("one node")
    hard = _host(facts).locked_memory.hard
    if hard is not None:
        yield self.warning(
            f"locked memory is limited to {hard // 1024} KiB: InfiniBand cannot register its buffers",
            expected="unlimited",
            found=f"{hard // 1024} KiB",
            remedy="LimitMEMLOCK=infinity in the unit, or --ulimit memlock=-1 for a container",
        )


@check("host.memory", source="--hicache-size, --cpu-offload-gb; cgroup memory.max", exit_code=ExitCode.UNFIT)
def memory(self: Check, facts: Facts) -> Iterator[Finding]:
    """The host, and the control group, have the memory that is configured."""
    found = _host(facts).memory
    if found.total is None or found.room is None:
        raise Skip("/proc/meminfo cannot be read")
    ranks = ranks_here(facts.deployment)
    terms = [(f"some {PROCESS_GIB:g} for each of {ranks} scheduler(s) and 2 others", PROCESS_GIB * (ranks + 2))]
    asked = 0
    for name, what in (("hicache_size", "hierarchical cache"), ("cpu_offload_gb", "offloaded weights")):
        each = float(facts.deployment.get(name) or 0)
        if each:
            terms.append((f"{what} {each:g} GiB x {ranks}", each * ranks))
            asked += int(each * ranks * GIB)
    needed = int(sum(size for _, size in terms) * GIB)
    total = min(found.total, found.limit) if found.limit is not None else found.total
    limited = "" if found.limit is None or found.limit >= found.total else f" (the limit of {found.limit_path})"
    text = " + ".join(f"{what} ({size:g} GiB)" for what, size in terms)
    if needed > total:
        say = self.error if asked > total else self.warning  # an estimate refuses nobody
        yield say(
            f"what is configured needs about {_gib(needed)} of memory; there are {_gib(total)}{limited}: {text}",
            expected=f"at least {_gib(needed)}",
            found=_gib(total),
            where=found.limit_path if limited else None,
            remedy="lower --hicache-size or --cpu-offload-gb, or raise the control group's limit",
        )
    elif needed > found.room:
        yield self.warning(
            f"what is configured needs about {_gib(needed)} of memory; {_gib(found.room)} are free{limited}: {text}",
            expected=f"at least {_gib(needed)} free",
            found=_gib(found.room),
            where=found.limit_path if limited else None,
            remedy="stop what else uses memory, or lower what is configured",
        )


@check("host.disk", source="[timing] directory; JIT caches", exit_code=ExitCode.UNFIT)
def disk(self: Check, facts: Facts) -> Iterator[Finding]:
    """The folders that are written to can be written, and have room."""
    for one in _host(facts).disks:
        if not one.writable and not one.asked:
            # Triton, FlashInfer, TVM and the rest have variables of their own, so this need not stop a start.
            yield self.warning(
                f"{one.purpose}: {one.nearest} cannot be written by this user"
                if one.path
                else f"{one.purpose}: this user has no folder for them",
                expected="writable",
                found="not writable" if one.path else "none",
                where=one.path or None,
                remedy="set HOME, XDG_CACHE_HOME or TMPDIR in [env] to a folder that can be written",
            )
        elif not one.writable:
            yield self.error(
                f"{one.purpose}: this user can make nothing in {one.nearest}" + (f": {one.why}" if one.why else ""),
                expected="a folder that is there or can be made, and can be written",
                found=one.why or "not writable",
                where=one.path,
                remedy="give this user the folder, or choose another",
                exit_code=ExitCode.PERMISSION,
            )
        elif one.free < one.wanted:
            yield self.warning(
                f"{one.purpose}: {_mib(one.free)} are free at {one.path}, up to {_mib(one.wanted)} may be written",
                expected=_mib(one.wanted),
                found=_mib(one.free),
                where=one.path,
                remedy="free some, choose another folder, or lower [timing] keep or rotate_mib",
            )


@check("host.device_nodes", source="/dev/nvidia*", exit_code=ExitCode.PERMISSION)
def device_nodes(self: Check, facts: Facts) -> Iterator[Finding]:
    """This user may read and write the driver's device files."""
    nodes = _host(facts).nodes
    if not nodes:
        raise Skip("there are no device files of the NVIDIA driver (gpu.driver says what that means)")
    closed = [node.path for node in nodes if not node.allowed]
    if closed:
        yield self.error(
            f"this user may not open {', '.join(closed)}",
            expected="read and write",
            found="denied",
            where=closed[0],
            remedy="add the user to the group that owns them (often `video` or `render`), or mend the udev rule",
        )


@check("host.peer_access", source="NCCL: PCIe peer access under an IOMMU", exit_code=ExitCode.UNFIT)
def peer_access(self: Check, facts: Facts) -> Iterator[Finding]:
    """With several GPUs, an IOMMU that translates is named: it can slow PCIe peer access down or hang it."""
    iommu = _host(facts).iommu
    if ranks_here(facts.deployment) < 2:
        raise Skip("one rank")
    if iommu.groups and not iommu.passthrough:
        yield self.info(
            f"an IOMMU is on ({iommu.groups} groups) and not in pass-through mode: between cards without NVLink, peer "
            "access may be slow, or hang in NCCL",
            remedy="boot with iommu=pt, and switch ACS off on the bridges between the cards",
        )


@check("host.clock", source="cycle records and certificates carry the time", exit_code=ExitCode.UNFIT)
def clock(self: Check, facts: Facts) -> Iterator[Finding]:
    """The clock is right, as far as the machine itself can tell."""
    found = _host(facts).clock
    if found.now < EARLIEST_UNIX_S:
        yield self.warning(
            "the clock stands before 2025: the records' times will be wrong, and downloads over TLS fail",
            expected="now",
            found=f"Unix time {found.now:.0f}",
            remedy="set the clock; start chrony or systemd-timesyncd",
        )
    elif found.synchronised is False:
        yield self.info("the clock is not kept in step with others (adjtimex says unsynchronised)")


@check("host.py_spy", source="SGLang dumps a crash or a hang with py-spy", exit_code=ExitCode.UNFIT)
def py_spy(self: Check, facts: Facts) -> Iterator[Finding]:
    """py-spy is there and may trace, for the dump of a hang or crash."""
    found = _host(facts)
    if found.py_spy is None:
        yield self.info("py-spy is not installed: a hang will leave no dump", remedy="pip install py-spy")
    elif found.ptrace_scope and not found.root:
        yield self.info(
            f"py-spy may not trace other processes here (ptrace_scope {found.ptrace_scope}): a hang will leave no dump",
            remedy="sysctl kernel.yama.ptrace_scope=0, or grant CAP_SYS_PTRACE",
        )


def _mib(size: int) -> str:
    return f"{size // MIB} MiB"


def _gib(size: int) -> str:
    return f"{size / GIB:.1f} GiB"


CHECKS = (
    port,
    derived_ports,
    shared_memory,
    open_files,
    locked_memory,
    memory,
    disk,
    device_nodes,
    peer_access,
    clock,
    py_spy,
)
