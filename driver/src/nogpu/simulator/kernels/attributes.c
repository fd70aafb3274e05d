/* The attributes of streams and of kernel nodes. They are hints to a GPU. The simulator checks,
 * keeps, gives back and copies them. They have no effect here. */
#include "../driver.h"

#include "../api.h"
#include "../graph.h"

#include <string.h>

/* As in the ABI: CUlaunchAttributeID, and the values' layouts. */
enum {
    WINDOW = 1,
    COOPERATIVE = 2,
    SYNCHRONIZATION_POLICY = 3,
    CLUSTER = 4,
    CLUSTER_POLICY = 5,
    OVERLAP = 6, /* PROGRAMMATIC_STREAM_SERIALIZATION */
    PRIORITY = 8,
    DOMAIN_MAP = 9,
    DOMAIN = 10
};
#define BIT(which) (1u << (which))
struct window {
    void *base;
    size_t bytes;
    float ratio;
    int hit, miss;
};
struct domain_map { unsigned char of_default, of_remote; };

#define KERNELS                                                                                    \
    (BIT(WINDOW) | BIT(COOPERATIVE) | BIT(CLUSTER) | BIT(CLUSTER_POLICY) | BIT(PRIORITY) |         \
     BIT(DOMAIN_MAP) | BIT(DOMAIN))

/* Which of them an owner has. */
static const unsigned known[] = {
    [OF_STREAMS] =
        BIT(WINDOW) | BIT(SYNCHRONIZATION_POLICY) | BIT(PRIORITY) | BIT(DOMAIN_MAP) | BIT(DOMAIN),
    [OF_KERNELS] = KERNELS,
    [OF_LAUNCHES] = KERNELS | BIT(OVERLAP),
};

/* What the device's attributes 109 and 126 say. */
enum { LARGEST_WINDOW = 134217728, DOMAINS = 4 };

int clamped_priority(int priority) { return priority > 0 ? 0 : priority < -5 ? -5 : priority; }

void attributes_start(struct attributes *attributes, int priority) {
    *attributes = (struct attributes){
        .synchronization_policy = -1, .remote_domain = 1, .priority = clamped_priority(priority)};
}

CUresult attribute_get(const struct attributes *attributes, enum owner owner, int which,
                       void *out) {
    if (out == NULL || which < 0 || which > 31 || !(known[owner] & BIT(which)))
        return INVALID_VALUE;
    struct window window = {attributes->window.base, attributes->window.bytes,
                            attributes->window.ratio, attributes->window.hit,
                            attributes->window.miss};
    struct domain_map map = {attributes->default_domain, attributes->remote_domain};
    switch (which) {
    case WINDOW:
        memcpy(out, &window, sizeof window);
        break;
    case COOPERATIVE:
        memcpy(out, &attributes->cooperative, sizeof(int));
        break;
    case SYNCHRONIZATION_POLICY:
        memcpy(out, &attributes->synchronization_policy, sizeof(int));
        break;
    case CLUSTER:
        memcpy(out, attributes->cluster, sizeof attributes->cluster);
        break;
    case CLUSTER_POLICY:
        memcpy(out, &attributes->cluster_policy, sizeof(int));
        break;
    case OVERLAP:
        memcpy(out, &attributes->overlap, sizeof(int));
        break;
    case PRIORITY:
        memcpy(out, &attributes->priority, sizeof(int));
        break;
    case DOMAIN_MAP:
        memcpy(out, &map, sizeof map);
        break;
    case DOMAIN:
        memcpy(out, &attributes->domain, sizeof(int));
        break;
    }
    return OK;
}

static CUresult set_window(struct attributes *attributes, const struct window *window) {
    /* a miss cannot persist; of a hit an H200 takes anything */
    bool properties = window->miss >= 0 && window->miss <= 1;
    if (!properties || !(window->ratio >= 0 && window->ratio <= 1) ||
        window->bytes > LARGEST_WINDOW)
        return INVALID_VALUE;
    attributes->window.base = window->base;
    attributes->window.bytes = window->bytes;
    attributes->window.ratio = window->ratio;
    attributes->window.hit = window->hit;
    attributes->window.miss = window->miss;
    return OK;
}

CUresult attribute_set(struct attributes *attributes, enum owner owner, int which,
                       const void *value) {
    if (value == NULL || which < 0 || which > 31 || !(known[owner] & BIT(which)))
        return INVALID_VALUE;
    int number;
    struct window window;
    struct domain_map map;
    memcpy(&number, value, sizeof number);
    switch (which) {
    case WINDOW:
        memcpy(&window, value, sizeof window);
        return set_window(attributes, &window);
    case COOPERATIVE:
        attributes->cooperative = number != 0;
        break;
    case SYNCHRONIZATION_POLICY:
        if (number < 1 || number > 4) return INVALID_VALUE;
        attributes->synchronization_policy = number;
        break;
    case CLUSTER:
        memcpy(attributes->cluster, value, sizeof attributes->cluster);
        break;
    case CLUSTER_POLICY:
        if (number < 0 || number > 2) return INVALID_VALUE;
        attributes->cluster_policy = number;
        break;
    case OVERLAP:
        attributes->overlap = number != 0;
        break;
    case PRIORITY:
        attributes->priority = clamped_priority(number);
        break;
    case DOMAIN_MAP:
        memcpy(&map, value, sizeof map);
        if (map.of_default >= DOMAINS || map.of_remote >= DOMAINS) return INVALID_VALUE;
        attributes->default_domain = map.of_default;
        attributes->remote_domain = map.of_remote;
        break;
    case DOMAIN:
        if (number < 0 || number > 1) return INVALID_VALUE;
        attributes->domain = number;
        break;
    }
    return OK;
}

/* --- of launches --- */

/* 8 blocks, or 16 with the function's consent. */
unsigned largest_cluster(const struct function *function) {
    return function->attributes[NON_PORTABLE_CLUSTER] ? 16 : 8;
}

/* A cluster of blocks divides the grid. */
static CUresult check_cluster(const unsigned *cluster, const unsigned *grid,
                              const struct function *function) {
    if (cluster[0] == 0 && cluster[1] == 0 && cluster[2] == 0) return OK;
    uint64_t most = largest_cluster(function), blocks = 1;
    for (int i = 0; i < 3; i++) {
        if (cluster[i] == 0 || cluster[i] > most || grid[i] % cluster[i] != 0)
            return INVALID_CLUSTER_SIZE;
        blocks *= cluster[i];
    }
    return blocks <= most ? OK : INVALID_CLUSTER_SIZE;
}

/* Adds those of a launch to those of its stream. A captured node keeps them, and a kernel here runs
 * the same without. What would have to act is refused: events that a kernel triggers, and nodes
 * that it updates. */
CUresult attributes_of_launch(struct attributes *attributes, const CUlaunchConfig *config,
                              const struct function *function) {
    if (config->attribute_count > 0 && config->attributes == NULL) return INVALID_VALUE;
    for (unsigned i = 0; i < config->attribute_count; i++) {
        const struct launch_attribute *one = &config->attributes[i];
        if (one->id == 0) continue; /* CU_LAUNCH_ATTRIBUTE_IGNORE */
        if (one->id == SYNCHRONIZATION_POLICY) return INVALID_VALUE; /* of streams alone */
        if (one->id < 0 || one->id > 31 || !(known[OF_LAUNCHES] & BIT(one->id)))
            return NOT_SUPPORTED;
        CUresult code = attribute_set(attributes, OF_LAUNCHES, one->id, one->value);
        if (code != OK) return code;
    }
    return check_cluster(attributes->cluster, config->grid, function);
}

/* --- of kernel nodes --- */

static CUresult find_kernel_node(CUgraphNode handle, struct node **out) {
    *out = object_find(handle, OBJECT_NODE);
    if (*out == NULL) return INVALID_HANDLE;
    return (*out)->type == NODE_KERNEL ? OK : INVALID_VALUE;
}

EXPORT CUresult cuGraphKernelNodeGetAttribute(CUgraphNode handle, int which, void *out) {
    ENTER(cuGraphKernelNodeGetAttribute, 0);
    struct node *node;
    CUresult code = find_kernel_node(handle, &node);
    return leave(code == OK ? attribute_get(&node->attributes, OF_KERNELS, which, out) : code);
}

EXPORT CUresult cuGraphKernelNodeSetAttribute(CUgraphNode handle, int which, const void *value) {
    ENTER(cuGraphKernelNodeSetAttribute, 0);
    struct node *node;
    CUresult code = find_kernel_node(handle, &node);
    return leave(code == OK ? attribute_set(&node->attributes, OF_KERNELS, which, value) : code);
}

EXPORT CUresult cuGraphKernelNodeCopyAttributes(CUgraphNode to_handle, CUgraphNode from_handle) {
    ENTER(cuGraphKernelNodeCopyAttributes, 0);
    struct node *to, *from;
    CUresult code = find_kernel_node(to_handle, &to);
    if (code == OK) code = find_kernel_node(from_handle, &from);
    if (code == OK) to->attributes = from->attributes;
    return leave(code);
}
