/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>

/* The runtime that drom-run chose is for this program alone: what the program starts finds the environment without it. */
__attribute__((constructor)) static void forget_runtime(void)
{
    const char *runtime = getenv("DROM_PRELOADED_RUNTIME"), *libraries = getenv("LD_PRELOAD");
    char *copy = runtime && libraries ? strdup(libraries) : NULL;
    char *at = copy ? strstr(copy, runtime) : NULL;
    if (at > copy && at[-1] == ':') {
        memmove(at - 1, at + strlen(runtime), strlen(at + strlen(runtime)) + 1);
        setenv("LD_PRELOAD", copy, 1);
    }
    free(copy);
    unsetenv("DROM_PRELOADED_RUNTIME");
}
