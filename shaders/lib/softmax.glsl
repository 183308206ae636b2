// Running softmax statistics of one row (Milakov and Gimelshein 2018, arXiv:1805.02867, algorithm 3), without a finite
// stand-in for -inf: `seen` tells an empty row, `poison` a row with a NaN or +inf score, which max() might drop.
#ifndef SOFTMAX_GLSL
#define SOFTMAX_GLSL

#include "lib/mask.glsl"

struct Softmax {
    float m;     // largest score so far, meaningful once it is above -inf
    float l;     // sum of exp(s - m)
    float rest;  // what the additions to l rounded up, to be taken off the next one
    bool seen;   // at least one visible key
    bool poison;
};

Softmax softmax_empty()
{
    return Softmax(negative_infinity(), 0.0, 0.0, false, false);
}

// exp(a - b) for a <= b, 0 for a = -inf even when b is too.
float exp_difference(float a, float b)
{
    return is_negative_infinity(a) ? 0.0 : exp(a - b);
}

// l = factor l + sum, compensated (Kahan 1965, "Further remarks on reducing truncation errors"): over 65,536 nearly equal
// weights the plain sum drifts by more than LSE may be off.
void softmax_add(inout Softmax row, float factor, float sum)
{
    precise float scaled = row.l * factor;
    precise float addend = sum - row.rest * factor;
    precise float total = scaled + addend;
    precise float rest = (total - scaled) - addend;
    row.rest = rest;
    row.l = total;
}

// What is subtracted from scores before exp(): m, or 0 while no seen score is above -inf, so that -inf - -inf never occurs.
float exponent_base(Softmax row)
{
    return is_negative_infinity(row.m) ? 0.0 : row.m;
}

// Take a sink's logit into the sum; returns the factor for the accumulator.
float softmax_sink(inout Softmax row, float sink)
{
    // max() may drop a NaN, and an empty row keeps the logit itself for its LSE.
    float m = row.seen ? max(row.m, sink) : sink;
    float factor = exp_difference(row.m, m);
    row.l = row.l * factor + exp_difference(sink, m);
    row.m = m;
    row.poison = row.poison || is_poison(sink);
    return factor;
}

// A row whose visible scores are all -inf is NaN, as the formula says: exp(-inf - -inf). An empty row is 0, whatever its
// sink.
bool softmax_is_nan(Softmax row)
{
    return row.seen && (row.poison || is_negative_infinity(row.m));
}

// What the accumulator is multiplied by at the end; the caller selects NaN where softmax_is_nan.
float softmax_inverse(Softmax row)
{
    return row.l > 0.0 ? 1.0 / row.l : 0.0;
}

const float LOG2_E = 1.44269504088896340736;

float softmax_lse(Softmax row)
{
    if (softmax_is_nan(row))
        return uintBitsToFloat(NAN_BITS);
    if (is_negative_infinity(row.m))
        return negative_infinity();
    float lse = row.seen ? row.m + log(row.l) : row.m;
    return (PARAMS.features & VKA_LSE_BASE_2) != 0 ? lse * LOG2_E : lse;
}

#endif
