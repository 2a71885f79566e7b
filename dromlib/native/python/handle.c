/* SPDX-License-Identifier: Apache-2.0 */
/* dromlib._handle: a libdrom handle as a Python type, within the limited API of Python 3.10.
 *
 * libdrom allows one thread at a time in a handle. The interpreter lock ensures that, except while a thread sleeps in wait() or
 * registers with a new agent: meanwhile `state` keeps other threads from using the handle. */
#define Py_LIMITED_API 0x030A0000
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "internal.h"

enum state { FREE, WAITING, REGISTERING };

typedef struct {
    PyObject_HEAD
    drom *at;     /* the one that poll() reads: the handle, or `none` */
    drom *handle; /* NULL once closed */
    drom none;
    uint64_t still;
    uint64_t polls;
    enum state state;
    bool closed;
} Handle;

static PyObject *make(PyTypeObject *type, PyObject *args, PyObject *keywords)
{
    (void)args, (void)keywords; /* a subclass takes them */
    allocfunc allocate = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    Handle *self = (Handle *)allocate(type, 0);
    if (!self)
        return NULL;
    self->none = (drom){&self->still, &self->polls, 0};
    Py_BEGIN_ALLOW_THREADS
    self->handle = drom_attach();
    Py_END_ALLOW_THREADS
    self->at = self->handle;
    return (PyObject *)self;
}

static void detach(Handle *self)
{
    self->at = &self->none;
    drom_detach(self->handle);
    self->handle = NULL;
}

static void destroy(PyObject *object)
{
    PyTypeObject *type = Py_TYPE(object);
    freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);
    detach((Handle *)object);
    release(object);
    Py_DECREF(type);
}

/* Return the handle, or NULL if it is closed or another thread changes it. */
static drom *usable(const Handle *self)
{
    return self->closed || self->state == REGISTERING ? NULL : self->handle;
}

static void end_call(Handle *self)
{
    self->state = FREE;
    self->at = self->handle;
    if (self->closed)
        detach(self);
}

static PyObject *poll(PyObject *object, PyObject *nothing)
{
    (void)nothing;
    Handle *self = (Handle *)object;
    if (!drom_poll(self->at) || self->state != FREE)
        Py_RETURN_NONE;
    return PyObject_CallMethod(object, "_take", NULL);
}

static PyObject *cpu_tuple(const drom_grant *grant)
{
    int *cpus = PyMem_Malloc((grant->ncpus + 1) * sizeof *cpus);
    if (!cpus)
        return PyErr_NoMemory();
    int count = drom_grant_cpus(grant, cpus, (int)grant->ncpus);
    count = count < (int)grant->ncpus ? count : (int)grant->ncpus;
    PyObject *tuple = PyTuple_New(count);
    for (int i = 0; tuple && i < count; i++) {
        PyObject *cpu = PyLong_FromLong(cpus[i]);
        if (!cpu || PyTuple_SetItem(tuple, i, cpu) < 0)
            Py_CLEAR(tuple);
    }
    PyMem_Free(cpus);
    return tuple;
}

/* Other threads of the interpreter run during a registration with the agent, which may take seconds. */
static int take_grant(Handle *self, drom_grant *grant)
{
    int taken = dromi_take(self->handle, grant, false);
    if (taken >= 0)
        return taken;
    self->state = REGISTERING;
    self->at = &self->none;
    Py_BEGIN_ALLOW_THREADS
    taken = drom_take(self->handle, grant);
    Py_END_ALLOW_THREADS
    end_call(self);
    return taken && !self->closed;
}

static PyObject *take(PyObject *object, PyObject *nothing)
{
    (void)nothing;
    Handle *self = (Handle *)object;
    drom_grant grant;
    if (self->state != FREE || self->closed || !take_grant(self, &grant))
        Py_RETURN_NONE;
    PyObject *cpus = cpu_tuple(&grant);
    if (!cpus)
        return NULL;
    bool emulated = ((const struct handle *)self->handle)->emulated;
    return Py_BuildValue("(KNkN)", (unsigned long long)grant.epoch, cpus, (unsigned long)grant.reason, PyBool_FromLong(emulated));
}

static bool is_over(const Handle *self, uint64_t end)
{
    return self->closed || dromi_has_new_grant(self->handle) || drom_mode(self->handle) == DROM_UNMANAGED || dromi_now_ns() >= end;
}

static PyObject *sleep_until_grant(Handle *self, uint64_t end)
{
    int interrupted = 0;
    self->state = WAITING;
    while (!interrupted && !is_over(self, end)) {
        Py_BEGIN_ALLOW_THREADS
        dromi_wait(self->handle, end);
        Py_END_ALLOW_THREADS
        interrupted = PyErr_CheckSignals();
    }
    bool found = !self->closed && dromi_has_new_grant(self->handle);
    end_call(self);
    return interrupted ? NULL : PyBool_FromLong(found);
}

static PyObject *wait_for_grant(PyObject *object, PyObject *timeout)
{
    Handle *self = (Handle *)object;
    double seconds = timeout == Py_None ? -1 : PyFloat_AsDouble(timeout);
    if (PyErr_Occurred())
        return NULL;
    if (self->closed || drom_mode(self->handle) == DROM_UNMANAGED)
        Py_RETURN_FALSE;
    if (self->state != FREE) {
        PyErr_SetString(PyExc_RuntimeError, "Another thread uses this session: attach one session for each thread that waits.");
        return NULL;
    }
    bool for_ever = timeout == Py_None || seconds > 1e9;
    uint64_t end = for_ever ? UINT64_MAX : dromi_now_ns() + (seconds > 0 ? (uint64_t)(seconds * 1e9) : 0);
    return sleep_until_grant(self, end);
}

/* Return 0 if acknowledged, or if no acknowledgement is needed; otherwise the error number. */
static PyObject *acknowledge(PyObject *object, PyObject *args)
{
    unsigned long long epoch;
    unsigned int ncpus;
    if (!PyArg_ParseTuple(args, "KI", &epoch, &ncpus))
        return NULL;
    drom *handle = usable((Handle *)object);
    drom_grant grant = {.epoch = epoch, .ncpus = ncpus};
    return PyLong_FromLong(handle ? -drom_acknowledge(handle, &grant) : 0);
}

static PyObject *progress(PyObject *object, PyObject *done)
{
    PyObject *number = PyNumber_Index(done); /* NumPy's integers are not of Python's type */
    unsigned long long value = number ? PyLong_AsUnsignedLongLong(number) : 0;
    Py_XDECREF(number);
    if (PyErr_Occurred())
        return NULL;
    drom *handle = usable((Handle *)object);
    if (handle)
        drom_progress(handle, value);
    Py_RETURN_NONE;
}

static PyObject *want(PyObject *object, PyObject *args)
{
    unsigned int least, most;
    if (!PyArg_ParseTuple(args, "II", &least, &most))
        return NULL;
    drom *handle = usable((Handle *)object);
    if (handle)
        drom_want(handle, least, most);
    Py_RETURN_NONE;
}

static PyObject *close_handle(PyObject *object, PyObject *nothing)
{
    (void)nothing;
    Handle *self = (Handle *)object;
    if (self->closed)
        Py_RETURN_NONE;
    self->closed = true;
    self->at = &self->none;
    if (self->state == FREE)
        detach(self);
    else if (self->state == WAITING) /* wakes the waiting thread, which then detaches the handle */
        syscall(SYS_futex, (const uint32_t *)self->handle->epoch, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
    Py_RETURN_NONE;
}

static PyObject *get_mode(PyObject *object, void *nothing)
{
    static const char *const names[] = {"unmanaged", "responder", "follower"};
    (void)nothing;
    drom *handle = usable((Handle *)object);
    return PyUnicode_FromString(names[handle ? drom_mode(handle) : DROM_UNMANAGED]);
}

static PyObject *get_place(PyObject *object, void *nothing)
{
    (void)nothing;
    drom *handle = usable((Handle *)object);
    int slot = handle ? drom_slot(handle) : -1;
    if (slot < 0)
        Py_RETURN_NONE;
    return Py_BuildValue("(Ni)", PyUnicode_DecodeFSDefault(drom_directory(handle)), slot);
}

static PyObject *get_may_register(PyObject *object, void *nothing)
{
    (void)nothing;
    drom *handle = usable((Handle *)object);
    return PyBool_FromLong(handle && dromi_may_register(handle));
}

static int add_cpu(uint64_t *mask, PyObject *cpus, Py_ssize_t i)
{
    PyObject *item = PySequence_GetItem(cpus, i);
    long cpu = item ? PyLong_AsLong(item) : -1;
    Py_XDECREF(item);
    if (PyErr_Occurred())
        return -1;
    if (cpu < 0 || cpu >= (long)DROM_MAX_MASK_BITS) {
        PyErr_Format(PyExc_ValueError, "%ld is not a CPU: it must be from 0 to %d.", cpu, (int)DROM_MAX_MASK_BITS - 1);
        return -1;
    }
    mask[cpu / 64] |= UINT64_C(1) << cpu % 64;
    return 0;
}

static PyObject *bind_threads(PyObject *module, PyObject *cpus)
{
    (void)module;
    uint64_t mask[DROM_MAX_MASK_WORDS] = {0};
    Py_ssize_t count = PySequence_Size(cpus);
    if (count < 0)
        return NULL;
    for (Py_ssize_t i = 0; i < count; i++)
        if (add_cpu(mask, cpus, i) < 0)
            return NULL;
    int rc;
    Py_BEGIN_ALLOW_THREADS
    rc = dromi_bind_parts(mask, DROM_MAX_MASK_WORDS);
    Py_END_ALLOW_THREADS
    if (rc == 0)
        Py_RETURN_NONE;
    errno = -rc;
    return PyErr_SetFromErrno(PyExc_OSError);
}

/* An exception is raised in the code that the main thread is executing. */
static int make_call(void *callable)
{
    PyObject *result = PyObject_CallNoArgs(callable);
    int rc = result ? 0 : -1;
    Py_XDECREF(result);
    Py_DECREF((PyObject *)callable);
    return rc;
}

static PyObject *call_soon(PyObject *module, PyObject *callable)
{
    (void)module;
    Py_INCREF(callable);
    int refused = Py_AddPendingCall(make_call, callable);
    if (refused)
        Py_DECREF(callable);
    return PyBool_FromLong(!refused);
}

/* Threads started by this call have all signals blocked for ever. */
static PyObject *without_signals(PyObject *module, PyObject *args)
{
    (void)module;
    sigset_t all, before;
    PyObject *function = PyTuple_GetItem(args, 0), *rest = function ? PyTuple_GetSlice(args, 1, PyTuple_Size(args)) : NULL;
    if (!rest)
        return NULL;
    sigfillset(&all);
    sigprocmask(SIG_SETMASK, &all, &before); /* of this thread; pthread_sigmask() is another symbol in new glibc */
    PyObject *result = PyObject_CallObject(function, rest);
    sigprocmask(SIG_SETMASK, &before, NULL);
    Py_DECREF(rest);
    return result;
}

static PyObject *in_main_interpreter(PyObject *module, PyObject *nothing)
{
    (void)module, (void)nothing;
    return PyBool_FromLong(PyInterpreterState_GetID(PyInterpreterState_Get()) == 0);
}

static PyMethodDef handle_methods[] = {
    {"poll", poll, METH_NOARGS, "Count a malleability point; return the newest grant if it has not been taken yet, otherwise None.\n\n"
     "A call without a new grant takes some ten nanoseconds. Any thread may call it."},
    {"_take_raw", take, METH_NOARGS, "Return (epoch, CPUs, reason number, emulated) of the newest grant, or None."},
    {"_wait_for_grant", wait_for_grant, METH_O, "Sleep until there is a grant (True), for at most the given seconds."},
    {"_acknowledge", acknowledge, METH_VARARGS, "Report that (epoch, number of CPUs) is in force; return 0 or an error number."},
    {"progress", progress, METH_O, "Report the work done so far, an integer from 0 in a unit of the program's own.\n\n"
     "Raises TypeError for a value that is not an integer, OverflowError for one below 0 or above 64 bits."},
    {"_want", want, METH_VARARGS, "Report the fewest and the most CPUs that the program can use; 0: unspecified."},
    {"close", close_handle, METH_NOARGS, "Leave the agent: there are no further grants. A thread in wait() returns."},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef handle_values[] = {
    {"mode", get_mode, NULL, "The role of the process: \"unmanaged\", \"responder\" or \"follower\".", NULL},
    {"_place", get_place, NULL, "The agent's runtime directory and the index of the task's slot, or None.", NULL},
    {"_may_register", get_may_register, NULL, "Whether taking the next grant may first register again, which takes seconds.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot handle_slots[] = {
    {Py_tp_new, make},
    {Py_tp_dealloc, destroy},
    {Py_tp_methods, handle_methods},
    {Py_tp_getset, handle_values},
    {Py_tp_doc, "A process's registration with the agent: the base of `dromlib.Session`."},
    {0, NULL},
};

static PyType_Spec handle_spec = {
    .name = "dromlib._handle.Handle",
    .basicsize = sizeof(Handle),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE,
    .slots = handle_slots,
};

static PyMethodDef functions[] = {
    {"bind_threads", bind_threads, METH_O, "Bind every thread of this process to the OS CPUs given. Raises OSError."},
    {"without_signals", without_signals, METH_VARARGS, "Call (function, *arguments) while this thread has all signals blocked."},
    {"call_soon", call_soon, METH_O, "Call in the main thread between two of its instructions; False if too many calls are pending."},
    {"in_main_interpreter", in_main_interpreter, METH_NOARGS, "Return whether this is the main interpreter of the process."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT, .m_name = "_handle", .m_doc = "libdrom for Python.", .m_size = -1, .m_methods = functions,
};

PyMODINIT_FUNC PyInit__handle(void)
{
    PyObject *made = PyModule_Create(&module);
    PyObject *type = made ? PyType_FromSpec(&handle_spec) : NULL;
    if (!type || PyModule_AddObject(made, "Handle", type) < 0) {
        Py_XDECREF(type);
        Py_XDECREF(made);
        return NULL;
    }
    return made;
}
