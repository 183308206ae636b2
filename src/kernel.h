/*
 * The contract of a kernel and the catalogue. A kernel says what it cannot do (refuse), what it should not do (cost),
 * and with which numbers it runs (constants). The same stem names shaders/X.comp, src/kernels/X.c and the catalogue's
 * row.
 */
#ifndef VKATTN_KERNEL_H
#define VKATTN_KERNEL_H

#include "caps.h"
#include "problem.h"
#include "shaders/shared/params.h"

/* One SPIR-V module; made from a .comp file by cmake/spirv.cmake. Packed by cmake/embed.cmake: 16-bit units. */
struct spirv {
    const uint16_t *units;
    size_t count;        /* words */
    const char *missing; /* why the build has no such module; NULL: it has */
};

/* One row of a tile table: numbers, with the measurement or the reasoning behind them in a comment beside the row. */
struct tile {
    uint32_t classes;   /* bit n: for enum device_class n */
    bool addresses;     /* only where tensors are reached by address */
    uint32_t max_dim;   /* the larger of dim_qk and dim_v that it is for */
    uint32_t workgroup; /* invocations */
    uint32_t rows;      /* query rows of one invocation */
    uint32_t keys;      /* keys per step */
    uint32_t qk_keys;   /* keys per pass over the query */
    uint32_t pv_keys;   /* keys per pass over the accumulator */
    uint32_t split;     /* subgroups that share the head dimension of a row */
    uint32_t subgroup;  /* size to ask for; 0: whatever the device gives */
    uint32_t subgroups; /* of a work group, where its invocations follow from their size; else 0 */
    struct matrix matrix;
};

enum { REASON_SIZE = sizeof((vkattn_candidate *)0)->reason };

enum role {
    ROLE_FORWARD, /* computes O */
    ROLE_COMBINE, /* joins the parts of a forward kernel that cuts the keys, behind it */
    ROLE_UNPACK,  /* K and V to f32 copies, before; chained kernels need no refuse and no cost */
    ROLE_MERGE,   /* two results into one; a plan of its own */
    ROLE_WEIGHTS, /* W from LSE, behind */
};

/* What a kernel's work groups are numbered over. */
enum work {
    WORK_QUERIES, /* blocks of queries of a head */
    WORK_KEYS,    /* blocks of keys of a kv head */
    WORK_PACKED,  /* parts of the keys for blocks of (query, head of the group) pairs of a kv head */
};

struct kernel {
    const char *name;
    enum role role;
    enum work work;
    /* It reads 16-bit K and V as words, which a tensor that starts in mid-word does not allow, unless VKA_ID_SHIFTED is
     * set. */
    bool needs_words;
    const struct spirv *spirv; /* [0] descriptors, [1] addresses */
    vkattn_dtype p_type;       /* the type that P is rounded to; VKATTN_F32: none */
    const struct tile *tiles;
    uint32_t tile_count;

    /* True, with a sentence in `reason`, when the kernel cannot run the problem on the device with this tile. NULL: it
     * runs any. */
    bool (*refuse)(const struct problem *, const struct caps *, const struct tile *, char reason[REASON_SIZE]);
    /* What it should cost, in a unit that compares kernels on one device. */
    double (*cost)(const struct problem *, const struct caps *, const struct tile *);
    /* Rounds of all loops of one invocation at most, for drivers that stop after so many; NULL: few. */
    double (*rounds)(const struct problem *, const struct tile *);
    /* Specialization constants; all are VKA_FROM_PARAMS or 0 before. */
    void (*constants)(const struct problem *, const struct caps *, const struct tile *, uint32_t values[VKA_IDS]);
    /* Rows of one work group: queries, keys, or pairs, as `work` says. */
    uint32_t (*group_rows)(const struct problem *, const struct tile *);
    /* Parts into which it cuts the keys: problem.parts, if that is not 0; NULL: it does not cut them. */
    uint32_t (*parts)(const struct problem *, const struct caps *, const struct tile *);
    /* Whether K and V are to be unpacked to f32 before; NULL: never. */
    bool (*unpack)(const struct problem *, const struct caps *, const struct tile *);
};

/* THE CATALOGUE. */
extern const struct kernel *const vkattn_kernels[];
extern const uint32_t vkattn_kernel_count;

/* The `count` words of a module. */
void vkattn_spirv_words(const struct spirv *spirv, uint32_t words[]);

/* Helpers that kernels share. */

/* (query, key) pairs of one head that the band and the lengths of the problem leave. */
double vkattn_pairs(const struct problem *problem);

/* Whether a pipeline can be promised subgroups of the tile's size; a tile that wants none is content. Without them it
 * is right and slow. */
bool vkattn_gives_subgroup(const struct caps *caps, const struct tile *tile);

/* Whether all rows of a tensor start on a 32-bit word when the tensor does. */
bool vkattn_rows_on_words(const struct tensor *tensor);

/* Whether that holds for K and V, and they are expected to start on one. */
bool vkattn_kv_on_words(const struct problem *problem);

bool vkattn_is_cpu(const struct caps *caps);

/* `group_rows` where a work group has the tile's rows, and `constants` where a module has a work group's size alone. */
uint32_t vkattn_tile_rows(const struct problem *problem, const struct tile *tile);
void vkattn_workgroup_constant(const struct problem *problem, const struct caps *caps, const struct tile *tile,
                               uint32_t values[VKA_IDS]);

/* The constants that every kernel sets whose loops over keys are specialised: widths, and what mask.glsl tests by pair.
 */
void vkattn_pair_constants(const struct problem *problem, uint32_t values[VKA_IDS]);

/* VKA_ feature bits of a problem. */
uint32_t vkattn_features(const struct problem *problem);

#endif
