/* SPDX-License-Identifier: Apache-2.0 */
/* The part of OpenMP 5.0's tool interface (OMPT) that is used here, from chapter 4 of the specification. Names begin with dompt_,
 * as a compiler's own omp-tools.h may be included elsewhere. */
#ifndef DROM_OMPT_H
#define DROM_OMPT_H

#include <stdint.h>

enum { DOMPT_THREAD_BEGIN = 1, DOMPT_PARALLEL_BEGIN = 3, DOMPT_PARALLEL_END = 4, DOMPT_IMPLICIT_TASK = 7 };
enum { DOMPT_SCOPE_BEGIN = 1 };
enum { DOMPT_TASK_INITIAL = 1 };
enum { DOMPT_THREAD_INITIAL = 1 };

typedef void (*dompt_function)(void);
typedef dompt_function (*dompt_lookup)(const char *name);
typedef int (*dompt_set_callback)(int which, dompt_function callback);
typedef int (*dompt_get_place_num)(void);

typedef union {
    uint64_t value;
    void *ptr;
} dompt_data;

typedef struct {
    int (*initialize)(dompt_lookup lookup, int initial_device, dompt_data *tool_data);
    void (*finalize)(dompt_data *tool_data);
    dompt_data tool_data;
} dompt_start_result;

#endif
