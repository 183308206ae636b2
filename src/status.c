#include "status.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static _Thread_local char last_error[512];

const char *vkattn_last_error(void)
{
    return last_error;
}

vkattn_status vkattn_fail(vkattn_status status, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(last_error, sizeof last_error, format, arguments);
    va_end(arguments);
    return status;
}

vkattn_status vkattn_error_set(vkattn_status status, const char *text)
{
    return vkattn_fail(status, "%s", text ? text : "");
}

const char *vkattn_status_name(vkattn_status status)
{
    static const char *const names[] = {"VKATTN_OK",        "VKATTN_INVALID",     "VKATTN_UNSUPPORTED",
                                        "VKATTN_NO_MEMORY", "VKATTN_DEVICE_LOST", "VKATTN_FAILED"};
    const size_t index = (size_t)status;
    return index < sizeof names / sizeof *names ? names[index] : "unknown vkattn_status";
}

uint32_t vkattn_version(void)
{
    return VKATTN_VERSION;
}

vkattn_status vkattn_copy_sized(void *to, size_t to_size, const void *from, size_t from_size, const char *name)
{
    memset(to, 0, to_size);
    REQUIRE(from != NULL, "%s is NULL", name);
    memcpy(to, from, from_size < to_size ? from_size : to_size);
    const unsigned char *bytes = from;
    for (size_t i = to_size; i < from_size; i++)
        REQUIRE(bytes[i] == 0, "%s is of a newer version than this library: byte %zu of it is not 0", name, i);
    return VKATTN_OK;
}
