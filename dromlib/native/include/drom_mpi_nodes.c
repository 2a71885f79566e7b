/* SPDX-License-Identifier: Apache-2.0 */
/* Adding and releasing nodes of an adaptive MPI program while it runs: see docs/adaptive-mpi.md.
 *
 * A *group* is the ranks that were launched or spawned together and have an MPI_COMM_WORLD of their own. By the MPI standard
 * processes end only together with all others of their group; with MPICH 5 they can end alone. The host file lists the nodes that
 * the program is to have. Ranks on other nodes are released, if they can end alone or their whole group is released; for a listed
 * node without ranks a group is spawned. The first running rank reads the file and orders a *regrouping*, in which all ranks take
 * part, also resting ones. Spawned ranks join at their first malleability point, as if they had rested. */
#include "drom_mpi_internal.h"

#include <sys/stat.h>
#include <unistd.h>

enum { MOST_TEXT = 1 << 16, MOST_SLOTS = 1 << 16, MOST_COMMAND = 1 << 17, LOOK_MS = 100, MOST_GROUPS = 62 };

/* The variable with the name of the host file; in spawned ranks the second one has the parents' name of it. */
#define HOSTFILE "DROM_MPI_HOSTFILE"
#define SPAWNED "DROM_MPI_SPAWNED"

/* The control variable of MPICH 5 with which MPI_Finalize() waits for no other rank. Open MPI 4 has async_mpi_finalize, but cannot
 * spawn ranks any more after some of a launch have ended. */
#define ENDS_ALONE "MPIR_CVAR_NO_COLLECTIVE_FINALIZE"

/* --- the host file ---------------------------------------------------------------------------------------------------- */

/* Parse a line of the host file without its comment. Return whether it is valid; fill in `h`, with no slots for an empty line. */
static bool read_host(const char *line, struct host *h)
{
    int used = 0;
    *h = (struct host){.slots = 0};
    if (line[strspn(line, " \t\r")] == '\0')
        return true;
    if (sscanf(line, "%255s slots=%d %n", h->node, &h->slots, &used) != 2 || used == 0)
        return false;
    memcpy(h->host, h->node, sizeof h->host);
    if (sscanf(line + used, "host=%255s", h->host) == 1)
        used += (int)(sizeof "host=" - 1 + strlen(h->host));
    return line[used + (int)strspn(line + used, " \t\r")] == '\0' && h->slots >= 1 && h->slots <= MOST_SLOTS;
}

static bool is_listed(const struct hosts *hosts, const char *node);

/* Return the lines of a host file, for the caller to free; without any (count is 0) if a line is invalid or a node is listed twice. */
static struct hosts parse_hosts(const drom_mpi *m, const char *text)
{
    struct hosts hosts = {NULL, 0};
    size_t lines = 1;
    for (const char *c = text; *c; c++)
        lines += *c == '\n';
    hosts.at = must_have(m, malloc(lines * sizeof *hosts.at), 1);
    for (const char *line = text, *end = text; end; line = end + 1) {
        char copy[2 * NODE_SIZE] = "";
        struct host h;
        size_t length = strcspn(line, "#\n");
        bool fits = length < sizeof copy;
        end = strchr(line, '\n');
        memcpy(copy, line, fits ? length : 0);
        if (!fits || !read_host(copy, &h) || (h.slots && is_listed(&hosts, h.node))) {
            hosts.count = 0;
            break;
        }
        if (h.slots)
            hosts.at[hosts.count++] = h;
    }
    return hosts;
}

/* Return whether two names are of one node: either may lack the domain. */
static bool is_node(const char *one, const char *other)
{
    size_t a = strcspn(one, "."), b = strcspn(other, ".");
    bool has_both = one[a] && other[b];
    return has_both ? strcmp(one, other) == 0 : a == b && strncmp(one, other, a) == 0;
}

static bool is_listed(const struct hosts *hosts, const char *node)
{
    for (int i = 0; i < hosts->count; i++)
        if (is_node(hosts->at[i].node, node))
            return true;
    return false;
}

/* Return the text of the host file, for the caller to free, if it has changed; NULL if not, or if it cannot be read. */
static char *read_changed(struct nodes *n)
{
    struct stat about;
    if (stat(n->file, &about) != 0 || (about.st_ino == n->inode && about.st_size == n->size &&
                                       about.st_mtim.tv_sec == n->time.tv_sec && about.st_mtim.tv_nsec == n->time.tv_nsec))
        return NULL;
    FILE *file = fopen(n->file, "r");
    char *text = file ? calloc(MOST_TEXT + 1, 1) : NULL;
    size_t length = text ? fread(text, 1, MOST_TEXT + 1, file) : 0;
    if (file)
        fclose(file);
    if (!text)
        return NULL;
    n->inode = about.st_ino;
    n->size = about.st_size;
    n->time = about.st_mtim;
    text[length > MOST_TEXT ? 0 : length] = '\0'; /* an empty file is refused */
    return text;
}

/* --- what is to happen ------------------------------------------------------------------------------------------------ */

static bool has_node(const drom_mpi *m, const char *node)
{
    for (int rank = 0; rank < m->size; rank++)
        if (is_node(m->members[rank].node, node))
            return true;
    return false;
}

/* Return for each rank whether it is released, for the caller to free: neither its node is in the host file, nor that of any rank
 * with which it has to end. `stay` is set if another such rank prevents the release of one. */
static bool *find_given_up(const drom_mpi *m, const struct hosts *hosts, bool *stay)
{
    bool *is_gone = must_have(m, calloc((size_t)m->size, sizeof *is_gone), 1);
    *stay = false;
    for (int first = 0, end; first < m->size; first = end) {
        bool alone = true, all = true, any = false;
        for (end = first; end < m->size && m->members[end].first == first; end++) {
            is_gone[end] = !is_listed(hosts, m->members[end].node);
            alone &= m->members[end].ends_alone != 0;
            all &= is_gone[end];
            any |= is_gone[end];
        }
        for (int rank = first; rank < end && !alone && !all; rank++)
            is_gone[rank] = false;
        *stay |= any && !alone && !all;
    }
    return is_gone;
}

/* Read the host file if it has changed. An invalid one changes nothing. */
static void look(drom_mpi *m)
{
    struct nodes *n = &m->nodes;
    char *text = read_changed(n);
    if (!text)
        return;
    struct hosts hosts = parse_hosts(m, text);
    if (hosts.count == 0) {
        print_once(m, "the host file is ignored: write a line NODE slots=N for each node, at least one and each once, in 64 KiB.");
        free(hosts.at);
        free(text);
        return;
    }
    free(n->hosts.at);
    free(n->text);
    n->hosts = hosts;
    n->text = text;
    n->has_refused = false;
}

/* Return whether the ranks are to be regrouped now, and how; always false except on the first running rank. */
static bool is_regrouping_due(drom_mpi *m, struct order *order)
{
    struct nodes *n = &m->nodes;
    if (!n->file[0] || MPI_Wtime() < n->next_look || first_of(m, m->map) != m->rank)
        return false;
    n->next_look = MPI_Wtime() + LOOK_MS / 1e3;
    look(m);
    if (n->hosts.count == 0)
        return false;
    int lost = 0, left = m->running;
    bool spawns = false, stay, *is_gone = find_given_up(m, &n->hosts, &stay);
    for (int rank = 0; rank < m->size; rank++) {
        lost += is_gone[rank];
        left -= is_gone[rank] && has(m->map, rank);
    }
    free(is_gone);
    for (int i = 0; i < n->hosts.count && !n->cannot_spawn; i++)
        spawns |= !has_node(m, n->hosts.at[i].node);
    bool is_final = !spawns && left == m->size - lost; /* no more ranks will run */
    if (lost > 0 && left < m->update.min_ranks && is_final && !n->has_refused) {
        print_once(m, "too few ranks would be left, so none is released: leave nodes for min_ranks in the host file.");
        n->has_refused = true;
    }
    if (stay && !n->has_refused) {
        print_once(m, "ranks stay on a node that is given up, as MPI ends those of one launch together: launch on one node, or let ranks "
               "end alone (docs/adaptive-mpi.md).");
        n->has_refused = true;
    }
    *order = (struct order){(int)strlen(n->text), lost > 0 && left >= m->update.min_ranks, spawns};
    return order->releases || order->spawns;
}

/* Return whether MPICH runs on UCX, which fails at the end of a program if other ranks have ended before. */
static bool is_on_ucx(void)
{
    char version[MPI_MAX_LIBRARY_VERSION_STRING] = "";
    const char *chosen = getenv("MPIR_CVAR_CH4_NETMOD");
    int length;
    MPI_Get_library_version(version, &length);
    const char *device = strstr(version, "ch4:"), *name = chosen ? chosen : device ? device + strlen("ch4:") : "";
    return strncmp(name, "ucx", strlen("ucx")) == 0;
}

/* Return whether this process can end before the others of its group; if `now`, configure the MPI library for that. */
static bool end_alone(bool now)
{
    int provided, index, count, value = 1;
    MPI_T_cvar_handle handle;
    if (is_on_ucx() || MPI_T_init_thread(MPI_THREAD_SINGLE, &provided) != MPI_SUCCESS)
        return false;
    bool can = MPI_T_cvar_get_index(ENDS_ALONE, &index) == MPI_SUCCESS &&
               MPI_T_cvar_handle_alloc(index, NULL, &handle, &count) == MPI_SUCCESS;
    if (can && now)
        can = MPI_T_cvar_write(handle, &value) == MPI_SUCCESS;
    if (can)
        MPI_T_cvar_handle_free(&handle);
    MPI_T_finalize();
    return can;
}

/* --- groups that end and begin ---------------------------------------------------------------------------------------- */

static void use_all(drom_mpi *m, MPI_Comm all)
{
    if (m->whole != MPI_COMM_NULL && m->whole != m->comm)
        MPI_Comm_free(&m->whole);
    m->whole = MPI_COMM_NULL;
    MPI_Comm_free(&m->all); /* Open MPI 4 waits for ever in MPI_Comm_disconnect() */
    m->all = all;
    if (all == MPI_COMM_NULL)
        return;
    MPI_Comm_rank(all, &m->rank);
    MPI_Comm_size(all, &m->size);
}

/* Return once all ranks have received what others sent them, so that released ranks can end without waiting for any. The last
 * message between two ranks is received by the released one. */
static void part(const drom_mpi *m, const bool *is_gone, MPI_Comm staying)
{
    int leader = 0;
    while (is_gone[leader])
        leader++;
    if (m->is_released) {
        MPI_Ssend(NULL, 0, MPI_BYTE, leader, TAG_OUT, m->all);
        MPI_Recv(NULL, 0, MPI_BYTE, leader, TAG_OUT, m->all, MPI_STATUS_IGNORE);
        return;
    }
    MPI_Barrier(staying);
    for (int rank = 0; m->rank == leader && rank < m->size; rank++)
        if (is_gone[rank])
            MPI_Recv(NULL, 0, MPI_BYTE, rank, TAG_OUT, m->all, MPI_STATUS_IGNORE);
    for (int rank = 0; m->rank == leader && rank < m->size; rank++)
        if (is_gone[rank])
            MPI_Send(NULL, 0, MPI_BYTE, rank, TAG_OUT, m->all);
}

/* Separate the released ranks from the others: with no communicator in common, either side can end alone. */
static void release(drom_mpi *m, const struct hosts *hosts)
{
    MPI_Comm all;
    bool stay, *is_gone = find_given_up(m, hosts, &stay);
    m->is_released = is_gone[m->rank];
    MPI_Comm_split(m->all, m->is_released ? MPI_UNDEFINED : 0, m->rank, &all);
    int first = m->members[m->rank].first, gone = 0, left = 0;
    bool is_partial = false; /* groups that end as a whole wait for each other at their end */
    for (int rank = 1; rank < m->size; rank++)
        is_partial |= m->members[rank].first == m->members[rank - 1].first && is_gone[rank] != is_gone[rank - 1];
    if (is_partial)
        part(m, is_gone, all);
    m->group_rank = 0;
    for (int rank = first; rank < m->size && m->members[rank].first == first; rank++) {
        gone += is_gone[rank];
        left += !is_gone[rank];
        m->group_rank += rank < m->rank && !is_gone[rank];
    }
    if (gone > 0 && left > 0)
        end_alone(true);
    free(is_gone);
    use_all(m, all);
}

/* Return the arguments of env(1) that start this program on a node as it was started here, for the caller to free. */
static char **make_arguments(const drom_mpi *m, char *file, char *node)
{
    const struct nodes *n = &m->nodes;
    char **argv = must_have(m, malloc((size_t)(n->words + 3) * sizeof *argv), 1);
    memcpy(argv, (char *[]){file, node}, 2 * sizeof *argv);
    memcpy(argv + 2, n->command, (size_t)(n->words + 1) * sizeof *argv);
    return argv;
}

/* Spawn this program on a node. Return the communicator of this rank and the new ones, or MPI_COMM_NULL. */
static MPI_Comm spawn(const drom_mpi *m, const struct host *h)
{
    char file[MOST_PATH + 32], node[NODE_SIZE + 16];
    snprintf(file, sizeof file, SPAWNED "=%s", m->nodes.file);
    snprintf(node, sizeof node, "DROM_NODE=%s", h->node);
    char **argv = make_arguments(m, file, node);
    MPI_Comm children, pair = MPI_COMM_NULL;
    MPI_Errhandler before;
    MPI_Info info;
    MPI_Info_create(&info);
    MPI_Info_set(info, "host", h->host);
    MPI_Info_set(info, "wdir", m->nodes.folder);
    MPI_Comm_get_errhandler(MPI_COMM_SELF, &before);
    MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN);
    if (MPI_Comm_spawn("env", argv, h->slots, info, 0, MPI_COMM_SELF, &children, MPI_ERRCODES_IGNORE) == MPI_SUCCESS) {
        MPI_Intercomm_merge(children, 0, &pair);
        MPI_Comm_free(&children);
    }
    MPI_Comm_set_errhandler(MPI_COMM_SELF, before);
    MPI_Errhandler_free(&before);
    MPI_Info_free(&info);
    free(argv);
    return pair;
}

/* Make each new rank connect to each old one, before any of these connects to it: if both did so at the same time, MPICH 5 over TCP
 * was observed to hang afterwards. */
static void connect_ranks(MPI_Comm both, bool is_new)
{
    int others;
    MPI_Comm_remote_size(both, &others);
    for (int rank = 0; rank < others; rank++)
        if (is_new)
            MPI_Send(NULL, 0, MPI_BYTE, rank, TAG_GROUP, both);
        else
            MPI_Recv(NULL, 0, MPI_BYTE, rank, TAG_GROUP, both, MPI_STATUS_IGNORE);
}

/* Unite all ranks with a new group, on every rank of both. `leader` is a rank of this side; it has a communicator `pair` with
 * the ranks of the other side, of which number `other` leads that one. */
static void unite(drom_mpi *m, int leader, MPI_Comm pair, int other, bool is_new)
{
    MPI_Comm both, all;
    MPI_Intercomm_create(m->all, leader, pair, other, TAG_GROUP, &both);
    connect_ranks(both, is_new);
    MPI_Intercomm_merge(both, is_new, &all);
    MPI_Comm_free(&both);
    if (pair != MPI_COMM_NULL)
        MPI_Comm_free(&pair);
    use_all(m, all);
}

/* The groups that are spawned in one regrouping: the next one to unite with, and the rank that has spawned each, -1 if that failed. */
struct groups {
    int next, count, leaders[MOST_GROUPS];
};

/* Unite all ranks with the groups that are left. Ranks that have spawned one have a communicator with it. Each new group receives
 * the list of the remaining ones. */
static void unite_all(drom_mpi *m, struct groups *g, const MPI_Comm *pairs)
{
    while (g->next < g->count) {
        int at = g->next++;
        if (g->leaders[at] < 0)
            continue;
        unite(m, g->leaders[at], pairs ? pairs[at] : MPI_COMM_NULL, 1, false);
        MPI_Bcast(g, sizeof *g, MPI_BYTE, 0, m->all);
    }
}

/* Become part of the program that has spawned this group. */
static void join_program(drom_mpi *m, MPI_Comm parent)
{
    MPI_Comm pair;
    struct groups g;
    MPI_Intercomm_merge(parent, 1, &pair);
    MPI_Comm_free(&parent);
    unite(m, 0, pair, 0, true);
    MPI_Bcast(&g, sizeof g, MPI_BYTE, 0, m->all);
    unite_all(m, &g, NULL);
}

/* Spawn a group on each of these nodes, by several running ranks at the same time, and unite all ranks with them. Ranks that were
 * spawned before and have not joined yet have a communicator too, but of their own group. */
static void grow(drom_mpi *m, const struct hosts *hosts, bool runs_now)
{
    int me = -1, running = 0, failed = 0;
    struct groups g = {.count = hosts->count};
    MPI_Comm pairs[MOST_GROUPS];
    if (runs_now) {
        MPI_Comm_rank(m->comm, &me);
        MPI_Comm_size(m->comm, &running);
    }
    for (int i = 0; i < g.count; i++) {
        pairs[i] = me >= 0 && i % running == me ? spawn(m, &hosts->at[i]) : MPI_COMM_NULL;
        g.leaders[i] = pairs[i] == MPI_COMM_NULL ? -1 : m->rank;
    }
    MPI_Allreduce(MPI_IN_PLACE, g.leaders, g.count, MPI_INT, MPI_MAX, m->all);
    for (int i = 0; i < g.count; i++)
        failed += g.leaders[i] < 0;
    unite_all(m, &g, pairs);
    if (failed == 0)
        return;
    m->nodes.cannot_spawn = true; /* Open MPI 4 ends the program at the next attempt */
    print_once(m, "MPI has not spawned ranks on each new node, so no more are spawned: use a library that can, and nodes that it was "
                  "given.");
}

/* Exchange the description of each rank, and take the update of the first one that runs. */
static void exchange_members(drom_mpi *m, bool runs_now)
{
    struct member mine = {m->rank - m->group_rank, runs_now, m->nodes.ends_alone, m->update, ""};
    memcpy(mine.node, m->nodes.name, sizeof mine.node);
    free(m->members);
    m->members = must_have(m, malloc((size_t)m->size * sizeof mine), 1);
    MPI_Allgather(&mine, sizeof mine, MPI_BYTE, m->members, sizeof mine, MPI_BYTE, m->all);
    must_have(m, make_maps(m) ? m : NULL, 1);
    m->running = 0;
    for (int rank = 0; rank < m->size; rank++)
        if (m->members[rank].runs) {
            add(m->map, rank);
            m->running++;
        }
    m->update = m->members[first_of(m, m->map)].update;
    m->update.first = first_of(m, m->map);
    report_want(m);
}

/* Carry out an order, on every rank. */
static void regroup(drom_mpi *m, const struct order *order, const char *text)
{
    bool did_run = runs(m);
    struct hosts hosts = parse_hosts(m, text), fresh = {must_have(m, malloc((size_t)hosts.count * sizeof *hosts.at), 1), 0};
    for (int i = 0; i < hosts.count && order->spawns && fresh.count < MOST_GROUPS; i++)
        if (!has_node(m, hosts.at[i].node))
            fresh.at[fresh.count++] = hosts.at[i];
    settle(m);
    if (order->releases)
        release(m, &hosts);
    if (order->spawns && !m->is_released)
        grow(m, &fresh, did_run);
    if (!m->is_released)
        exchange_members(m, did_run);
    free(fresh.at);
    free(hosts.at);
}

/* --- orders ----------------------------------------------------------------------------------------------------------- */

/* Give an order to all running ranks, and receive it there; the text is for the caller to free. */
static char *share_order(const drom_mpi *m, struct order *order)
{
    MPI_Bcast(order, sizeof *order, MPI_BYTE, 0, m->comm);
    char *text = must_have(m, calloc((size_t)order->length + 1, 1), 1);
    if (first_of(m, m->map) == m->rank)
        memcpy(text, m->nodes.text, (size_t)order->length);
    MPI_Bcast(text, order->length, MPI_CHAR, 0, m->comm);
    return text;
}

/* Give an order to the ranks that rest, from the first running rank. */
static void send_order(const drom_mpi *m, const struct order *order, const char *text)
{
    for (int rank = 0; first_of(m, m->map) == m->rank && rank < m->size; rank++) {
        if (has(m->map, rank))
            continue;
        MPI_Send(order, sizeof *order, MPI_BYTE, rank, TAG_GROUP, m->all);
        MPI_Send(text, order->length, MPI_CHAR, rank, TAG_GROUP, m->all);
    }
}

/* Receive an order on a rank that rests, and carry it out. */
static void receive_order(drom_mpi *m, int source)
{
    struct order order;
    MPI_Recv(&order, sizeof order, MPI_BYTE, source, TAG_GROUP, m->all, MPI_STATUS_IGNORE);
    char *text = must_have(m, calloc((size_t)order.length + 1, 1), 1);
    MPI_Recv(text, order.length, MPI_CHAR, source, TAG_GROUP, m->all, MPI_STATUS_IGNORE);
    regroup(m, &order, text);
    free(text);
}

/* Add the ranks that an order releases to those that leave. */
static void leave_by(const drom_mpi *m, const struct order *order, const char *text)
{
    struct hosts hosts = parse_hosts(m, text);
    bool stay, *is_gone = find_given_up(m, &hosts, &stay);
    for (int rank = 0; order->releases && rank < m->size; rank++)
        if (has(m->map, rank) && is_gone[rank])
            add(m->leaving, rank);
    free(is_gone);
    free(hosts.at);
}

/* --- beginning and end ------------------------------------------------------------------------------------------------ */

/* Store how this program was started, to spawn it: the words of drom run, if it is the first process of a task, and its own. */
static void read_command(drom_mpi *m)
{
    struct nodes *n = &m->nodes;
    const char *task = getenv("DROM_TASK"), *run = task && atol(task) == getpid() ? getenv("DROM_RUN") : NULL;
    size_t length = run && strlen(run) < MOST_COMMAND ? strlen(run) + 1 : 0;
    n->line = must_have(m, calloc(2 * MOST_COMMAND, 1), 1);
    if (length > 0)
        memcpy(n->line, run, length);
    for (size_t i = 0; i < length; i++)
        n->line[i] = n->line[i] == '\n' ? '\0' : n->line[i];
    FILE *file = fopen("/proc/self/cmdline", "r");
    size_t own = file ? fread(n->line + length, 1, MOST_COMMAND - 1, file) : 0;
    if (file)
        fclose(file);
    n->cannot_spawn = own == 0 || own == MOST_COMMAND - 1;
    if (n->cannot_spawn)
        print_once(m, "no ranks are spawned, as /proc/self/cmdline cannot be read or has 128 KiB: mount /proc, or pass fewer arguments.");
    length += own;
    for (size_t i = 0; i < length; i++)
        n->words += n->line[i] == '\0';
    n->command = must_have(m, calloc((size_t)n->words + 1, sizeof *n->command), 1);
    char *at = n->line;
    for (int i = 0; i < n->words; i++, at += strlen(at) + 1)
        n->command[i] = at;
    if (!getcwd(n->folder, sizeof n->folder))
        strcpy(n->folder, "/");
}

/* Return whether this group was spawned by adaptive ranks; get the communicator with these. */
static bool is_spawned(MPI_Comm *parent)
{
    *parent = MPI_COMM_NULL;
    if (getenv(SPAWNED))
        MPI_Comm_get_parent(parent);
    return *parent != MPI_COMM_NULL;
}

/* Return the name of the host file for this process, which may differ between nodes; NULL without one. */
static const char *find_file(void)
{
    const char *own = getenv(HOSTFILE), *file = own ? own : getenv(SPAWNED);
    return file && strlen(file) < MOST_PATH ? file : NULL;
}

/* Initialise from the host file in the first rank's environment, if there is one; collective. */
static void begin_nodes(drom_mpi *m, MPI_Comm parent)
{
    struct nodes *n = &m->nodes;
    const char *file = find_file(), *name = getenv("DROM_NODE");
    int length;
    m->group_rank = m->rank;
    if (m->rank == 0 && file && m->has_world)
        strcpy(n->file, file);
    MPI_Bcast(n->file, MOST_PATH, MPI_CHAR, 0, m->all);
    if (!n->file[0])
        return;
    if (file)
        strcpy(n->file, file);
    n->ends_alone = end_alone(false);
    if (name && strlen(name) < NODE_SIZE)
        strcpy(n->name, name);
    else
        MPI_Get_processor_name(n->name, &length);
    read_command(m);
    if (parent != MPI_COMM_NULL)
        join_program(m, parent);
    exchange_members(m, parent == MPI_COMM_NULL);
}

static void free_nodes(drom_mpi *m)
{
    free(m->nodes.hosts.at);
    free(m->nodes.text);
    free(m->nodes.command);
    free(m->nodes.line);
    free(m->members);
}
