/* A disk whose syncs take a given time, for a box that is started with this in LD_PRELOAD: fdatasync, fsync and syncfs do what they always do and
 * then wait until SLOW_SYNC_US microseconds have gone by. Benchmarks say so in their figures; the appliance knows nothing of it. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <time.h>

static long long now_us(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000LL + now.tv_nsec / 1000;
}

static int slowly(const char *name, int fd)
{
    const char *text = getenv("SLOW_SYNC_US");
    long long until = now_us() + (text ? atoll(text) : 0);
    int result = ((int (*)(int))dlsym(RTLD_NEXT, name))(fd);
    long long left = until - now_us();
    if (left > 0) {
        struct timespec pause = {left / 1000000, left % 1000000 * 1000};
        nanosleep(&pause, NULL);
    }
    return result;
}

int fdatasync(int fd) { return slowly("fdatasync", fd); }
int fsync(int fd) { return slowly("fsync", fd); }
int syncfs(int fd) { return slowly("syncfs", fd); }
