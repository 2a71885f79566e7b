/* SPDX-License-Identifier: Apache-2.0 */
/* An OpenMP tool that does nothing: the time that it adds to a region is LLVM's overhead for any tool. */
#include "ompt.h"

static int initialize(dompt_lookup lookup, int device, dompt_data *data)
{
    (void)lookup, (void)device, (void)data;
    return 1;
}

static void finalize(dompt_data *data)
{
    (void)data;
}

dompt_start_result *ompt_start_tool(unsigned version, const char *runtime_version);

__attribute__((visibility("default"))) dompt_start_result *ompt_start_tool(unsigned version, const char *runtime_version)
{
    static dompt_start_result result = {initialize, finalize, {0}};
    (void)version, (void)runtime_version;
    return &result;
}
