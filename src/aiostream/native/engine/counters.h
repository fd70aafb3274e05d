/* What the native part counts, one row each. Python sees every counter by its name. `statistics()`
 * adds most of them up (src/aiostream/_runtime/statistics.py).
 *
 * Define COUNTER before each include. To add a counter, add a row. */
/* clang-format off */
COUNTER(POINTS_ARMED)
COUNTER(POINTS_FIRED)
COUNTER(POINTS_LEAKED)
COUNTER(POINTS_STALE)        /* firings of a ticket that was no longer armed: ignored */
COUNTER(POINTS_QUARANTINED)  /* armed into a capture that began meanwhile, counted as leaked too */
COUNTER(HOST_FUNCTIONS_LATE) /* Python host functions after the end of callbacks: not run */
COUNTER(WATCHER_PASSES)
COUNTER(HANDLES_CREATED)
COUNTER(HANDLES_DESTROYED)
COUNTER(HANDLES_RELEASED)
COUNTER(HANDLES_OPEN)
COUNTER(HANDLES_RETIRED)     /* closed and not destroyed, as another library has it too */
COUNTER(HANDLES_LEAKED)      /* closed, and the driver has refused to destroy them */
COUNTER(FUTURES_CREATED)
COUNTER(FUTURES_DONE)
COUNTER(FUTURES_FAILED)
COUNTER(FUTURES_CANCELLED)
COUNTER(FUTURES_DROPPED)
COUNTER(WAITS_READY)         /* there was nothing to wait for */
COUNTER(WAITS_SPUN)          /* ended in the waiting task's own polls */
COUNTER(WAITS_BY_TIMER)      /* how often a wait was left to a timer of its loop */
COUNTER(WAITS_WATCHED)       /* how often a wait was left to the watcher */
COUNTER(WAITS_HANDED_BACK)   /* how often the watcher handed a wait back to its task */
COUNTER(EVENT_POLLS)         /* by the watcher, and by loops in the place of tasks */
COUNTER(EVENT_PASSES)        /* in which they made these polls. Some find nothing due. */
COUNTER(POINTS_MADE)         /* made so far; recycled, so this is the most in use at once */
COUNTER(WAITS_MADE)          /* the same, of waits */
COUNTER(HISTORIES)           /* that exist now */
/* clang-format on */
#undef COUNTER
