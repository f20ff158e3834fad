/* LD_PRELOAD: a machine whose clock is set. CLOCK_REALTIME is ahead by the seconds in the file $AGENTMEM_CLOCK. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

int clock_gettime(clockid_t clock, struct timespec *found) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real) real = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    int failed = real(clock, found);
    if (failed || clock != CLOCK_REALTIME) return failed;
    char text[32] = {0};
    int file = open(getenv("AGENTMEM_CLOCK"), O_RDONLY | O_CLOEXEC);
    if (file >= 0) {
        if (read(file, text, sizeof text - 1) > 0) found->tv_sec += atoll(text);
        close(file);
    }
    return 0;
}
