/* Storage types: every 16-bit pattern, and the encoder against neighbours found without it. */
#include "dtype.h"

#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

enum { PATTERNS = 0x10000, SIGN = 0x8000 };

struct format {
    vkattn_dtype type;
    int fraction; /* bits */
    int bias;
    uint16_t infinity;
};

static const struct format formats[] = {{VKATTN_F16, 10, 15, 0x7c00}, {VKATTN_BF16, 7, 127, 0x7f80}};
enum { FORMATS = sizeof formats / sizeof *formats };

static uint16_t encode(vkattn_dtype type, float value)
{
    uint16_t pattern;
    vkattn_encode(type, value, &pattern);
    return pattern;
}

static float decode(vkattn_dtype type, uint32_t pattern)
{
    const uint16_t half = (uint16_t)pattern;
    return vkattn_decode(type, &half);
}

static bool is_nan(const struct format *f, uint32_t pattern)
{
    return (pattern & (SIGN - 1)) > f->infinity;
}

/* The value of a finite pattern by the definition of IEEE 754. */
static double value_of(const struct format *f, uint32_t pattern)
{
    const uint32_t exponent = (pattern & (SIGN - 1)) >> f->fraction;
    const uint32_t fraction = pattern & ((1u << f->fraction) - 1);
    const uint32_t significand = exponent ? fraction | 1u << f->fraction : fraction;
    const double magnitude = ldexp(significand, (int)(exponent ? exponent : 1) - f->bias - f->fraction);
    return pattern & SIGN ? -magnitude : magnitude;
}

static void expect(const struct format *f, float value, uint32_t pattern)
{
    cr_assert(encode(f->type, value) == pattern, "%s: %a became %04x, not %04x", vkattn_dtype_name(f->type),
              (double)value, encode(f->type, value), pattern);
}

static void expect_both_signs(const struct format *f, float magnitude, uint32_t pattern)
{
    expect(f, magnitude, pattern);
    expect(f, -magnitude, pattern | SIGN);
}

Test(dtype, names_and_sizes)
{
    cr_assert_str_eq(vkattn_dtype_name(VKATTN_F32), "f32");
    cr_assert_str_eq(vkattn_dtype_name(VKATTN_F16), "f16");
    cr_assert_str_eq(vkattn_dtype_name(VKATTN_BF16), "bf16");
    cr_assert(vkattn_dtype_size(VKATTN_F32) == 4 && vkattn_dtype_size(VKATTN_F16) == 2 &&
              vkattn_dtype_size(VKATTN_BF16) == 2);
}

Test(dtype, every_pattern_decodes_to_its_value)
{
    for (const struct format *f = formats; f < formats + FORMATS; f++)
        for (uint32_t pattern = 0; pattern < PATTERNS; pattern++) {
            const float value = decode(f->type, pattern);
            const uint32_t magnitude = pattern & (SIGN - 1);
            if (is_nan(f, pattern))
                cr_assert(isnan(value), "%s %04x", vkattn_dtype_name(f->type), pattern);
            else if (magnitude == f->infinity)
                cr_assert(isinf(value) && (value < 0) == (pattern != magnitude));
            else
                cr_assert((double)value == value_of(f, pattern) && !signbit(value) == (pattern == magnitude), "%s %04x",
                          vkattn_dtype_name(f->type), pattern);
        }
}

Test(dtype, every_pattern_round_trips)
{
    for (const struct format *f = formats; f < formats + FORMATS; f++)
        for (uint32_t pattern = 0; pattern < PATTERNS; pattern++) {
            const uint32_t quiet = is_nan(f, pattern) ? 1u << (f->fraction - 1) : 0;
            expect(f, decode(f->type, pattern), pattern | quiet);
        }
}

/* Between each value and the next: the middle goes to the even one, a hair to either side to the nearer one. The next
 * of the largest finite value is infinity, which stands where the next power of two would be. */
Test(dtype, ties_go_to_even_and_neighbours_to_the_nearest)
{
    for (const struct format *f = formats; f < formats + FORMATS; f++)
        for (uint32_t low = 0; low < f->infinity; low++) {
            const float middle = (float)((value_of(f, low) + value_of(f, low + 1)) / 2);
            expect_both_signs(f, middle, low + (low & 1));
            expect_both_signs(f, nextafterf(middle, 0), low);
            expect_both_signs(f, nextafterf(middle, INFINITY), low + 1);
        }
}

Test(dtype, f16_overflows_at_65520)
{
    const struct format *f = &formats[0];
    expect_both_signs(f, 65504.0f, 0x7bff);
    expect_both_signs(f, 65519.99f, 0x7bff);
    expect_both_signs(f, 65520.0f, 0x7c00);
    expect_both_signs(f, 70000.0f, 0x7c00);
    expect_both_signs(f, 0x1.fffffep127f, 0x7c00);
    expect_both_signs(f, INFINITY, 0x7c00);
}

Test(dtype, f16_keeps_subnormals)
{
    const struct format *f = &formats[0];
    expect_both_signs(f, 0x1p-24f, 0x0001);
    expect_both_signs(f, 0x1p-25f, 0x0000);
    expect_both_signs(f, 0x1.000002p-25f, 0x0001);
    expect_both_signs(f, 0x1.8p-24f, 0x0002);
    expect_both_signs(f, 0x1.ff8p-15f, 0x03ff);
    expect_both_signs(f, 0x1.ffbffep-15f, 0x03ff);
    expect_both_signs(f, 0x1.ffcp-15f, 0x0400);
    expect_both_signs(f, 0x1p-14f, 0x0400);
    expect_both_signs(f, 0x1p-149f, 0x0000);
    expect_both_signs(f, 0.0f, 0x0000);
}

/* 1 + 2^-11 + 2^-30 as a double is above the tie and its f32 is the tie: the value that counts is the f32. In one step
 * 1 + 2^-11 + 2^-23 goes up; by way of a type with fewer bits it would have become the tie, and then 1. */
Test(dtype, rounds_once)
{
    expect(&formats[0], (float)(1 + 0x1p-11 + 0x1p-30), 0x3c00);
    expect(&formats[0], 1 + 0x1p-11f + 0x1p-23f, 0x3c01);
    expect(&formats[1], 1 + 0x1p-8f + 0x1p-23f, 0x3f81);
    expect(&formats[0], 0x1p-14f - 0x1p-25f - 0x1p-37f, 0x03ff);
}

Test(dtype, bf16_overflows_past_its_largest)
{
    const struct format *f = &formats[1];
    expect_both_signs(f, 0x1.fep127f, 0x7f7f);
    expect_both_signs(f, 0x1.fefffep127f, 0x7f7f);
    expect_both_signs(f, 0x1.ffp127f, 0x7f80);
    expect_both_signs(f, 0x1.fffffep127f, 0x7f80);
}

/* Payloads whose kept bits are 0 must not turn into infinity. */
Test(dtype, nan_stays_a_quiet_nan)
{
    const uint32_t words[] = {0x7fc00000, 0x7f800001, 0xff800001, 0x7fffffff, 0xffc12345, 0x7fa00000};
    for (size_t n = 0; n < sizeof words / sizeof *words; n++) {
        float value;
        memcpy(&value, &words[n], sizeof value);
        for (const struct format *f = formats; f < formats + FORMATS; f++) {
            const uint32_t pattern = encode(f->type, value);
            cr_assert(is_nan(f, pattern) && pattern >> (f->fraction - 1) & 1, "%08x became %04x", words[n], pattern);
            cr_assert((pattern & SIGN) == (words[n] >> 16 & SIGN));
        }
        uint32_t word;
        vkattn_encode(VKATTN_F32, value, &word);
        cr_assert(word == (words[n] | 0x00400000));
    }
}

Test(dtype, f32_is_stored_as_it_is_and_needs_no_alignment)
{
    const float values[] = {0.0f, -0.0f, 1.5f, 0x1p-149f, -0x1.fffffep127f, INFINITY};
    unsigned char bytes[9];
    for (size_t n = 0; n < sizeof values / sizeof *values; n++) {
        vkattn_encode(VKATTN_F32, values[n], bytes + 1);
        const float back = vkattn_decode(VKATTN_F32, bytes + 1);
        cr_assert(memcmp(&back, &values[n], sizeof back) == 0);
    }
    vkattn_encode(VKATTN_BF16, -2.5f, bytes + 3);
    cr_assert(vkattn_decode(VKATTN_BF16, bytes + 3) == -2.5f);
}
