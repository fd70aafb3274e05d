/* Host threads. Each context has one, which runs its host functions and stream callbacks, one at a
 * time, in the order of completion. */
#include "../driver.h"

#include <sys/prctl.h>
#include <unistd.h>

static struct waiter *empty_waiters;

static struct op *take(struct context *context) {
    struct op **best = &context->host_head, *before_best = NULL, *previous = NULL;
    if (sim.adversary.shuffle_callbacks)
        for (struct op **link = best; *link != NULL; previous = *link, link = &previous->next_host)
            if (shuffled_place(*link) < shuffled_place(*best)) {
                best = link;
                before_best = previous;
            }
    struct op *op = *best;
    *best = op->next_host;
    if (context->host_tail == op) context->host_tail = before_best;
    context->host_count--;
    return op;
}

static void call(struct op *op, CUresult status) {
    me.in_host_function = true;
    if (op->kind == OP_HOST) op->u.host.host(op->u.host.user_data);
    else op->u.host.callback(op->u.host.handle, status, op->u.host.user_data);
    me.in_host_function = false;
}

static void run_one(struct context *context) {
    if (sim.adversary.shuffle_callbacks) {
        /* Some have to gather first, or there would be nothing to shuffle. */
        pthread_mutex_unlock(&sim.lock);
        usleep(200);
        pthread_mutex_lock(&sim.lock);
    }
    struct op *op = take(context);
    CUresult status = sim.sticky;
    context->host_running = true;
    sim.host_functions_running++;
    pthread_mutex_unlock(&sim.lock);
    call(op, status);
    pthread_mutex_lock(&sim.lock);
    context->host_running = false;
    sim.host_functions_running--;
    pthread_cond_broadcast(&sim.host_returned);
    wake(&context->host_idle, UINT64_MAX);
    op_done(op);
    wake(&empty_waiters, UINT64_MAX);
}

static void *host_thread(void *argument) {
    struct context *context = argument;
    prctl(PR_SET_NAME, "sim-host");
    pthread_mutex_lock(&sim.lock);
    for (;;) {
        while (context->host_count == 0 || host_exiting())
            pthread_cond_wait(&context->host_work, &sim.lock);
        run_one(context);
    }
    return NULL;
}

void host_push(struct op *op) {
    struct context *context = op->context;
    op->state = BUSY;
    op->next_host = NULL;
    if (context->host_count++ > 0) context->host_tail->next_host = op;
    else context->host_head = op;
    context->host_tail = op;
    if (!context->host_started) start_host_thread(host_thread, context);
    context->host_started = true;
    pthread_cond_signal(&context->host_work);
}

/* Waits for the host function that is running, as cuModuleLoad does on the H200. */
void host_wait_idle(struct context *context) {
    while (context->host_running) wait_on(&context->host_idle, 0);
}

void host_wait_empty(void) {
    for (size_t c = 0; c < sim.context_count; c++)
        while (sim.contexts[c]->host_count > 0 || sim.contexts[c]->host_running)
            wait_on(&empty_waiters, 0);
}
