/* A file system that stops, kills or fails a process at its n-th call, for LD_PRELOAD.
 *
 * arm(root, at, how): count the calls that change files below `root`, and at call number `at` send this process the
 * signal -how, or fail with the error `how`. A write that fails has written half; a signal comes before the call.
 * counted(): how many calls there were.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

static char root[PATH_MAX];
static int at, how;
static volatile int count;

void arm(const char *folder, int number, int fault) {
    snprintf(root, sizeof root, "%s/", folder);
    at = number, how = fault, count = 0;
}

int counted(void) { return count; }

static int below(int folder, const char *path) {
    char full[PATH_MAX] = "";
    if (path && path[0] == '/') return strncmp(path, root, strlen(root)) == 0;
    if (folder == AT_FDCWD) return 0;
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", folder);
    ssize_t length = readlink(link, full, sizeof full - 2);
    if (length < 0) return 0;
    full[length] = '/', full[length + 1] = 0;
    return strncmp(full, root, strlen(root)) == 0;
}

/* Whether the call is to fail. */
static int hit(int folder, const char *path) {
    int before = errno;
    int is_hit = *root && below(folder, path) && __sync_add_and_fetch(&count, 1) == at;
    errno = before;
    if (!is_hit) return 0;
    if (how < 0) {
        raise(-how);
        return 0;
    }
    errno = how;
    return 1;
}

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))
#define WRITES(flags) ((flags) & (O_WRONLY | O_RDWR | O_CREAT))

#define OPEN(name)                                                    \
    int name(const char *path, int flags, ...) {                      \
        va_list rest;                                                 \
        va_start(rest, flags);                                        \
        mode_t mode = va_arg(rest, mode_t);                           \
        va_end(rest);                                                 \
        if (WRITES(flags) && hit(AT_FDCWD, path)) return -1;          \
        return REAL(name)(path, flags, mode);                         \
    }
OPEN(open)
OPEN(open64)

#define OPENAT(name)                                                  \
    int name(int folder, const char *path, int flags, ...) {          \
        va_list rest;                                                 \
        va_start(rest, flags);                                        \
        mode_t mode = va_arg(rest, mode_t);                           \
        va_end(rest);                                                 \
        if (WRITES(flags) && hit(folder, path)) return -1;            \
        return REAL(name)(folder, path, flags, mode);                 \
    }
OPENAT(openat)
OPENAT(openat64)

ssize_t write(int file, const void *data, size_t size) {
    if (!hit(file, NULL)) return REAL(write)(file, data, size);
    REAL(write)(file, data, size / 2);
    errno = how;
    return -1;
}

#define PWRITE(name, offset_type)                                               \
    ssize_t name(int file, const void *data, size_t size, offset_type offset) { \
        if (!hit(file, NULL)) return REAL(name)(file, data, size, offset);      \
        REAL(name)(file, data, size / 2, offset);                               \
        errno = how;                                                            \
        return -1;                                                              \
    }
PWRITE(pwrite, off_t)
PWRITE(pwrite64, off64_t)

#define BY_PATH(name, more, ...)                                      \
    int name(const char *path more) {                                 \
        return hit(AT_FDCWD, path) ? -1 : REAL(name)(path __VA_ARGS__); \
    }
#define COMMA ,
BY_PATH(unlink, )
BY_PATH(rmdir, )
BY_PATH(mkdir, COMMA mode_t mode, COMMA mode)

int unlinkat(int folder, const char *path, int flags) {
    return hit(folder, path) ? -1 : REAL(unlinkat)(folder, path, flags);
}

int fsync(int file) { return hit(file, NULL) ? -1 : REAL(fsync)(file); }

#define TWO_PATHS(name)                                               \
    int name(const char *from, const char *to) {                      \
        return hit(AT_FDCWD, to) ? -1 : REAL(name)(from, to);         \
    }
TWO_PATHS(rename)
TWO_PATHS(link)

int linkat(int folder, const char *from, int other, const char *to, int flags) {
    return hit(other, to) ? -1 : REAL(linkat)(folder, from, other, to, flags);
}

int renameat(int folder, const char *from, int other, const char *to) {
    return hit(other, to) ? -1 : REAL(renameat)(folder, from, other, to);
}
