/* A libnvidia-ml.so.1 that answers from a table of values, so that NVIDIA's own nvidia-smi prints these values.
 *
 * The table is a text file named by GPUPROV_NVML_TABLE, one value per line: KEY <tab> PATH <tab> VALUE. A key is the function's name
 * with its arguments, `nvmlDeviceGetTemperature 3 0` (a device by its index); omitted arguments at the end match any value. A path is
 * an output's name with its fields, `memory.total` or `infos[0].pid`; `return` is the code. Calls without a key are not supported (3).
 * nvml_library.py appends the functions of nvml.h to this text.
 */
#define NVML_NO_UNVERSIONED_FUNC_DEFS
#include <errno.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "nvml.h"

#define DEVICES 64
#define EXPORTED 512

enum kind { INTEGER, REAL, TEXT, HANDLE, STRUCT };

struct field;
struct type {
    enum kind kind;
    size_t size;
    const struct field *fields;
};
struct field {
    const char *name;
    size_t offset;
    size_t size; /* of the whole field, arrays included */
    const struct type *type;
};
struct output {
    const char *name;
    void *at;
    size_t size; /* 0: the size of the caller's buffer */
    const struct type *type;
};
struct line {
    char *key, *path, *value;
};
struct call {
    char key[512];
    int ends[16]; /* where the key's arguments end */
    int arguments;
    nvmlReturn_t wrong;
};

static struct line *lines;
static size_t line_count;
static char devices[DEVICES];

static int by_key(const void *a, const void *b) {
    return strcmp(((const struct line *)a)->key, ((const struct line *)b)->key);
}

static void load(void) {
    const char *path = getenv("GPUPROV_NVML_TABLE");
    size_t room = 0, size = 0;
    char *text = NULL;
    if (lines) return;
    FILE *file = path ? fopen(path, "r") : NULL;
    lines = calloc(1, sizeof *lines);
    if (!file) return;
    while (getline(&text, &size, file) > 0) {
        char *copy = strdup(text), *tab = strchr(copy, '\t'), *second = tab ? strchr(tab + 1, '\t') : NULL;
        if (!second) continue;
        copy[strcspn(copy, "\n")] = 0;
        *tab = *second = 0;
        if (line_count == room) lines = realloc(lines, (room = room ? 2 * room : 1024) * sizeof *lines);
        lines[line_count++] = (struct line){copy, tab + 1, second + 1};
    }
    free(text);
    fclose(file);
    qsort(lines, line_count, sizeof *lines, by_key);
}

/* If the library is preloaded, the program's pauses are divided by GPUPROV_NVML_SPEED. After each one the process behind the
 * socket GPUPROV_NVML_REFRESH rewrites the table. */
int nanosleep(const struct timespec *pause, struct timespec *left) {
    const char *speed = getenv("GPUPROV_NVML_SPEED"), *socket = getenv("GPUPROV_NVML_REFRESH");
    double seconds = (pause->tv_sec + pause->tv_nsec / 1e9) / (speed ? atof(speed) : 1);
    struct timespec shorter = {(time_t)seconds, (long)((seconds - (time_t)seconds) * 1e9)};
    int code = clock_nanosleep(CLOCK_MONOTONIC, 0, &shorter, left);
    char answer;
    if (socket && send(atoi(socket), "1", 1, MSG_NOSIGNAL) == 1 && read(atoi(socket), &answer, 1) == 1) {
        for (size_t i = 0; i < line_count; i++) free(lines[i].key);
        free(lines);
        lines = NULL;
        line_count = 0;
    }
    if (code) errno = code;
    return code ? -1 : 0;
}

int usleep(useconds_t microseconds) {
    struct timespec pause = {microseconds / 1000000, microseconds % 1000000 * 1000};
    return nanosleep(&pause, NULL);
}

static size_t first_of(const char *key) {
    size_t low = 0, high = line_count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (strcmp(lines[middle].key, key) < 0) low = middle + 1;
        else high = middle;
    }
    return low;
}

static void begin(struct call *call, const char *function) {
    load();
    memset(call, 0, sizeof *call);
    snprintf(call->key, sizeof call->key, "%s", function);
    call->ends[0] = (int)strlen(call->key);
}

static void argument(struct call *call, const char *text) {
    int end = call->ends[call->arguments];
    snprintf(call->key + end, sizeof call->key - end, " %s", text);
    if (call->arguments < 15) call->ends[++call->arguments] = (int)strlen(call->key);
}

static void number(struct call *call, long long value) {
    char text[32];
    snprintf(text, sizeof text, "%lld", value);
    argument(call, text);
}

static void device_argument(struct call *call, const void *device) {
    ptrdiff_t index = (const char *)device - devices;
    if (index < 0 || index >= DEVICES) call->wrong = NVML_ERROR_INVALID_ARGUMENT;
    number(call, index);
}

static void put(void *at, size_t size, const struct type *type, const char *path, const char *value) {
    const struct field *field;
    if (*path == '[') {
        size_t index = strtoul(path + 1, (char **)&path, 10);
        if (size && (index + 1) * type->size > size) return;
        put((char *)at + index * type->size, type->size, type, path + 1, value);
        return;
    }
    if (*path == '.') {
        size_t length = strcspn(++path, ".[");
        for (field = type->kind == STRUCT ? type->fields : NULL; field && field->name; field++)
            if (strlen(field->name) == length && !strncmp(field->name, path, length)) {
                put((char *)at + field->offset, field->size, field->type, path + length, value);
                return;
            }
        fprintf(stderr, "nvml table: no field %s\n", path);
        return;
    }
    if (type->kind == TEXT) snprintf(at, size ? size : NVML_GSP_FIRMWARE_VERSION_BUF_SIZE, "%s", value);
    else if (type->kind == HANDLE) *(void **)at = devices + atoi(value);
    else if (type->kind == REAL) *(double *)at = atof(value);
    else {
        unsigned long long whole = *value == '-' ? (unsigned long long)atoll(value) : strtoull(value, NULL, 0);
        memcpy(at, &whole, type->size < sizeof whole ? type->size : sizeof whole);
    }
}

/* Fill the outputs from the most specific key of the table; 3 (not supported) without one. */
static nvmlReturn_t answer(struct call *call, const struct output *outputs) {
    nvmlReturn_t code = NVML_SUCCESS;
    size_t at = line_count;
    char asked[sizeof call->key];
    snprintf(asked, sizeof asked, "%s", call->key);
    if (call->wrong) return call->wrong;
    for (int left = call->arguments; left >= 0; left--) {
        call->key[call->ends[left]] = 0;
        at = first_of(call->key);
        if (at < line_count && !strcmp(lines[at].key, call->key)) break;
        at = line_count;
    }
    if (getenv("GPUPROV_NVML_TRACE")) fprintf(stderr, "%s %s\n", at < line_count ? "answered" : "unknown", asked);
    if (at == line_count) return NVML_ERROR_NOT_SUPPORTED;
    for (; at < line_count && !strcmp(lines[at].key, call->key); at++) {
        size_t length = strcspn(lines[at].path, ".[");
        if (!strcmp(lines[at].path, "return")) code = (nvmlReturn_t)atoi(lines[at].value);
        for (const struct output *output = outputs; output->name; output++)
            if (output->at && strlen(output->name) == length && !strncmp(output->name, lines[at].path, length))
                put(output->at, output->size, output->type, lines[at].path + length, lines[at].value);
    }
    return code;
}

static const char *const ERRORS[] = {
    "Success", "Uninitialized", "Invalid Argument", "Not Supported", "Insufficient Permissions", "Already Initialized", "Not Found",
    "Insufficient Size", "Insufficient External Power", "Driver Not Loaded", "Timeout", "Interrupt Request Issue",
    "NVML Shared Library Not Found", "Function Not Found", "Corrupted infoROM", "GPU is lost", "GPU requires reset",
    "The operating system has blocked the request.", "Driver/library version mismatch", "In use by another client", "Insufficient memory",
    "No data", "VGPU ECC not supported", "Insufficient Resources", "Frequency not supported", "Argument version mismatch", "Deprecated",
    "Not ready", "GPU not found", "Invalid state"};

const char *nvmlErrorString(nvmlReturn_t code) {
    return (size_t)code < sizeof ERRORS / sizeof *ERRORS ? ERRORS[code] : "Unknown Error";
}

/* The private functions of nvidia-smi, which only have a number: `exported NUMBER` in the table. Their outputs are named by their
 * position: `a1`, a 32-bit number, of a function of a device; `first` and `second`, such numbers of a function of an index; `text`, with
 * as many bytes as the third argument. Number 12 parses a PCI address that a user typed into the two numbers that 75 returns for an
 * index: `-i` compares them. Since 535 number 213 replaces nvmlDeviceGetComputeRunningProcesses_v3. */
#define READ_ADDRESS 12
#define COMPUTE_PROCESSES 213

static const struct type WORD = {INTEGER, 4, NULL}, CHARACTERS = {TEXT, 1, NULL};

static nvmlReturn_t processes(void *device, unsigned *count, char *infos);

static nvmlReturn_t exported(unsigned slot, void *a0, void *a1, void *a2, void *a3) {
    struct call call;
    int of_device = (char *)a0 >= devices && (char *)a0 < devices + DEVICES;
    begin(&call, "exported");
    number(&call, slot);
    if (of_device) device_argument(&call, a0);
    else if ((uintptr_t)a0 < 65536) number(&call, (long long)(uintptr_t)a0);
    int of_index = (uintptr_t)a0 < 65536;
    unsigned domain, bus, place;
    if (slot == COMPUTE_PROCESSES) return processes(a0, a1, a2);
    if (slot == READ_ADDRESS) {
        if (sscanf(a0, "%x:%x:%x", &domain, &bus, &place) != 3) return NVML_ERROR_INVALID_ARGUMENT;
        *(unsigned *)a1 = domain;
        *(unsigned *)a2 = bus << 8 | place;
        return NVML_SUCCESS;
    }
    struct output outputs[] = {
        {"a1", of_device && (uintptr_t)a1 > 65536 ? a1 : NULL, 0, &WORD},
        {"first", of_index && (uintptr_t)a1 > 65536 ? a1 : NULL, 0, &WORD},
        {"second", of_index && (uintptr_t)a2 > 65536 ? a2 : NULL, 0, &WORD},
        {"text", (uintptr_t)a1 > 65536 ? a1 : NULL, (uintptr_t)a2, &CHARACTERS},
        {NULL, NULL, 0, NULL}};
    (void)a3;
    nvmlReturn_t code = answer(&call, outputs);
    if (getenv("GPUPROV_NVML_TRACE")) fprintf(stderr, "  exported %u %p %p %p -> %d\n", slot, a0, a1, a2, code);
    return code;
}

#define ONE(number) \
    static nvmlReturn_t exported_##number(void *a, void *b, void *c, void *d) { return exported(0x##number, a, b, c, d); }
#define ROW(M, high) \
    M(high##0) M(high##1) M(high##2) M(high##3) M(high##4) M(high##5) M(high##6) M(high##7) \
    M(high##8) M(high##9) M(high##a) M(high##b) M(high##c) M(high##d) M(high##e) M(high##f)
#define BLOCK(M, high) \
    ROW(M, high##0) ROW(M, high##1) ROW(M, high##2) ROW(M, high##3) ROW(M, high##4) ROW(M, high##5) ROW(M, high##6) ROW(M, high##7) \
    ROW(M, high##8) ROW(M, high##9) ROW(M, high##a) ROW(M, high##b) ROW(M, high##c) ROW(M, high##d) ROW(M, high##e) ROW(M, high##f)
#define NAMED(number) (void *)exported_##number,
BLOCK(ONE, 0)
BLOCK(ONE, 1)
static void *exports[EXPORTED] = {BLOCK(NAMED, 0) BLOCK(NAMED, 1)};

nvmlReturn_t nvmlInternalGetExportTable(const void **table, const void *identity) {
    struct call call;
    char text[40] = "";
    for (int i = 0; i < 16; i++) snprintf(text + 2 * i, 3, "%02x", ((const unsigned char *)identity)[i]);
    begin(&call, "nvmlInternalGetExportTable");
    argument(&call, text);
    exports[0] = (void *)(uintptr_t)sizeof exports;
    *table = exports;
    return answer(&call, (struct output[]){{NULL, NULL, 0, NULL}});
}

nvmlReturn_t nvmlDeviceGetFieldValues(nvmlDevice_t device, int count, nvmlFieldValue_t *values);
