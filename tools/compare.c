#include "compare.h"

#include <math.h>
#include <vkattn/reference.h>

bool compare_right(const struct comparison *comparison)
{
    return comparison->ratio <= 1;
}

/* Whether a finite reference may be stored as `value`, an infinity of the storage type. */
static bool may_overflow(vkattn_dtype type, double value, double reference, double bound)
{
    uint32_t stored;
    if (signbit(value) != signbit(reference))
        return false;
    vkattn_encode(type, (float)(fabs(reference) + bound), &stored);
    return isinf(vkattn_decode(type, &stored));
}

/* Error in units of the bound. Nothing here is lenient with NaN: a NaN that one side lacks is infinitely wrong. */
static double judge(vkattn_dtype type, double value, double reference, double bound)
{
    if (value == reference || (isnan(value) && isnan(reference)))
        return 0;
    if (isnan(reference) || isinf(reference) || isnan(bound))
        return INFINITY;
    if (isinf(bound))
        return 0;
    if (isnan(value))
        return INFINITY;
    if (isinf(value))
        return may_overflow(type, value, reference, bound) ? 0 : INFINITY;
    return bound > 0 ? fabs(value - reference) / bound : INFINITY;
}

static void compare_row(const struct compare_view *view, const uint64_t index[3], const double *reference,
                        const double *bound, struct comparison *worst)
{
    const size_t size = vkattn_dtype_size(view->type);
    const uint64_t first = index[0] * view->strides[0] + index[1] * view->strides[1] + index[2] * view->strides[2];
    const char *at = (const char *)view->data + first * size;
    for (uint64_t i = 0; i < view->shape[3]; i++) {
        const double value = (double)vkattn_decode(view->type, at + i * size);
        const double ratio = judge(view->type, value, reference[i], bound[i]);
        if (ratio > worst->ratio)
            *worst = (struct comparison){ratio,        fabs(value - reference[i]),       bound[i], value,
                                         reference[i], {index[0], index[1], index[2], i}};
    }
}

struct comparison compare(const struct compare_view *view, const double *reference, const double *bound)
{
    struct comparison worst = {0};
    size_t offset = 0;
    for (uint64_t b = 0; b < view->shape[0]; b++) {
        for (uint64_t h = 0; h < view->shape[1]; h++) {
            for (uint64_t row = 0; row < view->shape[2]; row++, offset += view->shape[3])
                compare_row(view, (uint64_t[]){b, h, row}, reference + offset, bound + offset, &worst);
        }
    }
    return worst;
}

struct compare_view compare_dense(const void *data, vkattn_dtype type, vkattn_order order, const uint64_t shape[4])
{
    struct compare_view view = {.data = data, .type = type, .shape = {shape[0], shape[1], shape[2], shape[3]}};
    const uint64_t heads = shape[1], rows = shape[2], width = shape[3];
    view.strides[0] = heads * rows * width;
    view.strides[1] = order == VKATTN_BTHD ? width : rows * width;
    view.strides[2] = order == VKATTN_BTHD ? heads * width : width;
    return view;
}
