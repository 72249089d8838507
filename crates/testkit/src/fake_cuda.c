// A library with the functions of NVIDIA's driver that a program calls to find out what there is. FAKE_CUDA says what kind of
// machine it plays: a list of words, separated by commas.
//
//   (nothing)       one NVIDIA H200, driver of CUDA 13.0
//   old-driver      CUDA 12.9
//   no-device       the driver finds none (cuInit fails); none: it counts zero
//   two             two of them
//   old-device      a Turing card
//   out-of-memory   no context can be made
//   broken          cuInit fails with an error that libcuda and kernel module of different releases give
//
// With -DEMPTY it has no function at all. It exports nothing else, so a program that calls more of the driver fails.
#include <stddef.h>
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
    *name = error == 803 ? "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH" : "CUDA_ERROR_OTHER";
    return 0;
}

int cuGetErrorString(int error, const char **text) {
    *text = error == 803 ? "system has unsupported display driver / cuda driver combination" : "other";
    return 0;
}
#endif
