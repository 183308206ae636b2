/* Tunings: what is written is read; what is damaged, foreign or impossible is refused and changes nothing; what is
 * taken changes which tile and which kernel a pretended device gets. */
#include "tuning.h"

#include "plan.h"
#include "status.h"

#include <criterion/criterion.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROOM = 4096 };

static const struct tuning_key own = {.vendor = 4318,
                                      .device = 9018,
                                      .driver_id = 4,
                                      .driver_version = 2411741184,
                                      .name = "Pretended GPU (TM)\n\xC3\xA9"};

static uint32_t kernel_number(const char *name)
{
    uint32_t i = 0;
    while (i < vkattn_kernel_count && strcmp(vkattn_kernels[i]->name, name) != 0)
        i++;
    cr_assert(i < vkattn_kernel_count && i < TUNING_KERNELS, "the catalogue has no %s, or is too long", name);
    return i;
}

static struct tuning example(void)
{
    struct tuning tuning;
    memset(&tuning, 0, sizeof tuning);
    tuning.tiles[kernel_number("fwd_tile")][1][VKATTN_F32][1] = 10;
    tuning.tiles[kernel_number("fwd_tile")][0][VKATTN_BF16][7] = 3;
    tuning.tiles[kernel_number("fwd_decode")][1][VKATTN_F16][3] = 4;
    tuning.scales[kernel_number("fwd_rows")][1] = TUNING_LEAST_SCALE;
    tuning.scales[kernel_number("fwd_tile")][0] = TUNING_MOST_SCALE;
    return tuning;
}

static bool is_zero(const struct tuning *tuning)
{
    const unsigned char *bytes = (const unsigned char *)tuning;
    for (size_t i = 0; i < sizeof *tuning; i++)
        if (bytes[i])
            return false;
    return true;
}

/* Copied to memory of exactly its size, so that a sanitizer sees a read past the end. */
static vkattn_status read_bytes(const void *bytes, size_t size, const struct tuning_key *key, struct tuning *tuning)
{
    void *copy = malloc(size ? size : 1);
    memcpy(copy, bytes, size);
    memset(tuning, 0x55, sizeof *tuning);
    vkattn_error_set(VKATTN_OK, "");
    const vkattn_status status = vkattn_tuning_read(copy, size, key, tuning);
    free(copy);
    return status;
}

static void expect_refused(const void *bytes, size_t size, const char *part)
{
    struct tuning tuning;
    cr_expect(read_bytes(bytes, size, &own, &tuning) == VKATTN_INVALID, "taken, instead of: %s", part);
    cr_expect(strstr(vkattn_last_error(), part), "\"%s\" does not say \"%s\"", vkattn_last_error(), part);
    cr_expect(is_zero(&tuning), "%s", part);
}

/* With the sum that its bytes have: what an attacker, or a careless editor with a tool, would make. */
static size_t seal(char text[ROOM], size_t used)
{
    return used + (size_t)snprintf(text + used, ROOM - used, "end %016" PRIx64 "\n", vkattn_tuning_sum(text, used));
}

/* A good head with these entries. */
static size_t with_entries(const char *entries, char text[ROOM])
{
    struct tuning none;
    memset(&none, 0, sizeof none);
    const size_t head = vkattn_tuning_write(&none, &own, text, ROOM) - 21;
    return seal(text, head + (size_t)snprintf(text + head, ROOM - head, "%s", entries));
}

/* ---- Files ----------------------------------------------------------------------------------------------------- */

Test(tuning, what_is_written_is_read)
{
    char text[ROOM];
    struct tuning read;
    const struct tuning written = example();
    const size_t size = vkattn_tuning_write(&written, &own, text, sizeof text);
    cr_assert(size > 0 && size < sizeof text);
    cr_assert(read_bytes(text, size, &own, &read) == VKATTN_OK, "%s", vkattn_last_error());
    cr_expect(memcmp(&read, &written, sizeof read) == 0);
    cr_expect(vkattn_tuning_write(&written, &own, text, size) == 0, "there must be room for a 0 behind it");
    cr_expect(vkattn_tuning_write(&written, &own, text, size + 1) == size);
    for (size_t room = 0; room < size; room++)
        cr_assert(vkattn_tuning_write(&written, &own, text, room) == 0);
}

Test(tuning, a_cut_file_is_refused)
{
    char text[ROOM];
    const struct tuning written = example();
    const size_t size = vkattn_tuning_write(&written, &own, text, sizeof text);
    for (size_t cut = 0; cut < size; cut++)
        expect_refused(text, cut, "tuning: ");
    expect_refused(text + 1, size - 1, "does not begin");
    text[size] = '\n';
    expect_refused(text, size + 1, "cut or damaged");
}

Test(tuning, a_changed_byte_is_refused)
{
    char text[ROOM];
    const struct tuning written = example();
    const size_t size = vkattn_tuning_write(&written, &own, text, sizeof text);
    for (size_t i = 0; i < size; i++)
        for (unsigned bit = 0; bit < 8; bit++) {
            text[i] = (char)(text[i] ^ 1 << bit);
            expect_refused(text, size, "tuning: ");
            text[i] = (char)(text[i] ^ 1 << bit);
        }
}

/* With a good sum, no byte makes it crash; and what it takes can be asked for anything. */
Test(tuning, any_byte_with_a_good_sum)
{
    char text[ROOM], changed[ROOM];
    struct tuning read;
    const struct tuning written = example();
    const size_t size = vkattn_tuning_write(&written, &own, text, sizeof text) - 21;
    static const unsigned char bytes[] = {0, '\n', ' ', '0', '9', '-', 0x7F, 0xFF};
    for (size_t i = 0; i < size; i++)
        for (size_t b = 0; b < sizeof bytes; b++) {
            memcpy(changed, text, size);
            changed[i] = (char)bytes[b];
            const vkattn_status status = read_bytes(changed, seal(changed, size), &own, &read);
            cr_assert(status == VKATTN_OK || (status == VKATTN_INVALID && is_zero(&read)));
            for (uint32_t k = 0; k < vkattn_kernel_count; k++)
                for (uint32_t a = 0; a < 2; a++)
                    for (uint32_t t = 0; t < TUNING_TYPES; t++)
                        for (uint32_t w = 0; w < TUNING_WIDTHS; w++)
                            cr_assert(read.tiles[k][a][t][w] <= vkattn_kernels[k]->tile_count);
        }
}

Test(tuning, a_foreign_file_is_refused)
{
    static const struct {
        const char *says;
        struct tuning_key key;
    } others[] = {
        {"another device: vendor", {.vendor = 4098, .device = 9018, .driver_id = 4, .driver_version = 2411741184}},
        {"another device: device", {.vendor = 4318, .device = 9019, .driver_id = 4, .driver_version = 2411741184}},
        {"another driver: driver-id", {.vendor = 4318, .device = 9018, .driver_id = 5, .driver_version = 2411741184}},
        {"another version of the driver: driver-version is \"2411741185\"",
         {.vendor = 4318, .device = 9018, .driver_id = 4, .driver_version = 2411741185}},
        {"another device: name is \"\"",
         {.vendor = 4318, .device = 9018, .driver_id = 4, .driver_version = 2411741184}},
    };
    char text[ROOM];
    const struct tuning written = example();
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        const size_t size = vkattn_tuning_write(&written, &others[i].key, text, sizeof text);
        expect_refused(text, size, others[i].says);
    }
}

/* Replace a word of a good file, and seal it anew. */
static void expect_replaced_refused(const char *from, const char *to, const char *part)
{
    char text[ROOM], changed[ROOM];
    const struct tuning written = example();
    vkattn_tuning_write(&written, &own, text, sizeof text);
    char *at = strstr(text, from);
    cr_assert(at, "%s", from);
    const size_t before = (size_t)(at - text);
    const size_t used = (size_t)snprintf(changed, ROOM, "%.*s%s%s", (int)before, text, to, at + strlen(from));
    expect_refused(changed, seal(changed, used - 21), part);
}

Test(tuning, another_library_s_file_is_refused)
{
    expect_replaced_refused("library 100", "library 99", "another version of vkattn");
    expect_replaced_refused("tables ", "tables 0", "another state of the tile tables");
    expect_replaced_refused("vkattn-tuning 1", "vkattn-tuning 2", "first line");
    expect_replaced_refused("vendor 4318", "vendor  4318", "another device");
    expect_replaced_refused("vendor 4318\n", "", "instead of \"vendor\"");
}

Test(tuning, impossible_entries_are_refused)
{
    static const struct {
        const char *entries, *says;
    } bad[] = {
        {"tile fwd_tile address f32 64 0\n", "the row is \"0\""},
        {"tile fwd_tile address f32 64 99\n", "the row is \"99\""},
        {"tile fwd_tile address f32 64 -1\n", "the row is \"-1\""},
        {"tile fwd_tile address f32 64 +1\n", "the row is \"+1\""},
        {"tile fwd_tile address f32 64 0x1\n", "the row is \"0x1\""},
        {"tile fwd_tile address f32 64 4294967297\n", "the row is \"4294967297\""},
        {"tile fwd_tile address f32 64 18446744073709551617\n", "the row is"},
        {"tile fwd_tile address f32 64 \n", "the row is \"\""},
        {"tile fwd_tile address f32 64\n", "the row is \"\""},
        {"tile fwd_tile address f32 64 2 3\n", "goes on with \"3\""},
        {"tile fwd_tile address f32 65 2\n", "not one of a class"},
        {"tile fwd_tile address f32 577 2\n", "the width is \"577\""},
        {"tile fwd_tile address f32 64 1\n", "narrower heads than 64"},
        {"tile fwd_tile address f64 64 2\n", "is no type"},
        {"tile fwd_tile somehow f32 64 2\n", "is no access"},
        {"tile fwd_magic address f32 64 2\n", "is no forward kernel"},
        {"tile kv_unpack address f32 64 1\n", "is no forward kernel"},
        {"tile  fwd_tile address f32 64 2\n", "is no forward kernel"},
        {"tile fwd_tile address f32 64 2\ntile fwd_tile address f32 64 2\n", "a second row"},
        {"scale fwd_tile address 9\n", "the scale is \"9\""},
        {"scale fwd_tile address 100001\n", "the scale is \"100001\""},
        {"scale fwd_tile address nan\n", "the scale is \"nan\""},
        {"scale fwd_tile address 1e3\n", "the scale is \"1e3\""},
        {"scale fwd_tile address 1000\nscale fwd_tile address 1000\n", "a second scale"},
        {"\n", "begins with \"\""},
        {"end 0123456789abcdef\n", "begins with \"end\""},
        {"tile fwd_tile address f32 64 2", "not whole"},
        {"tile fwd_tile address f32 64 2\r\n", "holds the byte 13"},
        {"tile fwd_tile address f32 64 2\t\n", "holds the byte 9"},
    };
    char text[ROOM], line[512];
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        expect_refused(text, with_entries(bad[i].entries, text), bad[i].says);
    memset(line, 'x', sizeof line - 1);
    line[sizeof line - 2] = '\n', line[sizeof line - 1] = '\0';
    expect_refused(text, with_entries(line, text), "characters");
    struct tuning read;
    const size_t size = with_entries("tile fwd_tile address f32 64 2\n", text);
    cr_expect(read_bytes(text, size, &own, &read) == VKATTN_OK, "%s", vkattn_last_error());
}

Test(tuning, what_is_no_file_is_refused)
{
    struct tuning tuning;
    static char large[TUNING_MOST_BYTES + 1];
    expect_refused("", 0, "no file");
    expect_refused(large, 100, "no file");
    expect_refused(large, sizeof large, "65537 bytes");
    memset(large, '\n', sizeof large);
    memcpy(large, "vkattn-tuning 1", 15);
    expect_refused(large, TUNING_MOST_BYTES, "cut or damaged");
    cr_expect(vkattn_tuning_read(NULL, 100, &own, &tuning) == VKATTN_INVALID && is_zero(&tuning));
}

Test(tuning, widths_have_classes)
{
    for (uint32_t dim = 1; dim <= VKATTN_MAX_DIM; dim++) {
        const uint32_t index = vkattn_tuning_width(dim);
        cr_assert(index < TUNING_WIDTHS && dim <= vkattn_tuning_widths[index]);
        cr_assert(index == 0 || dim > vkattn_tuning_widths[index - 1]);
    }
}

/* ---- Choices --------------------------------------------------------------------------------------------------- */

static const struct caps nvidia = {.device_class = CLASS_NVIDIA,
                                   .subgroup_size = 32,
                                   .subgroup_size_min = 32,
                                   .subgroup_size_max = 32,
                                   .subgroup_size_control = true,
                                   .shuffles = true,
                                   .fill_groups = 512,
                                   .addresses = true,
                                   .descriptors = true,
                                   .float_controls = true,
                                   .max_invocations = 1024,
                                   .shared_bytes = 49152,
                                   .max_groups_x = 2147483647,
                                   .max_groups_y = 65535,
                                   .max_range = 4294967295,
                                   .offset_alignment = 16};

static const vkattn_problem prefill = {.heads = 8, .len_q = 1024, .len_kv = 1024, .dim_qk = 64};
static const vkattn_problem decode = {.heads = 32, .kv_heads = 8, .len_q = 1, .len_kv = 4096, .dim_qk = 64};

/* The kernel and the row that a device gets with a tuning of these entries. */
static const char *choice(const char *entries, const struct caps *caps, const vkattn_problem *in,
                          const vkattn_options *options, uint32_t *row)
{
    char text[ROOM];
    struct problem problem;
    struct plan plan;
    struct tuning tuning;
    vkattn_report report;
    struct caps tuned = *caps;
    cr_assert(read_bytes(text, with_entries(entries, text), &own, &tuning) == VKATTN_OK, "%s", vkattn_last_error());
    tuned.tuning = &tuning;
    cr_assert(vkattn_problem_canonical(in, sizeof *in, &problem) == VKATTN_OK);
    cr_assert(vkattn_plan_choose(&problem, &tuned, options, &plan, &report) == VKATTN_OK, "%s", vkattn_last_error());
    *row = report.candidates[report.chosen].tile;
    return report.candidates[report.chosen].kernel;
}

static uint32_t row_of(const char *entries, const struct caps *caps, const vkattn_problem *in)
{
    uint32_t row;
    cr_expect_str_eq(choice(entries, caps, in, NULL, &row), "fwd_tile");
    return row;
}

static const struct tile *tile_row(uint32_t row)
{
    return &vkattn_kernels[kernel_number("fwd_tile")]->tiles[row - 1];
}

/* A row that fwd_tile would not take by itself: of another class, for heads of 576, in one part without subgroups (with
 * 8 parts of NVIDIA's own). */
static uint32_t find_row(bool needs_subgroups, enum device_class device_class)
{
    const struct kernel *kernel = vkattn_kernels[kernel_number("fwd_tile")];
    for (uint32_t row = 1; row <= kernel->tile_count; row++)
        if (tile_row(row)->max_dim == 576 && !tile_row(row)->addresses &&
            (tile_row(row)->subgroup != 0) == needs_subgroups && (tile_row(row)->classes >> device_class & 1))
            return row;
    cr_assert_fail("there is no such row");
    return 0;
}

Test(tuning, a_row_comes_first)
{
    char entry[80];
    const uint32_t plain = row_of("", &nvidia, &prefill), other = find_row(false, CLASS_CPU);
    cr_assert(plain != other);
    snprintf(entry, sizeof entry, "tile fwd_tile address f32 64 %" PRIu32 "\n", other);
    cr_expect(row_of(entry, &nvidia, &prefill) == other, "a row of another class");

    /* Another width, type and access keep theirs. */
    vkattn_problem problem = prefill;
    problem.dim_qk = 32;
    cr_expect(row_of(entry, &nvidia, &problem) == row_of("", &nvidia, &problem));
    problem.dim_qk = 33;
    cr_expect(row_of(entry, &nvidia, &problem) == other);
    problem = prefill, problem.kv_type = VKATTN_F16;
    cr_expect(row_of(entry, &nvidia, &problem) == row_of("", &nvidia, &problem));
    struct caps descriptors = nvidia;
    descriptors.addresses = false;
    cr_expect(row_of(entry, &descriptors, &prefill) == row_of("", &descriptors, &prefill));
    snprintf(entry, sizeof entry, "tile fwd_tile descriptor f32 64 %" PRIu32 "\n", other);
    cr_expect(row_of(entry, &descriptors, &prefill) == other);
}

Test(tuning, a_row_that_cannot_run_does_not_come_first)
{
    char entry[80];
    struct caps small = nvidia;
    const uint32_t split = find_row(true, CLASS_NVIDIA);
    snprintf(entry, sizeof entry, "tile fwd_tile address f32 64 %" PRIu32 "\n", split);
    cr_expect(row_of(entry, &nvidia, &prefill) == split);
    small.max_invocations = 128;
    cr_expect(row_of(entry, &small, &prefill) == row_of("", &small, &prefill), "too many invocations");
    small = nvidia, small.subgroup_size_control = false;
    cr_expect(row_of(entry, &small, &prefill) == row_of("", &small, &prefill), "no subgroups of its size");
}

Test(tuning, a_forced_row_stays)
{
    uint32_t row;
    const vkattn_options options = {.kernel = "fwd_tile", .tile = tile_row(1)->max_dim >= 64 ? 1 : 2};
    choice("tile fwd_tile address f32 64 4\n", &nvidia, &prefill, &options, &row);
    cr_expect(row == options.tile);
}

Test(tuning, a_scale_changes_the_kernel)
{
    uint32_t row;
    cr_expect_str_eq(choice("", &nvidia, &decode, NULL, &row), "fwd_decode");
    cr_expect_str_eq(choice("scale fwd_decode address 100000\n", &nvidia, &decode, NULL, &row), "fwd_rows");
    cr_expect_str_eq(
        choice("scale fwd_decode address 100000\nscale fwd_rows address 100000\n", &nvidia, &decode, NULL, &row),
        "fwd_tile");
    cr_expect_str_eq(choice("scale fwd_decode descriptor 100000\n", &nvidia, &decode, NULL, &row), "fwd_decode");
    cr_expect_str_eq(choice("", &nvidia, &prefill, NULL, &row), "fwd_tile");
    cr_expect_str_eq(choice("scale fwd_tile address 100000\n", &nvidia, &prefill, NULL, &row), "fwd_decode");
}

/* Read for another driver, the same file leaves a plan as it is. */
Test(tuning, a_foreign_file_changes_no_plan)
{
    char text[ROOM];
    struct problem problem;
    struct plan plans[2];
    struct tuning tuning;
    struct caps tuned = nvidia;
    struct tuning_key other = own;
    other.driver_version++;
    const size_t size = with_entries("scale fwd_decode address 100000\ntile fwd_tile address f32 64 4\n", text);
    cr_assert(read_bytes(text, size, &other, &tuning) == VKATTN_INVALID);
    tuned.tuning = &tuning;
    const vkattn_problem *problems[] = {&prefill, &decode};
    for (int i = 0; i < 2; i++) {
        cr_assert(vkattn_problem_canonical(problems[i], sizeof prefill, &problem) == VKATTN_OK);
        cr_assert(vkattn_plan_choose(&problem, &nvidia, NULL, &plans[0], NULL) == VKATTN_OK);
        cr_assert(vkattn_plan_choose(&problem, &tuned, NULL, &plans[1], NULL) == VKATTN_OK);
        cr_expect(memcmp(&plans[0], &plans[1], sizeof *plans) == 0);
    }
}
