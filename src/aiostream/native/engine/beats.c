/* Beats: the clock of what is stalled, and the native thread that counts it.
 *
 * While a wait with a limit is pending, the thread beats every 5 ms. At each beat it counts for
 * each of these waits whether that has come on (waits_stalled), and for the news of a stall whether
 * Python has taken it (news_beat). A stall is a number of beats without progress. A beat that comes
 * late is one beat, so a process that was stopped, for however long, is older by one.
 *
 * The thread calls no driver, runs no Python, and takes no lock that is held across either. So
 * nothing can hold it, and no second thread has to look after it. With nothing to count it sleeps.
 */
#define _GNU_SOURCE
#include "beats.h"

#include <dirent.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

/* Some wait with a limit is pending. And how often that has begun, for the thread that beats. */
static _Atomic bool needed;
static sem_t began;

void beats_go_on(void) {
    if (!atomic_load(&needed) && !atomic_exchange(&needed, true)) sem_post(&began);
}

/* Whether a thread runs, or waits for a CPU. This one does not count. */
static bool wants_cpu(void) {
    DIR *threads = opendir("/proc/self/task");
    bool wants = false;
    for (struct dirent *entry; threads && !wants && (entry = readdir(threads));) {
        char path[64], state;
        if (atoi(entry->d_name) == gettid()) continue;
        snprintf(path, sizeof path, "/proc/self/task/%.20s/stat", entry->d_name);
        FILE *file = fopen(path, "re");
        wants = file && fscanf(file, "%*d (%*[^)]) %c", &state) == 1 && state == 'R';
        if (file) fclose(file);
    }
    if (threads) closedir(threads);
    return wants;
}

/* Whether the process wants a CPU and got none since the last call. Not always, so that a process
 * to which this happens all the time notices a stall late. */
static bool starves(void) {
    static int64_t used;
    static int times;
    struct timespec cpu;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &cpu);
    int64_t before = used;
    used = cpu.tv_sec * 1000000000 + cpu.tv_nsec;
    return used - before < BEAT_NS / 2 && wants_cpu() && ++times % 4;
}

static bool (*_Atomic count_waits)(bool beat, struct stall *); /* NULL: not started */

static void *beat(void *unused) {
    struct stall stall;
    bool asks = false, has_news = false;
    int idle = 0;
    for (int64_t next = 0;;) {
        /* not at once, because an end may be on its way to its loop */
        idle = atomic_load(&needed) || has_news ? 0 : idle + 1;
        if (idle > 2) sem_wait(&began);
        int64_t now = now_ns();
        next = (now - next > BEAT_NS ? now : next) + BEAT_NS;
        struct timespec time = {.tv_sec = next / 1000000000, .tv_nsec = next % 1000000000};
        clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &time, NULL);
        if (asks && starves()) continue; /* this is no beat */
        atomic_store(&needed, false);    /* the waits say otherwise, also those to come */
        has_news = news_beat();
        asks = count_waits(true, &stall) || has_news;
    }
    return unused;
}

int beats_start(bool (*count)(bool, struct stall *)) {
    pthread_t thread;
    if (atomic_exchange(&count_waits, count)) return 0;
    int error = thread_start(&thread, beat);
    if (error) count_waits = NULL;
    return error;
}
