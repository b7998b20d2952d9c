/* A wall clock that can be set for one process and its children: LD_PRELOAD this, and name in CHAOS_CLOCK a file of
 * eight bytes, the nanoseconds by which the clock is off. Changing them makes the clock jump. The monotonic
 * clock goes on, as it does where a machine's time is set, and waits until a moment of the wall clock last as long as
 * their caller meant them to. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define SECOND 1000000000LL
#define LONG_AGO 1000000000 /* seconds: no machine is up for so long, so a later moment is one of the wall clock */

static const volatile int64_t *offset;
static int (*true_time)(clockid_t, struct timespec *);
static int (*true_sem)(sem_t *, const struct timespec *);
static int (*true_cond)(pthread_cond_t *, pthread_mutex_t *, const struct timespec *);

__attribute__((constructor)) static void start(void) {
    true_time = dlsym(RTLD_NEXT, "clock_gettime");
    true_sem = dlsym(RTLD_NEXT, "sem_timedwait");
    true_cond = dlvsym(RTLD_NEXT, "pthread_cond_timedwait", "GLIBC_2.3.2");
    const char *path = getenv("CHAOS_CLOCK");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (file < 0) return;
    void *seen = mmap(NULL, sizeof *offset, PROT_READ, MAP_SHARED, file, 0);
    if (seen != MAP_FAILED) offset = seen;
    close(file);
}

static struct timespec moved(struct timespec at, int64_t by) {
    int64_t all = at.tv_sec * SECOND + at.tv_nsec + by;
    return (struct timespec){all / SECOND, all % SECOND};
}

int clock_gettime(clockid_t clock, struct timespec *at) {
    if (!true_time) start(); /* other libraries' constructors may come first */
    int status = true_time(clock, at);
    if (!status && offset && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) *at = moved(*at, *offset);
    return status;
}

int gettimeofday(struct timeval *restrict at, void *restrict zone) {
    struct timespec now;
    int status = clock_gettime(CLOCK_REALTIME, &now);
    *at = (struct timeval){now.tv_sec, now.tv_nsec / 1000};
    return status;
}

time_t time(time_t *at) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (at) *at = now.tv_sec;
    return now.tv_sec;
}

int sem_timedwait(sem_t *restrict what, const struct timespec *restrict until) {
    struct timespec meant = moved(*until, offset ? -*offset : 0);
    return true_sem(what, &meant);
}

int pthread_cond_timedwait(pthread_cond_t *restrict what, pthread_mutex_t *restrict held,
                           const struct timespec *restrict until) {
    struct timespec meant = moved(*until, offset && until->tv_sec > LONG_AGO ? -*offset : 0);
    return true_cond(what, held, &meant);
}
