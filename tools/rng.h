/* Random numbers that are the same on every platform: splitmix64 (Steele, Lea and Flood 2014), and no libm. */
#ifndef VKATTN_TOOLS_RNG_H
#define VKATTN_TOOLS_RNG_H

#include <stdbool.h>
#include <stdint.h>

struct rng {
    uint64_t state;
};

static inline uint64_t rng_next(struct rng *rng)
{
    uint64_t z = rng->state += UINT64_C(0x9E3779B97F4A7C15);
    z = (z ^ (z >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94D049BB133111EB);
    return z ^ (z >> 31);
}

/* 0 .. count-1; count > 0 */
static inline uint32_t rng_below(struct rng *rng, uint32_t count)
{
    return (uint32_t)((rng_next(rng) >> 32) * count >> 32);
}

static inline bool rng_chance(struct rng *rng, uint32_t percent)
{
    return rng_below(rng, 100) < percent;
}

/* [0, 1), a multiple of 2^-24 */
static inline float rng_unit(struct rng *rng)
{
    return (float)(rng_next(rng) >> 40) * 0x1p-24f;
}

static inline float rng_between(struct rng *rng, float low, float high)
{
    return low + (high - low) * rng_unit(rng);
}

/* Mean 0, variance 1, within +-3.5: a sum of four uniform ones. */
static inline float rng_normal(struct rng *rng)
{
    const float sum = rng_unit(rng) + rng_unit(rng) + rng_unit(rng) + rng_unit(rng);
    return (sum - 2) * 1.7320508f;
}

#endif
