// A library with the functions of NVIDIA's driver that a program calls to find out what there is, to launch kernels and to
// copy; it runs no kernel. FAKE_CUDA says what kind of machine it plays: a list of words, separated by commas.
//
//   (nothing)       one NVIDIA H200, driver of CUDA 13.0
//   old-driver      CUDA 12.9
//   no-device       the driver finds none (cuInit fails); none: it counts zero
//   two             two of them
//   old-device      a Turing card
//   out-of-memory   no context can be made
//   broken          cuInit fails with an error that libcuda and kernel module of different releases give
//   no-code         no image has code for this device
//   other-kernels   no image has the kernel that is asked for
//   little-memory   a mebibyte is the most that can be allocated
//   bad-launch      a launch goes wrong, which the next call to wait hears of
//
// FAKE_CUDA_LOG names a file that each launch appends a line to. What was made must be destroyed before its context is; memory
// is the host's, with a canary behind it.
//
// With -DEMPTY it has no function at all, with -DOLD none that launches. It exports nothing else, so a program that calls more
// of the driver fails.
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int not_of_a_driver = 0;

#ifndef EMPTY
static int plays(const char *word) {
    const char *words = getenv("FAKE_CUDA");
    return words != NULL && strstr(words, word) != NULL;
}

// The context that is current; one thread is enough here. Retained contexts are counted, and at the end none may be left.
static void *current = NULL;
static int retained = 0;
static char context;
// Streams, modules, memory, graphs and events that are there.
static int things = 0;

int cuDriverGetVersion(int *version) {
    *version = plays("old-driver") ? 12090 : 13000;
    return 0;
}

int cuInit(unsigned flags) {
    if (plays("no-device")) return 100;
    if (plays("broken")) return 803;
    return flags == 0 ? 0 : 1;
}

int cuDeviceGetCount(int *count) {
    *count = plays("none") ? 0 : plays("two") ? 2 : 1;
    return 0;
}

int cuDeviceGet(int *device, int ordinal) {
    int count;
    cuDeviceGetCount(&count);
    if (ordinal < 0 || ordinal >= count) return 101;
    *device = ordinal;
    return 0;
}

int cuDeviceGetName(char *name, int length, int device) {
    strncpy(name, plays("old-device") ? "Quadro RTX 8000" : "NVIDIA H200", (size_t)length);
    (void)device;
    return 0;
}

int cuDeviceGetAttribute(int *value, int attribute, int device) {
    (void)device;
    switch (attribute) {
        case 75: *value = plays("old-device") ? 7 : 9; return 0; // COMPUTE_CAPABILITY_MAJOR
        case 76: *value = plays("old-device") ? 5 : 0; return 0; // COMPUTE_CAPABILITY_MINOR
        case 16: *value = 132; return 0;                         // MULTIPROCESSOR_COUNT
        case 38: *value = 50 << 20; return 0;                    // L2_CACHE_SIZE
        case 97: *value = 227 << 10; return 0;                   // MAX_SHARED_MEMORY_PER_BLOCK_OPTIN
        default: return 1;
    }
}

int cuDevicePrimaryCtxRetain(void **result, int device) {
    (void)device;
    if (plays("out-of-memory")) return 2;
    retained++;
    *result = &context;
    return 0;
}

int cuDevicePrimaryCtxRelease_v2(int device) {
    (void)device;
    // A context that is still current would be destroyed under its user.
    if (retained == 0 || current != NULL) abort();
    retained--;
    if (retained == 0 && things != 0) {
        fprintf(stderr, "%d things are left behind\n", things);
        abort();
    }
    return 0;
}

int cuCtxGetCurrent(void **result) {
    *result = current;
    return 0;
}

int cuCtxSetCurrent(void *context) {
    current = context;
    return 0;
}

int cuMemGetInfo_v2(size_t *free, size_t *total) {
    if (current != &context) return 201;
    *free = (size_t)140 << 30;
    *total = (size_t)141 << 30;
    return 0;
}

int cuGetErrorName(int error, const char **name) {
    *name = error == 803   ? "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH"
            : error == 700 ? "CUDA_ERROR_ILLEGAL_ADDRESS"
                           : "CUDA_ERROR_OTHER";
    return 0;
}

int cuGetErrorString(int error, const char **text) {
    *text = error == 803 ? "system has unsupported display driver / cuda driver combination" : "other";
    return 0;
}

#ifndef OLD
static int bad = 0, capturing = 0, captured = 0;

static int in_context(void) { return current == &context ? 0 : 201; }

int cuStreamCreate(void **stream, unsigned flags) {
    if (in_context() || flags != 1) return 201;
    things++;
    *stream = &things;
    return 0;
}
int cuStreamDestroy_v2(void *stream) {
    if (stream != &things) abort();
    things--;
    return in_context();
}
int cuStreamSynchronize(void *stream) { return stream != &things || in_context() ? 201 : bad ? 700 : 0; }

int cuModuleLoadData(void **module, const void *image) {
    if (in_context() || image == NULL) return 201;
    if (plays("no-code")) return 209;
    things++;
    *module = &bad;
    return 0;
}
int cuModuleUnload(void *module) {
    if (module != &bad) abort();
    things--;
    return in_context();
}
int cuModuleGetFunction(void **function, void *module, const char *name) {
    if (module != &bad || plays("other-kernels")) return 500;
    *function = strdup(name); // as long as the process
    return 0;
}
int cuFuncGetAttribute(int *value, int attribute, void *function) {
    *value = attribute == 1 ? 1024 : plays("old-ptx") ? 80 : 90;
    return (attribute == 1 || attribute == 5) && function != NULL ? 0 : 1; // SHARED_SIZE_BYTES, PTX_VERSION
}
int cuFuncSetAttribute(void *function, int attribute, int value) {
    // MAX_DYNAMIC_SHARED_SIZE_BYTES, beside what the kernel has of its own.
    return function != NULL && attribute == 8 && value == (227 << 10) - 1024 ? 0 : 1;
}

// Memory with its length before it and a canary behind it.
static const char CANARY[8] = "canary!";

int cuMemAlloc_v2(unsigned long long *address, size_t bytes) {
    if (in_context()) return 201;
    if (plays("little-memory") && bytes > 1 << 20) return 2;
    char *memory = aligned_alloc(256, (256 + bytes + sizeof CANARY + 255) / 256 * 256);
    memcpy(memory, &bytes, sizeof bytes);
    memcpy(memory + 256 + bytes, CANARY, sizeof CANARY);
    things++;
    *address = (unsigned long long)(size_t)(memory + 256);
    return 0;
}
int cuMemFree_v2(unsigned long long address) {
    char *memory = (char *)(size_t)address - 256;
    size_t bytes;
    memcpy(&bytes, memory, sizeof bytes);
    if (memcmp(memory + 256 + bytes, CANARY, sizeof CANARY) != 0) abort();
    free(memory);
    things--;
    return in_context();
}
int cuMemcpyHtoDAsync_v2(unsigned long long to, const void *from, size_t bytes, void *stream) {
    if (stream != &things) return 201;
    memcpy((void *)(size_t)to, from, bytes);
    return in_context();
}
int cuMemcpyDtoHAsync_v2(void *to, unsigned long long from, size_t bytes, void *stream) {
    if (stream != &things) return 201;
    memcpy(to, (const void *)(size_t)from, bytes);
    return in_context();
}
int cuMemsetD8Async(unsigned long long to, unsigned char value, size_t bytes, void *stream) {
    if (stream != &things) return 201;
    memset((void *)(size_t)to, value, bytes);
    return in_context();
}

struct attribute {
    int id;
    char pad[4];
    union {
        char pad[64];
        int cooperative;
    } value;
};
struct config {
    unsigned grid[3], block[3], shared_bytes;
    void *stream;
    struct attribute *attributes;
    unsigned num_attributes;
};

static void log_line(const char *line) {
    const char *path = getenv("FAKE_CUDA_LOG");
    FILE *file = path == NULL ? NULL : fopen(path, "a");
    if (file == NULL) return;
    fputs(line, file);
    fclose(file);
}

int cuLaunchKernelEx(const struct config *config, void *function, void **arguments, void **extra) {
    if (in_context() || config->stream != &things || extra != NULL || arguments == NULL) return 1;
    // COOPERATIVE, PROGRAMMATIC_STREAM_SERIALIZATION
    const int attribute = config->num_attributes == 1 && config->attributes->value.cooperative == 1 ? config->attributes->id : 0;
    const int cooperative = attribute == 2, early = attribute == 6;
    if (config->num_attributes != (unsigned)(cooperative || early)) return 1;
    char line[256];
    snprintf(line, sizeof line, "%s%s grid %u %u %u block %u %u %u shared %u%s, first argument %llu\n",
             capturing ? "captured " : "", (const char *)function, config->grid[0], config->grid[1], config->grid[2],
             config->block[0], config->block[1], config->block[2], config->shared_bytes,
             cooperative ? " cooperative" : early ? " early" : "", *(unsigned long long *)arguments[0] % 256);
    log_line(line);
    captured += capturing;
    bad |= plays("bad-launch") != 0;
    return 0;
}

int cuStreamBeginCapture_v2(void *stream, int mode) {
    if (stream != &things || mode != 1 || capturing) return 1; // THREAD_LOCAL
    capturing = 1;
    captured = 0;
    return in_context();
}
int cuStreamEndCapture(void *stream, void **graph) {
    if (stream != &things || !capturing) return 1;
    capturing = 0;
    things++;
    *graph = &capturing;
    return in_context();
}
int cuGraphInstantiateWithFlags(void **executable, void *graph, unsigned long long flags) {
    if (graph != &capturing || flags != 0) return 1;
    things++;
    *executable = &captured;
    return in_context();
}
int cuGraphDestroy(void *graph) {
    if (graph != &capturing) abort();
    things--;
    return in_context();
}
int cuGraphExecDestroy(void *executable) {
    if (executable != &captured) abort();
    things--;
    return in_context();
}
int cuGraphLaunch(void *executable, void *stream) {
    if (executable != &captured || stream != &things) return 1;
    char line[64];
    snprintf(line, sizeof line, "replayed %d\n", captured);
    log_line(line);
    return in_context();
}

int cuEventCreate(void **event, unsigned flags) {
    if (flags != 0) return 1;
    things++;
    *event = calloc(1, 1);
    return in_context();
}
int cuEventDestroy_v2(void *event) {
    free(event);
    things--;
    return in_context();
}
int cuEventRecord(void *event, void *stream) {
    if (stream != &things) return 1;
    *(char *)event = 1;
    return in_context();
}
int cuEventSynchronize(void *event) { return *(char *)event != 1 ? 1 : bad ? 700 : in_context(); }
int cuEventElapsedTime_v2(float *milliseconds, void *from, void *to) {
    *milliseconds = 1.5f;
    return *(char *)from == 1 && *(char *)to == 1 ? in_context() : 1;
}
#endif
#endif
