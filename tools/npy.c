/* _GNU_SOURCE: realpath and fsync, and 64-bit offsets on 32-bit systems. */
#define _GNU_SOURCE
#define _FILE_OFFSET_BITS 64

#include "npy.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "npy.c reads and writes little-endian data as it lies in memory"
#endif

#define MAGIC      "\x93NUMPY"
#define MAGIC_SIZE 6u
/* The header of 8 dimensions takes 300 bytes; NumPy itself refuses more than 10,000 from strangers. */
#define MAX_HEADER 65535u
/* First allocation for a pipe, whose size nobody knows. */
#define PIPE_CHUNK ((size_t)1 << 16)
/* The part of a path that a message shows. */
#define PATH_SHOWN 400u
/* Characters of hostile text that a message quotes. */
#define QUOTED 40

static const struct {
    const char *name;
    const char *code; /* of descr, without the byte order */
    char order;       /* what we write */
    unsigned char size;
} types[NPY_TYPE_COUNT] = {
    [NPY_F16] = {"float16", "f2", '<', 2}, [NPY_F32] = {"float32", "f4", '<', 4}, [NPY_F64] = {"float64", "f8", '<', 8},
    [NPY_BOOL] = {"bool", "b1", '|', 1},   [NPY_U8] = {"uint8", "u1", '|', 1},    [NPY_I32] = {"int32", "i4", '<', 4},
    [NPY_I64] = {"int64", "i8", '<', 8},
};

const char *npy_type_name(enum npy_type type)
{
    return types[type].name;
}

size_t npy_type_size(enum npy_type type)
{
    return types[type].size;
}

bool npy_set_shape(struct npy_array *array, enum npy_type type, unsigned dims, const uint64_t *shape)
{
    if (dims > NPY_MAX_DIMS)
        return false;
    /* One empty dimension empties the array, however absurd the others are. */
    bool empty = false;
    for (unsigned i = 0; i < dims; i++)
        empty |= shape[i] == 0;
    size_t size = empty ? 0 : npy_type_size(type);
    for (unsigned i = 0; i < dims && !empty; i++) {
        if (shape[i] > SIZE_MAX / size)
            return false;
        size *= (size_t)shape[i];
    }
    array->type = type;
    array->dims = dims;
    for (unsigned i = 0; i < dims; i++)
        array->shape[i] = shape[i];
    array->size = size;
    array->count = size / npy_type_size(type);
    return true;
}

const char *npy_shape_text(unsigned dims, const uint64_t *shape, char text[NPY_SHAPE_TEXT_SIZE])
{
    size_t used = 0;
    text[used++] = '(';
    for (unsigned i = 0; i < dims && i < NPY_MAX_DIMS; i++)
        used += (size_t)snprintf(text + used, NPY_SHAPE_TEXT_SIZE - used, i ? ", %" PRIu64 : "%" PRIu64, shape[i]);
    snprintf(text + used, NPY_SHAPE_TEXT_SIZE - used, dims == 1 ? ",)" : ")");
    return text;
}

void npy_free(struct npy_array *array)
{
    free(array->data);
    *array = (struct npy_array){0};
}

/* ---- Messages -------------------------------------------------------------------------------------------------- */

/* A file and the place for the sentence about it. */
struct file {
    const char *path;
    int fd;
    char *message;
};

/* "path: sentence". A very long path loses its beginning, so that the sentence is never lost. Returns false. */
__attribute__((format(printf, 2, 3))) static bool fail(const struct file *file, const char *format, ...)
{
    const size_t length = strlen(file->path);
    const bool cut = length > PATH_SHOWN;
    const int used = snprintf(file->message, NPY_MESSAGE_SIZE, "%s%s: ", cut ? "..." : "",
                              cut ? file->path + (length - PATH_SHOWN) : file->path);
    if (used > 0 && used < (int)NPY_MESSAGE_SIZE) {
        va_list arguments;
        va_start(arguments, format);
        vsnprintf(file->message + used, NPY_MESSAGE_SIZE - (size_t)used, format, arguments);
        va_end(arguments);
    }
    return false;
}

/* ---- The header's text: a Python dictionary of three keys ------------------------------------------------------ */

enum { FIELD_DESCR, FIELD_FORTRAN, FIELD_SHAPE, FIELD_COUNT };
static const char *const field_names[FIELD_COUNT] = {"descr", "fortran_order", "shape"};

struct header {
    const struct file *file;
    const char *at, *end;
    enum npy_type type;
    unsigned dims;
    uint64_t shape[NPY_MAX_DIMS];
};

static void skip_space(struct header *header)
{
    while (header->at < header->end && strchr(" \t\r\n", *header->at))
        header->at++;
}

/* Skip blanks, then one `c`, if it is there. */
static bool take(struct header *header, char c)
{
    skip_space(header);
    if (header->at == header->end || *header->at != c)
        return false;
    header->at++;
    return true;
}

static bool take_word(struct header *header, const char *word)
{
    skip_space(header);
    const size_t length = strlen(word);
    if ((size_t)(header->end - header->at) < length || memcmp(header->at, word, length) != 0)
        return false;
    header->at += length;
    return true;
}

/* How much of the header a message quotes: no more than QUOTED, and one line. */
static int quoted(const char *text, ptrdiff_t length)
{
    int shown = 0;
    while (shown < QUOTED && shown < length && text[shown] >= ' ')
        shown++;
    return shown;
}

/* "the header's X is not Y, but 'text that is there'". */
static bool unexpected(const struct header *header, const char *what, const char *wanted)
{
    const ptrdiff_t left = header->end - header->at;
    if (left == 0)
        return fail(header->file, "the header ends where %s should be %s", what, wanted);
    return fail(header->file, "in the header %s should be %s, not '%.*s'", what, wanted, quoted(header->at, left),
                header->at);
}

/* A quoted string without escapes. */
static bool take_string(struct header *header, const char **text, size_t *length, const char *what)
{
    skip_space(header);
    const char quote = header->at < header->end ? *header->at : '\0';
    if (quote != '\'' && quote != '"')
        return unexpected(header, what, "a string");
    const char *begin = header->at + 1;
    const char *close = memchr(begin, quote, (size_t)(header->end - begin));
    if (!close || memchr(begin, '\\', (size_t)(close - begin)))
        return unexpected(header, what, "a string without escapes");
    *text = begin;
    *length = (size_t)(close - begin);
    header->at = close + 1;
    return true;
}

static bool parse_descr(struct header *header)
{
    const char *text;
    size_t length;
    skip_space(header);
    if (header->at < header->end && *header->at == '[')
        return fail(header->file, "field 'descr' is a structured type; "
                                  "float16, float32, float64, bool, uint8, int32 and int64 are read");
    if (!take_string(header, &text, &length, "field 'descr'"))
        return false;
    const int shown = quoted(text, (ptrdiff_t)length);
    if (shown > 0 && text[0] == '>')
        return fail(header->file, "field 'descr' is '%.*s': big-endian data is not read; save array.astype('<%.*s')",
                    shown, text, shown - 1, text + 1);
    if (length == 3 && strchr("<=|", text[0])) {
        for (unsigned i = 0; i < NPY_TYPE_COUNT; i++) {
            if (memcmp(text + 1, types[i].code, 2) == 0) {
                header->type = (enum npy_type)i;
                return true;
            }
        }
    }
    return fail(header->file,
                "field 'descr' is '%.*s'; float16, float32, float64, bool, uint8, int32 and int64 are read", shown,
                text);
}

static bool parse_fortran(struct header *header)
{
    if (take_word(header, "False"))
        return true;
    if (take_word(header, "True"))
        return fail(header->file, "field 'fortran_order' is True: Fortran order is not read; "
                                  "save numpy.ascontiguousarray(array)");
    return unexpected(header, "field 'fortran_order'", "True or False");
}

/* One dimension; the L of Python 2's long integers is allowed. */
static bool parse_dimension(struct header *header, uint64_t *dimension)
{
    skip_space(header);
    const char *begin = header->at;
    uint64_t value = 0;
    if (take(header, '-'))
        return fail(header->file, "field 'shape' has the negative dimension '%.*s'", quoted(begin, header->end - begin),
                    begin);
    for (; header->at < header->end && *header->at >= '0' && *header->at <= '9'; header->at++) {
        const uint64_t digit = (uint64_t)(*header->at - '0');
        if (value > (UINT64_MAX - digit) / 10)
            return fail(header->file, "field 'shape' has a dimension above 2^64: '%.*s'",
                        quoted(begin, header->end - begin), begin);
        value = value * 10 + digit;
    }
    if (header->at == begin)
        return unexpected(header, "a dimension of field 'shape'", "a number");
    if (header->at < header->end && *header->at == 'L')
        header->at++;
    *dimension = value;
    return true;
}

static bool parse_shape(struct header *header)
{
    if (!take(header, '('))
        return unexpected(header, "field 'shape'", "a tuple");
    header->dims = 0;
    bool comma = true;
    while (!take(header, ')')) {
        if (!comma)
            return unexpected(header, "field 'shape'", "a tuple with commas");
        if (header->dims == NPY_MAX_DIMS)
            return fail(header->file, "field 'shape' has more than %u dimensions", NPY_MAX_DIMS);
        if (!parse_dimension(header, &header->shape[header->dims]))
            return false;
        header->dims++;
        comma = take(header, ',');
    }
    /* In Python (3) is a number, and only (3,) is a tuple; (,) is neither. */
    if (header->dims == 1 && !comma)
        return fail(header->file, "field 'shape' is (%" PRIu64 "), a number and not a tuple", header->shape[0]);
    return true;
}

static bool parse_field(struct header *header, unsigned *seen)
{
    const char *key;
    size_t length;
    if (!take_string(header, &key, &length, "a key"))
        return false;
    unsigned field = 0;
    while (field < FIELD_COUNT &&
           (strlen(field_names[field]) != length || memcmp(field_names[field], key, length) != 0))
        field++;
    if (field == FIELD_COUNT)
        return fail(header->file, "the header has the unknown field '%.*s'", quoted(key, (ptrdiff_t)length), key);
    if (*seen & 1u << field)
        return fail(header->file, "the header has field '%s' twice", field_names[field]);
    *seen |= 1u << field;
    if (!take(header, ':'))
        return unexpected(header, "what follows a key", "a colon");
    return field == FIELD_DESCR     ? parse_descr(header)
           : field == FIELD_FORTRAN ? parse_fortran(header)
                                    : parse_shape(header);
}

static bool parse_header(struct header *header)
{
    for (const char *c = header->at; c < header->end; c++) {
        const unsigned char byte = (unsigned char)*c;
        if ((byte < ' ' && !strchr("\t\r\n", byte)) || byte > '~' || byte == 0)
            return fail(header->file, "the header holds byte 0x%02x at position %td; only ASCII text is read", byte,
                        c - header->at);
    }
    unsigned seen = 0;
    if (!take(header, '{'))
        return unexpected(header, "the beginning", "a dictionary");
    bool comma = true;
    while (!take(header, '}')) {
        if (!comma)
            return unexpected(header, "what follows a field", "a comma or the end of the dictionary");
        if (!parse_field(header, &seen))
            return false;
        comma = take(header, ',');
    }
    for (unsigned field = 0; field < FIELD_COUNT; field++) {
        if (!(seen & 1u << field))
            return fail(header->file, "the header lacks field '%s'", field_names[field]);
    }
    skip_space(header);
    if (header->at != header->end)
        return unexpected(header, "what follows the dictionary", "blank");
    return true;
}

/* ---- Reading --------------------------------------------------------------------------------------------------- */

/* Read until `size` bytes are there or the file ends. */
static bool read_some(const struct file *file, void *to, size_t size, size_t *got)
{
    *got = 0;
    while (*got < size) {
        const ssize_t count = read(file->fd, (char *)to + *got, size - *got);
        if (count == 0)
            break;
        if (count < 0 && errno != EINTR)
            return fail(file, "cannot be read: %s", strerror(errno));
        *got += count > 0 ? (size_t)count : 0;
    }
    return true;
}

static bool read_exactly(const struct file *file, void *to, size_t size, const char *what)
{
    size_t got;
    if (!read_some(file, to, size, &got))
        return false;
    return got == size || fail(file, "is truncated: %s needs %zu bytes and %zu are there", what, size, got);
}

/* The bytes before the header's text: magic, version, length. */
static bool read_preamble(const struct file *file, uint32_t *header_size, uint64_t *consumed)
{
    unsigned char bytes[MAGIC_SIZE + 2], length[4] = {0};
    size_t got;
    if (!read_some(file, bytes, sizeof bytes, &got))
        return false;
    if (got < sizeof bytes || memcmp(bytes, MAGIC, MAGIC_SIZE) != 0)
        return fail(file, "is no .npy file: it does not begin with \\x93NUMPY and a version");
    const unsigned version = bytes[MAGIC_SIZE];
    if (version < 1 || version > 3 || bytes[MAGIC_SIZE + 1] != 0)
        return fail(file, "is of .npy version %u.%u; 1.0, 2.0 and 3.0 are read", version, bytes[MAGIC_SIZE + 1]);
    const size_t length_size = version == 1 ? 2 : 4;
    if (!read_exactly(file, length, length_size, "the header's length"))
        return false;
    *header_size = length[0] | (uint32_t)length[1] << 8 | (uint32_t)length[2] << 16 | (uint32_t)length[3] << 24;
    *consumed = sizeof bytes + length_size;
    if (*header_size > MAX_HEADER)
        return fail(file, "has a header length of %" PRIu32 " bytes; at most %u are read", *header_size, MAX_HEADER);
    return true;
}

static bool read_header(const struct file *file, struct npy_array *array, uint64_t *consumed)
{
    uint32_t size = 0;
    *consumed = 0;
    if (!read_preamble(file, &size, consumed))
        return false;
    char *text = malloc(size + 1u);
    if (!text)
        return fail(file, "no memory for a header of %" PRIu32 " bytes", size);
    struct header header = {.file = file, .at = text, .end = text + size};
    bool ok = read_exactly(file, text, size, "the header") && parse_header(&header);
    free(text);
    *consumed += size;
    if (ok && !npy_set_shape(array, header.type, header.dims, header.shape)) {
        char shape[NPY_SHAPE_TEXT_SIZE];
        ok = fail(file, "field 'shape' is %s: that many elements overflow the address space",
                  npy_shape_text(header.dims, header.shape, shape));
    }
    return ok;
}

/* "... but shape (2, 3) of float32 needs 24 bytes". */
static bool wrong_size(const struct file *file, const struct npy_array *array, const char *relation, uint64_t there)
{
    char shape[NPY_SHAPE_TEXT_SIZE];
    return fail(file, "%s: shape %s of %s takes %zu bytes of data, and %s%" PRIu64 " are there", relation,
                npy_shape_text(array->dims, array->shape, shape), npy_type_name(array->type), array->size,
                there > array->size ? "at least " : "", there);
}

/* Read the data into memory that grows with what arrives; `capacity` is what may be trusted to come. */
static bool read_data(const struct file *file, struct npy_array *array, size_t capacity)
{
    size_t filled = 0;
    for (;;) {
        char *grown = realloc(array->data, capacity ? capacity : 1);
        if (!grown)
            return fail(file, "no memory for %zu bytes of data", capacity);
        array->data = grown;
        size_t got;
        if (!read_some(file, grown + filled, capacity - filled, &got))
            return false;
        filled += got;
        if (filled < capacity)
            return wrong_size(file, array, "is truncated", filled);
        if (capacity == array->size)
            break;
        capacity = capacity > array->size / 2 ? array->size : capacity * 2;
    }
    char more;
    size_t extra;
    if (!read_some(file, &more, 1, &extra))
        return false;
    return extra == 0 || wrong_size(file, array, "has something after its data", (uint64_t)array->size + extra);
}

static bool read_open(const struct file *file, struct npy_array *array)
{
    struct stat status;
    if (fstat(file->fd, &status) != 0)
        return fail(file, "cannot be examined: %s", strerror(errno));
    if (S_ISDIR(status.st_mode))
        return fail(file, "is a folder");
    uint64_t consumed = 0;
    if (!read_header(file, array, &consumed))
        return false;
    if (!S_ISREG(status.st_mode))
        return read_data(file, array, array->size < PIPE_CHUNK ? array->size : PIPE_CHUNK);
    /* The claim of the header is believed only when the file is exactly that long. */
    const uint64_t there = (uint64_t)status.st_size > consumed ? (uint64_t)status.st_size - consumed : 0;
    if (there != array->size)
        return wrong_size(file, array, there < array->size ? "is truncated" : "has something after its data", there);
    return read_data(file, array, array->size);
}

bool npy_read(const char *path, struct npy_array *array, char message[NPY_MESSAGE_SIZE])
{
    *array = (struct npy_array){0};
    const struct file file = {.path = path, .fd = open(path, O_RDONLY | O_CLOEXEC), .message = message};
    if (file.fd < 0)
        return fail(&file, "cannot be opened: %s", strerror(errno));
    const bool ok = read_open(&file, array);
    close(file.fd);
    if (!ok)
        npy_free(array);
    return ok;
}

/* ---- Writing --------------------------------------------------------------------------------------------------- */

/* A file on its way: written under `temporary`, which becomes `target`. temporary is NULL where the target is a device
 * or a pipe, which cannot be replaced. */
struct output {
    struct file file;
    char *target;
    char *temporary;
};

/* Create a file of a new name in the folder of the target. The name does not contain the target's, which may already be
 * as long as the file system allows. */
static bool create_beside(struct output *output)
{
    const char *slash = strrchr(output->target, '/');
    const size_t folder = slash ? (size_t)(slash - output->target) + 1 : 0;
    const size_t size = folder + 64;
    output->temporary = malloc(size);
    if (!output->temporary)
        return fail(&output->file, "no memory to write it");
    for (unsigned attempt = 0; attempt < 1000; attempt++) {
        snprintf(output->temporary, size, "%.*s.npy-%ld-%u.tmp", (int)folder, output->target, (long)getpid(), attempt);
        output->file.fd = open(output->temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
        if (output->file.fd >= 0 || errno != EEXIST)
            break;
    }
    if (output->file.fd >= 0)
        return true;
    fail(&output->file, "cannot be written: creating a file in its folder: %s", strerror(errno));
    free(output->temporary);
    output->temporary = NULL;
    return false;
}

static bool output_open(struct output *output, const char *path, char *message)
{
    *output = (struct output){.file = {.path = path, .fd = -1, .message = message}};
    struct stat status;
    const bool exists = stat(path, &status) == 0;
    const size_t length = strlen(path);
    if ((exists && S_ISDIR(status.st_mode)) || length == 0 || path[length - 1] == '/')
        return fail(&output->file, "cannot be written: it is a folder's name");
    if (exists && !S_ISREG(status.st_mode)) {
        output->file.fd = open(path, O_WRONLY | O_CLOEXEC);
        return output->file.fd >= 0 || fail(&output->file, "cannot be opened to write: %s", strerror(errno));
    }
    output->target = exists ? realpath(path, NULL) : strdup(path);
    if (!output->target)
        return fail(&output->file, "cannot be written: %s", strerror(errno));
    return create_beside(output);
}

/* Close, and remove the temporary file unless it has become the target. */
static void output_close(struct output *output)
{
    if (output->file.fd >= 0)
        close(output->file.fd);
    if (output->temporary)
        unlink(output->temporary);
    free(output->temporary);
    free(output->target);
}

static bool output_commit(struct output *output)
{
    /* Devices and pipes cannot be synced, some file systems neither; a full disk may be noticed here first. */
    if (fsync(output->file.fd) != 0 && errno != EINVAL && errno != ENOTSUP && errno != EROFS)
        return fail(&output->file, "cannot be written: %s", strerror(errno));
    const int closed = close(output->file.fd);
    output->file.fd = -1;
    if (closed != 0)
        return fail(&output->file, "cannot be written: %s", strerror(errno));
    if (!output->temporary)
        return true;
    if (rename(output->temporary, output->target) != 0)
        return fail(&output->file, "cannot be put in place: %s", strerror(errno));
    free(output->temporary);
    output->temporary = NULL;
    return true;
}

static bool write_all(const struct file *file, const void *from, size_t size)
{
    size_t done = 0;
    while (done < size) {
        const ssize_t count = write(file->fd, (const char *)from + done, size - done);
        if (count < 0 && errno != EINTR)
            return fail(file, "cannot be written after %zu of %zu bytes: %s", done, size, strerror(errno));
        done += count > 0 ? (size_t)count : 0;
    }
    return true;
}

/* Magic, version 1.0, length, dictionary, blanks up to a multiple of 64, newline. */
static size_t format_header(const struct npy_array *array, char header[512])
{
    char shape[NPY_SHAPE_TEXT_SIZE];
    const size_t preamble = MAGIC_SIZE + 4;
    const int text =
        snprintf(header + preamble, 512 - preamble, "{'descr': '%c%s', 'fortran_order': False, 'shape': %s, }",
                 types[array->type].order, types[array->type].code, npy_shape_text(array->dims, array->shape, shape));
    const size_t used = preamble + (size_t)text;
    const size_t total = (used + 1 + 63) / 64 * 64;
    memset(header + used, ' ', total - used);
    header[total - 1] = '\n';
    memcpy(header, MAGIC "\x01", MAGIC_SIZE + 2);
    header[MAGIC_SIZE + 2] = (char)((total - preamble) & 0xff);
    header[MAGIC_SIZE + 3] = (char)((total - preamble) >> 8);
    return total;
}

bool npy_write(const char *path, const struct npy_array *array, char message[NPY_MESSAGE_SIZE])
{
    char header[512];
    struct output output;
    const size_t header_size = format_header(array, header);
    const bool ok = output_open(&output, path, message) && write_all(&output.file, header, header_size) &&
                    write_all(&output.file, array->data, array->size) && output_commit(&output);
    output_close(&output);
    return ok;
}

bool npy_writable(const char *path, char message[NPY_MESSAGE_SIZE])
{
    /* Opening a pipe to try it would show its reader an end of file. */
    struct stat status;
    const struct file file = {.path = path, .fd = -1, .message = message};
    if (stat(path, &status) == 0 && !S_ISREG(status.st_mode) && !S_ISDIR(status.st_mode))
        return access(path, W_OK) == 0 || fail(&file, "cannot be written: %s", strerror(errno));
    struct output output;
    const bool ok = output_open(&output, path, message);
    output_close(&output);
    return ok;
}
