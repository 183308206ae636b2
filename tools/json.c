#include "json.h"

#include <inttypes.h>
#include <math.h>
#include <stddef.h>

/* Bytes of the well-formed UTF-8 sequence at `text`, 0 if there is none (overlong forms and surrogates included). */
static unsigned utf8_length(const unsigned char *text)
{
    const unsigned char c = text[0];
    if (c < 0x80)
        return 1;
    if (c < 0xc2 || c > 0xf4)
        return 0;
    const unsigned length = c < 0xe0 ? 2 : c < 0xf0 ? 3 : 4;
    unsigned char low = 0x80, high = 0xbf;
    if (c == 0xe0)
        low = 0xa0;
    if (c == 0xed)
        high = 0x9f;
    if (c == 0xf0)
        low = 0x90;
    if (c == 0xf4)
        high = 0x8f;
    if (text[1] < low || text[1] > high)
        return 0;
    for (unsigned i = 2; i < length; i++) {
        if ((text[i] & 0xc0) != 0x80)
            return 0;
    }
    return length;
}

static void write_string(FILE *file, const char *value)
{
    const unsigned char *c = (const unsigned char *)value;
    fputc('"', file);
    while (*c) {
        const unsigned length = utf8_length(c);
        if (length == 0)
            fputs("\\ufffd", file);
        else if (*c == '"' || *c == '\\')
            fprintf(file, "\\%c", *c);
        else if (*c < 0x20 || *c == 0x7f)
            fprintf(file, "\\u%04x", *c);
        else
            fwrite(c, 1, length, file);
        c += length ? length : 1;
    }
    fputc('"', file);
}

/* The comma, the new line and the key before a value. */
static void begin_value(struct json *json, const char *key)
{
    if (json->depth) {
        fputs(json->filled[json->depth] ? ",\n" : "\n", json->file);
        fprintf(json->file, "%*s", (int)json->depth * 2, "");
    }
    json->filled[json->depth] = true;
    if (key) {
        write_string(json->file, key);
        fputs(": ", json->file);
    }
}

static void open_level(struct json *json, const char *key, char opening, char closing)
{
    begin_value(json, key);
    fputc(opening, json->file);
    if (json->depth + 1 < JSON_MAX_DEPTH)
        json->depth++;
    json->filled[json->depth] = false;
    json->closing[json->depth] = closing;
}

void json_open_object(struct json *json, const char *key)
{
    open_level(json, key, '{', '}');
}

void json_open_array(struct json *json, const char *key)
{
    open_level(json, key, '[', ']');
}

void json_close(struct json *json)
{
    if (json->depth == 0)
        return;
    if (json->filled[json->depth])
        fprintf(json->file, "\n%*s", (int)json->depth * 2 - 2, "");
    fputc(json->closing[json->depth], json->file);
    json->depth--;
    if (json->depth == 0)
        fputc('\n', json->file);
}

void json_null(struct json *json, const char *key)
{
    begin_value(json, key);
    fputs("null", json->file);
}

void json_string(struct json *json, const char *key, const char *value)
{
    if (!value) {
        json_null(json, key);
        return;
    }
    begin_value(json, key);
    write_string(json->file, value);
}

void json_number(struct json *json, const char *key, double value)
{
    if (!isfinite(value)) {
        json_null(json, key);
        return;
    }
    begin_value(json, key);
    fprintf(json->file, "%.17g", value);
}

void json_integer(struct json *json, const char *key, int64_t value)
{
    begin_value(json, key);
    fprintf(json->file, "%" PRId64, value);
}

void json_unsigned(struct json *json, const char *key, uint64_t value)
{
    begin_value(json, key);
    fprintf(json->file, "%" PRIu64, value);
}

void json_bool(struct json *json, const char *key, bool value)
{
    begin_value(json, key);
    fputs(value ? "true" : "false", json->file);
}
