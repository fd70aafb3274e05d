/* Graphs: clones, executables, and their launches, uploads and updates, each one driver call.
 *
 * Python calls these in the caller's thread. They are native, because launches may block on a full
 * stream, where the GIL must be given up, because the others need the lock of related graphs, and
 * because the bindings drop what the driver says of a refused update. A launch into a stream that
 * captures is refused first, because the driver would end the capture.
 */
#include "module.h"

struct use {
    struct handle *executable;
    int (*call)(void *executable, void *stream);
};

/* The nodes' context must be the thread's. So the stream's context is made current, whatever kind
 * of stream it is. */
static int do_use(struct handle *stream, void *argument) {
    struct use *use = argument;
    /* otherwise the driver would end the capture */
    int refusal = capture_refusal(stream->value);
    if (refusal) return refusal;
    if (!handle_pin(use->executable)) return RESULT_CLOSED;
    int status = handle_is_gone(use->executable)
                     ? CUDA_CONTEXT_IS_DESTROYED /* as of operate, for the second handle */
                     : context_push(stream->context);
    if (status == CUDA_SUCCESS) {
        status = use->call(use->executable->value, stream->value);
        context_pop();
    }
    handle_unpin(use->executable);
    return status;
}

static PyObject *native_graph_use(PyObject *Py_UNUSED(self), PyObject *args) {
    struct handle *stream;
    struct use use;
    int launches;
    if (!PyArg_ParseTuple(args, "O&O&p", to_handle, &use.executable, to_handle, &stream, &launches))
        return NULL;
    use.call = launches ? driver.graph_launch : driver.graph_upload;
    return PyLong_FromLong(operate_from_python(stream, do_use, &use));
}

static int do_clone(struct handle *graph, void *clone) {
    if (!graphs_lock(graph)) return CUDA_NOT_READY;
    int status = driver.graph_clone(clone, graph->value);
    graphs_unlock(graph);
    return status;
}

static PyObject *native_graph_clone(PyObject *Py_UNUSED(self), PyObject *object) {
    struct handle *graph;
    void *clone = NULL;
    if (!to_handle(object, &graph)) return NULL;
    int result = operate_from_python(graph, do_clone, &clone);
    return Py_BuildValue("iK", result, (unsigned long long)(uintptr_t)clone);
}

struct instantiation {
    void *executable;
    struct {
        uint64_t flags;
        void *upload_stream;
        void *node;
        int result;
    } parameters; /* CUDA_GRAPH_INSTANTIATE_PARAMS */
};

static int do_instantiate(struct handle *graph, void *argument) {
    struct instantiation *made = argument;
    if (!graphs_lock(graph)) return CUDA_NOT_READY;
    int status = driver.graph_instantiate(&made->executable, graph->value, &made->parameters);
    graphs_unlock(graph);
    return status;
}

static PyObject *native_graph_instantiate(PyObject *Py_UNUSED(self), PyObject *args) {
    struct handle *graph;
    struct instantiation made = {0};
    unsigned long long flags, stream;
    if (!PyArg_ParseTuple(args, "O&KK", to_handle, &graph, &flags, &stream)) return NULL;
    made.parameters.flags = flags;
    made.parameters.upload_stream = (void *)(uintptr_t)stream;
    int result = operate_from_python(graph, do_instantiate, &made);
    return Py_BuildValue("iiK", result, made.parameters.result,
                         (unsigned long long)(uintptr_t)made.executable);
}

struct update {
    struct handle *graph;
    struct {
        int result;
        void *node;
        void *from;
    } said; /* CUgraphExecUpdateResultInfo */
};

static int do_update(struct handle *executable, void *argument) {
    struct update *update = argument;
    struct handle *graph = update->graph;
    bool is_first = executable->root < graph->root; /* so that two updates do not deadlock */
    struct handle *first = is_first ? executable : graph, *second = is_first ? graph : executable;
    int status = CUDA_NOT_READY;
    if (!handle_pin(graph)) return RESULT_CLOSED;
    if (graphs_lock(first)) {
        if (graphs_lock(second)) {
            status = driver.graph_update(executable->value, graph->value, &update->said);
            graphs_unlock(second);
        }
        graphs_unlock(first);
    }
    handle_unpin(graph);
    return status;
}

static PyObject *native_graph_update(PyObject *Py_UNUSED(self), PyObject *args) {
    struct handle *executable;
    struct update update = {0};
    if (!PyArg_ParseTuple(args, "O&O&", to_handle, &executable, to_handle, &update.graph))
        return NULL;
    int result = operate_from_python(executable, do_update, &update);
    return Py_BuildValue("iiKK", result, update.said.result,
                         (unsigned long long)(uintptr_t)update.said.node,
                         (unsigned long long)(uintptr_t)update.said.from);
}

PyMethodDef graph_functions[] = {
    /* cuGraphClone: (code, clone). */
    METHOD(native, graph_clone, O),
    /* cuGraphInstantiateWithParams: (code, result, executable). */
    METHOD(native, graph_instantiate, VARARGS),
    /* cuGraphLaunch of an executable graph's handle on a stream's, or cuGraphUpload. */
    METHOD(native, graph_use, VARARGS),
    /* cuGraphExecUpdate: (code, result, node, node it comes from). */
    METHOD(native, graph_update, VARARGS),
    {NULL, NULL, 0, NULL},
};
