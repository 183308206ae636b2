/* The file is text, one fact a line:
 *
 *     vkattn-tuning 1
 *     library 100
 *     tables 0123456789abcdef         a sum of all tile tables, since rows are numbers
 *     vendor 4318
 *     device 9018
 *     driver-id 4
 *     driver-version 2411741184
 *     name NVIDIA ...
 *     tile fwd_tile address f16 128 3     for K and V of f16 and heads up to 128, row 3 comes first
 *     scale fwd_decode address 850        its cost counts 0.850 times
 *     end 0123456789abcdef            the sum of all bytes before this line
 */
#include "tuning.h"

#include "status.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

const uint32_t vkattn_tuning_widths[TUNING_WIDTHS] = {32, 64, 96, 128, 192, 256, 384, VKATTN_MAX_DIM};

static const char *const type_names[TUNING_TYPES] = {
    [VKATTN_F32] = "f32", [VKATTN_F16] = "f16", [VKATTN_BF16] = "bf16"};
static const char *const access_names[2] = {"descriptor", "address"};

/* ---- Sums ------------------------------------------------------------------------------------------------------ */

/* FNV-1a: against accidents, not against malice. What is read is checked in any case. */
static uint64_t add_bytes(uint64_t sum, const void *bytes, size_t size)
{
    const unsigned char *at = bytes;
    for (size_t i = 0; i < size; i++)
        sum = (sum ^ at[i]) * UINT64_C(0x100000001B3);
    return sum;
}

static const uint64_t first_sum = UINT64_C(0xCBF29CE484222325);

uint64_t vkattn_tuning_sum(const void *bytes, size_t size)
{
    return add_bytes(first_sum, bytes, size);
}

static uint64_t add_number(uint64_t sum, uint32_t number)
{
    const unsigned char bytes[] = {(unsigned char)number, (unsigned char)(number >> 8), (unsigned char)(number >> 16),
                                   (unsigned char)(number >> 24)};
    return add_bytes(sum, bytes, sizeof bytes);
}

static uint64_t tables_sum(void)
{
    uint64_t sum = first_sum;
    for (uint32_t k = 0; k < vkattn_kernel_count; k++) {
        const struct kernel *kernel = vkattn_kernels[k];
        sum = add_bytes(sum, kernel->name, strlen(kernel->name));
        for (const struct tile *t = kernel->tiles; t < kernel->tiles + kernel->tile_count; t++) {
            const uint32_t fields[] = {t->classes,  t->addresses, t->max_dim,  t->workgroup, t->rows,
                                       t->keys,     t->qk_keys,   t->pv_keys,  t->split,     t->subgroup,
                                       t->matrix.m, t->matrix.n,  t->matrix.k, t->subgroups};
            for (size_t i = 0; i < sizeof fields / sizeof *fields; i++)
                sum = add_number(sum, fields[i]);
        }
    }
    return sum;
}

/* ---- Reading --------------------------------------------------------------------------------------------------- */

enum { LINE_SIZE = 320 };

/* What is left of a file, and the line that was taken from it. */
struct reader {
    const char *at, *end;
    unsigned number; /* of the line */
    char line[LINE_SIZE];
    char *rest; /* of the line */
};

/* Whole lines of printable ASCII. */
static vkattn_status next_line(struct reader *reader)
{
    const char *newline = memchr(reader->at, '\n', (size_t)(reader->end - reader->at));
    reader->number++;
    REQUIRE(newline, "tuning: line %u is not there or not whole", reader->number);
    const size_t length = (size_t)(newline - reader->at);
    REQUIRE(length < LINE_SIZE, "tuning: line %u has %zu characters", reader->number, length);
    for (size_t i = 0; i < length; i++)
        REQUIRE(reader->at[i] >= ' ' && reader->at[i] <= '~', "tuning: line %u holds the byte %u", reader->number,
                (unsigned)(unsigned char)reader->at[i]);
    memcpy(reader->line, reader->at, length);
    reader->line[length] = '\0';
    reader->rest = reader->line;
    reader->at = newline + 1;
    return VKATTN_OK;
}

/* The word up to the next blank or the end. */
static const char *next_word(struct reader *reader)
{
    char *word = reader->rest;
    char *blank = strchr(word, ' ');
    reader->rest = blank ? blank + 1 : word + strlen(word);
    if (blank)
        *blank = '\0';
    return word;
}

/* Digits alone. */
static vkattn_status next_number(struct reader *reader, uint64_t least, uint64_t most, const char *what,
                                 uint32_t *number)
{
    const char *word = next_word(reader);
    uint64_t value = 0;
    size_t i = 0;
    for (; i < 10 && word[i] >= '0' && word[i] <= '9'; i++)
        value = value * 10 + (uint64_t)(word[i] - '0');
    REQUIRE(i > 0 && word[i] == '\0' && value >= least && value <= most,
            "tuning: line %u: %s is \"%.40s\": must be %" PRIu64 " to %" PRIu64, reader->number, what, word, least,
            most);
    *number = (uint32_t)value;
    return VKATTN_OK;
}

static vkattn_status next_name(struct reader *reader, const char *const names[], uint32_t count, const char *what,
                               uint32_t *index)
{
    const char *word = next_word(reader);
    for (*index = 0; *index < count; ++*index)
        if (strcmp(word, names[*index]) == 0)
            return VKATTN_OK;
    return vkattn_fail(VKATTN_INVALID, "tuning: line %u: \"%.40s\" is no %s", reader->number, word, what);
}

static vkattn_status line_ends(const struct reader *reader)
{
    REQUIRE(*reader->rest == '\0', "tuning: line %u goes on with \"%.40s\"", reader->number, reader->rest);
    return VKATTN_OK;
}

/* "KEYWORD TEXT"; the text is what is left of the line. */
static vkattn_status keyed_line(struct reader *reader, const char *keyword)
{
    TRY(next_line(reader));
    const char *word = next_word(reader);
    REQUIRE(strcmp(word, keyword) == 0, "tuning: line %u begins with \"%.40s\" instead of \"%s\"", reader->number, word,
            keyword);
    return VKATTN_OK;
}

/* A fact that must be this device's, or this library's. */
static vkattn_status same(struct reader *reader, const char *keyword, const char *own, const char *what)
{
    TRY(keyed_line(reader, keyword));
    REQUIRE(strcmp(reader->rest, own) == 0, "tuning: it is for another %s: %s is \"%.80s\", and here \"%.80s\"", what,
            keyword, reader->rest, own);
    return VKATTN_OK;
}

static vkattn_status same_number(struct reader *reader, const char *keyword, uint32_t own, const char *what)
{
    char text[16];
    snprintf(text, sizeof text, "%" PRIu32, own);
    return same(reader, keyword, text, what);
}

/* What a line can hold of a device's name. */
static void plain_name(const char *name, char text[256])
{
    size_t i = 0;
    for (; i < 255 && name[i]; i++)
        text[i] = (char)(name[i] >= ' ' && name[i] <= '~' ? name[i] : '?');
    text[i] = '\0';
}

static vkattn_status read_head(struct reader *reader, const struct tuning_key *key)
{
    char text[256];
    TRY(next_line(reader));
    REQUIRE(strcmp(reader->line, "vkattn-tuning 1") == 0, "tuning: its first line is not \"vkattn-tuning 1\"");
    TRY(same_number(reader, "library", VKATTN_VERSION, "version of vkattn"));
    snprintf(text, sizeof text, "%016" PRIx64, tables_sum());
    TRY(same(reader, "tables", text, "state of the tile tables"));
    TRY(same_number(reader, "vendor", key->vendor, "device"));
    TRY(same_number(reader, "device", key->device, "device"));
    TRY(same_number(reader, "driver-id", key->driver_id, "driver"));
    TRY(same_number(reader, "driver-version", key->driver_version, "version of the driver"));
    plain_name(key->name, text);
    return same(reader, "name", text, "device");
}

static vkattn_status next_kernel(struct reader *reader, uint32_t *index)
{
    const char *word = next_word(reader);
    for (*index = 0; *index < vkattn_kernel_count && *index < TUNING_KERNELS; ++*index)
        if (vkattn_kernels[*index]->role == ROLE_FORWARD && strcmp(word, vkattn_kernels[*index]->name) == 0)
            return VKATTN_OK;
    return vkattn_fail(VKATTN_INVALID, "tuning: line %u: \"%.40s\" is no forward kernel", reader->number, word);
}

static vkattn_status read_tile(struct reader *reader, struct tuning *tuning)
{
    uint32_t kernel, access, type, width, row;
    TRY(next_kernel(reader, &kernel));
    TRY(next_name(reader, access_names, 2, "access", &access));
    TRY(next_name(reader, type_names, TUNING_TYPES, "type", &type));
    TRY(next_number(reader, 1, VKATTN_MAX_DIM, "the width", &width));
    TRY(next_number(reader, 1, vkattn_kernels[kernel]->tile_count, "the row", &row));
    TRY(line_ends(reader));
    const uint32_t index = vkattn_tuning_width(width);
    REQUIRE(vkattn_tuning_widths[index] == width, "tuning: line %u: the width is %" PRIu32 ": not one of a class",
            reader->number, width);
    REQUIRE(vkattn_kernels[kernel]->tiles[row - 1].max_dim >= width,
            "tuning: line %u: row %" PRIu32 " is for narrower heads than %" PRIu32, reader->number, row, width);
    uint32_t *entry = &tuning->tiles[kernel][access][type][index];
    REQUIRE(*entry == 0, "tuning: line %u: a second row for the same class", reader->number);
    *entry = row;
    return VKATTN_OK;
}

static vkattn_status read_scale(struct reader *reader, struct tuning *tuning)
{
    uint32_t kernel, access, scale;
    TRY(next_kernel(reader, &kernel));
    TRY(next_name(reader, access_names, 2, "access", &access));
    TRY(next_number(reader, TUNING_LEAST_SCALE, TUNING_MOST_SCALE, "the scale", &scale));
    TRY(line_ends(reader));
    REQUIRE(tuning->scales[kernel][access] == 0, "tuning: line %u: a second scale of a kernel", reader->number);
    tuning->scales[kernel][access] = scale;
    return VKATTN_OK;
}

static vkattn_status read_entries(struct reader *reader, struct tuning *tuning)
{
    while (reader->at < reader->end) {
        TRY(next_line(reader));
        const char *word = next_word(reader);
        if (strcmp(word, "tile") == 0)
            TRY(read_tile(reader, tuning));
        else if (strcmp(word, "scale") == 0)
            TRY(read_scale(reader, tuning));
        else
            return vkattn_fail(VKATTN_INVALID, "tuning: line %u begins with \"%.40s\"", reader->number, word);
    }
    return VKATTN_OK;
}

/* "end 0123456789abcdef\n" */
enum { END_SIZE = 21 };

static size_t end_line(char text[END_SIZE + 1], const void *bytes, size_t size)
{
    return (size_t)snprintf(text, END_SIZE + 1, "end %016" PRIx64 "\n", vkattn_tuning_sum(bytes, size));
}

static vkattn_status read_file(const char *bytes, size_t size, const struct tuning_key *key, struct tuning *tuning)
{
    static const char first[] = "vkattn-tuning ";
    char end[END_SIZE + 1];
    REQUIRE(bytes, "tuning: there are no bytes");
    REQUIRE(size <= TUNING_MOST_BYTES, "tuning: it has %zu bytes; %d are the most", size, (int)TUNING_MOST_BYTES);
    REQUIRE(size > END_SIZE && memcmp(bytes, first, sizeof first - 1) == 0,
            "tuning: it is no file of `vkattn tune`: it does not begin with \"vkattn-tuning\"");
    end_line(end, bytes, size - END_SIZE);
    REQUIRE(memcmp(bytes + size - END_SIZE, end, END_SIZE) == 0,
            "tuning: it is cut or damaged: its last line is not the sum of the others");
    struct reader reader = {.at = bytes, .end = bytes + size - END_SIZE};
    TRY(read_head(&reader, key));
    return read_entries(&reader, tuning);
}

vkattn_status vkattn_tuning_read(const void *bytes, size_t size, const struct tuning_key *key, struct tuning *tuning)
{
    struct tuning read;
    memset(&read, 0, sizeof read);
    memset(tuning, 0, sizeof *tuning);
    TRY(read_file(bytes, size, key, &read));
    *tuning = read;
    return VKATTN_OK;
}

/* ---- Writing --------------------------------------------------------------------------------------------------- */

/* A text that remembers that it did not fit. */
struct writer {
    char *text;
    size_t used, size;
};

static void write_line(struct writer *writer, const char *format, ...) VKATTN_PRINTF(2, 3);

static void write_line(struct writer *writer, const char *format, ...)
{
    if (writer->used >= writer->size)
        return;
    va_list arguments;
    va_start(arguments, format);
    const int length = vsnprintf(writer->text + writer->used, writer->size - writer->used, format, arguments);
    va_end(arguments);
    writer->used += length < 0 ? writer->size : (size_t)length;
}

static void write_head(struct writer *writer, const struct tuning_key *key)
{
    char name[256];
    plain_name(key->name, name);
    write_line(writer, "vkattn-tuning 1\nlibrary %d\ntables %016" PRIx64 "\n", VKATTN_VERSION, tables_sum());
    write_line(writer, "vendor %" PRIu32 "\ndevice %" PRIu32 "\ndriver-id %" PRIu32 "\ndriver-version %" PRIu32 "\n",
               key->vendor, key->device, key->driver_id, key->driver_version);
    write_line(writer, "name %s\n", name);
}

static void write_kernel(struct writer *writer, const struct tuning *tuning, uint32_t kernel, uint32_t access)
{
    const char *name = vkattn_kernels[kernel]->name;
    for (uint32_t type = 0; type < TUNING_TYPES; type++)
        for (uint32_t width = 0; width < TUNING_WIDTHS; width++)
            if (tuning->tiles[kernel][access][type][width])
                write_line(writer, "tile %s %s %s %" PRIu32 " %" PRIu32 "\n", name, access_names[access],
                           type_names[type], vkattn_tuning_widths[width], tuning->tiles[kernel][access][type][width]);
    if (tuning->scales[kernel][access])
        write_line(writer, "scale %s %s %" PRIu32 "\n", name, access_names[access], tuning->scales[kernel][access]);
}

size_t vkattn_tuning_write(const struct tuning *tuning, const struct tuning_key *key, char *text, size_t size)
{
    char end[END_SIZE + 1];
    struct writer writer = {.text = text, .size = size};
    write_head(&writer, key);
    for (uint32_t kernel = 0; kernel < vkattn_kernel_count && kernel < TUNING_KERNELS; kernel++)
        for (uint32_t access = 0; access < 2; access++)
            write_kernel(&writer, tuning, kernel, access);
    if (writer.used >= size)
        return 0;
    end_line(end, text, writer.used);
    write_line(&writer, "%s", end);
    return writer.used < size ? writer.used : 0;
}

/* ---- Asking ---------------------------------------------------------------------------------------------------- */

uint32_t vkattn_tuning_width(uint32_t dim)
{
    uint32_t index = 0;
    while (index + 1 < TUNING_WIDTHS && dim > vkattn_tuning_widths[index])
        index++;
    return index;
}

/* TUNING_KERNELS: it is not in the catalogue, or beyond what can be tuned. */
static uint32_t kernel_index(const struct kernel *kernel)
{
    for (uint32_t i = 0; i < vkattn_kernel_count && i < TUNING_KERNELS; i++)
        if (vkattn_kernels[i] == kernel)
            return i;
    return TUNING_KERNELS;
}

uint32_t vkattn_tuned_tile(const struct tuning *tuning, const struct kernel *kernel, const struct problem *problem,
                           bool addresses)
{
    const uint32_t index = kernel_index(kernel);
    const uint32_t dim = problem->dim_qk > problem->dim_v ? problem->dim_qk : problem->dim_v;
    if (!tuning || index == TUNING_KERNELS)
        return 0;
    return tuning->tiles[index][addresses][problem->kv_type][vkattn_tuning_width(dim)];
}

double vkattn_tuned_scale(const struct tuning *tuning, const struct kernel *kernel, bool addresses)
{
    const uint32_t index = kernel_index(kernel);
    if (!tuning || index == TUNING_KERNELS || tuning->scales[index][addresses] == 0)
        return 1;
    return tuning->scales[index][addresses] / 1000.0;
}
