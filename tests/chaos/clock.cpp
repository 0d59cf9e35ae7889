// Preloaded into a worker: its wall clock is off by the number of seconds in the file that CHAOS_CLOCK names. The file is
// mapped, so that the clock can be stepped while the worker runs. Monotonic clocks are left alone, as a real step does.
#include <cstdint>
#include <cstdlib>
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile const int64_t* offset() {
    static volatile const int64_t* mapped = [] {
        static const int64_t none = 0;
        const char* path = getenv("CHAOS_CLOCK");
        int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
        if (file < 0) return static_cast<volatile const int64_t*>(&none);
        void* found = mmap(nullptr, sizeof(int64_t), PROT_READ, MAP_SHARED, file, 0);
        close(file);
        return found == MAP_FAILED ? &none : static_cast<volatile const int64_t*>(found);
    }();
    return mapped;
}

extern "C" int clock_gettime(clockid_t clock, struct timespec* now) {
    using Real = int (*)(clockid_t, struct timespec*);
    static Real real = reinterpret_cast<Real>(dlsym(RTLD_NEXT, "clock_gettime"));
    int status = real(clock, now);
    if (status == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) now->tv_sec += *offset();
    return status;
}

extern "C" int gettimeofday(struct timeval* now, void*) {
    struct timespec precise;
    int status = clock_gettime(CLOCK_REALTIME, &precise);
    now->tv_sec = precise.tv_sec;
    now->tv_usec = precise.tv_nsec / 1000;
    return status;
}

extern "C" time_t time(time_t* out) {
    struct timespec precise;
    clock_gettime(CLOCK_REALTIME, &precise);
    if (out) *out = precise.tv_sec;
    return precise.tv_sec;
}
