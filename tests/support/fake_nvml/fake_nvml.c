/* A libnvidia-ml.so.1 whose answers come from a script, so that the real pynvml and the real probe run in tests.
 *
 * FAKE_NVML names an INI file. `[system]` and `[gpu N]` sections hold values; `[gpu *]` holds what every GPU shares.
 * A key that is a function's name scripts that call: `error N` returns N, `hang` never returns, `die` aborts;
 * `mig.` and the name, the call for the MIG devices of a card.
 * Functions that WITHOUT names at compile time (-DOLD_DRIVER) do not exist, as in a driver from before R510.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SUCCESS 0
#define INVALID_ARGUMENT 2
#define NOT_SUPPORTED 3
#define NOT_FOUND 6
#define INSUFFICIENT_SIZE 7
#define LIBRARY_NOT_FOUND 12
#define MAX_ENTRIES 2048
#define MAX_GPUS 16
#define MAX_MIG 7
#define MIB (1024ull * 1024ull)

typedef struct { char section[32], key[64], value[512]; } Entry;
typedef struct { int gpu, mig; } Handle;
typedef unsigned long long u64;

static Entry entries[MAX_ENTRIES];
static int entry_count;
static Handle handles[MAX_GPUS * (MAX_MIG + 1)];

static char *trimmed(char *text) {
    while (*text == ' ' || *text == '\t') text++;
    char *end = text + strlen(text);
    while (end > text && strchr(" \t\r\n", end[-1])) *--end = 0;
    return text;
}

static int load(void) {
    const char *path = getenv("FAKE_NVML");
    FILE *file = path ? fopen(path, "r") : NULL;
    char line[1024], section[32] = "";
    entry_count = 0;
    if (!file) return LIBRARY_NOT_FOUND;
    while (fgets(line, sizeof line, file)) {
        char *text = trimmed(line), *equals = strchr(text, '=');
        if (*text == '[') {
            text[strcspn(text, "]")] = 0;
            snprintf(section, sizeof section, "%s", text + 1);
        } else if (equals && *text != '#' && entry_count < MAX_ENTRIES) {
            Entry *entry = &entries[entry_count++];
            *equals = 0;
            snprintf(entry->section, sizeof entry->section, "%s", section);
            snprintf(entry->key, sizeof entry->key, "%s", trimmed(text));
            snprintf(entry->value, sizeof entry->value, "%s", trimmed(equals + 1));
        }
    }
    fclose(file);
    for (int i = 0; i < MAX_GPUS * (MAX_MIG + 1); i++) handles[i] = (Handle){i / (MAX_MIG + 1), i % (MAX_MIG + 1) - 1};
    return SUCCESS;
}

static const char *in_section(const char *section, const char *key) {
    for (int i = entry_count - 1; i >= 0; i--)
        if (!strcmp(entries[i].section, section) && !strcmp(entries[i].key, key)) return entries[i].value;
    return NULL;
}

static const char *of_gpu(int gpu, const char *key) {
    char section[32];
    snprintf(section, sizeof section, "gpu %d", gpu);
    const char *value = in_section(section, key);
    return value ? value : in_section("gpu *", key);
}

/* The script for a call: SUCCESS to go on, or what to return. */
static int scripted(const char *value) {
    if (!value) return SUCCESS;
    if (!strcmp(value, "hang")) for (;;) sleep(3600);
    if (!strcmp(value, "die")) abort();
    if (!strncmp(value, "error ", 6)) return atoi(value + 6);
    return SUCCESS;
}

#define SYSTEM_CALL() do { int code_ = scripted(in_section("system", __func__)); if (code_) return code_; } while (0)
#define GPU(handle) (((Handle *)(handle))->gpu)
#define IS_MIG(handle) (((Handle *)(handle))->mig >= 0)
#define GPU_CALL(handle) /* a script for a card is not one for its MIG devices */                                \
    do {                                                                                                         \
        char key_[128];                                                                                          \
        snprintf(key_, sizeof key_, "%s%s", IS_MIG(handle) ? "mig." : "", __func__);                             \
        int code_ = scripted(of_gpu(GPU(handle), key_));                                                         \
        if (code_) return code_;                                                                                 \
    } while (0)

static int number(void *handle, const char *key, unsigned *out) {
    const char *value = of_gpu(GPU(handle), key);
    if (!value) return NOT_SUPPORTED;
    *out = (unsigned)strtoul(value, NULL, 0);
    return SUCCESS;
}

static int pair(void *handle, const char *key, unsigned *first, unsigned *second) {
    const char *value = of_gpu(GPU(handle), key);
    return value && sscanf(value, "%u %u", first, second) == 2 ? SUCCESS : NOT_SUPPORTED;
}

int nvmlInitWithFlags(unsigned flags) {
    (void)flags;
    int code = load();
    if (code) return code;
    SYSTEM_CALL();
    return SUCCESS;
}
int nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
int nvmlShutdown(void) { return SUCCESS; }

const char *nvmlErrorString(int code) {
    switch (code) {
    case 3: return "Not Supported";
    case 4: return "Insufficient Permissions";
    case 9: return "Driver Not Loaded";
    case 13: return "Function Not Found";
    case 15: return "GPU is lost";
    case 16: return "GPU requires reset";
    case 18: return "Driver/library version mismatch";
    case 25: return "Argument version mismatch";
    default: return "Unknown Error";
    }
}

int nvmlSystemGetDriverVersion(char *out, unsigned size) {
    SYSTEM_CALL();
    const char *value = in_section("system", "driver");
    snprintf(out, size, "%s", value ? value : "580.95.05");
    return SUCCESS;
}
int nvmlSystemGetCudaDriverVersion_v2(int *out) {
    SYSTEM_CALL();
    const char *value = in_section("system", "cuda");
    *out = value ? atoi(value) : 13000;
    return SUCCESS;
}
int nvmlSystemGetCudaDriverVersion(int *out) { return nvmlSystemGetCudaDriverVersion_v2(out); }

int nvmlDeviceGetCount_v2(unsigned *out) {
    SYSTEM_CALL();
    const char *value = in_section("system", "count");
    *out = value ? (unsigned)atoi(value) : 1;
    return SUCCESS;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **out) {
    if (index >= MAX_GPUS) return INVALID_ARGUMENT;
    *out = &handles[index * (MAX_MIG + 1)];
    GPU_CALL(*out);
    return SUCCESS;
}

/* mig.N = UUID TOTAL_MIB USED_MIB [PID:MIB ...] */
static const char *mig_entry(void *handle) {
    char key[16];
    snprintf(key, sizeof key, "mig.%d", ((Handle *)handle)->mig);
    return of_gpu(GPU(handle), key);
}

int nvmlDeviceGetUUID(void *handle, char *out, unsigned size) {
    if (IS_MIG(handle)) {
        char uuid[128] = "";
        sscanf(mig_entry(handle), "%127s", uuid);
        snprintf(out, size, "%s", uuid);
        return SUCCESS;
    }
    GPU_CALL(handle);
    const char *value = of_gpu(GPU(handle), "uuid");
    if (value && !strchr(value, '%')) snprintf(out, size, "%s", value);
    else snprintf(out, size, "GPU-%08x-0000-4000-8000-%012x", 0xa0000000u + (unsigned)GPU(handle) * 0x01000000u, (unsigned)GPU(handle));
    return SUCCESS;
}

int nvmlDeviceGetName(void *handle, char *out, unsigned size) {
    GPU_CALL(handle);
    const char *value = of_gpu(GPU(handle), "name");
    snprintf(out, size, "%s", value ? value : "NVIDIA H200");
    return SUCCESS;
}

typedef struct {
    char legacy[16];
    unsigned domain, bus, device, id, subsystem;
    char bus_id[32];
} Pci;

int nvmlDeviceGetPciInfo_v3(void *handle, Pci *out) {
    GPU_CALL(handle);
    memset(out, 0, sizeof *out);
    out->bus = 0x1a + (unsigned)GPU(handle);
    snprintf(out->bus_id, sizeof out->bus_id, "00000000:%02X:00.0", out->bus);
    return SUCCESS;
}

int nvmlDeviceGetMinorNumber(void *handle, unsigned *out) {
    GPU_CALL(handle);
    if (number(handle, "minor", out)) *out = (unsigned)GPU(handle);
    return SUCCESS;
}

int nvmlDeviceGetCudaComputeCapability(void *handle, int *major, int *minor) {
    GPU_CALL(handle);
    *major = 9;
    *minor = 0;
    return SUCCESS;
}

static u64 megabytes(void *handle, const char *key, u64 otherwise) {
    const char *value = of_gpu(GPU(handle), key);
    return (value ? strtoull(value, NULL, 0) : otherwise) * MIB;
}

typedef struct { u64 total, free, used; } MemoryV1;
typedef struct { unsigned version; u64 total, reserved, free, used; } MemoryV2;

static void memory_of(void *handle, MemoryV2 *out) {
    if (IS_MIG(handle)) {
        u64 total = 0, used = 0;
        sscanf(mig_entry(handle), "%*s %llu %llu", &total, &used);
        out->total = total * MIB, out->reserved = 0, out->used = used * MIB;
    } else {
        out->total = megabytes(handle, "total", 143771);
        out->reserved = megabytes(handle, "reserved", 645);
        out->used = megabytes(handle, "used", 0);
    }
    out->free = out->total - out->reserved - out->used;
}

#ifndef OLD_DRIVER
int nvmlDeviceGetMemoryInfo_v2(void *handle, MemoryV2 *out) {
    GPU_CALL(handle);
    if (out->version != (sizeof *out | 2u << 24)) return 25;
    memory_of(handle, out);
    return SUCCESS;
}
#endif

int nvmlDeviceGetMemoryInfo(void *handle, MemoryV1 *out) {
    GPU_CALL(handle);
    MemoryV2 memory;
    memory_of(handle, &memory);
    out->total = memory.total, out->free = memory.free, out->used = memory.used + memory.reserved;
    return SUCCESS;
}

typedef struct { unsigned pid; u64 used; unsigned gi, ci; } Process;

/* "PID:MIB PID:MIB ..."; MIB of "-" is not available. */
static int processes(const char *value, unsigned *count, Process *out) {
    unsigned found = 0, room = *count;
    const char *at = value ? value : "";
    while (*at) {
        unsigned pid;
        int length = 0;
        char amount[32];
        if (sscanf(at, " %u:%31s%n", &pid, amount, &length) != 2) break;
        if (out && found < room)
            out[found] = (Process){pid, amount[0] == '-' ? ~0ull : strtoull(amount, NULL, 0) * MIB, 0, 0};
        found++, at += length;
    }
    *count = found;
    return found > room ? INSUFFICIENT_SIZE : SUCCESS;
}

#ifndef OLD_DRIVER
static const char *mig_processes(void *handle) {
    const char *value = mig_entry(handle);
    for (int field = 0; field < 3 && value; field++) {
        value = strchr(value, ' ');
        if (value) value++;
    }
    return value;
}
#define LIST(function, key)                                                                                      \
    int function##_v3(void *handle, unsigned *count, Process *out) {                                             \
        GPU_CALL(handle);                                                                                        \
        if (IS_MIG(handle)) return processes(mig_processes(handle), count, out);                                 \
        return processes(of_gpu(GPU(handle), key), count, out);                                                  \
    }
#else
#define LIST(function, key)                                                                                      \
    int function##_v2(void *handle, unsigned *count, Process *out) {                                             \
        GPU_CALL(handle);                                                                                        \
        return processes(of_gpu(GPU(handle), key), count, out);                                                  \
    }
#endif
LIST(nvmlDeviceGetComputeRunningProcesses, "compute")
LIST(nvmlDeviceGetGraphicsRunningProcesses, "graphics")
LIST(nvmlDeviceGetMPSComputeRunningProcesses, "mps")

#define NUMBER(function, key)                                                                                    \
    int function(void *handle, unsigned *out) {                                                                  \
        GPU_CALL(handle);                                                                                        \
        return number(handle, key, out);                                                                         \
    }
NUMBER(nvmlDeviceGetComputeMode, "compute_mode")
NUMBER(nvmlDeviceGetCurrPcieLinkWidth, "pcie_width")
NUMBER(nvmlDeviceGetMaxPcieLinkWidth, "pcie_width_max")
NUMBER(nvmlDeviceGetCurrPcieLinkGeneration, "pcie_generation")
NUMBER(nvmlDeviceGetMaxPcieLinkGeneration, "pcie_generation_max")
NUMBER(nvmlDeviceGetPersistenceMode, "persistence")

int nvmlDeviceGetTemperature(void *handle, int sensor, unsigned *out) {
    (void)sensor;
    GPU_CALL(handle);
    return number(handle, "temperature", out);
}

int nvmlDeviceGetMigMode(void *handle, unsigned *now, unsigned *pending) {
    GPU_CALL(handle);
    return pair(handle, "mig", now, pending);
}
int nvmlDeviceGetEccMode(void *handle, unsigned *now, unsigned *pending) {
    GPU_CALL(handle);
    return pair(handle, "ecc", now, pending);
}
int nvmlDeviceGetMaxMigDeviceCount(void *handle, unsigned *out) {
    GPU_CALL(handle);
    *out = MAX_MIG;
    return SUCCESS;
}
int nvmlDeviceGetMigDeviceHandleByIndex(void *handle, unsigned index, void **out) {
    GPU_CALL(handle);
    if (index >= MAX_MIG) return INVALID_ARGUMENT;
    *out = &handles[GPU(handle) * (MAX_MIG + 1) + 1 + (int)index];
    return mig_entry(*out) ? SUCCESS : NOT_FOUND;
}
int nvmlDeviceGetGpuInstanceId(void *handle, unsigned *out) {
    *out = (unsigned)((Handle *)handle)->mig + 1;
    return SUCCESS;
}
int nvmlDeviceGetComputeInstanceId(void *handle, unsigned *out) {
    (void)handle;
    *out = 0;
    return SUCCESS;
}

int nvmlDeviceGetTotalEccErrors(void *handle, int type, int counter, u64 *out) {
    GPU_CALL(handle);
    unsigned count = 0;
    int code = number(handle, counter == 0 ? "ecc_volatile" : "ecc_aggregate", &count);
    *out = count;
    return type == 1 ? code : INVALID_ARGUMENT;
}

int nvmlDeviceGetRemappedRows(void *handle, unsigned *correctable, unsigned *uncorrectable, unsigned *pending, unsigned *failed) {
    GPU_CALL(handle);
    const char *value = of_gpu(GPU(handle), "remapped");
    int found = value ? sscanf(value, "%u %u %u %u", correctable, uncorrectable, pending, failed) : 0;
    return found == 4 ? SUCCESS : NOT_SUPPORTED;
}

typedef struct { unsigned field, scope; long long timestamp, latency; int type, code; u64 value; } FieldValue;

int nvmlDeviceGetFieldValues(void *handle, int count, FieldValue *values) {
    GPU_CALL(handle);
    for (int i = 0; i < count; i++) {
        unsigned action = 0;
        values[i].code = values[i].field == 230 ? number(handle, "recovery", &action) : NOT_SUPPORTED;
        if (of_gpu(GPU(handle), "recovery.error")) values[i].code = atoi(of_gpu(GPU(handle), "recovery.error"));
        values[i].value = action;
    }
    return SUCCESS;
}

#ifndef OLD_DRIVER
int nvmlDeviceGetCurrentClocksEventReasons(void *handle, u64 *out) {
    GPU_CALL(handle);
    unsigned reasons = 0;
    int code = number(handle, "clocks", &reasons);
    *out = reasons;
    return code;
}
#endif
int nvmlDeviceGetCurrentClocksThrottleReasons(void *handle, u64 *out) {
    GPU_CALL(handle);
    unsigned reasons = 0;
    int code = number(handle, "clocks", &reasons);
    *out = reasons;
    return code;
}

typedef struct { unsigned char cluster[16]; int status; unsigned clique; unsigned char state; } Fabric;

int nvmlDeviceGetGpuFabricInfo(void *handle, Fabric *out) {
    GPU_CALL(handle);
    unsigned state = 0, status = 0;
    int code = pair(handle, "fabric", &state, &status);
    out->state = (unsigned char)state, out->status = (int)status;
    return code;
}

int nvmlDeviceGetP2PStatus(void *first, void *second, int index, unsigned *out) {
    (void)second;
    GPU_CALL(first);
    return number(first, index == 2 ? "p2p.nvlink" : "p2p.read", out);
}
int nvmlDeviceGetTopologyCommonAncestor(void *first, void *second, unsigned *out) {
    (void)second;
    GPU_CALL(first);
    return number(first, "ancestor", out);
}
