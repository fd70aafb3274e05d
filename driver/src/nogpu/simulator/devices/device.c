/* Devices: what they claim to be. */
#include "../driver.h"

#include "../api.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char NAME[] = "nogpu simulator";

enum { LAST_ATTRIBUTE = 147 }; /* of CUDA 13.0; the H200 refuses those above */

/* As an H200 answers, where a library may ask and the answer has a meaning here; what is not
 * simulated is 0. */
static const struct {
    int attribute, value;
} attributes[] = {
    /* launch shape */
    {1, 1024},
    {2, 1024},
    {3, 1024},
    {4, 64},
    {5, 2147483647},
    {6, 65535},
    {7, 65535},
    {8, 49152},
    {9, 65536},
    {10, 32},
    {11, 2147483647},
    {12, 65536},
    {13, 1980000},
    {14, 512},
    {15, 1},
    {16, 132},
    {19, 1},
    {31, 1},
    {32, 1},
    {36, 3201000},
    {37, 6016},
    {38, 62914560},
    {39, 2048},
    {40, 3},
    {41, 1}, /* UNIFIED_ADDRESSING */
    {51, 32},
    {75, 9},
    {76, 0}, /* COMPUTE_CAPABILITY */
    {78, 1}, /* STREAM_PRIORITIES_SUPPORTED */
    {79, 1},
    {80, 1}, /* GLOBAL_L1_CACHE_SUPPORTED, LOCAL_ */
    {81, 233472},
    {82, 65536},
    {83, 1}, /* MANAGED_MEMORY */
    /* CONCURRENT_MANAGED_ACCESS ... CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM */
    {87, 2},
    {89, 1},
    {90, 1},
    {91, 1},
    {95, 1}, /* COOPERATIVE_LAUNCH */
    {97, 232448},
    {99, 1},
    {106, 32},
    {111, 1024},
    {113, 1},
    {122, 1},
    {123, 1},         /* stream memory operations: 64 bit, NOR */
    {109, 134217728}, /* MAX_ACCESS_POLICY_WINDOW_SIZE */
    {115, 1},
    {120, 1}, /* CLUSTER_LAUNCH */
    {142, 1},
    {144, 1}, /* MEMORY_POOLS_SUPPORTED, on nodes of the host, on the host */
    {126, 4}, /* MEM_SYNC_DOMAIN_COUNT */
};

/* --- which there are --- */

static void uuid_of(int number, char *bytes) {
    memcpy(bytes, "nogpu simulator", 15);
    bytes[15] = (char)number;
}

/* GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx, as nvidia-smi prints it. */
static void uuid_text(int number, char *out, size_t space) {
    char bytes[16];
    uuid_of(number, bytes);
    size_t at = (size_t)snprintf(out, space, "GPU");
    for (int i = 0; i < 16; i++)
        at += (size_t)snprintf(out + at, space - at, "%s%02x",
                               i == 0 || (i >= 4 && i <= 10 && i % 2 == 0) ? "-" : "",
                               (unsigned char)bytes[i]);
}

/* The device that one entry of CUDA_VISIBLE_DEVICES names by its number or by the beginning of its
 * UUID, or -1. */
static int named(const char *entry, size_t length, int installed) {
    char text[48], *end;
    if (length == 0 || length >= sizeof text) return -1;
    memcpy(text, entry, length);
    text[length] = 0;
    long number = strtol(text, &end, 10);
    if (end != text) /* whatever comes behind it: "0abc", "0x0" and "0.5" are 0, as on the H200 */
        return number >= 0 && number < installed ? (int)number : -1;
    int found = -1;
    for (int i = 0; i < installed && length > strlen("GPU-"); i++) {
        char uuid[48];
        uuid_text(i, uuid, sizeof uuid);
        if (strncmp(uuid, text, length) != 0) continue;
        if (found >= 0) return -1; /* the abbreviation fits several */
        found = i;
    }
    return found;
}

/* The visible devices in the order in which they are named, up to the first entry that names none.
 * One that is named twice in the same way makes the list invalid; by its number and by its UUID, it
 * ends the list. */
CUresult devices_choose(const char *visible) {
    enum { UNNAMED, BY_NUMBER, BY_UUID };
    int installed = sim.device_count, count = 0;
    char taken[MAX_DEVICES] = {UNNAMED};
    for (int i = 0; i < installed; i++) sim.devices[i].number = i;
    if (visible == NULL) return installed > 0 ? OK : NO_DEVICE;
    for (const char *entry = visible;; entry++) {
        entry += strspn(entry, " \t");
        size_t length = strcspn(entry, ",");
        size_t trimmed = length;
        while (trimmed > 0 && (entry[trimmed - 1] == ' ' || entry[trimmed - 1] == '\t')) trimmed--;
        int number = named(entry, trimmed, installed);
        char way = *entry == 'G' ? BY_UUID : BY_NUMBER;
        if (number >= 0 && taken[number] == way) return INVALID_DEVICE;
        if (number < 0 || taken[number] != UNNAMED) break;
        taken[number] = way;
        sim.devices[count++].number = number;
        entry += length;
        if (*entry == 0) break;
    }
    if (count == 0) return NO_DEVICE;
    sim.device_count = count;
    return OK;
}

/* --- the calls --- */

static CUresult check(CUdevice device) {
    return device >= 0 && device < sim.device_count ? OK : INVALID_DEVICE;
}

EXPORT CUresult cuDeviceGet(CUdevice *out, int ordinal) {
    ENTER(cuDeviceGet, DEAD_OK);
    CUresult code = out == NULL ? INVALID_VALUE : check(ordinal);
    if (code == OK) *out = ordinal;
    return leave(code);
}

EXPORT CUresult cuDeviceGetCount(int *out) {
    ENTER(cuDeviceGetCount, DEAD_OK);
    if (out != NULL) *out = sim.device_count;
    return leave(out != NULL ? OK : INVALID_VALUE);
}

EXPORT CUresult cuDeviceGetName(char *out, int length, CUdevice device) {
    ENTER(cuDeviceGetName, DEAD_OK);
    CUresult code = out == NULL || length <= 0 ? INVALID_VALUE : check(device);
    if (code == OK) snprintf(out, (size_t)length, "%s", NAME);
    return leave(code);
}

EXPORT CUresult cuDeviceGetUuid_v2(CUuuid *out, CUdevice device) {
    ENTER(cuDeviceGetUuid, DEAD_OK);
    CUresult code = out == NULL ? INVALID_VALUE : check(device);
    if (code == OK) uuid_of(sim.devices[device].number, out->bytes);
    return leave(code);
}

EXPORT CUresult cuDeviceGetUuid(CUuuid *out, CUdevice device) {
    return cuDeviceGetUuid_v2(out, device);
}

EXPORT CUresult cuDeviceTotalMem_v2(size_t *out, CUdevice device) {
    ENTER(cuDeviceTotalMem, DEAD_OK);
    CUresult code = out == NULL ? INVALID_VALUE : check(device);
    if (code == OK) *out = sim.devices[device].total;
    return leave(code);
}

EXPORT CUresult cuDeviceGetAttribute(int *out, int attribute, CUdevice device) {
    ENTER(cuDeviceGetAttribute, DEAD_OK);
    CUresult code =
        out == NULL || attribute < 1 || attribute > LAST_ATTRIBUTE ? INVALID_VALUE : check(device);
    if (code != OK) return leave(code);
    *out = attribute == 33 ? sim.devices[device].number + 1 : 0; /* PCI_BUS_ID */
    for (size_t i = 0; i < sizeof attributes / sizeof attributes[0]; i++)
        if (attributes[i].attribute == attribute) *out = attributes[i].value;
    return leave(OK);
}

EXPORT CUresult cuDeviceComputeCapability(int *major, int *minor, CUdevice device) {
    ENTER(cuDeviceComputeCapability, DEAD_OK);
    CUresult code = major == NULL || minor == NULL ? INVALID_VALUE : check(device);
    if (code == OK) {
        *major = 9;
        *minor = 0;
    }
    return leave(code);
}

EXPORT CUresult cuDeviceGetPCIBusId(char *out, int length, CUdevice device) {
    ENTER(cuDeviceGetPCIBusId, DEAD_OK);
    CUresult code = out == NULL || length < 13 ? INVALID_VALUE : check(device);
    if (code == OK)
        snprintf(out, (size_t)length, "0000:%02x:00.0", (unsigned)sim.devices[device].number + 1);
    return leave(code);
}

EXPORT CUresult cuDeviceGetByPCIBusId(CUdevice *out, const char *id) {
    ENTER(cuDeviceGetByPCIBusId, DEAD_OK);
    unsigned bus;
    if (out == NULL || id == NULL) return leave(INVALID_VALUE);
    if (sscanf(id, "0000:%x:00.0", &bus) != 1) return leave(INVALID_DEVICE);
    for (int device = 0; device < sim.device_count; device++)
        if (sim.devices[device].number + 1 == (int)bus) {
            *out = device;
            return leave(OK);
        }
    return leave(INVALID_DEVICE);
}

/* --- peers ---
 *
 * Every device here reaches all memory. What a program has enabled is kept and never checked. */

EXPORT CUresult cuDeviceCanAccessPeer(int *out, CUdevice device, CUdevice peer) {
    ENTER(cuDeviceCanAccessPeer, DEAD_OK);
    CUresult code = out == NULL           ? INVALID_VALUE
                    : check(device) != OK ? INVALID_DEVICE
                                          : check(peer);
    if (code == OK) *out = device != peer;
    return leave(code);
}

EXPORT CUresult cuDeviceGetP2PAttribute(int *out, int which, CUdevice device, CUdevice peer) {
    enum { PERFORMANCE_RANK = 1, ACCESS = 2, NATIVE_ATOMICS = 3, ARRAYS = 4, PARTIAL_ATOMICS = 5 };
    ENTER(cuDeviceGetP2PAttribute, DEAD_OK);
    CUresult code = out == NULL ? INVALID_VALUE : check(device);
    if (code == OK) code = device != peer ? check(peer) : INVALID_DEVICE;
    if (code == OK && (which < PERFORMANCE_RANK || which > PARTIAL_ATOMICS)) code = INVALID_VALUE;
    if (code == OK) *out = which == ACCESS || which == NATIVE_ATOMICS;
    return leave(code);
}

static CUresult find_peer(CUcontext handle, struct context **current, struct context **peer) {
    CUresult code = current_context(current);
    if (code == OK) code = find_context(handle, peer);
    return code == OK && (*current)->device == (*peer)->device ? PEER_ACCESS_UNSUPPORTED : code;
}

EXPORT CUresult cuCtxEnablePeerAccess(CUcontext handle, unsigned flags) {
    ENTER(cuCtxEnablePeerAccess, 0);
    struct context *current, *peer;
    CUresult code = flags != 0 ? INVALID_VALUE : find_peer(handle, &current, &peer);
    if (code == OK && current->peers[peer->device]) code = PEER_ACCESS_ALREADY_ENABLED;
    if (code == OK) current->peers[peer->device] = true;
    return leave(code);
}

EXPORT CUresult cuCtxDisablePeerAccess(CUcontext handle) {
    ENTER(cuCtxDisablePeerAccess, 0);
    struct context *current, *peer;
    CUresult code = find_peer(handle, &current, &peer);
    if (code == PEER_ACCESS_UNSUPPORTED || (code == OK && !current->peers[peer->device]))
        code = PEER_ACCESS_NOT_ENABLED;
    if (code == OK) current->peers[peer->device] = false;
    return leave(code);
}
