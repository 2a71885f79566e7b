# find_package(drom) gives the target drom::drom.
get_filename_component(DROM_PREFIX "${CMAKE_CURRENT_LIST_DIR}/../../.." ABSOLUTE)
if(NOT TARGET drom::drom)
    add_library(drom::drom SHARED IMPORTED)
    set_target_properties(drom::drom PROPERTIES
        IMPORTED_LOCATION "${DROM_PREFIX}/lib/libdrom.so"
        IMPORTED_SONAME libdrom.so.0
        INTERFACE_INCLUDE_DIRECTORIES "${DROM_PREFIX}/include")
endif()
