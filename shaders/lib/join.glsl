// Joining partial results over disjoint keys, exactly: each has weight l exp(m - M), M the largest m. `m` and `l` are a
// part's maximum and sum of exponentials; a normalised part with its LSE is m = LSE, l = 1.
#ifndef JOIN_GLSL
#define JOIN_GLSL

#include "lib/softmax.glsl"

struct Part {
    float m, l;
    bool seen, poison;
};

// First over all parts: the maximum, and what was met.
void join_meet(inout Softmax row, Part part)
{
    row.seen = row.seen || part.seen;
    row.poison = row.poison || part.poison;
    if (part.seen && !part.poison)
        row.m = max(row.m, part.m);
}

// What values of a part are multiplied by, before the division by l. 0 for a part that saw nothing: its values, which may
// be anything, are to be selected away. `unit` is ln 2 where m is in units of log2, else 1.
float join_weight(Softmax row, Part part, float unit)
{
    const bool none = !part.seen || is_negative_infinity(part.m);
    return none ? 0.0 : exp((part.m - row.m) * unit);
}

// Second: l.
void join_add(inout Softmax row, Part part, float unit)
{
    softmax_add(row, 1.0, part.l * join_weight(row, part, unit));
}

#endif
