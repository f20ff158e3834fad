/* Loaded by LD_PRELOAD: counts the changes that a process makes to files, and stops or fails the one that a test names.
 *
 * AGENTMEM_FAULTS names a control file, which the test maps too: a base directory and an array of slots. What happens
 * in <base>/<number>/… belongs to the slot of this number, so that one process can hold many data directories. The
 * layout is that of tests/faults/shim.py.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

enum { SLOTS = 1024, NOTES = 256, NOTE_BYTES = 64 };
enum kind { CREATE = 1, WRITE = 2, SYNC = 4, RENAME = 8, UNLINK = 16, TRUNCATE = 32, MKDIR = 64 };
enum action { NOTHING, STOP_BEFORE, STOP_AFTER, FAIL, SWALLOW };

struct slot {
    int32_t armed, action, first, last, error, kinds;
    char part[64];                  /* of the path; empty: any */
    int32_t count, stopped, hits;   /* operations since armed; whether one is stopped; how often the action was taken */
    char notes[NOTES][NOTE_BYTES];  /* what the operations were */
};

struct control {
    char base[256];
    struct slot slots[SLOTS];
};

static struct control *control;

__attribute__((constructor)) static void map_control(void) {
    const char *name = getenv("AGENTMEM_FAULTS");
    int descriptor = name ? open(name, O_RDWR | O_CLOEXEC) : -1;
    if (descriptor < 0) return;
    void *found = mmap(NULL, sizeof *control, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
    close(descriptor);
    if (found != MAP_FAILED) control = found;
}

static struct slot *slot_of(const char *path) {
    size_t length = strlen(control->base), whole = strlen(path);
    /* SQLite's shared memory, made anew by each start; it is opened under a lock of the whole process. */
    if (whole > 4 && !strcmp(path + whole - 4, "-shm")) return NULL;
    if (!length || strncmp(path, control->base, length) || path[length] != '/') return NULL;
    char *end;
    long number = strtol(path + length + 1, &end, 10);
    if (end == path + length + 1 || (*end && *end != '/') || number < 0 || number >= SLOTS) return NULL;
    return &control->slots[number];
}

static void stop(struct slot *slot) {
    __atomic_store_n(&slot->stopped, 1, __ATOMIC_SEQ_CST);
    for (;;) pause();
}

/* Before an operation. Stops here, or says what is to be done: FAIL, SWALLOW, STOP_AFTER or NOTHING. */
static enum action before(struct slot **found, enum kind kind, const char *name, const char *path) {
    *found = NULL;
    if (!control) return NOTHING;
    struct slot *slot = slot_of(path);
    if (!slot || !__atomic_load_n(&slot->armed, __ATOMIC_SEQ_CST)) return NOTHING;
    if (__atomic_load_n(&slot->stopped, __ATOMIC_SEQ_CST)) stop(slot); /* the process is as good as dead */
    *found = slot;
    if (!(slot->kinds & kind) || (slot->part[0] && !strstr(path, slot->part))) return NOTHING;
    int32_t number = __atomic_add_fetch(&slot->count, 1, __ATOMIC_SEQ_CST);
    if (number <= NOTES) {
        size_t length = strlen(path);
        const char *tail = length > 48 ? path + length - 48 : path;
        snprintf(slot->notes[number - 1], NOTE_BYTES, "%s %s", name, tail);
    }
    if (number < slot->first || number > slot->last) return NOTHING;
    if (slot->action != NOTHING) __atomic_add_fetch(&slot->hits, 1, __ATOMIC_SEQ_CST);
    if (slot->action == STOP_BEFORE) stop(slot);
    return slot->action;
}

static const char *path_of(int descriptor, char *buffer) {
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
    ssize_t length = readlink(link, buffer, PATH_MAX - 1);
    if (length < 0) length = 0;
    buffer[length] = 0;
    return buffer;
}

static const char *path_at(int folder, const char *path, char *buffer) {
    if (path[0] == '/' || folder == AT_FDCWD) return path;
    path_of(folder, buffer);
    size_t length = strlen(buffer);
    snprintf(buffer + length, PATH_MAX - length, "/%s", path);
    return buffer;
}

#define REAL(name) ({ static __typeof__(&name) real; if (!real) real = (__typeof__(&name))dlsym(RTLD_NEXT, #name); real; })

#define OPERATION(kind, name, path, swallowed, call)                          \
    do {                                                                      \
        struct slot *slot;                                                    \
        enum action action = before(&slot, kind, name, path);                 \
        if (action == FAIL) { errno = slot->error; return -1; }               \
        if (action == SWALLOW) return swallowed;                              \
        __typeof__(call) result = call;                                       \
        if (action == STOP_AFTER) stop(slot);                                 \
        return result;                                                        \
    } while (0)

/* A disk that runs full takes a part of what is written first, and says so. */
#define WRITING(name, descriptor, bytes, half, call)                          \
    do {                                                                      \
        if (!control) return call;                                            \
        char buffer[PATH_MAX];                                                \
        struct slot *slot;                                                    \
        enum action action = before(&slot, WRITE, name, path_of(descriptor, buffer)); \
        if (action == FAIL) {                                                 \
            if (slot->hits == 1 && (bytes) > 1 && slot->last > slot->first) return half; \
            errno = slot->error;                                              \
            return -1;                                                        \
        }                                                                     \
        if (action == SWALLOW) return bytes;                                  \
        __typeof__(call) result = call;                                       \
        if (action == STOP_AFTER) stop(slot);                                 \
        return result;                                                        \
    } while (0)

static ssize_t total(const struct iovec *pieces, int count) {
    ssize_t bytes = 0;
    for (int i = 0; i < count; i++) bytes += pieces[i].iov_len;
    return bytes;
}

ssize_t write(int fd, const void *data, size_t size) {
    WRITING("write", fd, (ssize_t)size, REAL(write)(fd, data, size / 2), REAL(write)(fd, data, size));
}
ssize_t pwrite(int fd, const void *data, size_t size, off_t at) {
    WRITING("pwrite", fd, (ssize_t)size, REAL(pwrite)(fd, data, size / 2, at), REAL(pwrite)(fd, data, size, at));
}
ssize_t pwrite64(int fd, const void *data, size_t size, off64_t at) {
    WRITING("pwrite", fd, (ssize_t)size, REAL(pwrite64)(fd, data, size / 2, at), REAL(pwrite64)(fd, data, size, at));
}
ssize_t writev(int fd, const struct iovec *pieces, int count) {
    WRITING("writev", fd, total(pieces, count), REAL(writev)(fd, pieces, 1), REAL(writev)(fd, pieces, count));
}
ssize_t pwritev(int fd, const struct iovec *pieces, int count, off_t at) {
    WRITING("pwritev", fd, total(pieces, count), REAL(pwritev)(fd, pieces, 1, at), REAL(pwritev)(fd, pieces, count, at));
}

#define ON_DESCRIPTOR(kind, name, fd, call)                                   \
    do {                                                                      \
        if (!control) return call;                                            \
        char buffer[PATH_MAX];                                                \
        OPERATION(kind, name, path_of(fd, buffer), 0, call);                  \
    } while (0)

int fsync(int fd) { ON_DESCRIPTOR(SYNC, "fsync", fd, REAL(fsync)(fd)); }
int fdatasync(int fd) { ON_DESCRIPTOR(SYNC, "fdatasync", fd, REAL(fdatasync)(fd)); }
int ftruncate(int fd, off_t size) { ON_DESCRIPTOR(TRUNCATE, "ftruncate", fd, REAL(ftruncate)(fd, size)); }
int ftruncate64(int fd, off64_t size) { ON_DESCRIPTOR(TRUNCATE, "ftruncate", fd, REAL(ftruncate64)(fd, size)); }

int truncate(const char *path, off_t size) { OPERATION(TRUNCATE, "truncate", path, 0, REAL(truncate)(path, size)); }
int rename(const char *old, const char *new) { OPERATION(RENAME, "rename", new, 0, REAL(rename)(old, new)); }
int unlink(const char *path) { OPERATION(UNLINK, "unlink", path, 0, REAL(unlink)(path)); }
int rmdir(const char *path) { OPERATION(UNLINK, "rmdir", path, 0, REAL(rmdir)(path)); }
int mkdir(const char *path, mode_t mode) { OPERATION(MKDIR, "mkdir", path, 0, REAL(mkdir)(path, mode)); }
int link(const char *old, const char *new) { OPERATION(RENAME, "link", new, 0, REAL(link)(old, new)); }

int renameat(int from, const char *old, int to, const char *new) {
    char buffer[PATH_MAX];
    OPERATION(RENAME, "rename", path_at(to, new, buffer), 0, REAL(renameat)(from, old, to, new));
}
int unlinkat(int folder, const char *path, int flags) {
    char buffer[PATH_MAX];
    OPERATION(UNLINK, "unlink", path_at(folder, path, buffer), 0, REAL(unlinkat)(folder, path, flags));
}
int mkdirat(int folder, const char *path, mode_t mode) {
    char buffer[PATH_MAX];
    OPERATION(MKDIR, "mkdir", path_at(folder, path, buffer), 0, REAL(mkdirat)(folder, path, mode));
}

static int creates(const char *path, int flags) {
    struct stat found;
    return control && ((flags & O_TRUNC) || ((flags & O_CREAT) && stat(path, &found)));
}

#define OPENING(folder, path, flags, call)                                    \
    do {                                                                      \
        mode_t mode = 0;                                                      \
        if ((flags & O_CREAT) || (flags & O_TMPFILE) == O_TMPFILE) {                                 \
            va_list rest;                                                     \
            va_start(rest, flags);                                            \
            mode = va_arg(rest, mode_t);                                      \
            va_end(rest);                                                     \
        }                                                                     \
        char buffer[PATH_MAX];                                                \
        const char *whole = path_at(folder, path, buffer);                    \
        if (!creates(whole, flags)) return call;                              \
        OPERATION(CREATE, "create", whole, (errno = ENOENT, -1), call);       \
    } while (0)

int open(const char *path, int flags, ...) { OPENING(AT_FDCWD, path, flags, REAL(open)(path, flags, mode)); }
int open64(const char *path, int flags, ...) { OPENING(AT_FDCWD, path, flags, REAL(open64)(path, flags, mode)); }
int openat(int folder, const char *path, int flags, ...) {
    OPENING(folder, path, flags, REAL(openat)(folder, path, flags, mode));
}
int openat64(int folder, const char *path, int flags, ...) {
    OPENING(folder, path, flags, REAL(openat64)(folder, path, flags, mode));
}
