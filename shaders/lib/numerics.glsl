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

// Round to nearest even; overflow to infinity, NaN to a quiet NaN. mix() on bools is a select: glslang makes branches of
// ?: and of early returns, and a kernel stores hundreds of these.
uint encode_f16(float x)
{
    const uint bits = floatBitsToUint(x), magnitude = bits & 0x7FFFFFFFu;
    const uint normal = (magnitude - 0x38000000u + 0xFFFu + ((magnitude >> 13) & 1)) >> 13;
    // 0.5 has units of 2^-24, those of a subnormal half: the addition rounds.
    const uint subnormal = floatBitsToUint(uintBitsToFloat(magnitude) + 0.5) - 0x3F000000u;
    uint half_bits = mix(normal, subnormal, magnitude < 0x38800000u);
    half_bits = mix(half_bits, 0x7C00u, magnitude >= 0x477FF000u); // 65520, from which on infinity is nearest
    half_bits = mix(half_bits, 0x7E00u, magnitude > INFINITY_BITS);
    return half_bits | ((bits >> 16) & 0x8000u);
}

uint encode_bf16(float x)
{
    const uint bits = floatBitsToUint(x);
    return mix((bits + 0x7FFFu + ((bits >> 16) & 1)) >> 16, (bits >> 16) | 0x40u, is_nan(x));
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
