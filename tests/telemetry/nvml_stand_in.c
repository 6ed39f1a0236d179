/* A stand-in for libnvidia-ml.so.1: what it answers is read at each call from the file that NVML_STAND_IN names.
 *
 * A line is "name=value", the last of a name counts. A device is "0", "1"; a MIG slice of device 0 is "0:0", "0:1".
 * nvml_stand_in.py tells which names there are. A value "7+3/s" grows by 3 a second from 7 on, since the machine's start.
 * With OLD_DRIVER defined the functions that drivers before 470 lack are left out.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define GPUS 16
#define SLICES 8
#define SUCCESS 0
#define UNINITIALIZED 1
#define INVALID_ARGUMENT 2
#define NOT_SUPPORTED 3
#define NOT_FOUND 6
#define GPU_IS_LOST 15

typedef unsigned long long u64;
typedef struct { int gpu, slice; } Device; /* slice -1: the whole GPU */
typedef struct { unsigned field, scope; long long time, latency; unsigned type, code; union { unsigned u32; u64 u64; } value; } FieldValue;

static Device devices[GPUS][SLICES + 1];
static int started;
static char text[1 << 16];
static size_t length;

static void load(void) {
    const char *path = getenv("NVML_STAND_IN");
    FILE *file = path ? fopen(path, "rb") : NULL;
    length = file ? fread(text, 1, sizeof text - 1, file) : 0;
    text[length] = 0;
    if (file) fclose(file);
}

/* The value of "first.second", or of "second" alone if first is NULL; its end is a line's end. */
static const char *find(const char *first, const char *second) {
    char name[160];
    const char *found = NULL;
    size_t size = (size_t)snprintf(name, sizeof name, first ? "%s.%s=" : "%s%s=", first ? first : "", second);
    for (const char *line = text; line; line = strchr(line, '\n')) {
        if (*line == '\n') line++;
        if (!strncmp(line, name, size)) found = line + size;
    }
    return found;
}

static u64 number(const char *first, const char *second, u64 otherwise) {
    const char *value = find(first, second);
    char *end;
    struct timespec now;
    if (!value) return otherwise;
    u64 start = strtoull(value, &end, 0);
    if (*end != '+') return start;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return start + (u64)(strtod(end + 1, NULL) * ((double)now.tv_sec + now.tv_nsec / 1e9));
}

static const char *called(const Device *device) {
    static char name[16];
    if (device->slice < 0) snprintf(name, sizeof name, "%d", device->gpu);
    else snprintf(name, sizeof name, "%d:%d", device->gpu, device->slice);
    return name;
}

static void log_call(const char *function, const char *device) {
    char path[1024];
    FILE *file;
    if (!number(NULL, "log", 0)) return;
    snprintf(path, sizeof path, "%s.calls", getenv("NVML_STAND_IN"));
    file = fopen(path, "ab");
    if (file) { fprintf(file, "%s %s\n", function, device); fclose(file); }
}

/* What a function that asks a device does first: the error it is to give, or SUCCESS. */
static int begin(const Device *device, const char *function) {
    char name[96];
    load();
    log_call(function, called(device));
    if (!started) return UNINITIALIZED;
    snprintf(name, sizeof name, "%s.delay_ms", function);
    usleep((useconds_t)number(called(device), name, 0) * 1000);
    int lost = (int)number(called(device), "error", SUCCESS);
    return lost ? lost : (int)number(called(device), function, SUCCESS);
}

static int give_text(const Device *device, const char *function, const char *name, const char *otherwise, char *to, unsigned size) {
    int code = begin(device, function);
    if (code) return code;
    const char *value = find(called(device), name);
    size_t bytes = value ? strcspn(value, "\n") : strlen(otherwise);
    if (bytes >= size) bytes = size - 1;
    memcpy(to, value ? value : otherwise, bytes);
    to[bytes] = 0;
    return SUCCESS;
}

#define GIVE_32(function, name, otherwise)                                     \
    int function(const Device *device, unsigned *to) {                         \
        int code = begin(device, #function);                                   \
        if (!code) *to = (unsigned)number(called(device), name, otherwise);    \
        return code;                                                           \
    }
#define GIVE_64(function, name, otherwise)                                     \
    int function(const Device *device, u64 *to) {                              \
        int code = begin(device, #function);                                   \
        if (!code) *to = number(called(device), name, otherwise);              \
        return code;                                                           \
    }

int nvmlInitWithFlags(unsigned flags) {
    (void)flags;
    load();
    log_call("nvmlInit", "-");
    int code = (int)number(NULL, "init", SUCCESS);
    if (code) return code;
    started++;
    for (int gpu = 0; gpu < GPUS; gpu++)
        for (int slice = 0; slice <= SLICES; slice++) devices[gpu][slice] = (Device){gpu, slice - 1};
    return SUCCESS;
}

int nvmlShutdown(void) {
    load();
    log_call("nvmlShutdown", "-");
    if (!started) return UNINITIALIZED;
    started--;
    return SUCCESS;
}

const char *nvmlErrorString(int code) {
    static char words[32];
    snprintf(words, sizeof words, "Error number %d", code);
    return words;
}

int nvmlDeviceGetCount_v2(unsigned *to) {
    load();
    if (!started) return UNINITIALIZED;
    *to = (unsigned)number(NULL, "count", 2);
    return (int)number(NULL, "nvmlDeviceGetCount", SUCCESS);
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, Device **to) {
    if (index >= GPUS) return INVALID_ARGUMENT;
    *to = &devices[index][0];
    return begin(*to, "nvmlDeviceGetHandleByIndex");
}

int nvmlDeviceGetName(const Device *device, char *to, unsigned size) {
    return give_text(device, "nvmlDeviceGetName", "name", "NVIDIA Stand-in", to, size);
}

int nvmlDeviceGetUUID(const Device *device, char *to, unsigned size) {
    char otherwise[64];
    snprintf(otherwise, sizeof otherwise, device->slice < 0 ? "GPU-%08d" : "MIG-%08d-%04d", device->gpu, device->slice);
    return give_text(device, "nvmlDeviceGetUUID", "uuid", otherwise, to, size);
}

int nvmlDeviceGetUtilizationRates(const Device *device, unsigned to[2]) {
    int code = begin(device, "nvmlDeviceGetUtilizationRates");
    if (!code) to[0] = (unsigned)number(called(device), "busy", 50), to[1] = 1;
    return code;
}

int nvmlDeviceGetMemoryInfo(const Device *device, u64 to[3]) {
    int code = begin(device, "nvmlDeviceGetMemoryInfo");
    if (code) return code;
    to[0] = number(called(device), "total", 16ull << 30);
    to[2] = number(called(device), "used", 1ull << 30) + number(called(device), "reserved", 0);
    to[1] = to[0] - to[2];
    return SUCCESS;
}

GIVE_32(nvmlDeviceGetPowerUsage, "power", 100000)
GIVE_32(nvmlDeviceGetEnforcedPowerLimit, "power_limit", 300000)
GIVE_64(nvmlDeviceGetTotalEnergyConsumption, "energy", 5000000)
GIVE_64(nvmlDeviceGetCurrentClocksThrottleReasons, "throttle", 0)

int nvmlDeviceGetTemperature(const Device *device, unsigned sensor, unsigned *to) {
    int code = begin(device, "nvmlDeviceGetTemperature");
    if (sensor) return INVALID_ARGUMENT;
    if (!code) *to = (unsigned)number(called(device), "temperature", 40);
    return code;
}

int nvmlDeviceGetClockInfo(const Device *device, unsigned clock, unsigned *to) {
    char function[40];
    snprintf(function, sizeof function, "nvmlDeviceGetClockInfo:%u", clock); /* 1: SM, 2: memory */
    int code = begin(device, function);
    if (!code) *to = (unsigned)number(called(device), clock == 1 ? "sm_clock" : "memory_clock", clock == 1 ? 1400 : 1200);
    return code;
}

int nvmlDeviceGetPcieThroughput(const Device *device, unsigned direction, unsigned *to) {
    char function[40];
    snprintf(function, sizeof function, "nvmlDeviceGetPcieThroughput:%u", direction); /* 0: sent, 1: received */
    int code = begin(device, function);
    if (!code) *to = (unsigned)number(called(device), direction ? "receive_kb" : "send_kb", direction ? 3000 : 2000);
    return code;
}

GIVE_32(nvmlDeviceGetMaxPcieLinkGeneration, "link_generation", 4)
GIVE_32(nvmlDeviceGetMaxPcieLinkWidth, "link_width", 16)
GIVE_32(nvmlDeviceGetCurrPcieLinkGeneration, "link_generation_now", 4)
GIVE_32(nvmlDeviceGetCurrPcieLinkWidth, "link_width_now", 16)
GIVE_32(nvmlDeviceGetPersistenceMode, "persistence", 1)
GIVE_32(nvmlDeviceGetPowerManagementLimit, "power_cap", 300000)
GIVE_32(nvmlDeviceGetPowerManagementDefaultLimit, "power_default", 300000)

int nvmlDeviceGetEccMode(const Device *device, unsigned *current, unsigned *pending) {
    int code = begin(device, "nvmlDeviceGetEccMode");
    if (code) return code;
    *current = (unsigned)number(called(device), "ecc", 1);
    *pending = (unsigned)number(called(device), "ecc_after", *current);
    return SUCCESS;
}

int nvmlDeviceGetTotalEccErrors(const Device *device, unsigned kind, unsigned counter, u64 *to) {
    int code = begin(device, "nvmlDeviceGetTotalEccErrors");
    if (kind != 1 || counter != 0) return INVALID_ARGUMENT; /* uncorrected, since the driver was loaded */
    if (!code) *to = number(called(device), "ecc_errors", 0);
    return code;
}

int nvmlSystemGetDriverVersion(char *to, unsigned size) {
    load();
    if (!started) return UNINITIALIZED;
    const char *value = find(NULL, "driver");
    snprintf(to, size, "%.*s", value ? (int)strcspn(value, "\n") : 9, value ? value : "550.54.15");
    return (int)number(NULL, "nvmlSystemGetDriverVersion", SUCCESS);
}

int nvmlSystemGetCudaDriverVersion_v2(int *to) {
    load();
    if (!started) return UNINITIALIZED;
    *to = (int)number(NULL, "driver_cuda", 12040);
    return (int)number(NULL, "nvmlSystemGetCudaDriverVersion", SUCCESS);
}

#ifndef OLD_DRIVER

GIVE_64(nvmlDeviceGetCurrentClocksEventReasons, "throttle", 0)
GIVE_32(nvmlDeviceGetMaxMigDeviceCount, "slices", 0)

int nvmlDeviceGetMemoryInfo_v2(const Device *device, u64 to[5]) {
    int code = begin(device, "nvmlDeviceGetMemoryInfo_v2");
    if (code) return code;
    if ((unsigned)to[0] != 0x02000028) return 25; /* the version of the structure */
    to[1] = number(called(device), "total", 16ull << 30);
    to[2] = number(called(device), "reserved", 0);
    to[4] = number(called(device), "used", 1ull << 30);
    to[3] = to[1] - to[2] - to[4];
    return SUCCESS;
}

int nvmlDeviceGetTemperatureV(const Device *device, unsigned to[3]) {
    int code = begin(device, "nvmlDeviceGetTemperatureV");
    if (code) return code;
    if (to[0] != 0x0100000C || to[1]) return 25;
    to[2] = (unsigned)number(called(device), "temperature", 40);
    return SUCCESS;
}

int nvmlDeviceGetFieldValues(const Device *device, int count, FieldValue *values) {
    int code = begin(device, "nvmlDeviceGetFieldValues");
    if (code) return code;
    for (int i = 0; i < count; i++) {
        char function[40];
        const char *name = values[i].field == 197 ? "sent" : "received";
        snprintf(function, sizeof function, "nvmlDeviceGetFieldValues:%u", values[i].field);
        values[i].code = (unsigned)number(called(device), function, SUCCESS);
        if (values[i].field != 197 && values[i].field != 198) values[i].code = INVALID_ARGUMENT;
        if (!find(called(device), name)) values[i].code = NOT_SUPPORTED;
        values[i].type = (unsigned)number(called(device), "counter_type", 3); /* 1: 32 bits, 3: 64 bits */
        u64 value = number(called(device), name, 0);
        if (values[i].type == 1) values[i].value.u32 = (unsigned)value;
        else values[i].value.u64 = value;
    }
    return SUCCESS;
}

int nvmlDeviceGetMigMode(const Device *device, unsigned *current, unsigned *pending) {
    int code = begin(device, "nvmlDeviceGetMigMode");
    if (code) return code;
    if (!find(called(device), "mig")) return NOT_SUPPORTED;
    *current = *pending = (unsigned)number(called(device), "mig", 0);
    return SUCCESS;
}

int nvmlDeviceGetMigDeviceHandleByIndex(const Device *device, unsigned index, Device **to) {
    int code = begin(device, "nvmlDeviceGetMigDeviceHandleByIndex");
    if (code) return code;
    if (index >= SLICES || index >= number(called(device), "slices", 0)) return INVALID_ARGUMENT;
    *to = &devices[device->gpu][index + 1];
    return number(called(*to), "absent", 0) ? NOT_FOUND : SUCCESS;
}

int nvmlDeviceGetGpuInstanceId(const Device *device, unsigned *to) {
    int code = begin(device, "nvmlDeviceGetGpuInstanceId");
    if (!code) *to = (unsigned)device->slice + 7;
    return code;
}

int nvmlDeviceGetComputeInstanceId(const Device *device, unsigned *to) {
    int code = begin(device, "nvmlDeviceGetComputeInstanceId");
    if (!code) *to = 0;
    return code;
}

#endif
