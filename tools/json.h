/* A JSON writer: values go to a FILE as they come, with commas, indentation and escapes in the right places. */
#ifndef VKATTN_TOOLS_JSON_H
#define VKATTN_TOOLS_JSON_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#define JSON_MAX_DEPTH 16u

/* Start as {.file = stdout}. In an object every value has a key; in an array, and at the top, the key is NULL. */
struct json {
    FILE *file;
    unsigned depth;
    bool filled[JSON_MAX_DEPTH]; /* something was written at this depth */
    char closing[JSON_MAX_DEPTH];
};

void json_open_object(struct json *json, const char *key);
void json_open_array(struct json *json, const char *key);
/* Close what was opened last; the outermost one ends the line. */
void json_close(struct json *json);

/* Bytes that are not UTF-8 become U+FFFD; NULL becomes null. */
void json_string(struct json *json, const char *key, const char *value);
/* Null where the value is not finite, since JSON has no word for that. */
void json_number(struct json *json, const char *key, double value);
void json_integer(struct json *json, const char *key, int64_t value);
void json_unsigned(struct json *json, const char *key, uint64_t value);
void json_bool(struct json *json, const char *key, bool value);
void json_null(struct json *json, const char *key);

#endif
