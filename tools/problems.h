/* The problems of `vkattn check`: a table of named ones, and random ones from a seed. A problem here is more than a
 * vkattn_problem: it says what its tensors hold, and how they share memory. */
#ifndef VKATTN_TOOLS_PROBLEMS_H
#define VKATTN_TOOLS_PROBLEMS_H

#include <stdbool.h>
#include <stdint.h>
#include <vkattn/vkattn.h>

/* Below, "the middle key" is len_kv / 2 and "the middle query" len_q / 2, of the call. */

enum score_data {
    SCORES_NORMAL,    /* of unit variance at the default scale */
    SCORES_ZERO,      /* Q = 0 */
    SCORES_LARGE,     /* up to about +-60 at the default scale */
    SCORES_HUGE,      /* products near the range of f32 */
    SCORES_STEP,      /* q.k = 10 for even keys and 0 for odd ones */
    SCORES_DOMINANT,  /* the last key outweighs all others */
    SCORES_SUBNORMAL, /* Q and K hold small multiples of 2^-24 */
    SCORES_NAN_KEY,   /* the middle key of the first head of K holds NaN */
    SCORES_NAN_QUERY, /* the middle query of the first head holds NaN */
    SCORES_INFINITE,  /* every seventh key scores +inf for odd queries and -inf for even ones */
    SCORES_NO_FINITE, /* every key scores -inf for even queries; odd ones are normal */
    SCORES_COUNT
};

/* "Keyed" values tell keys apart: a dropped or doubled key shows in some column. */
enum value_data {
    VALUES_KEYED,
    VALUES_ONE_HOT,      /* V[j][r] = (j mod dv == r) */
    VALUES_INDEX,        /* V[j] = j + 1 */
    VALUES_CONSTANT,     /* problem.constant */
    VALUES_CONSTANT_NAN, /* likewise, and NaN in odd columns of the middle key */
    VALUES_LARGE,        /* keyed, up to 90,000 (60,000 in f16) */
    VALUES_SUBNORMAL,    /* keyed multiples of 2^-24 */
    VALUES_NAN,          /* keyed, and NaN in odd columns of the middle key */
    VALUES_INFINITE,     /* keyed, and +inf in odd columns of the middle key */
    VALUES_COUNT
};

enum mask_data {
    MASK_RANDOM,     /* two of three pairs are visible */
    MASK_SPARSE,     /* one of twenty */
    MASK_LAST_HALF,  /* j >= len_kv / 2: whole tiles are hidden first */
    MASK_FIRST_HALF, /* j < len_kv / 2 */
    MASK_LAST_KEY,   /* the last one alone */
    MASK_ROWS,       /* as random, and every second row hidden altogether */
    MASK_LAST_ROW,   /* all but the last row */
    MASK_ONE_ROW,    /* all, but the middle key is seen by the middle query alone */
    MASK_TRIANGLE,   /* j <= i */
    MASK_NOTHING,    /* no pair at all */
    MASK_COUNT
};

enum bias_data {
    BIAS_NORMAL,
    BIAS_HOLES,     /* -inf for three of ten */
    BIAS_LAST_HALF, /* -inf where j < len_kv / 2, else 0 */
    BIAS_ROWS,      /* holes, and every second row -inf altogether */
    BIAS_LOWEST,    /* the lowest finite value everywhere */
    BIAS_MIXED,     /* the lowest finite value for three of ten */
    BIAS_LARGE,     /* up to +-10,000 */
    BIAS_INFINITE,  /* normal, but +inf for the middle query and the first key */
    BIAS_NAN,       /* normal, but NaN there */
    BIAS_COUNT
};

/* For each batch member, of T keys or queries. */
enum length_data {
    LENGTHS_MIXED,  /* T/2 + 1, 0, T, -3, T + 9, 1, the largest and the lowest int32, in turn */
    LENGTHS_RANDOM, /* -2 to T + 2 */
    LENGTHS_ZERO,
    LENGTHS_HALF,
    LENGTHS_COUNT
};

enum segment_data {
    SEGMENTS_PACKED,    /* runs; queries have those of the keys */
    SEGMENTS_SCATTERED, /* one of a few values for each */
    SEGMENTS_DISJOINT,  /* no query has a key's value */
    SEGMENTS_COUNT
};

enum sink_data {
    SINKS_NORMAL,
    SINKS_MIXED,    /* 0, -infinity, 80, -80 in turn */
    SINKS_LOG,      /* h ln(len_kv) */
    SINKS_INFINITE, /* +infinity for odd heads */
    SINKS_COUNT
};

enum sharing {
    SHARE_NOTHING,
    SHARE_PACKED, /* Q, K and V are parts of one [batch, len, heads + 2 kv_heads, dim] tensor */
    SHARE_KV      /* V is the beginning of K's rows (latent attention) */
};

/* What fills the memory that must not reach an output. */
enum poison { POISON_NAN, POISON_INFINITE, POISON_LARGEST, POISON_COUNT };

#define PROBLEM_NAME_SIZE 40u

struct check_problem {
    char name[PROBLEM_NAME_SIZE];
    const char *about; /* what it is for; NULL: the name says it */
    vkattn_problem problem;
    bool shortened; /* the call uses `lengths`, not the capacities */
    vkattn_lengths lengths;
    enum score_data scores;
    enum value_data values;
    float constant;
    enum mask_data mask;
    enum bias_data bias;
    enum length_data kv_lengths, q_lengths, prefix;
    enum segment_data segments;
    enum sink_data sinks;
    enum sharing sharing;
    enum poison poison;
    uint64_t max_work; /* the repeated runs are cut into dispatches of so much; 0: they are not */
    uint32_t repeats;  /* further runs that must give the same bits; 0: 1 */
    bool once;         /* one run is enough, since it is long on slow drivers */
    uint64_t seed;     /* of everything random in its tensors */
};

/* Fill in a row of the table; false past its end. */
bool problems_named(uint32_t index, struct check_problem *problem);

/* The problem of a seed, "random:SEED". */
void problems_random(uint64_t seed, struct check_problem *problem);

/* The seed of a "random:SEED". */
bool problems_random_seed(const char *name, uint64_t *seed);

#endif
