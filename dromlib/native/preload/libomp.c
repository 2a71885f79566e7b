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

static const struct runtime *llvm; /* the one that is managed */
static dompt_set_callback set_callback;
static dompt_get_place_num get_place_num;

/* Whether the program attends to grants itself: its threads have the CPUs of the first one. */
static bool attends_itself(void)
{
    return __atomic_load_n(&session.yielded, __ATOMIC_RELAXED) && !session.pinned;
}

static void implicit_task(int endpoint, dompt_data *parallel, dompt_data *task, unsigned count, unsigned index, int flags);

/* In a new thread. One of the program's own the runtime binds only after this. Others it has given the CPUs that the process had
 * when the runtime started; these the thread that makes them may have, too, until it has made all. */
static void thread_begin(int kind, dompt_data *thread)
{
    (void)thread;
    if (kind == DOMPT_THREAD_INITIAL)
        return;
    heed_news();
    bind_self();
    if (attends_itself())
        set_callback(DOMPT_IMPLICIT_TASK, (dompt_function)implicit_task);
}

/* Whether a task is outside regions. The runtime gives each task a value of ours, 0 at first; to ask it anew would cost more. */
static bool is_outside(dompt_data *task)
{
    if (task->value == 0 && llvm->get_level() == 0)
        task->value = 1;
    return task->value != 0;
}

/* In the thread that forks, before the size of the team is decided. `requested` is what is set or what a clause says. */
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
        if (attends_itself())
            join_first();
        settled = true;
    }
    if (is_outside(task))
        size_region(site, llvm, (int)requested);
}

static void parallel_end(dompt_data *parallel, void *task, int flags, const void *return_address)
{
    (void)parallel, (void)task, (void)flags, (void)return_address;
    heed_news();
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
    if (!joined && attends_itself()) {
        join_first();
        joined = true;
    }
}

/* The runtime starts anew in a forked child, and goes on calling us. */
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

/* That of a library loaded after us. What the runtime itself has by this name looks further behind it. */
static dompt_start_result *start_next_tool(unsigned version, const char *runtime_version)
{
    start_tool *next;
    *(void **)&next = dlsym(RTLD_NEXT, "ompt_start_tool");
    return next ? next(version, runtime_version) : NULL;
}

/* Whether the user names a tool for the runtime to open. That of this library may be among them, as where nothing is preloaded. */
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

/* A runtime that finds this function among the loaded libraries calls it when it starts. It has one tool: that of the user, if
 * he has one, loaded or named for it to open. A second runtime runs on its own. */
PUBLIC dompt_start_result *ompt_start_tool(unsigned version, const char *runtime_version)
{
    static dompt_start_result result = {initialize, finalize, {0}};
    dompt_start_result *users = start_next_tool(version, runtime_version);
    if (users || is_other_named()) {
        have_points(DROM_POINTS_OTHER_TOOL);
        dromi_log("other-tool", "unmanaged=%s", runtime_version);
        return users;
    }
    if (llvm) {
        have_points(DROM_POINTS_OTHER_LIBOMP);
        dromi_log("second-runtime", "unmanaged=%s", runtime_version);
        return NULL;
    }
    llvm = runtime_of(__builtin_return_address(0));
    return llvm->is_llvm ? &result : NULL;
}
