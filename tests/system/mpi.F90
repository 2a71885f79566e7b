! SPDX-License-Identifier: Apache-2.0
! mpi FILE: the program of mpi.c in Fortran. -DMODULE=mpi, or mpi_f08: with which interface.
program ring
  use MODULE
  implicit none
  integer :: rank, ranks, left, right, step, mine, got, total, ierror
  logical :: stopped
  character(len=4096) :: stop_file

  call get_command_argument(1, stop_file)
  call MPI_Init(ierror)
  call MPI_Comm_rank(MPI_COMM_WORLD, rank, ierror)
  call MPI_Comm_size(MPI_COMM_WORLD, ranks, ierror)
  right = mod(rank + 1, ranks)
  left = mod(rank + ranks - 1, ranks)
  step = 0
  stopped = .false.
  do while (.not. stopped)
    step = step + 1
    mine = step + rank
    call MPI_Sendrecv(mine, 1, MPI_INTEGER, right, 1, got, 1, MPI_INTEGER, left, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE, ierror)
    call check(got == step + left)
    call MPI_Allreduce(mine, total, 1, MPI_INTEGER, MPI_SUM, MPI_COMM_WORLD, ierror)
    call check(total == ranks * step + ranks * (ranks - 1) / 2)
    call MPI_Barrier(MPI_COMM_WORLD, ierror)
    if (rank == 0) inquire (file=trim(stop_file), exist=stopped)
    call MPI_Bcast(stopped, 1, MPI_LOGICAL, 0, MPI_COMM_WORLD, ierror)
  end do
  if (rank == 0) print '(a, i0, a)', 'right after ', step, ' steps'
  call MPI_Finalize(ierror)

contains

  subroutine check(right_answer)
    logical, intent(in) :: right_answer
    if (.not. right_answer) call MPI_Abort(MPI_COMM_WORLD, 1, ierror)
  end subroutine check
end program ring
