/* Records of waits and wait lists: made, recycled, leaked; and what a list has learnt. */
#include "wait_record.h"

#include <stdlib.h>

static pthread_mutex_t pool_lock = PTHREAD_MUTEX_INITIALIZER; /* never held across a driver call */
static struct wait *pools[MAX_CONTEXTS];                      /* by the context's number; under pool_lock */
static _Atomic bool predicting = true;

_Atomic(struct wait *) new_waits;
_Atomic bool hostfunc_ran;
_Atomic int active_count;

void waits_predict(bool enabled) { atomic_store(&predicting, enabled); }

struct wait_list *wait_list_new(struct context *context, bool ordered) {
    struct wait_list *list = calloc(1, sizeof *list);
    if (!list) return NULL;
    list->refs = 1;
    list->context = context;
    list->ordered = ordered;
    pthread_mutex_init(&list->lock, NULL);
    return list;
}

void wait_list_unref(struct wait_list *list) {
    if (atomic_fetch_sub(&list->refs, 1) != 1) return;
    pthread_mutex_destroy(&list->lock);
    free(list);
}

void wait_list_learn(struct wait_list *list, int64_t duration) {
    pthread_mutex_lock(&list->lock);
    history_learn(&list->history, duration);
    pthread_mutex_unlock(&list->lock);
}

void wait_list_learn_hand_back(struct wait_list *list, bool late, int64_t slack) {
    pthread_mutex_lock(&list->lock);
    history_learn_hand_back(&list->history, late, slack);
    pthread_mutex_unlock(&list->lock);
}

struct prediction wait_list_predict(struct wait_list *list) {
    pthread_mutex_lock(&list->lock);
    struct prediction prediction = history_predict(&list->history);
    bool known = list->history.samples > 0;
    pthread_mutex_unlock(&list->lock);
    if (!atomic_load(&predicting)) prediction.good = prediction.trusted = false;
    if (!known) prediction.mean = 0;
    return prediction;
}

static int make(struct context *context, struct wait **made) {
    void *event = NULL, *popped;
    int mode = relaxed_enter();
    int status = driver.ctx_push(context_handle(context));
    if (status == CUDA_SUCCESS) {
        status = driver.event_create(&event, 2 /* CU_EVENT_DISABLE_TIMING */);
        driver.ctx_pop(&popped);
    }
    relaxed_leave(mode);
    if (status != CUDA_SUCCESS) return status;
    struct wait *wait = calloc(1, sizeof *wait);
    if (!wait) {
        driver.event_destroy(event);
        return RESULT_NO_MEMORY;
    }
    wait->event = event;
    wait->hostfunc.event = event;
    wait->hostfunc.context = context;
    *made = wait;
    return CUDA_SUCCESS;
}

static void pool_put(struct wait *wait) {
    pthread_mutex_lock(&pool_lock);
    struct wait **pool = &pools[context_index(wait->hostfunc.context)];
    wait->next = *pool;
    *pool = wait;
    pthread_mutex_unlock(&pool_lock);
}

int wait_take_record(struct context *context, struct wait **wait) {
    pthread_mutex_lock(&pool_lock);
    struct wait **pool = &pools[context_index(context)];
    *wait = *pool;
    if (*wait) *pool = (*wait)->next;
    pthread_mutex_unlock(&pool_lock);
    return *wait ? CUDA_SUCCESS : make(context, wait);
}

/* Its event is complete, or will never be of use again, and no host function knows it. */
void wait_recycle(struct wait *wait) {
    if (wait->lent) helper_put(wait->hostfunc.context, wait->lent, true);
    atomic_fetch_sub(&wait->list->waiting, 1);
    wait_list_unref(wait->list);
    pool_put(wait);
}

void wait_leak(struct wait *wait) {
    atomic_fetch_add(&counters[WAITS_LEAKED], 1);
    atomic_fetch_sub(&wait->list->waiting, 1);
    wait_list_unref(wait->list);
}

/* When an expected end counts as missed. */
int64_t prediction_end(struct prediction prediction) { return prediction.mean + prediction.spread + WINDOW_AFTER_NS + prediction.mean / 64; }
