/* The canonical problem: validated, every default filled in, every layout three strides. */
#ifndef VKATTN_PROBLEM_H
#define VKATTN_PROBLEM_H

#include <stdbool.h>
#include <vkattn/vkattn.h>

/* Every tensor of a problem. shaders/shared/params.h has the same order, which is the binding order too. */
enum tensor_id {
    TENSOR_Q,
    TENSOR_K,
    TENSOR_V,
    TENSOR_O,
    TENSOR_LSE,
    TENSOR_WEIGHTS,
    TENSOR_MASK,
    TENSOR_BIAS,
    TENSOR_ALIBI,
    TENSOR_SINKS,
    TENSOR_KV_LENGTHS,
    TENSOR_Q_LENGTHS,
    TENSOR_PREFIX,
    TENSOR_Q_SEGMENTS,
    TENSOR_KV_SEGMENTS,
    TENSOR_K_COPY, /* the library's own, in the workspace */
    TENSOR_V_COPY,
    TENSOR_SUMS,
    TENSOR_PARTS,
    TENSOR_STATS,
    TENSOR_COUNT
};

/* A merge's own tensors take places of others; params.h has the same. */
enum merge_tensor_id {
    TENSOR_FIRST_O = TENSOR_K,
    TENSOR_SECOND_O = TENSOR_V,
    TENSOR_FIRST_LSE = TENSOR_Q,
    TENSOR_SECOND_LSE = TENSOR_WEIGHTS
};

/* One tensor as [batch, heads, rows, row_width] with free strides in elements. */
struct tensor {
    bool used;
    bool output;
    uint32_t bits; /* of one element: 1, 8, 16, 32 */
    uint32_t heads;
    uint64_t rows;
    uint32_t row_width;
    uint64_t batch_stride;
    uint64_t head_stride;
    uint64_t row_stride;
};

struct problem {
    bool merge;                             /* of two results: kv_type is theirs, and len_kv is len_q */
    const char *const *names;               /* of tensors, as the public structs spell them */
    uint32_t batch, heads, kv_heads, group; /* group = heads / kv_heads */
    uint32_t len_q, len_kv, dim_qk, dim_v;
    vkattn_dtype q_type, kv_type, o_type, bias_type;
    uint32_t flags;
    bool bottom_right;
    int32_t left, right; /* within +-VKA_UNBOUNDED, which excludes nothing; causal is folded into right */
    vkattn_mask_kind mask_kind;
    bool mask_ignores; /* True hides the key */
    float scale, softcap;
    bool mid_word_starts; /* the plan's options say so of K and V */
    uint32_t parts;       /* of the keys, as the plan's options say; 0: as the kernel likes */
    struct tensor tensors[TENSOR_COUNT];
};

/* Names of an attention's tensors: "q", "kv_lengths". */
extern const char *const vkattn_tensor_names[TENSOR_COUNT];

/* Tensors that a caller may hand over come first. */
enum { TENSOR_PUBLIC_COUNT = TENSOR_K_COPY };

/* Check and complete `in`. On failure the sentence of vkattn_last_error names the field and the value. */
vkattn_status vkattn_problem_canonical(const vkattn_problem *in, size_t in_size, struct problem *out);

/* The same for a merge. */
vkattn_status vkattn_merge_canonical(const vkattn_merge *in, size_t in_size, struct problem *out);

/* The lengths of a call: `lengths`, or the problem's when NULL; VKATTN_INVALID when above the problem's. */
vkattn_status vkattn_problem_lengths(const struct problem *problem, const vkattn_lengths *lengths, vkattn_lengths *out);

/* Add a tensor of the library's own, f32, whose heads and batch members lie behind each other at t.row_stride. Returns
 * its bytes. */
uint64_t vkattn_problem_add_own(struct problem *problem, enum tensor_id id, struct tensor t);

/* Bits from a tensor's first to past its last element when `lengths` are used; 0 when it is empty or unused.
 * False when that overflows 64 bits. */
bool vkattn_tensor_extent(const struct problem *problem, enum tensor_id id, const vkattn_lengths *lengths,
                          uint64_t *bits);

/* The tensor with the rows and columns that `lengths` leave of it. */
struct tensor vkattn_tensor_of(const struct problem *problem, enum tensor_id id, const vkattn_lengths *lengths);

/* The pointer of a tensor in the public struct of host pointers. */
const void *vkattn_tensors_get(const vkattn_tensors *tensors, enum tensor_id id);

#endif
