/* From .npy files to a problem and its tensors in host memory. */
#ifndef VKATTN_TOOLS_INPUTS_H
#define VKATTN_TOOLS_INPUTS_H

#include "npy.h"
#include "options.h"

#include <stdbool.h>
#include <stddef.h>
#include <vkattn/vkattn.h>

enum blob_id {
    BLOB_Q,
    BLOB_K,
    BLOB_V,
    BLOB_O,
    BLOB_LSE,
    BLOB_WEIGHTS,
    BLOB_MASK,
    BLOB_BIAS,
    BLOB_ALIBI,
    BLOB_SINKS,
    BLOB_KV_LENGTHS,
    BLOB_Q_LENGTHS,
    BLOB_PREFIX,
    BLOB_Q_SEGMENTS,
    BLOB_KV_SEGMENTS,
    BLOB_COUNT
};

/* Memory of one tensor; data is NULL when the problem does not use it, and never otherwise, not even for 0 bytes. */
struct blob {
    void *data;
    size_t size;
};

struct inputs {
    vkattn_problem problem;
    struct blob blobs[BLOB_COUNT];
    unsigned q_dims; /* of Q's file: what O's will have */
};

/* Load, convert and check every file that the options name; of outputs, only the flags are set. With a --shape no
 * memory is taken for Q, K and V. Complains and returns false on bad input. Free it in either case. */
bool inputs_load(const struct options *options, struct inputs *inputs);

/* Allocate O, and LSE and weights where asked for. Complains and returns false when memory is exhausted. */
bool inputs_allocate_outputs(struct inputs *inputs);

/* The shape that O's file has: Q's layout and number of dimensions. Returns that number. */
unsigned inputs_o_shape(const struct inputs *inputs, uint64_t shape[4]);

/* Read a float array of exactly O's shape. Complains and returns false when it is none; free it with npy_free. */
bool inputs_read_like_o(const char *path, const struct inputs *inputs, struct npy_array *array);

/* Element i of a float16, float32 or float64 array. */
double inputs_element(const struct npy_array *array, size_t i);

vkattn_tensors inputs_tensors(const struct inputs *inputs);

void inputs_free(struct inputs *inputs);

/* Product of `count` sizes; false when it overflows. */
bool inputs_product(const uint64_t *sizes, unsigned count, size_t *product);

#endif
