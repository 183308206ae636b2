// Arithmetic that drivers get wrong (SEMANTICS "Seen on real drivers"): NaN tests, tanh, 16-bit encoders and decoders.
// All of it works on the bits, since the language lets a driver assume that no NaN and no Inf exist.
#ifndef NUMERICS_GLSL
#define NUMERICS_GLSL

const uint NAN_BITS = 0x7FC00000u;
const uint INFINITY_BITS = 0x7F800000u;

bool is_nan(float x)
{
    return (floatBitsToUint(x) & 0x7FFFFFFFu) > INFINITY_BITS;
}

bool is_negative_infinity(float x)
{
    return floatBitsToUint(x) == (INFINITY_BITS | 0x80000000u);
}

// A visible score that makes its whole row NaN: NaN itself, and +inf, since inf - inf is NaN.
bool is_poison(float x)
{
    return is_nan(x) || floatBitsToUint(x) == INFINITY_BITS;
}

float negative_infinity()
{
    return uintBitsToFloat(INFINITY_BITS | 0x80000000u);
}

// tanh to a few ulp at every x. Below 0.55 the odd minimax-like series keeps the relative error that 1 - 2/(e^2x + 1)
// would cancel away (|x| < 0.55: Taylor to x^13 is good to 2^-25); above 10 the result rounds to 1.
float tanh_exact(float x)
{
    float a = min(abs(x), 10.0);
    float t = a * a;
    float series = a + a * t * (-1.0 / 3.0 + t * (2.0 / 15.0 + t * (-17.0 / 315.0 + t * (62.0 / 2835.0 +
                   t * (-1382.0 / 155925.0 + t * (21844.0 / 6081075.0 - t * (929569.0 / 638512875.0)))))));
    float ratio = 1.0 - 2.0 / (exp(2.0 * a) + 1.0);
    float magnitude = a < 0.55 ? series : ratio;
    return is_nan(x) ? x : (floatBitsToUint(x) >> 31) != 0 ? -magnitude : magnitude;
}

// Round to nearest even; overflow to infinity, NaN to a quiet NaN.
uint encode_f16(float x)
{
    uint bits = floatBitsToUint(x);
    uint sign = (bits >> 16) & 0x8000u;
    uint magnitude = bits & 0x7FFFFFFFu;
    if (magnitude > INFINITY_BITS)
        return sign | 0x7E00u;
    if (magnitude >= 0x477FF000u) // 65520, from which on the nearest half is infinite
        return sign | 0x7C00u;
    if (magnitude < 0x33000000u) // below 2^-25: half of the smallest subnormal rounds to even, 0
        return sign;
    if (magnitude < 0x38800000u) { // subnormal half: shift the significand to units of 2^-24
        uint shift = 126 - (magnitude >> 23);
        uint significand = (magnitude & 0x7FFFFFu) | 0x800000u;
        uint kept = significand >> shift;
        uint rest = significand & ((1u << shift) - 1), half_unit = 1u << (shift - 1);
        return sign | (kept + uint(rest > half_unit || (rest == half_unit && (kept & 1) != 0)));
    }
    return sign | ((magnitude - 0x38000000u + 0xFFFu + ((magnitude >> 13) & 1)) >> 13);
}

uint encode_bf16(float x)
{
    uint bits = floatBitsToUint(x);
    if (is_nan(x))
        return (bits >> 16) | 0x40u;
    return (bits + 0x7FFFu + ((bits >> 16) & 1)) >> 16;
}

// Exact for every half, whatever the driver flushes: subnormals are integers times 2^-24.
float decode_f16(uint half_bits)
{
    uint sign = (half_bits & 0x8000u) << 16;
    uint magnitude = half_bits & 0x7FFFu;
    uint normal = (magnitude << 13) + (magnitude < 0x7C00u ? 0x38000000u : 0x70000000u);
    uint subnormal = floatBitsToUint(float(magnitude) * 5.9604644775390625e-8);
    return uintBitsToFloat(sign | (magnitude < 0x400u ? subnormal : normal));
}

#endif
