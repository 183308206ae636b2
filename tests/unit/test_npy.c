/* .npy files: round trips, NumPy's own files, hostile ones. */
#define _GNU_SOURCE /* nftw, mkdtemp */

#include "npy.h"

#include <criterion/criterion.h>
#include <dirent.h>
#include <ftw.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#define PYTHON "/usr/bin/python3"

/* ---- A folder of its own for each test ------------------------------------------------------------------------- */

static char folder[64];
static char message[NPY_MESSAGE_SIZE];

static void make_folder(void)
{
    snprintf(folder, sizeof folder, "/tmp/test_npy.XXXXXX");
    cr_assert_not_null(mkdtemp(folder));
}

static int remove_one(const char *path, const struct stat *status, int type, struct FTW *walk)
{
    (void)status;
    (void)type;
    (void)walk;
    return remove(path);
}

static void remove_folder(void)
{
    nftw(folder, remove_one, 8, FTW_DEPTH | FTW_PHYS);
}

TestSuite(npy, .init = make_folder, .fini = remove_folder);

/* A path in the folder; four at a time may be in use. */
static const char *in_folder(const char *name)
{
    static char paths[4][512];
    static unsigned next;
    char *path = paths[next++ % 4];
    snprintf(path, sizeof paths[0], "%s/%s", folder, name);
    return path;
}

static unsigned files_in_folder(void)
{
    unsigned count = 0;
    DIR *dir = opendir(folder);
    cr_assert_not_null(dir);
    for (const struct dirent *entry; (entry = readdir(dir));)
        count += entry->d_name[0] != '.' || strlen(entry->d_name) > 2;
    closedir(dir);
    return count;
}

static void write_bytes(const char *path, const void *bytes, size_t size)
{
    FILE *file = fopen(path, "wb");
    cr_assert_not_null(file);
    cr_assert_eq(fwrite(bytes, 1, size, file), size);
    cr_assert_eq(fclose(file), 0);
}

static size_t read_bytes(const char *path, void *bytes, size_t capacity)
{
    FILE *file = fopen(path, "rb");
    cr_assert_not_null(file, "%s", path);
    const size_t size = fread(bytes, 1, capacity, file);
    fclose(file);
    return size;
}

/* A .npy file from a header's text, zeros as data. Returns its size. */
static size_t make_npy(unsigned char *to, unsigned version, const char *header, size_t data_size)
{
    const size_t length = strlen(header), preamble = version == 1 ? 10 : 12;
    memset(to, 0, preamble);
    memcpy(to, "\x93NUMPY", 6);
    to[6] = (unsigned char)version;
    to[8] = (unsigned char)(length & 0xff);
    to[9] = (unsigned char)(length >> 8);
    memcpy(to + preamble, header, length);
    memset(to + preamble + length, 0, data_size);
    return preamble + length + data_size;
}

static bool read_made(unsigned version, const char *header, size_t data_size, struct npy_array *array)
{
    static unsigned char bytes[70000];
    write_bytes(in_folder("made.npy"), bytes, make_npy(bytes, version, header, data_size));
    return npy_read(in_folder("made.npy"), array, message);
}

/* ---- Shapes ---------------------------------------------------------------------------------------------------- */

Test(npy, shape_text)
{
    char text[NPY_SHAPE_TEXT_SIZE];
    const uint64_t shape[] = {2, 3, 4, UINT64_MAX, UINT64_MAX, UINT64_MAX, UINT64_MAX, UINT64_MAX};
    cr_assert_str_eq(npy_shape_text(0, shape, text), "()");
    cr_assert_str_eq(npy_shape_text(1, shape, text), "(2,)");
    cr_assert_str_eq(npy_shape_text(3, shape, text), "(2, 3, 4)");
    npy_shape_text(8, shape, text);
    cr_assert_eq(text[strlen(text) - 1], ')');
}

Test(npy, sizes_that_overflow_are_refused)
{
    struct npy_array array = {0};
    cr_assert(npy_set_shape(&array, NPY_F32, 2, (uint64_t[]){3, 5}));
    cr_assert_eq(array.count, 15);
    cr_assert_eq(array.size, 60);
    cr_assert_not(npy_set_shape(&array, NPY_F32, 1, (uint64_t[]){SIZE_MAX / 2}));
    cr_assert_not(npy_set_shape(&array, NPY_U8, 2, (uint64_t[]){UINT64_C(1) << 32, UINT64_C(1) << 32}));
    cr_assert_not(npy_set_shape(&array, NPY_U8, 9, (uint64_t[9]){0}));
    cr_assert(npy_set_shape(&array, NPY_F64, 3, (uint64_t[]){UINT64_MAX, UINT64_MAX, 0}), "an empty array has no size");
    cr_assert_eq(array.size, 0);
}

/* ---- Round trips ----------------------------------------------------------------------------------------------- */

static void round_trip(enum npy_type type, unsigned dims)
{
    const uint64_t shape[NPY_MAX_DIMS] = {2, 1, 3, 1, 2, 1, 1, 2};
    unsigned char data[24 * 8];
    struct npy_array out = {.data = data}, in;
    for (size_t i = 0; i < sizeof data; i++)
        data[i] = (unsigned char)(i * 37 + 11);
    cr_assert(npy_set_shape(&out, type, dims, shape));
    cr_assert(npy_write(in_folder("a.npy"), &out, message), "%s", message);
    cr_assert(npy_read(in_folder("a.npy"), &in, message), "%s", message);
    cr_assert_eq(in.type, type);
    cr_assert_eq(in.dims, dims);
    cr_assert_eq(memcmp(in.shape, shape, dims * sizeof *shape), 0);
    cr_assert_eq(in.size, out.size);
    cr_assert_eq(memcmp(in.data, data, out.size), 0);
    npy_free(&in);
    cr_assert_null(in.data);
}

Test(npy, round_trip_of_every_type_and_rank)
{
    for (unsigned type = 0; type < NPY_TYPE_COUNT; type++) {
        for (unsigned dims = 0; dims <= NPY_MAX_DIMS; dims++)
            round_trip((enum npy_type)type, dims);
    }
    cr_assert_eq(files_in_folder(), 1, "no temporary file may be left");
}

Test(npy, empty_array_round_trip)
{
    struct npy_array out = {0}, in;
    cr_assert(npy_set_shape(&out, NPY_F32, 3, (uint64_t[]){4, 0, 7}));
    cr_assert(npy_write(in_folder("a.npy"), &out, message), "%s", message);
    cr_assert(npy_read(in_folder("a.npy"), &in, message), "%s", message);
    cr_assert_eq(in.count, 0);
    cr_assert_eq(in.shape[2], 7);
    cr_assert_not_null(in.data);
    npy_free(&in);
}

Test(npy, written_bytes_are_those_of_numpy)
{
    static const char header[] = "\x93NUMPY\x01\x00\x76\x00{'descr': '<f4', 'fortran_order': False, 'shape': (2,), }";
    unsigned char bytes[256];
    float data[2] = {1.5f, -2};
    struct npy_array array = {.data = data};
    cr_assert(npy_set_shape(&array, NPY_F32, 1, (uint64_t[]){2}));
    cr_assert(npy_write(in_folder("a.npy"), &array, message), "%s", message);
    cr_assert_eq(read_bytes(in_folder("a.npy"), bytes, sizeof bytes), 128 + sizeof data);
    cr_assert_eq(memcmp(bytes, header, sizeof header - 1), 0);
    for (size_t i = sizeof header - 1; i < 127; i++)
        cr_assert_eq(bytes[i], ' ');
    cr_assert_eq(bytes[127], '\n');
    cr_assert_eq(memcmp(bytes + 128, data, sizeof data), 0);
}

/* ---- Headers that are right ------------------------------------------------------------------------------------ */

Test(npy, header_forms_that_python_accepts)
{
    static const char *const headers[] = {
        "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3)}                    \n",
        "{\"descr\": \"<f4\", \"fortran_order\": False, \"shape\": (2, 3)}",
        "{'shape': (2,3,),'fortran_order':False,'descr':'=f4'}\n",
        "  { 'shape' : ( 2 , 3 ) , 'descr' : '|f4' , 'fortran_order' : False , } \t\r\n",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (2L, 3L), }",
    };
    for (size_t i = 0; i < sizeof headers / sizeof *headers; i++) {
        for (unsigned version = 1; version <= 3; version++) {
            struct npy_array array;
            cr_assert(read_made(version, headers[i], 24, &array), "%s: %s", headers[i], message);
            cr_assert_eq(array.type, NPY_F32);
            cr_assert_eq(array.dims, 2);
            cr_assert_eq(array.shape[0], 2);
            cr_assert_eq(array.shape[1], 3);
            npy_free(&array);
        }
    }
}

Test(npy, every_type_in_every_spelling)
{
    static const char *const codes[NPY_TYPE_COUNT] = {"f2", "f4", "f8", "b1", "u1", "i4", "i8"};
    for (unsigned type = 0; type < NPY_TYPE_COUNT; type++) {
        for (const char *order = "<=|"; *order; order++) {
            struct npy_array array;
            char header[100];
            snprintf(header, sizeof header, "{'descr': '%c%s', 'fortran_order': False, 'shape': (), }", *order,
                     codes[type]);
            cr_assert(read_made(1, header, npy_type_size((enum npy_type)type), &array), "%s", message);
            cr_assert_eq((unsigned)array.type, type);
            cr_assert_eq(array.dims, 0);
            cr_assert_eq(array.count, 1);
            npy_free(&array);
        }
    }
}

/* ---- Headers that are wrong ------------------------------------------------------------------------------------ */

#define SHAPE(text) "{'descr': '<f4', 'fortran_order': False, 'shape': " text ", }"
#define DESCR(text) "{'descr': " text ", 'fortran_order': False, 'shape': (6,), }"

static const struct {
    const char *header;
    const char *says; /* part of the sentence */
} hostile[] = {
    {"", "the header ends where the beginning should be a dictionary"},
    {"{", "ends where a key"},
    {"{}", "lacks field 'descr'"},
    {"[]", "not '[]'"},
    {"{'descr': '<f4', 'fortran_order': False}", "lacks field 'shape'"},
    {"{'descr': '<f4', 'shape': (6,)}", "lacks field 'fortran_order'"},
    {"{'fortran_order': False, 'shape': (6,)}", "lacks field 'descr'"},
    {"{'descr': '<f4', 'fortran_order': False, 'shape': (6,), 'descr': '<f4'}", "has field 'descr' twice"},
    {"{'descr': '<f4', 'fortran_order': False, 'shape': (6,), 'more': 1}", "unknown field 'more'"},
    {"{'more\nfields': 1}", "unknown field 'more'"},
    {"{'descr': 6\n}", "should be a string, not '6'"},
    {"{'descr': '<f4', 'fortran_order': True, 'shape': (2, 3)}", "field 'fortran_order' is True"},
    {"{'descr': '<f4', 'fortran_order': 0, 'shape': (6,)}", "should be True or False, not '0"},
    {"{'descr': '<f4' 'fortran_order': False, 'shape': (6,)}", "should be a comma"},
    {"{'descr', '<f4', 'fortran_order': False, 'shape': (6,)}", "should be a colon"},
    {"{'descr': '<f4', 'fortran_order': False, 'shape': (6,)", "ends where"},
    {"{'descr': '<f4', 'fortran_order': False, 'shape': (6,)} x", "should be blank, not 'x'"},
    {"{'descr': '<f4', 'fortran_order': False, 'shape': (6,)}{}", "should be blank"},
    {"{,'descr': '<f4', 'fortran_order': False, 'shape': (6,)}", "a key should be a string"},
    {"{descr: '<f4', 'fortran_order': False, 'shape': (6,)}", "a key should be a string"},
    {"{'de\\x73cr': '<f4', 'fortran_order': False, 'shape': (6,)}", "without escapes"},
    {"{{'descr': '<f4'}: 1}", "a key should be a string"},
    {"{'descr': '<f4\xc3\xa9', 'fortran_order': False, 'shape': (6,)}", "byte 0xc3"},
    {"{'descr': '<f4', \x1b[31m", "byte 0x1b"},
    {DESCR("'>f4'"), "'>f4': big-endian data is not read; save array.astype('<f4')"},
    {DESCR("'>'"), "field 'descr' is '>'"},
    {DESCR("''"), "field 'descr' is ''"},
    {DESCR("'<f'"), "field 'descr' is '<f'"},
    {DESCR("'<f\n'"), "field 'descr' is '<f'"},
    {DESCR("'>\r\n'"), "field 'descr' is '>'"},
    {DESCR("'f4'"), "field 'descr' is 'f4'"},
    {DESCR("'<f44'"), "field 'descr' is '<f44'"},
    {DESCR("'<c8'"), "field 'descr' is '<c8'"},
    {DESCR("'<i2'"), "field 'descr' is '<i2'"},
    {DESCR("'|O'"), "field 'descr' is '|O'"},
    {DESCR("'<U100000000000000000000000000000000000000000000000000000000'"), "field 'descr' is '<U1000"},
    {DESCR("[('a', '<f4'), ('b', '<i4')]"), "is a structured type"},
    {DESCR("('<f4', (6,))"), "should be a string"},
    {DESCR("None"), "should be a string, not 'None"},
    {DESCR("'<f4"), "field 'descr' is '<f4, '"},
    {SHAPE("6"), "should be a tuple"},
    {SHAPE("[6]"), "should be a tuple"},
    {SHAPE("(6)"), "a number and not a tuple"},
    {SHAPE("(,)"), "should be a number"},
    {SHAPE("(6,,1)"), "should be a number"},
    {SHAPE("(2 3)"), "with commas"},
    {SHAPE("(-6,)"), "negative dimension '-6"},
    {SHAPE("(-6\n,)"), "negative dimension '-6'"},
    {SHAPE("(6.0,)"), "with commas"},
    {SHAPE("(0x6,)"), "with commas"},
    {SHAPE("(6e9,)"), "with commas"},
    {SHAPE("('6',)"), "should be a number"},
    {SHAPE("((6,),)"), "should be a number"},
    {SHAPE("(1, 1, 1, 1, 1, 1, 1, 1, 6)"), "more than 8 dimensions"},
    {SHAPE("(18446744073709551616,)"), "above 2^64"},
    {SHAPE("(99999999999999999999999999999999999999999999999999,)"), "above 2^64"},
    {SHAPE("(18446744073709551616\n,)"), "above 2^64: '18446744073709551616'"},
    {SHAPE("(4294967296, 4294967296)"), "overflow the address space"},
    {SHAPE("(18446744073709551615,)"), "overflow the address space"},
    {SHAPE("(4611686018427387904, 4)"), "overflow the address space"},
    {SHAPE("(4611686018427387903,)"), "is truncated"},
    {SHAPE("(1000000000000,)"), "is truncated: shape (1000000000000,) of float32 takes 4000000000000 bytes"},
    {SHAPE("(7,)"), "is truncated: shape (7,) of float32 takes 28 bytes of data, and 24 are there"},
    {SHAPE("(5,)"), "has something after its data: shape (5,) of float32 takes 20 bytes"},
    {SHAPE("(0,)"), "has something after its data"},
};

Test(npy, hostile_headers_get_a_sentence)
{
    for (size_t i = 0; i < sizeof hostile / sizeof *hostile; i++) {
        for (unsigned version = 1; version <= 3; version++) {
            struct npy_array array;
            cr_assert_not(read_made(version, hostile[i].header, 24, &array), "%s", hostile[i].header);
            cr_assert_not_null(strstr(message, hostile[i].says), "%s: %s", hostile[i].header, message);
            cr_assert_not_null(strstr(message, "made.npy: "), "%s", message);
            cr_assert_null(array.data);
        }
    }
}

Test(npy, messages_hold_no_control_characters)
{
    for (size_t i = 0; i < sizeof hostile / sizeof *hostile; i++) {
        struct npy_array array;
        cr_assert_not(read_made(1, hostile[i].header, 24, &array));
        for (const char *c = message; *c; c++)
            cr_assert(*c >= ' ' && *c <= '~', "%s", message);
    }
}

Test(npy, deeply_nested_header)
{
    static char header[60001];
    struct npy_array array;
    memset(header, '(', 60000);
    memcpy(header, "{'shape':", 9);
    cr_assert_not(read_made(1, header, 0, &array));
    memset(header, '{', 60000);
    cr_assert_not(read_made(1, header, 0, &array));
}

static void refuse_bytes(const void *bytes, size_t size, const char *says)
{
    struct npy_array array;
    write_bytes(in_folder("bytes.npy"), bytes, size);
    cr_assert_not(npy_read(in_folder("bytes.npy"), &array, message));
    cr_assert_not_null(strstr(message, says), "%s", message);
}

Test(npy, hostile_preambles)
{
    refuse_bytes("", 0, "is no .npy file");
    refuse_bytes("\x93NUMPY", 6, "is no .npy file");
    refuse_bytes("PK\x03\x04 a zip file", 15, "is no .npy file");
    refuse_bytes("\x93NUMPY\x00\x00\x00\x00", 10, "version 0.0");
    refuse_bytes("\x93NUMPY\x04\x00\x00\x00\x00\x00", 12, "version 4.0");
    refuse_bytes("\x93NUMPY\x01\x01\x00\x00", 10, "version 1.1");
    refuse_bytes("\x93NUMPY\x01\x00\x76", 9, "the header's length needs 2 bytes and 1 are there");
    refuse_bytes("\x93NUMPY\x02\x00\xff\xff\xff", 11, "the header's length needs 4 bytes and 3 are there");
    refuse_bytes("\x93NUMPY\x02\x00\xff\xff\xff\xff", 12, "header length of 4294967295 bytes");
    refuse_bytes("\x93NUMPY\x03\x00\x00\x00\x01\x00", 12, "header length of 65536 bytes");
    refuse_bytes("\x93NUMPY\x01\x00\xff\xff{}", 12, "the header needs 65535 bytes and 2 are there");
}

Test(npy, every_truncation_is_noticed)
{
    unsigned char bytes[256];
    const size_t size = make_npy(bytes, 1, SHAPE("(6,)"), 24);
    for (size_t cut = 0; cut < size; cut++) {
        struct npy_array array;
        write_bytes(in_folder("cut.npy"), bytes, cut);
        cr_assert_not(npy_read(in_folder("cut.npy"), &array, message), "%zu bytes", cut);
    }
}

/* Whatever a file holds, reading it ends, and an array that is returned is as large as it says. */
Test(npy, damaged_files_never_crash)
{
    unsigned char good[256], bad[256];
    const size_t size = make_npy(good, 1, SHAPE("(2, 3)"), 24);
    uint32_t random = 1;
    for (unsigned round = 0; round < 1500; round++) {
        struct npy_array array;
        memcpy(bad, good, size);
        for (unsigned i = 0; i <= round % 3; i++) {
            random = random * 1664525u + 1013904223u;
            bad[(random >> 8) % size] = (unsigned char)(random >> 24);
        }
        write_bytes(in_folder("bad.npy"), bad, size);
        if (npy_read(in_folder("bad.npy"), &array, message))
            cr_assert(array.size <= size);
        npy_free(&array);
    }
}

/* ---- Pipes and other files ------------------------------------------------------------------------------------- */

/* Read what a child sends through a pipe. */
static bool read_piped(const void *bytes, size_t size, struct npy_array *array)
{
    int ends[2];
    char path[32];
    cr_assert_eq(pipe(ends), 0);
    const pid_t child = fork();
    cr_assert_geq(child, 0);
    if (child == 0) {
        close(ends[0]);
        signal(SIGPIPE, SIG_IGN);
        const ssize_t written = write(ends[1], bytes, size);
        _exit(written < 0);
    }
    close(ends[1]);
    snprintf(path, sizeof path, "/dev/fd/%d", ends[0]);
    const bool ok = npy_read(path, array, message);
    close(ends[0]);
    return ok;
}

Test(npy, pipes)
{
    static unsigned char bytes[400000];
    struct npy_array array;
    size_t size = make_npy(bytes, 1, SHAPE("(75000,)"), 300000);
    for (size_t i = size - 300000; i < size; i++)
        bytes[i] = (unsigned char)(i * 7);
    cr_assert(read_piped(bytes, size, &array), "%s", message);
    cr_assert_eq(memcmp(array.data, bytes + size - 300000, 300000), 0);
    npy_free(&array);
    cr_assert_not(read_piped(bytes, size - 1, &array));
    cr_assert_not_null(strstr(message, "is truncated"), "%s", message);
    cr_assert_not(read_piped(bytes, size + 1, &array));
    cr_assert_not_null(strstr(message, "has something after its data"), "%s", message);
    size = make_npy(bytes, 1, SHAPE("(4000000000000000000,)"), 24);
    cr_assert_not(read_piped(bytes, size, &array), "a claim of 16 EB must not be believed");
    cr_assert_not_null(strstr(message, "and 24 are there"), "%s", message);
}

Test(npy, files_that_are_no_files)
{
    struct npy_array array;
    cr_assert_not(npy_read(folder, &array, message));
    cr_assert_not_null(strstr(message, "is a folder"));
    cr_assert_not(npy_read(in_folder("absent.npy"), &array, message));
    cr_assert_not_null(strstr(message, "absent.npy: cannot be opened: No such file"));
    cr_assert_not(npy_read("", &array, message));
    cr_assert_not(npy_read("/dev/null", &array, message));
    cr_assert_not(npy_read("/dev/zero", &array, message));
}

Test(npy, a_long_path_leaves_room_for_the_sentence)
{
    struct npy_array array;
    char path[4000];
    memset(path, 'x', sizeof path);
    path[sizeof path - 1] = '\0';
    cr_assert_not(npy_read(path, &array, message));
    cr_assert_not_null(strstr(message, "cannot be opened"), "%s", message);
}

/* ---- Writing --------------------------------------------------------------------------------------------------- */

static float one_value = 42;

static struct npy_array one_float(void)
{
    struct npy_array array = {.data = &one_value};
    npy_set_shape(&array, NPY_F32, 1, (uint64_t[]){1});
    return array;
}

static void refuse_write(const char *path, const char *says)
{
    const struct npy_array array = one_float();
    cr_assert_not(npy_write(path, &array, message), "%s", path);
    cr_assert_not_null(strstr(message, says), "%s", message);
    cr_assert_not_null(strstr(message, path), "%s", message);
}

Test(npy, places_that_cannot_be_written)
{
    write_bytes(in_folder("file"), "x", 1);
    refuse_write(in_folder("absent/a.npy"), "No such file or directory");
    refuse_write(in_folder("file/a.npy"), "Not a directory");
    refuse_write(folder, "a folder's name");
    refuse_write(in_folder("new/"), "a folder's name");
    refuse_write("", "a folder's name");
    refuse_write("/proc/a.npy", "cannot be written");
    refuse_write("/dev/full", "No space left on device");
    cr_assert_not(npy_writable(in_folder("absent/a.npy"), message));
    cr_assert_not(npy_writable(folder, message));
    cr_assert(npy_writable(in_folder("a.npy"), message));
    cr_assert(npy_writable("/dev/null", message));
    cr_assert_eq(files_in_folder(), 1, "only 'file' is there");
}

Test(npy, devices_are_written_and_stay_devices)
{
    const struct npy_array array = one_float();
    struct stat status;
    cr_assert(npy_write("/dev/null", &array, message), "%s", message);
    cr_assert_eq(stat("/dev/null", &status), 0);
    cr_assert(S_ISCHR(status.st_mode));
}

Test(npy, an_existing_file_is_replaced_through_a_link)
{
    const struct npy_array array = one_float();
    struct npy_array in;
    struct stat status;
    write_bytes(in_folder("real.npy"), "old", 3);
    cr_assert_eq(symlink("real.npy", in_folder("link.npy")), 0);
    cr_assert(npy_write(in_folder("link.npy"), &array, message), "%s", message);
    cr_assert_eq(lstat(in_folder("link.npy"), &status), 0);
    cr_assert(S_ISLNK(status.st_mode));
    cr_assert(npy_read(in_folder("real.npy"), &in, message), "%s", message);
    cr_assert_eq(*(float *)in.data, 42.0f);
    npy_free(&in);
    cr_assert_eq(files_in_folder(), 2);
}

Test(npy, a_name_as_long_as_names_may_be)
{
    const struct npy_array array = one_float();
    char name[256];
    memset(name, 'n', 255);
    name[255] = '\0';
    cr_assert(npy_write(in_folder(name), &array, message), "%s", message);
    cr_assert_eq(files_in_folder(), 1);
}

Test(npy, a_path_without_a_folder)
{
    const struct npy_array array = one_float();
    cr_assert_eq(chdir(folder), 0);
    cr_assert(npy_write("plain.npy", &array, message), "%s", message);
    cr_assert_eq(access(in_folder("plain.npy"), R_OK), 0);
}

Test(npy, a_failed_write_leaves_the_old_file_and_nothing_else)
{
    static unsigned char data[100000];
    struct npy_array array = {.data = data};
    char old[16] = "";
    const struct rlimit small = {4096, 4096};
    signal(SIGXFSZ, SIG_IGN);
    write_bytes(in_folder("a.npy"), "old", 3);
    cr_assert(npy_set_shape(&array, NPY_U8, 1, (uint64_t[]){sizeof data}));
    cr_assert_eq(setrlimit(RLIMIT_FSIZE, &small), 0);
    const bool ok = npy_write(in_folder("a.npy"), &array, message);
    const size_t size = read_bytes(in_folder("a.npy"), old, sizeof old);
    cr_assert_not(ok);
    cr_assert_not_null(strstr(message, "a.npy: cannot be written after"), "%s", message);
    cr_assert_eq(size, 3);
    cr_assert_str_eq(old, "old");
    cr_assert_eq(files_in_folder(), 1);
}

/* ---- NumPy itself ---------------------------------------------------------------------------------------------- */

static bool python(const char *script)
{
    char command[2048];
    snprintf(command, sizeof command, "cd '%s' && " PYTHON " -c \"%s\" 2>/dev/null", folder, script);
    return system(command) == 0;
}

static void need_numpy(void)
{
    if (!python("import numpy"))
        cr_skip_test("%s has no numpy", PYTHON);
}

Test(npy, reads_what_numpy_writes)
{
    static const char *const types[NPY_TYPE_COUNT] = {"float16", "float32", "float64", "bool",
                                                      "uint8",   "int32",   "int64"};
    need_numpy();
    cr_assert(python("import numpy as n\n"
                     "for t in 'float16 float32 float64 bool uint8 int32 int64'.split():\n"
                     "    a = (n.arange(6).reshape(2, 3) % 5).astype(t)\n"
                     "    for v in (1, 2, 3):\n"
                     "        n.lib.format.write_array(open('%s%d.npy' % (t, v), 'wb'), a, (v, 0))\n"));
    for (unsigned type = 0; type < NPY_TYPE_COUNT; type++) {
        for (unsigned version = 1; version <= 3; version++) {
            struct npy_array array;
            char name[32];
            snprintf(name, sizeof name, "%s%u.npy", types[type], version);
            cr_assert(npy_read(in_folder(name), &array, message), "%s", message);
            cr_assert_eq((unsigned)array.type, type);
            cr_assert_eq(array.dims, 2);
            cr_assert_eq(array.shape[1], 3);
            cr_assert_str_eq(npy_type_name(array.type), types[type]);
            npy_free(&array);
        }
    }
    struct npy_array array;
    cr_assert(npy_read(in_folder("float64"
                                 "1.npy"),
                       &array, message),
              "%s", message);
    cr_assert_eq(((double *)array.data)[4], 4.0);
    npy_free(&array);
}

Test(npy, refuses_what_numpy_writes_otherwise)
{
    static const struct {
        const char *name, *says;
    } refused[] = {{"fortran.npy", "Fortran order"},
                   {"big.npy", "big-endian"},
                   {"complex.npy", "'<c16'"},
                   {"record.npy", "structured type"},
                   {"text.npy", "'<U3'"},
                   {"object.npy", "'|O'"},
                   {"int16.npy", "'<i2'"},
                   {"zip.npz", "no .npy file"}};
    need_numpy();
    cr_assert(python("import numpy as n\n"
                     "n.save('fortran', n.asfortranarray(n.ones((2, 3))))\n"
                     "n.save('big', n.ones(3, '>f4'))\n"
                     "n.save('complex', n.ones(3, 'c16'))\n"
                     "n.save('record', n.ones(3, 'f4,i4'))\n"
                     "n.save('text', n.array(['abc']))\n"
                     "n.save('object', n.array([None]), allow_pickle=True)\n"
                     "n.save('int16', n.ones(3, 'i2'))\n"
                     "n.savez('zip', n.ones(3))\n"));
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        struct npy_array array;
        cr_assert_not(npy_read(in_folder(refused[i].name), &array, message), "%s", refused[i].name);
        cr_assert_not_null(strstr(message, refused[i].says), "%s", message);
    }
}

Test(npy, numpy_reads_what_we_write)
{
    float data[24];
    struct npy_array array = {.data = data};
    need_numpy();
    for (unsigned i = 0; i < 24; i++)
        data[i] = (float)i / 4;
    for (unsigned dims = 0; dims <= 4; dims++) {
        char name[16];
        snprintf(name, sizeof name, "w%u.npy", dims);
        cr_assert(npy_set_shape(&array, NPY_F32, dims, (uint64_t[]){2, 3, 2, 2}));
        cr_assert(npy_write(in_folder(name), &array, message), "%s", message);
    }
    cr_assert(python("import numpy as n\n"
                     "for d in range(5):\n"
                     "    a = n.load('w%d.npy' % d)\n"
                     "    s = (2, 3, 2, 2)[:d]\n"
                     "    assert a.shape == s and a.dtype == n.float32\n"
                     "    assert (a == (n.arange(a.size) / 4).reshape(s)).all()\n"));
}
