// Times and how they are counted, for the programs beside this.
#include <stdint.h>
#include <time.h>

#define STEPS 32
#define BUCKETS (64 * STEPS)

static uint64_t now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

// A bucket is a thirty-second part of a power of two: figures are good to three percent.
static int bucket_of(uint64_t ns) {
    if (ns < STEPS) return (int)ns;
    int power = 63 - __builtin_clzll(ns);
    return (power - 4) * STEPS + (int)((ns >> (power - 5)) & (STEPS - 1));
}

static double bucket_ns(int bucket) {
    if (bucket < STEPS) return bucket;
    int power = bucket / STEPS + 4;
    return (double)((uint64_t)1 << power) * (1.0 + (bucket % STEPS + 0.5) / STEPS);
}
