/* How far a result is from the reference, measured in its bound. */
#ifndef VKATTN_TOOLS_COMPARE_H
#define VKATTN_TOOLS_COMPARE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <vkattn/vkattn.h>

/* A result as [batch, head, row, element] with strides in elements; the last one is 1. */
struct compare_view {
    const void *data;
    vkattn_dtype type;
    uint64_t shape[4];
    uint64_t strides[3];
};

/* The element that is worst. */
struct comparison {
    double ratio; /* error / bound; infinite where only one is NaN or infinite, 0 where there are no elements */
    double error, bound, value, reference;
    uint64_t index[4];
};

/* reference and bound are dense. An element is right when it equals the reference (NaN equals NaN), or is within the
 * bound; an infinite bound allows anything where the reference is finite; a value that the type rounds to infinity may
 * be so. */
struct comparison compare(const struct compare_view *view, const double *reference, const double *bound);

/* Whether everything compared is inside its bound. */
bool compare_right(const struct comparison *comparison);

/* The dense view of a tensor whose order is VKATTN_BHTD or VKATTN_BTHD. */
struct compare_view compare_dense(const void *data, vkattn_dtype type, vkattn_order order, const uint64_t shape[4]);

#endif
