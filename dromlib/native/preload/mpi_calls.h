/* SPDX-License-Identifier: Apache-2.0 */
/* The calls of MPI that block, or complete an operation: name in C, name in Fortran without its mpi_, and the number of
 * parameters in C. Fortran has one more, ierror. No parameter is a string, whose length Fortran would add, or a real number. */
#ifndef DROM_MPI_CALLS_H
#define DROM_MPI_CALLS_H

#define MPI_CALLS(CALL)                                                                                                      \
    CALL(Barrier, barrier, 1) CALL(Finalize, finalize, 0)                                                                    \
    CALL(Probe, probe, 4) CALL(Iprobe, iprobe, 5) CALL(Mprobe, mprobe, 5) CALL(Improbe, improbe, 6)                          \
    CALL(Wait, wait, 2) CALL(Waitall, waitall, 3) CALL(Waitany, waitany, 4) CALL(Waitsome, waitsome, 5)                      \
    CALL(Test, test, 3) CALL(Testall, testall, 4) CALL(Testany, testany, 5) CALL(Testsome, testsome, 5)                      \
    CALL(Gatherv, gatherv, 9) CALL(Scatterv, scatterv, 9) CALL(Allgatherv, allgatherv, 8) CALL(Alltoallv, alltoallv, 9)      \
    CALL(Alltoallw, alltoallw, 9) CALL(Reduce_scatter, reduce_scatter, 6)                                                    \
    CALL(Neighbor_allgatherv, neighbor_allgatherv, 8) CALL(Neighbor_alltoallv, neighbor_alltoallv, 9)                        \
    CALL(Neighbor_alltoallw, neighbor_alltoallw, 9)                                                                          \
    CALL(Win_fence, win_fence, 2) CALL(Win_start, win_start, 3) CALL(Win_complete, win_complete, 1)                          \
    CALL(Win_wait, win_wait, 1) CALL(Win_test, win_test, 2) CALL(Win_lock, win_lock, 4)                                      \
    CALL(Win_lock_all, win_lock_all, 2) CALL(Win_unlock, win_unlock, 2) CALL(Win_unlock_all, win_unlock_all, 1)              \
    CALL(Win_flush, win_flush, 2) CALL(Win_flush_all, win_flush_all, 1) CALL(Win_flush_local, win_flush_local, 2)            \
    CALL(Win_flush_local_all, win_flush_local_all, 1)                                                                        \
    CALL(File_read_all_end, file_read_all_end, 3) CALL(File_read_at_all_end, file_read_at_all_end, 3)                        \
    CALL(File_read_ordered_end, file_read_ordered_end, 3) CALL(File_write_all_end, file_write_all_end, 3)                    \
    CALL(File_write_at_all_end, file_write_at_all_end, 3) CALL(File_write_ordered_end, file_write_ordered_end, 3)            \
    CALL(File_sync, file_sync, 1)

/* Those with count parameters (not arrays of counts) have a second form in C since MPI 4, with the suffix _c and wider counts. */
#define MPI_COUNTING_CALLS(CALL)                                                                                             \
    CALL(Send, send, 6) CALL(Bsend, bsend, 6) CALL(Ssend, ssend, 6) CALL(Rsend, rsend, 6)                                    \
    CALL(Recv, recv, 7) CALL(Sendrecv, sendrecv, 12) CALL(Sendrecv_replace, sendrecv_replace, 9)                             \
    CALL(Mrecv, mrecv, 5)                                                                                                    \
    CALL(Bcast, bcast, 5) CALL(Gather, gather, 8) CALL(Scatter, scatter, 8)                                                  \
    CALL(Allgather, allgather, 7) CALL(Alltoall, alltoall, 7) CALL(Reduce, reduce, 7)                                        \
    CALL(Allreduce, allreduce, 6) CALL(Reduce_scatter_block, reduce_scatter_block, 6) CALL(Scan, scan, 6)                    \
    CALL(Exscan, exscan, 6) CALL(Neighbor_allgather, neighbor_allgather, 7)                                                  \
    CALL(Neighbor_alltoall, neighbor_alltoall, 7)                                                                            \
    CALL(File_read, file_read, 5) CALL(File_read_all, file_read_all, 5) CALL(File_read_at, file_read_at, 6)                  \
    CALL(File_read_at_all, file_read_at_all, 6) CALL(File_read_ordered, file_read_ordered, 5)                                \
    CALL(File_read_shared, file_read_shared, 5) CALL(File_write, file_write, 5)                                              \
    CALL(File_write_all, file_write_all, 5) CALL(File_write_at, file_write_at, 6)                                            \
    CALL(File_write_at_all, file_write_at_all, 6) CALL(File_write_ordered, file_write_ordered, 5)                            \
    CALL(File_write_shared, file_write_shared, 5)

#endif
