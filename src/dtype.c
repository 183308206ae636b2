/* Storage types on the CPU. Rounding is done on the bits: once, and whatever the machine's rounding mode or flushing of
 * subnormals. */
#include "dtype.h"

#include <stdbool.h>
#include <string.h>

enum {
    F32_FRACTION = 23,
    F16_FRACTION = 10,
    DROPPED = F32_FRACTION - F16_FRACTION, /* bits of an f32 fraction that binary16 lacks */
    REBIAS = 127 - 15,                     /* between the exponent biases */
    F16_INFINITY = 0x7c00,
    F32_QUIET = 0x00400000,
    F16_QUIET = 0x0200,
    BF16_QUIET = 0x0040
};

static const uint32_t f32_infinity = UINT32_C(0x7f800000);

static float from_bits(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static uint32_t to_bits(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

/* value / 2^shift to the nearest integer, ties to even; shift is 1 to 24. */
static uint32_t shift_round(uint32_t value, uint32_t shift)
{
    const uint32_t below_half = (UINT32_C(1) << (shift - 1)) - 1;
    return (value + below_half + (value >> shift & 1)) >> shift;
}

static float decode_f16(uint16_t half)
{
    const uint32_t sign = (uint32_t)(half & 0x8000) << 16;
    const uint32_t magnitude = half & 0x7fff;
    if (magnitude >= F16_INFINITY)
        return from_bits(sign | f32_infinity | magnitude << DROPPED);
    if (magnitude >> F16_FRACTION == 0)
        return from_bits(sign | to_bits((float)magnitude * 0x1p-24f));
    return from_bits(sign | ((magnitude << DROPPED) + ((uint32_t)REBIAS << F32_FRACTION)));
}

/* magnitude: bits of an f32 without its sign, not a NaN. A carry out of the fraction is one into the exponent, up to
 * infinity. */
static uint32_t round_to_f16(uint32_t magnitude)
{
    const uint32_t exponent = magnitude >> F32_FRACTION;
    if (exponent > REBIAS) {
        const uint32_t half = shift_round(magnitude - ((uint32_t)REBIAS << F32_FRACTION), DROPPED);
        return half < F16_INFINITY ? half : F16_INFINITY;
    }
    /* A subnormal counts units of 2^-24; the f32 is its 24-bit significand times 2^(exponent - 150). */
    const uint32_t significand = (magnitude & ((UINT32_C(1) << F32_FRACTION) - 1)) | UINT32_C(1) << F32_FRACTION;
    const uint32_t shift = REBIAS + 14 - exponent;
    return shift > 24 ? 0 : shift_round(significand, shift);
}

static bool is_nan(uint32_t bits)
{
    return (bits & 0x7fffffff) > f32_infinity;
}

static uint32_t encode_f32(uint32_t bits)
{
    return is_nan(bits) ? bits | F32_QUIET : bits;
}

static uint16_t encode_f16(uint32_t bits)
{
    const uint32_t sign = bits >> 16 & 0x8000;
    const uint32_t magnitude = bits & 0x7fffffff;
    if (is_nan(bits))
        return (uint16_t)(sign | F16_INFINITY | F16_QUIET | (magnitude >> DROPPED & 0x3ff));
    return (uint16_t)(sign | round_to_f16(magnitude));
}

static uint16_t encode_bf16(uint32_t bits)
{
    if (is_nan(bits))
        return (uint16_t)(bits >> 16 | BF16_QUIET);
    return (uint16_t)shift_round(bits, 16);
}

const char *vkattn_dtype_name(vkattn_dtype type)
{
    return type == VKATTN_F32 ? "f32" : type == VKATTN_F16 ? "f16" : type == VKATTN_BF16 ? "bf16" : "unknown dtype";
}

size_t vkattn_dtype_size(vkattn_dtype type)
{
    return type == VKATTN_F32 ? 4 : 2;
}

float vkattn_decode(vkattn_dtype type, const void *element)
{
    float value;
    uint16_t half;
    if (type == VKATTN_F32) {
        memcpy(&value, element, sizeof value);
        return value;
    }
    memcpy(&half, element, sizeof half);
    return type == VKATTN_F16 ? decode_f16(half) : from_bits((uint32_t)half << 16);
}

void vkattn_encode(vkattn_dtype type, float value, void *element)
{
    const uint32_t bits = to_bits(value);
    if (type == VKATTN_F32) {
        const uint32_t word = encode_f32(bits);
        memcpy(element, &word, sizeof word);
        return;
    }
    const uint16_t half = type == VKATTN_F16 ? encode_f16(bits) : encode_bf16(bits);
    memcpy(element, &half, sizeof half);
}
