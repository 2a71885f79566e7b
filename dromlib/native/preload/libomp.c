/* SPDX-License-Identifier: Apache-2.0 */
/* LLVM's and Intel's OpenMP: a tool that their runtime calls at regions (OMPT). */
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#include "hooks.h"
#include "ompt.h"
#include "openmp.h"
#include "pinning.h"

_Thread_local struct site *gomp_region;

static const struct runtime *llvm; /* the managed one */
static dompt_set_callback set_callback;
static dompt_get_place_num get_place_num;

/* Return whether the program takes grants itself (drom.h): its threads then get the CPUs of the first thread. */
static bool takes_grants_itself(void)
{
    return __atomic_load_n(&session.yielded, __ATOMIC_RELAXED) && !session.pinned;
}

static void implicit_task(int endpoint, dompt_data *parallel, dompt_data *task, unsigned count, unsigned index, int flags);

/* In a new thread. The runtime binds a thread of the program's own only after this. It has given the others the CPUs that the
 * process had when the runtime started; the thread that creates them may have these, too, until it has created all. */
static void thread_begin(int kind, dompt_data *thread)
{
    (void)thread;
    if (kind == DOMPT_THREAD_INITIAL)
        return;
    apply_grant_if_new();
    bind_self();
    if (takes_grants_itself())
        set_callback(DOMPT_IMPLICIT_TASK, (dompt_function)implicit_task);
}

/* Return whether a task is outside regions. The result is cached in the tool's value of the task, 0 at first: get_level() costs
 * more. */
static bool is_outside(dompt_data *task)
{
    if (task->value == 0 && llvm->get_level() == 0)
        task->value = 1;
    return task->value != 0;
}

/* In the thread that forks, before the size of the team is decided. `requested` is the number that is set, or that of a clause. */
static void parallel_begin(dompt_data *task, const void *frame, dompt_data *parallel, unsigned requested, int flags,
                           const void *return_address)
{
    static _Thread_local bool settled;
    (void)frame, (void)parallel, (void)flags;
    struct site *site = gomp_region ? gomp_region : site_at(return_address);
    gomp_region = NULL;
    at_point();
    if (!settled) {
        bind_self();
        if (takes_grants_itself())
            join_first();
        settled = true;
    }
    if (is_outside(task))
        size_region(site, llvm, (int)requested);
}

static void parallel_end(dompt_data *parallel, void *task, int flags, const void *return_address)
{
    (void)parallel, (void)task, (void)flags, (void)return_address;
    apply_grant_if_new();
}

/* In every thread of a team, after the runtime has bound it. */
static void implicit_task(int endpoint, dompt_data *parallel, dompt_data *task, unsigned count, unsigned index, int flags)
{
    static _Thread_local bool joined;
    (void)parallel, (void)task;
    if (endpoint != DOMPT_SCOPE_BEGIN || (flags & DOMPT_TASK_INITIAL))
        return;
    if (is_pinned(llvm) && llvm->get_level() == 1)
        pin_self(index, count, get_place_num ? get_place_num() : 0);
    if (!joined && takes_grants_itself()) {
        join_first();
        joined = true;
    }
}

/* In a forked child the runtime initialises itself again, and goes on calling the tool. */
static void begin_child(void)
{
    forget_size(llvm);
}

static int initialize(dompt_lookup lookup, int device, dompt_data *data)
{
    (void)device, (void)data;
    dompt_function found = lookup("ompt_set_callback");
    set_callback = (dompt_set_callback)found;
    get_place_num = (dompt_get_place_num)lookup("ompt_get_place_num");
    if (!set_callback)
        return 0;
    dromi_at_fork(NULL, NULL, begin_child);
    set_callback(DOMPT_THREAD_BEGIN, (dompt_function)thread_begin);
    set_callback(DOMPT_PARALLEL_BEGIN, (dompt_function)parallel_begin);
    set_callback(DOMPT_PARALLEL_END, (dompt_function)parallel_end);
    if (session.pinned)
        set_callback(DOMPT_IMPLICIT_TASK, (dompt_function)implicit_task);
    return 1;
}

static void finalize(dompt_data *data)
{
    (void)data;
}

#ifdef DROM_TOOL
PUBLIC dompt_start_result *ompt_start_tool(unsigned version, const char *runtime_version);
#else
PUBLIC dompt_start_result *ompt_start_tool(unsigned version, const char *runtime_version) FRONT_OF(ompt_start_tool);
EXPORT(ompt_start_tool, VERSION);
#endif

typedef dompt_start_result *start_tool(unsigned, const char *);

/* Start the tool of a library loaded after this one. The runtime's own function of this name searches the libraries after it. */
static dompt_start_result *start_next_tool(unsigned version, const char *runtime_version)
{
    start_tool *next;
    *(void **)&next = dlsym(RTLD_NEXT, "ompt_start_tool");
    return next ? next(version, runtime_version) : NULL;
}

/* Return whether the user names another tool for the runtime to open. drom's own may be named too, as it is without preloading. */
static bool is_other_named(void)
{
    const char *named = getenv("OMP_TOOL_LIBRARIES");
    char *list = named ? strdup(named) : NULL, *rest = NULL;
    bool is = false;
    for (char *path = list ? strtok_r(list, ":", &rest) : NULL; path && !is; path = strtok_r(NULL, ":", &rest)) {
        const char *slash = strrchr(path, '/');
        is = strcmp(slash ? slash + 1 : path, "libdrom-tool.so") != 0;
    }
    free(list);
    return is;
}

/* A runtime that finds this function among the loaded libraries calls it when it starts. It has one tool: the user's, if one is
 * loaded or named. A second runtime in the process is not managed. */
PUBLIC dompt_start_result *ompt_start_tool(unsigned version, const char *runtime_version)
{
    static dompt_start_result result = {initialize, finalize, {0}};
    dompt_start_result *users = start_next_tool(version, runtime_version);
    if (users || is_other_named()) {
        report_points(DROM_POINTS_OTHER_TOOL);
        dromi_log("other-tool", "unmanaged=%s", runtime_version);
        return users;
    }
    if (llvm) {
        report_points(DROM_POINTS_OTHER_LIBOMP);
        dromi_log("second-runtime", "unmanaged=%s", runtime_version);
        return NULL;
    }
    llvm = runtime_of(__builtin_return_address(0));
    return llvm->is_llvm ? &result : NULL;
}
