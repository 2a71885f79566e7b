! SPDX-License-Identifier: Apache-2.0
! The functions of drom.h for Fortran: compile this file with the program, gfortran drom.f90 program.f90 $(drom flags).
! They are documented in drom.h and in drom(3).
module drom
    use, intrinsic :: iso_c_binding
    implicit none
    public

    integer, parameter :: drom_max_mask_words = 512

    enum, bind(c)
        enumerator :: drom_unmanaged = 0, drom_responder = 1, drom_follower = 2
    end enum

    enum, bind(c)
        enumerator :: drom_reason_none = 0, drom_reason_arrival = 1, drom_reason_share = 2, drom_reason_return = 3, &
                      drom_reason_order = 4, drom_reason_death = 5, drom_reason_retired = 6, drom_reason_avoid = 7, &
                      drom_reason_wish = 8
    end enum

    type, bind(c) :: drom_grant
        integer(c_int64_t) :: epoch
        integer(c_int32_t) :: ncpus, reason, mask_words, spare
        integer(c_int64_t) :: mask(drom_max_mask_words)
    end type

    interface
        integer(c_int) function drom_version() bind(c)
            import :: c_int
        end function

        type(c_ptr) function drom_attach() bind(c)
            import :: c_ptr
        end function

        subroutine drom_detach(handle) bind(c)
            import :: c_ptr
            type(c_ptr), value :: handle
        end subroutine

        integer(c_int) function drom_mode(handle) bind(c)
            import :: c_int, c_ptr
            type(c_ptr), value :: handle
        end function

        integer(c_int) function drom_poll(handle) bind(c, name="drom_poll_fn")
            import :: c_int, c_ptr
            type(c_ptr), value :: handle
        end function

        integer(c_int) function drom_take(handle, grant) bind(c)
            import :: c_int, c_ptr, drom_grant
            type(c_ptr), value :: handle
            type(drom_grant), intent(inout) :: grant
        end function

        integer(c_int) function drom_apply(handle, grant) bind(c)
            import :: c_int, c_ptr, drom_grant
            type(c_ptr), value :: handle
            type(drom_grant), intent(in) :: grant
        end function

        integer(c_int) function drom_acknowledge(handle, grant) bind(c)
            import :: c_int, c_ptr, drom_grant
            type(c_ptr), value :: handle
            type(drom_grant), intent(in) :: grant
        end function

        integer(c_int) function drom_wait(handle, timeout_ms) bind(c)
            import :: c_int, c_ptr
            type(c_ptr), value :: handle
            integer(c_int), value :: timeout_ms
        end function

        subroutine drom_progress(handle, done) bind(c)
            import :: c_int64_t, c_ptr
            type(c_ptr), value :: handle
            integer(c_int64_t), value :: done
        end subroutine

        subroutine drom_want(handle, min_cpus, max_cpus) bind(c)
            import :: c_int32_t, c_ptr
            type(c_ptr), value :: handle
            integer(c_int32_t), value :: min_cpus, max_cpus
        end subroutine

        subroutine drom_may_rest(handle, min_tasks, max_tasks) bind(c)
            import :: c_int32_t, c_ptr
            type(c_ptr), value :: handle
            integer(c_int32_t), value :: min_tasks, max_tasks
        end subroutine

        integer(c_int) function drom_slot(handle) bind(c)
            import :: c_int, c_ptr
            type(c_ptr), value :: handle
        end function

        type(c_ptr) function drom_directory(handle) bind(c)
            import :: c_ptr
            type(c_ptr), value :: handle
        end function

        integer(c_int) function drom_grant_cpus(grant, cpus, max) bind(c)
            import :: c_int, drom_grant
            type(drom_grant), intent(in) :: grant
            integer(c_int), intent(out) :: cpus(*)
            integer(c_int), value :: max
        end function
    end interface
end module
