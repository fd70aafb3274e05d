/* Graphs, their nodes, and executables: their types, and the parameters of nodes as they are in the
 * ABI. */
#ifndef NOGPU_GRAPH_H
#define NOGPU_GRAPH_H

#include "driver.h"

enum node_type {
    NODE_KERNEL = 0,
    NODE_COPY = 1,
    NODE_FILL = 2,
    NODE_HOST = 3,
    NODE_CHILD = 4,
    NODE_EMPTY = 5,
    NODE_WAIT_EVENT = 6,
    NODE_RECORD_EVENT = 7,
    NODE_ALLOC = 10,
    NODE_FREE = 11,
    NODE_WORDS = 12,
    NODE_TYPES,
};

/* --- as in the ABI --- */
struct kernel_params {
    CUfunction function;
    unsigned grid[3], block[3], shared_bytes;
    void **parameters, **extra;
    CUkernel kernel;
    CUcontext context;
};
struct copy_end { /* one end of a CUDA_MEMCPY3D */
    size_t x, y, z, lod;
    int type; /* CUmemorytype */
    void *host;
    CUdeviceptr device;
    void *array, *reserved;
    size_t pitch, height;
};
struct copy_params {
    struct copy_end from, to;
    size_t width, height, depth;
};
struct copy_end_2d {
    size_t x, y;
    int type;
    void *host;
    CUdeviceptr device;
    void *array;
    size_t pitch;
};
struct copy_params_2d {
    struct copy_end_2d from, to;
    size_t width, height;
}; /* a CUDA_MEMCPY2D */
struct fill_params {
    CUdeviceptr to;
    size_t pitch;
    unsigned value, width;
    size_t count, height;
    CUcontext context;
};
struct host_params {
    CUhostFn function;
    void *user_data;
    unsigned sync_mode;
    CUcontext context;
    CUgreenCtx green;
};
/* CUstreamBatchMemOpType */
enum {
    WAIT_32 = 1,
    WRITE_32 = 2,
    FLUSH = 3,
    WAIT_64 = 4,
    WRITE_64 = 5,
    BARRIER = 6,
    REDUCTION = 8
};
union word_params {
    int operation;
    struct {
        int operation;
        CUdeviceptr address;
        uint64_t value;
        unsigned flags;
        CUdeviceptr alias;
    } word;
    struct {
        int operation;
        unsigned flags;
    } barrier;
    uint64_t pad[6];
};
struct words_params {
    CUcontext context;
    unsigned count;
    union word_params *words;
    unsigned flags;
};
struct alloc_params {
    struct pool_props props;
    const struct access *access;
    size_t access_count, bytes;
    CUdeviceptr address; /* out */
};
struct node_params {
    int type, reserved0[3];
    union {
        struct kernel_params kernel;
        struct {
            int flags, reserved;
            CUcontext context;
            struct copy_params params;
        } copy;
        struct fill_params fill;
        struct host_params host;
        struct {
            CUgraph graph;
            int ownership;
        } child;
        /* a wait node's ends after the event */
        struct {
            CUevent event;
            CUcontext context;
            CUgreenCtx green;
        } event;
        struct words_params words;
        struct alloc_params alloc;
        CUdeviceptr free;
        char bytes[232];
    } u;
    long long reserved2;
};
struct instantiate_params {
    uint64_t flags;
    CUstream upload;
    CUgraphNode error;
    int result;
};
/* CUgraphExecUpdateResult */
enum {
    UPDATED = 0,
    UPDATE_ERROR = 1,
    TOPOLOGY_CHANGED = 2,
    TYPE_CHANGED = 3,
    PARAMETERS_CHANGED = 5,
    FUNCTION_CHANGE = 7,
    ATTRIBUTES_CHANGED = 8,
};
struct update_info {
    int result;
    CUgraphNode error, error_from;
};
_Static_assert(sizeof(struct copy_params) == 200 && sizeof(struct copy_params_2d) == 128 &&
                   sizeof(union word_params) == 48 && sizeof(struct node_params) == 256,
               "these cross the ABI");

/* --- ours --- */

#define MOST_WORDS 256 /* a batch of memory operations has fewer */

/* Shared by the nodes that allocate and free it, in all copies of their graph. */
struct graph_memory {
    int references, device;
    int executables; /* that allocate it */
    void *base;      /* NULL: it went with its context */
    size_t bytes;
    bool live;
};

/* Belongs to its graph. Handles of nodes in an executable's private copy are never given out. */
struct node {
    struct graph *graph;   /* NULL: not yet in one */
    uint64_t id, original; /* never reused; original: the id of the node that it is a copy of */
    unsigned local_id;
    int type;
    struct dependencies before;
    struct op **ops; /* the work, one after another: patterns to be copied into a stream */
    size_t op_count;
    /* where it runs; NULL: where the stream is that the graph is launched into */
    struct context *context;
    struct event *event;          /* a reference */
    struct graph_memory *memory;  /* of a node that allocates or frees: a reference */
    struct graph *child;          /* the node's own */
    struct attributes attributes; /* of a kernel */
    bool disabled;                /* in an executable */
    size_t place;                 /* scratch of walks: its index */
    uint64_t mark;                /* scratch of walks: visited, if it is the walk's own mark */
    /* What cuGraph...NodeGetParams answers and does not follow from the ops. */
    struct copy_params copy;
    struct fill_params fill;
    union word_params *words;
    void **parameters;
};

struct holding {
    struct user_object *object;
    unsigned count;
};

struct graph {
    struct node **nodes; /* in the order in which they were added */
    size_t node_count;
    unsigned id, next_local_id;
    uint64_t original;  /* the id of the graph that it is a clone of */
    struct node *owner; /* the node whose child it is */
    bool hidden;        /* an executable's: unknown as a handle */
    struct holding *holdings;
    size_t holding_count;
};

/* What an executable keeps alive, and each of its launches until the last of its ops is gone. */
struct launch_refs {
    int references;
    size_t count;
    struct user_object *objects[];
};

/* One thing to do, in an order in which all before it come first. A child graph is laid out flat,
 * between two steps of its own. */
struct step {
    struct node *node; /* NULL: a child graph's beginning or end */
    size_t *before, before_count;
    bool last; /* nothing comes after it */
};

struct executable {
    struct graph *graph; /* a private copy */
    struct step *steps;
    size_t step_count;
    uint64_t flags;
    unsigned id;
    struct launch_refs *launch_refs;
    struct marker *last; /* the end of its latest launch; NULL: none yet */
};

/* --- graphs/dependencies.c --- */
void dependencies_set(struct dependencies *to, const struct dependencies *from);
void dependencies_clear(struct dependencies *dependencies);
/* false: is there already */
bool dependencies_add(struct dependencies *dependencies, struct node *node,
                      const struct edge *edge);
void dependencies_remove(struct dependencies *dependencies, size_t i);
CUresult dependencies_read(const struct graph *graph, const CUgraphNode *handles,
                           const struct edge *edges, size_t count, struct dependencies *out);
bool edge_fits(const struct edge *edge, const struct node *from, const struct node *to);
bool edges_plain(const struct dependencies *dependencies);
bool edge_is_plain(const struct edge *edge);
CUresult copy_out_count(size_t *count, size_t found, bool listed);

/* --- graphs/graph.c --- */
struct graph *graph_new(bool hidden);
void graph_free(struct graph *graph);
struct graph *graph_copy(const struct graph *graph, bool hidden);
bool graph_has_room(const struct graph *graph); /* whether there is memory for a copy */
bool graph_has_memory(const struct graph *graph);
struct node *node_new(int type);
void node_free(struct node *node);
struct node *node_copy(const struct node *node, bool hidden); /* its work, not its dependencies */
/* takes over the work of `with`, and frees it */
void node_refill(struct node *node, struct node *with);
void node_add_op(struct node *node, struct op *op);
void node_describe_kernel(struct node *node);
/* owns node */
CUresult graph_link(struct graph *graph, struct node *node, const struct dependencies *before);
struct node *graph_find_copy(const struct graph *graph, uint64_t original, bool deep);
bool graph_order(struct graph *graph, struct node **order); /* false: it has a cycle */

/* --- graphs/nodework.c --- */
CUresult node_make(int type, const struct node_params *params, struct node **out);
void node_describe(struct node *node, struct node_params *out);
CUresult word_ops(const union word_params *words, size_t count, struct node *node);
CUresult make_free(struct node *node, CUdeviceptr address);

/* --- graphs/nodes.c --- */
struct node_params copy_node_params(const struct copy_params *params, CUcontext context);
struct node_params fill_node_params(const struct fill_params *params, CUcontext context);
struct node_params host_node_params(const struct host_params *params);
bool node_params_valid(const struct node_params *params);

/* --- kernels/function.c --- */
struct op *kernel_op(const struct kernel_params *params, const struct function *function);
CUresult kernel_context(const struct function *function, CUcontext handle, struct context **out);

/* --- graphs/launch.c --- */
bool executable_lay_out(struct executable *executable);
void executable_unlay(struct executable *executable);
void flight_renew(struct executable *executable);

/* --- memory/graphmemory.c --- */
CUresult graph_memory_new(struct context *context, size_t bytes, struct graph_memory **out);
void graph_memory_release(struct graph_memory *memory);
CUresult graph_memory_end(struct graph_memory *memory);

/* --- captures/captured.c --- */
CUresult graph_memory_capture(struct stream *stream, size_t bytes, CUdeviceptr *out);
CUresult graph_memory_capture_free(struct stream *stream, CUdeviceptr address);

/* --- captures/recapture.c --- */
CUresult node_can_become(const struct node *old, const struct node *new, int *result);
struct recapture *recapture_new(CUrecaptureFn function, void *user_data);
/* owns node; out: the graph's own */
CUresult recapture_node(struct stream *stream, struct node *node, struct node **out);
CUresult recapture_end(struct capture *capture);

/* --- graphs/userobject.c --- */
void user_object_retain(struct user_object *object);
void user_object_release(struct user_object *object, unsigned count); /* by a call */
void user_object_drop(struct user_object *object);                    /* by a launch in flight */
void launch_refs_release(struct launch_refs *launch_refs);            /* by a call */
void launch_refs_drop(struct launch_refs *launch_refs);               /* by an op that is gone */
void user_objects_wait(void);
void holdings_copy(struct graph *to, const struct graph *from);
void holdings_release(struct graph *graph);

#endif
