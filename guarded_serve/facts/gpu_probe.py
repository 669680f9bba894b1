"""Asks NVML for everything once and prints one JSON line. Run as a child: a wedged driver hangs the child alone.

``python -m guarded_serve.facts.gpu_probe``: before each call a line ``> DEVICE CALL`` says what is being asked (the
last one names the call that never came back), the last line is the answer. It imports pynvml and the standard library
alone, and touches no GPU memory: NVML makes no CUDA context.

Each field is ``{"value": ...}``, ``{"not_supported": TEXT, "code": N}`` or ``{"failed": TEXT, "code": N}``.
"""

from __future__ import annotations

import ctypes
import itertools
import json
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

Field = dict[str, Any]

ASKING = "> "
FIELD_RECOVERY_ACTION = 230  # nvml.h: NVML_FI_DEV_GET_GPU_RECOVERY_ACTION
_NOT_SUPPORTED = 3
_FUNCTION_NOT_FOUND = 13
_VERSION_MISMATCH = 25
_DEPRECATED = 26
_ABSENT = (_NOT_SUPPORTED, _FUNCTION_NOT_FOUND, _VERSION_MISMATCH, _DEPRECATED)


class Nvml:
    """NVML's calls, each announced before it is made and turned into a field."""

    def __init__(self, module: Any) -> None:
        self.module = module
        self.device = "-"

    def ask(self, name: str, *arguments: Any, read: Callable[[Any], Any] = lambda value: value) -> Field:
        """One call; a call that this pynvml or this driver does not know is not supported."""
        sys.stdout.write(f"{ASKING}{self.device} {name}\n")
        sys.stdout.flush()
        try:
            return {"value": read(getattr(self.module, name)(*arguments))}
        except AttributeError:
            return {"not_supported": f"this pynvml has no {name}", "code": _FUNCTION_NOT_FOUND}
        except self.module.NVMLError as error:
            code = getattr(error, "value", None)
            return {"not_supported" if code in _ABSENT else "failed": self._text(error), "code": code}
        except Exception as error:
            return {"failed": f"{type(error).__name__}: {error}", "code": None}

    def first(self, *calls: tuple[Any, ...], read: Callable[[Any], Any] = lambda value: value) -> Field:
        """The first call that the driver knows; the others are for older drivers."""
        field: Field = {}
        for call in calls:
            field = self.ask(*call, read=read)
            if field.get("code") not in (_FUNCTION_NOT_FOUND, _VERSION_MISMATCH, _DEPRECATED):
                break
        return field

    @staticmethod
    def _text(error: Exception) -> str:
        try:
            return str(error)
        except Exception:  # a library without nvmlErrorString
            return f"NVML error {getattr(error, 'value', '?')}"


def _memory(nvml: Nvml, handle: Any) -> Field:
    """Version 2 tells what the driver keeps for itself from what is used; version 1 adds the two."""
    version = getattr(nvml.module, "nvmlMemory_v2", 0x02000028)

    def read(memory: Any) -> Any:
        reserved = getattr(memory, "reserved", None)
        return {"total": memory.total, "used": memory.used, "free": memory.free, "reserved": reserved}

    return nvml.first(("nvmlDeviceGetMemoryInfo", handle, version), ("nvmlDeviceGetMemoryInfo", handle), read=read)


def _processes(nvml: Nvml, handle: Any, kind: str) -> Field:
    call = f"nvmlDeviceGet{kind}RunningProcesses"
    return nvml.first(
        (f"{call}_v3", handle),
        (f"{call}_v2", handle),
        read=lambda found: [{"pid": process.pid, "used": process.usedGpuMemory} for process in found],
    )


def _ecc(nvml: Nvml, handle: Any, counter: str) -> Field:
    uncorrected = getattr(nvml.module, "NVML_MEMORY_ERROR_TYPE_UNCORRECTED", 1)
    return nvml.ask("nvmlDeviceGetTotalEccErrors", handle, uncorrected, getattr(nvml.module, counter))


def _recovery(nvml: Nvml, handle: Any) -> Field:
    field = nvml.ask(
        "nvmlDeviceGetFieldValues", handle, [FIELD_RECOVERY_ACTION], read=lambda values: _field_value(values[0])
    )
    if "value" not in field:
        return field
    code, value = field["value"]
    if code == 0:
        return {"value": value}
    return {"not_supported" if code in _ABSENT else "failed": nvml._text(nvml.module.NVMLError(code)), "code": code}


def _field_value(value: Any) -> tuple[int, int]:
    return int(value.nvmlReturn), int(value.value.uiVal)


def _fabric(nvml: Nvml, handle: Any) -> Field:
    structure = getattr(nvml.module, "c_nvmlGpuFabricInfo_t", None)
    if structure is None:
        return {"not_supported": "this pynvml has no c_nvmlGpuFabricInfo_t", "code": _FUNCTION_NOT_FOUND}
    info = structure()
    return nvml.ask(
        "nvmlDeviceGetGpuFabricInfo",
        handle,
        ctypes.byref(info),
        read=lambda _: {"state": info.state, "status": info.status},
    )


def _mig_devices(nvml: Nvml, handle: Any) -> list[Field]:
    devices = []
    count = nvml.ask("nvmlDeviceGetMaxMigDeviceCount", handle).get("value", 0)
    for index in range(count):
        found = nvml.ask("nvmlDeviceGetMigDeviceHandleByIndex", handle, index)
        if "value" not in found:
            continue  # NVML numbers the slots, and most are empty
        mig = found["value"]
        devices.append(
            {
                "uuid": nvml.ask("nvmlDeviceGetUUID", mig),
                "gpu_instance": nvml.ask("nvmlDeviceGetGpuInstanceId", mig),
                "compute_instance": nvml.ask("nvmlDeviceGetComputeInstanceId", mig),
                "memory": _memory(nvml, mig),
                "compute": _processes(nvml, mig, "Compute"),
            }
        )
    return devices


def _device(nvml: Nvml, handle: Any) -> dict[str, Any]:
    ask = nvml.ask
    mig = ask("nvmlDeviceGetMigMode", handle)
    return {
        "uuid": ask("nvmlDeviceGetUUID", handle),
        "name": ask("nvmlDeviceGetName", handle),
        "pci": ask("nvmlDeviceGetPciInfo", handle, read=lambda info: _string(info.busId)),
        "minor": ask("nvmlDeviceGetMinorNumber", handle),
        "capability": ask("nvmlDeviceGetCudaComputeCapability", handle),
        "memory": _memory(nvml, handle),
        "compute": _processes(nvml, handle, "Compute"),
        "graphics": _processes(nvml, handle, "Graphics"),
        "mps": _processes(nvml, handle, "MPSCompute"),
        "compute_mode": ask("nvmlDeviceGetComputeMode", handle),
        "mig_mode": mig,
        "mig_devices": _mig_devices(nvml, handle) if mig.get("value", [0])[0] else [],
        "ecc_mode": ask("nvmlDeviceGetEccMode", handle),
        "ecc_volatile": _ecc(nvml, handle, "NVML_VOLATILE_ECC"),
        "ecc_aggregate": _ecc(nvml, handle, "NVML_AGGREGATE_ECC"),
        "remapped_rows": ask("nvmlDeviceGetRemappedRows", handle),
        "recovery_action": _recovery(nvml, handle),
        "clocks_reasons": nvml.first(
            ("nvmlDeviceGetCurrentClocksEventReasons", handle), ("nvmlDeviceGetCurrentClocksThrottleReasons", handle)
        ),
        "temperature": ask("nvmlDeviceGetTemperature", handle, getattr(nvml.module, "NVML_TEMPERATURE_GPU", 0)),
        "pcie_width": ask("nvmlDeviceGetCurrPcieLinkWidth", handle),
        "pcie_width_max": ask("nvmlDeviceGetMaxPcieLinkWidth", handle),
        "pcie_generation": ask("nvmlDeviceGetCurrPcieLinkGeneration", handle),
        "pcie_generation_max": ask("nvmlDeviceGetMaxPcieLinkGeneration", handle),
        "persistence": ask("nvmlDeviceGetPersistenceMode", handle),
        "fabric": _fabric(nvml, handle),
    }


def _peers(nvml: Nvml, handles: dict[int, Any]) -> list[dict[str, Any]]:
    nvml.device = "-"
    return [
        {
            "pair": [first, second],
            "read": nvml.ask("nvmlDeviceGetP2PStatus", handles[first], handles[second], 0),
            "nvlink": nvml.ask("nvmlDeviceGetP2PStatus", handles[first], handles[second], 2),
            "ancestor": nvml.ask("nvmlDeviceGetTopologyCommonAncestor", handles[first], handles[second]),
        }
        for first, second in itertools.combinations(sorted(handles), 2)
    ]


def _string(value: Any) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


def probe(module: Any) -> dict[str, Any]:
    """Everything that NVML says, as plain values."""
    nvml = Nvml(module)
    started = time.perf_counter()
    initialised = nvml.ask("nvmlInit")
    if "value" not in initialised:
        return {"init": initialised}
    count = nvml.ask("nvmlDeviceGetCount")
    devices, handles = [], {}
    for index in range(count.get("value") or 0):
        nvml.device = str(index)
        handle = nvml.ask("nvmlDeviceGetHandleByIndex", index)
        if "value" not in handle:
            devices.append({"index": index, "lost": handle})
            continue
        handles[index] = handle["value"]
        devices.append({"index": index, **_device(nvml, handle["value"])})
    nvml.device = "-"
    return {
        "init": {"value": None},
        "count": count,
        "driver": nvml.ask("nvmlSystemGetDriverVersion"),
        "cuda": nvml.first(("nvmlSystemGetCudaDriverVersion_v2",), ("nvmlSystemGetCudaDriverVersion",)),
        "devices": devices,
        "peers": _peers(nvml, handles),
        "seconds": time.perf_counter() - started,
    }


def main(_: Sequence[str] = ()) -> int:
    """Print the answer as the last line."""
    try:
        import pynvml  # noqa: PLC0415 - where it is missing, that is the answer
    except ImportError as error:
        answer: dict[str, Any] = {"init": {"failed": f"pynvml is not installed: {error}", "code": None}}
    else:
        answer = probe(pynvml)
    print(json.dumps(answer), flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
