/* Statuses, the sentence of the last error, and the two macros that errors travel by. */
#ifndef VKATTN_STATUS_H
#define VKATTN_STATUS_H

#include <vkattn/vkattn.h>

#if defined(__GNUC__)
#define VKATTN_PRINTF(text, first) __attribute__((format(printf, text, first)))
#else
#define VKATTN_PRINTF(text, first)
#endif

/* Keep the sentence for vkattn_last_error and return `status`. */
vkattn_status vkattn_fail(vkattn_status status, const char *format, ...) VKATTN_PRINTF(2, 3);

/* Return VKATTN_INVALID with a sentence unless `condition` holds. */
#define REQUIRE(condition, ...)                              \
    do {                                                     \
        if (!(condition))                                    \
            return vkattn_fail(VKATTN_INVALID, __VA_ARGS__); \
    } while (0)

/* Return the status of a call that did not succeed; its sentence is already kept. */
#define TRY(call)                                \
    do {                                         \
        const vkattn_status try_status = (call); \
        if (try_status != VKATTN_OK)             \
            return try_status;                   \
    } while (0)

/* Copy a struct that a caller compiled with another version of the header: fields that it lacks are 0; fields that we
 * lack must be 0. */
vkattn_status vkattn_copy_sized(void *to, size_t to_size, const void *from, size_t from_size, const char *name);

#endif
