/* The host memory of one check problem: tensors where its layouts put them, poison everywhere else, and what the
 * reference makes of it. Written from the documentation alone: it shares no code with the library. */
#ifndef VKATTN_TOOLS_TRIAL_DATA_H
#define VKATTN_TOOLS_TRIAL_DATA_H

#include "compare.h"
#include "inputs.h"
#include "problems.h"

#include <vkattn/reference.h>

/* A tensor as [batch, heads, rows, width] of the call. */
struct trial_tensor {
    bool used, output;
    unsigned bits;      /* of one element */
    vkattn_dtype type;  /* of floats */
    enum blob_id store; /* where it lies */
    uint64_t first;     /* its first element there */
    uint64_t heads, rows, width;
    uint64_t strides[3]; /* batch, head, row */
    size_t size;         /* bytes from its first to past its last element; 0: it is empty */
};

/* Memory of one or more tensors. */
struct trial_store {
    unsigned char *bytes; /* of outputs: nothing of interest */
    unsigned char *live; /* 1 for each byte that holds a value which may reach an output, or that an output may write */
    size_t size;
    size_t element; /* bytes that it is aligned to */
};

/* Outputs in the order in which they are compared. */
enum { OUTPUT_O, OUTPUT_LSE, OUTPUT_WEIGHTS, OUTPUT_COUNT };

struct trial_data {
    const struct check_problem *of;
    vkattn_problem problem; /* with the defaults of its sizes filled in */
    vkattn_lengths lengths; /* of the call */
    struct trial_tensor tensors[BLOB_COUNT];
    struct trial_store stores[BLOB_COUNT];
    double *reference[OUTPUT_COUNT], *bound[OUTPUT_COUNT];
    vkattn_dtype p_type; /* that the bounds are for */
};

extern const enum blob_id trial_outputs[OUTPUT_COUNT];

/* Build the inputs and compute the reference. Free the data in either case.
 * VKATTN_NO_MEMORY, or what vkattn_reference_forward returns. */
vkattn_status trial_data_build(const struct check_problem *of, struct trial_data *data);

/* The bounds for a kernel that rounds P to a type; after trial_data_build they are those of one that does not. */
vkattn_status trial_data_round_p(struct trial_data *data, vkattn_dtype p_type);
void trial_data_free(struct trial_data *data);

/* An output in memory laid out as its store is, from its store's first byte on. */
struct compare_view trial_data_view(const struct trial_data *data, unsigned output, const void *bytes);

#endif
