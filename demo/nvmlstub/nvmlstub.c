/* A libnvidia-ml.so.1 without a driver: GPUs described by a text file, for tests and the demo.
 *
 * $NVMLSTUB_STATE names the file. It is looked at on every call, so a GPU can change under a running
 * process: replace the file (rename) and the next call sees it. Lines are `KEY VALUE`, the last one of
 * a key wins; everything absent has a harmless default. demo/nvmlstub/__init__.py writes it.
 *
 *   count N                     GPUs listed                  driver TEXT        driver version
 *   err.FUNCTION STATUS         FUNCTION answers STATUS      delay_ms N         every call takes N ms
 *   hang 1 | FUNCTION           calls block until the line goes away
 *   gpuN.FIELD VALUE            uuid name total reserved used util temp power_mw throttle recovery
 *                               addressing events mig mig_slots
 *   gpuN.err STATUS             every call on the GPU fails  gpuN.err.FUNCTION STATUS   one of them
 *   gpuN.migK.FIELD VALUE       uuid gi ci total reserved used util err ...; no uuid = an empty slot
 *   event.SEQ N:XID[:GI[:CI]]   delivered once to each live waiter, in the order of SEQ
 *
 * $NVMLSTUB_CALLS names a file of counters: text lines `NAME COUNT` kept up to date in place. Besides
 * one line per function and per function and GPU: refcount, peak_in_flight (waiting for events apart),
 * foreign_calls (made by a process that is not the one which initialised the library).
 *
 * Built with -DOLD_DRIVER it lacks the symbols that drivers before R510 lack.
 * The state must never be installed where a loader finds it by itself.
 */
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

typedef unsigned status_t;
typedef unsigned long long u64;
enum {
    SUCCESS = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6,
    INSUFFICIENT_SIZE = 7, TIMEOUT = 10, VERSION_MISMATCH = 25,
};
enum { MAX_GPUS = 16, MAX_SLOTS = 8, MAX_ENTRIES = 512, MAX_COUNTERS = 512, COUNTER_BYTES = 80 };

typedef struct device { int gpu, slot; } device_t; /* slot -1: the GPU itself */
static device_t gpus[MAX_GPUS], instances[MAX_GPUS][MAX_SLOTS];

/* ---- the state file ------------------------------------------------------------------------- */

typedef struct { char key[96], value[160]; } entry_t;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static entry_t entries[MAX_ENTRIES];
static int entry_count;
static struct stat seen;

static void load(void) {
    const char *path = getenv("NVMLSTUB_STATE");
    struct stat now;
    if (!path || stat(path, &now)) { entry_count = 0; memset(&seen, 0, sizeof seen); return; }
    if (now.st_ino == seen.st_ino && now.st_size == seen.st_size &&
        now.st_mtim.tv_sec == seen.st_mtim.tv_sec && now.st_mtim.tv_nsec == seen.st_mtim.tv_nsec) return;
    FILE *file = fopen(path, "re");
    if (!file) return;
    char line[320];
    entry_count = 0;
    while (entry_count < MAX_ENTRIES && fgets(line, sizeof line, file)) {
        entry_t *entry = &entries[entry_count];
        if (sscanf(line, "%95s %159[^\r\n]", entry->key, entry->value) == 2) entry_count++;
    }
    fclose(file);
    seen = now;
}

/* Copy the value of a key; false where there is none. */
static int get(const char *key, char *value, size_t size) {
    int found = 0;
    pthread_mutex_lock(&lock);
    load();
    for (int i = 0; i < entry_count; i++)
        if (!strcmp(entries[i].key, key)) { snprintf(value, size, "%s", entries[i].value); found = 1; }
    pthread_mutex_unlock(&lock);
    return found;
}

static u64 number(const char *key, u64 missing) {
    char text[160];
    return get(key, text, sizeof text) ? strtoull(text, NULL, 0) : missing;
}

static void device_key(char *key, size_t size, const device_t *device, const char *field) {
    if (device->slot < 0) snprintf(key, size, "gpu%d.%s", device->gpu, field);
    else snprintf(key, size, "gpu%d.mig%d.%s", device->gpu, device->slot, field);
}

static int device_get(const device_t *device, const char *field, char *value, size_t size) {
    char key[96];
    device_key(key, sizeof key, device, field);
    return get(key, value, size);
}

static u64 device_number(const device_t *device, const char *field, u64 missing) {
    char key[96];
    device_key(key, sizeof key, device, field);
    return number(key, missing);
}

/* ---- counters ------------------------------------------------------------------------------- */

static char *counters;
static char counter_names[MAX_COUNTERS][56];
static long counter_values[MAX_COUNTERS];
static int counter_count, in_flight, peak, refcount;
static pid_t owner;

static void write_counter(const char *name, long value) { /* under the lock */
    if (!counters) {
        const char *path = getenv("NVMLSTUB_CALLS");
        int file = path ? open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0644) : -1;
        if (file < 0) return;
        if (ftruncate(file, MAX_COUNTERS * COUNTER_BYTES)) { close(file); return; }
        void *map = mmap(NULL, MAX_COUNTERS * COUNTER_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
        close(file);
        if (map == MAP_FAILED) return;
        counters = map;
    }
    int i = 0;
    while (i < counter_count && strcmp(counter_names[i], name)) i++;
    if (i == MAX_COUNTERS) return;
    if (i == counter_count) snprintf(counter_names[counter_count++], sizeof counter_names[0], "%s", name);
    counter_values[i] = value;
    char line[COUNTER_BYTES + 1];
    snprintf(line, sizeof line, "%-55s %22ld\n", name, value);
    memcpy(counters + i * COUNTER_BYTES, line, 79);
}

static void add_counter(const char *name) { /* under the lock */
    long value = 0;
    for (int i = 0; i < counter_count; i++)
        if (!strcmp(counter_names[i], name)) value = counter_values[i];
    write_counter(name, value + 1);
}

static void count_call(const char *function, const device_t *device, int waits) {
    char name[56];
    pthread_mutex_lock(&lock);
    add_counter(function);
    if (device && device->slot < 0) {
        snprintf(name, sizeof name, "%.44s gpu%d", function, device->gpu);
        add_counter(name);
    }
    if (refcount && getpid() != owner) add_counter("foreign_calls");
    if (!waits && ++in_flight > peak) write_counter("peak_in_flight", peak = in_flight);
    pthread_mutex_unlock(&lock);
}

/* ---- what every call does first ---------------------------------------------------------------- */

typedef struct { int waits; } call_t;

static void leave(call_t *call) {
    if (call->waits) return;
    pthread_mutex_lock(&lock);
    in_flight--;
    pthread_mutex_unlock(&lock);
}

static void pause_ms(u64 ms) {
    struct timespec pause = { (time_t)(ms / 1000), (long)(ms % 1000) * 1000000L };
    nanosleep(&pause, NULL);
}

static status_t enter(const char *function, const device_t *device) {
    char text[160], key[96];
    while (get("hang", text, sizeof text) && (!strcmp(text, "1") || !strcmp(text, function))) pause_ms(5);
    u64 delay = number("delay_ms", 0);
    if (delay) pause_ms(delay);
    snprintf(key, sizeof key, "err.%s", function);
    status_t status = (status_t)number(key, 0);
    if (status || !device) return status;
    status = (status_t)device_number(device, "err", 0);
    return status ? status : (status_t)device_number(device, key, 0);
}

#define BEGIN_AS(function, device, is_wait)                              \
    call_t call_ __attribute__((cleanup(leave))) = { is_wait };          \
    count_call(function, device, is_wait);                               \
    do { status_t early_ = enter(function, device); if (early_) return early_; } while (0)
#define BEGIN(device)                                                    \
    BEGIN_AS(__func__, device, 0);                                       \
    if (!refcount) return UNINITIALIZED

static status_t give(const char *text, char *out, unsigned size) {
    if (strlen(text) + 1 > size) return INSUFFICIENT_SIZE;
    strcpy(out, text);
    return SUCCESS;
}

/* ---- library ---------------------------------------------------------------------------------- */

status_t nvmlInitWithFlags(unsigned flags) {
    (void)flags;
    BEGIN_AS(__func__, NULL, 0);
    pthread_mutex_lock(&lock);
    if (!refcount++) owner = getpid();
    for (int i = 0; i < MAX_GPUS; i++) {
        gpus[i] = (device_t){ i, -1 };
        for (int k = 0; k < MAX_SLOTS; k++) instances[i][k] = (device_t){ i, k };
    }
    write_counter("refcount", refcount);
    pthread_mutex_unlock(&lock);
    return SUCCESS;
}

status_t nvmlShutdown(void) {
    BEGIN(NULL);
    pthread_mutex_lock(&lock);
    write_counter("refcount", --refcount);
    pthread_mutex_unlock(&lock);
    return SUCCESS;
}

const char *nvmlErrorString(status_t status) { (void)status; return "stub status"; }

status_t nvmlSystemGetDriverVersion(char *out, unsigned size) {
    BEGIN(NULL);
    char text[160] = "000.00-stub";
    get("driver", text, sizeof text);
    return give(text, out, size);
}

status_t nvmlDeviceGetCount_v2(unsigned *count) {
    BEGIN(NULL);
    *count = (unsigned)number("count", 0);
    return SUCCESS;
}

/* ---- one device ------------------------------------------------------------------------------- */

status_t nvmlDeviceGetHandleByIndex_v2(unsigned index, device_t **out) {
    BEGIN(index < MAX_GPUS ? &gpus[index] : NULL);
    if (index >= MAX_GPUS || index >= number("count", 0)) return INVALID_ARGUMENT;
    *out = &gpus[index];
    return SUCCESS;
}

status_t nvmlDeviceGetUUID(device_t *device, char *out, unsigned size) {
    BEGIN(device);
    char text[160];
    if (!device_get(device, "uuid", text, sizeof text))
        snprintf(text, sizeof text, "GPU-00000000-0000-0000-0000-%012d", device->gpu);
    return give(text, out, size);
}

status_t nvmlDeviceGetName(device_t *device, char *out, unsigned size) {
    BEGIN(device);
    char text[160] = "NVIDIA Stub";
    device_get(device, "name", text, sizeof text);
    return give(text, out, size);
}

typedef struct { u64 total, free, used; } memory_t;
typedef struct { unsigned version; u64 total, reserved, free, used; } memory_v2_t;

status_t nvmlDeviceGetMemoryInfo(device_t *device, memory_t *out) {
    BEGIN(device);
    u64 total = device_number(device, "total", 0), taken =
        device_number(device, "used", 0) + device_number(device, "reserved", 0);
    *out = (memory_t){ total, total - taken, taken }; /* version 1 counts the driver's share as used */
    return SUCCESS;
}

#ifndef OLD_DRIVER
status_t nvmlDeviceGetMemoryInfo_v2(device_t *device, memory_v2_t *out) {
    BEGIN(device);
    if (out->version != (sizeof *out | 2u << 24)) return VERSION_MISMATCH;
    out->total = device_number(device, "total", 0);
    out->reserved = device_number(device, "reserved", 0);
    out->used = device_number(device, "used", 0);
    out->free = out->total - out->reserved - out->used;
    return SUCCESS;
}

status_t nvmlDeviceGetCurrentClocksEventReasons(device_t *device, u64 *out) {
    BEGIN(device);
    *out = device_number(device, "throttle", 0);
    return SUCCESS;
}

typedef struct { unsigned version, sensor; int celsius; } temperature_t;
status_t nvmlDeviceGetTemperatureV(device_t *device, temperature_t *out) {
    BEGIN(device);
    out->celsius = (int)device_number(device, "temp", 40);
    return SUCCESS;
}

typedef struct { unsigned version, value; } addressing_t;
status_t nvmlDeviceGetAddressingMode(device_t *device, addressing_t *out) {
    BEGIN(device);
    u64 mode = device_number(device, "addressing", 99);
    if (mode == 99) return NOT_SUPPORTED;
    out->value = (unsigned)mode;
    return SUCCESS;
}
#endif

status_t nvmlDeviceGetCurrentClocksThrottleReasons(device_t *device, u64 *out) {
    BEGIN(device);
    *out = device_number(device, "throttle", 0);
    return SUCCESS;
}

status_t nvmlDeviceGetTemperature(device_t *device, unsigned sensor, unsigned *out) {
    (void)sensor;
    BEGIN(device);
    *out = (unsigned)device_number(device, "temp", 40);
    return SUCCESS;
}

typedef struct { unsigned gpu, memory; } utilization_t;
status_t nvmlDeviceGetUtilizationRates(device_t *device, utilization_t *out) {
    BEGIN(device);
    u64 busy = device_number(device, "util", device->slot < 0 ? 0 : 1000);
    if (device->slot >= 0 && busy == 1000) return NOT_SUPPORTED; /* as on every MIG device */
    *out = (utilization_t){ (unsigned)busy, 0 };
    return SUCCESS;
}

status_t nvmlDeviceGetPowerUsage(device_t *device, unsigned *out) {
    BEGIN(device);
    *out = (unsigned)device_number(device, "power_mw", 100000);
    return SUCCESS;
}

typedef struct {
    unsigned field, scope;
    long long timestamp, latency;
    unsigned type, status;
    union { unsigned number; u64 wide; } value;
} field_t;
status_t nvmlDeviceGetFieldValues(device_t *device, int count, field_t *out) {
    BEGIN(device);
    for (int i = 0; i < count; i++) {
        u64 action = device_number(device, "recovery", 0);
        out[i].type = 1;
        out[i].status = out[i].field == 230 && action != 99 ? SUCCESS : NOT_SUPPORTED;
        out[i].value.number = (unsigned)action;
    }
    return SUCCESS;
}

/* ---- MIG -------------------------------------------------------------------------------------- */

status_t nvmlDeviceGetMigMode(device_t *device, unsigned *current, unsigned *pending) {
    BEGIN(device);
    u64 mode = device_number(device, "mig", 99);
    if (mode == 99) return NOT_SUPPORTED;
    *current = *pending = (unsigned)mode;
    return SUCCESS;
}

status_t nvmlDeviceGetMaxMigDeviceCount(device_t *device, unsigned *out) {
    BEGIN(device);
    *out = (unsigned)device_number(device, "mig_slots", 7);
    return SUCCESS;
}

status_t nvmlDeviceGetMigDeviceHandleByIndex(device_t *device, unsigned slot, device_t **out) {
    BEGIN(device);
    char text[160];
    if (slot >= MAX_SLOTS) return INVALID_ARGUMENT;
    if (!device_get(&instances[device->gpu][slot], "uuid", text, sizeof text)) return NOT_FOUND;
    *out = &instances[device->gpu][slot];
    return SUCCESS;
}

status_t nvmlDeviceGetGpuInstanceId(device_t *device, unsigned *out) {
    BEGIN(device);
    u64 id = device_number(device, "gi", 99);
    if (id == 99) return NOT_SUPPORTED;
    *out = (unsigned)id;
    return SUCCESS;
}

/* ---- events ------------------------------------------------------------------------------------ */

typedef struct { unsigned registered; long cursor; } event_set_t;
typedef struct { device_t *device; u64 type, data; unsigned gi, ci; } event_t;

/* The lowest sequence above `after`, its value in `text`; -1 where there is none. */
static long next_event(long after, char *text, size_t size) {
    long best = -1;
    pthread_mutex_lock(&lock);
    load();
    for (int i = 0; i < entry_count; i++) {
        if (strncmp(entries[i].key, "event.", 6)) continue;
        long sequence = strtol(entries[i].key + 6, NULL, 10);
        if (sequence <= after || (best >= 0 && sequence >= best)) continue;
        best = sequence;
        snprintf(text, size, "%s", entries[i].value);
    }
    pthread_mutex_unlock(&lock);
    return best;
}

status_t nvmlDeviceGetSupportedEventTypes(device_t *device, u64 *out) {
    BEGIN(device);
    *out = device_number(device, "events", 0x1f);
    return SUCCESS;
}

status_t nvmlEventSetCreate(event_set_t **out) {
    BEGIN(NULL);
    char text[160];
    event_set_t *set = calloc(1, sizeof *set);
    if (!set) abort();
    for (long next; (next = next_event(set->cursor, text, sizeof text)) >= 0;) set->cursor = next;
    *out = set; /* there is no history: what came before nobody hears */
    return SUCCESS;
}

status_t nvmlEventSetFree(event_set_t *set) {
    BEGIN(NULL);
    free(set);
    return SUCCESS;
}

status_t nvmlDeviceRegisterEvents(device_t *device, u64 types, event_set_t *set) {
    BEGIN(device);
    if (types & ~device_number(device, "events", 0x1f)) return NOT_SUPPORTED;
    set->registered |= 1u << device->gpu;
    return SUCCESS;
}

status_t nvmlEventSetWait_v2(event_set_t *set, event_t *out, unsigned timeout_ms) {
    BEGIN_AS(__func__, NULL, 1);
    if (!refcount) return UNINITIALIZED;
    char text[160];
    for (unsigned waited = 0;; waited += 5) {
        long sequence = next_event(set->cursor, text, sizeof text);
        if (sequence >= 0) {
            unsigned gpu = 0, xid = 0, gi = 0xffffffffu, ci = 0xffffffffu;
            set->cursor = sequence;
            if (sscanf(text, "%u:%u:%u:%u", &gpu, &xid, &gi, &ci) < 2 || gpu >= MAX_GPUS) continue;
            if (!(set->registered & 1u << gpu)) continue;
            *out = (event_t){ &gpus[gpu], 8, xid, gi, ci };
            return SUCCESS;
        }
        if (waited >= timeout_ms) return TIMEOUT;
        pause_ms(5);
    }
}
