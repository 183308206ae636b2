/* The `vkattn` command: finds the subcommand. */
#include "command.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

struct subcommand {
    const char *name;
    const char *title; /* argv[0] of the subcommand */
    int (*run)(int argc, char **argv);
    const char *summary;
};

static const struct subcommand subcommands[] = {
    {"devices", "vkattn devices", command_devices, "list Vulkan devices and the kernels that they get"},
    {"run", "vkattn run", command_run, "compute attention of .npy files"},
    {"explain", "vkattn explain", command_explain, "say which kernel a problem gets, and why"},
    {"check", "vkattn check", command_check, "run every kernel against the reference"},
    {"bench", "vkattn bench", command_bench, "measure prefill and decode speed"},
    {"tune", "vkattn tune", command_tune, "measure this device's tiles, for a file that the library reads"},
    {"kernels", "vkattn kernels", command_kernels, "list the kernels"},
};

enum { SUBCOMMANDS = sizeof subcommands / sizeof *subcommands };

static int print_help(FILE *file)
{
    fputs("Usage: vkattn SUBCOMMAND [OPTION]...\n"
          "Exact attention on any Vulkan device.\n\n",
          file);
    for (unsigned i = 0; i < SUBCOMMANDS; i++)
        fprintf(file, "  %-10s %s\n", subcommands[i].name, subcommands[i].summary);
    fputs("  help       show the options of a subcommand: vkattn help SUBCOMMAND\n\n"
          "  --help     print this text\n"
          "  --version  print the version\n\n" COMMAND_EXIT_HELP,
          file);
    return COMMAND_OK;
}

static int print_version(void)
{
    const uint32_t version = vkattn_version();
    printf("vkattn %u.%u.%u\n", version / 10000, version / 100 % 100, version % 100);
    return COMMAND_OK;
}

static const struct subcommand *find(const char *name)
{
    for (unsigned i = 0; i < SUBCOMMANDS; i++) {
        if (strcmp(name, subcommands[i].name) == 0)
            return &subcommands[i];
    }
    command_complain("unknown subcommand '%s'; `vkattn --help` lists them", name);
    return NULL;
}

/* A writable copy, since argv is: char **. */
static int call(const struct subcommand *subcommand, int argc, char **argv)
{
    char title[32];
    snprintf(title, sizeof title, "%s", subcommand->title);
    argv[0] = title;
    return subcommand->run(argc, argv);
}

static int help_on(int argc, char **argv)
{
    if (argc == 0)
        return print_help(stdout);
    const struct subcommand *subcommand = find(argv[0]);
    char option[] = "--help";
    char *arguments[] = {NULL, option, NULL};
    return subcommand ? call(subcommand, 2, arguments) : COMMAND_USAGE;
}

static int dispatch(int argc, char **argv)
{
    if (argc < 2) {
        print_help(stderr);
        return COMMAND_USAGE;
    }
    if (strcmp(argv[1], "--help") == 0)
        return print_help(stdout);
    if (strcmp(argv[1], "--version") == 0)
        return print_version();
    if (strcmp(argv[1], "help") == 0)
        return help_on(argc - 2, argv + 2);
    const struct subcommand *subcommand = find(argv[1]);
    return subcommand ? call(subcommand, argc - 1, argv + 1) : COMMAND_USAGE;
}

int main(int argc, char **argv)
{
    const int exit_status = dispatch(argc, argv);
    /* A full disk behind standard output must not look like success. */
    if (fflush(stdout) == 0 && !ferror(stdout))
        return exit_status;
    command_complain("standard output cannot be written: %s", strerror(errno));
    return exit_status == COMMAND_OK ? COMMAND_USAGE : exit_status;
}
