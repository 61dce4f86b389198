/* Preloaded into a process, sets its wall clock back and forth by up to an hour. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <sys/time.h>
#include <time.h>

#define JUMPS_PER_S 2
#define FURTHEST_S 3600

static int (*really)(clockid_t, struct timespec *);

static time_t offset_s(void)
{
    struct timespec now;
    really(CLOCK_MONOTONIC, &now);
    unsigned long jump = (unsigned long)now.tv_sec * JUMPS_PER_S
        + (unsigned long)now.tv_nsec * JUMPS_PER_S / 1000000000UL;
    /* Spreads the bits, so that jumps that follow each other have nothing in common. */
    jump = (jump ^ jump >> 30) * 0xbf58476d1ce4e5b9UL;
    jump = (jump ^ jump >> 27) * 0x94d049bb133111ebUL;
    return (time_t)((jump ^ jump >> 31) % (2 * FURTHEST_S)) - FURTHEST_S;
}

int clock_gettime(clockid_t id, struct timespec *at)
{
    if (!really)
        really = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    int failed = really(id, at);
    if (!failed && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE))
        at->tv_sec += offset_s();
    return failed;
}

int gettimeofday(struct timeval *at, void *zone)
{
    (void)zone;
    struct timespec now;
    int failed = clock_gettime(CLOCK_REALTIME, &now);
    at->tv_sec = now.tv_sec;
    at->tv_usec = now.tv_nsec / 1000;
    return failed;
}

time_t time(time_t *at)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (at)
        *at = now.tv_sec;
    return now.tv_sec;
}
