/* The driver's types and errors, as in the ABI. cuda.h is not included, because users build this
 * with gcc alone.
 */
#ifndef NOGPU_ABI_H
#define NOGPU_ABI_H

#include <stddef.h>

typedef int CUresult;
typedef int CUdevice;
typedef unsigned long long CUdeviceptr;
/* A stream has a type of its own, by which perthread.c finds it among the parameters. */
typedef struct CUstream_st *CUstream;
typedef void *CUcontext, *CUevent, *CUmodule, *CUfunction, *CUlibrary, *CUkernel, *CUgraph,
    *CUgraphNode;
typedef void *CUgraphExec, *CUuserObject, *CUgreenCtx, *CUmemoryPool;
typedef CUresult (*CUrecaptureFn)(void *user_data, CUgraphNode node, const void *before,
                                  const void *now, int status);
typedef struct { char bytes[16]; } CUuuid;
typedef void (*CUhostFn)(void *user_data);
typedef size_t (*CUoccupancyB2DSize)(int block_size);
typedef void (*CUstreamCallback)(CUstream stream, CUresult status, void *user_data);

struct launch_attribute {
    int id, padding; /* CUlaunchAttributeID */
    unsigned char value[64];
};
typedef struct {
    unsigned int grid[3], block[3], shared_bytes;
    CUstream stream;
    const struct launch_attribute *attributes;
    unsigned int attribute_count;
} CUlaunchConfig;

enum {
    OK = 0,
    INVALID_VALUE = 1,
    OUT_OF_MEMORY = 2,
    NOT_INITIALIZED = 3,
    NO_DEVICE = 100,
    INVALID_DEVICE = 101,
    INVALID_IMAGE = 200,
    INVALID_CONTEXT = 201,
    INVALID_PTX = 218,
    UNSUPPORTED_PTX_VERSION = 222,
    PEER_ACCESS_UNSUPPORTED = 217,
    FILE_NOT_FOUND = 301,
    OPERATING_SYSTEM = 304,
    PEER_ACCESS_ALREADY_ENABLED = 704,
    PEER_ACCESS_NOT_ENABLED = 705,
    INVALID_HANDLE = 400,
    ILLEGAL_STATE = 401,
    LOSSY_QUERY = 402,
    NOT_FOUND = 500,
    NOT_READY = 600,
    ILLEGAL_ADDRESS = 700,
    CONTEXT_IS_DESTROYED = 709,
    HOST_ALREADY_REGISTERED = 712,
    HOST_NOT_REGISTERED = 713,
    LAUNCH_FAILED = 719,
    COOPERATIVE_LAUNCH_TOO_LARGE = 720,
    NOT_PERMITTED = 800,
    NOT_SUPPORTED = 801,
    CAPTURE_UNSUPPORTED = 900,
    CAPTURE_INVALIDATED = 901,
    CAPTURE_MERGE = 902,
    CAPTURE_UNMATCHED = 903,
    CAPTURE_UNJOINED = 904,
    CAPTURE_ISOLATION = 905,
    CAPTURE_IMPLICIT = 906,
    CAPTURED_EVENT = 907,
    CAPTURE_WRONG_THREAD = 908,
    GRAPH_EXEC_UPDATE_FAILURE = 910,
    INVALID_CLUSTER_SIZE = 912,
    GRAPH_RECAPTURE_FAILURE = 918,
};

#define STREAM_LEGACY ((CUstream)1)
#define STREAM_PER_THREAD ((CUstream)2)

#endif
