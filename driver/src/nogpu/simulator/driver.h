/* The simulator's own types: what a stream, an event and a context are, and who may touch what.
 *
 * One lock, `sim.lock`, guards every field of every struct here, unless a comment at the field says
 * otherwise. No thread takes another lock while it holds this one, and nothing of the user's (host
 * function, callback, kernel, big copy) runs under it. Handles cross the API as plain pointers.
 * They are looked up before they are followed, so a stale one answers 400 and does not crash.
 *
 * The files lie in folders by subject: base (the state, memory, handles, and how calls begin and
 * end), streams (their queues, events, and the engine that moves them), memory, kernels, captures,
 * graphs, devices, and exports (the tables of functions, and what tests control). They use each
 * other in no circle. So base calls what must happen when a call or a thread ends by a pointer in
 * the thread's state.
 */
#ifndef NOGPU_DRIVER_H
#define NOGPU_DRIVER_H

#define _GNU_SOURCE
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "abi.h"

#define EXPORT __attribute__((visibility("default")))

/* Launches queued on one stream before the next one blocks its caller, and the same before a launch
 * of a graph does, however much it launches. Measured on an H200. */
#define LAUNCH_DEPTH 1022
#define GRAPH_DEPTH 1020
#define MAX_DEVICES 16
#define MAX_PARAMETERS 64

enum object_kind {
    OBJECT_STREAM = 1,
    OBJECT_EVENT,
    OBJECT_MODULE,
    OBJECT_LIBRARY,
    OBJECT_FUNCTION,
    OBJECT_GRAPH,
    OBJECT_NODE,
    OBJECT_EXECUTABLE,
    OBJECT_USER,
    OBJECT_POOL,
    OBJECT_GONE, /* a stream that went with its context; its address may be used again */
};

/* A thread that is blocked in the driver. It lives on that thread's stack. The thread that wakes it
 * takes it off its list. */
struct waiter {
    struct waiter *next;
    pthread_cond_t cond;
    uint64_t target; /* wake once everything up to this sequence number is done */
    bool woken;
};

/* One point of one stream, for which an event's record stands. Events, waits and records share it
 * by reference. */
struct marker {
    int references;
    bool done;
    uint64_t time; /* ns, CLOCK_MONOTONIC, once done */
    struct waiter *waiters;
    struct stream *blocked; /* streams whose head waits for this, linked by marker_next */
};

enum op_kind {
    OP_KERNEL,
    OP_COPY,
    OP_FILL,
    OP_HOST,
    OP_CALLBACK,
    OP_RECORD,
    OP_WAIT_EVENT,
    OP_WAIT_VALUE,
    OP_WRITE_VALUE,
    OP_FREE,
    OP_EMPTY,
};

/* QUEUED: the engine has not come to it. ARMED: at the head, waiting for a timer or a memory word.
 * BUSY: the engine or a host thread's queue works on it without the lock, so no other thread may
 * free it. */
enum op_state { QUEUED, ARMED, BUSY };

/* One item of a stream's queue. The stream owns it from enqueue to pop. One that a host thread has
 * outlives even an abandoned stream queue. A graph's node keeps ops too, as patterns, which are
 * copied into streams and never enqueued themselves. */
struct op {
    struct op *next;
    struct op *next_needing; /* the stream's next op that needs a hardware queue */
    struct op *next_host;    /* the next one in the context's host queue */
    /* NULL once the stream's queue was abandoned. Then the host thread that has the op frees it. */
    struct stream *stream;
    struct context *context;
    struct launch_refs *launch_refs; /* the launch of a graph that this is a part of: a reference */
    uint64_t sequence;               /* position in the order of all enqueues of the process */
    enum op_kind kind;
    enum op_state state;
    bool counted; /* towards the stream's depth */
    union {
        struct {
            const struct kernel *kernel;
            uint64_t end;
            void *function; /* the rest is only for cuGraphKernelNodeGetParams */
            unsigned grid[3], block[3], shared_bytes;
        } kernel;
        /* from == payload: a snapshot */
        struct {
            void *to;
            const void *from;
            size_t bytes;
            bool known_to, known_from;
        } copy;
        struct {
            void *to;
            uint32_t value;
            unsigned width;
            size_t count;
        } fill;
        struct {
            CUhostFn host;
            CUstreamCallback callback;
            CUstream handle;
            void *user_data;
        } host;
        struct {
            struct marker *marker;
            bool needs_queue;
        } mark;
        struct {
            void *address;
            uint64_t value;
            unsigned width, flags;
            uint64_t since;
        } word;
        void *memory;
    } u;
    size_t payload_bytes;
    /* kernel arguments, or the snapshot of a pageable source */
    _Alignas(16) unsigned char payload[];
};

/* As in the ABI. */
struct location { int type, id; };
struct access {
    struct location location;
    int flags;
};
struct pool_props {
    int allocation, handles;
    struct location location;
    void *security;
    size_t most;
    unsigned short usage;
    unsigned char reserved[54];
};
_Static_assert(sizeof(struct pool_props) == 88, "this crosses the ABI");

/* As in the ABI: zeros for an ordinary edge. */
struct edge { unsigned char from_port, to_port, type, reserved[5]; };

/* What a node comes after, or the next captured node of a stream will. It names no node twice. The
 * arrays are apart, because the driver's API wants them so. */
struct dependencies {
    struct node **nodes;
    struct edge *edges;
    size_t count;
};

/* Hints that the simulator keeps, gives back and copies. They change nothing here. */
struct attributes {
    struct {
        void *base;
        size_t bytes;
        float ratio;
        int hit, miss;
    } window;
    int synchronization_policy;
    unsigned char default_domain, remote_domain;
    int domain, priority, cooperative;
    unsigned cluster[3]; /* zeros: none */
    int cluster_policy, overlap;
};

struct stream {
    struct stream *next, *previous; /* all streams of the context, draining ones included */
    struct context *context;        /* constant; a context is never freed */
    uint64_t id;                    /* never reused, unlike the handle */
    unsigned flags;
    struct attributes attributes; /* the priority is one of them */
    bool legacy, blocking;        /* blocking: ordered against the legacy stream */
    bool destroyed; /* the handle is gone; freed once the queue is empty and no thread waits */
    int references; /* threads blocked on it */
    struct op *head, *tail;
    struct op *first_needing, *last_needing; /* pending ops that need a hardware queue, in order */
    unsigned launches;                       /* launches in the queue, for back-pressure */
    struct waiter *waiters;
    bool ready;         /* in the engine's ready ring */
    bool queue_blocked; /* the head waits for a hardware queue */
    bool legacy_blocked;
    struct stream *marker_next;
    struct capture *capture;          /* NULL: not capturing */
    struct dependencies dependencies; /* what the next captured node depends on */
};

/* Outlives its handle while a graph's node refers to it. */
struct event {
    int references;
    unsigned flags;
    struct context *context;
    uint64_t generation; /* the context's when the event was made */
    /* the last record; NULL: never recorded, or last recorded under capture */
    struct marker *marker;
    struct capture *capture;          /* last recorded in this capture: a reference */
    struct dependencies dependencies; /* ... behind these nodes */
};

struct context {
    int device;
    uint64_t id;
    unsigned flags;
    bool primary, active; /* active: has been made and not destroyed or reset */
    int retained;         /* primary contexts */
    /* grows when the context is destroyed or reset, because what it held is gone */
    uint64_t generation;
    struct stream *streams;
    struct stream *legacy;
    /* the blocking stream that holds up the legacy stream's head */
    struct stream *legacy_waits_for;
    struct waiter *waiters;
    /* The host thread's queue: BUSY host functions and callbacks in completion order. */
    struct op *host_head, *host_tail;
    unsigned host_count;
    bool host_started, host_running;
    pthread_cond_t host_work;
    struct waiter *host_idle; /* waiting for the running host function to return */
    size_t limits[3];
    int cache_config;
    bool peers[MAX_DEVICES]; /* devices whose memory its kernels were allowed to reach */
};

/* The default, and the one from which cuMemAllocAsync takes. NULL: not asked for yet. */
struct pools { struct pool *first, *now; };
struct device {
    /* Its number among the devices that were installed. CUDA_VISIBLE_DEVICES may hide some and
     * reorder the others. */
    int number;
    size_t total, used;
    struct context *primary;
    /* Streams with pending host functions or memory operations, by the sequence number of the first
     * of them. The first `sim.queues` of them have a hardware queue. */
    struct stream **requests;
    size_t request_count, request_space;
    unsigned primary_flags;
    struct pools pools;
};

struct kernel {
    char *name;
    void (*function)(void **parameters); /* NULL: built in, see kernels.c */
    int builtin;
    unsigned parameter_count;
    unsigned sizes[MAX_PARAMETERS];
    unsigned aligns[MAX_PARAMETERS]; /* 0: as its size has it */
    struct kernel *next;
};

/* By CUfunction_attribute: what a program has set, which each launch of the kernel checks. */
enum {
    MAX_THREADS = 0,
    STATIC_SHARED = 1,
    MAX_DYNAMIC_SHARED = 8,
    CARVEOUT = 9,
    NON_PORTABLE_CLUSTER = 14,
    FUNCTION_ATTRIBUTES = 16
};
struct function {
    struct module *module;
    const struct kernel *kernel;
    int attributes[FUNCTION_ATTRIBUTES];
};
/* of a module; memory of its device */
struct variable {
    char *name;
    void *memory;
    size_t bytes;
    struct variable *next;
};
struct module {
    struct context *context; /* NULL: a library */
    uint64_t generation;     /* the context's */
    char *image;             /* the PTX text, without comments */
    struct function **functions;
    size_t function_count;
    struct module *loaded;      /* a library's module, made on request */
    struct variable *variables; /* those that were asked for */
};

enum { GLOBAL = 0, THREAD_LOCAL = 1, RELAXED = 2 }; /* CUstreamCaptureMode */
struct capture {
    int references; /* streams in it, events recorded in it */
    uint64_t id;
    int mode;
    bool invalid, ended;
    pthread_t owner;
    struct stream *origin;
    struct context *context;
    struct graph *graph;
    /* nodes that need not be joined, because the program itself has cut them off */
    struct dependencies exempt;
    /* where streams stood when they were destroyed; still to be joined, if they have not been */
    struct dependencies left;
    struct recapture *recapture; /* NULL: new nodes are added */
    struct capture *next;        /* all captures that have not ended */
};

struct allocation {
    uintptr_t base;
    size_t bytes;
    int device;
    struct context *context;
    struct pool *pool;                 /* NULL: none */
    struct graph_memory *graph_memory; /* whose memory it is; NULL: not a graph's */
    enum memory_kind { MEMORY_DEVICE, MEMORY_HOST, MEMORY_REGISTERED, MEMORY_MANAGED } kind;
    unsigned flags;
    uint64_t id;
    struct hint *hints; /* of managed memory; NULL: none was given or asked for */
    bool freeing;       /* a free is enqueued, and a second one would free what comes later */
};

struct simulator {
    pthread_mutex_t lock;
    bool initialised;
    int driver_version, device_count; /* how many are visible, once initialised */
    bool launch_blocking;             /* CUDA_LAUNCH_BLOCKING, read at cuInit */
    unsigned queues;                  /* hardware queues per device; 0: unlimited */
    struct device devices[MAX_DEVICES];
    struct context **contexts;
    size_t context_count;
    uint64_t next_id, next_sequence;
    size_t pending; /* ops alive in streams and host queues */
    unsigned host_functions_running;
    pthread_cond_t host_returned; /* for the driver_lock adversary */
    CUresult sticky, last_fault;
    /* grows with every fault, so a waiter that slept through a fault and a recovery still reports
     * it */
    uint64_t fault_epoch;
    struct capture *captures;
    /* otherwise streams move in the order in which they became able to */
    bool seeded;
    uint64_t seed, seed_start; /* the sequence number at which the seed was set */
    struct {
        bool driver_lock, shuffle_callbacks, fire_after_fault;
        uint64_t late_faults;
    } adversary;
    _Atomic uint64_t enqueue_delay; /* ns; read without the lock */
    /* set in the child of a fork, where none of the simulator's threads exist */
    _Atomic bool forked;
};
extern struct simulator sim;

/* This thread's driver state. No other thread touches it. */
struct thread_state {
    struct context **stack;
    size_t depth, space;
    /* per-thread default streams, one per context */
    struct {
        struct stream *stream;
        uint64_t id;
    } *streams;
    size_t stream_count;
    void (*at_end)(void); /* gives these streams up; NULL: there are none */
    int capture_mode;
    bool in_host_function, is_engine;
    const struct call *call; /* that it is in, or was in last */
    /* destroyed by `destroy` when the call that released them is over */
    struct {
        struct user_object *first, *last;
        void (*destroy)(void); /* without the lock */
    } dead;
};

/* --- base/state.c --- */
struct thread_state *this_thread(void);
#define me (*this_thread())
CUresult current_context(struct context **out);
CUresult find_context(CUcontext handle, struct context **out);
CUresult wait_on(struct waiter **list, uint64_t target); /* releases the lock while it waits */
void wake(struct waiter **list, uint64_t done);
uint64_t now_ns(void);
bool host_exiting(void);
bool start_thread(void *(*function)(void *), void *argument);
void start_host_thread(void *(*function)(void *), void *argument);

/* --- base/entry.c: how every call begins and ends --- */
enum {
    PURE = 1,    /* needs nothing: no cuInit, no lock */
    DEAD_OK = 2, /* answers after a sticky error too */
    HOST_OK = 4, /* allowed inside a host function */
    ENQUEUES = 16,
    FREES = 64,  /* begins without memory too, because a program needs it to get some back */
    UNSAFE = 32, /* potentially unsafe during a stream capture */
};
#define CALL(name, version, symbol, forms, parameters) CALL_##name,
#define LACK(name, version, symbol, forms) CALL_##name,
enum call_id {
#include "functions.h"
    CALL_COUNT
};
CUresult enter(enum call_id id, unsigned rules); /* OK: the lock is held (unless PURE) */
CUresult leave(CUresult code);
void in_forked_child(void);
#define ENTER(name, rules)                                                                         \
    do {                                                                                           \
        CUresult enter_code = enter(CALL_##name, (rules));                                         \
        if (enter_code) return enter_code;                                                         \
    } while (0)
struct call {
    const char *name;
    bool lacking;
    _Atomic unsigned long count;
    _Atomic unsigned faults;
};
extern struct call calls[];
int find_call(const char *name);

/* --- base/alloc.c: zeroed memory --- */
bool alloc_ready(void);                    /* whether a call may begin */
void *alloc_need(size_t bytes);            /* in the middle of a call: never NULL */
void *alloc_more(void *old, size_t bytes); /* realloc, never NULL; what is new is not zeroed */
/* an array with room for one more */
void *alloc_room(void *array, size_t count, size_t *space, size_t size);
void *alloc_try(size_t bytes);               /* or NULL */
char *alloc_text(const char *text);          /* a copy, or NULL */
bool alloc_has(size_t count, size_t bytes);  /* whether they are there, for what a program sizes */
_Noreturn void give_up(const char *message); /* ends the process */

/* --- base/handles.c --- */
void *object_new(enum object_kind kind, size_t bytes);
/* makes a handle of what was made otherwise */
void object_register(void *object, enum object_kind kind);
/* the handle is unknown from here on; the caller frees the memory */
void object_unregister(void *handle);
/* It goes with its context, and the table remembers that. */
void object_bury(void *handle);
bool object_is_buried(const void *handle);
/* This call uses what has gone with its context. A GPU's driver may crash the process then. */
void note_use_of_gone(void);
void *object_find(const void *handle, enum object_kind kind);

/* --- streams/stream.c --- */
CUresult find_stream(CUstream handle, struct stream **out);
struct stream *stream_make(struct context *context, unsigned flags, int priority);
/* no handle names it, and it goes when it is empty */
struct stream *stream_make_hidden(struct context *context, int priority);
CUresult stream_wait(struct stream *stream, uint64_t target);
CUresult drain(struct stream *stream);
CUresult context_drain(struct context *context);
void streams_unregister(struct context *context);

/* --- streams/ops.c --- */
struct op *op_new(enum op_kind kind, size_t payload_bytes);
void op_free(struct op *op);
struct op *op_copy(const struct op *pattern);
/* may block while the stream is full; owns op either way */
CUresult enqueue(struct stream *stream, struct op *op);
/* blocks while the stream is full, which may lose it */
CUresult enqueue_room(struct stream *stream, unsigned depth);
void enqueue_now(struct stream *stream, struct op *op); /* never blocks */
void op_done(struct op *op);
void stream_release(struct stream *stream); /* frees it if destroyed, empty and unwatched */

/* --- streams/ready.c --- */
uint64_t shuffled_place(const struct op *op);
void make_ready(struct stream *stream);
struct stream *take_ready(void); /* NULL: there is none */
void ready_wait(uint64_t until);
void ready_start(void);
struct marker *marker_new(void);
void marker_release(struct marker *marker);
void marker_finish(struct marker *marker, uint64_t time);
CUresult marker_wait(struct marker *marker);

/* --- streams/engine.c --- */
void fault(CUresult code);
void fault_wait_settled(void);
CUresult engine_start(void);

/* --- streams/queues.c --- */
bool needs_queue(const struct op *op);
void queue_request(struct stream *stream, struct op *op);
void queue_release(struct stream *stream, struct op *op);
void queue_unregister(struct stream *stream);
bool queue_blocks(struct stream *stream, const struct op *op);

/* --- streams/hostthread.c --- */
void host_push(struct op *op);
void host_wait_idle(struct context *context);
void host_wait_empty(void);

/* --- streams/record.c --- */
bool event_is_gone(const struct event *event);
struct event *find_event(CUevent handle);
void capture_release(struct capture *capture);
void event_unregister_capture(struct event *event);
void event_release(struct event *event);
struct op *event_record_op(struct event *event);
/* NULL: there is nothing to wait for. (On the legacy stream, a wait for a complete event is still a
 * barrier between blocking streams.) */
struct op *event_wait_op(const struct event *event, bool on_legacy);

/* --- devices/device.c --- */
/* CUDA_VISIBLE_DEVICES; NULL: all. Changes nothing if it fails */
CUresult devices_choose(const char *visible);

/* --- memory/allocations.c --- */
struct allocation *allocation_before(uintptr_t address);
struct allocation *find_allocation(const void *address);
CUresult check_device_memory(CUdeviceptr address, size_t bytes);
bool is_on_device(const struct allocation *allocation);
struct allocation *allocation_add(void *base, size_t bytes, struct context *context, int kind,
                                  unsigned flags);
void allocation_remove(struct allocation *allocation);
CUresult memory_make(struct context *context, size_t bytes, int kind, unsigned flags, void **out);
CUresult memory_make_from(struct pool *pool, struct context *context, size_t bytes, void **out);
void memory_free_device(void *base);
void memory_release_context(struct context *context);

/* --- memory/graphmemory.c --- */
void memory_freed(void *base);

/* --- memory/pool.c --- */
struct pool *pool_now(int device);
int pool_device(const struct pool *pool); /* -1: none */
int pool_kind(const struct pool *pool);
int pool_handles(const struct pool *pool);
bool pool_lets(const struct pool *pool, int device);
CUresult pool_take(struct pool *pool, size_t bytes);
void pool_give(struct pool *pool, size_t bytes); /* may free it */

/* --- kernels/kernels.c, kernels/function.c --- */
const struct kernel *find_kernel(const char *name, size_t length);
void kernel_run(struct op *op); /* without the lock */
bool kernel_is_timed(const struct op *op, uint64_t *duration);
CUresult kernel_fault(const struct op *op); /* the sticky error that it raises, or OK */
void kernel_unpack(struct op *op, void **parameters);
size_t kernel_alignment(const struct kernel *kernel, unsigned parameter);
struct op *kernel_pack(const struct kernel *kernel, void **parameters, void **extra);
void function_start(struct function *function);
bool function_runs_at_once(const struct function *function, const CUlaunchConfig *config);
bool function_can_launch(const struct function *function, unsigned shared_bytes, uint64_t threads);
bool function_fits(const struct function *function, const struct context *context);

/* --- captures/forbidden.c --- */
CUresult capture_forbids_unsafe(void);
CUresult capture_forbids_query(struct stream *stream);
CUresult capture_forbids_question(struct stream *stream);
CUresult capture_forbids_legacy(struct stream *stream);
CUresult capture_unsupported(struct stream *stream);
void capture_invalidate(struct capture *capture);
struct capture *capture_into(const struct graph *graph);
/* or into a child graph of it, however deep */
struct capture *capture_inside(const struct graph *graph);

/* --- captures/captured.c --- */
CUresult capture_add(struct stream *stream, struct op *op, int type); /* owns op */
CUresult capture_add_kernel(struct stream *stream, struct op *op,
                            const struct attributes *attributes);    /* owns op */
CUresult capture_add_node(struct stream *stream, struct node *node); /* owns node */
CUresult capture_record(struct stream *stream, struct event *event);
CUresult capture_wait(struct stream *stream, struct event *event);
void capture_join(struct stream *stream, struct capture *capture);
void capture_end(struct capture *capture);
void capture_discard(struct capture *capture);
void capture_unregister_stream(struct stream *stream);

/* --- kernels/attributes.c --- */
enum owner { OF_STREAMS, OF_KERNELS, OF_LAUNCHES };
void attributes_start(struct attributes *attributes, int priority);
int clamped_priority(int priority);
CUresult attribute_get(const struct attributes *attributes, enum owner owner, int which, void *out);
CUresult attributes_of_launch(struct attributes *attributes, const CUlaunchConfig *config,
                              const struct function *function);
unsigned largest_cluster(const struct function *function);
CUresult attribute_set(struct attributes *attributes, enum owner owner, int which,
                       const void *value);

#endif
